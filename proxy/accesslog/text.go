package accesslog

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

// appendValue writes a value into the text of l. In a JSON string of a template it is escaped as JSON wants it.
// Outside of one it is not, so that a value never begins a string.
func appendValue[T string | []byte](l *line, b []byte, s T, quoted bool) []byte {
	if l.object && l.quoted {
		return appendEscaped(b, s)
	}
	return appendText(b, s, quoted)
}

const upper = "0123456789ABCDEF"
