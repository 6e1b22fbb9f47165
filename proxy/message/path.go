package message

import "bytes"

// ValidTarget reports whether a request target is not empty, has no characters that must be
// percent-encoded (controls, spaces, non-ASCII), and no fragment.
func ValidTarget(t []byte) bool {
	for _, c := range t {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return false
		}
	}
	return len(t) > 0
}

// AmbiguousPath reports whether endpoints may read a path differently. It finds "." and ".."
// segments and backslashes, plain or percent-encoded, null bytes, and invalid
// percent-encodings.
func AmbiguousPath(path []byte) bool {
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

// validEscape reports whether b begins with a percent-encoded byte other than null.
func validEscape(b []byte) bool {
	return len(b) > 2 && HexDigit(b[1]) && HexDigit(b[2]) && (b[1] != '0' || b[2] != '0')
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
			// An endpoint that decodes before it splits the path sees "/" here.
			if dots == 1 && others == 0 || dots == 2 && others == 0 {
				return true
			}
			dots, others = 0, 0
			i += 2
		case s[i] == ';':
			// Servlet containers remove a segment's parameters before they look for dot segments.
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

// DecodeByte returns the first byte of b with its escape decoded, and its width in b. b is not
// empty. It leaves invalid escapes as they are.
func DecodeByte(b []byte) (c byte, width int) {
	if b[0] == '%' && len(b) > 2 && HexDigit(b[1]) && HexDigit(b[2]) {
		return unhex(b[1])<<4 | unhex(b[2]), 3
	}
	return b[0], 1
}

// IsLevel reports whether a path has no escapes, and no slashes that follow each other.
func IsLevel(path []byte) bool {
	return bytes.IndexByte(path, '%') < 0 && !bytes.Contains(path, twoSlashes)
}

// Leveled returns a path with its escapes decoded and its slashes merged, as nginx compares it with
// locations. It returns path itself if that is the same, and otherwise allocates.
func Leveled(path []byte) []byte {
	if IsLevel(path) {
		return path
	}
	level := make([]byte, 0, len(path))
	for len(path) > 0 {
		c, width := DecodeByte(path)
		path = path[width:]
		if c != '/' || !bytes.HasSuffix(level, slash) {
			level = append(level, c)
		}
	}
	return level
}

// AppendEscaped appends a decoded path, or a part of one, with the escapes that nginx gives to a
// path that it has changed (NGX_ESCAPE_URI of its 1.21.1 and later).
func AppendEscaped(b, path []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range path {
		if c <= ' ' || c >= 0x7f || bytes.IndexByte(escaped, c) >= 0 {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

var escaped = []byte("\"#%<>?\\^`{|}")
