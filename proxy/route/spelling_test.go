package route

import "testing"

// A path in any spelling matches all spellings that an endpoint may treat as the same
// path.
func TestAnySpelling(t *testing.T) {
	f := func(path Path, request string, want bool) {
		t.Helper()
		path.AnySpelling = true
		p, err := Compile([]Entry[int]{{Match: Match{Path: path}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, got := p.Find(requestOf("GET " + request)); got != want {
			t.Errorf("%+v matches %q: %t, want %t", path, request, got, want)
		}
		path.AnySpelling = false
		if p, err = Compile([]Entry[int]{{Match: Match{Path: path}}}); err != nil {
			t.Fatal(err)
		}
		if _, got := p.Find(requestOf("GET " + request)); got && !want {
			t.Errorf("%+v matches %q only as it is written", path, request)
		}
	}
	admin := Path{Text: "/admin"}
	for _, path := range []string{"/admin", "/admin/", "/admin/x", "//admin", "/admin//x", "///admin/", "/%61dmin", "/adm%69n/x", "/admin%2fx", "/admin%2Fx", "%2fadmin", "/ADMIN", "/%41dmin", "//%61DMIN%2F"} {
		f(admin, path, true)
	}
	for _, path := range []string{`/\admin`, `/admin\x`, "/%5cADMIN%5C", `/admin\`} { // with raw_targets
		f(admin, path, true)
	}
	for _, path := range []string{"/", "//", "*", "", "/adm", "/administrator", "/x/admin", "/%2561dmin", "/admin%20", "/admi", "/admi/n", "/admin;x"} {
		f(admin, path, false)
	}
	begins := Path{Text: "/swagger", Kind: Begins}
	for _, path := range []string{"/swagger", "/swagger-ui/", "/Swagger.json", "//swagger-resources", "/%73wagger%2dui"} {
		f(begins, path, true)
	}
	f(begins, "/swagge", false)
	exact := Path{Kind: Exact, Text: "/metrics"}
	for _, path := range []string{"/metrics", "//metrics", "/metric%73", "/METRICS"} {
		f(exact, path, true)
	}
	for _, path := range []string{"/metrics/", "/metrics/x", "/metricsx", "/"} {
		f(exact, path, false)
	}
	for _, path := range []string{"/", "/x", "//", "*", "/%2f"} {
		f(Path{Text: "/"}, path, true)
		f(Path{Text: "/", Kind: Begins}, path, true)
	}
	f(Path{Kind: Exact, Text: "/"}, "//", true)
	f(Path{Kind: Exact, Text: "/"}, "/x", false)
	f(Path{Kind: Exact, Text: "/a/"}, "/A//", true)
	f(Path{Kind: Exact, Text: "/a/"}, "/a", false)
	f(Path{Text: "/a/"}, "/a//b", true)
	f(Path{Text: "/a/"}, "/ab", false)
	f(Path{Text: "/a%20b"}, "/a%20b/c", true) // also as it is written
	f(Path{Text: "/é"}, "/%c3%a9", true)
}

// Of two equally long paths, the path with the exact spelling comes before a path in any spelling. A
// longer path comes before both, in whatever spelling.
func TestSpellingGoesBeforeAnySpelling(t *testing.T) {
	for _, table := range []string{lines("!/ADMIN", "/admin", "/"), lines("/", "/admin", "!/ADMIN")} {
		for of, want := range map[string]string{"/admin/x": "/admin", "/ADMIN": "!/ADMIN", "/%61dmin": "!/ADMIN", "/administrator": "/"} {
			if got := found(t, table, "GET "+of); got != want {
				t.Errorf("%s goes to %s, not %s", of, got, want)
			}
		}
	}
	f := func(table, path, want string) {
		t.Helper()
		if got := found(t, table, "GET "+path); got != want {
			t.Errorf("of %q, %s gets %s, not %s", table, got, path, want)
		}
	}
	f(lines("!/admin", "/%61dmin"), "/%61dmin/x", "/%61dmin")
	f(lines("!/admin/x", "/%61d..."), "/%61dmin/x", "!/admin/x")
	f(lines("!=/admin", "/Admin"), "/Admin", "!=/admin") // exact before a prefix
	f(lines("!/a", "!/a/b", "/"), "/A/B/c", "!/a/b")
	f(lines("!/a", "!/a/b", "/"), "/A/Bc", "!/a")
}
