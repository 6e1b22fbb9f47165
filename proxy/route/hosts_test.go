package route

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/overlay"
)

// hostsOf returns hosts with these names; each host is its name.
func hostsOf(names ...string) *Hosts[string] {
	all := map[string]string{}
	for _, name := range names {
		all[name] = name
	}
	return NewHosts(all)
}

func TestHosts(t *testing.T) {
	h := hostsOf("app.example.org", "*.example.org", "*.dev.example.org", "2001:db8::1", "localhost",
		"**.eu.example.org", "*.eu.example.org", "**.b.eu.example.org", "**.org", "*.x.y.eu.example.org", "1.2.3.4")
	f := func(name, want string) {
		t.Helper()
		if got, ok := h.Find([]byte(name)); got != want || ok != (want != "") {
			t.Errorf("%s is the host %q, not %q", name, got, want)
		}
	}
	f("app.example.org", "app.example.org")
	f("www.example.org", "*.example.org")
	f("dev.example.org", "*.example.org")
	f("a.dev.example.org", "*.dev.example.org")
	f("localhost", "localhost")
	f("1.2.3.4", "1.2.3.4")
	f("2.2.3.4", "")
	f("unknown", "")
	f("", "")
	// The wildcard with the longest name decides. Of two equal names, "*." comes before "**.".
	f("a.eu.example.org", "*.eu.example.org")
	f("a.c.eu.example.org", "**.eu.example.org")
	f("a.c.d.eu.example.org", "**.eu.example.org")
	f("a.b.eu.example.org", "**.b.eu.example.org")
	f("a.c.b.eu.example.org", "**.b.eu.example.org")
	f("b.eu.example.org", "*.eu.example.org") // "**." does not match the name itself
	f("eu.example.org", "*.example.org")
	f("a.x.y.eu.example.org", "*.x.y.eu.example.org")
	f("a.b.dev.example.org", "**.org")
	f("example.org", "**.org")
	f("org", "")
	// No label is empty.
	f(".example.org", "")
	f(".eu.example.org", "")
	f("a..eu.example.org", "")
	f("..org", "")
	f("a..example.org", "")
	// Case, a trailing dot and the port do not matter.
	f("APP.Example.ORG", "app.example.org")
	f("app.example.org:8080", "app.example.org")
	f("app.example.org:", "app.example.org")
	f("app.example.org.", "app.example.org")
	f("App.example.org.:80", "app.example.org")
	f("A.C.EU.Example.org.:80", "**.eu.example.org")
	f("app.example.org..", "")
	f("App.example.org..", "") // only one dot
	f("[2001:db8::1]:80", "2001:db8::1")
	f("[2001:DB8::1]", "2001:db8::1")
	f("[2001:DB8::1", "")
	f(strings.Repeat("a", 300)+".example.org", "")
	f(strings.Repeat("a.", 120)+"eu.example.org", "**.eu.example.org")
	f(".", "")
	f(":", "")

	if _, ok := new(Hosts[string]).Find([]byte("a.b")); ok {
		t.Error("the zero value has a host")
	}
	if got := slices.Sorted(maps.Keys(maps.Collect(h.All()))); len(got) != 11 || got[0] != "**.b.eu.example.org" {
		t.Error(got)
	}
}

func TestAppendHost(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		if got := string(AppendHost([]byte("x"), []byte(name))); got != "x"+want {
			t.Errorf("%q becomes %q, not %q", name, got, want)
		}
	}
	f("", "")
	f("a.b-c_1", "a.b-c_1")
	f("A.b", "a.b")
	f("a.", "a")
	f(".", ".")
	f("a:1", "a")
	f("[::1]:1", "::1")
	f("[::1]", "::1")
	f(strings.Repeat("a", MaxHost), strings.Repeat("a", MaxHost))
	f(strings.Repeat("a", MaxHost+1), "")
}

// After random changes, Hosts find what Hosts find that were made at once.
func TestHostsWithChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	names := []string{"a.example", "b.example", "c.example", "*.example", "*.a.example", "**.example", "**.a.example", "**.x.y.example", "d.other", "*.other"}
	asked := []string{"a.example", "b.example", "z.example", "x.a.example", "y.x.a.example", "q.x.y.example", "d.other", "e.other", "none"}
	for range 100 {
		all := map[string]int{}
		h := NewHosts(maps.Clone(all))
		for step := range 30 {
			var changes []overlay.Change[int]
			for range 1 + r.IntN(3) {
				c := overlay.Change[int]{Key: names[r.IntN(len(names))], Value: step, Gone: r.IntN(3) == 0}
				changes = append(changes, c)
				if all[c.Key] = c.Value; c.Gone {
					delete(all, c.Key)
				}
			}
			h = h.With(changes...)
			fresh := NewHosts(maps.Clone(all))
			if !maps.Equal(maps.Collect(h.All()), all) || h.Len() != len(all) {
				t.Fatalf("the hosts are %v, not %v", maps.Collect(h.All()), all)
			}
			for _, name := range asked {
				got, found := h.Find([]byte(name))
				want, known := fresh.Find([]byte(name))
				if got != want || found != known || h.Named(name) != all[name] {
					t.Fatalf("of %v, %s is %d, %t, not %d, %t", all, name, got, found, want, known)
				}
			}
		}
	}
}
