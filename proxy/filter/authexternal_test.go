package filter

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

func externalEntry(response ...string) *config.Auth {
	return &config.Auth{Name: "httproute/shop/web/0/auth", External: &config.ExternalAuth{Backend: "b", Prefix: "/check", Timeout: time.Second,
		Request: []string{"Cookie", "X-Tenant"}, Response: response}}
}

// Only 200 lets a request pass; redirects and refusals of the server go to the client.
func TestExternalAuthDecides(t *testing.T) {
	const sent = "X-User: me|x_user: me|X-Other: kept"
	for _, test := range []struct {
		status   int
		lines    string
		names    []string // allowedResponseHeaders
		answer   string
		endpoint string // what the endpoint gets
		client   string // what the client gets
	}{
		{status: 200, lines: "X-User: ada|X-Role: a", names: []string{"X-User"}, endpoint: "X-Other: kept|X-User: ada"},
		{status: 200, lines: "X-Role: a", names: []string{"X-User"}, endpoint: "X-Other: kept"}, // the client cannot set it
		{status: 200, lines: "X-User: ada|X-Role: a|Set-Cookie: s=1|Date: now|Content-Type: text/x|X-Forwarded-For: 192.0.2.9|X-Hop: ",
			endpoint: "X-Other: kept|X-Role: a|X-User: ada", client: "Set-Cookie: s=1"},
		{status: 200, endpoint: "X-Other: kept|X-User: me|x_user: me"},
		{status: 204, answer: "403 auth_denied access denied"},
		{status: 302, lines: "Location: /in", answer: "302 auth_denied body", client: "Location: /in"},
		{status: 401, lines: "WWW-Authenticate: Basic", answer: "401 auth_denied body", client: "WWW-Authenticate: Basic"},
		{status: 500, answer: "503 auth_unavailable auth: the server that decides answered 500"},
		{status: 0, answer: "503 auth_unavailable auth: no route"},
	} {
		c := withServer(t, externalEntry(test.names...))
		x := newBrowser(sent)
		x.server = func(q *Question) error {
			if test.status == 0 {
				return errors.New("no route")
			}
			res := &message.Response{Status: test.status}
			for line := range strings.SplitSeq(test.lines, "|") {
				if name, value, ok := strings.Cut(line, ": "); ok {
					res.AddField(name, value)
				}
			}
			q.Read(res, []byte("body"))
			return nil
		}
		answered := c.Answer(x)
		if answered != (test.answer != "") || x.answer != test.answer {
			t.Errorf("%d: answered %t %q, want %q", test.status, answered, x.answer, test.answer)
		}
		if !answered {
			c.EditRequest(x)
			if got := strings.Join(shown(&x.req.Head), "|"); got != test.endpoint {
				t.Errorf("%d %v: the endpoint gets %q, want %q", test.status, test.names, got, test.endpoint)
			}
			c.EditResponse(x, &x.res)
		}
		if got := strings.Join(shown(&x.res.Head), "|"); got != test.client {
			t.Errorf("%d: the client gets %q, want %q", test.status, got, test.client)
		}
	}
}

// The server gets the method and the path of the request, and those headers that the filter lists.
func TestExternalAuthAsks(t *testing.T) {
	asked := 0
	x := newBrowser("Cookie: a=1|Authorization: Bearer t|X-Secret: s|X-Tenant: t|Content-Length: 5|Connection: close|X-Forwarded-For: 198.51.100.1")
	last, req := x.answering(200, "", &asked)
	if withServer(t, externalEntry()).Answer(x) {
		t.Fatalf("it answered %q", x.answer)
	}
	if last.Method != "POST" || last.Path != "/check/a?b=c&d" || last.Host != "" || last.Patience != time.Second {
		t.Errorf("it asked %+v", last)
	}
	want := []string{"Authorization: Bearer t", "Cookie: a=1", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Host: app.test:8080", "X-Forwarded-Proto: http", "X-Request-Id: " + string(x.RequestID()), "X-Tenant: t"}
	if got := shown(&req.Head); !reflect.DeepEqual(got, want) {
		t.Errorf("the server got\n%q\nwant\n%q", got, want)
	}
	x = newExchange("CONNECT", "/chat")
	last, _ = x.answering(200, "", &asked)
	if withServer(t, externalEntry()).Answer(x); last.Method != "GET" {
		t.Errorf("for a WebSocket over HTTP/2 it asked by %s", last.Method)
	}
}

// Trailers of a client cannot claim what the server decides.
func TestExternalAuthDropsTrailers(t *testing.T) {
	for _, names := range [][]string{nil, {"X-User"}} {
		var trailers message.Head
		trailers.AddField("X_User", "me")
		withServer(t, externalEntry(names...)).EditTrailers(&trailers)
		if got := shown(&trailers); len(got) > 0 {
			t.Errorf("%v: the endpoint gets the trailers %q", names, got)
		}
	}
}
