package http2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// serving accepts connections until the test ends. It calls serve for each exchange.
func serving(t *testing.T, serve func(x *Exchange)) (url string, connections chan *Connection) {
	t.Helper()
	connections = make(chan *Connection, 1000) // more than any test opens
	var all sync.WaitGroup
	t.Cleanup(all.Wait) // after the listener has closed the connections
	addr := http2test.Listen(t, func(nc net.Conn) {
		c := new(Connection)
		c.Init(nc, core.Config{}, func(x *Exchange) {
			defer x.Close()
			serve(x)
		})
		connections <- c
		all.Go(func() {
			c.Start()
			c.Step()
			nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
			c.Abort()
			nc.Close()
		})
	})
	return "http://" + addr, connections
}

// echo sends the body back while it arrives.
func echo(x *Exchange) {
	var req message.Request
	var refusal *message.Refusal
	if err := x.ReadHead(&req); errors.As(err, &refusal) {
		x.WriteHead(&req, http2test.NewResponse(refusal.Status))
		return
	}
	res := http2test.NewResponse(200, "X-Target: "+string(req.Bytes(req.Target)))
	res.Length = req.Length
	if req.ExpectContinue {
		x.WriteHead(&req, http2test.NewResponse(100))
	}
	x.WriteHead(&req, res)
	if p, whole := x.BufferedBody(); whole {
		x.WriteBody(p)
		x.SkipBody()
	}
	for !x.BodyEnded() {
		p, err := x.ReadBody(&req)
		if err != nil && err != io.EOF || x.WriteBody(p) != nil {
			return
		}
	}
	res.Trailers.AddField("X-Trailer", string(req.Trailers.GetName("x-trailer")))
	x.WriteEnd(res)
	x.Flush()
}

func TestConnectionEchoes(t *testing.T) {
	url, _ := serving(t, echo)
	client := http2test.Client(t)
	f := func(body string, known bool) {
		t.Helper()
		var r io.Reader = strings.NewReader(body)
		if !known {
			r = io.MultiReader(r)
		}
		req, _ := http.NewRequest("POST", url+"/x", r)
		if !known {
			req.Trailer = http.Header{"X-Trailer": {"t"}}
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil || string(got) != body || res.Header.Get("X-Target") != "/x" {
			t.Errorf("%d of %d bytes, %v", len(got), len(body), err)
		}
		if want := map[bool]string{true: "", false: "t"}[known]; res.Trailer.Get("X-Trailer") != want {
			t.Errorf("trailers %v", res.Trailer)
		}
	}
	large := strings.Repeat("0123456789abcdef", 1<<17)
	for _, known := range []bool{true, false} {
		for _, n := range []int{0, 1, 1000, 16 << 10, 16<<10 + 1, 70000, 2 << 20} {
			f(large[:n], known)
		}
	}
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() { f(large[:i*5000], i%2 == 0) })
	}
	all.Wait()
	if res, err := client.Get(url + "/..%2f"); err != nil || res.StatusCode != 400 {
		t.Errorf("%v, %v", res, err)
	}
	if res, err := client.Head(url); err != nil || res.StatusCode != 200 {
		t.Errorf("%v, %v", res, err)
	}
}

// If a client resets its request, the goroutines that read or write wake up.
func TestConnectionClientGivesUp(t *testing.T) {
	ended := make(chan error, 10)
	url, _ := serving(t, func(x *Exchange) {
		var req message.Request
		x.ReadHead(&req)
		res := http2test.NewResponse(200)
		res.Length = message.Unknown
		x.WriteHead(&req, res)
		var err error
		if string(req.Bytes(req.Target)) == "/read" {
			for err == nil {
				_, err = x.ReadBody(&req)
			}
		} else {
			for err == nil {
				err = x.WriteBody(make([]byte, 10000))
			}
		}
		if !x.Gone() {
			err = fmt.Errorf("%w, but the client is not gone", err)
		}
		ended <- err
	})
	for _, target := range []string{"/read", "/write"} {
		ctx, cancel := context.WithCancel(context.Background())
		pr, pw := io.Pipe()
		req, _ := http.NewRequestWithContext(ctx, "POST", url+target, pr)
		res, err := http2test.Client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		res.Body.Close()
		pw.Close()
		var over *OverError
		if err := <-ended; !errors.As(err, &over) && err != core.ErrStreamOver {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestConnectionDeadlines(t *testing.T) {
	results := make(chan string, 1)
	url, _ := serving(t, func(x *Exchange) {
		var req message.Request
		x.ReadHead(&req)
		x.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, readErr := x.ReadBody(&req)
		res := http2test.NewResponse(200)
		res.Length = message.Unknown
		x.WriteHead(&req, res)
		x.SetWriteTimeout(50 * time.Millisecond)
		writeErr := x.WriteBody(make([]byte, 64<<20)) // the client does not read it
		x.Interrupt()
		x.SetReadDeadline(time.Time{})
		_, interrupted := x.ReadBody(&req)
		results <- fmt.Sprint(errors.Is(readErr, os.ErrDeadlineExceeded), errors.Is(writeErr, os.ErrDeadlineExceeded), interrupted == conn.ErrInterrupted)
	})
	pr, pw := io.Pipe()
	res, err := http2test.Client(t).Post(url, "", pr)
	if err != nil {
		t.Fatal(err)
	}
	http2test.Equal(t, "deadlines", <-results, "true true true")
	pw.Close()
	res.Body.Close()
}

// After an early answer, weir does not want the rest of the upload, and the connection
// continues.
func TestConnectionAnswersEarly(t *testing.T) {
	url, _ := serving(t, func(x *Exchange) {
		var req message.Request
		x.ReadHead(&req)
		res := http2test.NewResponse(413, "Content-Length: 4")
		res.Length = 4
		x.WriteHead(&req, res)
		x.WriteBody([]byte("much"))
		x.WriteEnd(res)
	})
	client := http2test.OneConnection(t, url)
	for range 20 {
		res, err := client.Post(url, "", bytes.NewReader(make([]byte, 10<<20)))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != "much" || res.StatusCode != 413 {
			t.Errorf("%d %q %v", res.StatusCode, b, err)
		}
		res.Body.Close()
	}
}

// Exchanges that run when the connection leaves are finished.
func TestConnectionGoesAway(t *testing.T) {
	var running atomic.Int32
	url, connections := serving(t, func(x *Exchange) {
		running.Add(1)
		echo(x)
	})
	client := http2test.Client(t)
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		res, err := client.Post(url, "", pr)
		if err == nil {
			_, err = io.ReadAll(res.Body)
		}
		done <- err
	}()
	c := <-connections
	pw.Write([]byte("x"))
	c.GoAway()
	if c.Left() {
		t.Error("an exchange runs")
	}
	pw.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !c.Left(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the connection is not left")
		}
	}
	if res, err := client.Get(url); err != nil || res.StatusCode != 200 || len(connections) == 0 {
		t.Errorf("%v, %v, %d more connections", res, err, len(connections))
	}
}

// An idle connection holds no buffers, and no goroutine except its reader.
func TestConnectionIdle(t *testing.T) {
	url, connections := serving(t, echo)
	client := http2test.OneConnection(t, url)
	for range 10 {
		res, err := client.Post(url, "", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	c := <-connections
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		c.mu.Lock()
		idle := !c.flushing && c.core.Working() == 0 && c.core.Pending() == 0
		c.mu.Unlock()
		if idle {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the connection is not idle")
		}
	}
	c.Trim()
}

func TestH2specOnConnection(t *testing.T) {
	url, _ := serving(t, func(x *Exchange) {
		var req message.Request
		res := http2test.NewResponse(200)
		res.Length = message.Unknown
		if x.ReadHead(&req) != nil {
			return
		}
		x.WriteHead(&req, res)
		x.WriteBody([]byte("hello from the test"))
		for {
			if _, err := x.ReadBody(&req); err != nil {
				break
			}
		}
		x.WriteEnd(res)
	})
	http2test.H2spec(t, strings.TrimPrefix(url, "http://"))
}

// Trailers can follow a body of known length.
func TestTrailersBehindALength(t *testing.T) {
	url, _ := serving(t, func(x *Exchange) {
		var req message.Request
		x.ReadHead(&req)
		res := http2test.NewResponse(200, "Content-Length: 5")
		res.Length, res.Trails = 5, true
		x.WriteHead(&req, res)
		x.WriteBody([]byte("hello"))
		res.Trailers.AddField("X-Sum", "1")
		x.WriteEnd(res)
		x.Flush()
	})
	res, err := http2test.Client(t).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "hello" || res.Trailer.Get("X-Sum") != "1" {
		t.Errorf("%q, %v, trailers %v", b, err, res.Trailer)
	}
	res.Body.Close()
}

// weir never refuses a stream of a client that respects the limit of streams, even if exchanges end long
// after their response.
func TestExchangesThatEndLate(t *testing.T) {
	const streams = 4
	for _, c := range []struct {
		what        string
		open, batch int // the client has this many streams open, and opens this many with one write
	}{{"one by one", streams, 1}, {"all together", streams, streams}, {"fewer than allowed, together", streams - 1, streams - 1}} {
		t.Run(c.what, func(t *testing.T) { testExchangesThatEndLate(t, streams, c.open, c.batch) })
	}
}

func testExchangesThatEndLate(t *testing.T, streams, open, batch int) {
	gate := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { close(gate) }) // by then weir would have refused a stream
	client, ours := net.Pipe()
	client.SetDeadline(time.Now().Add(20 * time.Second))
	c := new(Connection)
	c.Init(ours, core.Config{Streams: streams}, func(x *Exchange) {
		defer x.Close()
		echo(x)
		<-gate
	})
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.Start(); c.Step(); c.Abort() })
	sent := make(chan []byte, 100)
	all.Go(func() {
		for p := range sent {
			client.Write(p)
		}
	})
	defer close(sent)
	defer client.Close()
	sent <- http2test.Greeted().Bytes()
	f := xhttp2.NewFramer(io.Discard, client)
	for opened, answered := 0, 0; answered < 4*streams; {
		for opened+batch <= answered+open {
			requests := http2test.NewPeer()
			for range batch {
				requests.Get(uint32(1 + 2*opened))
				opened++
			}
			sent <- requests.Bytes()
		}
		switch frame, err := f.ReadFrame(); frame := frame.(type) {
		case nil:
			t.Fatal(err)
		case *xhttp2.RSTStreamFrame:
			t.Fatalf("stream %d was reset: %v", frame.StreamID, frame.ErrCode)
		case *xhttp2.HeadersFrame, *xhttp2.DataFrame:
			if frame.Header().Flags.Has(xhttp2.FlagHeadersEndStream) {
				answered++
			}
		}
	}
}

// One read can contain both the ends of streams, whose exchanges weir has not released, and new requests. weir
// refuses none of these requests.
func TestStreamsThatEndWithinARead(t *testing.T) {
	for what, end := range map[string]func(*http2test.Peer, uint32){
		"requests that end after their response": func(p *http2test.Peer, id uint32) { p.Data(id, true, "x") },
		"streams that the client cancels":        func(p *http2test.Peer, id uint32) { p.Raw(0x3, 0, id, "\x00\x00\x00\x08") },
	} {
		t.Run(what, func(t *testing.T) { testStreamsThatEndWithinARead(t, end) })
	}
}

func testStreamsThatEndWithinARead(t *testing.T, end func(*http2test.Peer, uint32)) {
	const streams, open, rounds = 4, 3, 5
	gate := make(chan struct{})
	client, ours := net.Pipe()
	client.SetDeadline(time.Now().Add(20 * time.Second))
	answered := make(chan struct{}, open*rounds)
	var faults watcher
	c := new(Connection)
	c.Init(ours, core.Config{Streams: streams}, func(x *Exchange) {
		defer x.Close()
		var req message.Request
		x.ReadHead(&req)
		x.WriteHead(&req, http2test.NewResponse(200, "Content-Length: 0"))
		x.Flush()
		answered <- struct{}{}
		<-gate
	})
	c.Observe(&faults)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.Start(); c.Step(); c.Abort() })
	defer client.Close()
	all.Go(func() { io.Copy(io.Discard, client) })
	time.AfterFunc(100*time.Millisecond, func() { close(gate) }) // by then weir would have refused a stream
	client.Write(http2test.Greeted().Bytes())
	var now []uint32
	for id := uint32(1); id < 2*open*rounds; {
		p := http2test.NewPeer()
		for _, id := range now {
			end(p, id)
		}
		now = now[:0]
		for range open {
			p.Post(id)
			now = append(now, id)
			id += 2
		}
		if _, err := client.Write(p.Bytes()); err != nil {
			t.Fatal(err)
		}
		for range open {
			select {
			case <-answered:
			case <-time.After(10 * time.Second):
				t.Fatalf("a request got no response; faults: %v", faults.all())
			}
		}
	}
	if got := faults.all(); len(got) > 0 {
		t.Errorf("weir reset streams: %v", got)
	}
}

// watcher collects the reasons of Fault.
type watcher struct {
	mu     sync.Mutex
	faults []string
}

func (w *watcher) Does(Doing) {}
func (w *watcher) Over()      {}

func (w *watcher) Fault(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, reason)
}

func (w *watcher) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.faults)
}

// blockedWriter is a connection whose writes wait for the gate, and then fail with err; nil: they succeed.
type blockedWriter struct {
	waits chan struct{} // receives a value for each write
	gate  chan struct{}
	err   error
}

func (w *blockedWriter) Read([]byte) (int, error) { return 0, io.EOF }

func (w *blockedWriter) Write(p []byte) (int, error) {
	w.waits <- struct{}{}
	<-w.gate
	return len(p), w.err
}

// weir handles nothing more from a client that does not read what weir has for it. It continues when the client
// reads, and when the connection fails.
func TestConnectionWaitsForItsOutput(t *testing.T) {
	for _, err := range []error{nil, io.ErrClosedPipe} {
		w := &blockedWriter{make(chan struct{}, 10), make(chan struct{}), err}
		answered := make(chan struct{})
		c := new(Connection)
		c.Init(w, core.Config{}, func(x *Exchange) {
			defer x.Close()
			var req message.Request
			x.ReadHead(&req)
			x.WriteHead(&req, http2test.NewResponse(200, "X-Long: "+strings.Repeat("x", mostUnread)))
			close(answered)
		})
		c.Start()
		<-w.waits // with the greeting
		if err := c.receive(http2test.Greeted().Get(1).Bytes()); err != nil {
			t.Fatal(err)
		}
		<-answered
		done := make(chan error, 1)
		go func() { done <- c.receive(http2test.NewPeer().Raw(0x6, 0, 0, "12345678").Bytes()) }()
		select {
		case <-done:
			t.Fatal("weir continued")
		case <-time.After(50 * time.Millisecond): // by then it would have
		}
		close(w.gate)
		select {
		case got := <-done:
			if got != err {
				t.Errorf("%v, not %v", got, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("weir does not continue")
		}
		c.Abort()
	}
}
