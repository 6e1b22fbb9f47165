package message

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		a, ok := ParseAddress([]byte(in))
		got := ""
		if ok {
			got = a.String()
		}
		if got != want {
			t.Errorf("%q is %q, not %q", in, got, want)
		}
	}
	f("192.0.2.1", "192.0.2.1:0")
	f("192.0.2.1:5678", "192.0.2.1:5678")
	f("192.0.2.1:65535", "192.0.2.1:65535")
	f("255.255.255.255", "255.255.255.255:0")
	f("2001:db8::1", "[2001:db8::1]:0")
	f("2001:DB8::A", "[2001:db8::a]:0")
	f("[2001:db8::1]", "[2001:db8::1]:0")
	f("[::1]:80", "[::1]:80")
	f("1:2:3:4:5:6:7:8", "[1:2:3:4:5:6:7:8]:0")
	f("1::8", "[1::8]:0")
	f("1::", "[1::]:0")
	f("2001:db8::192.0.2.1", "[2001:db8::c000:201]:0")
	// A mapped IPv4 address is the same as the IPv4 address.
	f("::ffff:192.0.2.1", "192.0.2.1:0")
	f("[::ffff:c000:201]:80", "192.0.2.1:80")
	// A zone means nothing on another machine, and only a link-local address may have one.
	f("fe80::1%eth0", "[fe80::1]:0")
	f("[fe80::1%25eth0]:80", "[fe80::1]:80")
	f("2001:db8::1%eth0", "")
	f("::ffff:169.254.0.1%eth0", "")
	f("fe80::1%", "")
	f("192.0.2.1%eth0", "")
	for _, bad := range []string{"", " ", "unknown", "_hidden", "_hidden:80", "localhost", "example.org", "for=192.0.2.1", `"192.0.2.1"`, `"[::1]:80"`,
		"192.0.2", "192.0.2.1.", "192.0.2.1.1", "192.0.2.256", "192.0.2.01", "0192.0.2.1", "1.2.3.4 ", "192.0.2.1:", "192.0.2.1:x", "192.0.2.1:65536",
		"192.0.2.1:000080", "192.0.2.1:-1", "192.0.2.1:80:80", "3221225985", "0xc0000201", "192.0.2.1/32", "192.0.2.1, 192.0.2.2", "192.0.2.1;192.0.2.2",
		":", "::1::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8:9", "1:2:3:4::5:6:7:8", "12345::", "::g", ":1", "1:", "1:::2",
		"[", "[]", "[::1", "::1]", "[::1]80", "[::1]:", "[192.0.2.1]", "[192.0.2.1]:80", "[[::1]]", "::192.0.2", "192.0.2.1::", "1:2:3:4:5:6:7:192.0.2.1",
		"0.0.0.0", "0.0.0.0:80", "::", "[::]:80", "::ffff:0.0.0.0", "192.0.2.1\x00", "\xff"} {
		f(bad, "")
	}
}

func TestParseAddressAllocatesNothing(t *testing.T) {
	elements := [][]byte{[]byte("192.0.2.1:80"), []byte("[2001:db8::192.0.2.1]:80"), []byte("fe80::1%eth0"), []byte("unknown"), []byte("1:2:3:4:5:6:7:8:9")}
	n := testing.AllocsPerRun(100, func() {
		for _, e := range elements {
			ParseAddress(e)
		}
	})
	if n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

// FuzzParseAddress compares ParseAddress with a simple implementation.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.1", "192.0.2.1:80", "2001:db8::1", "[2001:db8::1]:80", "::ffff:192.0.2.1", "fe80::1%eth0", "[fe80::1%1]:8",
		"unknown", "_hidden", `"[::1]:80"`, "1:2:3:4:5:6:7:8", "1:2:3:4:5:6::8", "::", "0.0.0.0", "1::2.3.4.5", "1:2:3:4:5:6:1.2.3.4", "[::1]:00080", "fe80::%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, ok := ParseAddress([]byte(in))
		want, wantOK := plainAddress(in)
		if ok != wantOK || ok && got != want {
			t.Errorf("%q is %v, %v, not %v, %v", in, got, ok, want, wantOK)
		}
	})
}

func plainAddress(in string) (netip.AddrPort, bool) {
	host, port := in, ""
	if rest, bracketed := strings.CutPrefix(in, "["); bracketed {
		var closed bool
		if host, port, closed = strings.Cut(rest, "]"); !closed || !strings.Contains(host, ":") {
			return netip.AddrPort{}, false
		}
	} else if strings.Count(in, ":") == 1 {
		host, port, _ = strings.Cut(in, ":")
		port = ":" + port
	}
	if port == "" {
		port = ":0"
	}
	if len(port) > len(":65535") {
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddr(host)
	if err != nil || a.Zone() != "" && (!a.IsLinkLocalUnicast() || a.Is4In6()) {
		return netip.AddrPort{}, false
	}
	a = a.WithZone("").Unmap()
	p, err := netip.ParseAddrPort("0.0.0.0" + port)
	return netip.AddrPortFrom(a, p.Port()), err == nil && !a.IsUnspecified()
}

func TestCutLast(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		var got []string
		for rest, element := []byte(list), []byte(nil); len(rest) > 0; {
			rest, element = CutLast(rest)
			got = append(got, string(element))
		}
		if strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
			t.Errorf("%q is %q, not %q", list, got, want)
		}
	}
	f("")
	f("a", "a")
	f(" a\t", "a")
	f("a, b ,c", "c", "b", "a")
	f("a,", "", "a")
	f(",a", "a")
	f(" ,, a", "a", "", "")
}
