package soak

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/weirproxy/weir/e2e/freeport"
)

// app is an HTTP endpoint that can shut down gracefully, and that can die.
type app struct {
	address  string
	sick     atomic.Bool // its health check fails
	requests atomic.Int64

	mu     sync.Mutex
	server *http.Server
	open   map[net.Conn]bool
}

func newApp(t *testing.T) *app {
	a := &app{address: freeAddress(t, "127.0.0.1")}
	if err := a.come(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.die)
	return a
}

// come starts to listen, also after die.
func (a *app) come() error {
	l, err := freeport.Listen(a.address)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sick.Store(false)
	a.open = map[net.Conn]bool{}
	a.server = &http.Server{Handler: a, ConnState: a.track}
	go a.server.Serve(l)
	return nil
}

func (a *app) track(c net.Conn, s http.ConnState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s {
	case http.StateNew:
		a.open[c] = true
	case http.StateClosed:
		delete(a.open, c)
	}
}

// die resets all connections at once.
func (a *app) die() {
	a.mu.Lock()
	for c := range a.open {
		if c, ok := c.(*net.TCPConn); ok {
			c.SetLinger(0)
		}
	}
	server := a.server
	a.mu.Unlock()
	server.Close()
}

func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/healthz":
		if a.sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	case rest == "ws":
		echoWebSocket(w, r)
		return
	}
	a.requests.Add(1)
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client gave up
	}
	line := fmt.Sprintf("client=%s got=%d\n", r.Header.Get("X-Forwarded-For"), n)
	size := 0
	if text, ok := strings.CutPrefix(rest, "bytes/"); ok {
		size, _ = strconv.Atoi(text)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(line)+size))
	io.WriteString(w, line)
	for part := make([]byte, 16<<10); size > 0; size -= min(size, len(part)) {
		if _, err := w.Write(part[:min(size, len(part))]); err != nil {
			return
		}
	}
}

func echoWebSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	for {
		kind, message, err := c.Read(r.Context())
		if err == nil {
			err = c.Write(r.Context(), kind, message)
		}
		if err != nil {
			return
		}
	}
}

// echo is a TCP endpoint that sends back all bytes, and that can die.
type echo struct {
	address string
	mu      sync.Mutex
	l       net.Listener
	open    map[net.Conn]bool
}

func newEcho(t *testing.T) *echo {
	e := &echo{address: freeAddress(t, "127.0.0.1")}
	if err := e.come(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.die)
	return e
}

func (e *echo) come() (err error) {
	l, err := freeport.Listen(e.address)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.l, e.open = l, map[net.Conn]bool{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			if e.l == l {
				e.open[c] = true
				go e.serve(c)
			} else {
				c.Close()
			}
			e.mu.Unlock()
		}
	}()
	return nil
}

func (e *echo) serve(c net.Conn) {
	defer func() {
		e.mu.Lock()
		delete(e.open, c)
		e.mu.Unlock()
		c.Close()
	}()
	io.Copy(c, c)
}

// die resets all connections at once.
func (e *echo) die() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.l == nil {
		return
	}
	e.l.Close()
	e.l = nil
	for c := range e.open {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}
