package accesslog

import "strconv"

// appendText writes a value into a line of text: as it is, but '"', '\' and all bytes that are
// not printable ASCII as \xHH, as nginx does. Outside of quotation marks the same holds for spaces, so
// that a value never has two columns.
func appendText[T string | []byte](b []byte, s T, quoted bool) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~' || c == '"' || c == '\\', c == ' ' && !quoted:
			b = append(b, '\\', 'x', upper[c>>4], upper[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}

// appendValue writes a value into l, escaped for JSON or for text. In a JSON string of a template it is escaped as JSON
// wants it. Outside of one it is not, so that a value never begins a string. A value that takes more than l.most bytes
// is cut; its end then says how long it is.
func appendValue[T string | []byte](l *line, b []byte, s T, quoted bool) []byte {
	begin, whole := len(b), len(s)
	for s = s[:min(whole, l.most)]; ; {
		if l.key != "" || l.object && l.quoted {
			b = appendEscaped(b, s)
		} else {
			b = appendText(b, s, quoted)
		}
		written := len(b) - begin
		if written <= l.most {
			break
		}
		b, s = b[:begin], s[:len(s)*l.most/written] // shorter by at least one byte
	}
	if len(s) < whole {
		b = append(strconv.AppendInt(append(b, "...[cut:"...), int64(whole), 10), ']')
	}
	return b
}

const upper = "0123456789ABCDEF"
