package hello

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// extServerName is the number of the extension with the SNI (RFC 6066, section 3).
const extServerName = 0

// nameIn returns the SNI in the body of a ClientHello, as Name returns it; empty if it has none.
func nameIn(body []byte) (name string, err error) {
	named := false
	err = extensions(body, func(number uint16, data []byte) error {
		if number != extServerName {
			return nil
		}
		one, err := nameInExtension(data)
		switch {
		case err != nil:
			return err
		case named && one != name:
			return fmt.Errorf("%w: it has two different names", ErrMalformed)
		}
		name, named = one, true
		return nil
	})
	if err != nil {
		return "", err
	}
	return name, nil
}

// extensions calls each for the extensions of a ClientHello, whatever they contain. Old clients
// send none.
func extensions(body []byte, each func(number uint16, data []byte) error) error {
	b := fields{rest: body}
	b.take(2 + 32) // version and random
	b.vector(1)    // session id
	b.vector(2)    // cipher suites
	b.vector(1)    // compression methods
	if !b.short && len(b.rest) == 0 {
		return nil
	}
	all := fields{rest: b.vector(2)}
	if b.short || len(b.rest) > 0 {
		return fmt.Errorf("%w: its lengths do not add up", ErrMalformed)
	}
	for len(all.rest) > 0 {
		number, data := all.take(2), all.vector(2)
		if all.short {
			return fmt.Errorf("%w: the lengths of its extensions do not add up", ErrMalformed)
		}
		if err := each(binary.BigEndian.Uint16(number), data); err != nil {
			return err
		}
	}
	return nil
}

// nameInExtension returns the one name in the extension server_name.
func nameInExtension(data []byte) (name string, err error) {
	b := fields{rest: data}
	list := fields{rest: b.vector(2)}
	if b.short || len(b.rest) > 0 || len(list.rest) == 0 {
		return "", fmt.Errorf("%w: the lengths of its SNI do not add up", ErrMalformed)
	}
	for len(list.rest) > 0 {
		kind, text := list.take(1), list.vector(2)
		switch {
		case list.short:
			return "", fmt.Errorf("%w: the lengths of its SNI do not add up", ErrMalformed)
		case kind[0] != 0: // not a host name
			continue
		case !readsOneWay(text):
			return "", fmt.Errorf("%w: its SNI is no host name", ErrMalformed)
		}
		one := Name(string(text))
		if name != "" && one != name {
			return "", fmt.Errorf("%w: it has two different names", ErrMalformed)
		}
		name = one
	}
	return name, nil
}

// readsOneWay reports whether all programs read the same host in a name. Some end it at a NUL or
// a space, fold the case of other letters than ASCII, or remove more than one dot at its end.
func readsOneWay(name []byte) bool {
	if len(name) == 0 || name[0] == '.' || strings.HasSuffix(string(name), "..") {
		return false
	}
	for _, c := range name {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// fields reads the parts of a message, one after the other.
type fields struct {
	rest  []byte
	short bool // the message ended too early; all parts from then on are empty
}

// take returns the next n bytes; nil if there are fewer.
func (f *fields) take(n int) []byte {
	if f.short || n > len(f.rest) {
		f.short, f.rest = true, nil
		return nil
	}
	part := f.rest[:n:n]
	f.rest = f.rest[n:]
	return part
}

// vector returns the part whose length stands in the next one or two bytes.
func (f *fields) vector(size int) []byte {
	length := 0
	for _, c := range f.take(size) {
		length = length<<8 | int(c)
	}
	return f.take(length)
}
