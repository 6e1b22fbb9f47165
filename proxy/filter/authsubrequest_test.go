package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

func subrequestEntry() *config.Auth {
	return &config.Auth{Name: "shop/web/auth-url", Subrequest: &config.Subrequest{Backend: "b", Path: "/check?u={uri_encoded}", Host: "auth.test", Timeout: time.Second,
		Headers: []string{"X-User", "Authorization"}, Add: []config.HeaderValue{{Name: "X-Auth-Request-Redirect", Value: "{uri}"}, {Name: "X-Cookie", Value: "{cookie.a}"}}}}
}

// withServer is a chain of a route with the entry, whose server answers with this status and these lines.
func withServer(t *testing.T, entry *config.Auth) *Chain {
	t.Helper()
	var s Shared
	p, err := s.Plan(&config.Config{Auth: []config.Auth{*entry}}, func(string) Decider { return new(int) })
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	return Compile(&config.Route{Name: "r", Backend: "b", Auth: entry.Name}, p)
}

// answering makes the server of x answer, and counts its requests in asked. It returns the last
// question and the headers of its request.
func (x *exchange) answering(status int, lines string, asked *int) (last *Question, req *message.Request) {
	last, req = new(Question), new(message.Request)
	x.server = func(q *Question) error {
		*asked++
		*last = *q
		req.Reset()
		q.Write(req)
		if status == 0 {
			return errors.New("no route")
		}
		res := &message.Response{Status: status}
		for _, line := range strings.Split(lines, "|") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				res.AddField(name, value)
			}
		}
		q.Read(res, nil)
		return nil
	}
	return last, req
}

// What snippets read of a response is kept, also in the cache.
func TestSubrequestKeeps(t *testing.T) {
	entry := subrequestEntry()
	entry.Subrequest.Keep, entry.Subrequest.CacheBy = []string{"x-mail", ":status", ":cookie:s_1"}, "{host}"
	entry.Subrequest.Cache = []config.CacheTime{{For: time.Minute}}
	chain, asked := withServer(t, entry), 0
	for range 2 {
		x := newExchange("GET", "/")
		x.answering(204, "X-Mail: a@b.test|x-mail: c|X-Other: d", &asked)
		if chain.Answer(x); x.Identity().kept("x-mail") != "a@b.test, c" || x.Identity().kept(":status") != "204" || x.Identity().kept("x-other") != "" {
			t.Errorf("the answer %q keeps %+v", x.answer, x.Identity())
		}
	}
	if asked != 1 {
		t.Errorf("the server was asked %d times", asked)
	}
	x := newExchange("GET", "/")
	x.host = "other.test"
	x.answering(200, "Set-Cookie: s=0|Set-Cookie: s_1=a=b; Path=/|Set-Cookie: s_1=c", &asked)
	if chain.Answer(x); x.Identity().kept(":cookie:s_1") != "a=b" {
		t.Errorf("the cookie is kept as %+v", x.Identity())
	}
}

func (x *exchange) with(lines string) *exchange {
	for _, line := range strings.Split(lines, "|") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			x.req.AddField(name, value)
		}
	}
	return x
}

func newBrowser(lines string) *exchange {
	x := newExchange("GET", "/a")
	x.req.Reset()
	x.req.SetMethod(x.req.StoreString("POST"))
	x.req.SetTarget(x.req.StoreString("/a?b=c&d"))
	x.req.Host = x.req.StoreString("app.test:8080")
	x.client = netip.MustParseAddrPort("192.0.2.1:1")
	return x.with(lines)
}

// The response of the server decides, as in nginx.
func TestSubrequestDecides(t *testing.T) {
	for _, test := range []struct {
		status                         int
		lines, answer, endpoint, reply string
		signIn                         config.Template
		always                         bool
	}{
		{status: 200, lines: "x-user: ada|X-Other: x|Set-Cookie: s=1|Authorization: Bearer t", endpoint: "Authorization: Bearer t|X-Kept: k|X-User: ada", reply: "Set-Cookie: s=1"},
		{status: 204, endpoint: "X-Kept: k"}, // what the client claims is dropped
		{status: 299, lines: "X-User: ", endpoint: "X-Kept: k"},
		{status: 401, lines: "WWW-Authenticate: Basic|WWW-Authenticate: Bearer|X-Other: x|Set-Cookie: s=1", answer: "401 auth_denied access denied", reply: "WWW-Authenticate: Basic|WWW-Authenticate: Bearer"},
		{status: 401, always: true, lines: "Set-Cookie: s=1", answer: "401 auth_denied access denied", reply: "Set-Cookie: s=1"},
		{status: 403, lines: "WWW-Authenticate: Basic", answer: "403 auth_denied access denied"},
		{status: 401, lines: "Set-Cookie: s=1", signIn: "https://{authority}/in?rd={scheme}://{authority}{uri_encoded}", answer: "302 auth_sign_in sign in first",
			reply: "Location: https://app.test:8080/in?rd=http://app.test:8080%2Fa%3Fb%3Dc%26d|Set-Cookie: s=1"},
		{status: 403, signIn: "https://login.test/", answer: "403 auth_denied access denied"},
		{status: 302, lines: "Location: /x", answer: "500 auth_unavailable auth: the server that decides answered 302"},
		{status: 404, answer: "500 auth_unavailable auth: the server that decides answered 404"},
		{status: 0, answer: "500 auth_unavailable auth: no route"},
	} {
		entry, asked := subrequestEntry(), 0
		entry.Subrequest.SignIn, entry.Subrequest.AlwaysCookies = test.signIn, test.always
		chain := withServer(t, entry)
		x := newBrowser("X-User: forged|x_user: forged|Authorization: Basic x|X-Kept: k")
		x.answering(test.status, test.lines, &asked)
		answered := chain.Answer(x)
		if x.answer != test.answer || answered != (test.answer != "") {
			t.Errorf("%d: %q, want %q", test.status, x.answer, test.answer)
		}
		if test.answer == "" {
			chain.EditRequest(x)
			x.req.Drop(message.XRequestID)
			if got := strings.Join(shown(&x.req.Head), "|"); got != test.endpoint {
				t.Errorf("%d: the endpoint gets %s, want %s", test.status, got, test.endpoint)
			}
			x.res.Status = 200
			chain.EditResponse(x, &x.res)
		}
		if got := strings.Join(shown(&x.res.Head), "|"); got != test.reply {
			t.Errorf("%d: the client gets %s, want %s", test.status, got, test.reply)
		}
	}
}

// Cookies of the server go to the client with the statuses of add_header of nginx.
func TestSubrequestCookies(t *testing.T) {
	good := []int{200, 201, 204, 206, 301, 302, 303, 304, 307, 308}
	for _, always := range []bool{false, true} {
		for status := 200; status < 600; status++ {
			id := &Identity{OnlyGood: !always}
			if got := id.givesCookies(status); got != (always || slices.Contains(good, status)) {
				t.Errorf("%d: %v", status, got)
			}
		}
	}
}

// The server gets the headers of the client, and those of ingress-nginx.
func TestSubrequestHeaders(t *testing.T) {
	entry, asked := subrequestEntry(), 0
	x := newBrowser("Authorization: Basic x|Cookie: a=1; b=2|Content-Type: text/x|Content-Length: 5|X-Sent-From: forged|X-Forwarded-Proto: https|x_original_url: forged|Range: bytes=1-")
	q, req := x.answering(200, "", &asked)
	chain := withServer(t, entry)
	chain.Answer(x)
	if q.Host != "auth.test" || q.Method != "" || q.Path != "/check?u=%2Fa%3Fb%3Dc%26d" || !q.Discard {
		t.Errorf("it asked %+v", q)
	}
	req.Drop(message.XRequestID)
	want := "Authorization: Basic x|Content-Type: text/x|Cookie: a=1; b=2|X-Auth-Request-Redirect: /a?b=c&d|X-Cookie: 1|X-Forwarded-For: 192.0.2.1|" +
		"X-Original-Method: POST|X-Original-URL: http://app.test:8080/a?b=c&d|X-Real-IP: 192.0.2.1|X-Sent-From: nginx-ingress-controller"
	if got := strings.Join(shown(&req.Head), "|"); got != want {
		t.Errorf("it got %s\nwant %s", got, want)
	}
	// What an object adds replaces what weir and the client send, however it is spelled.
	entry.Subrequest.Add = append(entry.Subrequest.Add, config.HeaderValue{Name: "x-real-ip", Value: "mine"}, config.HeaderValue{Name: "X-Forwarded-Proto", Value: "{scheme}"},
		config.HeaderValue{Name: "X-User-Kind", Value: "a"}, config.HeaderValue{Name: "Authorization", Value: "{header.x-none}"})
	x = newBrowser("Authorization: Basic x|X_User_Kind: forged|X-User-Kind: forged|X-Real-IP: forged")
	_, req = x.answering(200, "", &asked)
	withServer(t, entry).Answer(x)
	if got := strings.Join(shown(&req.Head), "|"); !strings.Contains(got, "X-Forwarded-Proto: http|") || !strings.Contains(got, "x-real-ip: mine") || !strings.Contains(got, "X-User-Kind: a") ||
		strings.Contains(got, "forged") || strings.Contains(got, "192.0.2.1|X-Sent") || strings.Contains(got, "Authorization") || strings.Contains(got, "X-Real-IP") {
		t.Errorf("with further headers it got %s", got)
	}
	entry.Subrequest.Method = "PUT"
	x = newBrowser("")
	q, req = x.answering(200, "", &asked)
	withServer(t, entry).Answer(x)
	if got := strings.Join(shown(&req.Head), "|"); q.Method != "PUT" || !strings.Contains(got, "X-Original-URI: /a?b=c&d|") || !strings.Contains(got, "X-Scheme: http") {
		t.Errorf("with a method it got %+v, %s", q, got)
	}
	trailers := new(message.Head)
	trailers.AddField("x_user", "forged")
	trailers.AddField("X-Sum", "1")
	if chain.EditTrailers(trailers); strings.Join(shown(trailers), "|") != "X-Sum: 1" {
		t.Errorf("the trailers are %q", shown(trailers))
	}
}

// weir remembers decisions by a key, for a time that depends on the status.
func TestSubrequestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entry := subrequestEntry()
		entry.Subrequest.CacheBy = "{header.authorization}"
		entry.Subrequest.Cache = []config.CacheTime{{Statuses: []int{200, 202}, For: time.Minute}, {Statuses: []int{401}, For: time.Second}}
		chain, asked := withServer(t, entry), 0
		f := func(credential string, status int, lines, answer string, asks int) {
			t.Helper()
			asked = 0
			x := newBrowser("Authorization: " + credential + "|X-User: forged")
			x.answering(status, lines, &asked)
			chain.Answer(x)
			if !strings.HasPrefix(x.answer, answer) || answer == "" && x.answer != "" || asked != asks {
				t.Errorf("%s: %q after %d requests, want %q after %d", credential, x.answer, asked, answer, asks)
			}
			if chain.EditRequest(x); x.answer == "" && !slices.Contains(shown(&x.req.Head), "X-User: ada") {
				t.Errorf("%s: the endpoint gets %q", credential, shown(&x.req.Head))
			}
		}
		f("a", 200, "X-User: ada", "", 1)
		f("a", 403, "", "", 0)
		f("b", 401, "WWW-Authenticate: x", "401", 1)
		f("b", 200, "X-User: ada", "401", 0)
		time.Sleep(time.Second)
		f("b", 200, "X-User: ada", "", 1)
		f("a", 403, "", "", 0)
		time.Sleep(time.Minute)
		f("a", 403, "", "403", 1)
		f("a", 403, "", "403", 1) // no rule for 403
		for _, line := range []string{"Set-Cookie: a", "Cache-Control: no-cache", "Vary: *"} {
			f(line, 200, "X-User: ada|"+line, "", 1)
			f(line, 200, "X-User: ada|"+line, "", 1)
		}
		f("c", 0, "", "500", 1)
		f("c", 200, "X-User: ada", "", 1)
	})
}

// A decision for one host does not count for another one of the route.
func TestSubrequestCacheKnowsHosts(t *testing.T) {
	entry := subrequestEntry()
	entry.Subrequest.CacheBy = "{header.authorization}"
	entry.Subrequest.Cache = []config.CacheTime{{For: time.Minute}}
	chain, asked := withServer(t, entry), 0
	for _, host := range []string{"a.example.org", "b.example.org", "a.example.org"} {
		x := newBrowser("Authorization: a")
		x.host = host
		x.answering(200, "X-User: ada", &asked)
		chain.Answer(x)
	}
	if asked != 2 {
		t.Errorf("the server got %d requests for two hosts", asked)
	}
}

// A decision for one route does not count for another one with the same entry.
func TestSubrequestCacheKnowsRoutes(t *testing.T) {
	entry := subrequestEntry()
	entry.Subrequest.CacheBy = "fixed"
	entry.Subrequest.Cache = []config.CacheTime{{For: time.Minute}}
	var s Shared
	p, err := s.Plan(&config.Config{Auth: []config.Auth{*entry}}, func(string) Decider { return new(int) })
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	asked := 0
	for _, route := range []string{"foo", "bar", "foo"} {
		x := newBrowser("Authorization: a")
		x.answering(200, "X-User: ada", &asked)
		Compile(&config.Route{Name: route, Backend: "b", Auth: entry.Name}, p).Answer(x)
	}
	if asked != 2 {
		t.Errorf("the server got %d requests for two routes", asked)
	}
}

// The memory of decisions is bounded. A key is made of all its texts.
func TestDecisionsAreBounded(t *testing.T) {
	d := newDecisions(10_000)
	id := &Identity{Fields: []IdentityField{{"a", strings.Repeat("x", 1000)}}}
	for i := range 100 {
		key := decisionKeyOf(fmt.Sprint(i))
		if d.add(key, &decision{status: 200, id: id}, time.Minute); d.get(key) == nil || d.bytes > 10_000 || d.bytes != len(d.known)*(&decision{id: id}).size() {
			t.Fatalf("after %d decisions it has %d bytes, %d decisions", i, d.bytes, len(d.known))
		}
	}
	large := &decision{status: 200, id: &Identity{Cookies: []string{strings.Repeat("x", mostDecision)}}}
	if d.add(decisionKeyOf("large"), large, time.Minute); d.get(decisionKeyOf("large")) != nil {
		t.Error("it remembers a large decision")
	}
	if decisionKeyOf("ab", "c") == decisionKeyOf("a", "bc") {
		t.Error("two keys are equal")
	}
}

// A server that a reload replaces is asked from then on.
func TestSubrequestServerChanges(t *testing.T) {
	var s Shared
	cfg := &config.Config{Auth: []config.Auth{*subrequestEntry()}}
	plan := func(server Decider) authenticator {
		t.Helper()
		p, err := s.Plan(cfg, func(string) Decider { return server })
		if err != nil {
			t.Fatal(err)
		}
		p.Commit()
		return s.auth["shop/web/auth-url"].authenticator()
	}
	one, two := new(int), new(int)
	if a := plan(one); plan(one) != a {
		t.Error("it is made again")
	} else if b := plan(two); b == a || b.(*subrequest).server != Decider(two) {
		t.Error("it asks the old server")
	}
}
