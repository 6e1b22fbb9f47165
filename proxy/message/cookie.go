package message

import "bytes"

var semicolon, equals = []byte(";"), []byte("=")

// Cookie returns the value of the first cookie of this name. The name has its case (RFC 6265,
// section 5.4).
func (h *Head) Cookie(name string) (value []byte, found bool) {
	for i := range h.Fields {
		if h.Fields[i].Dropped || !EqualFold(h.Name(i), "cookie") {
			continue
		}
		for rest := h.Value(i); len(rest) > 0; {
			var pair []byte
			pair, rest, _ = bytes.Cut(rest, semicolon)
			if n, v, ok := bytes.Cut(bytes.TrimSpace(pair), equals); ok && string(n) == name {
				return v, true
			}
		}
	}
	return nil, false
}
