package header

import (
	"errors"
	"testing"
)

// An error names the wrong part of the line, and does not quote the parser of a library.
func TestWrongAddresses(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		_, err := Parse([]byte(line + "\r\n"))
		if !errors.Is(err, ErrMalformed) || err.Error() != "malformed PROXY header: "+want {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
	f("PROXY TCP4 192.0.2.1 192.0.2.2 99999 80", `its source port "99999" is not a number from 0 to 65535`)
	f("PROXY TCP4 192.0.2.1 192.0.2.2 1000 x", `its destination port "x" is not a number from 0 to 65535`)
	f("PROXY TCP4 192.0.2.400 192.0.2.2 1000 80", `its source address "192.0.2.400" is not an IPv4 address`)
	f("PROXY TCP4 192.0.2.1 2001:db8::1 1000 80", `its destination address "2001:db8::1" is not an IPv4 address`)
	f("PROXY TCP6 192.0.2.1 2001:db8::1 1000 80", `its source address "192.0.2.1" is not an IPv6 address`)
	f("PROXY TCP4 192.0.2.1 192.0.2.2 80", "its line has 5 words, and needs six with one space between them: PROXY, TCP4 or TCP6, the two addresses and the two ports")
}
