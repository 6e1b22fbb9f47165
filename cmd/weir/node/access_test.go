package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
)

const someToken = "correct-horse-battery"

func tokenAccess(token string, hosts ...string) *access {
	x := &access{hosts: hosts}
	if token != "" {
		sum := sha256.Sum256([]byte(token))
		x.token = &sum
	}
	return x
}

var certificateAccess = &access{tls: &tls.Config{ClientCAs: x509.NewCertPool()}}

// The admin port refuses requests for names that an attacker could point at it, from web
// pages of other sites, and without the token.
func TestAdminRefuses(t *testing.T) {
	for _, c := range []struct {
		name, method, path, host string
		header                   http.Header
		access                   *access
		let                      *let // nil: over TCP
		want                     int
		reason                   refusal
	}{
		{name: "an IPv4 address", host: "127.0.0.1:8087", want: 200},
		{name: "an IPv4 address without a port", host: "10.1.2.3", want: 200},
		{name: "an IPv6 address", host: "[::1]:8087", want: 200},
		{name: "an IPv6 address without a port", host: "[2001:db8::1]", want: 200},
		{name: "localhost", host: "localhost:8087", want: 200},
		{name: "LOCALHOST with a dot", host: "LOCALHOST.", want: 200},
		{name: "a configured name", host: "Weir.Example:8087", access: tokenAccess("", "weir.example"), want: 200},
		{name: "rebinding", host: "evil.example", want: 421, reason: refusedHost},
		{name: "rebinding with the port", host: "evil.example:8087", want: 421, reason: refusedHost},
		{name: "below localhost", host: "evil.localhost", want: 421, reason: refusedHost},
		{name: "like an address", host: "127.0.0.1.evil.example", want: 421, reason: refusedHost},
		{name: "below a configured name", host: "a.weir.example", access: tokenAccess("", "weir.example"), want: 421, reason: refusedHost},
		{name: "no host", host: "", want: 421, reason: refusedHost},
		{name: "rebinding, with the token", host: "evil.example", access: tokenAccess(someToken), header: http.Header{"Authorization": {"Bearer " + someToken}}, want: 421, reason: refusedHost},

		{name: "typed into a browser", host: "localhost", header: http.Header{"Sec-Fetch-Site": {"none"}}, want: 200},
		{name: "its own page", host: "localhost:8087", header: http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://localhost:8087"}}, want: 200},
		{name: "another site", host: "localhost", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}, want: 403, reason: refusedOrigin},
		{name: "another port of the site", host: "localhost", header: http.Header{"Sec-Fetch-Site": {"same-site"}}, want: 403, reason: refusedOrigin},
		{name: "two values", host: "localhost", header: http.Header{"Sec-Fetch-Site": {"none", "cross-site"}}, want: 403, reason: refusedOrigin},
		{name: "another origin", host: "localhost:8087", header: http.Header{"Origin": {"http://evil.example"}}, want: 403, reason: refusedOrigin},
		{name: "another port's origin", host: "localhost:8087", header: http.Header{"Origin": {"http://localhost:3000"}}, want: 403, reason: refusedOrigin},
		{name: "no origin to speak of", host: "localhost", header: http.Header{"Origin": {"null"}}, want: 403, reason: refusedOrigin},
		{name: "another site's POST", method: "POST", path: "/drain", host: "localhost", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}, want: 403, reason: refusedOrigin},

		{name: "without the token", host: "localhost", access: tokenAccess(someToken), want: 401, reason: refusedToken},
		{name: "metrics without the token", path: "/metrics", host: "localhost", access: tokenAccess(someToken), want: 401, reason: refusedToken},
		{name: "another token", host: "localhost", access: tokenAccess(someToken), header: http.Header{"Authorization": {"Bearer " + someToken + "x"}}, want: 401, reason: refusedToken},
		{name: "an empty token", host: "localhost", access: tokenAccess(someToken), header: http.Header{"Authorization": {"Bearer "}}, want: 401, reason: refusedToken},
		{name: "the token in another scheme", host: "localhost", access: tokenAccess(someToken), header: http.Header{"Authorization": {"Token " + someToken}}, want: 401, reason: refusedToken},
		{name: "the token", host: "localhost", access: tokenAccess(someToken), header: http.Header{"Authorization": {"bearer " + someToken}}, want: 200},
		{name: "the token as a password", host: "localhost", access: tokenAccess(someToken), header: http.Header{"Authorization": {"Basic d2Vpcjpjb3JyZWN0LWhvcnNlLWJhdHRlcnk="}}, want: 200},

		{name: "a drain without a token", method: "POST", path: "/drain", host: "localhost", want: 403, reason: refusedToken},
		{name: "a cordon without a token", method: "POST", path: "/cordon", host: "localhost", want: 403, reason: refusedToken},
		{name: "a reload without a token", method: "POST", path: "/reload", host: "localhost", want: 403, reason: refusedToken},
		{name: "a profile by GET", path: "/debug/pprof/heap", host: "localhost", want: 403, reason: refusedToken},
		{name: "a CPU profile by POST", method: "POST", path: "/debug/pprof/profile?seconds=1", host: "localhost", want: 403, reason: refusedToken},
		{name: "a profile by HEAD", method: "HEAD", path: "/debug/pprof/heap", host: "localhost", want: 403, reason: refusedToken},
		{name: "a drain by another user of the machine", method: "POST", path: "/drain", host: "localhost", let: &let{by: new(access)}, want: 403, reason: refusedToken},
		{name: "reading by another user of the machine", host: "localhost", let: &let{by: new(access)}, want: 200},
		{name: "another user past a client certificate", host: "localhost", access: certificateAccess, let: &let{by: certificateAccess}, want: 403, reason: refusedToken},
		{name: "another user past the token", host: "localhost", access: tokenAccess(someToken), let: &let{by: new(access)}, want: 401, reason: refusedToken},
		{name: "a profile by root", path: "/debug/pprof/heap", host: "localhost", let: &let{by: new(access), trusted: true}, want: 200},
		{name: "root without the token", host: "localhost", access: tokenAccess(someToken), let: &let{by: new(access), trusted: true}, want: 200},
		{name: "root without a certificate", host: "localhost", access: certificateAccess, let: &let{by: certificateAccess, trusted: true}, want: 200},
		{name: "a web page of root", method: "POST", path: "/drain", host: "localhost", header: http.Header{"Origin": {"http://evil.example"}}, let: &let{by: new(access), trusted: true}, want: 403, reason: refusedOrigin},
		{name: "the list of profiles", path: "/debug/pprof/", host: "localhost", want: 200},
		{name: "a profile by GET with the token", path: "/debug/pprof/heap", host: "localhost", access: tokenAccess(someToken), header: http.Header{"Authorization": {"Bearer " + someToken}}, want: 200},
		{name: "a profile by POST with the token", method: "POST", path: "/debug/pprof/heap", host: "localhost", access: tokenAccess(someToken), header: http.Header{"Authorization": {"Bearer " + someToken}}, want: 200},
		{name: "a profile by POST without the token", method: "POST", path: "/debug/pprof/heap", host: "localhost", access: tokenAccess(someToken), want: 401, reason: refusedToken},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
			defer s.close()
			s.effect.Store(&inEffect{config: &config.Config{Node: "n"}})
			if c.access != nil {
				s.access.Store(c.access)
			}
			method, path := "GET", "/status"
			if c.method != "" {
				method = c.method
			}
			if c.path != "" {
				path = c.path
			}
			r := httptest.NewRequest(method, path, nil)
			r.Host = c.host
			if c.let != nil {
				r = r.WithContext(context.WithValue(r.Context(), letInKey{}, c.let))
			}
			for k, v := range c.header {
				r.Header[k] = v
			}
			w := httptest.NewRecorder()
			s.admin().ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("answered %d: %s", w.Code, w.Body)
			}
			if h := w.Header(); h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
				t.Errorf("other sites may embed the response: %v", h)
			}
			if given := len(c.header["Authorization"]) > 0; c.reason == refusedToken && c.access != nil && strings.Contains(w.Body.String(), "does not match admin.token") != given {
				t.Errorf("Authorization is given: %v, and the answer is %s", given, w.Body)
			}
			for _, why := range refusals {
				want := 0.0
				if why == c.reason {
					want = 1
				}
				if got := testutil.ToFloat64(s.metrics.refused.WithLabelValues(string(why))); got != want {
					t.Errorf("%s is counted %v times", why, got)
				}
			}
			if s.node.Draining() {
				t.Error("it drains")
			}
		})
	}
}

// A refusal names the setting that would allow the request, and never contains the token.
func TestAdminRefusalsSaySo(t *testing.T) {
	s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
	defer s.close()
	s.access.Store(tokenAccess(someToken))
	for host, want := range map[string]string{"evil.example": "admin.hosts", "localhost": "admin.token"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/status", nil)
		r.Host = host
		s.admin().ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), want) || strings.Contains(w.Body.String(), someToken) {
			t.Errorf("%s: %s", host, w.Body)
		}
	}
}

// The metrics port serves metrics, and nothing else.
func TestMetricsPort(t *testing.T) {
	r := newRunning(t, web+"metrics: {address: '@metrics'}\n", "web", "metrics", "app")
	get := func(method, path, host string, header ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+r.address("metrics")+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if status, text := get("GET", "/metrics", "localhost"); status != 200 || !strings.Contains(text, "weir_build_info") {
		t.Errorf("the metrics are %d", status)
	}
	for _, path := range []string{"/", "/status", "/config", "/kubernetes", "/tls/clients", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile", "/drain", "/reload", "/metrics/", "//metrics/../drain"} {
		for _, method := range []string{"GET", "POST"} {
			if status, _ := get(method, path, "localhost"); status != 404 && status != 301 && status != 307 {
				t.Errorf("%s %s is answered %d", method, path, status)
			}
		}
	}
	if status, _ := get("POST", "/metrics", "localhost"); status != 405 {
		t.Errorf("POST /metrics is answered %d", status)
	}
	if status, _ := get("GET", "/metrics", "evil.example"); status != 421 {
		t.Errorf("on loopback, for another name: %d", status)
	}
	if status, _ := get("GET", "/metrics", "localhost", "Origin", "http://evil.example"); status != 403 {
		t.Errorf("for a web page: %d", status)
	}
	http.DefaultClient.CloseIdleConnections()
	if r.node.Draining() {
		t.Error("it drains")
	}
}

// A reload that changes the token or the client authority applies to open
// connections too.
func TestAdminAccessChanges(t *testing.T) {
	dir := t.TempDir()
	writeTestCA(t, dir)
	r := newRunning(t, web+"admin: {address: '@admin', token: "+someToken+"}\n", "web", "admin", "app")
	ask := func(client *http.Client, scheme, token string) (int, error) {
		req, err := http.NewRequest("GET", scheme+"://"+r.address("admin")+"/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	plain := &http.Client{Transport: &http.Transport{}}
	defer plain.CloseIdleConnections()
	want := func(client *http.Client, scheme, token string, status int) {
		t.Helper()
		if got, err := ask(client, scheme, token); got != status {
			t.Errorf("%s with %q: %d, %v, want %d", scheme, token, got, err, status)
		}
	}
	want(plain, "http", someToken, 200)
	r.load(web + "admin: {address: '@admin', token_file: '" + filepath.Join(dir, "token") + "'}\n")
	want(plain, "http", someToken, 401)
	want(plain, "http", "another-token-of-a-file", 200)

	secured := web + "admin: {address: '@admin', tls: {cert: '" + dir + "/server.crt', key: '" + dir + "/server.key', client_ca: '" + dir + "/ca.crt'}}\n"
	r.load(secured)
	want(plain, "http", "", 401) // a connection from before the reload
	if got, err := ask(plain, "http", ""); err == nil && got != 400 {
		t.Errorf("plain HTTP is answered %d", got)
	}
	bare, mine := tlsClient(t, dir, false), tlsClient(t, dir, true)
	defer bare.CloseIdleConnections()
	defer mine.CloseIdleConnections()
	if got, err := ask(bare, "https", ""); err == nil {
		t.Errorf("without a certificate it is answered %d", got)
	}
	want(mine, "https", "", 200)
	r.load(secured + "node: another\n") // the settings of the port are unchanged: connections stay open
	want(mine, "https", "", 200)
}

// tlsClient makes a client that trusts the CA in dir. If shows is true, it shows the client
// certificate there.
func tlsClient(t *testing.T, dir string, shows bool) *http.Client {
	t.Helper()
	text, err := os.ReadFile(dir + "/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AppendCertsFromPEM(text)
	if shows {
		pair, err := tls.LoadX509KeyPair(dir+"/client.crt", dir+"/client.key")
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c}}
}

// Clients that only hold connections open cannot block the port for others.
func TestPortIsNotHeld(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
	defer s.close()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.serveMetrics(ctx, ln) }()
	var held []net.Conn
	for i := range 2 * maxPortConnections {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		if i%2 == 0 {
			io.WriteString(c, "GET /me") // a request that never ends
		}
	}
	resp, err := http.Get("http://" + ln.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("the metrics are %d", resp.StatusCode)
	}
	open := 0
	deadline := time.Now().Add(time.Second)
	for _, c := range held {
		c.SetReadDeadline(deadline)
		if _, err := c.Read(make([]byte, 1)); os.IsTimeout(err) {
			open++
		}
		c.Close()
	}
	if open > maxPortConnections {
		t.Errorf("%d connections are held", open)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The limit applies to any order of opened and closed connections.
func TestCrowd(t *testing.T) {
	c := crowd{max: 2}
	var conns []net.Conn
	closed := func(i int) bool {
		return conns[i].SetDeadline(time.Time{}) != nil
	}
	add := func() {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		conns = append(conns, a)
		c.changed(a, http.StateNew)
	}
	add()
	add()
	c.changed(conns[0], http.StateActive)
	add() // connection 1 has no request; connection 0 is older
	if closed(0) || !closed(1) || closed(2) {
		t.Error("not the one without a request went")
	}
	c.changed(conns[1], http.StateClosed) // the server notices
	c.changed(conns[2], http.StateActive)
	add() // all have requests
	if !closed(0) || closed(2) || closed(3) {
		t.Error("not the oldest one went")
	}
	c.changed(conns[2], http.StateIdle)
	c.changed(conns[2], http.StateClosed)
	c.changed(conns[3], http.StateClosed)
	if len(c.place) != 0 || c.all.Len() != 0 || c.idle.Len() != 0 {
		t.Errorf("left are %d, %d, %d", len(c.place), c.all.Len(), c.idle.Len())
	}
}

// writeTestCA writes server.crt and client.crt with their keys, a ca.crt that
// verifies both, and a token.
func writeTestCA(t *testing.T, dir string) {
	t.Helper()
	var both []byte
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * 24 * time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		both = append(both, cert...)
		write(name+".crt", cert)
		write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	}
	write("ca.crt", both)
	write("token", []byte("another-token-of-a-file\n"))
}
