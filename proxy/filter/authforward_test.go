package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

func ssoEntry() *config.Auth {
	return &config.Auth{Name: "sso", Forward: &config.ForwardAuth{URL: "http://auth.test/check?a=1", Headers: []string{"X-Auth-User", "X-Auth-Groups"},
		SignIn: "https://login.test/?rd={url}&x=1", Timeout: time.Second}}
}

// shown returns the headers that are not dropped, in order of their names.
func shown(h *message.Head) (all []string) {
	for i := range h.Fields {
		if !h.Fields[i].Dropped {
			all = append(all, fmt.Sprintf("%s: %s", h.Name(i), h.Value(i)))
		}
	}
	slices.Sort(all)
	return all
}

// The response of the server decides.
func TestForwardDecides(t *testing.T) {
	const login = "https://login.test/?rd=http%3A%2F%2Fapp.example.org%2Fa%3Fb%3Dc%26d&x=1"
	for _, test := range []struct {
		method, accept string
		status         int
		err            error
		lines          string
		answer         string
		endpoint       string // what the endpoint gets
		client         string // what the client gets
	}{
		{method: "GET", status: 200, lines: "X-Auth-User: ada|x-auth-groups: a|X-Auth-Groups: b|Set-Cookie: s=1|Set-Cookie: t=2|X-Other: x",
			endpoint: "X-Auth-Groups: a|X-Auth-Groups: b|X-Auth-User: ada", client: "Set-Cookie: s=1|Set-Cookie: t=2"},
		{method: "POST", status: 204, lines: "X-Auth-User: "},
		{method: "GET", accept: "application/json, text/html;q=0.9", status: 401, answer: "302 auth_sign_in sign in first", client: "Location: " + login},
		{method: "HEAD", accept: "TEXT/HTML", status: 401, answer: "302 auth_sign_in sign in first", client: "Location: " + login},
		{method: "POST", accept: "text/html", status: 401, lines: "WWW-Authenticate: Basic", answer: "401 auth_denied body", client: "WWW-Authenticate: Basic"},
		{method: "GET", accept: "text/htmlx", status: 401, answer: "401 auth_denied body"},
		{method: "GET", accept: "text/html", status: 403, lines: "Content-Type: text/x|Content-Length: 9|Trailer: a|-X-Hop: a|X-Auth-User: ada", answer: "403 auth_denied body", client: "Content-Type: text/x|X-Auth-User: ada"},
		{method: "GET", status: 302, lines: "Location: /in|Set-Cookie: s=1", answer: "302 auth_denied body", client: "Location: /in|Set-Cookie: s=1"},
		{method: "GET", status: 500, answer: "503 auth_unavailable auth: the server that decides answered 500"},
		{method: "GET", status: 600, answer: "503 auth_unavailable auth: the server that decides answered 600"},
		{method: "GET", err: errors.New("no route"), answer: "503 auth_unavailable auth: no route"},
	} {
		server := new(int)
		a, err := newForward(ssoEntry(), server)
		if err != nil {
			t.Fatal(err)
		}
		x := newExchange(test.method, "/a?b=c&d")
		if test.accept != "" {
			x.req.AddField("accept", test.accept)
		}
		x.server = func(q *Question) error {
			if q.Decider != Decider(server) || q.Path != "/check?a=1" || q.Patience != time.Second || q.Most != mostDenial {
				t.Errorf("the question is %+v", q)
			}
			if test.err != nil {
				return test.err
			}
			res := message.Response{Status: test.status}
			for line := range strings.SplitSeq(test.lines, "|") {
				if name, value, is := strings.Cut(line, ": "); is {
					res.AddField(strings.TrimPrefix(name, "-"), value)
					res.Fields[len(res.Fields)-1].Dropped = strings.HasPrefix(name, "-") // as the codec does with headers about the connection
				}
			}
			q.Read(&res, []byte("body"))
			return nil
		}
		f := &auth{entry: entryOf(a)}
		if answered := f.Answer(x); answered != (test.answer != "") || x.answer != test.answer {
			t.Errorf("%s %q, %d: answered %t with %q", test.method, test.accept, test.status, answered, x.answer)
			continue
		}
		if test.answer == "" {
			x.req.Reset()
			f.EditRequest(x)
			f.EditResponse(x, &x.res)
		}
		if got := strings.Join(shown(&x.req.Head), "|"); test.answer == "" && got != test.endpoint {
			t.Errorf("%d: the endpoint gets %q", test.status, got)
		}
		if got := strings.Join(shown(&x.res.Head), "|"); got != test.client {
			t.Errorf("%d: the client gets %q", test.status, got)
		}
	}
}

// The server gets the request without its body, and nothing that the client invented about itself.
func TestForwardAsks(t *testing.T) {
	a, err := newForward(ssoEntry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	x := newExchange("PUT", "/a?b")
	x.client, x.secure = netip.MustParseAddrPort("203.0.113.7:1"), true
	for _, line := range []string{"Cookie: s=1", "Authorization: Basic a", "X-Tenant: t", "Accept: */*", "CDN-Loop: cdn",
		"Range: bytes=0-1", "If-Range: x", "If-None-Match: x", "If-Match: x", "If_Match: x", "If-Modified-Since: x", "If-Unmodified-Since: x", "Expect: 100-continue", "Upgrade: websocket", "Connection: x", "Content-Type: a", "Content_Length: 4", "Content-Length: 4",
		"Transfer-Encoding: chunked", "TE: trailers", "X-Forwarded-For: 1.1.1.1", "X_Forwarded_Method: GET", "X-Forwarded-Uri: /open", "X-Original-URL: /open", "X-Original.Method: GET",
		"X-Real-IP: 1.1.1.1", "X-Auth-User: root", "x_auth_user: root", "X.AUTH.GROUPS: root", "X-HTTP-Method-Override: POST"} {
		name, value, _ := strings.Cut(line, ": ")
		x.req.AddField(name, value)
	}
	x.req.Drop(message.CDNLoop) // weir drops it, and writes it anew
	var got []string
	x.server = func(q *Question) error {
		var req message.Request
		q.Write(&req)
		got = shown(&req.Head)
		q.Read(&message.Response{Status: 200}, nil)
		return nil
	}
	if id := a.authenticate(x); id == nil || id.HasCookies() {
		t.Errorf("the identity is %+v, with %q", id, x.answer)
	}
	want := []string{"Accept: */*", "Authorization: Basic a", "CDN-Loop: cdn", "Cookie: s=1", "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Host: App.example.org:80",
		"X-Forwarded-Method: PUT", "X-Forwarded-Proto: https", "X-Forwarded-Uri: /a?b", "X-Original-Method: PUT", "X-Original-URL: https://App.example.org:80/a?b",
		"X-Real-IP: 203.0.113.7", "X-Request-Id: " + string(x.RequestID()), "X-Tenant: t"}
	if !slices.Equal(got, want) {
		t.Errorf("the server gets\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range shown(&x.req.Head) {
		if strings.Contains(line, "root") {
			t.Errorf("the endpoint gets %s", line)
		}
	}
}
