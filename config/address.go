package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// listenAddress is an address to listen on: host:port or unix:/path. It is in two fields.
func listenAddress(network, address *string) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			k := kind[string]{what: `an address such as ":443"`, parse: func(s string) (string, error) {
				if file, ok := strings.CutPrefix(s, "unix:"); ok {
					*network = "unix"
					return file, checkSocketPath(file)
				}
				*network = "tcp"
				return parseListenAddress(s)
			}}
			k.read(v, address, n, p)
		},
		print: func(*shower) *Tree { return textUnlessEmpty(asWritten(*network, *address)) },
		schema: func() *schema {
			return textLike(`an address such as ":443"`, socketPattern+"|("+ipv4Pattern+"|"+bracketed+")?:"+portPattern, nil)
		},
	}
}

// Patterns of ports, of the addresses of Unix sockets, and of IP addresses. Those of IPv6 are
// by the place of the double colon. An IPv6 address in brackets may have a zone.
const (
	portPattern   = `([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])`
	socketPattern = `unix:/.{0,102}` // no path is longer than maxSocketPath
	ipv4Pattern   = octet + `(\.` + octet + `){3}`
	octet         = `(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	hexGroup      = `[0-9A-Fa-f]{1,4}`
	ipv6Pattern   = "((" + hexGroup + ":){7}" + hexGroup + "|(" + hexGroup + ":){1,7}:|(" + hexGroup + ":){1,6}:" + hexGroup +
		"|(" + hexGroup + ":){1,5}(:" + hexGroup + "){1,2}|(" + hexGroup + ":){1,4}(:" + hexGroup + "){1,3}" +
		"|(" + hexGroup + ":){1,3}(:" + hexGroup + "){1,4}|(" + hexGroup + ":){1,2}(:" + hexGroup + "){1,5}" +
		"|" + hexGroup + ":(:" + hexGroup + "){1,6}|:(:" + hexGroup + "){1,7}|::|(" + hexGroup + ":|:){2,7}" + ipv4Pattern + ")"
	bracketed = `\[(` + ipv4Pattern + "|" + ipv6Pattern + `(%[^\]]+)?)\]`
)

// asWritten returns an address as the file has it.
func asWritten(network, address string) string {
	if network == "unix" {
		return "unix:" + address
	}
	return address
}

// maxSocketPath is the longest path in a sockaddr_un on macOS; Linux allows a few bytes
// more.
const maxSocketPath = 103

func checkSocketPath(file string) error {
	if !strings.HasPrefix(file, "/") {
		return fmt.Errorf(`has no absolute path; write one such as "unix:/run/weir.sock"`)
	}
	if len(file) > maxSocketPath {
		return fmt.Errorf("is longer than the %d bytes that a Unix socket's path may have", maxSocketPath)
	}
	return nil
}

func parseListenAddress(s string) (string, error) {
	noAddress := fmt.Errorf("is not an address to listen on; write an IP address and a port, or one such as %q for every address", ":443")
	if _, err := strconv.Atoi(s); err != nil && !strings.ContainsAny(s, ".:") {
		return "", noAddress
	}
	host, port, err := splitPort(s, ":443")
	if err != nil {
		return "", err
	}
	if host == "" {
		return ":" + port, nil
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case err != nil && host == "localhost":
		return "", fmt.Errorf("is a name; write the address, such as %q", "127.0.0.1:"+port)
	case err != nil:
		return "", noAddress
	}
	return net.JoinHostPort(addr.Unmap().String(), port), nil
}

// splitPort splits host:port and checks the port; the host is returned without brackets.
func splitPort(s, example string) (host, port string, err error) {
	if strings.Contains(s, "://") {
		return "", "", fmt.Errorf("is a URL; write only host and port, and set protocol in place of the scheme")
	}
	host, port, err = net.SplitHostPort(s)
	if err != nil {
		if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil && a.Is6() {
			return "", "", fmt.Errorf("has no port; write it behind brackets, such as %q", "["+a.String()+"]"+portOf(example))
		}
		if !strings.Contains(s, ":") {
			if _, err := strconv.Atoi(s); err == nil {
				return "", "", fmt.Errorf("is only a port; write %q", strings.TrimSuffix(example, portOf(example))+":"+s)
			}
			return "", "", fmt.Errorf("has no port; write one behind it, such as %q", s+portOf(example))
		}
		return "", "", fmt.Errorf("is not host and port; write an address such as %q", example)
	}
	v, err := strconv.ParseUint(port, 10, 16)
	if err != nil || v == 0 || strconv.FormatUint(v, 10) != port {
		return "", "", fmt.Errorf("has port %q; write a number from 1 to 65535", port)
	}
	return host, port, nil
}

func portOf(example string) string { return example[strings.LastIndexByte(example, ':'):] }

// parseEndpoint checks host:port or unix:/path to connect to.
func parseEndpoint(s string) (string, error) {
	if file, ok := strings.CutPrefix(s, "unix:"); ok {
		return s, checkSocketPath(file)
	}
	host, port, err := splitPort(s, "10.0.0.1:8080")
	if err != nil {
		return "", err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.IsUnspecified() || addr.IsMulticast() {
			return "", fmt.Errorf("is not the address of a single machine; write the endpoint's address")
		}
		return net.JoinHostPort(addr.Unmap().String(), port), nil
	}
	if host == "" {
		return "", fmt.Errorf("has no host; write one, such as %q", "127.0.0.1:"+port)
	}
	name, err := parseHost(host)
	if err != nil || strings.HasPrefix(name, "*") {
		return "", fmt.Errorf("has no host name or IP address before the port; write one such as %q", "app.internal:"+port)
	}
	return host + ":" + port, nil // the trailing dot stays: it keeps resolvers from trying search domains
}

// parseHost normalizes a host of a route or certificate for comparison: lower case, no
// trailing dot, IPv6 addresses without brackets.
func parseHost(s string) (string, error) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil && a.Zone() == "" {
		return a.Unmap().String(), nil
	}
	host := strings.TrimSuffix(strings.ToLower(s), ".")
	if host == "*" {
		return "", fmt.Errorf("is not a host; take hosts out to match every host, or write one such as %q", "*.example.org")
	}
	rest := strings.TrimPrefix(host, "*.")
	switch {
	case strings.ContainsFunc(host, func(r rune) bool { return r > 0x7e }):
		return "", fmt.Errorf("is not ASCII; write the name as it is in DNS, beginning with xn--")
	case strings.Contains(host, "://") || strings.Contains(host, "/"):
		return "", fmt.Errorf("is more than a host; write the name without scheme and path")
	case strings.Contains(host, ":"):
		return "", fmt.Errorf("has a port, or is not an IPv6 address; write only the host")
	case strings.Contains(rest, "*"):
		return "", fmt.Errorf("has a star in the wrong place; a star can only be the whole leftmost label, as in %q", "*.example.org")
	case len(rest) > 253:
		return "", fmt.Errorf("is longer than the 253 bytes of a host name")
	}
	for label := range strings.SplitSeq(rest, ".") {
		if !isLabel(label) {
			return "", fmt.Errorf("is not a host name; write letters, digits and dashes between dots, such as %q", "app.example.org")
		}
	}
	return host, nil
}

// hostPattern matches every text that parseHost accepts, namePattern those without a star.
const (
	hostPattern = `\*\.` + nameOnly + "|" + namePattern
	namePattern = nameOnly + `|\[*(` + ipv4Pattern + "|" + ipv6Pattern + `)\]*`
	nameOnly    = partOfName + `(\.` + partOfName + `)*\.?`
	partOfName  = `[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?`
	withPort    = "(" + nameOnly + "|" + bracketed + `|\[` + nameOnly + `\]):` + portPattern
)

// host is a host name, a wildcard or an IP address.
var host = kind[string]{what: "a host", parse: parseHost, format: same[string], pattern: hostPattern}

// routeHost is a host of a route. "**." stands for one label or more.
var routeHost = kind[string]{what: "a host", parse: parseRouteHost, format: same[string], pattern: `\*\*?\.` + nameOnly + "|" + namePattern}

func parseRouteHost(s string) (string, error) {
	rest, deep := strings.CutPrefix(s, "**.")
	if !deep {
		return parseHost(s)
	}
	name, err := parseHost(rest)
	if _, isIP := netip.ParseAddr(name); err == nil && (strings.HasPrefix(name, "*") || isIP == nil) {
		err = fmt.Errorf("has two stars before something else than a name; write one such as %q", "**.example.org")
	}
	if err != nil {
		return "", err
	}
	return "**." + name, nil
}

// LessSpecific returns the hosts of routes that cover a host, beginning with the most specific
// one; "" is every host. They do not include the host itself.
func LessSpecific(host string) (all []string) {
	rest, isDeep := strings.CutPrefix(host, "**.")
	if !isDeep {
		name, isWildcard := strings.CutPrefix(host, "*.")
		if rest = name; !isWildcard {
			var hasParent bool
			if _, rest, hasParent = strings.Cut(name, "."); !hasParent {
				return []string{""}
			}
			all = append(all, "*."+rest)
		}
		all = append(all, "**."+rest)
	}
	for {
		var hasParent bool
		if _, rest, hasParent = strings.Cut(rest, "."); !hasParent {
			return append(all, "")
		}
		all = append(all, "**."+rest)
	}
}

// hostField is a value of the Host header.
var hostField = kind[string]{what: "a host", parse: parseHostField, format: same[string], pattern: namePattern + "|" + withPort}

// isLabel also accepts underscores: they are in use, although host names must not have
// them.
func isLabel(s string) bool {
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-'
}

// parseHostField checks a value for the Host header: a name or IP address, with or
// without a port.
func parseHostField(s string) (string, error) {
	wrong := fmt.Errorf("cannot be sent as Host; write a name, with a port if need be, such as %q", "app.internal")
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil && a.Is6() && a.Zone() == "" {
		return "[" + a.String() + "]", nil
	}
	host := s
	if strings.Contains(s, ":") {
		var err error
		if host, _, err = splitPort(s, "app.internal:8080"); err != nil {
			return "", wrong
		}
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		return s, nil
	}
	if name, err := parseHost(host); err != nil || strings.HasPrefix(name, "*") {
		return "", wrong
	}
	return s, nil
}

// sameAddress reports whether two sockets cannot both listen: an address without a host
// uses the port on all addresses.
func sameAddress(networkA, a, networkB, b string) bool {
	if networkA != networkB || a == "" || b == "" {
		return false
	}
	if networkA == "unix" {
		return a == b
	}
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	return portA == portB && (hostA == hostB || everyHost(hostA) || everyHost(hostB))
}

func everyHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || err == nil && a.IsUnspecified()
}

// portOfAddress returns the port of a TCP address to listen on.
func portOfAddress(address string) int {
	_, text, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(text)
	return port
}
