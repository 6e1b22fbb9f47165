package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// pendingChallenges answers challenges for the names for which it has certificates.
type pendingChallenges struct {
	mu    sync.Mutex
	certs map[string]*tls.Certificate
	asked int
}

func (c *pendingChallenges) wantAsked(t testing.TB, want int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked != want {
		t.Errorf("%d handshakes were taken for challenges, want %d", c.asked, want)
	}
}

func (c *pendingChallenges) HTTP01(string, string) (string, bool) { return "", false }
func (c *pendingChallenges) OrdersHTTP01(string) bool             { return false }

func (c *pendingChallenges) TLSALPN01(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if h.ServerName == "panic.example.org" {
		panic("a fault of the tests")
	}
	if cert := c.certs[h.ServerName]; cert != nil {
		return cert, nil
	}
	return nil, errors.New("nobody asked for it")
}

const challenged = `
listeners: {tls: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: ["*.example.org"]}}]
tls_policies:
  strict: {min_version: "1.3", client_auth: {mode: require, ca: '@ca'}}
  far: {min_version: "1.0", from: [192.0.2.0/24]}
  default: {min_version: "1.3"}
routes:
  - {listeners: [tls], hosts: [strict.example.org, panic.example.org], tls_policy: strict, backend: app}
  - {listeners: [tls], hosts: [far.example.org], tls_policy: far, backend: app}
  - {listeners: [tls], hosts: [open.example.org], backend: app}
  - {listeners: [tls], hosts: [through.example.org], tls: passthrough, backend: raw}
backends: {app: {endpoints: ['@app']}, raw: {protocol: tcp, endpoints: ['@raw']}}
`

// challengedRig serves challenged in front of two endpoints.
type challengedRig struct {
	*rig
	pending  *pendingChallenges
	app, raw *endpoint
	told     chan string // receives the panics
}

// newChallenged starts weir with pending challenges for five names.
func newChallenged(t *testing.T) challengedRig {
	ca, app, raw := writeCA(t), newEndpoint(t), newEndpoint(t)
	r := challengedRig{newRig(t, plain, nil, "@app", app.address), nil, app, raw, make(chan string, 10)}
	c := &pendingChallenges{certs: make(map[string]*tls.Certificate)}
	for _, name := range []string{"strict", "far", "open", "through", "unrouted"} {
		cert := ca.client("the answer for " + name)
		c.certs[name+".example.org"] = &cert
	}
	r.pending = c
	r.adjust(func(p *Proxy) {
		p.Challenges = c
		p.Panicked = func(listener string, value any, stack []byte) {
			if !strings.Contains(string(stack), "_test.go:") {
				t.Errorf("the stack does not show where it happened:\n%s", stack)
			}
			r.told <- fmt.Sprint(listener, ": ", value)
		}
	})
	r.load(challenged, nil, "@ca", ca.file, "@app", app.address, "@raw", raw.address)
	return r
}

// validate sends the challenge of a certificate authority, with the changes of change.
func (r *rig) validate(name string, change func(*tls.Config)) (*tls.Conn, error) {
	r.Helper()
	cfg := &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{challengeProtocol}}
	if change != nil {
		change(cfg)
	}
	c, err := net.Dial("tcp", r.addrs["tls"])
	if err != nil {
		r.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	tc := tls.Client(c, cfg)
	if err = tc.Handshake(); err != nil {
		c.Close()
	}
	return tc, err
}

func TestChallengesBypassPolicies(t *testing.T) {
	r := newChallenged(t)
	passed := 0
	f := func(name string, version uint16) {
		t.Helper()
		tc, err := r.validate(name+".example.org", func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		defer tc.Close()
		state := tc.ConnectionState()
		if got := state.PeerCertificates[0].Subject.CommonName; got != "the answer for "+name || state.NegotiatedProtocol != challengeProtocol {
			t.Errorf("%s: got the certificate %q and the protocol %q", name, got, state.NegotiatedProtocol)
		}
		tc.Write([]byte("GET / HTTP/1.1\r\nHost: strict.example.org\r\n\r\n")) // gets no response
		// The connection ends with a close_notify, or with a reset because weir did not read the request.
		if n, err := tc.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: the connection goes on", name)
		}
		r.record().want(t, "kind", "challenge", "sni", name+".example.org", "tls_policy", ChallengePolicy)
		passed++
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		f("strict", version)
		f("far", version)
		f("open", version)
		f("unrouted", version)
	}
	held, err := r.validate("open.example.org", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Read(make([]byte, 1)); err != io.EOF { // an end with close_notify
		t.Errorf("the connection ends with %v", err)
	}
	held.Close()
	r.record()
	n := r.counter("weir_tls_handshakes_total", "policy", ChallengePolicy, "result", "ok", "version", "TLS 1.3") +
		r.counter("weir_tls_handshakes_total", "policy", ChallengePolicy, "result", "ok", "version", "TLS 1.2")
	if int(n) != passed+1 {
		t.Errorf("%v challenges are counted, want %d", n, passed+1)
	}
	if _, err := r.validate("strict.example.org", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }); err == nil {
		t.Error("a challenge passed with TLS 1.1")
	}
	r.refusal().want(t, "tls_policy", ChallengePolicy)
	r.app.untouched()
	r.raw.untouched()
}

// Only a challenge gets past client_auth and from. A request that looks like a challenge does not.
func TestNothingElseBypassesPolicies(t *testing.T) {
	r := newChallenged(t)
	f := func(name, result string, protocols ...string) {
		t.Helper()
		tc, err := r.validate(name+".example.org", func(c *tls.Config) { c.NextProtos = protocols })
		if err == nil { // in TLS 1.3 the client has finished before weir checks its certificate
			tc.Write([]byte("GET / HTTP/1.1\r\nHost: strict.example.org\r\n\r\n"))
			_, err = tc.Read(make([]byte, 1))
			tc.Close()
		}
		if err == nil {
			t.Errorf("%s with %q was served", name, protocols)
		}
		e := r.refusal()
		e.want(t, "kind", "refused", "reason", "handshake")
		if e["tls_policy"] == ChallengePolicy || fmt.Sprint(e["error"]) == "" {
			t.Errorf("%s with %q: %v", name, protocols, e)
		}
		if e["tls_offered_versions"] == nil || e["tls_offered_suites"] == nil || !strings.HasPrefix(fmt.Sprint(e["ja4"]), "t13d") {
			t.Errorf("the line does not say what was offered: %v", e)
		}
		policy := "strict"
		if name == "far" {
			policy = "default"
		}
		eventually(t, "it is counted", func() error {
			if r.counter("weir_tls_handshakes_total", "policy", policy, "result", result) == 0 {
				return errors.New("it is not")
			}
			return nil
		})
	}
	f("strict", "client_certificate")
	f("strict", "client_certificate", "http/1.1")
	f("strict", "client_certificate", "acme-tls/1", "http/1.1")
	f("strict", "client_certificate", "http/1.1", "acme-tls/1")
	f("strict", "no_common_protocol", "acme-tls/1", "acme-tls/1")
	f("strict", "no_common_protocol", "acme-tls/1", "h3")
	f("strict", "no_common_protocol", "ACME-TLS/1")
	f("strict", "no_common_protocol", "acme-tls/1\x00")
	f("far", "no_common_protocol", "acme-tls/1", "h3")
	tc, err := r.validate("open.example.org", func(c *tls.Config) { c.NextProtos = []string{"acme-tls/1", "http/1.1"} })
	if err != nil || tc.ConnectionState().NegotiatedProtocol != "http/1.1" || tc.ConnectionState().PeerCertificates[0].Subject.CommonName == "the answer for open" {
		t.Errorf("an ordinary client that knows acme-tls/1: %v, %v", tc.ConnectionState().NegotiatedProtocol, err)
	}
	tc.Close()
	r.pending.wantAsked(t, 0)
	r.app.untouched()
}

func TestChallengesThatNobodyAskedFor(t *testing.T) {
	r := newChallenged(t)
	refused := func(r *rig, name string) {
		t.Helper()
		_, err := r.validate(name, nil)
		if err == nil || !strings.Contains(err.Error(), "no application protocol") { // RFC 7301, section 3.2
			t.Errorf("%s: %v", name, err)
		}
		r.refusal().want(t, "kind", "refused", "reason", "handshake", "tls_policy", ChallengePolicy, "tls_offered_alpn", []string{challengeProtocol})
	}
	refused(r.rig, "idle.example.org")
	refused(r.rig, "strict.example.net")
	refused(r.rig, "")
	if n := r.counter("weir_tls_handshakes_total", "policy", ChallengePolicy, "result", "no_common_protocol"); n == 0 {
		t.Error("refused challenges are not counted")
	}
	r.app.untouched()
	nobody := newRig(t, strings.NewReplacer("@app", "127.0.0.1:1").Replace(`
listeners: {tls: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [a]}}]
routes: [{listeners: [tls], backend: app}]
backends: {app: {endpoints: ['@app']}}
`), nil)
	refused(nobody, "a")
}

// A backend with TLS passthrough answers the challenge itself.
func TestChallengesArePassedThrough(t *testing.T) {
	r := newChallenged(t)
	done := make(chan error, 1)
	go func() {
		tc, err := r.validate("through.example.org", nil)
		tc.Close()
		done <- err
	}()
	s := r.raw.accept()
	var first [1]byte
	if _, err := io.ReadFull(s, first[:]); err != nil || first[0] != 22 {
		t.Errorf("the backend got %v, %v", first, err)
	}
	s.Close()
	if err := next(t, done, "handshake"); err == nil {
		t.Error("weir answered itself")
	}
	r.pending.wantAsked(t, 0)
	r.record()
}
