package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// peer is a connection of a client or an endpoint, used by a test.
type peer struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

func newPeer(t testing.TB, c net.Conn) *peer {
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return &peer{Conn: c, t: t, r: bufio.NewReader(c)}
}

// dial connects to a listener.
func (r *rig) dial(listener string) *peer {
	r.Helper()
	network := "tcp"
	if strings.HasPrefix(r.addrs[listener], "/") {
		network = "unix"
	}
	c, err := net.Dial(network, r.addrs[listener])
	if err != nil {
		r.Fatal(err)
	}
	return newPeer(r.TB, c)
}

// dialTLS connects to a listener and does the handshake.
func (r *rig) dialTLS(listener, sni string, change func(*tls.Config)) *peer {
	r.Helper()
	cfg := &tls.Config{ServerName: sni, InsecureSkipVerify: true}
	if change != nil {
		change(cfg)
	}
	p := r.dial(listener)
	tc := tls.Client(p.Conn, cfg)
	if err := tc.Handshake(); err != nil {
		r.Fatal(err)
	}
	return newPeer(r.TB, tc)
}

func (p *peer) write(format string, args ...any) {
	p.t.Helper()
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	if _, err := io.WriteString(p.Conn, format); err != nil {
		p.t.Fatalf("writing: %v", err)
	}
}

// head reads the head of a message.
func (p *peer) head() string {
	p.t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), "\r\n\r\n") {
		c, err := p.r.ReadByte()
		if err != nil {
			p.t.Fatalf("reading a head: %v after %q", err, b.String())
		}
		b.WriteByte(c)
	}
	return b.String()
}

func (p *peer) read(n int) string {
	p.t.Helper()
	b := make([]byte, n)
	if n, err := io.ReadFull(p.r, b); err != nil {
		p.t.Fatalf("reading: %v after %q", err, b[:n])
	}
	return string(b)
}

// wantRead reads bytes and checks that they are want.
func (p *peer) wantRead(want string) {
	p.t.Helper()
	if got := p.read(len(want)); got != want {
		p.t.Fatalf("read %q, not %q", got, want)
	}
}

// response reads a response with its body.
func (p *peer) response(method string) (*http.Response, string) {
	p.t.Helper()
	resp, body, err := p.tryResponse(method)
	if err != nil {
		p.t.Fatalf("reading a response: %v", err)
	}
	return resp, body
}

func (p *peer) tryResponse(method string) (*http.Response, string, error) {
	resp, err := http.ReadResponse(p.r, &http.Request{Method: method})
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(resp.Body)
	if text := string(body) + resp.Header.Get("Grpc-Message"); setting.MatchString(text) {
		p.t.Errorf("the response tells strangers about the configuration: %q", text)
	}
	return resp, string(body), err
}

// setting matches words of the configuration. The test of the root that looks for them in refusals explains them.
var setting = regexp.MustCompile(`\b[a-z]+_[a-z_]+\b|\b(limits|timeouts|listeners|backends|queue)\.[a-z]|\b(listener|backend|the route)s?\b`)

// wantResponse reads a response and checks its status and body.
func (p *peer) wantResponse(status int, body string) *http.Response {
	p.t.Helper()
	resp, got := p.response("GET")
	if resp.StatusCode != status || body != "*" && got != body {
		p.t.Fatalf("the response is %d with %q, not %d with %q", resp.StatusCode, got, status, body)
	}
	return resp
}

// wantEnd checks that the stream ends normally, or by a reset.
func (p *peer) wantEnd(reset bool) {
	p.t.Helper()
	rest, err := io.ReadAll(p.r)
	if len(rest) > 0 || (err != nil) != reset || os.IsTimeout(err) {
		p.t.Fatalf("instead of an end (reset: %t) came %q and %v", reset, rest, err)
	}
}

func (p *peer) closeWrite() { p.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// reset closes the connection with a reset.
func (p *peer) reset() {
	p.Conn.(*net.TCPConn).SetLinger(0)
	p.Close()
}

// endpoint is a server whose part a test plays.
type endpoint struct {
	testing.TB
	address string
	conns   chan *peer
}

func newEndpoint(t testing.TB) *endpoint {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startEndpoint(t, ln)
}

func startEndpoint(t testing.TB, ln net.Listener) *endpoint {
	e := &endpoint{TB: t, address: ln.Addr().String(), conns: make(chan *peer, 1000)}
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			e.conns <- newPeer(t, c)
		}
	}()
	return e
}

// accept returns the next connection.
func (e *endpoint) accept() *peer {
	e.Helper()
	return next(e, e.conns, "connection to an endpoint")
}

// untouched checks that weir has made no connection.
func (e *endpoint) untouched() {
	e.Helper()
	select {
	case <-e.conns:
		e.Error("the endpoint got a connection")
	default:
	}
}

// newHandler returns an endpoint that answers without the test.
func newHandler(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { s.Serve(ln); close(done) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			s.Close()
		}
		<-done
	})
	return ln.Addr().String()
}

// echo answers with the request's path and its body.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(w, "%s %s", r.URL.Path, body)
}

// refusedAddress returns an address on which no process listens.
func refusedAddress(t testing.TB) string {
	t.Helper()
	address, err := freeport.Nobody.Take("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return address
}
