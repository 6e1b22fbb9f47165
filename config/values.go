package config

// These functions check single values, for packages that make a configuration from other
// sources than files. They refuse the same values as the loader.

// ParseHost normalizes a host of a route or certificate for comparison: lower case, no
// trailing dot, IPv6 addresses without brackets.
func ParseHost(s string) (string, error) { return parseHost(s) }

// ParsePath reads a prefix, or "=" and an exact path, and no expression. It refuses paths that can never
// match.
func ParsePath(s string) (Path, error) { return parsePath(s) }

// ParseEndpoint checks host:port or unix:/path to connect to.
func ParseEndpoint(s string) (string, error) { return parseEndpoint(s) }

// Collide reports whether two sockets cannot both listen on these addresses.
func Collide(networkA, a, networkB, b string) bool { return sameAddress(networkA, a, networkB, b) }
