package http2

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

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
	account := http2test.NewAccount(t, 4<<20)
	c := new(Connection)
	var served sync.WaitGroup
	value := strings.Repeat("v", 12_000)
	const requests = 100
	served.Add(requests)
	c.Init(w, core.Config{Account: account}, func(x *Exchange) {
		defer served.Done()
		defer x.Close()
		var req message.Request
		x.ReadHead(&req)
		res := http2test.NewResponse(200, "X-A: "+value)
		x.WriteHead(&req, res)
		x.WriteEnd(res)
		x.Flush()
	})
	c.Start()
	p := http2test.Greeted()
	for i := range uint32(requests) {
		p.Get(2*i + 1)
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

// whole is a connection on which these bytes have arrived, and no more will.
type whole struct {
	io.Writer
	in []byte
}

func (w *whole) Read(p []byte) (int, error) {
	if len(w.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, w.in)
	w.in = w.in[n:]
	return n, nil
}

// While memory is short, a connection handles what it reads in small pieces, wherever these
// end.
func TestShortTurns(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	process := memory.NewProcess(ctx)
	process.SetLimit(1 << 20)
	account := new(memory.Account)
	account.Open(process, netip.Prefix{}, nil)
	defer account.Close()
	var c Connection
	const requests = 100
	var served sync.WaitGroup
	served.Add(requests)
	p := http2test.Greeted()
	for i := range uint32(requests) {
		p.Get(2*i+1, "x-a: "+strings.Repeat("v", int(i)))
	}
	c.Init(&whole{io.Discard, p.Bytes()}, core.Config{Account: account}, func(x *Exchange) {
		served.Done()
		x.Close()
	})
	if n := c.turn(1 << 14); n != 1<<14 {
		t.Errorf("a turn is %d bytes long while there is memory", n)
	}
	account.Force(2 << 20)
	if account.Charge(1) || !account.Short() {
		t.Fatal("memory is not short")
	}
	if n, last := c.turn(1<<14), c.turn(100); n != shortTurn || last != 100 {
		t.Errorf("turns are %d and %d bytes long while memory is short", n, last)
	}
	process.SetLimit(0) // still short, until there has been enough memory for a while
	if err := c.Step(); err != io.EOF {
		t.Fatalf("the connection ends with %v", err)
	}
	served.Wait()
	c.Abort()
	account.Release(2 << 20)
}

// weir charges a body until it is read. If there is no more memory, weir resets its stream,
// and the other streams continue.
func TestBodiesRefusedForMemory(t *testing.T) {
	w := &stalled{gate: make(chan struct{})}
	close(w.gate)
	account := http2test.NewAccount(t, 2*memory.Exchange+16<<10+2*16<<10)
	c := new(Connection)
	go1, ended := make(chan struct{}), make(chan error, 2)
	c.Init(w, core.Config{Account: account}, func(x *Exchange) {
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
	p := http2test.Greeted().Post(1).Post(3).Data(1, false, strings.Repeat("a", 16<<10)).Data(1, false, strings.Repeat("b", 16000)).
		Data(3, false, strings.Repeat("c", 16<<10)).Data(3, false, strings.Repeat("d", 16000)).Data(1, true, "e")
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

// A client sends large requests to an endpoint that reads nothing, and cancels them. When
// much of them waits on the connection, it accepts no more. All of it is charged. When the
// endpoint reads again, the connection accepts calls again.
func TestEndpointThatReadsNothingGetsNoMoreCalls(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reads := make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.(*net.TCPConn).SetReadBuffer(128 << 10)
		c.Write(http2test.NewPeer().Raw(uint8(xhttp2.FrameSettings), 0, 0, "").Bytes())
		<-reads
		io.Copy(io.Discard, c)
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc.(*net.TCPConn).SetWriteBuffer(128 << 10)
	changed := make(chan struct{}, 10)
	trunk := NewTrunk(conn.New(nc), nil, message.Limits{}, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	process := memory.NewProcess(ctx)
	trunk.Account(process)
	if err := trunk.Start(ctx); err != nil {
		t.Fatal(err)
	}
	req := http2test.NewRequest("GET", "/", "a", "x: "+strings.Repeat("v", 48<<10))
	const most = 256 // 12 MiB in total, more than the sockets hold
	n := 0
	for ; n < most && trunk.Limit() > 0; n++ {
		x := trunk.Call()
		x.WriteHead(req)
		x.Flush()
		x.End()
	}
	trunk.mu.Lock()
	pending := trunk.core.Pending()
	trunk.mu.Unlock()
	if n == most || pending < mostUnread || pending > mostUnread+64<<10 {
		t.Errorf("%d calls began, %d bytes wait", n, pending)
	}
	if used := process.Used(); used < int64(pending) {
		t.Errorf("%d bytes are charged of %d", used, pending)
	}
	close(reads)
	for trunk.Limit() == 0 {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the connection takes no calls again")
		}
	}
	trunk.GoAway()
	<-trunk.done
	if used := process.Used(); used != 0 {
		t.Errorf("%d bytes are left in the account", used)
	}
}
