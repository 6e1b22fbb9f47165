package message

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strconv"
)

// tokenByte are the characters of a token (RFC 9110, section 5.6.2).
var tokenByte = func() (t [256]bool) {
	for c := range t {
		t[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' ||
			bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0
	}
	return t
}()

// TokenByte reports whether c may stand in a token (RFC 9110, section 5.6.2).
func TokenByte(c byte) bool { return tokenByte[c] }

// ValidToken reports whether b is a token: a method, or the name of a field.
func ValidToken(b []byte) bool {
	for _, c := range b {
		if !tokenByte[c] {
			return false
		}
	}
	return len(b) > 0
}

// ValidProtocol reports whether v is one protocol, with or without a version (RFC 9110,
// section 7.8). An endpoint might read a malformed value as h2c.
func ValidProtocol(v []byte) bool {
	name, version, versioned := bytes.Cut(v, slash)
	return ValidToken(name) && (!versioned || ValidToken(version))
}

// HidesRequests reports whether requests go on within a protocol to which a connection switches, so that weir could
// not see them: HTTP in any version (h2c, which RFC 9113 dropped, and HTTP/2.0), and TLS (RFC 2817).
func HidesRequests(protocol []byte) bool {
	name, _, _ := bytes.Cut(protocol, slash)
	return EqualFold(name, "h2c") || EqualFold(name, "h2") || EqualFold(name, "http") || EqualFold(name, "tls")
}

var slash = []byte{'/'}

// ValidValue reports whether b has no control character except the tab (RFC 9110, section
// 5.5).
func ValidValue(b []byte) bool {
	for len(b) >= 8 {
		if hasControl(binary.LittleEndian.Uint64(b)) && !validBytes(b[:8]) {
			return false
		}
		b = b[8:]
	}
	return validBytes(b)
}

func validBytes(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// hasControl reports whether any of eight bytes is below 0x20 or is 0x7f. The subtraction
// sets the top bit of a byte only if the byte was small. Bytes that had the top bit before
// are masked out.
func hasControl(v uint64) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	del := v ^ ones*0x7f
	return ((v-ones*0x20)&^v|(del-ones)&^del)&tops != 0
}

// ParseLength parses a Content-Length: only digits, at most 18, so that it cannot overflow.
func ParseLength(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// HexDigit reports whether c is a hexadecimal digit, in upper or lower case.
func HexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// ValidHost accepts a name, an IPv4 address, or an IPv6 address in brackets, each with an
// optional port. It also accepts an empty value, which RFC 9112, section 3.2, allows.
func ValidHost(h []byte) bool {
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

// validIPv6 does not accept zones: they have a meaning only on the client's machine.
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
	n, ok := ParseLength(p)
	return ok && len(p) <= 5 && n <= 65535
}

func isHostByte(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '.' || c == '_'
}

// mostQuoted limits the part of a text that Quote returns, in bytes.
const mostQuoted = 128

// Quote returns a text of a peer in quotation marks, for an error. Errors may live as long as an exchange, so it returns
// only the beginning of a long text, and the length of the whole.
func Quote[T string | []byte](text T) string {
	if len(text) <= mostQuoted {
		return strconv.Quote(string(text))
	}
	return strconv.Quote(string(text[:mostQuoted])) + "... (" + strconv.Itoa(len(text)) + " bytes)"
}
