package config

import (
	"math/rand/v2"
	"net/netip"
	"regexp"
	"testing"
)

func whole(pattern string) *regexp.Regexp { return regexp.MustCompile("^(" + pattern + ")$") }

// The patterns for editors match every text that weir accepts, and do not match texts that can never be
// valid.
func TestPatternsOfAddresses(t *testing.T) {
	f := func(k kind[string], good, bad []string) {
		t.Helper()
		r := whole(k.pattern)
		for _, s := range good {
			if _, err := k.parse(s); err != nil || !r.MatchString(s) {
				t.Errorf("%s: %q is refused, by weir with %v", k.what, s, err)
			}
		}
		for _, s := range bad {
			if _, err := k.parse(s); err == nil || r.MatchString(s) {
				t.Errorf("%s: %q is accepted, by weir with %v", k.what, s, err)
			}
		}
	}
	long := regexp.MustCompile("x").ReplaceAllString("xxxxxxxx", "aaaaaaaa") // 64 letters
	f(host, []string{"a.example", "*.A.example.", "a_b", "192.0.2.1", "2001:db8::1", "[::1]", "[192.0.2.1]", "1.2.3.4.5", long[1:] + ".a"},
		[]string{"a b", "-a", "a..b", "[a.example", "a.*", "*", ":::", "1::2::3", "12345::", long + ".a", "a.example:80", ""})
	f(hostField, []string{"a.example", "a.example:8080", "192.0.2.1:80", "::1", "[::1]", "[::1]:80", "[a.example]:80"},
		[]string{"a b", "a.example:0", "a.example:65536", "a.example:", "[::1]80", "*.a.example", "a/b"})
	f(endpointAddress, []string{"a:1", "a.example.:80", "[fe80::1%eth0]:1", "192.0.2.1:65535", "unix:/run/a b.sock"},
		[]string{"a b:1", ":1", "a", "[::1]", "::1:80a", "*.a:1", "a:01", "http://a:1", "unix:a"})
	f(taint, []string{"a", "a.example/b", "a.example/b=c", "a:NoSchedule", "a.example/b=c_d.e:NoExecute"}, []string{"", "=b", "a=", "a=b=c", "a:", "a:Never", "a b", "a=b c", ":NoSchedule"})
	f(nameServer, []string{"192.0.2.53:53", "[2001:db8::53]:53", "ns.example.org:53"}, []string{"192.0.2.53", ":53", "a_!:53"})
	f(kind[string]{what: "a network", pattern: prefix.pattern, parse: func(s string) (string, error) {
		p, err := parsePrefix(s)
		return p.String(), err
	}}, []string{"10.0.0.0/8", "0.0.0.0/0", "::/0", "2001:db8::/128", "192.0.2.1/32", "64:ff9b::192.0.2.0/120"},
		[]string{"10.0.0.0/33", "10.0.0/8", "256.0.0.0/8", "::/129", "a/8", "1:2:3/16", "::1::/8", "10.0.0.0/08", "10.0.0.0"})
}

// TestPatternOfIPv6 compares the pattern with the parser.
func TestPatternOfIPv6(t *testing.T) {
	r := whole(ipv6Pattern)
	random := rand.New(rand.NewPCG(1, 2))
	valid := 0
	for range 200_000 {
		s := ""
		for range 1 + random.IntN(16) {
			s += []string{":", ":", "a", "1f", "::", "1.2.3.4", "12345"}[random.IntN(7)]
		}
		a, err := netip.ParseAddr(s)
		is := err == nil && a.Is6()
		if is {
			valid++
		}
		if got := r.MatchString(s); is && !got || got && !is && !regexp.MustCompile(`\.`).MatchString(s) {
			t.Fatalf("%q matches: %v, but it is an address: %v", s, got, is)
		}
	}
	if valid < 1000 {
		t.Errorf("only %d addresses were valid", valid)
	}
}
