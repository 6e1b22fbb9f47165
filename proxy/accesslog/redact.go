package accesslog

import (
	"bytes"
	"strings"
)

// Redaction hides the values of query parameters in URLs. A nil Redaction hides nothing.
type Redaction struct {
	names   map[string]bool // lower case, with spaces instead of "+", and without spaces at the ends
	longest int
}

// maxParameter limits a name; a Redaction ignores longer ones.
const maxParameter = 128

// NewRedaction hides the parameters with these names, in any case; nil if there are none.
func NewRedaction(names []string) *Redaction {
	if len(names) == 0 {
		return nil
	}
	d := &Redaction{names: make(map[string]bool)}
	for _, n := range names {
		n = strings.Trim(strings.ReplaceAll(strings.ToLower(n), "+", " "), " ")
		d.names[n] = true
		d.longest = max(d.longest, min(len(n), maxParameter))
	}
	return d
}

// redacted replaces a value.
const redacted = "***"

// Append appends the URL to out, without the values to hide. It reads the URL once. Names begin
// after "&" and, because some servers accept it, after ";". A hidden value ends only at "&".
func (d *Redaction) Append(out, url []byte) []byte {
	if d == nil {
		return append(out, url...)
	}
	copied := 0 // length of the part of url that is already in out
	for at := bytes.IndexByte(url, '?') + 1; at > 0 && at < len(url); {
		n := bytes.IndexAny(url[at:], "=&;")
		if n < 0 {
			break
		}
		end := at + n
		if url[end] == '=' && d.has(url[at:end]) {
			out = append(append(out, url[copied:end+1]...), redacted...)
			if copied = end + 1 + bytes.IndexByte(url[end+1:], '&'); copied == end {
				copied = len(url)
			}
			at = copied + 1
			continue
		}
		if url[end] == '=' {
			if n = bytes.IndexAny(url[end:], "&;"); n < 0 {
				break
			}
			end += n
		}
		at = end + 1
	}
	return append(out, url[copied:]...)
}

// has returns true if d hides the parameter. It decodes the name as servers do: "+" is a space, and
// spaces around the name do not count.
func (d *Redaction) has(name []byte) bool {
	var plain [maxParameter]byte
	n := 0
	for i := 0; i < len(name); i++ {
		b := name[i]
		if b == '%' && i+2 < len(name) && isHex(name[i+1]) && isHex(name[i+2]) {
			b = unhex(name[i+1])<<4 | unhex(name[i+2])
			i += 2
		}
		if b == '+' {
			b = ' '
		}
		switch {
		case b == ' ' && (n == 0 || n == d.longest): // around the name
		case n == d.longest:
			return false
		default:
			plain[n] = lower(b)
			n++
		}
	}
	return d.names[string(bytes.TrimRight(plain[:n], " "))]
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }

// unhex returns the value of a hexadecimal digit.
func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}
