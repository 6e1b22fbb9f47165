package filter

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/extauthz"
	"github.com/weirproxy/weir/proxy/message"
)

func grpcEntry(headers ...string) *config.Auth {
	return &config.Auth{Name: "httproute/shop/web/0/auth", External: &config.ExternalAuth{Backend: "b", GRPC: true, Host: "auth", MaxBody: 4, Timeout: time.Second, Request: headers}}
}

// part is a field of a message: text, or other fields.
func part(field protowire.Number, text string, parts ...[]byte) []byte {
	b := []byte(text)
	for _, p := range parts {
		b = append(b, p...)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
}

func number(field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), n)
}

// option is a HeaderValueOption "name: value", with an action in append_action; 10: append.
func option(line string, action uint64) []byte {
	name, value, _ := strings.Cut(line, ": ")
	b := part(1, "", part(1, name), part(2, value))
	if action == 10 {
		return append(b, part(2, "", number(1, 1))...)
	}
	return append(b, number(3, action)...)
}

func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// answeringCall makes the server of x answer a call with the message. status is the grpc-status.
func (x *exchange) answeringCall(status string, body []byte) (asked *Question, req *message.Request) {
	asked, req = new(Question), new(message.Request)
	x.server = func(q *Question) error {
		*asked = *q
		req.Reset()
		q.Write(req)
		res := &message.Response{Status: 200}
		res.AddField("Content-Type", "application/grpc+proto")
		res.Trailers.AddField("Grpc-Status", status)
		res.Trailers.AddField("Grpc-Message", "why")
		q.Read(res, body)
		return nil
	}
	return asked, req
}

func TestGRPCAuthDecides(t *testing.T) {
	const sent = "X-User: me|x_user: me|Authorization: Bearer t|X-There: 1|X-Other: kept"
	ok := func(parts ...[]byte) []byte { return append(part(1, ""), part(3, "", parts...)...) }
	denied := func(parts ...[]byte) []byte {
		return append(part(1, "", number(1, 7), part(2, "no")), part(2, "", parts...)...)
	}
	const unchanged = "Authorization: Bearer t|X-Other: kept|X-There: 1|X-User: me|x_user: me"
	for name, test := range map[string]struct {
		message  []byte
		answer   string
		endpoint string // what the endpoint gets
		client   string // what the client gets, besides headers of the endpoint
	}{
		"only the status":                       {message: part(1, ""), endpoint: unchanged},
		"a header replaces those of the client": {message: ok(part(2, "", option("x-user: ada", 0))), endpoint: "Authorization: Bearer t|X-Other: kept|X-There: 1|x-user: ada"},
		"several values":                        {message: ok(part(2, "", option("x-user: ada", 2)), part(2, "", option("x-user: eve", 2))), endpoint: "Authorization: Bearer t|X-Other: kept|X-There: 1|x-user: ada|x-user: eve"},
		"append":                                {message: ok(part(2, "", option("x-there: 2", 10))), endpoint: "Authorization: Bearer t|X-Other: kept|X-There: 1|X-User: me|x-there: 2|x_user: me"},
		"add if absent":                         {message: ok(part(2, "", option("x-there: 2", 1)), part(2, "", option("x-new: 2", 1))), endpoint: "Authorization: Bearer t|X-Other: kept|X-There: 1|X-User: me|x-new: 2|x_user: me"},
		"overwrite if it exists":                {message: ok(part(2, "", option("x-there: 2", 3)), part(2, "", option("x-new: 2", 3))), endpoint: "Authorization: Bearer t|X-Other: kept|X-User: me|x-there: 2|x_user: me"},
		"an empty value removes":                {message: ok(part(2, "", option("x-user: ", 0))), endpoint: "Authorization: Bearer t|X-Other: kept|X-There: 1"},
		"remove":                                {message: ok(part(5, "authorization"), part(5, "X-User"), part(5, "host"), part(5, ":path"), part(5, "content-length")), endpoint: "X-Other: kept|X-There: 1"},
		"headers for the client":                {message: ok(part(6, "", option("set-cookie: a=1", 0)), part(6, "", option("set-cookie: b=2", 0)), part(6, "", option("x-theirs: 2", 0)), part(6, "", option("x-new: 3", 3))), endpoint: unchanged, client: "Set-Cookie: old|set-cookie: a=1|set-cookie: b=2|x-theirs: 2"},
		"the query":                             {message: ok(part(8, "a")), answer: "503 auth_unavailable auth: the server that decides changes the query of the request, which weir does not support"},
		"framing":                               {message: ok(part(2, "", option("content-length: 1", 0))), answer: `503 auth_unavailable auth: the server that decides sets the header "content-length", which describes`},
		"a pseudo-header":                       {message: ok(part(2, "", option(":path: /x", 0))), answer: `503 auth_unavailable auth: the server that decides sets the header "`},
		"a second line":                         {message: ok(part(2, "", option("x-a: b\r\nx-c: d", 0))), answer: `503 auth_unavailable auth: the server that decides sets the header "x-a", which has a value that HTTP headers cannot have`},
		"a second line for the client":          {message: ok(part(6, "", option("x-a: b\nx-c: d", 0))), answer: `503 auth_unavailable auth: the server that decides sets the header "x-a", which has a value`},
		"refused":                               {message: part(1, "", number(1, 16)), answer: "403 auth_denied "},
		"refused with a page":                   {message: denied(part(1, "", number(1, 302)), part(2, "", option("location: /in", 0)), part(3, "page")), answer: "302 auth_denied page", client: "location: /in"},
		"refused without content":               {message: denied(part(1, "", number(1, 304)), part(3, "page")), answer: "304 auth_denied "},
		"refused as an informational response":  {message: denied(part(1, "", number(1, 101))), answer: "403 auth_denied "},
		"refused with a bad header":             {message: denied(part(2, "", option("transfer-encoding: x", 0))), answer: "503 auth_unavailable auth: the server that decides sets the header"},
		"nothing":                               {message: []byte{}, answer: "503 auth_unavailable auth: the response of the server has neither"},
		"another message":                       {message: []byte("hello"), answer: "503 auth_unavailable auth: the response of the server is no CheckResponse"},
	} {
		c := withServer(t, grpcEntry())
		x := newBrowser(sent)
		x.answeringCall("0", framed(test.message))
		if answered := c.Answer(x); answered != (test.answer != "") || !strings.HasPrefix(x.answer, test.answer) {
			t.Errorf("%s: answered %t %q, want %q", name, answered, x.answer, test.answer)
			continue
		}
		if test.answer == "" {
			c.EditRequest(x)
			x.req.Drop(message.XRequestID)
			if got := strings.Join(shown(&x.req.Head), "|"); got != test.endpoint {
				t.Errorf("%s: the endpoint gets %q, want %q", name, got, test.endpoint)
			}
			if test.client != "" {
				addLines(&x.res.Head, "Set-Cookie", "old", "X-Theirs", "1")
			}
			c.EditResponse(x, &x.res)
		}
		if got := strings.Join(shown(&x.res.Head), "|"); got != test.client {
			t.Errorf("%s: the client gets %q, want %q", name, got, test.client)
		}
	}
}

// A call that fails, or that has no message, lets no request pass.
func TestGRPCAuthFails(t *testing.T) {
	allowed := part(1, "")
	for _, test := range []struct{ status, body, want string }{
		{"0", string(framed(allowed)), ""},
		{"0", "", "no message"},
		{"0", string(framed(allowed)) + "\x00\x00\x00\x00\x00", "several"},
		{"0", "\x01" + string(framed(allowed)[1:]), "a compressed one"},
		{"14", string(framed(allowed)), `the gRPC status "14": "why"`},
		{"", string(framed(allowed)), `the gRPC status ""`},
	} {
		x := newBrowser("")
		x.answeringCall(test.status, []byte(test.body))
		if answered := withServer(t, grpcEntry()).Answer(x); answered != (test.want != "") || !strings.Contains(x.answer, test.want) {
			t.Errorf("%q %q: answered %t %q, want %q", test.status, test.body, answered, x.answer, test.want)
		}
	}
	for _, res := range []message.Response{{Status: 404}, {Status: 200}} {
		x := newBrowser("")
		x.server = func(q *Question) error { q.Read(&res, framed(allowed)); return nil }
		if !withServer(t, grpcEntry()).Answer(x) || !strings.HasPrefix(x.answer, "503 auth_unavailable auth: the server that decides answered ") {
			t.Errorf("%d: %q", res.Status, x.answer)
		}
	}
	x := newBrowser("")
	x.server = func(*Question) error { return errors.New("no route") }
	if !withServer(t, grpcEntry()).Answer(x) || x.answer != "503 auth_unavailable auth: no route" {
		t.Errorf("%q", x.answer)
	}
}

// The server gets the headers of the client that describe the request, and what weir knows of the
// client; with a list only the headers of the list.
func TestGRPCAuthAsks(t *testing.T) {
	const sent = "Cookie: a=1|Authorization: Bearer t|Content-Type: text/x|Connection: close|X-Forwarded-For: 198.51.100.1|X-Tenant: t"
	for _, list := range [][]string{nil, {"X-Tenant", "x-forwarded-for"}} {
		x := newBrowser(sent)
		x.body = []byte("body")
		asked, req := x.answeringCall("0", framed(part(1, "")))
		if withServer(t, grpcEntry(list...)).Answer(x) {
			t.Fatalf("it answered %q", x.answer)
		}
		if asked.Method != "POST" || asked.Path != "/envoy.service.auth.v3.Authorization/Check" || asked.Host != "auth" || asked.Patience != time.Second || !asked.Whole || x.held != 4 {
			t.Errorf("it asked %+v", asked)
		}
		id := string(x.RequestID())
		if got := strings.Join(shown(&req.Head), "|"); got != "Content-Type: application/grpc|Grpc-Timeout: 1000m|X-Request-Id: "+id || !req.AcceptsTrailers || !req.Idempotent {
			t.Errorf("the call has %q", got)
		}
		want := extauthz.Request{ID: id, Method: "POST", Path: "/a?b=c&d", Host: "app.test:8080", Scheme: "http", Protocol: "HTTP/1.1", Received: x.started,
			Source: netip.MustParseAddrPort("192.0.2.1:1"), Size: x.req.Length, Body: x.body, Headers: []extauthz.Header{{Name: "x-tenant", Value: "t"}, {Name: "x-forwarded-for", Value: "192.0.2.1"}}}
		if list == nil {
			want.Headers = append(want.Headers, extauthz.Header{Name: "cookie", Value: "a=1"}, extauthz.Header{Name: "authorization", Value: "Bearer t"}, extauthz.Header{Name: "content-type", Value: "text/x"},
				extauthz.Header{Name: "x-forwarded-proto", Value: "http"}, extauthz.Header{Name: "x-forwarded-host", Value: "app.test:8080"}, extauthz.Header{Name: "x-request-id", Value: id})
		}
		if got := framed(want.Append(nil)); string(asked.Body) != string(got) {
			t.Errorf("%v: the message is\n%q\nwant\n%q", list, asked.Body, got)
		}
	}
	x := newBrowser(sent)
	x.body = []byte("longer")
	if !withServer(t, grpcEntry()).Answer(x) {
		t.Error("a body that is too large does not end the request")
	}
}

// Trailers of a client cannot claim what the server decides.
func TestGRPCAuthDropsTrailers(t *testing.T) {
	var trailers message.Head
	trailers.AddField("X_User", "me")
	withServer(t, grpcEntry()).EditTrailers(&trailers)
	if got := shown(&trailers); len(got) > 0 {
		t.Errorf("the endpoint gets the trailers %q", got)
	}
}
