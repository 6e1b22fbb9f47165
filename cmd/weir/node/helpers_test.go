package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/weirproxy/weir/config/file"
)

// patience is the timeout of each wait in a test.
const patience = 10 * time.Second

// running is a server with a configuration in effect.
type running struct {
	*server
	t     testing.TB
	words []string // the addresses that replace @words in configurations
	lines *observer.ObservedLogs
	ended bool
}

// newRunning applies a configuration. In it, @app stands for a backend that answers with
// its name; @NAME with any other name stands for a free address.
func newRunning(t *testing.T, text string, names ...string) *running {
	t.Helper()
	r := makeRunning(t, names...)
	if err := r.try(text); err != nil {
		t.Fatal(err)
	}
	return r
}

// makeRunning makes a server without a configuration.
func makeRunning(t testing.TB, names ...string) *running {
	t.Helper()
	before := runtime.NumGoroutine()
	core, lines := observer.New(zap.DebugLevel)
	r := &running{server: newServer(zap.New(core), zap.NewAtomicLevel(), Build{}), t: t, lines: lines}
	t.Cleanup(func() {
		switch {
		case r.ended:
		case r.fileInEffect() == nil: // the test has failed before
			r.close()
		default:
			r.end(0)
		}
		// The kernel may take long to close a descriptor of inotify: it has been seen to need more than 10 s beside much other work.
		eventuallyIn(t, time.Minute, "goroutines end", func() error {
			if n := runtime.NumGoroutine(); n > before+1 { // one goroutine waits for all parked connections
				buf := make([]byte, 1<<20)
				return fmt.Errorf("%d of them, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
			}
			return nil
		})
	})
	for _, name := range names {
		r.words = append(r.words, "@"+name, unusedAddress(t))
	}
	return r
}

// address returns the address that replaced @name in the configuration.
func (r *running) address(name string) string {
	for i := 0; i < len(r.words); i += 2 {
		if r.words[i] == "@"+name {
			return r.words[i+1]
		}
	}
	r.t.Fatalf("@%s is not known", name)
	return ""
}

// try applies a configuration.
func (r *running) try(text string) error {
	r.t.Helper()
	text = strings.NewReplacer(r.words...).Replace(text)
	if !strings.Contains(text, "admin:") {
		text += "\nadmin: {address: off}\n"
	}
	cfg, err := file.Parse("test", []byte(text), os.LookupEnv)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.apply(cfg)
}

func (r *running) load(text string) {
	r.t.Helper()
	if err := r.try(text); err != nil {
		r.t.Fatal(err)
	}
}

// end shuts the server down; after the given time it aborts open connections.
func (r *running) end(after time.Duration) error {
	r.ended = true
	now := make(chan struct{})
	timer := time.AfterFunc(after, func() { close(now) })
	defer timer.Stop()
	return r.shutdown(now)
}

func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	eventuallyIn(t, patience, what, check)
}

func eventuallyIn(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s: %v", what, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// bySocket makes requests to an admin port over the Unix socket beside it, as weir's commands do.
var bySocket = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", AdminSocket(address))
}}}

// client is a connection of a test.
type client struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

func (r *running) dial(name string) *client {
	r.t.Helper()
	c, err := net.Dial("tcp", r.address(name))
	if err != nil {
		r.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	r.t.Cleanup(func() { c.Close() })
	return &client{c, r.t, bufio.NewReader(c)}
}

// ask requests a path and returns the response with its body.
func (c *client) ask(path string) (*http.Response, string) {
	c.t.Helper()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
	return c.answer()
}

func (c *client) answer() (*http.Response, string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(body)
}

// want requests / over a new connection.
func (r *running) want(name string, status int, body string) {
	r.t.Helper()
	c := r.dial(name)
	defer c.Close()
	if resp, got := c.ask("/"); resp.StatusCode != status || got != body {
		r.t.Errorf("%s answers %d with %q, not %d with %q", name, resp.StatusCode, got, status, body)
	}
}

// refused returns true if the address of that name refuses connections.
func (r *running) refused(name string) bool {
	c, err := net.Dial("tcp", r.address(name))
	if err == nil {
		c.Close()
	}
	return err != nil
}

// app is a backend. It answers with its name; /hold waits until the test releases it.
type app struct {
	address string
	held    chan struct{}
	let     chan struct{}
}

func newApp(t *testing.T, name string) *app {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &app{address: ln.Addr().String(), held: make(chan struct{}, 100), let: make(chan struct{})}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/hold" {
			a.held <- struct{}{}
			select {
			case <-a.let:
			case <-req.Context().Done():
			}
		}
		io.WriteString(w, name)
	})}
	done := make(chan struct{})
	go func() { s.Serve(ln); close(done) }()
	t.Cleanup(func() { s.Close(); <-done })
	return a
}

// newEcho starts a TCP backend that sends every byte back. It returns the address.
func newEcho(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	return ln.Addr().String()
}
