package backend

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/header"
)

// A process without free descriptors does not mean that the endpoint failed.
func TestDialWithoutDescriptor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f := func(want error, wantTimes int, errs ...error) {
			t.Helper()
			var waiting atomic.Int64
			times := 0
			_, err := withDescriptor(ctx, &waiting, func() (net.Conn, error) {
				if n := waiting.Load(); n != int64(min(times, 1)) { // not before the first attempt
					t.Errorf("%d dials count as waiting at attempt %d", n, times)
				}
				times++
				return nil, errs[min(times, len(errs))-1]
			})
			if n := waiting.Load(); n != 0 {
				t.Errorf("afterwards %d dials count as waiting", n)
			}
			if !errors.Is(err, want) || times != wantTimes {
				t.Errorf("after %d dials there is %v, want %d and %v", times, err, wantTimes, want)
			}
		}
		short := os.NewSyscallError("socket", syscall.EMFILE)
		f(nil, 1, nil)
		f(nil, 4, short, short, short, nil)
		f(syscall.ECONNREFUSED, 1, syscall.ECONNREFUSED)
		f(syscall.EMFILE, 1+int((time.Second-3*retryExhausted)/retryExhausted), short) // until the deadline
	})
}

// serve passes each accepted connection to handle. The end of the test waits until handle has returned.
func serve(t *testing.T, network, address string, handle func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			handle(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

func echo(c net.Conn) { io.Copy(c, c) }

func dialOnce(t *testing.T, cfg config.Backend, out *Outgoing) (*Link, error) {
	t.Helper()
	w := newWorld(t, Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}})
	w.update(cfg)
	return acquire(t, w.set.Backend(cfg.Name)).Dial(context.Background(), out)
}

func wantEcho(t *testing.T, s *Link) {
	t.Helper()
	s.SetReadDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, 5)
	if _, err := io.WriteString(s.own.rw, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s.own.rw, got); err != nil || string(got) != "hello" {
		t.Errorf("echo %q, %v", got, err)
	}
	s.Close()
}

func TestDialPlainAndUnix(t *testing.T) {
	for _, address := range []string{
		serve(t, "tcp", "127.0.0.1:0", echo),
		"unix:" + serve(t, "unix", filepath.Join(t.TempDir(), "app.sock"), echo),
	} {
		s, err := dialOnce(t, settings("app", address), nil)
		if err != nil {
			t.Fatal(err)
		}
		wantEcho(t, s)
	}
}

func TestDialSendsTheHeader(t *testing.T) {
	got := make(chan header.Header, 1)
	address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		var buf []byte
		for {
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err != nil {
				t.Errorf("after %q: %v", buf, err)
				return
			}
			buf = append(buf, b...)
			if n, _ := header.Scan(buf); n > 0 {
				h, err := header.Parse(buf)
				if err != nil {
					t.Error(err)
				}
				got <- h
				io.Copy(c, c)
				return
			}
		}
	})
	four, six, local := netip.MustParseAddrPort("198.51.100.1:1234"), netip.MustParseAddrPort("[2001:db8::1]:1234"), netip.MustParseAddrPort("203.0.113.1:443")
	for version := 1; version <= 2; version++ {
		cfg := settings("app", address)
		cfg.SendProxy = version
		for _, out := range []*Outgoing{{Client: four, Local: local}, {Client: six, Local: local}, {Client: six}, {Client: four}} {
			out.TLVs.Authority = "app.example.org"
			s, err := dialOnce(t, cfg, out)
			if err != nil {
				t.Fatal(err)
			}
			wantEcho(t, s)
			h := <-got
			want := out.Local
			if !want.IsValid() {
				want = s.own.Local
			}
			if h.Version != version || h.Source != out.Client || h.Destination != want || (h.TLVs.Authority != "") != (version == 2) {
				t.Errorf("v%d: %+v, want the destination %v", version, h, want)
			}
		}
		s, err := dialOnce(t, cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantEcho(t, s)
		if h := <-got; !h.Local {
			t.Errorf("v%d without a client: %+v", version, h)
		}
	}
}

// authority issues certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	file string // its own certificate
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.file, _ = a.issue("ca", true)
	return a
}

// issue makes a certificate for a name or address and returns its files.
func (a *authority) issue(name string, ca bool) (cert, key string) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: ca, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	parent, signer := a.cert, a.key
	if ca {
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	if ca {
		a.key = private
		a.cert, _ = x509.ParseCertificate(der)
	}
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", keyDER)
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// serveTLS echoes under a certificate for name; seen gets each connection's state.
func (a *authority) serveTLS(name string, auth tls.ClientAuthType, seen chan<- tls.ConnectionState) string {
	cert, key := a.issue(name, false)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		a.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: auth, ClientCAs: pool, NextProtos: []string{"h2", "http/1.1"}}
	return serve(a.t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		t := tls.Server(c, cfg)
		if t.Handshake() == nil {
			seen <- t.ConnectionState()
			io.Copy(t, t)
		}
	})
}

func secure(cfg config.Backend, t config.BackendTLS) config.Backend {
	cfg.Protocol, cfg.TLS = config.ProtocolHTTPS, t
	return cfg
}

func TestCertificatesAreVerified(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	seen := make(chan tls.ConnectionState, 10)
	byName := a.serveTLS("app.internal", tls.NoClientCert, seen)
	byAddress := a.serveTLS("127.0.0.1", tls.NoClientCert, seen)
	_, namePort, _ := net.SplitHostPort(byName)
	named := net.JoinHostPort("app.internal", namePort)

	f := func(address string, cfg config.BackendTLS, wantSNI, wantErr string) {
		t.Helper()
		s, err := dialOnce(t, secure(settings("app", address), cfg), nil)
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) || !strings.Contains(err.Error(), `backend "app"`) {
				t.Errorf("%s %+v: error %v, want one with %q", address, cfg, err, wantErr)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		wantEcho(t, s)
		if state := <-seen; state.ServerName != wantSNI || state.NegotiatedProtocol != "http/1.1" {
			t.Errorf("SNI %q, ALPN %q", state.ServerName, state.NegotiatedProtocol)
		}
	}
	f(named, config.BackendTLS{CAFile: a.file}, "app.internal", "")
	f(byName, config.BackendTLS{CAFile: a.file, ServerName: "app.internal"}, "app.internal", "")
	f(byAddress, config.BackendTLS{CAFile: a.file}, "", "") // the configured host is an address
	f(byName, config.BackendTLS{CAFile: a.file}, "", "tls.server_name")
	f(named, config.BackendTLS{CAFile: a.file, ServerName: "other.internal"}, "", "other.internal")
	f(named, config.BackendTLS{CAFile: stranger.file}, "", "unknown authority")
	f(named, config.BackendTLS{}, "", "unknown authority") // the system's CAs
	f(byName, config.BackendTLS{InsecureSkipVerify: true}, "", "")
}

func TestClientCertificate(t *testing.T) {
	a := newAuthority(t)
	seen := make(chan tls.ConnectionState, 10)
	address := a.serveTLS("127.0.0.1", tls.RequireAndVerifyClientCert, seen)
	cert, key := a.issue("weir", false)
	s, err := dialOnce(t, secure(settings("app", address), config.BackendTLS{CAFile: a.file, CertFile: cert, KeyFile: key}), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantEcho(t, s)
	if state := <-seen; state.PeerCertificates[0].Subject.CommonName != "weir" {
		t.Errorf("the endpoint saw %v", state.PeerCertificates[0].Subject)
	}
}

func TestReloadKeepsTLSSessionsUntilTheSettingsChange(t *testing.T) {
	a := newAuthority(t)
	seen := make(chan tls.ConnectionState, 10)
	address := a.serveTLS("127.0.0.1", tls.NoClientCert, seen)
	w := newWorld(t, Options{})
	resumed := func(cfg config.BackendTLS) bool {
		t.Helper()
		w.update(secure(settings("app", address), cfg))
		s, err := acquire(t, w.set.Backend("app")).Dial(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		wantEcho(t, s)
		return (<-seen).DidResume
	}
	cfg := config.BackendTLS{CAFile: a.file}
	if resumed(cfg) || !resumed(cfg) || !resumed(cfg) {
		t.Error("reloads forget TLS sessions")
	}
	cfg.CertFile, cfg.KeyFile = a.issue("weir", false)
	if resumed(cfg) || !resumed(cfg) {
		t.Error("a session outlived the settings it was made with")
	}
	cfg.CertFile, cfg.KeyFile = a.issue("weir", false) // the same files with another certificate
	if resumed(cfg) {
		t.Error("a session outlived its client certificate")
	}
	for what, change := range map[string]func(){
		"min_version":     func() { cfg.MinVersion = tls.VersionTLS11 },
		"max_version":     func() { cfg.MaxVersion = tls.VersionTLS13 },
		"cipher_suites":   func() { cfg.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA} },
		"sha1_signatures": func() { cfg.SHA1 = true },
	} {
		if change(); resumed(cfg) {
			t.Errorf("a session outlived another %s", what)
		}
	}
}

func TestConnectTimeoutCoversTheHandshake(t *testing.T) {
	silent := make(chan struct{})
	address := serve(t, "tcp", "127.0.0.1:0", func(net.Conn) { <-silent })
	t.Cleanup(func() { close(silent) }) // runs before the cleanup of the server
	cfg := secure(settings("app", address), config.BackendTLS{})
	cfg.Timeouts.Connect = 500 * time.Millisecond // the TCP connection is complete before that
	_, err := dialOnce(t, cfg, nil)
	if !errors.Is(err, context.DeadlineExceeded) ||
		err.Error() != "the TLS handshake with endpoint "+address+` of backend "app" took longer than 500ms (backends.app.timeouts.connect)` {
		t.Errorf("error %v", err)
	}
}

func TestDialEndsWithTheClient(t *testing.T) {
	begun, silent := make(chan struct{}), make(chan struct{})
	address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		bufio.NewReader(c).ReadByte()
		close(begun)
		<-silent
	})
	t.Cleanup(func() { close(silent) })
	w := newWorld(t, Options{})
	w.update(secure(settings("app", address), config.BackendTLS{}))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-begun
		cancel()
	}()
	if _, err := acquire(t, w.set.Backend("app")).Dial(ctx, nil); !errors.Is(err, context.Canceled) || !ourOwn(err) {
		t.Errorf("error %v", err)
	}
}

func TestDialRefused(t *testing.T) {
	const address = "127.0.0.1:1" // no process listens there
	_, err := dialOnce(t, settings("app", address), nil)
	if err == nil || ourOwn(err) || !strings.Contains(err.Error(), address) {
		t.Errorf("error %v", err)
	}
}

func TestCheckDials(t *testing.T) {
	a := newAuthority(t)
	seen := make(chan tls.ConnectionState, 10)
	address := a.serveTLS("127.0.0.1", tls.NoClientCert, seen)
	w := newWorld(t, Options{})
	cfg := checked(secure(settings("app", "127.0.0.1:1"), config.BackendTLS{CAFile: a.file}))
	cfg.HealthCheck.Port = int(netip.MustParseAddrPort(address).Port())
	w.update(cfg)
	c := w.check("127.0.0.1:1")
	if c.Address() != address {
		t.Errorf("the check goes to %s, want %s", c.Address(), address)
	}
	for _, forHTTP := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		nc, err := c.Dial(ctx, forHTTP)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		secured := false
		if a, ok := nc.(*checkHTTP1); ok {
			_, secured = a.cuttable.(checkSocket).Conn.(*tls.Conn)
		}
		if secured != forHTTP {
			t.Errorf("for HTTP %t: a %T", forHTTP, nc)
		}
		nc.Close()
	}
}

func TestSweepFindsWhatTheEndpointClosed(t *testing.T) {
	closing := make(chan string, 3)
	address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) { // the endpoint serves one connection at a time
		switch <-closing {
		case "close":
			c.Close()
		case "speak":
			c.Write([]byte("HTTP/1.1 408 Request Timeout\r\n\r\n"))
			io.Copy(io.Discard, c)
		default:
			io.Copy(io.Discard, c)
		}
	})
	w := newWorld(t, Options{})
	w.update(settings("app", address))
	e := acquire(t, w.set.Backend("app"))
	f := func(how string, want bool) {
		t.Helper()
		s, err := e.Dial(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		closing <- how
		if want {
			waitReadable(t, s)
		}
		if got := s.ended(); got != want {
			t.Errorf("%s: ended %t, want %t", how, got, want)
		}
		e.Keep(s)
		e.sweep(60)
		if got := e.IdleCount() == 0; got != want {
			t.Errorf("%s: swept %t, want %t", how, got, want)
		}
		e.Idle(Need{})
	}
	f("stay", false)
	f("close", true)
	f("speak", true)
}

// waitReadable waits until bytes or the end of the stream have arrived. It does not read them.
func waitReadable(t *testing.T, s *Link) {
	t.Helper()
	s.SetReadDeadline(time.Now().Add(10 * time.Second))
	err := s.Await(func() (there bool) {
		s.own.Control(func(fd uintptr) {
			_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			there = err != syscall.EAGAIN
		})
		return there
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNothingLeaks(t *testing.T) {
	address := serve(t, "tcp", "127.0.0.1:0", echo)
	before, open := runtime.NumGoroutine(), descriptors(t)
	for range 20 {
		s := NewSet(Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}})
		_, port, _ := net.SplitHostPort(address)
		if _, err := s.Update(listOf(settings("app", "app.internal:"+port)), NodeInfo{}); err != nil {
			t.Fatal(err)
		}
		e := acquire(t, s.Backend("app"))
		link, err := e.Dial(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		e.Keep(link)
		e.Release()
		s.Close()
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before || descriptors(t) > open {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines and %d descriptors, at first %d and %d", runtime.NumGoroutine(), descriptors(t), before, open)
		}
		runtime.Gosched()
	}
}

func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// weir connects to a tcp backend with a tls section as to a backend with protocol https. But
// it offers no protocols by ALPN unless the section lists some.
func TestTLSOfTCPBackends(t *testing.T) {
	a := newAuthority(t)
	seen := make(chan tls.ConnectionState, 10)
	address := a.serveTLS("127.0.0.1", tls.NoClientCert, seen)
	w := newWorld(t, Options{})
	cfg := settings("app", address)
	cfg.TLS = config.BackendTLS{CAFile: a.file}
	f := func(protocol config.Protocol, alpn []string, want string, resumed bool) {
		t.Helper()
		cfg.Protocol, cfg.Secure, cfg.TLS.ALPN = protocol, protocol == config.ProtocolTCP, alpn
		w.update(cfg)
		s, err := acquire(t, w.set.Backend("app")).Dial(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		wantEcho(t, s)
		if state := <-seen; state.NegotiatedProtocol != want || state.DidResume != resumed {
			t.Errorf("%s, %q: ALPN %q, resumed: %t", protocol, alpn, state.NegotiatedProtocol, state.DidResume)
		}
	}
	f(config.ProtocolHTTPS, nil, "http/1.1", false)
	f(config.ProtocolTCP, nil, "", false) // the settings of the previous protocol have no effect
	f(config.ProtocolTCP, nil, "", true)
	f(config.ProtocolTCP, []string{"x", "http/1.1"}, "http/1.1", false)
	f(config.ProtocolTCP, []string{"h2"}, "h2", false)
	f(config.ProtocolHTTPS, nil, "http/1.1", false)

	cfg.Protocol, cfg.Secure, cfg.TLS.ALPN, cfg.TLS.CAFile = config.ProtocolTCP, true, nil, newAuthority(t).file
	w.update(cfg)
	if _, err := acquire(t, w.set.Backend("app")).Dial(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("the error is %v", err)
	}
}
