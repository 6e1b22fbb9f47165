package proxy

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
)

// fields returns the field lines of a head, with lower-case names, in order of appearance.
func fields(head, name string) (values []string) {
	for _, line := range strings.Split(head, "\r\n")[1:] {
		if n, v, ok := strings.Cut(line, ": "); ok && strings.EqualFold(n, name) {
			values = append(values, v)
		}
	}
	return values
}

// forwarded sends a request through a fresh proxy and returns the head that the endpoint got.
func forwarded(t *testing.T, trust, request string) string {
	t.Helper()
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(plain, "protocol: http}", "protocol: http, trust_forwarded: ["+trust+"]}", 1), nil, "@app", e.address)
	c := r.dial("web")
	c.write(request)
	s := e.accept()
	head := s.head()
	s.write("HTTP/1.1 204 No Content\r\n\r\n")
	c.response("GET")
	return head
}

var vouched = []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Real-IP", "Forwarded", "X-Request-Id",
	"X-Forwarded-Server", "X-Forwarded-Prefix", "X-Forwarded-Ssl", "X-Forwarded-Scheme", "X-Scheme"}

// Weir forwards no assertions of an untrusted client about itself, in any spelling.
func TestForwardingFieldsOfStrangers(t *testing.T) {
	var request strings.Builder
	request.WriteString("GET / HTTP/1.1\r\nHost: a.example.org:81\r\n")
	for _, name := range vouched {
		for _, spelling := range []string{name, strings.ToLower(name), strings.ToUpper(name), strings.ReplaceAll(name, "-", "_"),
			strings.ReplaceAll(name, "-", "."), strings.Replace(name, "-", "_", 1), strings.ToUpper(strings.ReplaceAll(name, "-", "_"))} {
			request.WriteString(spelling + ": forged\r\n")
		}
	}
	request.WriteString("Cookie: a=b\r\n\r\n")
	head := forwarded(t, "192.0.2.0/24", request.String())
	if strings.Contains(head, "forged") {
		t.Errorf("forged fields got through: %q", head)
	}
	f := func(name string, want ...string) {
		t.Helper()
		if got := fields(head, name); !slices.Equal(got, want) {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	f("X-Forwarded-For", "127.0.0.1")
	f("X-Forwarded-Proto", "http")
	f("X-Forwarded-Host", "a.example.org:81")
	f("X-Real-IP", "127.0.0.1")
	f("Forwarded", `for=127.0.0.1;host="a.example.org:81";proto=http`)
	f("Host", "a.example.org:81")
	f("Cookie", "a=b")
	if id := fields(head, "X-Request-Id"); len(id) != 1 || len(id[0]) != 32 {
		t.Errorf("X-Request-Id is %q", id)
	}
	f("X-Forwarded-Port", "81")
	f("X-Forwarded-Scheme", "http")
	f("X-Scheme", "http")
}

// weir appends to the addresses from a trusted sender, keeps the headers that trust lists,
// and writes all others itself.
func TestForwardingFieldsOfTheTrusted(t *testing.T) {
	head := forwarded(t, "127.0.0.0/8, 192.0.2.3/32", "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nx-forwarded-for: 192.0.2.2, 192.0.2.3\r\n"+
		"Forwarded: for=192.0.2.1;proto=https\r\nX-Forwarded-Proto: https\r\nX-Request-Id: mine\r\nX-Forwarded-Prefix: /p\r\nX_Forwarded_For: forged\r\n\r\n")
	f := func(name string, want ...string) {
		t.Helper()
		if got := fields(head, name); !slices.Equal(got, want) {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	f("X-Forwarded-For", "192.0.2.1, 192.0.2.2, 192.0.2.3, 127.0.0.1")
	f("Forwarded", `for=192.0.2.2;host="a";proto=https`)
	f("X-Forwarded-Proto", "https")
	f("X-Forwarded-Host", "a")
	f("X-Real-IP", "192.0.2.2")
	f("X-Request-Id", "mine")
	f("X-Forwarded-Prefix")
	if strings.Contains(head, "forged") {
		t.Error("a misspelt field got through")
	}
	head = forwarded(t, "127.0.0.0/8", "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	f("X-Forwarded-For", "127.0.0.1")
	f("X-Forwarded-Proto", "http")
	if id := fields(head, "X-Request-Id"); len(id) != 1 || len(id[0]) != 32 {
		t.Errorf("X-Request-Id is %q", id)
	}
}

func TestRequestIDsDiffer(t *testing.T) {
	a, b := filter.RequestID(), filter.RequestID()
	if a == b || strings.Trim(string(a[:])+string(b[:]), "0123456789abcdef") != "" {
		t.Errorf("%s and %s", a, b)
	}
}

// rewritten returns the result of rewrite for a request from client.
func rewritten(t *testing.T, client, override, request string, h header.Header) *message.Request {
	t.Helper()
	s := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: &edge{forwarding: filter.NewForwarding(new(config.Listener))}, origin: &conn.Origin{Header: &h, Local: netip.MustParseAddrPort("203.0.113.1:443")}}}
	if client != "" {
		s.origin.Client = netip.MustParseAddrPort(client)
		s.client = s.origin.Client
	}
	host, rest, _ := strings.Cut(request, "\n")
	if host != "" {
		s.req.AddField("Host", host)
		s.req.Host = s.req.ValueSpan(0)
	}
	for _, line := range strings.Split(rest, "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			s.req.AddField(name, value)
		}
	}
	s.rewrite(override)
	return &s.req
}

func TestRewrite(t *testing.T) {
	f := func(req *message.Request, pairs ...string) {
		t.Helper()
		for i := 0; i < len(pairs); i += 2 {
			if got := string(req.GetName(pairs[i])); got != pairs[i+1] {
				t.Errorf("%s is %q, not %q", pairs[i], got, pairs[i+1])
			}
		}
	}
	none := header.Header{}
	f(rewritten(t, "[2001:db8::1]:1234", "", "a\n", none), "x-forwarded-for", "2001:db8::1", "x-real-ip", "2001:db8::1",
		"forwarded", `for="[2001:db8::1]";host="a";proto=http`, "x-forwarded-port", "80")
	f(rewritten(t, "[fe80::1%eth0]:1", "", "a\n", none), "x-forwarded-for", "fe80::1", "forwarded", `for="[fe80::1]";host="a";proto=http`)
	f(rewritten(t, "192.0.2.1:1", "", "[2001:db8::2]:8080\n", none), "forwarded", `for=192.0.2.1;host="[2001:db8::2]:8080";proto=http`)
	// The scheme is that of the sender of the PROXY header, if the header contains it.
	f(rewritten(t, "192.0.2.1:1", "", "a\n", header.Header{TLVs: header.TLVs{SSL: &header.SSL{TLS: true}}}),
		"x-forwarded-proto", "https", "forwarded", `for=192.0.2.1;host="a";proto=https`)
	f(rewritten(t, "192.0.2.1:1", "", "a\n", header.Header{TLVs: header.TLVs{SSL: &header.SSL{}}}), "x-forwarded-proto", "http")
	// If the endpoint gets another Host, the other fields keep the host that the client requested.
	f(rewritten(t, "192.0.2.1:1", "inside", "a\nX: y", none), "host", "inside", "x-forwarded-host", "a", "forwarded", `for=192.0.2.1;host="a";proto=http`)
	// HTTP/1.0 without Host.
	f(rewritten(t, "192.0.2.1:1", "", "\nX: y", none), "host", "", "x-forwarded-host", "", "forwarded", "for=192.0.2.1;proto=http", "x", "y")
	if req := rewritten(t, "192.0.2.1:1", "", "\n", none); req.Find(message.Host) < 0 {
		t.Error("an HTTP/1.0 request goes on without Host")
	}
	f(rewritten(t, "192.0.2.1:1", "inside", "\n", none), "host", "inside")
	// A Unix socket's client has no address.
	unix := rewritten(t, "", "", "a\nX-Real-IP: 6.6.6.6\nX-Forwarded-Port: 6", none)
	f(unix, "x-forwarded-for", "unknown", "x-real-ip", "", "x-forwarded-port", "80", "forwarded", `for=unknown;host="a";proto=http`)
}

// X-Forwarded-Port is the port that the client used, which need not be the listener's. X-Forwarded-Scheme and
// X-Scheme have the same value as X-Forwarded-Proto.
func TestForwardedPort(t *testing.T) {
	said := header.Header{Version: 2, TLVs: header.TLVs{SSL: &header.SSL{TLS: true}}}
	f := func(public int, h header.Header, trusts filter.Trust, request, port, scheme string) {
		t.Helper()
		x := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: &edge{forwarding: filter.NewForwarding(&config.Listener{PublicPort: public})}, trusts: trusts,
			origin: &conn.Origin{Header: &h, Local: netip.MustParseAddrPort("203.0.113.1:8443"), Client: netip.MustParseAddrPort("192.0.2.1:1")}}}
		x.client = x.origin.Client
		for line := range strings.SplitSeq(request, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			x.req.AddField(name, value)
		}
		x.req.Host = x.req.ValueSpan(0)
		x.rewrite("")
		for name, want := range map[string]string{"x-forwarded-port": port, "x-forwarded-scheme": scheme, "x-scheme": scheme} {
			if got := string(x.req.GetName(name)); got != want {
				t.Errorf("public port %d, PROXY header %v, %q: %s is %q, not %q", public, h, request, name, got, want)
			}
		}
	}
	f(443, said, 0, "Host: a:81", "443", "https")
	f(0, said, 0, "Host: a:81", "8443", "https")
	f(0, header.Header{Version: 2, Local: true}, 0, "Host: a:81", "81", "http") // LOCAL: the header contains nothing about the client
	f(0, header.Header{}, 0, "Host: a:81", "81", "http")
	f(0, header.Header{}, 0, "Host: [2001:db8::1]:81", "81", "http")
	f(0, header.Header{}, 0, "Host: [2001:db8::1]", "80", "http")
	for _, none := range []string{"a", "a:", "a:0", "a:65536", "a:000081", "a:x", "a:-1"} {
		f(0, header.Header{}, 0, "Host: "+none, "80", "http")
	}
	head := forwarded(t, "192.0.2.0/24], public_port: 8444, drop_headers: [X-User", "GET / HTTP/1.1\r\nHost: a:81\r\n\r\n")
	if got := fields(head, "X-Forwarded-Port"); !slices.Equal(got, []string{"8444"}) {
		t.Errorf("X-Forwarded-Port is %q with public_port", got)
	}
	// If a trusted proxy sends the host and scheme, the port follows from them.
	f(0, header.Header{}, filter.TrustProto, "Host: a\nX-Forwarded-Proto: https", "443", "https")
	f(0, header.Header{}, filter.TrustHost, "Host: a:81\nX-Forwarded-Host: b:82", "82", "http")
	f(443, header.Header{}, filter.TrustPort, "Host: a\nX-Forwarded-Port: 8444", "8444", "http")
	// weir trusts no sender in headers that repeat another header.
	f(0, header.Header{}, filter.TrustOther|filter.TrustProto, "Host: a\nX-Scheme: forged\nX-Forwarded-Scheme: forged\nX-Forwarded-Proto: https", "443", "https")
}

func TestRewriteAllocatesNothing(t *testing.T) {
	s := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: &edge{forwarding: filter.NewForwarding(new(config.Listener))}, origin: &conn.Origin{Header: new(header.Header), Client: netip.MustParseAddrPort("192.0.2.1:1"), Local: netip.MustParseAddrPort("203.0.113.1:443")}}}
	n := testing.AllocsPerRun(100, func() {
		s.req.Reset()
		s.req.Host = s.req.StoreString("app.example.org")
		s.rewrite("")
	})
	if n != 0 {
		t.Errorf("rewriting allocates %v times", n)
	}
}

func TestHopByHop(t *testing.T) {
	head := forwarded(t, "192.0.2.0/24", "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Private, close\r\nconnection: Cookie\r\nKeep-Alive: 5\r\n"+
		"Proxy-Connection: x\r\nProxy-Authorization: x\r\nTE: trailers, deflate\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nX-Private: 1\r\nCookie: 2\r\nX-Kept: 3\r\n\r\n")
	for _, name := range []string{"Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Upgrade", "HTTP2-Settings", "X-Private", "Cookie"} {
		if got := fields(head, name); got != nil {
			t.Errorf("%s got through: %q", name, got)
		}
	}
	if got := fields(head, "X-Kept"); !slices.Equal(got, []string{"3"}) {
		t.Errorf("X-Kept is %q", got)
	}
	if got := fields(head, "TE"); !slices.Equal(got, []string{"trailers"}) {
		t.Errorf("TE is %q", got)
	}

	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 200 OK\r\nConnection: X-Private\r\nX-Private: 1\r\nKeep-Alive: 5\r\nProxy-Authenticate: x\r\nX-Kept: 1\r\nDate: x\r\nContent-Length: 0\r\n\r\n")
	if got := c.head(); got != "HTTP/1.1 200 OK\r\nX-Kept: 1\r\nDate: x\r\nContent-Length: 0\r\n\r\n" {
		t.Errorf("the client got %q", got)
	}
}

// The request reaches the endpoint as the client wrote it, except for weir's own fields.
func TestRequestIsKept(t *testing.T) {
	head := forwarded(t, "192.0.2.0/24", "GET //a/%2F/;x?q=%zz;&%00 HTTP/1.1\r\nx-B: 1\r\nhOST: A.b:81\r\nX-a:   2 \t\r\nx-B: 3\r\ntraceparent: 00-a\r\n\r\n")
	if !strings.HasPrefix(head, "GET //a/%2F/;x?q=%zz;&%00 HTTP/1.1\r\nx-B: 1\r\nhOST: A.b:81\r\nX-a: 2\r\nx-B: 3\r\ntraceparent: 00-a\r\n") {
		t.Errorf("the endpoint got %q", head)
	}
	head = forwarded(t, "192.0.2.0/24", "GET http://A.b:81/x HTTP/1.1\r\nHost: a.B:81\r\n\r\n")
	if !strings.HasPrefix(head, "GET /x HTTP/1.1\r\nHost: a.B:81\r\n") {
		t.Errorf("the endpoint got %q", head)
	}
	head = forwarded(t, "192.0.2.0/24", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
	if !strings.HasPrefix(head, "OPTIONS * HTTP/1.1\r\n") {
		t.Errorf("the endpoint got %q", head)
	}
	head = forwarded(t, "192.0.2.0/24", "GET /old HTTP/1.0\r\n\r\n")
	if !strings.HasPrefix(head, "GET /old HTTP/1.1\r\n") || !slices.Equal(fields(head, "Host"), []string{""}) {
		t.Errorf("the endpoint got %q", head)
	}
}

func TestUnixSocketClient(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, plain, nil, "@app", e.address)
	r.listen("web", "unix", filepath.Join(t.TempDir(), "s"))
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: a\r\nX-Real-IP: 6.6.6.6\r\n\r\n")
	s := e.accept()
	head := s.head()
	if !slices.Equal(fields(head, "X-Forwarded-For"), []string{"unknown"}) || fields(head, "X-Real-IP") != nil {
		t.Errorf("the endpoint got %q", head)
	}
	s.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	c.wantResponse(200, "ok")
	r.record().want(t, "client", nil, "peer", nil, "status", 200)
}
