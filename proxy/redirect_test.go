package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/filter"
)

// redirected redirects plain requests to TLS, except for app, which it serves over plain HTTP.
const redirected = `
listeners: {web: {address: '@0', protocol: http}, tls: {address: '@1', protocol: tls}}
certificates: [{self_signed: {hosts: ["*.example.org"]}}]
routes:
  - {name: up, listeners: [web], redirect: https}
  - {name: ported, listeners: [web], hosts: [ported.example.org], redirect: {port: 8443, status: 301}}
  - {name: app, listeners: [web], hosts: [app.example.org], backend: app}
  - {name: safe, listeners: [tls], hosts: [app.example.org], hsts: 8760h, backend: app}
  - {name: moved, listeners: [tls], hosts: [moved.example.org], redirect: {port: 8443, status: 307}, hsts: {max_age: 17520h, include_subdomains: true, preload: true}}
  - {name: took, listeners: [tls, web], hosts: [took.example.org], hsts: 0s, backend: app}
  - {name: silent, listeners: [tls], hosts: [silent.example.org], backend: app}
backends: {app: {endpoints: ['@app']}}
`

// challengesByToken answers HTTP-01 challenges for the tokens of a host.
type challengesByToken struct {
	mu    sync.Mutex
	known map[string]string // by host and token
	asked []string
	block chan struct{} // nil: a look-up does not wait
}

func (c *challengesByToken) HTTP01(host, token string) (string, bool) {
	if c.block != nil {
		<-c.block
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, host+" "+token)
	a, ok := c.known[host+" "+token]
	return a, ok
}

// OrdersHTTP01 is true for the hosts with tokens, and for ordered.example.org.
func (c *challengesByToken) OrdersHTTP01(host string) bool {
	return host == "app.example.org" || host == "unrouted.example.org" || host == "ordered.example.org"
}

func (c *challengesByToken) TLSALPN01(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return nil, io.EOF
}

// newRedirected serves redirected, with pending tokens.
func newRedirected(t testing.TB, block chan struct{}) (*rig, *endpoint, *challengesByToken) {
	app := newEndpoint(t)
	r := newRig(t, plain, nil, "@app", app.address)
	c := &challengesByToken{known: map[string]string{"app.example.org tok-EN_1": "tok-EN_1.thumb", "unrouted.example.org tok": "tok.thumb"}, block: block}
	r.adjust(func(p *Proxy) { p.Challenges = c })
	r.load(redirected, nil, "@app", app.address)
	return r, app, c
}

func TestRedirects(t *testing.T) {
	r, app, _ := newRedirected(t, nil)
	c := r.dial("web") // after each response, except those that end it, the connection is unchanged
	f := func(request string, status int, location string) {
		t.Helper()
		c.write(request)
		resp, body := c.response(strings.Fields(request)[0])
		if got := resp.Header.Get("Location"); resp.StatusCode != status || got != location || resp.Header.Get("Strict-Transport-Security") != "" {
			t.Errorf("%q is answered with %d to %q, not %d to %q", request, resp.StatusCode, got, status, location)
		}
		if head := strings.HasPrefix(request, "HEAD"); (body == "") != head || len(body) > 100 || resp.Close != strings.Contains(request, "HTTP/1.0") {
			t.Errorf("%q is answered with %q, and an end: %t", request, body, resp.Close)
		}
		r.record().want(t, "kind", "http", "status", status, "reason", "redirect", "error", nil, "backend", nil, "endpoint", nil)
	}
	host := func(h string) string { return "GET /a HTTP/1.1\r\nHost: " + h + "\r\n\r\n" }
	f(host("a.example.org"), 308, "https://a.example.org/a")
	f(host("a.example.org:80"), 308, "https://a.example.org/a")
	f(host("A.Example.Org.:8080"), 308, "https://A.Example.Org./a")
	f(host("ported.example.org:80"), 301, "https://ported.example.org:8443/a")
	f(host("192.0.2.1:80"), 308, "https://192.0.2.1/a")
	f(host("[2001:db8::1]"), 308, "https://[2001:db8::1]/a")
	f(host("[2001:db8::1]:80"), 308, "https://[2001:db8::1]/a")
	f(host("a:"), 308, "https://a/a")
	target := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n" }
	f(target("/"), 308, "https://a/")
	f(target("/?"), 308, "https://a/?")
	f(target("/a//b;c/%2F"), 308, "https://a/a//b;c/%2F")
	f(target("/a?d=%0d%0aX:%20y&e=https://f&%"), 308, "https://a/a?d=%0d%0aX:%20y&e=https://f&%")
	f(target("//evil.example/"), 308, "https://a//evil.example/")
	f(target("/@evil.example"), 308, "https://a/@evil.example")
	f(target("/.well-known/acme-challengeX/a"), 308, "https://a/.well-known/acme-challengeX/a")
	f(target("/.well-known/acme-challenge"), 308, "https://a/.well-known/acme-challenge")
	f("GET http://b.example.org:80/x?y HTTP/1.1\r\nHost: b.example.org:80\r\n\r\n", 308, "https://b.example.org/x?y")
	f("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 308, "https://a")
	f("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n", 308, "https://a/a")
	f("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", 308, "https://a/a")
	f("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 308, "https://a/")
	f("GET /a HTTP/1.0\r\nHost: a\r\n\r\n", 308, "https://a/a")
	c.wantEnd(false)
	app.untouched()
	// weir may still be counting the last responses, but the names of the routes are right.
	if n := r.counter("weir_http_requests_total", "route", "up", "backend", "", "code", "308"); n < 20 {
		t.Errorf("%v redirects are counted", n)
	}
	if n := r.counter("weir_http_requests_total", "route", "ported", "backend", "", "code", "301"); n != 1 {
		t.Errorf("%v redirects are counted", n)
	}
}

// If a load balancer terminates TLS and reports that, weir does not redirect again and again.
func TestRedirectsBehindTLS(t *testing.T) {
	text := strings.NewReplacer("listeners: [web], redirect: https}", "listeners: [web], redirect: https, backend: app}",
		"protocol: http}", "protocol: http, trust_forwarded: ['@sender']}").Replace(redirected)
	endpoint := newHandler(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("X-Forwarded-Proto")) })
	f := func(sender, fields string, status int, answer string) {
		t.Helper()
		r := newRig(t, text, nil, "@app", endpoint, "@sender", sender)
		c := r.dial("web")
		c.write("GET /a HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")
		c.wantResponse(status, answer)
		c.write("GET /a HTTP/1.1\r\nHost: a\r\n\r\n") // weir keeps nothing from the previous request
		c.wantResponse(308, "*")
	}
	f("127.0.0.0/8", "X-Forwarded-Proto: https\r\n", 200, "https")
	f("127.0.0.0/8", "x-forwarded-proto: HTTPS\r\n", 200, "HTTPS")
	f("127.0.0.0/8", "X-Forwarded-Proto: wss\r\n", 200, "wss")
	f("127.0.0.0/8", "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: https\r\n", 200, "https")
	for _, fields := range []string{"", "X-Forwarded-Proto: http\r\n", "X-Forwarded-Proto: https, http\r\n", "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\n",
		"X-Forwarded-Proto: ws\r\n", "X-Forwarded-Proto:\r\n", "X-Forwarded-Scheme: https\r\n", "X_Forwarded_Proto: https\r\n", "Forwarded: proto=https\r\n"} {
		f("127.0.0.0/8", fields, 308, "*")
	}
	f("192.0.2.0/24", "X-Forwarded-Proto: https\r\n", 308, "*") // the sender is not trusted

	text = strings.Replace(text, "trust_forwarded: ['@sender']}", "proxy_protocol: edge}", 1) + "proxy_protocol: {edge: {rules: [{from: [10.0.0.0/8], header: require}]}}\n"
	// weir ignores what a sender says about the scheme if trust lists only other kinds.
	for _, trust := range []string{"", "trust_forwarded: ['@sender'], trust: [for, host, port, client_cert, other], "} {
		r := newRig(t, strings.Replace(text, "proxy_protocol: edge}", trust+"proxy_protocol: edge}", 1), nil, "@app", endpoint, "@sender", "0.0.0.0/0")
		for said, status := range map[bool]int{true: 200, false: 308} {
			c := r.introduced("web", header.Header{Version: 2, TLVs: header.TLVs{SSL: &header.SSL{TLS: said}}})
			c.write("GET /a HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n\r\n")
			c.wantResponse(status, "*")
		}
	}
}

func TestRedirectsWithoutHost(t *testing.T) {
	r, _, _ := newRedirected(t, nil)
	for _, request := range []string{"GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"} {
		c := r.dial("web")
		c.write(request)
		if resp := c.wantResponse(400, "*"); resp.Header.Get("Location") != "" || !resp.Close {
			t.Errorf("%q is answered with %v", request, resp)
		}
		c.wantEnd(false)
		r.record().want(t, "status", 400, "reason", "no_host", "route", "up")
	}
}

// A response arrives complete, whatever part of a body is still on its way.
func TestRedirectsOfUploads(t *testing.T) {
	r, _, _ := newRedirected(t, nil)
	c := r.dial("web")
	sent := make(chan error, 1)
	c.write("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4194304\r\n\r\n")
	go func() {
		_, err := c.Conn.Write(make([]byte, 4<<20))
		sent <- err
	}()
	if err := next(t, sent, "end of an upload"); err != nil {
		t.Errorf("the upload broke off: %v", err)
	}
	if resp := c.wantResponse(308, "*"); !resp.Close {
		t.Error("the connection goes on with half a body")
	}
	c = r.dial("web")
	c.write("POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	c.wantResponse(308, "*")
}

func TestChallengesOverHTTP(t *testing.T) {
	r, app, challenges := newRedirected(t, nil)
	c := r.dial("web")
	request := func(method, host, path string) {
		c.write("%s %s HTTP/1.1\r\nHost: %s\r\n\r\n", method, path, host)
	}
	answered := func(method, host, path, want string) {
		t.Helper()
		request(method, host, path)
		resp, body := c.response(method)
		if resp.StatusCode != 200 || body != want || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") || resp.Close {
			t.Errorf("%s of %s gets %v with %q", method, path, resp, body)
		}
		r.record().want(t, "kind", "http", "status", 200, "reason", "acme_challenge", "error", nil, "route", nil, "target", path)
	}
	const path = "/.well-known/acme-challenge/"
	answered("GET", "app.example.org", path+"tok-EN_1", "tok-EN_1.thumb")
	answered("GET", "APP.example.org.:80", path+"tok-EN_1", "tok-EN_1.thumb")
	answered("GET", "app.example.org", path+"tok-EN_1?a=b", "tok-EN_1.thumb")
	answered("HEAD", "app.example.org", path+"tok-EN_1", "")
	answered("GET", "unrouted.example.org", path+"tok", "tok.thumb") // weir answers it although the route redirects

	refused := func(method, host, path string) {
		t.Helper()
		request(method, host, path)
		if resp, _ := c.response(method); resp.StatusCode != 404 || resp.Header.Get("Location") != "" || resp.Close {
			t.Errorf("%s of %s gets %v", method, path, resp)
		}
		r.record().want(t, "status", 404, "reason", "no_challenge", "route", "up")
	}
	challenges.mu.Lock()
	challenges.asked = nil
	challenges.mu.Unlock()
	refused("GET", "ordered.example.org", path+"unknown")
	refused("POST", "unrouted.example.org", path+"tok")
	refused("GET", "unrouted.example.org", path)
	refused("GET", "unrouted.example.org", path+"tok/")
	refused("GET", "unrouted.example.org", path+"a/tok")
	refused("GET", "unrouted.example.org", path+"tok%2e")
	refused("GET", "unrouted.example.org", path+"to.k")
	refused("GET", "unrouted.example.org", path+strings.Repeat("t", 256+1))
	challenges.mu.Lock()
	if !slices.Equal(challenges.asked, []string{"ordered.example.org unknown"}) {
		t.Errorf("asked for %q", challenges.asked)
	}
	challenges.mu.Unlock()

	// Challenges of hosts for which weir orders no certificate belong to others, who may follow a redirect.
	for _, token := range []string{"unknown", "a/tok", ""} {
		request("GET", "a.example.org", path+token)
		if resp, _ := c.response("GET"); resp.StatusCode != 308 || resp.Header.Get("Location") != "https://a.example.org"+path+token {
			t.Errorf("a challenge of another ACME client gets %v", resp)
		}
		r.record().want(t, "status", 308, "reason", "redirect", "route", "up")
	}

	// Requests with an unknown token follow the route of their host.
	request("GET", "app.example.org", path+"of-the-backend")
	serveOnce(app.accept(), ok("its own"))
	c.wantResponse(200, "its own")
	r.record().want(t, "route", "app", "reason", nil)
	if n := r.counter("weir_http_requests_total", "route", "", "backend", "", "code", "200"); n != 5 {
		t.Errorf("%v answers to challenges are counted", n)
	}
}

// Weir does not look up challenges over TLS: authorities do not use it. A weir without ACME entries redirects
// all challenges.
func TestChallengesAreForPlainHTTP(t *testing.T) {
	r, _, challenges := newRedirected(t, nil)
	c := r.dialTLS("tls", "moved.example.org", nil)
	c.write("GET /.well-known/acme-challenge/tok HTTP/1.1\r\nHost: moved.example.org\r\n\r\n")
	c.wantResponse(307, "*")
	r.record().want(t, "route", "moved", "reason", "redirect")
	if len(challenges.asked) > 0 {
		t.Errorf("asked for %q", challenges.asked)
	}
	none := newRig(t, redirected, nil, "@app", "127.0.0.1:1")
	c = none.dial("web")
	c.write("GET /.well-known/acme-challenge/tok HTTP/1.1\r\nHost: a\r\n\r\n")
	c.wantResponse(308, "*")
	none.record().want(t, "reason", "redirect")
}

// A slow look-up delays only its own client, and does not prevent a cut of the connection.
func TestSlowChallenges(t *testing.T) {
	block := make(chan struct{})
	r, app, _ := newRedirected(t, block)
	slow := r.dial("web")
	slow.write("GET /.well-known/acme-challenge/tok HTTP/1.1\r\nHost: unrouted.example.org\r\n\r\n")
	slow.write("GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
	var waiting *conn.Conn
	eventually(t, "it waits", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for waiting = range r.open {
			return nil
		}
		return errors.New("nobody is there")
	})
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: app.example.org\r\n\r\n")
	serveOnce(app.accept(), ok("served"))
	c.wantResponse(200, "served")
	close(block)
	slow.wantResponse(200, "tok.thumb")
	slow.wantResponse(308, "*")
	waiting.Cut()
	slow.wantEnd(false)
}

func TestHSTS(t *testing.T) {
	r, app, _ := newRedirected(t, nil)
	served := func(c *peer, host, response string) []string {
		t.Helper()
		c.write("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		s := app.accept()
		serveOnce(s, response)
		resp, _ := c.response("GET")
		s.Close() // before the next request, weir must notice that the connection is idle
		return resp.Header.Values("Strict-Transport-Security")
	}
	f := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("Strict-Transport-Security is %q, not %q", got, want)
		}
	}
	const said = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nStrict-Transport-Security: max-age=1\r\nstrict-transport-security: max-age=2; preload\r\n\r\n"
	c := r.dialTLS("tls", "app.example.org", nil)
	f(served(c, "app.example.org", ok("")), "max-age=31536000")
	f(served(c, "app.example.org", said), "max-age=31536000")
	f(served(c, "app.example.org", "HTTP/1.1 304 Not Modified\r\n\r\n"), "max-age=31536000")
	f(served(c, "app.example.org", "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"), "max-age=31536000")
	f(served(r.dialTLS("tls", "took.example.org", nil), "took.example.org", said), "max-age=0")
	f(served(r.dialTLS("tls", "silent.example.org", nil), "silent.example.org", said), "max-age=1", "max-age=2; preload")
	f(served(r.dial("web"), "took.example.org", ok(""))) // clients ignore the header over plain HTTP
	f(served(r.dial("web"), "took.example.org", said), "max-age=1", "max-age=2; preload")

	c.write("GET / HTTP/1.1\r\nHost: app.example.org\r\n\r\n")
	s := app.accept()
	s.head()
	s.write("HTTP/1.1 103 Early Hints\r\n\r\n")
	if head := c.head(); strings.Contains(head, "Strict") {
		t.Errorf("it stands in %q", head)
	}
	s.write("nonsense\r\n\r\n")
	f(c.wantResponse(502, "*").Header.Values("Strict-Transport-Security"), "max-age=31536000") // generated by weir

	c = r.dialTLS("tls", "moved.example.org", nil)
	c.write("GET / HTTP/1.1\r\nHost: moved.example.org\r\n\r\n")
	resp := c.wantResponse(307, "*")
	f(resp.Header.Values("Strict-Transport-Security"), "max-age=63072000; includeSubDomains; preload")
	if got := resp.Header.Get("Location"); got != "https://moved.example.org:8443/" {
		t.Errorf("redirected to %q", got)
	}
	c.write("GET / HTTP/1.1\r\nHost: elsewhere.example.org\r\n\r\n")
	f(c.wantResponse(404, "*").Header.Values("Strict-Transport-Security"))
}

func TestHSTSAllocatesNothing(t *testing.T) {
	s := &exchange{clientSide: clientSide{security: newSecurity(new(tls.Conn), "", nil)}}
	s.route = &Route{filters: filter.Compile(&config.Route{HSTS: new(config.HSTS)}, nil)}
	n := testing.AllocsPerRun(100, func() {
		s.res.Reset()
		s.res.AddField("strict-transport-security", "max-age=1")
		s.route.filters.EditResponse(s, &s.res)
	})
	if n != 0 || string(s.res.GetName("strict-transport-security")) != "max-age=0" {
		t.Errorf("it allocates %v times, and says %q", n, s.res.GetName("strict-transport-security"))
	}
}
