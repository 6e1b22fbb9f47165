package http2

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// newAccount makes an account with room for this many bytes.
func newAccount(t testing.TB, room int) *memory.Account {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := memory.NewProcess(ctx)
	p.SetLimit(32 << 20)
	a := new(memory.Account)
	a.Open(p, netip.Prefix{}, nil)
	a.Force(4<<20 - room) // the limit of one connection
	t.Cleanup(func() {
		if left := a.Used() - int64(4<<20-room); left != 0 {
			t.Errorf("%d bytes are left in the account", left)
		}
	})
	return a
}

// finish gives back what a core and its driver hold.
func (x *side) finish() {
	x.core.Abort(Cancel, "lost", "the connection was lost")
	x.core.fail(Cancel, "lost", "the connection was lost")
	x.core.forgetGather()
	x.core.forgetPending()
	for s := range x.streams {
		x.core.Release(s)
	}
	x.core.Take().Free()
}

// A value that a head contains several times is stored once.
func TestHeadIsPacked(t *testing.T) {
	x := newSide(Config{})
	large, small := strings.Repeat("v", 3000), strings.Repeat("w", leastPacked)
	lines := []string{"x-a: " + large}
	for i := range 15 {
		lines = append(lines, "x-a: "+large, fmt.Sprintf("x-%d: %s", i%3, small))
	}
	lines = append(lines, "x-other: "+large[1:]+"u")
	if err := x.receive(greeted().get(1, lines...).Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	for _, seen := range x.streams {
		h := &seen.req.Head
		if room := h.Room(); room > 12<<10 {
			t.Errorf("the head takes %d bytes", room)
		}
		at := len(h.Fields) - len(lines)
		for i, line := range lines {
			if got := string(h.Name(at+i)) + ": " + string(h.Value(at+i)); got != line {
				t.Fatalf("field %d is %.40q, want %.40q", i, got, line)
			}
		}
	}
}

// weir refuses a stream without memory, before or while it decodes the head, and the
// connection continues.
func TestStreamsRefusedForMemory(t *testing.T) {
	x := newSide(Config{Account: newAccount(t, 2*memory.Exchange+20<<10)})
	p := greeted()
	p.get(1)
	p.get(3, "x-a: "+strings.Repeat("a", 7000), "x-b: "+strings.Repeat("b", 7000))
	if err := x.receive(p.Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	for s, seen := range x.streams {
		if seen.over { // as drivers do
			x.core.Release(s)
			delete(x.streams, s)
		}
	}
	p.get(5).get(7)
	if err := x.receive(p.Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	out := x.core.Take()
	var resets []string
	for _, f := range frames(t, out.Bytes(), false) {
		if strings.HasPrefix(f, "RST") {
			resets = append(resets, f)
		}
	}
	out.Free()
	equal(t, "resets", resets, []string{"RST_STREAM 3 REFUSED_STREAM", "RST_STREAM 7 REFUSED_STREAM"})
	x.finish()
}

// A head that comes in many frames, and the beginning of a frame, are charged while they
// arrive.
func TestHeadInPiecesIsCharged(t *testing.T) {
	for _, c := range []struct {
		what string
		send func(p *peer)
	}{
		{"CONTINUATION", func(p *peer) {
			p.raw(frameHeaders, 0, 1, strings.Repeat("\x00", 16000))
			p.raw(frameContinuation, 0, 1, strings.Repeat("\x00", 16000))
		}},
		{"a part of a frame", func(p *peer) {
			p.Write(appendFrame(nil, 16384, frameHeaders, 0, 1))
			p.WriteString(strings.Repeat("a", 16000))
		}},
	} {
		x := newSide(Config{Account: newAccount(t, 40<<10)}) // the output takes 16 KiB
		p := greeted()
		c.send(p)
		if c.what == "CONTINUATION" {
			err := x.receive(p.Bytes(), 0)
			if err == nil || err.(*ConnError).Reason != "memory" {
				t.Errorf("%s: %v", c.what, err)
			}
		} else {
			before := x.core.config.Account.Used()
			if err := x.receive(p.Bytes(), 0); err != nil {
				t.Fatal(err)
			}
			if more := x.core.config.Account.Used() - before; more < 16000 {
				t.Errorf("%s: %d bytes are charged", c.what, more)
			}
		}
		x.finish()
	}
}

// stalled accepts writes only after it is released.
type stalled struct {
	gate chan struct{}
	mu   sync.Mutex
	out  []byte
}

func (s *stalled) Read([]byte) (int, error) { return 0, io.EOF }

func (s *stalled) Write(p []byte) (int, error) {
	<-s.gate
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = append(s.out, p...)
	return len(p), nil
}

// If a client reads nothing, weir prepares only as many heads as the output has room for.
// The others wait.
func TestHeadsWaitForRoom(t *testing.T) {
	w := &stalled{gate: make(chan struct{})}
	account := newAccount(t, 4<<20)
	c := new(Connection)
	var served sync.WaitGroup
	value := strings.Repeat("v", 12_000)
	const requests = 100
	served.Add(requests)
	c.Init(w, Config{Account: account}, func(x *Exchange) {
		defer served.Done()
		defer x.Close()
		var req message.Request
		x.ReadHead(&req)
		res := newResponse(200, "X-A: "+value)
		x.WriteHead(&req, res, false)
		x.WriteEnd(res)
		x.Flush()
	})
	c.Start()
	p := greeted()
	for i := range uint32(requests) {
		p.get(2*i + 1)
	}
	if err := c.receive(p.Bytes()); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for waiting := 0; waiting < 50; {
		if time.Now().After(deadline) {
			t.Fatalf("%d heads wait", waiting)
		}
		time.Sleep(time.Millisecond)
		c.mu.Lock()
		waiting = len(c.heads)
		c.mu.Unlock()
	}
	c.mu.Lock()
	if n := c.core.Pending(); n > 256<<10+64<<10 {
		t.Errorf("%d bytes wait for a client that reads nothing", n)
	}
	c.mu.Unlock()
	close(w.gate)
	served.Wait()
	c.Abort()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := strings.Count(string(w.out), value); n != requests {
		t.Errorf("%d heads arrived, want %d", n, requests)
	}
}

// weir charges a body until it is read. If there is no more memory, weir resets its stream,
// and the other streams continue.
func TestBodiesRefusedForMemory(t *testing.T) {
	w := &stalled{gate: make(chan struct{})}
	close(w.gate)
	account := newAccount(t, 2*memory.Exchange+16<<10+2*16<<10)
	c := new(Connection)
	go1, ended := make(chan struct{}), make(chan error, 2)
	c.Init(w, Config{Account: account}, func(x *Exchange) {
		defer x.Close()
		var req message.Request
		x.ReadHead(&req)
		<-go1
		var err error
		for err == nil {
			_, err = x.ReadBody(&req)
		}
		ended <- err
	})
	p := greeted().post(1).post(3).data(1, false, strings.Repeat("a", 16<<10)).data(1, false, strings.Repeat("b", 16000)).
		data(3, false, strings.Repeat("c", 16<<10)).data(3, false, strings.Repeat("d", 16000)).data(1, true, "e")
	if err := c.receive(p.Bytes()); err != nil {
		t.Fatal(err)
	}
	close(go1)
	var reset, whole int
	for range 2 {
		if err := <-ended; err == io.EOF {
			whole++
		} else if over, is := err.(*OverError); is && over.Reason == "memory" {
			reset++
		} else {
			t.Errorf("a body ends with %v", err)
		}
	}
	if reset != 1 || whole != 1 {
		t.Errorf("%d streams were reset, %d served", reset, whole)
	}
	c.Abort()
}

// A connection to an endpoint carries the calls of many clients. A frame that arrives in
// pieces does not end it, however little memory there is.
func TestEndpointGoesOnWithoutMemory(t *testing.T) {
	x := newSide(Config{Role: Client, Account: newAccount(t, 0)})
	p := newPeer()
	p.framer.WriteSettings()
	p.Write(appendFrame(nil, 16384, frameHeaders, 0, 1)[:5])
	if err := x.receive(p.Bytes(), 0); err != nil {
		t.Errorf("the connection ends: %v", err)
	}
	x.finish()
}
