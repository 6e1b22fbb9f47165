package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// The log of a refused handshake contains the name that the client wanted and the policy that
// refused it. Otherwise an operator cannot find the client that must be let in.
func TestRefusedHandshakesSayWhatWasAsked(t *testing.T) {
	r := newRig(t, secure, nil, "@app", refusedAddress(t))
	c := r.dial("web")
	tc := tls.Client(c.Conn, &tls.Config{ServerName: "a", InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10})
	if tc.Handshake() == nil {
		t.Error("TLS 1.0 was taken")
	}
	r.refusal().want(t, "kind", "refused", "reason", "handshake", "sni", "a", "tls_policy", "default",
		"tls_version", nil, "tls_cipher_suite", nil, "duration_seconds", nil)
	r.wantNoLog()
}

// If a connection ends before its handshake is complete, weir counts a failed handshake, also if weir first
// looks at the first bytes.
func TestNotTLSCounts(t *testing.T) {
	const passing = `
listeners: {web: {address: '@0', protocol: tls}}
routes: [{listeners: [web], hosts: [a], tls: passthrough, backend: b}]
backends: {b: {protocol: tcp, endpoints: ['@app']}}
`
	withSSH := strings.Replace(passing, "routes: [", "routes: [{listeners: [web], first_bytes: ssh, backend: b}, ", 1)
	for _, text := range []string{secure, passing, withSSH} {
		r := newRig(t, text, nil, "@app", refusedAddress(t))
		c := r.dial("web")
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		c.closeWrite()
		if got, _ := io.ReadAll(c.r); len(got) > 0 {
			t.Errorf("answered with %q", got)
		}
		r.refusal().want(t, "reason", "not_tls")
		if n := r.counter("weir_tls_handshakes_total", "listener", "web", "result", "plain_http"); n != 1 {
			t.Errorf("%v counted", n)
		}
	}
}

// held is a connection whose writes, except the first, wait until the test releases them.
type held struct {
	net.Conn
	writes int
	let    bool
	bytes  []byte
}

func (h *held) Write(p []byte) (int, error) {
	if h.writes++; h.writes == 1 {
		return h.Conn.Write(p)
	}
	if h.bytes = append(h.bytes, p...); !h.let {
		return len(p), nil
	}
	_, err := h.Conn.Write(h.bytes)
	h.bytes = nil
	return len(p), err
}

// The first request of a connection may arrive in the same piece as the end of the handshake.
func TestFirstRequestsBytesCount(t *testing.T) {
	r := newRig(t, secure, nil, "@app", newHandler(t, echo))
	h := &held{Conn: r.dial("web").Conn}
	tc := tls.Client(h, &tls.Config{ServerName: "a", InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	h.let = true
	const request = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	io.WriteString(tc, request)
	if got, err := io.ReadAll(tc); err != nil || !strings.HasSuffix(string(got), "/x ") {
		t.Errorf("got %q, %v", got, err)
	}
	if n := r.record()["bytes_in"].(int64); n < int64(len(request)) {
		t.Errorf("%d bytes_in of %d", n, len(request))
	}
}

// The number of bytes of the body is that of the client's: compressed ones, and none for HEAD. A response
// that weir generated has no status of an endpoint.
func TestBodyInTheLog(t *testing.T) {
	const text = `
listeners: {web: {address: '@0', protocol: http}}
routes:
- {listeners: [web], compress: true, backend: app, errors: [{status: [404], backend: app, path: /page}]}
- {listeners: [web], paths: [/own], respond: {body: "12345"}}
backends: {app: {endpoints: ['@app']}}
`
	body := strings.Repeat("compressible ", 1000)
	r := newRig(t, text, nil, "@app", newHandler(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		switch q.URL.Path {
		case "/missing":
			w.WriteHeader(404)
		case "/page":
			io.WriteString(w, "no such page")
		default:
			io.WriteString(w, body)
		}
	}))
	c := config.NewAccessLog()
	c.Fields = []config.LogField{"target", "body_bytes_out", "endpoint_status", "response_header:content-type", "scheme", "status"}
	r.proxy.SetLog(func(rec *accesslog.Record) { r.records <- entryOf(rec, *c) })
	f := func(method, path, fields string, sent, endpoint any) entry {
		t.Helper()
		c := r.dial("web")
		c.write(method + " " + path + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")
		c.response(method)
		e := r.record()
		e.want(t, "target", path, "endpoint_status", endpoint, "scheme", "http")
		if sent != nil {
			e.want(t, "body_bytes_out", sent)
		}
		return e
	}
	f("GET", "/", "", len(body), 200).want(t, "response_header_content_type", "text/plain")
	f("HEAD", "/", "", 0, 200)
	f("GET", "/own", "", 5, nil)
	f("HEAD", "/own", "", 0, nil)
	f("GET", "/missing", "", len("no such page"), 404)
	e := f("GET", "/", "Accept-Encoding: gzip\r\n", nil, 200)
	if n := e["body_bytes_out"].(int64); n < 50 || n > 1000 {
		t.Errorf("%d bytes of a compressed body", n)
	}
}

// If weir finds a fault in a request that it already forwards, the client gets the reason.
func TestRequestsFaultsAreNamed(t *testing.T) {
	limit := func(c *config.Config) { c.Routes[0].MaxBody = 4 }
	r := newRig(t, plain, limit, "@app", newHandler(t, echo))
	f := func(body string, status int, want string) {
		t.Helper()
		c := r.dial("web")
		c.write(postChunked + body)
		resp, got := c.response(http.MethodPost)
		if resp.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%q: %d %q", body, resp.StatusCode, got)
		}
		r.record().want(t, "status", status)
	}
	f("zz\r\n", 400, "chunk")
	f("5\r\nhello\r\n0\r\n\r\n", 413, "too large")
}
