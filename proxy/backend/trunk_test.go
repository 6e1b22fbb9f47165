package backend

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
)

// twoServer is an endpoint that speaks HTTP/2 without TLS.
type twoServer struct {
	*httptest.Server
	address      string
	opened, open atomic.Int32
	hold         chan struct{} // requests for /hold wait until it is closed
}

func newTwoServer(t *testing.T) *twoServer {
	t.Helper()
	s := &twoServer{hold: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			w.(http.Flusher).Flush()
			<-s.hold
		}
		io.WriteString(w, "ok")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.opened.Add(1)
			s.open.Add(1)
		case http.StateClosed:
			s.open.Add(-1)
		}
	}
	s.Start()
	s.address = s.Listener.Addr().String()
	t.Cleanup(s.Close)
	return s
}

func h2c(addresses ...string) config.Backend {
	b := settings("app", addresses...)
	b.Protocol = config.ProtocolH2C
	return b
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("waited in vain until %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}

// connect gets a link to the endpoint as an exchange does.
func connect(t *testing.T, e *Endpoint) *Link {
	t.Helper()
	if s := e.Idle(Need{}); s != nil {
		return s
	}
	s, err := e.Connect(context.Background(), nil, Need{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// begin sends a request. It returns a function that reads the response to its end.
func begin(t *testing.T, s *Link, path string) (finish func()) {
	t.Helper()
	var req message.Request
	req.Reset()
	req.SetMethod(req.StoreString("GET"))
	req.Target = req.StoreString(path)
	req.Add(message.Host, []byte("a"))
	s.HTTP.WriteHead(&req)
	s.HTTP.WriteEnd(&req)
	if err := s.HTTP.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		var res message.Response
		s.SetReadDeadline(time.Now().Add(20 * time.Second))
		if err := s.HTTP.ReadHead(&req, &res); err != nil || res.Status != 200 {
			t.Fatal(res.Status, err)
		}
		for !s.HTTP.BodyEnded() {
			if _, err := s.HTTP.ReadBody(&res); err != nil && err != io.EOF {
				t.Fatal(err)
			}
		}
	}
}

func get(t *testing.T, e *Endpoint) {
	t.Helper()
	s := connect(t, e)
	begin(t, s, "/")()
	e.Keep(s)
}

func TestBurstSharesConnections(t *testing.T) {
	server := newTwoServer(t)
	w := newWorld(t, Options{})
	w.update(h2c(server.address))
	e := acquire(t, w.set.Backend("app"))
	var all sync.WaitGroup
	links := make(chan *Link, 300)
	for range 300 {
		all.Go(func() { links <- connect(t, e) })
	}
	all.Wait()
	close(links)
	if n := e.SharedCount(); n < 2 || n > 4 { // an endpoint of net/http accepts 250 streams, weir uses 128
		t.Errorf("%d connections", n)
	}
	for s := range links {
		finish := begin(t, s, "/")
		all.Go(func() { finish(); e.Keep(s) })
	}
	all.Wait()
	before := server.opened.Load()
	for range 10 {
		get(t, e)
	}
	if n := server.opened.Load(); n != before || n > 4 {
		t.Errorf("%d connections, then %d", before, n)
	}
}

// If an endpoint does not accept connections, weir tries it once for all waiting exchanges.
func TestBurstToTheDead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var tries atomic.Int32
	release := make(chan struct{})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			tries.Add(1)
			go func() { <-release; c.Close() }()
		}
	}()
	w := newWorld(t, Options{})
	w.update(h2c(ln.Addr().String(), "127.0.0.1:1"))
	e := endpointOf(t, w.set.Backend("app"), ln.Addr().String())
	failures := make(chan error, 100)
	for range 100 {
		go func() {
			_, err := e.Connect(context.Background(), nil, Need{}, 0)
			e.Failed(err)
			failures <- err
		}()
	}
	eventually(t, "all wait", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.trunks.waiting) == 99
	})
	close(release)
	for range 100 {
		if err := <-failures; err == nil {
			t.Error("it did connect")
		}
	}
	if n := tries.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if n := e.failures.Load(); n != 1 {
		t.Errorf("%d failures were counted", n)
	}
}

func TestWaitForConnectionIsBounded(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // no goroutine accepts
	cfg := h2c(ln.Addr().String())
	cfg.Timeouts.Connect = 50 * time.Millisecond
	w := newWorld(t, Options{})
	w.update(cfg)
	e := acquire(t, w.set.Backend("app"))
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			_, err := e.Connect(context.Background(), nil, Need{}, 0)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(err.Error(), " took longer than 50ms (backends.app.timeouts.connect)") {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if e.trunks.dialing != 0 || len(e.trunks.waiting) != 0 {
		t.Errorf("%+v", &e.trunks)
	}
}

func TestIdleTrunksEnd(t *testing.T) {
	server := newTwoServer(t)
	w := newWorld(t, Options{})
	w.update(h2c(server.address))
	e := acquire(t, w.set.Backend("app"))
	get(t, e)
	if e.IdleCount() != 1 || e.SharedCount() != 1 {
		t.Errorf("%d idle of %d", e.IdleCount(), e.SharedCount())
	}
	s := connect(t, e)
	for range 10 {
		e.sweep(3)
	}
	begin(t, s, "/")()
	e.Keep(s)
	e.sweep(3)
	e.sweep(3)
	if server.open.Load() != 1 || e.IdleCount() != 1 {
		t.Error("it ended too early")
	}
	e.sweep(3)
	eventually(t, "the idle connection ends", func() bool { return server.open.Load() == 0 })
	if e.SharedCount() != 0 {
		t.Error("it is still there")
	}
	get(t, e)

	none := h2c(server.address)
	none.MaxIdle = 0
	w.update(none)
	get(t, e)
	eventually(t, "an idle connection beyond max_idle ends", func() bool { return server.open.Load() == 0 })
}

// Exchanges that already share a connection to a terminating endpoint keep it. New exchanges
// do not get it: it would delay the end of the endpoint.
func TestTrunkOfATerminatingEndpoint(t *testing.T) {
	server := newTwoServer(t)
	w := newWorld(t, Options{})
	cfg := h2c(server.address)
	w.update(cfg)
	e := acquire(t, w.set.Backend("app"))
	cfg.Endpoints[0].Terminating = true
	cfg.Endpoints = append(cfg.Endpoints, config.Endpoint{Address: "127.0.0.1:1", Weight: 1})
	w.update(cfg)
	s := connect(t, e) // an exchange that already uses the connection
	get(t, e)
	if n := server.opened.Load(); n != 1 {
		t.Errorf("%d connections for two exchanges", n)
	}
	begin(t, s, "/")()
	e.Keep(s)
	eventually(t, "the connection ends", func() bool { return server.open.Load() == 0 })
}

// Exchanges run to their end when their endpoint is removed, or when its settings change.
func TestTrunksRetire(t *testing.T) {
	server := newTwoServer(t)
	w := newWorld(t, Options{})
	w.update(h2c(server.address))
	e := acquire(t, w.set.Backend("app"))
	held := connect(t, e)
	finish := begin(t, held, "/hold")
	proxied := h2c(server.address)
	proxied.Timeouts.ResponseHead = 0 // does not affect how connections are made
	w.update(proxied)
	get(t, e)
	if n := server.opened.Load(); n != 1 {
		t.Errorf("%d connections after a reload that changed nothing of them", n)
	}
	secure := settings("app", server.address)
	w.update(secure) // HTTP/1.1
	if e.SharedCount() != 0 || e.Idle(Need{}) != nil {
		t.Error("the old connection is still used")
	}
	w.update(h2c("127.0.0.1:1"))
	if !e.Removed() {
		t.Error("the endpoint is there")
	}
	close(server.hold)
	finish()
	e.Keep(held)
	eventually(t, "the connection ends", func() bool { return server.open.Load() == 0 })
}

// A connection that ends with many exchanges is one failure.
func TestLostTrunkCountsOnce(t *testing.T) {
	server := newTwoServer(t)
	w := newWorld(t, Options{})
	w.update(h2c(server.address, "127.0.0.1:1"))
	e := endpointOf(t, w.set.Backend("app"), server.address)
	var links []*Link
	for range 10 {
		s := connect(t, e)
		begin(t, s, "/hold")
		links = append(links, s)
	}
	server.CloseClientConnections()
	for _, s := range links {
		var res message.Response
		s.SetReadDeadline(time.Now().Add(20 * time.Second))
		err := s.HTTP.ReadHead(nil, &res)
		for err == nil {
			_, err = s.HTTP.ReadBody(&res)
		}
		var lost *http2.LostError
		if !errors.As(err, &lost) {
			t.Fatal(err)
		}
		e.Failed(err)
		s.Close()
	}
	close(server.hold)
	if n := e.failures.Load(); n != 1 {
		t.Errorf("%d failures were counted", n)
	}
	get(t, e)
}

// Waiting exchanges get the room that others release.
func TestRoomIsHandedOn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var opened atomic.Int32
	go func() { // on each connection, the endpoint accepts one stream at a time
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			opened.Add(1)
			server := new(http2.Connection)
			server.Init(c, core.Config{Streams: 1}, func(x *http2.Exchange) {
				var req message.Request
				x.ReadHead(&req)
				res := &message.Response{Status: 200}
				x.WriteHead(&req, res)
				x.WriteEnd(res)
				x.Flush()
				x.Close()
			})
			server.Start()
			go func() { server.Step(); c.Close() }()
		}
	}()
	w := newWorld(t, Options{})
	cfg := h2c(ln.Addr().String())
	cfg.MaxIdle = 100 // no connection ends meanwhile
	w.update(cfg)
	e := acquire(t, w.set.Backend("app"))
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 10 {
				get(t, e)
			}
		})
	}
	all.Wait()
	if n := opened.Load(); n > 50 {
		t.Errorf("%d connections for 50 at a time", n)
	}
	var _ conn.Cuttable = (*http2.Call)(nil)
}

// An endpoint ends each connection after some requests, and leaves out those that it gets after them. weir learns
// the number from the first connection. When the endpoint has changed, weir forgets it.
func TestConnectionsThatTakeSomeRequests(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var most, opened, left atomic.Int32 // requests per connection; connections; requests that were left out
	most.Store(10)
	serve := func(c net.Conn) {
		defer c.Close()
		io.CopyN(io.Discard, c, int64(len(xhttp2.ClientPreface)))
		f := xhttp2.NewFramer(c, c)
		f.WriteSettings()
		for n := int32(0); ; {
			got, err := f.ReadFrame()
			if err != nil {
				return
			}
			h, ok := got.(*xhttp2.HeadersFrame)
			if !ok {
				continue
			}
			if n++; n > most.Load() {
				left.Add(1)
				continue
			}
			if n == most.Load() {
				f.WriteGoAway(h.StreamID, xhttp2.ErrCodeNo, nil)
			}
			f.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})
		}
	}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			opened.Add(1)
			go serve(c)
		}
	}()
	t.Cleanup(func() { l.Close() })
	w := newWorld(t, Options{})
	w.update(h2c(l.Addr().String()))
	e := acquire(t, w.set.Backend("app"))
	burst := func(n int) (refused int) {
		var links []*Link
		for range n {
			links = append(links, connect(t, e))
		}
		for _, s := range links {
			var req message.Request
			req.Reset()
			req.SetMethod(req.StoreString("GET"))
			s.HTTP.WriteHead(&req)
			s.HTTP.WriteEnd(&req)
			s.HTTP.Flush()
		}
		for _, s := range links {
			var req message.Request
			var res message.Response
			s.SetReadDeadline(time.Now().Add(20 * time.Second))
			if err := s.HTTP.ReadHead(&req, &res); http2.Unprocessed(err) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
			e.Keep(s)
		}
		return refused
	}
	if n := burst(25); n != 15 {
		t.Fatalf("%d of 25 were left out", n)
	}
	if n, before := burst(95), left.Load(); n != 0 || left.Load() != before {
		t.Errorf("%d were left out", n)
	}
	most.Store(1 << 30)
	for range 30 {
		get(t, e)
	}
	before := opened.Load()
	if burst(50); opened.Load() > before+1 {
		t.Errorf("weir opened %d connections for 50 requests, although the endpoint has changed", opened.Load()-before)
	}
}
