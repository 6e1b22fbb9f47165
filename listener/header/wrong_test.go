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
	f("PROXY TCP4 2001:db8::1 2001:db8::2 1000 80", `its destination address "2001:db8::2" is not an IPv4 address`)
	f("PROXY TCP6 192.0.2.1 x 1000 80", `its destination address "x" is not an IPv6 address`)
	f("PROXY TCP6 2001:db8::1 192.0.2.1 1000 080", `its destination port "080" is not a number from 0 to 65535`)
	f("PROXY TCP6 2001:db8::1 192.0.2.1 1000 80", "its two addresses have different families, as nginx writes them (2001:db8::1 and 192.0.2.1)")
	f("PROXY TCP4 192.0.2.1 192.0.2.2 80", "its line has 5 words, and needs six with one space between them: PROXY, TCP4 or TCP6, the two addresses and the two ports")
}

// A header with addresses of two families is an error with a content. Its word does not matter.
func TestMixedFamilies(t *testing.T) {
	f := func(line, source, destination string) {
		t.Helper()
		h, err := Parse([]byte("PROXY " + line + " 1000 80\r\n"))
		if !errors.Is(err, ErrMixedFamilies) || h.Source.String() != source || h.Destination.String() != destination || h.Local {
			t.Errorf("%s: %v, from %v to %v", line, err, h.Source, h.Destination)
		}
	}
	f("TCP6 2001:db8::1 192.0.2.1", "[2001:db8::1]:1000", "192.0.2.1:80") // nginx with set_real_ip_from
	f("TCP4 192.0.2.1 2001:db8::1", "192.0.2.1:1000", "[2001:db8::1]:80")
	f("TCP6 192.0.2.1 2001:db8::1", "192.0.2.1:1000", "[2001:db8::1]:80")
	f("TCP4 2001:db8::1 192.0.2.1", "[2001:db8::1]:1000", "192.0.2.1:80")
	f("TCP6 192.0.2.9 ::ffff:192.0.2.1", "192.0.2.9:1000", "192.0.2.1:80")
	for _, line := range []string{"TCP6 fe80::1%eth0 192.0.2.1", "TCP6 192.0.2.1 192.0.2.2", "TCP4 2001:db8::1 2001:db8::2", "TCP6 2001:db8::1 192.0.02.1"} {
		if h, err := Parse([]byte("PROXY " + line + " 1000 80\r\n")); !errors.Is(err, ErrMalformed) || errors.Is(err, ErrMixedFamilies) || h.Source.IsValid() {
			t.Errorf("%s: %v, %+v", line, err, h)
		}
	}
}
