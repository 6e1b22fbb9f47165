package route

import (
	"fmt"
	"strconv"
	"testing"
)

// numbered returns n entries, the paths of which path makes of their numbers.
func numbered(n int, path func(i int) Path) (entries []Entry[int]) {
	for i := range n {
		entries = append(entries, Entry[int]{Route: i, Match: Match{Path: path(i)}})
	}
	return entries
}

func benchmark(b *testing.B, entries []Entry[int], path string, want int) {
	b.Helper()
	p, err := Compile(entries)
	if err != nil {
		b.Fatal(err)
	}
	r := requestOf("GET " + path)
	b.ReportAllocs()
	for b.Loop() {
		if got, ok := p.Find(r); !ok || got != want {
			b.Fatal(got, ok)
		}
	}
}

var sizes = []int{1, 100, 10_000}

func BenchmarkPaths(b *testing.B) {
	prefix := func(i int) Path { return Path{Text: fmt.Sprintf("/p%d", i)} }
	for _, n := range sizes {
		at := strconv.Itoa(n * 3 / 4)
		b.Run("prefix/"+strconv.Itoa(n), func(b *testing.B) {
			benchmark(b, numbered(n, prefix), "/p"+at+"/a/path?with=query", n*3/4)
		})
		b.Run("exact/"+strconv.Itoa(n), func(b *testing.B) {
			benchmark(b, numbered(n, func(i int) Path { p := prefix(i); p.Kind = Exact; return p }), "/p"+at, n*3/4)
		})
		b.Run("spelling/"+strconv.Itoa(n), func(b *testing.B) {
			benchmark(b, numbered(n, func(i int) Path { p := prefix(i); p.AnySpelling = true; return p }), "/P"+at+"/a", n*3/4)
		})
		b.Run("expression/"+strconv.Itoa(n), func(b *testing.B) {
			benchmark(b, numbered(n, func(i int) Path { return Path{Kind: Expression, Text: prefix(i).Text + "(/|$)(.*)"} }), "/p"+at+"/a", n*3/4)
		})
	}
	b.Run("everything", func(b *testing.B) {
		benchmark(b, numbered(1, func(int) Path { return Path{Text: "/"} }), "/a/path?with=query", 0)
	})
}

func BenchmarkConditions(b *testing.B) {
	for _, one := range []struct{ name, match, request string }{
		{"method", "/ M=GET", "GET /"},
		{"header", "/ H:X-Canary=always", "GET /\nHost: a\nAccept: */*\nX-Canary: always"},
		{"expression", "/ H:X-Canary=~al.*", "GET /\nHost: a\nAccept: */*\nX-Canary: always"},
		{"cookie", "/ C:tester=yes", "GET /\nHost: a\nCookie: session=0123456789abcdef; tester=yes"},
		{"query", "/ Q:beta=* Q:v=1", "GET /?beta&v=1"},
		{"client", "/ N=203.0.113.0/24", "GET / from 203.0.113.7"},
	} {
		b.Run(one.name, func(b *testing.B) {
			p, r := compiled(b, one.match), requestOf(one.request)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := p.Find(r); !ok {
					b.Fatal("no route")
				}
			}
		})
	}
}

func BenchmarkHosts(b *testing.B) {
	for _, n := range sizes {
		for _, kind := range []struct{ name, before, asked string }{{"exact", "", ""}, {"one-label", "*.", "www."}, {"any-depth", "**.", "a.b."}} {
			b.Run(kind.name+"/"+strconv.Itoa(n), func(b *testing.B) {
				byName := map[string]int{}
				for i := range n {
					byName[fmt.Sprintf("%sh%d.example.com", kind.before, i)] = i
				}
				h, name := NewHosts(byName), []byte(fmt.Sprintf("%sh%d.example.com", kind.asked, n*3/4))
				b.ReportAllocs()
				for b.Loop() {
					if got, ok := h.Find(name); !ok || got != n*3/4 {
						b.Fatal(got, ok)
					}
				}
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	entries := numbered(10_000, func(i int) Path { return Path{Text: fmt.Sprintf("/p%d", i)} })
	for b.Loop() {
		if _, err := Compile(entries); err != nil {
			b.Fatal(err)
		}
	}
}

// A lookup allocates nothing.
func TestLookupsAllocateNothing(t *testing.T) {
	p := compiled(t, lines("/ M=GET H:x=1 H:y=~[0-9]+ C:c=* Q:q=1 Q:r=~[0-9] N=192.0.2.0/24", "!/closed M=PUT", "~*/v[0-9]/a$ M=PUT", "/a M=PUT", "=/a/b M=PUT"))
	for _, path := range []string{"/a/b", "//CLOSED/%61", "/V1/a", "/"} {
		r := requestOf("GET " + path + "?r=2&%71=1 from 192.0.2.1\nX: 1\nY: 22\nCookie: a=b; c=1")
		if n := testing.AllocsPerRun(100, func() { p.Find(r) }); n != 0 {
			t.Errorf("a lookup of %s allocates %v times", path, n)
		}
		if _, ok := p.Find(r); !ok {
			t.Errorf("no route has %s", path)
		}
	}
	h := hostsOf("a.example.org", "*.example.org", "**.eu.example.org")
	for _, name := range []string{"A.example.org:80", "b.example.org", "a.b.eu.example.org", "none"} {
		name := []byte(name)
		if n := testing.AllocsPerRun(100, func() { h.Find(name) }); n != 0 {
			t.Errorf("a lookup of %s allocates %v times", name, n)
		}
	}
}
