package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/e2e/freeport"
)

// ntlmBackend authenticates connections as IIS does: after the three messages of NTLM,
// every later request on the connection belongs to that user. It accepts every password.
type ntlmBackend struct {
	name, address string
	server        *http.Server
	open          atomic.Int64 // connections
	resets        atomic.Int64 // streams that the backend reset with HTTP_1_1_REQUIRED
	mu            sync.Mutex
	conns         map[net.Conn]*ntlmUser
}

// ntlmUser is the state of a connection.
type ntlmUser struct {
	challenged bool
	name       string
}

type ntlmKey struct{}

func newNTLMBackend(t *testing.T, name string) *ntlmBackend {
	b := prepareNTLM(t, name)
	l, err := freeport.Listen(b.address)
	if err != nil {
		t.Fatal(err)
	}
	go b.server.Serve(l)
	return b
}

func prepareNTLM(t *testing.T, name string) *ntlmBackend {
	b := &ntlmBackend{name: name, address: freePort(t), conns: map[net.Conn]*ntlmUser{}}
	b.server = &http.Server{Handler: b,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.open.Add(1)
			b.conns[c] = new(ntlmUser)
			return context.WithValue(ctx, ntlmKey{}, b.conns[c])
		},
		ConnState: func(c net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				b.open.Add(-1)
			}
		}}
	t.Cleanup(func() { b.server.Close() })
	return b
}

// newIIS is a backend with TLS that offers HTTP/2, and resets every HTTP/2 stream with
// HTTP_1_1_REQUIRED, as IIS does if users must authenticate.
func newIIS(t *testing.T, name string) *ntlmBackend {
	b := prepareNTLM(t, name)
	cert := writeCertificate(t, t.TempDir(), "iis", false, "app.example.org")
	pair, err := tls.LoadX509KeyPair(cert.both, cert.key)
	if err != nil {
		t.Fatal(err)
	}
	b.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	b.server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, c *tls.Conn, _ http.Handler) { b.serveHTTP2(c) }}
	l, err := freeport.Listen(b.address)
	if err != nil {
		t.Fatal(err)
	}
	go b.server.ServeTLS(l, "", "")
	return b
}

func (b *ntlmBackend) serveHTTP2(c net.Conn) {
	io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
	framer := http2.NewFramer(c, c)
	framer.WriteSettings()
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				framer.WritePing(true, f.Data)
			}
		case *http2.HeadersFrame:
			b.resets.Add(1)
			framer.WriteRSTStream(f.StreamID, http2.ErrCodeHTTP11Required)
		}
	}
}

// ntlmChallenge returns a CHALLENGE_MESSAGE without a target (MS-NLMP, section 2.2.1.2).
func ntlmChallenge() string {
	m := make([]byte, 48)
	copy(m, "NTLMSSP\x00\x02")
	binary.LittleEndian.PutUint32(m[16:], 48)
	binary.LittleEndian.PutUint32(m[20:], 0x00008202) // OEM, NTLM, always sign
	copy(m[24:], "nonsense")
	return base64.StdEncoding.EncodeToString(m)
}

// ntlmUserOf returns the user that an AUTHENTICATE_MESSAGE names.
func ntlmUserOf(m []byte) string {
	if len(m) < 44 {
		return ""
	}
	n, at := int(binary.LittleEndian.Uint16(m[36:])), int(binary.LittleEndian.Uint32(m[40:]))
	if at+n > len(m) {
		return ""
	}
	return strings.ReplaceAll(string(m[at:at+n]), "\x00", "")
}

// ntlmMessages returns the messages of a client: NEGOTIATE, and AUTHENTICATE.
func ntlmMessages(user string) (first, last string) {
	m := make([]byte, 32)
	copy(m, "NTLMSSP\x00\x01")
	a := make([]byte, 64, 64+len(user))
	copy(a, "NTLMSSP\x00\x03")
	binary.LittleEndian.PutUint16(a[36:], uint16(len(user)))
	binary.LittleEndian.PutUint32(a[40:], 64)
	a = append(a, user...)
	return "NTLM " + base64.StdEncoding.EncodeToString(m), "NTLM " + base64.StdEncoding.EncodeToString(a)
}

func (b *ntlmBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	u := r.Context().Value(ntlmKey{}).(*ntlmUser)
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token, _ := base64.StdEncoding.DecodeString(text)
	if strings.EqualFold(scheme, "NTLM") && len(token) > 8 {
		switch {
		case token[8] == 1:
			*u = ntlmUser{challenged: true}
			w.Header().Set("WWW-Authenticate", "NTLM "+ntlmChallenge())
			http.Error(w, b.name+": go on", http.StatusUnauthorized)
			return
		case token[8] == 3 && u.challenged:
			*u = ntlmUser{name: ntlmUserOf(token)}
		}
	}
	if u.name == "" {
		w.Header()["WWW-Authenticate"] = []string{`Basic realm="a, b"`, "Negotiate, NTLM"}
		http.Error(w, b.name+": who are you", http.StatusUnauthorized)
		return
	}
	fmt.Fprintf(w, "%s knows %s", b.name, u.name)
}

// ntlmClient is an HTTP/1.1 connection of a client.
type ntlmClient struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func newNTLMClient(t *testing.T, address string) *ntlmClient {
	c := dial(t, address)
	return &ntlmClient{t, c, bufio.NewReader(c)}
}

// get requests a path and returns the response.
func (c *ntlmClient) get(path string, fields ...string) (status int, body string) {
	c.t.Helper()
	resp, b, err := ask(c, c.r, "GET", "app.example.org", path, fields...)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// logIn exchanges the messages of NTLM.
func (c *ntlmClient) logIn(path, user string) (status int, body string) {
	c.t.Helper()
	first, last := ntlmMessages(user)
	if status, body := c.get(path, "Authorization: "+first); status != 401 || !strings.HasSuffix(body, "go on") {
		return status, body
	}
	return c.get(path, "Authorization: "+last)
}

func (c *ntlmClient) wantUser(path, user string) {
	c.t.Helper()
	if status, body := c.get(path); status != 200 || !strings.HasSuffix(body, " knows "+user) {
		c.t.Errorf("%s is answered %d, %s", user, status, body)
	}
}

const ntlmConfig = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}, timeouts: {keep_alive: 1m}}
  secure: {address: '@secure', protocol: tls}
  trusting: {address: '@trusting', protocol: http, trust_forwarded: [127.0.0.0/8]}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [web, secure, trusting], backend: app}
  - {listeners: [web], paths: [/1], backend: b1}
  - {listeners: [web], paths: [/2], backend: b2}
  - {listeners: [web], paths: [/3], backend: b3}
  - {listeners: [web], paths: [/4], backend: b4}
  - {listeners: [web], paths: [/announced], backend: announced}
  - {listeners: [web, secure], paths: [/iis], backend: iis}
backends:
  app: {endpoints: ['@app', '@other']}
  b1: {endpoints: ['@app']}
  b2: {endpoints: ['@app']}
  b3: {endpoints: ['@app']}
  b4: {endpoints: ['@app'], timeouts: {keep_alive: 1s}}
  announced: {endpoints: ['@announced'], send_proxy: v1}
  iis: {protocol: https, tls: {insecure_skip_verify: true}, endpoints: ['@iis']}
`

type ntlmServers struct{ app, other, iis *ntlmBackend }

func startNTLM(t *testing.T) (*weir, ntlmServers) {
	t.Helper()
	b := ntlmServers{newNTLMBackend(t, "app"), newNTLMBackend(t, "other"), newIIS(t, "iis")}
	w := newWeir(t)
	w.address["app"], w.address["other"], w.address["iis"] = b.app.address, b.other.address, b.iis.address
	w.address["announced"] = serve(t, func(c net.Conn) { // reads the PROXY header
		r := bufio.NewReader(c)
		r.ReadString('\n')
		pass(c, r, b.app.address)
	})
	return w.start(ntlmConfig), b
}

func (b ntlmServers) wantOpen(t *testing.T, n int64) {
	t.Helper()
	eventually(t, fmt.Sprint("the endpoints have ", n, " connections"), func() error {
		if got := b.app.open.Load() + b.other.open.Load() + b.iis.open.Load(); got != n {
			return fmt.Errorf("they have %d", got)
		}
		return nil
	})
}

// No other user uses a connection that one user authenticated, on whatever path the request
// comes. It ends with the user's connection to weir.
func TestNTLMConnectionIsNotShared(t *testing.T) {
	t.Parallel()
	w, b := startNTLM(t)
	alice, bob := newNTLMClient(t, w.at("web")), newNTLMClient(t, w.at("web"))
	strangers := func() {
		t.Helper()
		for range 6 {
			c := newNTLMClient(t, w.at("web"))
			if status, body := c.get("/"); status != 401 {
				t.Fatalf("a stranger is answered %d: %s", status, body)
			}
			c.Close()
		}
	}
	strangers()
	if status, body := alice.get("/"); status != 401 {
		t.Errorf("%d, %s", status, body)
	}
	if status, body := alice.logIn("/", "alice"); status != 200 || !strings.HasSuffix(body, "knows alice") {
		t.Fatalf("alice is answered %d, %s", status, body)
	}
	if status, body := bob.logIn("/", "bob"); status != 200 || !strings.HasSuffix(body, "knows bob") {
		t.Fatalf("bob is answered %d, %s", status, body)
	}
	for range 5 {
		alice.wantUser("/", "alice")
		strangers()
		bob.wantUser("/", "bob")
	}
	w.wantMetric(2, "weir_backend_private_connections", "backend", "app")
	// Parked client connections keep their private connections.
	w.wantMetric(2, "weir_connections_parked")
	alice.wantUser("/", "alice")
	bob.wantUser("/", "bob")

	alice.Close()
	w.wantMetric(1, "weir_backend_private_connections", "backend", "app")
	strangers()
	bob.wantUser("/", "bob")
	if status, body := bob.get("/", "Connection: close"); status != 200 || !strings.HasSuffix(body, "knows bob") {
		t.Errorf("bob's last request is answered %d, %s", status, body)
	}
	w.wantMetric(0, "weir_backend_private_connections", "backend", "app")
	strangers()
	b.wantOpen(t, 0)
}

// Credentials with such a scheme are enough to make a connection private, whatever the
// endpoint answers and however the scheme is spelled.
func TestNegotiateConnectionIsNotShared(t *testing.T) {
	t.Parallel()
	for _, credentials := range []string{"Negotiate YIIabc=", "negotiate YIIabc=", "Kerberos YIIabc=", "NTLM\tYIIabc="} {
		address := serve(t, func(c net.Conn) { // the first user owns all later requests on the connection
			r := bufio.NewReader(c)
			user := ""
			for {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				if user == "" {
					user = strings.TrimSpace("user " + req.Header.Get("Authorization"))
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(user), user)
			}
		})
		w := newWeir(t)
		w.address["app"] = address
		w.start(`
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
		alice := newNTLMClient(t, w.at("web"))
		want := "user " + credentials
		if status, body := alice.get("/", "Authorization: "+credentials); status != 200 || body != want {
			t.Fatalf("%d, %q", status, body)
		}
		if _, body := newNTLMClient(t, w.at("web")).get("/"); body != "user" {
			t.Errorf("with %q another client is %q", credentials, body)
		}
		if _, body := alice.get("/"); body != want {
			t.Errorf("with %q the client becomes %q", credentials, body)
		}
	}
}

// A client connection has a private connection to each of at most four backends, also with
// send_proxy. They end after keep_alive, and weir notices while the client is idle that the
// endpoint has closed one.
func TestNTLMConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	w, b := startNTLM(t)
	alice := newNTLMClient(t, w.at("web"))
	for _, path := range []string{"/", "/1", "/2", "/3", "/announced"} {
		if status, body := alice.logIn(path, "alice"+path); status != 200 {
			t.Fatalf("%s: %d, %s", path, status, body)
		}
	}
	w.wantMetric(4, "weir_backend_private_connections")
	for _, path := range []string{"/1", "/2", "/3", "/announced"} {
		alice.wantUser(path, "alice"+path)
	}
	if status, body := alice.get("/"); status != 401 { // weir had closed the connection of this backend
		t.Errorf("%d, %s", status, body)
	}
	b.wantOpen(t, 4)
	b.app.server.Close()
	w.wantMetric(0, "weir_backend_private_connections", "backend", "b2")

	bob := newNTLMClient(t, w.at("web"))
	alice.Close()
	l, err := freeport.Listen(b.app.address)
	if err != nil {
		t.Fatal(err)
	}
	b.app.server = &http.Server{Handler: b.app, ConnContext: b.app.server.ConnContext, ConnState: b.app.server.ConnState}
	go b.app.server.Serve(l)
	defer b.app.server.Close()
	if status, body := bob.logIn("/4", "bob"); status != 200 {
		t.Fatalf("%d, %s", status, body)
	}
	w.wantMetric(1, "weir_backend_private_connections", "backend", "b4")
	w.wantMetric(0, "weir_backend_private_connections", "backend", "b4") // keep_alive
	if status, body := bob.logIn("/4", "bob"); status != 200 {
		t.Fatalf("%d, %s", status, body)
	}
	bob.wantUser("/4", "bob")
}

// A reload that removes an endpoint also closes its private connections, and the users
// continue at another endpoint.
func TestNTLMConnectionsBeyondReload(t *testing.T) {
	t.Parallel()
	w, b := startNTLM(t)
	alice := newNTLMClient(t, w.at("web"))
	if status, body := alice.logIn("/", "alice"); status != 200 {
		t.Fatalf("%d, %s", status, body)
	}
	first := "app"
	if b.other.open.Load() > 0 {
		first = "other"
	}
	w.reload(ntlmConfig + "zone: anywhere\n")
	alice.wantUser("/", "alice")
	keep := map[string]string{"app": "['@other']", "other": "['@app']"}[first]
	w.reload(strings.Replace(ntlmConfig, "app: {endpoints: ['@app', '@other']}", "app: {endpoints: "+keep+"}", 1))
	w.wantMetric(0, "weir_backend_private_connections")
	if status, body := alice.get("/"); status != 401 {
		t.Errorf("%d, %s", status, body)
	}
	if status, body := alice.logIn("/", "alice"); status != 200 || strings.HasPrefix(body, first) {
		t.Errorf("%d, %s", status, body)
	}
	alice.wantUser("/", "alice")
}

// If a sender carries the requests of many users, weir does not let it authenticate a
// connection.
func TestNTLMIsRefusedFromTrustedSenders(t *testing.T) {
	t.Parallel()
	w, b := startNTLM(t)
	cdn := newNTLMClient(t, w.at("trusting"))
	if status, body := cdn.get("/"); status != 401 {
		t.Errorf("%d, %s", status, body)
	}
	if status, body := cdn.logIn("/", "alice"); status != 403 || strings.Contains(body, "trust_forwarded") {
		t.Errorf("%d, %s", status, body)
	}
	w.logged("the refusal with its setting", func(e entry) bool {
		return strings.Contains(e.text("error"), "trust_forwarded")
	})
	if status, _ := cdn.get("/", "Authorization: Basic YTpi"); status != 401 {
		t.Errorf("a password is answered %d", status)
	}
	w.wantMetric(1, "weir_http_refused_total", "listener", "trusting", "reason", "connection_auth_shared")
	w.logged("the refusal", func(e entry) bool { return e.text("reason") == "connection_auth_shared" && e.text("status") == "403" })
	b.wantOpen(t, 0) // weir does not keep a connection on which the endpoint asked for credentials
}

// Over HTTP/2, weir resets a stream with such credentials, so that the client repeats the
// request over HTTP/1.1. Other streams continue.
func TestNTLMOverHTTP2(t *testing.T) {
	t.Parallel()
	w, _ := startNTLM(t)
	for _, listener := range []string{"web", "secure"} {
		h := dialH2(t, w, listener)
		h.get(1)
		if status, _, err := h.answer(1); status != "401" || err != nil {
			t.Errorf("%s, %v", status, err)
		}
		first, _ := ntlmMessages("alice")
		for i, credentials := range []string{first, "Negotiate YIIabc="} {
			id := uint32(3 + 4*i)
			h.head(id, false, postFields("authorization: "+credentials)...)
			h.framer.WriteData(id, true, make([]byte, 1000))
			h.get(id + 2)
			reset, answered := false, false
			for !reset || !answered {
				f, err := h.framer.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				switch f := f.(type) {
				case *http2.RSTStreamFrame:
					if f.StreamID != id || f.ErrCode != http2.ErrCodeHTTP11Required {
						t.Fatal(f)
					}
					reset = true
				case *http2.HeadersFrame:
					fields, _ := h.dec.DecodeFull(f.HeaderBlockFragment())
					if f.StreamID != id+2 || fields[0].Value != "401" {
						t.Fatalf("%v %v", f, fields)
					}
					answered = true
				}
			}
		}
		w.wantMetric(2, "weir_http_refused_total", "listener", listener, "reason", "connection_auth_http2")
	}
	w.logged("the refusal", func(e entry) bool { return e.text("reason") == "connection_auth_http2" })
}

// curl can log in whichever HTTP version it tries first, also at an endpoint that offers
// HTTP/2 but requires HTTP/1.1 for authentication.
func TestCurlLogsInByNTLM(t *testing.T) {
	t.Parallel()
	out, _ := exec.Command(need(t, "curl"), "--version").Output()
	if !strings.Contains(string(out), "NTLM") {
		lacking(t, "this curl has no NTLM")
	}
	w, b := startNTLM(t)
	for _, url := range []string{"http://" + w.at("web"), "https://" + w.at("secure")} {
		for _, version := range []string{"--http1.1", "--http2"} {
			for path, name := range map[string]string{"/": " knows alice", "/iis": "iis knows alice"} {
				if got := string(curl(t, version, "--ntlm", "-u", "alice:secret", url+path, "-H", "Host: app.example.org")); !strings.HasSuffix(got, name) {
					t.Errorf("%s %s%s: %s", version, url, path, got)
				}
				// Both requests use one connection.
				if got := string(curl(t, version, "--ntlm", "-u", "alice:secret", "-H", "Host: app.example.org", url+path, url+path)); strings.Count(got, name) != 2 {
					t.Errorf("twice: %s %s%s: %s", version, url, path, got)
				}
			}
		}
		// The client sends credentials without being asked.
		got, err := exec.Command("curl", "-k", "-s", "--http2", "-H", "Authorization: Negotiate YIIabc=", "-w", "%{http_version} %{http_code}", "-o", "/dev/null", url+"/").CombinedOutput()
		if err != nil || string(got) != "1.1 401" {
			t.Errorf("%s by HTTP/2, unasked: %s, %v", url, got, err)
		}
	}
	if got := string(curl(t, "--http2", "https://"+w.at("secure")+"/iis", "-H", "Host: app.example.org")); got != "iis: who are you\n" || b.iis.resets.Load() != 1 {
		t.Errorf("without credentials: %s, after %d streams", got, b.iis.resets.Load())
	}
	w.wantMetric(0, "weir_backend_private_connections")
}

// If an endpoint requires HTTP/1.1, weir repeats the request with its body, if it still has
// the whole body.
func TestEndpointRequiresHTTP1(t *testing.T) {
	t.Parallel()
	w, b := startNTLM(t)
	alice := newNTLMClient(t, w.at("web"))
	body := strings.Repeat("x", 10_000)
	resp, text, err := ask(alice, alice.r, "POST", "app.example.org", "/iis", fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body[:len(body)-4]))
	if err != nil || resp.StatusCode != 401 || !strings.HasPrefix(string(text), "iis: who") {
		t.Fatalf("%v, %s, %v", resp, text, err)
	}
	if status, body := alice.logIn("/iis", "alice"); status != 200 || body != "iis knows alice" {
		t.Errorf("%d, %s", status, body)
	}
	if n := b.iis.resets.Load(); n != 1 {
		t.Errorf("%d streams were tried", n)
	}
	alice.wantUser("/iis", "alice")
	if _, body := newNTLMClient(t, w.at("web")).get("/iis"); body != "iis: who are you" {
		t.Errorf("a stranger is answered %s", body)
	}
}
