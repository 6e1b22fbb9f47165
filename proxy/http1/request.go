package http1

import (
	"bytes"
	"net/netip"

	"github.com/weirproxy/weir/proxy/message"
)

var (
	errRequestLine   = refusal(400, "bad_request_line", "the request line is not a method, a target and a version")
	errTarget        = refusal(400, "bad_target", "the request target is neither a path nor an absolute http or https address")
	errTargetBytes   = refusal(400, "bad_target", "the request target contains a character that must be encoded")
	errPath          = refusal(400, "ambiguous_path", "the path contains a dot segment, a backslash or a null byte, plain or encoded, or a broken escape")
	errVersion       = refusal(505, "version", "the version is neither HTTP/1.1 nor HTTP/1.0")
	errMethod        = refusal(501, "method", "the method CONNECT or TRACE is not forwarded")
	errNoHost        = refusal(400, "no_host", "an HTTP/1.1 request needs a Host")
	errTwoHosts      = refusal(400, "two_hosts", "there is more than one Host, or it differs from the target's")
	errBadHost       = refusal(400, "bad_host", "Host is not a host name or address with an optional port")
	errExpectation   = refusal(417, "expectation", "Expect is something else than 100-continue")
	errUpgradeBody   = refusal(400, "upgrade_with_body", "a request to upgrade has a body")
	errTargetTooLong = refusal(414, "target_too_long", "the request line is longer than limits.head_size allows")
)

// parseRequest reads a whole head, with its empty line, into req.
func parseRequest(req *message.Request, head []byte, limits Limits) error {
	block, offset := req.Load(head)
	line := bytes.IndexByte(block, '\r')
	if err := parseRequestLine(req, block[:line], offset); err != nil {
		return err
	}
	if block[line+1] != '\n' {
		return errRequestLine
	}
	if err := parseFields(&req.Head, block[line+2:], offset+line+2, limits.Fields); err != nil {
		return err
	}
	return interpretRequest(req)
}

func parseRequestLine(req *message.Request, line []byte, offset int) error {
	method := bytes.IndexByte(line, ' ')
	version := bytes.LastIndexByte(line, ' ')
	if method <= 0 || version <= method+1 {
		return errRequestLine
	}
	if !allToken(line[:method]) {
		return errRequestLine
	}
	if err := parseVersion(req, line[version+1:]); err != nil {
		return err
	}
	req.Method = req.Range(offset, offset+method)
	if err := setMethod(req, line[:method]); err != nil {
		return err
	}
	return parseTarget(req, line[method+1:version], offset+method+1)
}

func parseVersion(req *message.Request, v []byte) error {
	if len(v) != 8 || string(v[:5]) != "HTTP/" || v[6] != '.' || v[5] < '0' || v[5] > '9' || v[7] < '0' || v[7] > '9' {
		return errRequestLine
	}
	if v[5] != '1' || v[7] > '1' {
		return errVersion
	}
	req.Minor = int(v[7] - '0')
	return nil
}

func setMethod(req *message.Request, m []byte) error {
	switch string(m) {
	case "GET", "OPTIONS", "PUT", "DELETE":
		req.Idempotent = true
	case "HEAD":
		req.Idempotent, req.IsHead = true, true
	case "CONNECT", "TRACE", "PRI":
		return errMethod
	}
	return nil
}

// parseTarget takes the origin form, the absolute form and "*" of OPTIONS
// (RFC 9112, section 3.2). What is routed is what is forwarded, so nothing is
// normalised: a path that an endpoint might read differently is refused.
func parseTarget(req *message.Request, t []byte, offset int) error {
	for _, c := range t {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return errTargetBytes
		}
	}
	if t[0] != '/' {
		if string(t) == "*" && string(req.Bytes(req.Method)) == "OPTIONS" {
			req.Target = req.Range(offset, offset+1)
			req.Path = req.Target
			return nil
		}
		n, err := parseAuthority(req, t, offset)
		if err != nil {
			return err
		}
		t, offset = t[n:], offset+n
		if len(t) == 0 || t[0] == '?' {
			return errTarget // no path: endpoints differ in what they make of it
		}
	}
	path := t
	if q := bytes.IndexByte(t, '?'); q >= 0 {
		path = t[:q]
	}
	if ambiguousPath(path) {
		return errPath
	}
	req.Target = req.Range(offset, offset+len(t))
	req.Path = req.Range(offset, offset+len(path))
	return nil
}

// parseAuthority reads the scheme and authority of a target in absolute form
// and returns how long they are.
func parseAuthority(req *message.Request, t []byte, offset int) (int, error) {
	start := 0
	switch {
	case len(t) > 7 && bytes.EqualFold(t[:7], []byte("http://")):
		start = 7
	case len(t) > 8 && bytes.EqualFold(t[:8], []byte("https://")):
		start = 8
	default:
		return 0, errTarget
	}
	end := start
	for end < len(t) && t[end] != '/' && t[end] != '?' {
		end++
	}
	if end == start {
		return 0, errTarget
	}
	req.Host = req.Range(offset+start, offset+end)
	return end, nil
}

// ambiguousPath finds what endpoints disagree about: "." and ".." segments and
// backslashes, plain or percent-encoded, null bytes, and escapes that are none.
func ambiguousPath(path []byte) bool {
	suspicious := false
	for i, c := range path {
		switch c {
		case '\\':
			return true
		case '.':
			suspicious = suspicious || path[max(i-1, 0)] == '/' || path[max(i-1, 0)] == '.'
		case '%':
			if !validEscape(path[i:]) {
				return true
			}
			suspicious = true
		}
	}
	if !suspicious {
		return false
	}
	for len(path) > 0 {
		segment := path
		if i := bytes.IndexByte(path[1:], '/'); i >= 0 {
			segment, path = path[:i+1], path[i+1:]
		} else {
			path = nil
		}
		if ambiguousSegment(segment[1:]) {
			return true
		}
	}
	return false
}

// validEscape says whether b begins with a byte in percent-encoding that is not null.
func validEscape(b []byte) bool {
	return len(b) > 2 && isHex(b[1]) && isHex(b[2]) && (b[1] != '0' || b[2] != '0')
}

func ambiguousSegment(s []byte) bool {
	dots, others := 0, 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '.':
			dots++
		case s[i] == '%' && i+2 < len(s) && s[i+1] == '2' && s[i+2]|0x20 == 'e':
			dots++
			i += 2
		case s[i] == '%' && i+2 < len(s) && s[i+1] == '5' && s[i+2]|0x20 == 'c':
			return true
		case s[i] == '%' && i+2 < len(s) && s[i+1] == '2' && s[i+2]|0x20 == 'f':
			// An endpoint that decodes first sees a border here.
			if dots == 1 && others == 0 || dots == 2 && others == 0 {
				return true
			}
			dots, others = 0, 0
			i += 2
		case s[i] == ';':
			// Servlet containers cut a segment's parameters before they look at its dots.
			if others == 0 && (dots == 1 || dots == 2) {
				return true
			}
			others++
		default:
			others++
		}
	}
	return others == 0 && (dots == 1 || dots == 2)
}

// interpretRequest decides what the fields mean: host, body, connection.
func interpretRequest(req *message.Request) error {
	f, err := readFraming(&req.Head, req.Minor)
	if err != nil {
		return err
	}
	req.Length = f.length
	if f.chunked {
		req.Length = message.Unknown
	}
	req.Close = f.close || req.Minor == 0 && !f.keep
	req.AcceptsTrailers = f.trailers
	if err := interpretHost(req); err != nil {
		return err
	}
	upgrades := 0
	for i := range req.Fields {
		switch req.Fields[i].ID {
		case message.Expect:
			if !message.EqualFold(req.Value(i), "100-continue") {
				return errExpectation
			}
			if req.Minor == 1 && req.Length != 0 {
				req.ExpectContinue = true
			} else {
				req.Fields[i].Dropped = true
			}
		case message.Upgrade:
			if upgrades++; f.upgrade && req.Minor == 1 {
				setUpgrade(req, i)
			}
		case message.Misspelt:
			req.Fields[i].Dropped = true
		}
	}
	if upgrades > 1 {
		req.Upgrade = message.Span{} // which one is meant, endpoints would choose
	}
	if req.Upgrade.Len() > 0 && req.Length != 0 {
		return errUpgradeBody
	}
	hopByHop(&req.Head)
	return nil
}

// setUpgrade keeps a wish to upgrade to one protocol. h2c would take the
// connection out of our sight (RFC 9113 dropped it), so that is never passed on.
func setUpgrade(req *message.Request, i int) {
	v := req.Value(i)
	if isProtocol(v) && !message.EqualFold(v, "h2c") {
		req.Upgrade = req.ValueSpan(i)
	}
}

// isProtocol says whether v is one protocol, with or without a version (RFC
// 9110, section 7.8). What only resembles one, an endpoint might read as h2c.
func isProtocol(v []byte) bool {
	name, version, versioned := bytes.Cut(v, slash)
	return allToken(name) && (!versioned || allToken(version))
}

var slash = []byte{'/'}

func allToken(b []byte) bool {
	for _, c := range b {
		if !isToken[c] {
			return false
		}
	}
	return len(b) > 0
}

func interpretHost(req *message.Request) error {
	seen := false
	for i := range req.Fields {
		if req.Fields[i].ID != message.Host {
			continue
		}
		if seen {
			return errTwoHosts
		}
		seen = true
		host := req.Value(i)
		if req.Host.Len() > 0 && !bytes.EqualFold(req.Bytes(req.Host), host) {
			return errTwoHosts
		}
		req.Host = req.ValueSpan(i)
	}
	if !seen && req.Minor == 1 {
		return errNoHost
	}
	if !validHost(req.Bytes(req.Host)) {
		return errBadHost
	}
	return nil
}

// validHost accepts a name or an IPv4 address, or an IPv6 address in brackets,
// with an optional port; and nothing at all, which RFC 9112, section 3.2, allows.
func validHost(h []byte) bool {
	port := 0
	if len(h) > 0 && h[0] == '[' {
		end := bytes.IndexByte(h, ']')
		if end < 0 || !validIPv6(h[1:end]) {
			return false
		}
		port = end + 1
	} else {
		for port < len(h) && isHostByte(h[port]) {
			port++
		}
		if port == 0 && len(h) > 0 {
			return false
		}
	}
	if port == len(h) {
		return true
	}
	return h[port] == ':' && validPort(h[port+1:])
}

// validIPv6 takes no zones: they mean nothing beyond the client's own machine.
func validIPv6(b []byte) bool {
	if len(b) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255") {
		return false
	}
	a, err := netip.ParseAddr(string(b))
	return err == nil && a.Is6() && a.Zone() == ""
}

func validPort(p []byte) bool {
	if len(p) == 0 {
		return true // an empty port is the default one (RFC 3986, section 3.2.3)
	}
	n, ok := parseLength(p)
	return ok && len(p) <= 5 && n <= 65535
}

func isHostByte(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '.' || c == '_'
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}
