package route

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

// The reference is a second implementation of the lookup. It is slow and obvious: it compares a
// request with every match, and takes the first one in the order of precedence.

// reference returns the route of a request; -1: none.
func reference(entries []Entry[int], r *Request) int {
	best := -1
	for i := range entries {
		if !accepts(&entries[i].Match, r) {
			continue
		}
		if best < 0 || slices.Compare(orderOf(&entries[i].Match), orderOf(&entries[best].Match)) < 0 {
			best = i
		}
	}
	if best < 0 {
		return -1
	}
	return entries[best].Route
}

// orderOf returns the place of m in the order of precedence; the least comes first.
func orderOf(m *Match) []int {
	p := &m.Path
	order := []int{0, -len(p.Text), 1, 1}
	if p.Kind == Exact {
		order[2] = 0
	}
	if !p.AnySpelling && p.Kind != Begins {
		order[3] = 0
	}
	if p.Kind == Expression {
		order[0] = 1
		for _, b := range []byte(p.Text) {
			order = append(order, -int(b))
		}
		order = append(order, 0, 0)
		if p.FoldCase {
			order[len(order)-2] = 1
		}
		if p.Decoded {
			order[len(order)-1] = 1
		}
	} else if p.Text == "/" && p.Kind != Exact {
		order[0] = 2
	} else if p.Among {
		order[0] = 1
	}
	return append(order, -min(1, len(m.Methods)), -len(m.Headers), -len(m.Query), -len(m.Cookies), -min(1, len(m.Clients)))
}

func accepts(m *Match, r *Request) bool {
	path := string(r.Head.Bytes(r.Head.Path))
	if m.Path.Decoded {
		path = merge(unescape(path))
	}
	matches := acceptsText(&m.Path, path)
	if m.Path.AnySpelling && !matches {
		leveled := m.Path
		leveled.Text = strings.ToLower(leveled.Text)
		matches = acceptsText(&leveled, level(path))
	}
	return matches && (len(m.Methods) == 0 || slices.Contains(m.Methods, string(r.Head.Bytes(r.Head.Method)))) &&
		acceptsFirst(lowerNames(m.Headers), headersOf(r.Head)) && acceptsFirst(m.Cookies, cookiesOf(r.Head)) && acceptsFirst(m.Query, queryOf(r.Head)) &&
		(len(m.Clients) == 0 || slices.ContainsFunc(m.Clients, func(n netip.Prefix) bool { return n.Contains(r.Client.Unmap()) }))
}

func acceptsText(p *Path, path string) bool {
	switch {
	case p.Kind == Exact:
		return path == p.Text
	case p.Kind == Expression:
		flags := ""
		if p.FoldCase {
			flags = "(?i)"
		}
		return regexp.MustCompile("^(?:" + flags + p.Text + ")").MatchString(path)
	case p.Text == "/", path == p.Text:
		return true
	case p.Kind == Prefix && !strings.HasSuffix(p.Text, "/"):
		return strings.HasPrefix(path, p.Text+"/")
	}
	return strings.HasPrefix(path, p.Text)
}

var escape = regexp.MustCompile("%[0-9A-Fa-f]{2}")

func unescape(s string) string {
	return escape.ReplaceAllStringFunc(s, func(e string) string {
		b, _ := hex.DecodeString(e[1:])
		return string(b)
	})
}

func level(path string) string {
	return strings.ToLower(merge(strings.ReplaceAll(unescape(path), `\`, "/")))
}

func merge(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}

func acceptsValue(c Condition, value string) bool {
	switch c.Kind {
	case Present:
		return true
	case Like:
		return regexp.MustCompile("^(?:" + c.Value + `)\z`).MatchString(value)
	}
	return value == c.Value
}

func headersOf(req *message.Request) (pairs []pair) {
	for i := range req.Fields {
		pairs = append(pairs, pair{strings.ToLower(string(req.Name(i))), string(req.Value(i))})
	}
	return pairs
}

func lowerNames(all []Condition) (lower []Condition) {
	for _, c := range all {
		lower = append(lower, Condition{strings.ToLower(c.Name), c.Kind, c.Value})
	}
	return lower
}

type pair struct{ name, value string }

func acceptsFirst(all []Condition, pairs []pair) bool {
	for _, c := range all {
		i := slices.IndexFunc(pairs, func(p pair) bool { return p.name == c.Name })
		if i < 0 || !acceptsValue(c, pairs[i].value) {
			return false
		}
	}
	return true
}

func cookiesOf(req *message.Request) (pairs []pair) {
	for i := range req.Fields {
		if strings.EqualFold(string(req.Name(i)), "Cookie") {
			for one := range strings.SplitSeq(string(req.Value(i)), ";") {
				if name, value, ok := strings.Cut(strings.TrimSpace(one), "="); ok {
					pairs = append(pairs, pair{name, value})
				}
			}
		}
	}
	return pairs
}

func queryOf(req *message.Request) (pairs []pair) {
	_, query, _ := strings.Cut(string(req.Bytes(req.Target)), "?")
	for one := range strings.SplitSeq(query, "&") {
		if one != "" {
			name, value, _ := strings.Cut(strings.ReplaceAll(one, "+", " "), "=")
			pairs = append(pairs, pair{unescape(name), unescape(value)})
		}
	}
	return pairs
}

// compare compares the compiled table with the reference.
func compare(t *testing.T, table, request string) {
	t.Helper()
	entries, err := entriesOf(table)
	if err != nil {
		return
	}
	p, err := Compile(entries)
	if err != nil {
		return
	}
	r := requestOf(request)
	want := reference(entries, r)
	if got, ok := p.Find(r); ok != (want >= 0) || ok && got != want {
		line := func(i int) string {
			if i < 0 {
				return "no route"
			}
			return strings.Split(table, "\n")[i]
		}
		if !ok {
			got = -1
		}
		t.Errorf("%q goes to %s, and the reference says %s; the table is:\n%s", request, line(got), line(want), table)
	}
}

// FuzzPaths compares the compiled table with the reference, for a table in the form of entriesOf and
// a request in the form of requestOf.
func FuzzPaths(f *testing.F) {
	f.Add(lines("/", "=/a", "/a", "!/A", "/a...", "~/[a-z]+$", "~*/A"), "GET /a/b")
	f.Add(lines("/a/b", "/a", "/a/bc", "!=/a/b/"), "GET //a/%62/")
	f.Add(lines("/cart M=POST,PUT", "/cart M=POST H:X-Canary=always", "/cart Q:beta=* Q:v=~[0-9]+", "/cart C:tester=yes", "/ N=203.0.113.0/24"),
		"POST /cart?v=%31&beta from 203.0.113.7\nX-Canary: always\nCookie: a=b; tester=yes")
	f.Add(lines("~d/a/(b|c)", "@/a", "@!=/A/b", "/a/b/c", "~/a/bc", "/"), "GET /%61//B")
	f.Add(lines("~/a|/b", "~^/a/", "~/(a|b)+$", `~/a\.b`, "~*/(?:x/)?Y"), "GET /a.b")
	f.Add(lines("!/a/b", "/a", "!=/a/c", "~/a.b", "/"), `GET /a\B`)
	f.Add(lines("!/a/b", "/a...", "~d/a/?b"), "GET /a%5C%5cb/%")
	f.Fuzz(func(t *testing.T, table, request string) {
		if strings.ContainsFunc(table+request, func(r rune) bool { return r > 0x7e }) || strings.Contains(table, `\Q`) || len(table) > 4096 {
			return // requests are ASCII, and the reference does not understand an open \Q
		}
		compare(t, table, request)
	})
}

// random makes tables and requests from few parts, so that many matches accept a request.
type random struct{ *rand.Rand }

func (r random) one(of ...string) string { return of[r.IntN(len(of))] }

func (r random) path() string {
	var b strings.Builder
	for range 1 + r.IntN(4) {
		b.WriteString("/" + r.one("a", "b", "ab", "A", "a", "b", "", "%61", "%2f", "aa", `a\b`, "%5c", "%5CB", "%"))
	}
	return b.String() + r.one("", "", "/", "b")
}

func (r random) match() string {
	path := r.one("", "", "", "@") + r.one("", "", "", "=", "!", "!=") + r.path() + r.one("", "", "", "...")
	switch r.IntN(8) {
	case 0:
		path = "/"
	case 1:
		path = r.one("~", "~*", "~d") + r.path() + r.one("", "(/|$)", "[a-z]*$", "+", "?b", "{1,2}", "|/b", "(?i)/B", ".*")
	}
	return path + r.one("", "", "", " M=GET", " M=POST,GET") + r.one("", "", "", " H:x=1", " H:x=~[12] H:y=*") +
		r.one("", "", "", " Q:q=1", " Q:q=* Q:r=~a?") + r.one("", "", "", " C:c=1") + r.one("", "", "", " N=192.0.2.0/24")
}

func (r random) request() string {
	return r.one("GET", "GET", "POST", "PUT") + " " + r.path() + r.one("", "", "?q=1", "?q=2&r=a", "?r&q=%31") + r.one("", " from 192.0.2.1", " from 2001:db8::1") +
		r.one("", "", "\nX: 1", "\nX: 3\nx: 2\nY: 1") + r.one("", "", "\nCookie: c=1", "\nCookie: b=2; c=2")
}

// Random tables give the same answers as the reference.
func TestRandomTables(t *testing.T) {
	r := random{rand.New(rand.NewPCG(1, 2))}
	for range 2000 {
		var matches []string
		for range 1 + r.IntN(20) {
			matches = append(matches, r.match())
		}
		for range 10 {
			compare(t, lines(matches...), r.request())
		}
		if t.Failed() {
			return
		}
	}
}

// referenceHost returns the most specific of the hosts for a name; "": none.
func referenceHost(hosts []string, name string) (best string) {
	score := 0
	for _, host := range hosts {
		mine := 0
		switch rest, deep := strings.CutPrefix(host, "**"); {
		case host == name:
			mine = 1000
		case deep && strings.HasSuffix(name, rest) && !strings.Contains("."+strings.TrimSuffix(name, rest)+".", ".."):
			mine = 2 * len(rest)
		case !deep && strings.HasPrefix(host, "*."):
			label := strings.TrimSuffix(name, host[1:])
			if label != name && label != "" && !strings.Contains(label, ".") {
				mine = 2*len(host[1:]) + 1
			}
		}
		if mine > score {
			best, score = host, mine
		}
	}
	return best
}

// FuzzHosts compares Hosts with the reference, for hosts between spaces and a name.
func FuzzHosts(f *testing.F) {
	f.Add("a.b *.b **.b **.c.b", "x.y.c.b")
	f.Add("*.b.c **.c", "a.b.c")
	f.Add("::1 localhost", "::1")
	f.Fuzz(func(t *testing.T, hosts, name string) {
		names := strings.Fields(hosts)
		for _, one := range append(names, name) {
			rest := strings.TrimPrefix(strings.TrimPrefix(one, "*"), "*.")
			if strings.ContainsAny(rest, "*") || strings.Contains("."+strings.TrimPrefix(rest, ".")+".", "..") || string(AppendHost(nil, []byte(one))) != one {
				return // no such host can be configured
			}
		}
		if strings.ContainsAny(name, "*") || strings.HasPrefix(name, ".") {
			return
		}
		compareHosts(t, names, name)
	})
}

func compareHosts(t *testing.T, names []string, name string) {
	t.Helper()
	want := referenceHost(names, name)
	if got, ok := hostsOf(names...).Find([]byte(name)); got != want || ok != (want != "") {
		t.Errorf("of the hosts %q, %s is %q, and the reference says %q", names, name, got, want)
	}
}

func TestRandomHosts(t *testing.T) {
	r := random{rand.New(rand.NewPCG(3, 4))}
	name := func() string {
		labels := make([]string, 1+r.IntN(4))
		for i := range labels {
			labels[i] = r.one("a", "b", "c")
		}
		return strings.Join(labels, ".")
	}
	for range 5000 {
		var names []string
		for range r.IntN(8) {
			names = append(names, r.one("", "*.", "**.")+name())
		}
		compareHosts(t, names, name())
	}
}

func ExampleCompile() {
	paths, err := Compile([]Entry[string]{
		{Match{Path: Path{Text: "/"}}, "app"},
		{Match{Path: Path{Text: "/api"}}, "api"},
		{Match{Path: Path{Text: "/api"}, Methods: []string{"POST"}}, "writer"},
	})
	if err != nil {
		panic(err)
	}
	for _, request := range []string{"GET /api/x", "POST /api/x", "GET /apis"} {
		route, _ := paths.Find(requestOf(request))
		fmt.Println(route)
	}
	// Output:
	// api
	// writer
	// app
}
