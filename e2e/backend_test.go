package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weirproxy/weir/e2e/freeport"
)

// webBackend is a net/http server. Its responses report the request that it received.
type webBackend struct {
	name, address string
	server        *http.Server
	connections   atomic.Int64 // accepted since the start
	requests      atomic.Int64
	sick          atomic.Bool // /healthz answers 503

	held    chan struct{} // receives one value for each request to /hold
	release chan struct{} // a value lets one request to /hold continue, closing it lets all continue
}

// seen is a request as a webBackend received it.
type seen struct {
	Backend, Remote, Method, Host, URI, Proto string
	Header, Trailer                           http.Header
	Length                                    int64  // length of the body
	Sum                                       string // SHA-256 of the body
}

func newWebBackend(t testing.TB, name string) *webBackend {
	t.Helper()
	b := &webBackend{name: name, address: freePort(t), held: make(chan struct{}, 1000), release: make(chan struct{})}
	b.open(t)
	t.Cleanup(func() { b.server.Close() })
	return b
}

// open starts to listen, also after close.
func (b *webBackend) open(t testing.TB) {
	t.Helper()
	l, err := freeport.Listen(b.address)
	if err != nil {
		t.Fatal(err)
	}
	b.server = &http.Server{Handler: b, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			b.connections.Add(1)
		}
	}}
	go b.server.Serve(l)
}

// arrived waits until the backend has received a request to /hold.
func (b *webBackend) arrived(t testing.TB) {
	t.Helper()
	select {
	case <-b.held:
	case <-time.After(patience):
		t.Fatal("the request does not arrive")
	}
}

// close stops listening and closes all connections.
func (b *webBackend) close() { b.server.Close() }

func (b *webBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if first == "healthz" {
		if b.sick.Load() {
			w.WriteHeader(503)
		}
		return
	}
	b.requests.Add(1)
	switch first {
	case "bytes":
		n, _ := strconv.Atoi(rest)
		w.Header().Set("Content-Length", rest)
		w.Write(pattern(n))
	case "chunked":
		n, _ := strconv.Atoi(rest)
		for part := pattern(n); len(part) > 0; part = part[min(len(part), 1000):] {
			w.Write(part[:min(len(part), 1000)])
			w.(http.Flusher).Flush()
		}
	case "status":
		n, _ := strconv.Atoi(rest)
		w.WriteHeader(n)
	case "early":
		http.Error(w, "no need to read that", http.StatusForbidden)
	case "ws":
		echoWebSocket(w, r)
	case "hold":
		b.held <- struct{}{}
		select {
		case <-b.release:
		case <-r.Context().Done():
		}
		b.report(w, r)
	case "begin": // a response without an end
		io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		b.report(w, r)
	}
}

func (b *webBackend) report(w http.ResponseWriter, r *http.Request) {
	sum := sha256.New()
	n, err := io.Copy(sum, r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the sender gave up: the response must not look complete
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(seen{
		Backend: b.name, Remote: r.RemoteAddr, Method: r.Method, Host: r.Host, URI: r.RequestURI, Proto: r.Proto,
		Header: r.Header, Trailer: r.Trailer, Length: n, Sum: hex.EncodeToString(sum.Sum(nil)),
	})
}

func echoWebSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	for {
		kind, message, err := c.Read(context.Background())
		if err != nil {
			return
		}
		if err := c.Write(context.Background(), kind, message); err != nil {
			return
		}
	}
}

// pattern returns n bytes without a short period. Each call returns the same bytes.
func pattern(n int) []byte {
	b := make([]byte, n)
	source := rand.NewChaCha8([32]byte{1})
	source.Read(b)
	return b
}

func sum256(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// rawBackend reads requests with its own simple parser, and keeps each head byte for byte. It parses all
// bytes after a request as the next request. A smuggler needs such a backend.
type rawBackend struct {
	address string
	lock    sync.Mutex
	heads   []string
	trailer strings.Builder // the trailers of all requests
	// answer is the response to each request.
	answer string
}

func newRawBackend(t testing.TB) *rawBackend {
	t.Helper()
	b := &rawBackend{answer: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nraw"}
	b.address = serve(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		for b.request(r) == nil {
			if _, err := io.WriteString(c, b.answer); err != nil {
				return
			}
		}
	})
	return b
}

func (b *rawBackend) request(r *bufio.Reader) error {
	var head strings.Builder
	var length int64
	var chunked bool
	for {
		line, err := r.ReadString('\n')
		head.WriteString(line)
		if err != nil {
			return err
		}
		if strings.TrimRight(line, "\r\n") == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "content-length":
			length, _ = strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		case "transfer-encoding":
			chunked = strings.Contains(strings.ToLower(value), "chunked")
		}
	}
	b.lock.Lock()
	b.heads = append(b.heads, head.String())
	b.lock.Unlock()
	if !chunked {
		_, err := io.CopyN(io.Discard, r, length)
		return err
	}
	if _, err := io.Copy(io.Discard, httputil.NewChunkedReader(r)); err != nil {
		return err
	}
	for { // trailers
		line, err := r.ReadString('\n')
		if err != nil || strings.TrimRight(line, "\r\n") == "" {
			return err
		}
		b.lock.Lock()
		b.trailer.WriteString(line)
		b.lock.Unlock()
	}
}

// trailers returns the trailer lines of all requests so far.
func (b *rawBackend) trailers() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.trailer.String()
}

// seen returns the request heads so far.
func (b *rawBackend) seen() []string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return append([]string(nil), b.heads...)
}

// serve accepts connections on a free port and hands each to handle, which need not close it.
func serve(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	var open sync.Map
	t.Cleanup(func() {
		l.Close()
		open.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Store(c, nil)
			go func() {
				defer open.Delete(c)
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return l.Addr().String()
}

// echoBackend sends back all bytes that it receives. It closes its sending half when the client has closed
// its own, and counts connections.
type echoBackend struct {
	address     string
	connections atomic.Int64
}

func newEchoBackend(t testing.TB) *echoBackend {
	t.Helper()
	b := &echoBackend{}
	b.address = serve(t, func(c net.Conn) {
		b.connections.Add(1)
		io.Copy(c, c)
	})
	return b
}

// ask sends one request on c and reads the whole response.
func ask(c net.Conn, r *bufio.Reader, method, host, uri string, fields ...string) (*http.Response, []byte, error) {
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, uri, host)
	for _, f := range fields {
		head.WriteString(f + "\r\n")
	}
	head.WriteString("\r\n")
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(head.Bytes()); err != nil {
		return nil, nil, err
	}
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// askSeen sends one request on c and returns what the webBackend received.
func askSeen(c net.Conn, host, uri string, fields ...string) (seen, error) {
	resp, body, err := ask(c, bufio.NewReader(c), "GET", host, uri, fields...)
	if err != nil {
		return seen{}, err
	}
	if resp.StatusCode != 200 {
		return seen{}, fmt.Errorf("%s: %s", resp.Status, body)
	}
	var s seen
	if err := json.Unmarshal(body, &s); err != nil {
		return seen{}, errors.Join(fmt.Errorf("not a report: %q", body), err)
	}
	return s, nil
}
