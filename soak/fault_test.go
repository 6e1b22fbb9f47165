package soak

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestParseFaults(t *testing.T) {
	delay := func(s string, want Fault) {
		t.Helper()
		if got, err := ParseDelay(s); err != nil || got != want {
			t.Errorf("ParseDelay(%q): %+v, %v, want %+v", s, got, err, want)
		}
	}
	delay("header=3s", Fault{Part: Header, Delay: 3 * time.Second})
	delay("hello+5=250ms", Fault{Part: Hello, Offset: 5, Delay: 250 * time.Millisecond})
	delay("head+50%=1m", Fault{Part: Head, Offset: 50, Percent: true, Delay: time.Minute})

	cut := func(s string, want Fault) {
		t.Helper()
		if got, err := ParseCut(s); err != nil || got != want {
			t.Errorf("ParseCut(%q): %+v, %v, want %+v", s, got, err, want)
		}
	}
	cut("body", Fault{Part: Body, Cut: CutClose})
	cut("body+100=reset", Fault{Part: Body, Offset: 100, Cut: CutReset})
	cut("hello+100%=silent", Fault{Part: Hello, Offset: 100, Percent: true, Cut: CutSilent})

	for _, s := range []string{"", "header", "header=", "header=3", "header=-3s", "header=0s", "tail=3s", "header+=3s", "header+x=3s",
		"header+-1=3s", "header+101%=3s", "header+8%%=3s", "header + 8=3s", "=3s"} {
		if f, err := ParseDelay(s); err == nil {
			t.Errorf("ParseDelay(%q) is %+v, want an error", s, f)
		}
	}
	for _, s := range []string{"", "tail", "header=", "header=fin", "header+8=close=reset"} {
		if f, err := ParseCut(s); err == nil {
			t.Errorf("ParseCut(%q) is %+v, want an error", s, f)
		}
	}
}

func TestFaultsOf(t *testing.T) {
	all := []Fault{{Part: Head, Offset: 90, Percent: true}, {Part: Header}, {Part: Head, Offset: 10}, {Part: Head, Offset: 1000}}
	var at []int
	for _, f := range faultsOf(all, Head, 200) {
		at = append(at, f.at(200))
	}
	if want := []int{10, 180, 200}; !slices.Equal(at, want) {
		t.Errorf("faults of the head are at %v, want %v", at, want)
	}
}

func TestShare(t *testing.T) {
	f := func(s string, want Share, wantText string) {
		t.Helper()
		var got Share
		if err := got.Set(s); err != nil || got != want || got.String() != wantText {
			t.Errorf("%q is %v (%s), %v", s, float64(got), got.String(), err)
		}
	}
	f("5%", 0.05, "5%")
	f("0.05", 0.05, "5%")
	f("100%", 1, "100%")
	f("0", 0, "0")
	for _, s := range []string{"", "%", "5 %", "101%", "-1%", "1.5", "NaN"} {
		if err := new(Share).Set(s); err == nil {
			t.Errorf("%q is taken for a share", s)
		}
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{`a\r\n`: "a\r\n", `\x00\xff`: "\x00\xff", `say "hi"`: `say "hi"`, "": ""} {
		if got, err := Unescape(in); err != nil || string(got) != want {
			t.Errorf("Unescape(%q) is %q, %v", in, got, err)
		}
	}
	if _, err := Unescape(`\q`); err == nil {
		t.Error(`\q is something`)
	}
}

func TestNth(t *testing.T) {
	f := func(i int64, want string, networks ...string) {
		t.Helper()
		prefixes, err := ParsePrefixes(networks)
		if err != nil {
			t.Fatal(err)
		}
		if got := nth(prefixes, i); got != netip.MustParseAddr(want) {
			t.Errorf("address %d of %v is %s, want %s", i, networks, got, want)
		}
	}
	f(0, "127.0.0.1", "127.0.0.0/24")
	f(253, "127.0.0.254", "127.0.0.0/24")
	f(254, "127.0.0.1", "127.0.0.0/24")
	f(7, "10.1.2.3", "10.1.2.3")
	f(301, "10.0.0.151", "192.168.0.0/16", "10.1.2.3/8")
	f(1, "2001:db8::", "10.0.0.0/8", "2001:db8::/32")
	f(1<<40+5, "2001:db8::5", "2001:db8::/32")
	f(3, "::1", "::1")
	f(131069, "198.19.255.254", "198.18.0.0/15")
	f(131070, "198.18.0.1", "198.18.0.0/15")
	if _, err := ParsePrefixes([]string{"10.0.0.0/8", "example.org"}); err == nil {
		t.Error("a name is taken for a network")
	}
}

func TestParseSeen(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", " 10.0.0.1 ": "10.0.0.1", "10.0.0.1:80": "10.0.0.1", "10.0.0.1, 10.0.0.2": "10.0.0.1",
		"2001:db8::1": "2001:db8::1", "[2001:db8::1]:443": "2001:db8::1", `"[2001:db8::1]"`: "2001:db8::1", "::ffff:10.0.0.1": "10.0.0.1",
	} {
		if got, ok := parseSeen(in); !ok || got.String() != want {
			t.Errorf("%q is %s, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "unknown", "10.0.0", ":80"} {
		if got, ok := parseSeen(in); ok {
			t.Errorf("%q is %s", in, got)
		}
	}
}

func TestRecords(t *testing.T) {
	f := func(text string, want int) {
		t.Helper()
		if got := new(records).wrong([]byte(text)); got != want {
			t.Errorf("%q is wrong at %d, want %d", text, got, want)
		}
	}
	f("", -1)
	f("\x16\x03\x03\x00\x02ab\x17\x03\x03\x00\x01c", -1)
	f("\x15\x03\x01\x00\x02\x02\x28", -1)
	f("HTTP/1.1 400", 0)
	f("\x16\x03\x03\x00\x02abHTTP/1.1", 7)
	f("\x16\x00", 1)
}

// FuzzRecords: the result does not depend on how the bytes are divided into reads.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("\x16\x03\x03\x00\x02ab\x17\x03\x03\x00\x01c"), uint8(3))
	f.Add([]byte("\x16\x03\x03\x00\x02abHTTP/1.1 400 Bad Request\r\n"), uint8(1))
	f.Add([]byte("\x15\x03\x01\x00\x02\x02\x28\r\n\r\n"), uint8(6))
	f.Fuzz(func(t *testing.T, b []byte, each uint8) {
		whole := new(records).wrong(b)
		pieces, at := new(records), -1
		for done, piece := range slices.Collect(slices.Chunk(b, 1+int(each))) {
			if i := pieces.wrong(piece); i >= 0 {
				at = done*(1+int(each)) + i
				break
			}
		}
		if at != whole {
			t.Errorf("wrong at %d as a whole, at %d in pieces", whole, at)
		}
	})
}
