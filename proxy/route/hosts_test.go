package route

import (
	"maps"
	"slices"
	"strings"
	"testing"
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
