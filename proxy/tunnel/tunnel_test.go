package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
)

// TestMain makes package conn start its permanent goroutines before the first test. A
// goroutine that begins in a bubble of synctest stays in it. If it waits for a socket, the
// bubble is never idle.
func TestMain(m *testing.M) {
	one, other := net.Pipe()
	conn.New(one).CanPark()
	other.Close()
	os.Exit(m.Run())
}

// patience limits every wait of a test.
const patience = 30 * time.Second

// pair returns both ends of a TCP connection over loopback.
func pair(t testing.TB) (*net.TCPConn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(patience))
		t.Cleanup(func() { c.Close() })
	}
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// bench is a tunnel with a client and an endpoint.
type bench struct {
	client, endpoint *net.TCPConn
	ends             [2]*ConnEnd
	result           chan Result
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{result: make(chan Result, 1)}
	var in, out net.Conn
	b.client, in = pair2(t)
	b.endpoint, out = pair2(t)
	b.ends = [2]*ConnEnd{{Conn: conn.New(in)}, {Conn: conn.New(out)}}
	return b
}

func pair2(t testing.TB) (*net.TCPConn, net.Conn) {
	a, b := pair(t)
	b.SetDeadline(time.Time{})
	return a, b
}

// renew lets the test wait for patience again.
func (b *bench) renew() {
	for _, c := range []net.Conn{b.client, b.endpoint} {
		c.SetDeadline(time.Now().Add(patience))
	}
}

// waiting is an owner that waits for the end of its tunnel.
type waiting chan Result

func (w waiting) Ended(r Result) { w <- r }

func (w waiting) Panicked(value any, stack []byte) { panic(fmt.Sprintf("%v\n%s", value, stack)) }

func run(client, endpoint End, o Options) Result {
	w := make(waiting, 1)
	Start(client, endpoint, o, w)
	return <-w
}

// run starts the tunnel, and closes as the data path does.
func (b *bench) run(o Options) *bench {
	go func() {
		r := run(b.ends[0], b.ends[1], o)
		b.close()
		b.result <- r
	}()
	return b
}

func (b *bench) close() {
	for _, e := range b.ends {
		if e.TLS != nil {
			e.TLS.Close()
		}
		e.Conn.Close()
	}
}

func (b *bench) want(t testing.TB, reason string) Result {
	t.Helper()
	select {
	case r := <-b.result:
		if r.Reason != reason {
			t.Fatalf("the tunnel ended with %q (%v), want %q", r.Reason, r.Err, reason)
		}
		if (r.Err == nil) != (reason == ReasonEOF) {
			t.Fatalf("%q came with error %v", reason, r.Err)
		}
		return r
	case <-time.After(patience):
		t.Fatalf("the tunnel did not end, want %q", reason)
		panic("unreachable")
	}
}

func send(t testing.TB, w io.Writer, s string) {
	t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
}

func wantBytes(t testing.TB, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("read %q (%v), want %q", got[:n], err, want)
	}
}

func wantEOF(t testing.TB, r io.Reader) {
	t.Helper()
	if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
		t.Fatalf("read %q (%v), want the end of the stream", b, err)
	}
}

// wantReset reads until the connection ends, and expects a reset.
func wantReset(t testing.TB, r io.Reader) {
	t.Helper()
	if n, err := io.Copy(io.Discard, r); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the stream ended after %d bytes with error %v, want a reset", n, err)
	}
}

func TestServerSpeaksFirst(t *testing.T) {
	b := newBench(t).run(Options{})
	send(t, b.endpoint, "SSH-2.0-server\r\n")
	wantBytes(t, b.client, "SSH-2.0-server\r\n")
	send(t, b.client, "SSH-2.0-client\r\n")
	wantBytes(t, b.endpoint, "SSH-2.0-client\r\n")
	b.client.CloseWrite()
	wantEOF(t, b.endpoint)
	b.endpoint.Close()
	wantEOF(t, b.client)
	if r := b.want(t, ReasonEOF); r.Sent != 16 || r.Received != 16 {
		t.Errorf("counted %d and %d bytes, want 16 and 16", r.Sent, r.Received)
	}
}

func TestHalfClose(t *testing.T) {
	f := func(name string, first, second func(*bench) *net.TCPConn) {
		t.Run(name, func(t *testing.T) {
			b := newBench(t).run(Options{})
			a, z := first(b), second(b)
			send(t, a, "the question")
			a.CloseWrite()
			wantBytes(t, z, "the question")
			wantEOF(t, z)
			for range 3 { // the other direction continues
				send(t, z, "part ")
				wantBytes(t, a, "part ")
			}
			z.CloseWrite()
			wantEOF(t, a)
			b.want(t, ReasonEOF)
		})
	}
	client := func(b *bench) *net.TCPConn { return b.client }
	endpoint := func(b *bench) *net.TCPConn { return b.endpoint }
	f("client first", client, endpoint)
	f("endpoint first", endpoint, client)
}

// An end of stream that arrives with the last bytes causes no separate event. If a wait found
// it only by reading again after conn.Linger, most rounds would take that long. On a machine
// that stands still for a moment, some rounds may.
func TestEndTogetherWithBytes(t *testing.T) {
	const rounds = 40
	f := func(name string, before bool, chats int) {
		t.Run(name, func(t *testing.T) {
			lingered := 0
			for range rounds {
				begun := time.Now()
				b := newBench(t)
				if !before {
					b.run(Options{})
				}
				for range chats {
					send(t, b.client, "question")
					wantBytes(t, b.endpoint, "question")
					send(t, b.endpoint, "answer")
					wantBytes(t, b.client, "answer")
				}
				cork(b.client)
				send(t, b.client, "all of it")
				b.client.CloseWrite()
				if before {
					b.run(Options{})
				}
				if got, err := io.ReadAll(b.endpoint); err != nil || string(got) != "all of it" {
					t.Fatalf("the endpoint read %q (%v)", got, err)
				}
				send(t, b.endpoint, "answer")
				b.endpoint.Close()
				wantBytes(t, b.client, "answer")
				wantEOF(t, b.client)
				b.want(t, ReasonEOF)
				if time.Since(begun) >= conn.Linger {
					lingered++
				}
			}
			if lingered > rounds/2 {
				t.Errorf("of %d tunnels %d took as long as if they had found an end only after conn.Linger", rounds, lingered)
			}
		})
	}
	f("before the tunnel", true, 0)
	f("in the tunnel", false, 0)
	f("while it is busy", false, 20)
}

func TestReset(t *testing.T) {
	f := func(name, reason string, ends func(*bench) (from, to *net.TCPConn)) {
		t.Run(name, func(t *testing.T) {
			b := newBench(t).run(Options{})
			from, to := ends(b)
			send(t, from, "half a mess")
			wantBytes(t, to, "half a mess")
			from.SetLinger(0)
			from.Close()
			wantReset(t, to)
			b.want(t, reason)
		})
	}
	f("client", ReasonClientReset, func(b *bench) (_, _ *net.TCPConn) { return b.client, b.endpoint })
	f("endpoint", ReasonEndpointReset, func(b *bench) (_, _ *net.TCPConn) { return b.endpoint, b.client })
}

// If the writing side gets the error of a reset first, the reading side sees an orderly end.
// The client must see a reset nevertheless.
func TestResetWhileWriting(t *testing.T) {
	for range 20 {
		b := newBench(t).run(Options{})
		fill(t, b.client) // the tunnel is waiting to write
		send(t, b.endpoint, "half a mess")
		wantBytes(t, b.client, "half a mess")
		b.endpoint.SetLinger(0)
		b.endpoint.Close()
		wantReset(t, b.client)
		b.want(t, ReasonEndpointReset)
	}
}

// fill writes until all buffers are full. It returns then: a blocked writer could get the error
// of a reset instead of the test's reader.
func fill(t *testing.T, c *net.TCPConn) {
	t.Helper()
	buf := make([]byte, 1<<20)
	for {
		c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Write(buf); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestPeekedAndEarlyBytesGoFirst(t *testing.T) {
	b := newBench(t)
	send(t, b.client, "peeked,")
	if _, err := b.ends[0].Conn.Peek(7); err != nil {
		t.Fatal(err)
	}
	b.ends[0].Early = []byte("early,")
	b.ends[1].Early = []byte("hello,")
	b.run(Options{})
	wantBytes(t, b.endpoint, "early,peeked,")
	wantBytes(t, b.client, "hello,")
	send(t, b.client, "live")
	wantBytes(t, b.endpoint, "live")
	b.client.Close()
	b.endpoint.Close()
	if r := b.want(t, ReasonEOF); r.Sent != 17 || r.Received != 6 {
		t.Errorf("counted %d and %d bytes, want 17 and 6", r.Sent, r.Received)
	}
}

func TestCountersGrowMeanwhile(t *testing.T) {
	var sent, received gauge
	var _ Counter = prometheus.Counter(nil)
	b := newBench(t).run(Options{Sent: &sent, Received: &received})
	send(t, b.client, "12345")
	wantBytes(t, b.endpoint, "12345")
	send(t, b.endpoint, "123")
	wantBytes(t, b.client, "123")
	// Another goroutine counts bytes after it has written them. So the test sends one more
	// message in the same direction, and waits for it.
	send(t, b.client, "x")
	wantBytes(t, b.endpoint, "x")
	if got := sent.value(); got < 5 {
		t.Errorf("counted %v bytes sent while the tunnel ran, want at least 5", got)
	}
	b.client.Close()
	b.endpoint.Close()
	b.want(t, ReasonEOF)
	if s, r := sent.value(), received.value(); s != 6 || r != 3 {
		t.Errorf("counted %v and %v bytes, want 6 and 3", s, r)
	}
}

type gauge struct {
	mu sync.Mutex
	v  float64
}

func (g *gauge) Add(v float64)  { g.mu.Lock(); g.v += v; g.mu.Unlock() }
func (g *gauge) value() float64 { g.mu.Lock(); defer g.mu.Unlock(); return g.v }

func TestCut(t *testing.T) {
	f := func(name string, who int, fill bool) {
		t.Run(name, func(t *testing.T) {
			var sent progress
			sent.seen = make(chan struct{})
			b := newBench(t).run(Options{Sent: &sent})
			if fill { // both directions wait for room
				go io.Copy(b.client, zeros{})
				go io.Copy(b.endpoint, zeros{})
			} else {
				send(t, b.client, "hello")
			}
			<-sent.seen
			b.ends[who].Conn.Cut()
			b.want(t, ReasonCut)
			if !fill {
				wantReset(t, b.client)
			}
		})
	}
	f("client", 0, false)
	f("endpoint", 1, false)
	f("client, both full", 0, true)
	f("endpoint, both full", 1, true)

	t.Run("before", func(t *testing.T) {
		b := newBench(t)
		b.ends[0].Conn.Cut()
		b.run(Options{}).want(t, ReasonCut)
	})
}

// progress closes seen when the first bytes arrive.
type progress struct {
	once sync.Once
	seen chan struct{}
}

func (p *progress) Add(float64) { p.once.Do(func() { close(p.seen) }) }

func TestIdleWhileBothEndsAreFull(t *testing.T) {
	b := newBench(t).run(Options{Idle: 300 * time.Millisecond})
	go io.Copy(b.client, zeros{})
	go io.Copy(b.endpoint, zeros{})
	b.want(t, ReasonIdle)
}

// inMemory returns a tunnel between in-memory connections, for synctest.
func inMemory(o Options) (client, endpoint net.Conn, result chan Result, ends [2]*conn.Conn) {
	client, in := net.Pipe()
	endpoint, out := net.Pipe()
	ends = [2]*conn.Conn{conn.New(in), conn.New(out)}
	result = make(chan Result, 1)
	go func() {
		r := run(&ConnEnd{Conn: ends[0]}, &ConnEnd{Conn: ends[1]}, o)
		ends[0].Close()
		ends[1].Close()
		result <- r
	}()
	return client, endpoint, result, ends
}

func TestIdleLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		client, endpoint, result, _ := inMemory(Options{Idle: 10 * time.Second})
		for range 5 { // bytes either way keep both ends
			time.Sleep(8 * time.Second)
			go client.Write([]byte("up"))
			wantBytes(t, endpoint, "up")
			time.Sleep(8 * time.Second)
			go endpoint.Write([]byte("down"))
			wantBytes(t, client, "down")
		}
		r := <-result
		if took := time.Since(start); r.Reason != ReasonIdle || r.Err == nil || !conn.Routine(r.Err) || took != 90*time.Second {
			t.Errorf("ended with %q (%v) after %s, want idle after 1m30s", r.Reason, r.Err, took)
		} else if text := r.Err.Error(); text != "the tunnel was idle for 10s (tunnel_idle of the route or listener)" {
			t.Error(text)
		}
		wantEOF(t, client)
	})
}

func TestIdleLimitIsNeverAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, _, result, _ := inMemory(Options{})
		if r := <-result; r.Reason != ReasonIdle || time.Since(start) != DefaultIdle {
			t.Errorf("ended with %q after %s, want idle after %s", r.Reason, time.Since(start), DefaultIdle)
		}
	})
}

func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		client, endpoint, result, _ := inMemory(Options{Idle: 10 * time.Second, Lifetime: 25 * time.Second})
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for {
				if _, err := client.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		wg.Go(func() { io.Copy(io.Discard, endpoint) })
		r := <-result
		if took := time.Since(start); r.Reason != ReasonLifetime || r.Err == nil || !conn.Routine(r.Err) || took != 25*time.Second {
			t.Errorf("ended with %q (%v) after %s, want lifetime after 25s", r.Reason, r.Err, took)
		} else if text := r.Err.Error(); text != "the tunnel was open for 25s (max_lifetime of the route)" {
			t.Error(text)
		}
	})
}

func TestCutInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, result, ends := inMemory(Options{})
		synctest.Wait()
		ends[0].Cut()
		if r := <-result; r.Reason != ReasonCut {
			t.Errorf("ended with %q, want cut", r.Reason)
		}
	})
}

// A direction with a goroutine is charged. A tunnel that the account refuses ends.
func TestTunnelIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := memory.NewProcess(t.Context())
		var account memory.Account
		account.Open(p, netip.MustParsePrefix("192.0.2.1/32"), nil)
		client, endpoint, result, _ := inMemory(Options{Account: &account})
		synctest.Wait()
		if n := account.Used(); n != 2*(Running+conn.BufferSize) { // such connections wait in a read
			t.Errorf("two directions that wait have charged %d bytes", n)
		}
		client.Close()
		endpoint.Close()
		<-result
		if n := account.Used(); n != 0 {
			t.Errorf("%d bytes are charged after the end", n)
		}
		p.SetLimit(1)
		account.Force(1 << 20)
		_, _, result, _ = inMemory(Options{Account: &account})
		if r := <-result; r.Reason != ReasonMemory || r.Err == nil {
			t.Errorf("without memory, the tunnel ended with %+v", r)
		}
		account.Close()
		time.Sleep(time.Minute) // until the shortage is over
	})
}
