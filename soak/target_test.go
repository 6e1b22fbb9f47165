package soak

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestTargets(t *testing.T) {
	f := func(target string, change func(*Options), hostPort, protocol string, tls bool, host, sni, path string) {
		t.Helper()
		o := Defaults()
		o.Targets, o.Send = []string{target}, nil
		change(&o)
		if err := o.Prepare(); err != nil {
			t.Errorf("%s: %v", target, err)
			return
		}
		p := o.plans[0]
		if p.hostPort != hostPort || p.Protocol != protocol || p.TLS != tls || p.Host != host || p.SNI != sni || p.Path != path {
			t.Errorf("%s: %s by %s, TLS %v, Host %s, SNI %s, path %s", target, p.hostPort, p.Protocol, p.TLS, p.Host, p.SNI, p.Path)
		}
	}
	plain := func(*Options) {}
	f("app.example.org:80", plain, "app.example.org:80", HTTP1, false, "app.example.org", "app.example.org", "/")
	f("app.example.org:8080", plain, "app.example.org:8080", HTTP1, false, "app.example.org:8080", "app.example.org", "/")
	f(":8080", plain, ":8080", HTTP1, false, "localhost:8080", "localhost", "/")
	f("app.example.org:443", func(o *Options) { o.TLS = true }, "app.example.org:443", HTTP1, true, "app.example.org", "app.example.org", "/")
	f("[::1]:8443", func(o *Options) { o.TLS, o.Protocol = true, HTTP2 }, "[::1]:8443", HTTP2, true, "[::1]:8443", "::1", "/")
	f("http://app.example.org", plain, "app.example.org:80", HTTP1, false, "app.example.org", "app.example.org", "/")
	f("https://app.example.org/a/b%20c?d=e#f", plain, "app.example.org:443", HTTP1, true, "app.example.org", "app.example.org", "/a/b%20c?d=e")
	f("HTTPS://app.example.org:8443?x=1", plain, "app.example.org:8443", HTTP1, true, "app.example.org:8443", "app.example.org", "/?x=1")
	f("https://app.example.org/", func(o *Options) { o.Path, o.Protocol = "/x", HTTP2 }, "app.example.org:443", HTTP2, true, "app.example.org", "app.example.org", "/x")
	f("https://[2001:db8::1]/", func(o *Options) { o.Host = "app.example.org:8443" }, "[2001:db8::1]:443", HTTP1, true, "app.example.org:8443", "app.example.org", "/")
	f("https://192.0.2.1/", func(o *Options) { o.Host, o.SNI = "a.example.org", "b.example.org" }, "192.0.2.1:443", HTTP1, true, "a.example.org", "b.example.org", "/")
	f("https://app.example.org/", func(o *Options) { o.SNI = NoSNI }, "app.example.org:443", HTTP1, true, "app.example.org", NoSNI, "/")
	f("ws://app.example.org/chat", plain, "app.example.org:80", WebSocket, false, "app.example.org", "app.example.org", "/chat")
	f("wss://app.example.org", plain, "app.example.org:443", WebSocket, true, "app.example.org", "app.example.org", "/")
	f("https://app.example.org", func(o *Options) { o.Protocol = WebSocket }, "app.example.org:443", WebSocket, true, "app.example.org", "app.example.org", "/")
	f("grpc://app.example.org:50051", plain, "app.example.org:50051", GRPC, false, "app.example.org:50051", "app.example.org", healthCheck)
	f("grpcs://app.example.org:443/pkg.Service/Method", plain, "app.example.org:443", GRPC, true, "app.example.org:443", "app.example.org", "/pkg.Service/Method")
	f("tls://app.example.org:853", plain, "app.example.org:853", Raw, true, "app.example.org:853", "app.example.org", "/")

	wrong := func(target, want string, change func(*Options)) {
		t.Helper()
		o := Defaults()
		o.Targets = []string{target}
		change(&o)
		if err := o.Prepare(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", target, err, want)
		}
	}
	for _, target := range []string{"localhost", "localhost:", "localhost:http", "localhost:0", "localhost:70000", "localhost:80/x", ""} {
		wrong(target, "is neither a URL like https://example.org/ nor HOST:PORT", plain)
	}
	wrong("ftp://example.org", "the scheme of a URL must be http,", plain)
	wrong("https://", "names no host", plain)
	wrong("https://exa mple.org/", "is not a URL: invalid character", plain)
	wrong("https://example.org:0/", "must be from 1 to 65535", plain)
	wrong("https://example.org:70000/", "must be from 1 to 65535", plain)
	wrong("grpc://example.org", "names no port, and grpc has no default", plain)
	wrong("tcp://example.org:22/x", "a tcp URL ends with its port", plain)
	wrong("http://example.org/", "leave out --tls", func(o *Options) { o.TLS = true })
	wrong("ws://example.org/", "leave out --protocol", func(o *Options) { o.Protocol = HTTP2 })
	wrong("http://example.org/x", "leave out --path", func(o *Options) { o.Path = "/y" })
	wrong("https://me:secret@example.org/", "--header 'Authorization: …'", plain)
	o := Defaults()
	o.Targets = []string{"https://me:secret@example.org/"}
	if err := o.Prepare(); strings.Contains(err.Error(), "secret") {
		t.Errorf("the error has the password: %v", err)
	}
	// A TLS flag applies only to targets with TLS.
	o = Defaults()
	o.Targets, o.CA = []string{"http://example.org/", "https://example.org/"}, newAuthority(t).file("ca.pem")
	if err := o.Prepare(); err != nil {
		t.Errorf("--ca with one target over TLS of two: %v", err)
	}
	// With several targets, an error names the target.
	o = Defaults()
	o.Targets, o.Body = []string{"http://example.org/", "tcp://example.org:22"}, 5
	if err := o.Prepare(); err == nil || !strings.HasPrefix(err.Error(), "tcp://example.org:22: --body") {
		t.Errorf("%v", err)
	}
}

func TestResolve(t *testing.T) {
	o := Defaults()
	o.Targets = []string{"localhost:80"}
	if err := errors.Join(o.Prepare(), o.Resolve(t.Context())); err != nil || !o.plans[0].resolved.Addr().IsLoopback() {
		t.Errorf("%v, %v", o.plans[0].resolved, err)
	}
	status := func(want int, o *Options) {
		t.Helper()
		var exit *ExitError
		if err := o.Prepare(); err != nil {
			t.Fatal(err)
		}
		if err := o.Resolve(t.Context()); !errors.As(err, &exit) || exit.Status != want {
			t.Errorf("%v, want the exit status %d", err, want)
		}
	}
	o.Targets, o.From = []string{"127.0.0.1:80"}, []netip.Prefix{netip.MustParsePrefix("::1/128")}
	status(StatusUsage, &o)
	o = Defaults()
	o.Targets = []string{"https://nowhere.invalid/"}
	status(StatusNoAnswer, &o)
}

// TestSeveralTargets: the targets share the load, and each target has its own counters.
func TestSeveralTargets(t *testing.T) {
	noLeaks(t)
	f := func(name string, change func(*Options)) {
		t.Run(name, func(t *testing.T) {
			good := "http://" + serve(t, always(ok)) + "/good"
			bad := "https://" + serve(t, overTLS(always("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")))
			r := soak(t, good, func(o *Options) {
				o.Targets, o.Connections = []string{good, bad}, 5
				o.Rate, o.Duration = 100, 110*time.Millisecond
				o.MaxErrors.Set("2")
				change(o)
			}, func(*Snapshot) bool { return false })
			wantKinds(t, r, UnexpectedStatus)
			a, b := r.Targets[0], r.Targets[1]
			if a.Name != good || a.Path != "/good" || a.TLS || a.Wanted != 3 || a.Requests != 6 || a.AnomaliesInAll != 0 || a.OpenLoop.Planned != 6 {
				t.Errorf("the first target: %+v", a)
			}
			if b.Name != bad || !b.TLS || b.Wanted != 2 || b.Requests != 0 || b.AnomaliesInAll != 5 || b.OpenLoop.Planned != 5 {
				t.Errorf("the second target: %+v", b)
			}
			if r.Requests != 6 || r.AnomaliesInAll != 5 || r.Statuses[503] != 5 || r.OpenLoop.Due != 11 || r.Opened != a.Opened+b.Opened {
				t.Errorf("all: %+v", r.Numbers)
			}
			if err := r.Err(); err == nil || err.Error() != "threshold missed: "+bad+": 5 errors in 5 requests, the limit is 2" {
				t.Errorf("the error is %v", err)
			}
			var text strings.Builder
			r.Text(&text)
			for _, want := range []string{good + ": HTTP/1.1\n", bad + ": HTTP/1.1 over TLS\n", "all 2 targets, ", "unexpected_status", "threshold met: " + good + ": 0 errors in 6 requests, the limit is 2\n"} {
				if !strings.Contains(text.String(), want) {
					t.Errorf("the text has no %q:\n%s", want, text.String())
				}
			}
		})
	}
	f("one process", func(*Options) {})
	f("two processes", func(o *Options) { o.Processes = 2 })
}

// An authority signs certificates for tests, and writes them to files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	_, a.cert, a.key = a.sign("ca", "authority", true)
	return a
}

func (a *authority) sign(file, name string, isCA bool) (tls.Certificate, *x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: isCA, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	template.Subject.CommonName = name
	parent, signer := template, key
	if !isCA {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	write := func(name string, blocks ...*pem.Block) {
		var text []byte
		for _, b := range blocks {
			text = append(text, pem.EncodeToMemory(b)...)
		}
		if err := os.WriteFile(filepath.Join(a.dir, name), text, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	certBlock, keyBlock := &pem.Block{Type: "CERTIFICATE", Bytes: der}, &pem.Block{Type: "PRIVATE KEY", Bytes: private}
	write(file+".pem", certBlock)
	write(file+".key", keyBlock)
	write(file+".both", certBlock, keyBlock)
	parsed, _ := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, parsed, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// TestCertificates: the tool sends client certificates, and verifies the target's if asked
// to.
func TestCertificates(t *testing.T) {
	noLeaks(t)
	a := newAuthority(t)
	own, _, _ := a.sign("server", "app.example.org", false)
	a.sign("client", "client.example.org", false)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != "client.example.org" {
			t.Error("the request has not the client certificate")
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	f := func(change func(*Options), want ...Kind) *Report {
		t.Helper()
		enough := exchanges(3)
		if len(want) > 0 {
			enough = anomalies(3)
		}
		r := soak(t, s.URL, func(o *Options) {
			o.Host = "app.example.org"
			change(o)
		}, enough)
		wantKinds(t, r, want...)
		return r
	}
	f(func(o *Options) { o.Cert, o.Key, o.CA = a.file("client.pem"), a.file("client.key"), a.file("ca.pem") })
	f(func(o *Options) { o.Cert = a.file("client.both") })
	f(func(o *Options) { o.Cert, o.CA, o.SNI = a.file("client.both"), a.file("ca.pem"), NoSNI })
	f(func(o *Options) { o.Cert, o.Processes = a.file("client.both"), 2 })
	f(func(o *Options) {}, Handshake) // TLS 1.3 reports this after the handshake
	for _, change := range []func(*Options){
		func(o *Options) { o.CA, o.Host = a.file("ca.pem"), "other.example.org" },
		func(o *Options) { o.CA, o.SNI = a.file("ca.pem"), "other.example.org" },
		func(o *Options) { o.CA = a.file("client.pem") },
		func(o *Options) { o.CA = SystemCA },
	} {
		r := f(func(o *Options) {
			o.Cert = a.file("client.both")
			change(o)
		}, Handshake)
		if d := r.Anomalies[0].Examples[0].Detail; !strings.Contains(d, "the certificate of the target is not valid: x509: ") {
			t.Errorf("the example is %q", d)
		}
	}
}

// TestNames: flags set SNI and Host independently of each other.
func TestNames(t *testing.T) {
	noLeaks(t)
	f := func(change func(*Options), wantSNI, wantHost string) {
		t.Helper()
		var lock sync.Mutex
		var sni, host string
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lock.Lock()
			defer lock.Unlock()
			sni, host = r.TLS.ServerName, r.Host
		}))
		s.StartTLS()
		defer s.Close()
		r := soak(t, s.URL, change, exchanges(3))
		wantKinds(t, r)
		wantHost = strings.ReplaceAll(wantHost, "ADDRESS", s.Listener.Addr().String())
		if sni != wantSNI || host != wantHost || r.Targets[0].SNI != wantSNI || r.Targets[0].Host != wantHost {
			t.Errorf("SNI %q, Host %q, in the report %q and %q; want %q and %q", sni, host, r.Targets[0].SNI, r.Targets[0].Host, wantSNI, wantHost)
		}
	}
	f(func(o *Options) {}, "", "ADDRESS") // an IP address is not allowed in SNI
	f(func(o *Options) { o.Host = "app.example.org:8443" }, "app.example.org", "app.example.org:8443")
	f(func(o *Options) { o.Host, o.SNI = "app.example.org", "other.example.org" }, "other.example.org", "app.example.org")
	f(func(o *Options) { o.Host, o.SNI = "app.example.org", NoSNI }, "", "app.example.org")
}

// TestVerdict: several exit statuses can apply, and the first one in order is used.
func TestVerdict(t *testing.T) {
	f := func(name string, want int, wantText string, change func(*Options, *Snapshot)) {
		t.Helper()
		o := Defaults()
		o.Targets = []string{"127.0.0.1:80"}
		s := emptySnapshot()
		s.Exchanges, s.Received = 1000, 5000
		s.Exchange[bucket(40*time.Millisecond)] = 1000
		change(&o, s)
		if err := o.Prepare(); err != nil {
			t.Fatal(err)
		}
		r := newReport(&o, []*Snapshot{s}, time.Now(), 1, s.Open == interrupted)
		var exit *ExitError
		if err := r.Err(); errors.As(err, &exit) && (exit.Status != want || !strings.Contains(err.Error(), wantText)) || (err == nil) != (want == 0) || r.Status != want {
			t.Errorf("%s: status %d, %v; want %d, %q", name, r.Status, err, want, wantText)
		}
		if r.Result != results[want] {
			t.Errorf("%s: the result is %q", name, r.Result)
		}
	}
	found := func(s *Snapshot, kind Kind, n int64) { s.Anomalies[kind] = &Anomaly{Kind: kind, Count: n} }
	limits := func(p99 time.Duration, errors string, then func(*Snapshot)) func(*Options, *Snapshot) {
		return func(o *Options, s *Snapshot) {
			o.MaxP99 = p99
			if errors != "" {
				if err := o.MaxErrors.Set(errors); err != nil {
					t.Fatal(err)
				}
			}
			then(s)
		}
	}
	f("nothing", StatusOK, "", func(*Options, *Snapshot) {})
	f("an anomaly", StatusAnomalies, "anomalies were found: 1", limits(0, "", func(s *Snapshot) { found(s, Reset, 1) }))
	f("interrupted", StatusInterrupted, "interrupted", limits(0, "", func(s *Snapshot) { s.Open = interrupted }))
	f("interrupted, with an anomaly", StatusAnomalies, "", limits(0, "", func(s *Snapshot) { found(s, Reset, 1); s.Open = interrupted }))
	f("a p99 that is met", StatusOK, "", limits(50*time.Millisecond, "", func(*Snapshot) {}))
	f("a p99 that is missed", StatusThreshold, "threshold missed: p99 is 40", limits(30*time.Millisecond, "", func(*Snapshot) {}))
	f("a p99 of nothing", StatusThreshold, "no request was successful", limits(time.Second, "", func(s *Snapshot) { clear(s.Exchange) }))
	f("a p99 that is missed, and an anomaly", StatusAnomalies, "", limits(30*time.Millisecond, "", func(s *Snapshot) { found(s, Reset, 1) }))
	f("a share of errors", StatusOK, "", limits(0, "0.1%", func(s *Snapshot) { found(s, Reset, 1) }))
	f("too large a share", StatusThreshold, "threshold missed: 3 errors in 1,003 requests, the limit is 0.1%", limits(0, "0.1%", func(s *Snapshot) { found(s, Reset, 2); found(s, Timeout, 1) }))
	f("refused connects", StatusThreshold, "threshold missed: 3 errors (2 × connect refused) in 1,003 requests and refused connects, the limit is 0.1%", limits(0, "0.1%", func(s *Snapshot) { found(s, Refused, 2); found(s, Reset, 1) }))
	f("a number of refused connects", StatusOK, "", limits(0, "2", func(s *Snapshot) { found(s, Refused, 2) }))
	f("a number of errors", StatusOK, "", limits(0, "2", func(s *Snapshot) { found(s, Reset, 2) }))
	f("too many errors", StatusThreshold, "", limits(0, "2", func(s *Snapshot) { found(s, Reset, 3) }))
	f("no errors", StatusOK, "", limits(0, "0", func(*Snapshot) {}))
	f("one error where none may be", StatusThreshold, "", limits(0, "0", func(s *Snapshot) { found(s, Reset, 1) }))
	f("what no threshold allows", StatusAnomalies, "anomalies were found: 1", limits(0, "50%", func(s *Snapshot) { found(s, WrongAddress, 1) }))
	f("never answered", StatusNoAnswer, "127.0.0.1:80 never answered", limits(time.Second, "5%", func(s *Snapshot) { s.Exchanges, s.Received = 0, 0; found(s, Refused, 9) }))
	f("interrupted before anything happened", StatusInterrupted, "", limits(0, "", func(s *Snapshot) { s.Exchanges, s.Received, s.Open = 0, 0, interrupted }))
	f("closed because of faults", StatusAnomalies, "", limits(0, "", func(s *Snapshot) {
		s.Exchanges, s.Received = 0, 0
		s.Outcomes["faults"] = map[string]int64{closed: 5}
		found(s, UnexpectedOutcome, 5)
	}))
}

// interrupted marks a snapshot of TestVerdict.
const interrupted = 77

func TestLimit(t *testing.T) {
	f := func(text string, want Limit) {
		t.Helper()
		var l Limit
		if err := l.Set(text); err != nil || l != want || l.String() != text {
			t.Errorf("%q is %+v (%s), %v", text, l, l.String(), err)
		}
	}
	f("0", Limit{Given: true})
	f("10", Limit{Given: true, Count: 10})
	f("0.5%", Limit{Given: true, Share: 0.005})
	for _, s := range []string{"", "-1", "1.5", "101%", "x%", "1e3"} {
		if err := new(Limit).Set(s); err == nil {
			t.Errorf("%q is taken for a limit", s)
		}
	}
}

func TestRate(t *testing.T) {
	f := func(text string, want Rate, wantText string) {
		t.Helper()
		var r Rate
		if err := r.Set(text); err != nil || r != want || r.String() != wantText {
			t.Errorf("%q is %v (%s), %v", text, float64(r), r.String(), err)
		}
	}
	f("500/s", 500, "500/s")
	f("0.5/s", 0.5, "0.5/s")
	f("90/m", 1.5, "1.5/s")
	f("7200/h", 2, "2/s")
	for _, s := range []string{"", "500", "0/s", "-1/s", "NaN/s", "Inf/s", "5/d", "/s", "5/", "5 /s"} {
		if err := new(Rate).Set(s); err == nil {
			t.Errorf("%q is taken for a rate", s)
		}
	}
}

// TestNeverAnswered: three targets refuse connections, stay silent, and close connections.
func TestNeverAnswered(t *testing.T) {
	noLeaks(t)
	f := func(target string, change func(*Options)) {
		t.Helper()
		if r := soak(t, target, change, anomalies(3)); r.Status != StatusNoAnswer {
			t.Errorf("the exit status is %d, %v", r.Status, r.Err())
		}
	}
	f("http://127.0.0.1:1/", func(*Options) {})
	f(serve(t, func(c net.Conn) { io.Copy(io.Discard, c) }), func(o *Options) { o.Timeout = 50 * time.Millisecond })
	f(serve(t, func(c net.Conn) { http.ReadRequest(newReader(c)) }), func(*Options) {})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := Defaults()
	o.Targets = []string{"127.0.0.1:1"}
	if err := o.Prepare(); err != nil {
		t.Fatal(err)
	}
	if r, err := Run(ctx, &o, nil, nil); err != nil || r.Status == StatusOK {
		t.Errorf("a run that never was: %v, %v", r, err)
	}
}
