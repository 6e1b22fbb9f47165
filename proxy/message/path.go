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

// validRaw is ValidTarget with raw_targets: bytes beyond ASCII are valid.
func validRaw(t []byte) bool {
	for _, c := range t {
		if c <= ' ' || c == 0x7f || c == '#' {
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

// ambiguousRaw is AmbiguousPath with raw_targets. It accepts backslashes (plain or percent-encoded), and a "%"
// without two digits. No endpoint may see a dot segment, whether it takes a backslash for a slash, and
// whether it keeps or removes such a "%". A backslash after a semicolon is refused: it either ends the segment's
// parameters or is a part of them. So is "%u" with four digits, which some servers decode.
func ambiguousRaw(path []byte) bool {
	dots, others, parameters := 0, 0, false
	if len(path) > mostRaw {
		return true
	}
	for len(path) > 0 {
		c, width := DecodeByte(path)
		switch {
		case c == 0, width == 1 && c == '%' && codePoint(path), c == '\\' && parameters:
			return true
		case c == '/', c == '\\':
			if isDots(dots, others) {
				return true
			}
			dots, others, parameters = 0, 0, parameters && width == 3
		case c == ';':
			if isDots(dots, others) {
				return true
			}
			others++
			parameters = true
		case c == '.':
			dots++
		case width == 3 || c != '%':
			others++
		}
		path = path[width:]
	}
	return isDots(dots, others)
}

// mostRaw limits the length of a path with such faults. Guards compare each of its readings with every expression, and
// there are four times as many as of other paths.
const mostRaw = 8 << 10

func isDots(dots, others int) bool { return others == 0 && (dots == 1 || dots == 2) }

// codePoint reports whether b begins like "%u005c", as JavaScript's escape writes characters.
func codePoint(b []byte) bool {
	return len(b) >= 6 && b[1]|0x20 == 'u' && HexDigit(b[2]) && HexDigit(b[3]) && HexDigit(b[4]) && HexDigit(b[5])
}

// AppendURL appends a URL, or a part of one, from a request. It percent-encodes what a URL must not contain but a
// request may: bytes beyond ASCII, spaces and controls, and in the path backslashes, which browsers take for slashes,
// and a "%" without two digits.
func AppendURL(b, url []byte) []byte {
	const digits = "0123456789ABCDEF"
	inPath := true
	for i, c := range url {
		inPath = inPath && c != '?' && c != '#'
		if c <= ' ' || c >= 0x7f || inPath && (c == '\\' || c == '%' && (len(url)-i < 3 || !HexDigit(url[i+1]) || !HexDigit(url[i+2]))) {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// BrokenEscape reports whether a path has a "%" without two digits.
func BrokenEscape(path []byte) bool {
	for i, c := range path {
		if _, width := DecodeByte(path[i:]); c == '%' && width == 1 {
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
			if isDots(dots, others) {
				return true
			}
			dots, others = 0, 0
			i += 2
		case s[i] == ';', s[i] == '%' && i+2 < len(s) && s[i+1] == '3' && s[i+2]|0x20 == 'b':
			// Servlet containers remove a segment's parameters before they look for dot segments.
			if isDots(dots, others) {
				return true
			}
			others++
		default:
			others++
		}
	}
	return isDots(dots, others)
}

// DecodeByte returns the first byte of b with its escape decoded, and its width in b. b is not
// empty. It leaves invalid escapes as they are.
func DecodeByte(b []byte) (c byte, width int) {
	if b[0] == '%' && len(b) > 2 && HexDigit(b[1]) && HexDigit(b[2]) {
		return unhex(b[1])<<4 | unhex(b[2]), 3
	}
	return b[0], 1
}

var twoSlashes = []byte("//")

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
