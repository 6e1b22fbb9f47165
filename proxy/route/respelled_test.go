package route

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

// respelled returns the lines of text whose routes get the path of the request in some spelling.
func respelled(t testing.TB, text, request string) (all []string) {
	t.Helper()
	entries, err := entriesOf(text)
	if err != nil {
		t.Fatal(err)
	}
	s, err := CompileRespelled(entries, compiled(t, text))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(text, "\n") {
		if s.Any(requestOf(request), func(route int) bool { return route == i }) {
			all = append(all, line)
		}
	}
	return all
}

func TestRespelled(t *testing.T) {
	table := lines("/", "/admin", "=/status", "/Mixed%20x", "/admin/public", "~/v[0-9]+/[a-z]+$", "/cart M=POST", "/a;b", "/Admin2", "/admin2")
	f := func(request string, want ...string) {
		t.Helper()
		if got := respelled(t, table, request); !slices.Equal(got, want) {
			t.Errorf("%s has the routes %q, want %q", request, got, want)
		}
	}
	for _, path := range []string{"/admin", "/admin/x", "//admin", "/ADMIN", "/%61dmin", "/%41dmin//x", "/admin%2fx", "%2fadmin", "/admin;/x"} {
		if got := respelled(t, table, "GET "+path); !slices.Contains(got, "/admin") {
			t.Errorf("%s has the routes %q", path, got)
		}
	}
	f("GET /x")
	f("GET /administrator")
	f("GET /Admin;x=1", "/admin")
	f("GET /admin;x=1/y", "/admin")
	f("GET /x;y/../admin")
	f("GET /admin%3bx", "/admin")
	f("GET /admin/public/x", "/admin/public") // this spelling is meant
	f("GET /admin//public", "/admin", "/admin/public")
	f("GET /ADMIN/Public/x", "/admin", "/admin/public") // an endpoint may know only one of them
	f("GET /ADMIN//Public/x", "/admin", "/admin/public")
	f("GET /Status", "=/status")
	f("GET /status/")
	f("GET /status;a%2fb", "=/status") // the parameter ends at a slash, before or after decoding
	f("GET /status%3ba", "=/status")
	f("GET /status%3ba%2fb")
	f("GET //;a/status", "=/status")
	f("GET /mixed%20X/y", "/Mixed%20x")
	f("GET /mixed x", "/Mixed%20x")
	f("GET /V1/Items", "~/v[0-9]+/[a-z]+$")
	f("GET //v1/items", "~/v[0-9]+/[a-z]+$")
	f("GET //v1/item%73", "~/v[0-9]+/[a-z]+$")
	f("GET /v1/items;a", "~/v[0-9]+/[a-z]+$")
	f("GET /CART")
	f("POST /CART", "/cart M=POST")
	f("GET /A;B", "/a;b")
	f("GET /Admin2", "/Admin2") // each spelling has a route of its own
	f("GET /admin2", "/admin2")
	f("GET *")
}

// The new path of a rewritten request has the route that names it, unless that route is for all paths.
func TestRespelledOfAnotherPath(t *testing.T) {
	table := lines("/", "~/.*", "~/v[0-9]+", "/admin")
	entries, err := entriesOf(table)
	if err != nil {
		t.Fatal(err)
	}
	s, err := CompileRespelled(entries, compiled(t, table))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/x": "", "/": "", "/v1": "~/v[0-9]+", "/admin": "/admin", "/Admin": "/admin"} {
		got := ""
		s.AnyOf([]byte(path), requestOf("GET /old"), func(route int) bool {
			got = strings.Split(table, "\n")[route]
			return true
		})
		if got != want {
			t.Errorf("%s belongs to %q, want %q", path, got, want)
		}
	}
}

// An endpoint may take the beginning of a path for a host, and its end for a query.
func TestRespelledReferences(t *testing.T) {
	table := lines("/", "/admin", "~/v[0-9]+/[a-z]+$", "/open//x/admin", "//own/admin")
	f := func(request string, want ...string) {
		t.Helper()
		if got := respelled(t, table, request); !slices.Equal(got, want) {
			t.Errorf("%s has the routes %q, want %q", request, got, want)
		}
	}
	f("GET //x/admin", "/admin")
	f("GET ///x:80/admin/y", "/admin")
	f("GET //u@x/%61dmin;a/y", "/admin")
	f("GET //x//ADMIN", "/admin")
	f("GET //x/v1/items", "~/v[0-9]+/[a-z]+$")
	f("GET //x/administrator")
	f("GET //x")
	f("GET //x/")
	f("GET ////")
	f("GET /x/admin")
	f("GET /open//x/admin", "/open//x/admin")
	f("GET //own/admin", "//own/admin") // this spelling is meant
	f("GET /admin%3fx", "/admin")
	f("GET /Admin%23x/y", "/admin")
	f("GET /admin%3Fx%2f", "/admin")
	f("GET /v1/items%3f", "~/v[0-9]+/[a-z]+$")
	f("GET /administrator%3f/admin")
	f("GET %3f/admin")
}

// With raw_targets, a path may have backslashes, bytes beyond ASCII, and "%" without two digits.
func TestRespelledRaw(t *testing.T) {
	table := lines("/", "/admin/x", "=/status", "~/v[0-9]+/[a-z]+$", "/staff", "/caf%C3%A9", `~/w/[a-z\\]+$`)
	f := func(path string, want ...string) {
		t.Helper()
		if got := respelled(t, table, "GET "+path); !slices.Equal(got, want) {
			t.Errorf("%s has the routes %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{`/admin\x`, `/admin%5Cx`, `/admin%5cX\y`, `\admin/x`, `/%5Cadmin//\x`, `/ADMIN;a/\x`, `/%61dmin\%78`, "/adm%in/x", "/ad%min%5cx",
		`/\host/admin/x`, `/\host\admin\x`, `\\host%2fadmin/x`, `//host%5cy/admin%5Cx`} {
		if path[0] == '/' {
			f(path, "/admin/x")
		}
	}
	f(`/admin\xy`)
	f(`/adminx\`)
	f("/status%5c")
	f("/%5Cstatus", "=/status")
	f("/stat%us", "=/status")
	f("/status%", "=/status")
	f(`/v1\items`, "~/v[0-9]+/[a-z]+$")
	f("/v1%5Citems", "~/v[0-9]+/[a-z]+$")
	f("/v1/it%ems", "~/v[0-9]+/[a-z]+$")
	f(`/w\a%5Cb`, `~/w/[a-z\\]+$`) // new URL() in JavaScript takes only the first for a slash
	f("/\u017ftaff", "/staff")
	f("/caf\u00e9", "/caf%C3%A9")
	f("/CAF\u00c9/x", "/caf%C3%A9")
	f("/caf\xe9")
}

// No endpoint sees a dot segment in a path that weir accepts, however it reads the path.
func FuzzRawPaths(f *testing.F) {
	for _, path := range []string{"/a%5Cb", `/a\..\admin`, "/a%5C..%5Cadmin", "/%2e%2e%5cadmin", "/a/.%./b", "/%.", "/..%;x", `/a;b\..`, "/a;b%2f%5c..", "/%u002e%u002e/",
		"/%%2e.", "/%2%65", "/\xc3\xa4/%", "/.%3b", `/\\..`, "/a%zz", "/%5c.%5c", "/..%2f", "/%2E;x", `/.\`, "/.\xff", "/%00", "/%25%2e", "/a%2f;%5C/"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if strings.Contains(path, "?") || !strings.HasPrefix(path, "/") {
			return
		}
		accepts := func(raw bool) bool {
			var req message.Request
			req.Reset()
			req.RawTargets = raw
			return req.SetTarget(req.StoreString(path)) == nil
		}
		if !accepts(true) {
			if accepts(false) {
				t.Fatalf("%q is accepted only without raw_targets", path)
			}
			return
		}
		for _, how := range append(readings, reading{}) {
			read := string(appendRead(nil, []byte(path), how))
			for segment := range strings.SplitSeq(read, "/") {
				if segment == "." || segment == ".." || strings.Contains(read, "\x00") {
					t.Fatalf("%q is accepted, and read as %q with %+v", path, read, how)
				}
			}
		}
	})
}

// Letters beyond ASCII have cases as well, and some are another case of an ASCII letter.
func TestRespelledBeyondASCII(t *testing.T) {
	table := lines("/", "/staff/keys", "=/caf%C3%A9", "/id", "~/v[0-9]+/secret", "~/skins/[a-z]+", "/k%C3")
	f := func(request string, want ...string) {
		t.Helper()
		if got := respelled(t, table, request); !slices.Equal(got, want) {
			t.Errorf("%s has the routes %q, want %q", request, got, want)
		}
	}
	f("GET /%C5%BFtaff/keys", "/staff/keys")
	f("GET /staFF//%e2%84%aaey%c5%bf/x", "/staff/keys")
	f("GET /%C5%BFtaff;a/keys", "/staff/keys")
	f("GET /%C5%BFtaf/keys")
	f("GET /%C4%B0d", "/id")
	f("GET /%C4%B1D/x", "/id")
	f("GET /v1/%C5%BFecret", "~/v[0-9]+/secret")
	f("GET /%C5%BF%E2%84%AAin%C5%BF/a", "~/skins/[a-z]+")
	f("GET /caf%c3%a9", "=/caf%C3%A9")
	f("GET /caf%C3%89", "=/caf%C3%A9")
	f("GET /CAF%c3%89;a", "=/caf%C3%A9")
	f("GET /cafe%CC%81") // another normal form is another path
	f("GET /K%c3/x", "/k%C3")
	f("GET /K%e3")
}

// In a cluster, paths and expressions of one host may be ordered by the length of their texts.
func TestRespelledAmongExpressions(t *testing.T) {
	table := lines("@/", "~d/admin/[a-z]+/open$", "@/admin/x", "@/Admin/x", "~d/private", "@/private/public/x")
	f := func(request string, want ...string) {
		t.Helper()
		if got := respelled(t, table, request); !slices.Equal(got, want) {
			t.Errorf("%s has the routes %q, want %q", request, got, want)
		}
	}
	f("GET /admin/x/open", "~d/admin/[a-z]+/open$")
	f("GET /Admin/x", "@/Admin/x")
	f("GET /admin/x", "@/admin/x")
	f("GET //ADMIN/x", "@/admin/x", "@/Admin/x")
	f("GET /admin;a/x/open", "~d/admin/[a-z]+/open$", "@/admin/x", "@/Admin/x")
	f("GET /%70rivate", "~d/private")
	f("GET /private;/x", "~d/private")
	f("GET /priv%2561te", "~d/private") // decoded twice, which is too much, and harmless
	f("GET //private/public/x", "~d/private", "@/private/public/x")
	f("GET /private/public/x", "@/private/public/x")
}

// The reference and the table level a path to the same form, apart from upper and lower case.
func TestLeveled(t *testing.T) {
	r := random{rand.New(rand.NewPCG(5, 6))}
	for range 5000 {
		path := r.path()
		if got, want := lowered(string(appendRead(nil, []byte(path), reading{turn: true, decode: true, late: true, merge: true}))), level(path); got != want {
			t.Errorf("%s is leveled to %s, want %s", path, got, want)
		}
	}
}

func TestRespelledAllocatesNothing(t *testing.T) {
	table := lines("/", "/admin", "~/v[0-9]+")
	entries, _ := entriesOf(table)
	s, err := CompileRespelled(entries, compiled(t, table))
	if err != nil {
		t.Fatal(err)
	}
	r := requestOf("GET /x/Admin")
	if n := testing.AllocsPerRun(100, func() { s.Any(r, func(int) bool { return false }) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
