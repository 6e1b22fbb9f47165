package route

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/expression"
)

// lines returns the words as lines.
func lines(words ...string) string { return strings.Join(words, "\n") }

func TestPaths(t *testing.T) {
	table := lines("/", "/api", "=/status", "/api/v2", "/trailing/", "=/api", "/text...", "/api/v2/x/y")
	f := func(path, want string) {
		t.Helper()
		if got := found(t, table, "GET "+path); got != want {
			t.Errorf("%s goes to %q, not %q", path, got, want)
		}
	}
	f("/", "/")
	f("*", "/")
	f("", "/")
	f("/ap", "/")
	f("/api", "=/api") // exact beats an equal prefix
	f("/api/", "/api")
	f("/api/x", "/api")
	f("/api?x", "=/api")
	f("/apis", "/")
	f("/api/v2", "/api/v2")
	f("/api/v2/", "/api/v2")
	f("/api/v2/x", "/api/v2")
	f("/api/v2/x/y", "/api/v2/x/y")
	f("/api/v2/x/yy", "/api/v2")
	f("/api/v21", "/api")
	f("/status", "=/status")
	f("/status/", "/")
	f("/trailing", "/")
	f("/trailing/", "/trailing/")
	f("/trailing/x", "/trailing/")
	f("/text", "/text...")
	f("/texts", "/text...")
	f("/text/x", "/text...")
	f("/tex", "/")
	// A path is compared as it was sent.
	f("/API", "/")
	f("//api", "/")
	f("/api//v2", "/api")
	f("/api%2fv2", "/")
	f("/%61pi", "/")
}

func TestNothingMatches(t *testing.T) {
	for _, table := range []string{"", "=/", "/a", "=/a", "/a...", "!/a", "~/a$", "/ M=POST"} {
		if got := found(t, table, "GET /b"); got != "" {
			t.Errorf("%q has the route %q for /b", table, got)
		}
	}
}

// The precedence of routes is fixed. The order of the matches in a table has no effect.
func TestPrecedence(t *testing.T) {
	all := []string{ // in the order in which they get the request
		"=/a/b M=GET H:x=1",
		"=/a/b",
		"/a/b M=GET,POST H:x=1 Q:q=*",
		"/a/b M=GET H:x=1",
		"/a/b M=GET Q:q=1 Q:r=2",
		"/a/b M=GET",
		"/a/b H:x=1 H:y=2",
		"/a/b H:x=1 Q:q=1 N=192.0.2.0/24",
		"/a/b H:x=1 Q:q=1",
		"/a/b H:x=1 C:c=*",
		"/a/b H:x=1",
		"/a/b Q:q=1 Q:r=~[0-9]",
		"/a/b Q:q=1 C:c=1",
		"/a/b Q:q=1 N=192.0.2.0/24",
		"/a/b Q:q=1",
		"/a/b C:c=1 C:d=2",
		"/a/b C:c=1 N=192.0.2.0/24",
		"/a/b C:c=1",
		"/a/b N=192.0.2.0/24",
		"/a/b",
		"!/A/B",
		"/a/",
		"/a... M=GET",
		"~/a/[a-z]+$ M=GET",
		"~/a/[a-z]+$",
		"~/b?a?/",
		"~/a?b?/ M=GET",
		"~*/a?b?/ M=GET",
		"~*/A/.$",
		"/ M=GET",
		"/",
	}
	request := requestOf("GET /a/b?q=1&r=2 from 192.0.2.1\nX: 1\nY: 2\nCookie: c=1; d=2")
	entries, err := entriesOf(lines(all...))
	if err != nil {
		t.Fatal(err)
	}
	for range len(all) {
		slices.Reverse(entries)
		p, err := Compile(entries)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := p.Find(request)
		if want := len(all) - len(entries); !ok || got != want {
			t.Fatalf("%q goes before %q", all[got], all[want])
		}
		entries = slices.DeleteFunc(entries, func(e Entry[int]) bool { return e.Route == got })
	}
	if len(entries) != 0 {
		t.Error(entries)
	}
}

// Of equal matches the first one wins: the older object.
func TestOlderFirst(t *testing.T) {
	for _, match := range []string{"/", "/a", "=/a", "!/a", "/a...", "~/a", "/a M=GET H:x=1 Q:q=1", "!/a..."} {
		p := compiled(t, lines(match, match, match))
		if got, ok := p.Find(requestOf("GET /a?q=1\nX: 1")); !ok || got != 0 {
			t.Errorf("the match %d of three matches %s wins", got, match)
		}
	}
	// Both are closed, in another case: no spelling is closer.
	if got := found(t, lines("!/aB", "!/Ab"), "GET /ab"); got != "!/aB" {
		t.Error(got)
	}
}

// If the conditions of the longest path do not hold, the next match gets the request.
func TestConditionsFallBack(t *testing.T) {
	table := lines("/", "/cart M=POST", "/cart/x M=POST H:x=1", "=/cart/x M=PUT", "~/cart/.* M=DELETE", "!/Cart/x M=PATCH", "/ M=TRACE")
	f := func(method, want string) {
		t.Helper()
		if got := found(t, table, method+" /cart/x"); got != want {
			t.Errorf("%s goes to %q, not %q", method, got, want)
		}
	}
	f("PUT", "=/cart/x M=PUT")
	f("POST", "/cart M=POST")
	f("DELETE", "~/cart/.* M=DELETE")
	f("PATCH", "!/Cart/x M=PATCH")
	f("TRACE", "/ M=TRACE")
	f("GET", "/")
	f("post", "/") // the case of methods matters
}

func TestExpressions(t *testing.T) {
	f := func(expression, path string, want bool) {
		t.Helper()
		if got := found(t, expression, "GET "+path) != ""; got != want {
			t.Errorf("%s matches %s: %t, not %t", expression, path, got, want)
		}
	}
	f("~/v[0-9]+/items(/|$)", "/v12/items", true)
	f("~/v[0-9]+/items(/|$)", "/v12/items/3", true)
	f("~/v[0-9]+/items(/|$)", "/v12/itemsx", false)
	f("~/v[0-9]+/items(/|$)", "/x/v12/items", false) // anchored at the start
	f("~^/a", "/a", true)
	f("~/b|/c", "/a/c", false) // both alternatives are anchored
	f("~/b|/c", "/c", true)
	f("~/a", "/A", false)
	f("~*/a", "/A", true)
	f("~*/API/[a-z]", "/api/X", true)
	f("~/a(?i)b", "/aB", true)
	f("~/a(?i)b", "/Ab", false)
	f(`~/a\Q.b`, "/a.b", true) // an open \Q
	f(`~/a\Q.b`, "/axb", false)
	f("~/a+b", "/aab", true)
	f("~/(ab){2}c", "/ababc", true)
	f("~/(?:x/)?y", "/y", true)
	f("~/(?:x/)?y", "/x/y", true)
	f("~.", "*", true)
	f("~", "/", true)
	// Below exact paths and longer prefixes than "/", and above "/".
	if got := found(t, lines("/", "/a", "~/a/b"), "GET /a/b"); got != "/a" {
		t.Error(got)
	}
	if got := found(t, lines("/", "=/", "~/"), "GET /"); got != "=/" {
		t.Error(got)
	}
	if got := found(t, lines("/", "~/"), "GET /"); got != "~/" {
		t.Error(got)
	}
	// The longest expression goes first, as in ingress-nginx.
	if got := found(t, lines("~/api/.*", "~/(api|web)/x", "~/"), "GET /api/x"); got != "~/(api|web)/x" {
		t.Error(got)
	}
}

func TestConditions(t *testing.T) {
	f := func(condition, request string, want bool) {
		t.Helper()
		if got := found(t, "/ "+condition, request) != ""; got != want {
			t.Errorf("%s holds for %q: %t, not %t", condition, request, got, want)
		}
	}
	f("M=GET,PUT", "PUT /", true)
	f("M=GET,PUT", "POST /", false)

	f("H:X-Canary=always", "GET /\nx-canary: always", true)
	f("H:x-canary=always", "GET /\nX-Canary: always", true)
	f("H:X-Canary=always", "GET /\nX-Canary: Always", false)
	f("H:X-Canary=always", "GET /\nX-Canary: always, x", false)
	f("H:X-Canary=always", "GET /", false)
	f("H:X-Canary=always", "GET /\nX-Canary: never\nX-Canary: always", false) // the first one counts
	f("H:X-Canary=always", "GET /\nX-Canary: always\nx-canary: never", true)
	f("H:X-Canary=*", "GET /\nX-Canary:", true)
	f("H:X-Canary=*", "GET /\nX-Canaries: 1", false)
	f("H:X-V=~[0-9]+", "GET /\nX-V: 12", true)
	f("H:X-V=~[0-9]+", "GET /\nX-V: 12a", false) // the whole value
	f("H:X-V=~[0-9]+", "GET /\nX-V: a12", false)
	f("H:X-V=~a|b", "GET /\nX-V: bc", false)
	f("H:X-Forwarded-Proto=https", "GET /\nX-Forwarded-Proto: https", true) // a name that message knows
	f("H:X-Forwarded-Proto=https", "GET /\nX-Forwarded_Proto: https", false)
	f("H:X-Forwarded-Proto=https", "GET /", false)
	f("H:a=1 H:b=2", "GET /\nA: 1\nB: 2", true)
	f("H:a=1 H:b=2", "GET /\nA: 1", false)

	f("C:tester=yes", "GET /\nCookie: a=b; tester=yes", true)
	f("C:tester=yes", "GET /\nCookie: tester=no; tester=yes", false) // the first one counts
	f("C:tester=yes", "GET /\nCookie: a=b\ncookie: tester=yes", true)
	f("C:tester=yes", "GET /\nCookie: Tester=yes", false)
	f("C:tester=*", "GET /\nCookie: tester", false)
	f("C:tester=*", "GET /\nCookie: ;;tester=;", true)
	f("C:tester=~y.*", "GET /\nCookie: tester=yes=1", true)
	f("C:tester=yes", "GET /", false)

	f("Q:beta=*", "GET /?beta", true)
	f("Q:beta=*", "GET /?beta=&x", true)
	f("Q:beta=*", "GET /?x&beta=1", true)
	f("Q:beta=*", "GET /", false)
	f("Q:beta=*", "GET /?", false)
	f("Q:beta=*", "GET /?Beta", false)
	f("Q:beta=*", "GET /beta", false)
	f("Q:v=~[0-9]+", "GET /?v=12", true)
	f("Q:v=~[0-9]+", "GET /?v=1%32", true)
	f("Q:v=~[0-9]+", "GET /?v=12x", false)
	f("Q:v=1", "GET /?v=2&v=1", false) // the first one counts
	f("Q:v=1", "GET /?%76=%31", true)
	f("Q:v=1", "GET /?v=%311", false)
	f("Q:v=11", "GET /?v=1", false)
	f("Q:v=a%zz", "GET /?v=a%zz", true)   // an invalid escape stands for itself
	f(`Q:v=~a\x20b`, "GET /?v=a+b", true) // a plus sign is a space
	f("Q:v=a+b", "GET /?v=a%2bb", true)
	f("Q:v=1 Q:w=2", "GET /?w=2&v=1", true)
	f("Q:v=1 Q:w=2", "GET /?v=1", false)

	f("N=203.0.113.0/24,2001:db8::/32", "GET / from 203.0.113.9", true)
	f("N=203.0.113.0/24,2001:db8::/32", "GET / from ::ffff:203.0.113.9", true)
	f("N=203.0.113.0/24,2001:db8::/32", "GET / from 2001:db8::1", true)
	f("N=203.0.113.0/24,2001:db8::/32", "GET / from 192.0.2.1", false)
	f("N=0.0.0.0/0", "GET /", false)                  // the client is unknown
	f("N=fe80::/10", "GET / from fe80::9%eth0", true) // a zone is not part of a network
}

// The header Upgrade is dropped like all headers about the connection, but the protocol counts for
// which weir would change the connection.
func TestConditionsForUpgrades(t *testing.T) {
	f := func(condition, upgrade string, want bool) {
		t.Helper()
		req := requestOf("GET /\nUpgrade: websocket")
		req.Head.DropHopByHop()
		if upgrade != "" {
			req.Head.Upgrade = req.Head.StoreString(upgrade)
		}
		if _, got := compiled(t, "/ "+condition).Find(req); got != want {
			t.Errorf("%s holds for %q: %t", condition, upgrade, got)
		}
	}
	f("H:upgrade=websocket", "websocket", true)
	f("H:Upgrade=*", "foo/1", true)
	f("H:Upgrade=~(?i)websocket", "WebSocket", true)
	f("H:Upgrade=websocket", "foo", false)
	f("H:Upgrade=websocket", "", false) // the client sent it without Connection, or with a body
	f("H:Upgrade=*", "", false)
}

// Headers that Connection names do not reach the endpoint, and no condition sees them.
func TestDroppedHeadersFulfilNothing(t *testing.T) {
	p := compiled(t, "/ H:X-Canary=always")
	r := requestOf("GET /\nX-Canary: always")
	if _, ok := p.Find(r); !ok {
		t.Error("the header does not count")
	}
	r.Head.Fields[0].Dropped = true
	if _, ok := p.Find(r); ok {
		t.Error("a dropped header counts")
	}
	p = compiled(t, "/ C:a=b")
	r = requestOf("GET /\nCookie: a=b")
	r.Head.Fields[0].Dropped = true
	if _, ok := p.Find(r); ok {
		t.Error("a dropped cookie counts")
	}
}

func TestCompileRefuses(t *testing.T) {
	f := func(m Match, want string) {
		t.Helper()
		p, err := Compile([]Entry[int]{{Match: m}})
		if err == nil || !strings.Contains(err.Error(), want) || p != nil {
			t.Errorf("%+v: %v, %v", m, p, err)
		}
	}
	f(Match{}, "begins with a slash")
	f(Match{Path: Path{Text: "a"}}, "begins with a slash")
	f(Match{Path: Path{Text: "/", Kind: 9}}, "kind")
	f(Match{Path: Path{Text: "/", FoldCase: true}}, "ignore case")
	f(Match{Path: Path{Text: "/", Kind: Expression, AnySpelling: true}}, "all spellings")
	f(Match{Path: Path{Text: "/(", Kind: Expression}}, `compiling the path "/(": the regular expression "/(" is invalid: missing closing )`)
	f(Match{Path: Path{Text: "/)|(", Kind: Expression}}, "unexpected )")
	f(Match{Path: Path{Text: `/(?=a)`, Kind: Expression}}, "RE2")
	f(Match{Path: Path{Text: "/" + strings.Repeat("a", expression.MaxText), Kind: Expression}}, "longer than 1024 bytes")
	f(Match{Path: Path{Text: "/(abcdefgh){200}", Kind: Expression}}, "1000 instructions")
	f(Match{Path: Path{Text: "/((a{9}){10}){9}", Kind: Expression}}, "1000 instructions")
	slash := Path{Text: "/"}
	f(Match{Path: slash, Methods: []string{"GET "}}, `"GET " is not a method`)
	f(Match{Path: slash, Headers: []Condition{{Name: "X Y"}}}, `the header "X Y"`)
	f(Match{Path: slash, Headers: []Condition{{Name: "X", Kind: Like, Value: "["}}}, `the header "X": the regular expression "["`)
	f(Match{Path: slash, Cookies: []Condition{{Name: "a;b"}}}, `the cookie "a;b"`)
	f(Match{Path: slash, Query: []Condition{{}}}, "the query parameter")
	f(Match{Path: slash, Clients: make([]netip.Prefix, 1)}, "network")
}

func TestAll(t *testing.T) {
	table := lines("/", "/a", "!/b", "~/c", "=/d M=GET", "/")
	if got := slices.Sorted(compiled(t, table).All()); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
		t.Error(got)
	}
	for range compiled(t, table).All() {
		break
	}
	if got := slices.Collect(new(Paths[int]).All()); got != nil {
		t.Error(got)
	}
}

// The order of a caller's entries stays as it is.
func TestCompileKeepsItsArgument(t *testing.T) {
	entries, _ := entriesOf(lines("/", "=/a", "/b"))
	if _, err := Compile(entries); err != nil || entries[0].Path.Text != "/" || entries[2].Path.Text != "/b" {
		t.Error(entries, err)
	}
}
