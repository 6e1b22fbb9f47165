package http2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// netHTTPServer serves HTTP/2 with prior knowledge, by net/http.
func netHTTPServer(t testing.TB, h http.HandlerFunc) (address string) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// newTrunk opens a connection to an endpoint. It ends with the test.
func newTrunk(t testing.TB, address string) *Trunk {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	trunk := NewTrunk(conn.New(nc), nil, message.Limits{}, func() {})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := trunk.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		trunk.GoAway()
		select {
		case <-trunk.done:
		case <-time.After(20 * time.Second):
			t.Error("the connection does not end")
		}
	})
	return trunk
}

// answer is the result of a call.
type answer struct {
	infos int
	res   message.Response
	body  string
	err   error
}

func (a *answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("%d %d bytes, %v", a.res.Status, len(a.body), a.err)
	}
	return fmt.Sprintf("%d %d bytes%s", a.res.Status, len(a.body), http2test.FieldsText(&a.res.Trailers))
}

// read reads the available part. It returns true at the end.
func (a *answer) read(x *Call) bool {
	for a.res.Status < 200 {
		if a.err = x.ReadHead(nil, &a.res); a.err == conn.ErrWouldBlock {
			return false
		} else if a.err != nil {
			return true
		}
		if a.res.Informational() {
			a.infos++
		}
	}
	for !x.BodyEnded() {
		p, err := x.ReadBody(&a.res)
		if err == conn.ErrWouldBlock {
			return false
		}
		if a.body += string(p); err != nil && err != io.EOF {
			a.err = err
			return true
		}
	}
	return true
}

// A call gives all its memory back to the account of its client, also if it loses the account before it ends.
func TestCallGivesBackItsCharge(t *testing.T) {
	trunk := newTrunk(t, netHTTPServer(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	account := http2test.NewAccount(t, 1<<20) // checks that nothing is left
	x := trunk.Call()
	x.ChargeTo(account)
	x.SetReadDeadline(time.Now().Add(20 * time.Second))
	req := http2test.NewRequest("GET", "/", "a")
	x.WriteHead(req)
	x.WriteEnd(req)
	x.Flush()
	err := x.Await(func() bool { // the whole response
		trunk.mu.Lock()
		defer trunk.mu.Unlock()
		return x.ended
	})
	a := new(answer)
	if a.read(x); err != nil || a.err != nil || a.body != "hello" {
		t.Fatal(err, a)
	}
	x.ChargeTo(nil)
	x.End()
}

// do makes a request whose body is complete. It waits as an exchange does within Await.
func do(t testing.TB, trunk *Trunk, req *message.Request, body string) *answer {
	t.Helper()
	x := trunk.Call()
	defer x.End()
	a, sent := new(answer), false
	x.SetReadDeadline(time.Now().Add(20 * time.Second))
	x.SetWriteTimeout(20 * time.Second)
	err := x.Await(func() bool {
		if !sent {
			sent = true
			x.WriteHead(req)
			if a.err = x.WriteBody([]byte(body)); a.err != nil {
				return true
			}
			x.WriteEnd(req)
			if a.err = x.Flush(); a.err != nil {
				return true
			}
		}
		return a.read(x)
	})
	if err != nil {
		a.err = err
	}
	return a
}

// upload makes a request, and sends its body while it reads the response.
func upload(t testing.TB, trunk *Trunk, req *message.Request, body string) *answer {
	t.Helper()
	x := trunk.Call()
	x.SetReadDeadline(time.Now().Add(20 * time.Second))
	x.SetWriteTimeout(20 * time.Second)
	var sending sync.WaitGroup
	x.WriteHead(req)
	sending.Go(func() {
		for len(body) > 0 {
			n := min(len(body), 10000)
			if x.Flush() != nil || x.WriteBody([]byte(body[:n])) != nil {
				return
			}
			body = body[n:]
		}
		x.WriteEnd(req)
		x.Flush()
	})
	a := new(answer)
	a.read(x)
	x.Cut()
	sending.Wait()
	x.End()
	return a
}

func echoBody(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/reset":
		panic(http.ErrAbortHandler)
	case "/early":
		w.WriteHeader(413)
		return
	case "/hints":
		w.Header().Set("Link", "x")
		w.WriteHeader(103)
		w.WriteHeader(103)
	case "/empty":
		w.WriteHeader(204)
		return
	}
	w.Header().Set("Trailer", "X-Trailer")
	io.Copy(http2test.Flusher{ResponseWriter: w}, r.Body)
	w.Header().Set("X-Trailer", r.Trailer.Get("X-Trailer"))
}

func post(target, body string, known bool) *message.Request {
	req := http2test.NewRequest("POST", target, "a", "Trailer: X-Trailer")
	req.Length = int64(len(body))
	if !known {
		req.Length = message.Unknown
		req.Trailers.AddField("X-Trailer", "t")
	}
	return req
}

func TestTrunkCarriesCalls(t *testing.T) {
	trunk := newTrunk(t, netHTTPServer(t, echoBody))
	large := strings.Repeat("0123456789abcdef", 1<<17)
	f := func(target, body string, known bool, want string) {
		t.Helper()
		for name, how := range map[string]func(testing.TB, *Trunk, *message.Request, string) *answer{"whole": do, "upload": upload} {
			if name == "whole" && len(body) > 60000 {
				continue // an exchange never has so large a body in one piece
			}
			got := how(t, trunk, post(target, body, known), body)
			http2test.Equal(t, name+" "+target, got, want)
			if got.res.Status == 200 && got.body != body {
				t.Errorf("%s %s: another body", name, target)
			}
		}
	}
	for _, n := range []int{0, 1, 5000, 60000, 1 << 21} {
		f("/", large[:n], true, fmt.Sprintf("200 %d bytes [x-trailer: ]", n))
		f("/", large[:n], false, fmt.Sprintf("200 %d bytes [x-trailer: t]", n))
	}
	f("/hints", "x", true, "200 1 bytes [x-trailer: ]")
	f("/empty", "x", true, "204 0 bytes")
	f("/early", large, true, "413 0 bytes")
	f("/reset", "", true, "0 0 bytes, http2: the peer reset the stream: INTERNAL_ERROR")
	if a := do(t, trunk, http2test.NewRequest("HEAD", "/", "a"), ""); a.err != nil || a.res.Status != 200 {
		t.Error(a)
	}
	if a := do(t, trunk, post("/hints", "x", true), "x"); a.infos != 2 {
		t.Errorf("%d informational heads", a.infos)
	}
}

func TestTrunkCarriesManyCalls(t *testing.T) {
	trunk := newTrunk(t, netHTTPServer(t, echoBody))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for j := range 5 {
				body := strings.Repeat("x", i*j*200)
				if a := upload(t, trunk, post("/", body, j%2 == 0), body); a.err != nil || a.body != body {
					t.Error(a)
				}
				if a := do(t, trunk, post("/", "hello", true), "hello"); a.body != "hello" {
					t.Error(a)
				}
			}
		})
	}
	all.Wait()
}

// A call that reads nothing does not delay other calls.
func TestTrunkSlowReader(t *testing.T) {
	trunk := newTrunk(t, netHTTPServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/endless" {
			for r.Context().Err() == nil {
				w.Write(make([]byte, 10000))
			}
			return
		}
		w.Write(make([]byte, 1<<20))
	}))
	for range 10 {
		slow := trunk.Call()
		defer slow.End()
		slow.WriteHead(http2test.NewRequest("GET", "/endless", "a"))
		slow.Flush()
		var res message.Response
		if err := slow.ReadHead(nil, &res); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		if a := do(t, trunk, http2test.NewRequest("GET", "/", "a"), ""); a.err != nil || len(a.body) != 1<<20 {
			t.Fatal(a)
		}
	}
	trunk.mu.Lock()
	defer trunk.mu.Unlock()
	for s := range trunk.core.Streams() {
		if s.Held() > 1<<20 {
			t.Errorf("a stream holds %d bytes", s.Held())
		}
	}
}

func TestTrunkDeadlinesAndCut(t *testing.T) {
	trunk := newTrunk(t, netHTTPServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	x := trunk.Call()
	req := post("/", "", false)
	x.WriteHead(req)
	x.Flush()
	a := new(answer)
	x.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	err := x.Await(func() bool { return a.read(x) })
	http2test.Equal(t, "Await", err, "i/o timeout")
	x.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	a.read(x)
	http2test.Equal(t, "reading", a.err, "i/o timeout")
	x.SetWriteTimeout(20 * time.Millisecond)
	http2test.Equal(t, "writing", x.WriteBody(make([]byte, 10<<20)), "i/o timeout")
	time.AfterFunc(10*time.Millisecond, x.Cut)
	x.SetReadDeadline(time.Time{})
	a.read(x)
	http2test.Equal(t, "reading", a.err, conn.ErrCut)
	http2test.Equal(t, "Await", x.Await(func() bool { return false }), conn.ErrCut)
	http2test.Equal(t, "writing", x.WriteBody(make([]byte, 10<<20)), conn.ErrCut)
	if !x.WasCut() {
		t.Error("it was cut")
	}
	x.End()
}

// The trunk detects at once that an endpoint speaks another protocol.
func TestTrunkToAnotherProtocol(t *testing.T) {
	f := func(serve func(net.Conn), limit time.Duration, want string) {
		t.Helper()
		nc, err := net.Dial("tcp", http2test.Listen(t, func(c net.Conn) { serve(c) }))
		if err != nil {
			t.Fatal(err)
		}
		trunk := NewTrunk(conn.New(nc), nil, message.Limits{}, func() {})
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := trunk.Start(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		<-trunk.done
	}
	f(func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") }, 20*time.Second, "the endpoint sent no HTTP/2 SETTINGS frame")
	f(func(c net.Conn) { c.Close() }, 20*time.Second, "the endpoint sent no HTTP/2 SETTINGS frame")
	f(func(c net.Conn) { io.Copy(io.Discard, c) }, 100*time.Millisecond, context.DeadlineExceeded.Error())
}

// After GOAWAY, the requests that the endpoint did not process may be repeated; the
// others may not.
func TestTrunkGoAway(t *testing.T) {
	peers := make(chan net.Conn, 1)
	addr := http2test.Listen(t, func(c net.Conn) { peers <- c })
	nc, _ := net.Dial("tcp", addr)
	var changes sync.WaitGroup
	changes.Add(1)
	trunk := NewTrunk(conn.New(nc), nil, message.Limits{}, sync.OnceFunc(changes.Done))
	p := http2test.NewPeer()
	p.Framer.WriteSettings()
	c := <-peers
	c.Write(p.Bytes())
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := trunk.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var calls []*Call
	for range 3 {
		x := trunk.Call()
		x.WriteHead(http2test.NewRequest("POST", "/", "a"))
		x.Flush()
		calls = append(calls, x)
	}
	p.Reset()
	p.Framer.WriteGoAway(1, 0, nil)
	c.Write(p.Bytes())
	var res message.Response
	for _, x := range calls[1:] {
		if err := x.ReadHead(nil, &res); !Unprocessed(err) {
			t.Error(err)
		}
	}
	changes.Wait()
	if trunk.Limit() != 0 || calls[0].Usable() {
		t.Error("more calls are taken")
	}
	x := trunk.Call()
	x.WriteHead(http2test.NewRequest("POST", "/", "a"))
	if err := x.Flush(); !Unprocessed(err) {
		t.Error(err)
	}
	x.End()
	p.Reset()
	p.Head(1, true, ":status: 200")
	c.Write(p.Bytes())
	if err := calls[0].ReadHead(nil, &res); err != nil || res.Status != 200 {
		t.Error(err)
	}
	for _, x := range calls {
		x.End()
	}
	<-trunk.done
	if !errors.Is(trunk.Err(), errHungUp) {
		t.Error(trunk.Err())
	}
	x = trunk.Call() // a caller that did not know of the GOAWAY
	x.WriteHead(http2test.NewRequest("POST", "/", "a"))
	if err := x.Flush(); !Unprocessed(err) || !GoingAway(err) {
		t.Error(err)
	}
	x.End()
}

// The end of a connection ends all its calls, and counts as one failure.
func TestTrunkLost(t *testing.T) {
	peers := make(chan net.Conn, 1)
	nc, _ := net.Dial("tcp", http2test.Listen(t, func(c net.Conn) { peers <- c }))
	trunk := NewTrunk(conn.New(nc), nil, message.Limits{}, func() {})
	p := http2test.NewPeer()
	p.Framer.WriteSettings()
	c := <-peers
	c.Write(p.Bytes())
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := trunk.Start(ctx); err != nil {
		t.Fatal(err)
	}
	first := 0
	var calls []*Call
	for range 3 {
		x := trunk.Call()
		x.WriteHead(http2test.NewRequest("POST", "/", "a"))
		x.Flush()
		calls = append(calls, x)
	}
	c.Close()
	for _, x := range calls {
		var res message.Response
		var lost *LostError
		if err := x.ReadHead(nil, &res); !errors.As(err, &lost) || Unprocessed(err) {
			t.Error(err)
		} else if lost.First() {
			first++
		}
		x.End()
	}
	http2test.Equal(t, "failures", first, 1)
	<-trunk.done
}

// weir sends nothing on a closed connection: its descriptor may belong to another
// connection.
func TestTrunkClosedUnderACall(t *testing.T) {
	trunk, peer, _ := playedTrunk(t)
	x := trunk.Call()
	x.WriteHead(post("/", "", true))
	peer.Close()
	select {
	case <-trunk.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the connection does not end")
	}
	var lost *LostError
	if err := x.Flush(); !errors.As(err, &lost) {
		t.Error(err)
	}
	trunk.mu.Lock()
	if trunk.flushing || trunk.core.Pending() > 0 {
		t.Error("something is still to be sent")
	}
	trunk.mu.Unlock()
	x.End()
}

// panicking is a connection to an endpoint whose reads panic.
type panicking struct{ net.Conn }

func (panicking) Write([]byte) (int, error) { panic("boom") }

// A panic ends the connection, but not the process.
func TestTrunkPanics(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	trunk := NewTrunk(conn.New(panicking{here}), nil, message.Limits{}, func() {})
	err := trunk.Start(context.Background())
	var p *PanicError
	if !errors.As(err, &p) || p.Value != "boom" || !p.First() || p.First() {
		t.Error(err)
	}
}
