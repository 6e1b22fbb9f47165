package config

// What is here checks single values, for those who make values of other things
// than files: what the loader refuses, they refuse as well.

// ParseHost brings a host of a route or certificate into the form that is
// compared: lower case, no trailing dot, IPv6 addresses without brackets.
func ParseHost(s string) (string, error) { return parseHost(s) }

// ParsePath reads a prefix, or "=" and an exact path. It refuses what could never match.
func ParsePath(s string) (Path, error) { return parsePath(s) }

// ParseEndpoint checks host:port or unix:/path to connect to.
func ParseEndpoint(s string) (string, error) { return parseEndpoint(s) }

// Collide reports whether two sockets cannot listen on both addresses.
func Collide(networkA, a, networkB, b string) bool { return sameAddress(networkA, a, networkB, b) }
