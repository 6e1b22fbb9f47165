package tunnel

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// directions counts the goroutines of tunnels.
func directions() int {
	buf := make([]byte, 8<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "tunnel.(*direction).run(")
}

// wantParked waits until no tunnel has a goroutine.
func wantParked(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(patience); directions() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d directions are not parked", directions())
		}
	}
}

// chat sends messages in both directions.
func chat(t testing.TB, client, endpoint io.ReadWriter, times int) {
	t.Helper()
	for range times {
		send(t, client, "question")
		wantBytes(t, endpoint, "question")
		send(t, endpoint, "answer")
		wantBytes(t, client, "answer")
	}
}

// Idle tunnels hold no goroutine, even if they were busy before, and no additional descriptors
// or pipes.
func TestIdleTunnelsHoldNothing(t *testing.T) {
	const tunnels = 100
	drainPipes()
	benches := make([]*bench, tunnels)
	for i := range benches {
		benches[i] = newBench(t)
	}
	conn.Lot() // starts the lot, which has its own goroutine
	goroutines, open := runtime.NumGoroutine(), descriptors(t)
	for _, b := range benches {
		b.start(Options{})
	}
	for _, times := range []int{0, 1, 20} { // never used, used while in the lot, used while in the poller
		for _, b := range benches {
			chat(t, b.client, b.endpoint, times)
			if times > 1 {
				b.move(t, 1<<20)
			}
		}
		wantParked(t)
		if n := runtime.NumGoroutine(); n > goroutines {
			t.Errorf("%d goroutines with %d idle tunnels, %d without", n, tunnels, goroutines)
		}
		if n := pipes.taken.Load(); n > 0 {
			t.Errorf("%d pipes are in use", n)
		}
		drainPipes()
		if n := descriptors(t); n != open {
			t.Errorf("%d descriptors, %d before", n, open)
		}
		for _, b := range benches {
			if b.ends[0].Conn.Polled() || b.ends[1].Conn.Polled() {
				t.Fatal("the runtime's poller knows the connection of an idle tunnel")
			}
		}
	}
	for _, b := range benches {
		chat(t, b.client, b.endpoint, 1)
		b.client.CloseWrite()
		wantEOF(t, b.endpoint)
		b.endpoint.CloseWrite()
		wantEOF(t, b.client)
		b.want(t, ReasonEOF)
	}
}

// start starts the tunnel. The test uses no goroutine for it.
func (b *bench) start(o Options) *bench {
	Start(b.ends[0], b.ends[1], o, &closing{b})
	return b
}

// closing is an owner that closes the connections and does not wait.
type closing struct{ *bench }

func (c *closing) Ended(r Result) {
	c.close()
	c.result <- r
}

func (c *closing) Panicked(value any, _ []byte) { panic(value) }

// move sends bytes from client to endpoint at once.
func (b *bench) move(t testing.TB, size int64) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := io.CopyN(b.client, zeros{}, size)
		done <- err
	}()
	if n, err := io.CopyN(io.Discard, b.endpoint, size); n != size || err != nil {
		t.Fatalf("moved %d bytes, %v", n, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Each cause that ends a running tunnel also ends a parked one, with the same result.
func TestParkedTunnelEnds(t *testing.T) {
	f := func(name, reason string, times int, o Options, act func(t *testing.T, b *bench)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t).start(o)
			chat(t, b.client, b.endpoint, times)
			eventually(t, "the tunnel is parked", func() bool { return parked(b) })
			act(t, b)
			b.want(t, reason)
		})
	}
	for _, busy := range []struct {
		was   string
		times int
	}{{"calm", 1}, {"busy", 20}} {
		name := func(s string) string { return busy.was + ", " + s }
		f(name("client first"), ReasonEOF, busy.times, Options{}, func(t *testing.T, b *bench) {
			b.client.CloseWrite()
			wantEOF(t, b.endpoint)
			send(t, b.endpoint, "last words")
			b.endpoint.Close()
			wantBytes(t, b.client, "last words")
			wantEOF(t, b.client)
		})
		f(name("endpoint first"), ReasonEOF, busy.times, Options{}, func(t *testing.T, b *bench) {
			b.endpoint.CloseWrite()
			wantEOF(t, b.client)
			eventually(t, "the other direction is parked again", b.ends[0].Conn.Parked)
			send(t, b.client, "last words")
			b.client.Close()
			wantBytes(t, b.endpoint, "last words")
			wantEOF(t, b.endpoint)
		})
		f(name("end with bytes"), ReasonEOF, busy.times, Options{}, func(t *testing.T, b *bench) {
			cork(b.client)
			send(t, b.client, "all of it")
			b.client.CloseWrite()
			wantBytes(t, b.endpoint, "all of it")
			wantEOF(t, b.endpoint)
			b.endpoint.Close()
			wantEOF(t, b.client)
		})
		f(name("client reset"), ReasonClientReset, busy.times, Options{}, func(t *testing.T, b *bench) {
			b.client.SetLinger(0)
			b.client.Close()
			wantReset(t, b.endpoint)
		})
		f(name("endpoint reset"), ReasonEndpointReset, busy.times, Options{}, func(t *testing.T, b *bench) {
			b.endpoint.SetLinger(0)
			b.endpoint.Close()
			wantReset(t, b.client)
		})
		for i := range 2 {
			f(name("cut"), ReasonCut, busy.times, Options{}, func(t *testing.T, b *bench) {
				b.ends[i].Conn.Cut()
				wantReset(t, b.client)
				wantReset(t, b.endpoint)
			})
		}
	}
	f("idle", ReasonIdle, 1, Options{Idle: 2 * time.Second}, func(t *testing.T, b *bench) {
		wantReset(t, b.client)
		wantReset(t, b.endpoint)
	})
	f("lifetime", ReasonLifetime, 1, Options{Lifetime: 2 * time.Second}, func(t *testing.T, b *bench) { wantReset(t, b.client) })
}

// parked reports whether both directions of a tunnel are parked. They stay parked.
func parked(b *bench) bool {
	return b.ends[0].Conn.Parked() && b.ends[1].Conn.Parked() && !b.ends[0].Conn.Polled() && !b.ends[1].Conn.Polled()
}

// Copied bytes restart the idle limit, whether the tunnel is parked or not.
func TestIdleLimitOfParkedTunnel(t *testing.T) {
	const idle = 1200 * time.Millisecond
	b := newBench(t).start(Options{Idle: idle})
	begun := time.Now()
	for range 5 {
		time.Sleep(idle / 2) // the test needs real time
		send(t, b.client, "x")
		wantBytes(t, b.endpoint, "x")
	}
	last := time.Now()
	b.want(t, ReasonIdle)
	if d := time.Since(last); d < idle-idle/10 || time.Since(begun) < 3*idle {
		t.Errorf("it ended %v after its last byte, %v after it began", d, time.Since(begun))
	}
}

// A direction is parked while the other one is busy.
func TestOneDirectionIsParked(t *testing.T) {
	b := newBench(t).start(Options{})
	stop := make(chan struct{})
	go func() {
		for buf := make([]byte, 64<<10); ; {
			select {
			case <-stop:
				b.endpoint.CloseWrite()
				return
			default:
				b.endpoint.Write(buf)
			}
		}
	}()
	received := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, b.client)
		received <- err
	}()
	eventually(t, "one goroutine is left", func() bool { return directions() == 1 && b.ends[0].Conn.Parked() })
	send(t, b.client, "question")
	wantBytes(t, b.endpoint, "question")
	close(stop)
	if err := <-received; err != nil {
		t.Error(err)
	}
	b.client.Close()
	b.want(t, ReasonEOF)
}

// A tunnel over TLS is parked, too, even if it has received only a part of a record.
func TestTLSTunnelIsParked(t *testing.T) {
	f := func(name string, version uint16, client, endpoint bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			rest := func() { eventually(t, "the tunnel is parked", func() bool { return parked(b) }) }
			var c, e duplexer = b.client, b.endpoint
			var slow *slowly
			if client {
				slow = &slowly{Conn: b.client, pause: rest}
				c = secure(t, b.ends[0], slow, version)
			}
			if endpoint {
				e = secure(t, b.ends[1], b.endpoint, version)
			}
			b.start(Options{})
			for _, times := range []int{1, 20} {
				chat(t, c, e, times)
				rest()
				chat(t, c, e, 1)
			}
			if client { // half a record, a rest, and the other half
				slow.on = true
				chat(t, c, e, 1)
				slow.on = false
			}
			rest()
			c.CloseWrite()
			wantEOF(t, e)
			eventually(t, "the other direction is parked", b.ends[1].Conn.Parked)
			send(t, e, "last words")
			e.CloseWrite()
			wantBytes(t, c, "last words")
			wantEOF(t, c)
			b.want(t, ReasonEOF)
		})
	}
	f("client", tls.VersionTLS13, true, false)
	f("client, TLS 1.2", tls.VersionTLS12, true, false)
	f("endpoint", tls.VersionTLS13, false, true)
	f("both", tls.VersionTLS13, true, true)
}

// slowly writes in two halves, with a pause between them.
type slowly struct {
	net.Conn
	on    bool
	pause func()
}

func (s *slowly) Write(p []byte) (int, error) {
	if !s.on {
		return s.Conn.Write(p)
	}
	if n, err := s.Conn.Write(p[:len(p)/2]); err != nil {
		return n, err
	}
	s.pause()
	n, err := s.Conn.Write(p[len(p)/2:])
	return n + len(p)/2, err
}

// A TLS session may have decrypted bytes when the tunnel begins.
func TestTLSBufferedBefore(t *testing.T) {
	b := newBench(t)
	client := secure(t, b.ends[0], b.client, tls.VersionTLS13)
	send(t, client, "first and more")
	first := make([]byte, 5)
	if _, err := io.ReadFull(b.ends[0].TLS, first); err != nil {
		t.Fatal(err)
	}
	b.start(Options{})
	wantBytes(t, b.endpoint, " and more")
	b.ends[0].Conn.Cut()
	b.want(t, ReasonCut)
}

// TestTunnelStorm runs many tunnels that do everything a tunnel can do, in phases with rests
// between them. All bytes must arrive, and each tunnel must end with the correct result.
func TestTunnelStorm(t *testing.T) {
	conn.Lot() // starts the lot, which has its own goroutine
	goroutines, open := runtime.NumGoroutine(), descriptors(t)
	t.Run("storm", func(t *testing.T) {
		var all sync.WaitGroup
		for seed := range uint64(24) {
			all.Go(func() { stormOn(t, rand.New(rand.NewPCG(seed, 3))) })
		}
		all.Wait()
	})
	drainPipes()
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := descriptors(t); n > open {
		t.Errorf("%d descriptors, %d before", n, open)
	}
}

func stormOn(t *testing.T, random *rand.Rand) {
	phases := 3
	if testing.Short() {
		phases = 1
	}
	for range 2 {
		b := newBench(t)
		var client, endpoint duplexer = b.client, b.endpoint
		if random.IntN(4) == 0 {
			client = secure(t, b.ends[0], b.client, tls.VersionTLS13)
		}
		b.start(Options{Idle: time.Minute})
		go func() { // an echo that ends when its input does
			io.Copy(struct{ io.Writer }{endpoint}, struct{ io.Reader }{endpoint})
			endpoint.CloseWrite()
		}()
		for phase := range phases {
			if phase > 0 {
				time.Sleep(time.Duration(random.Int64N(int64(1500 * time.Millisecond)))) // shorter or longer than needed to be parked
			}
			for range random.IntN(30) {
				b.renew() // dozens of storms beside the race detector may need longer than patience
				if !echo(t, client, random) {
					return
				}
			}
		}
		end(t, b, client, random)
	}
}

// echo sends one message and expects it back.
func echo(t *testing.T, client io.ReadWriter, random *rand.Rand) bool {
	size := 1 + random.IntN(200)
	if random.IntN(6) == 0 {
		size = random.IntN(600 << 10)
	}
	message := make([]byte, size)
	for i := range message {
		message[i] = byte(random.Uint32())
	}
	var sent sync.WaitGroup
	sent.Go(func() { client.Write(message) })
	defer sent.Wait()
	got := make([]byte, size)
	if n, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, message) {
		t.Errorf("%d bytes of %d came back, %v", n, size, err)
		return false
	}
	return true
}

// end ends a tunnel in one of many ways.
func end(t *testing.T, b *bench, client duplexer, random *rand.Rand) {
	switch random.IntN(4) {
	case 0:
		client.CloseWrite()
		wantEOF(t, client)
		b.want(t, ReasonEOF)
	case 1:
		b.client.SetLinger(0)
		b.client.Close()
		b.want(t, ReasonClientReset)
	case 2:
		b.ends[random.IntN(2)].Conn.Cut()
		b.want(t, ReasonCut)
	case 3: // both at once
		var both sync.WaitGroup
		both.Go(b.ends[0].Conn.Cut)
		both.Go(b.ends[1].Conn.Cut)
		both.Wait()
		b.want(t, ReasonCut)
	}
	b.client.Close()
	b.endpoint.Close()
}

// Neither acknowledgements nor sent bytes wake a parked direction.
func TestParkedIsNotWokenByWrites(t *testing.T) {
	b := newBench(t).start(Options{})
	chat(t, b.client, b.endpoint, 1)
	wantParked(t)
	for range 100 { // from endpoint to client; the other direction is parked
		send(t, b.endpoint, "tick")
		wantBytes(t, b.client, "tick")
		if !b.ends[0].Conn.Parked() {
			t.Fatal("a direction was woken that has nothing to copy")
		}
	}
	b.client.Close()
	b.endpoint.Close()
	b.want(t, ReasonEOF)
}

// After a panic, the tunnel reports it to the owner and returns the connections, which are
// reset.
func TestPanic(t *testing.T) {
	f := func(name string, o Options) {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			owner := &panicking{closing: closing{b}, told: make(chan any, 2)}
			go Start(b.ends[0], b.ends[1], o, owner)
			go func() {
				b.client.Write([]byte("question"))
				b.endpoint.Write([]byte("answer"))
			}()
			if what := <-owner.told; what != "no luck" {
				t.Errorf("told of %v", what)
			}
			if r := b.want(t, ReasonPanic); !errors.Is(r.Err, errPanicked) {
				t.Error(r.Err)
			}
			if n := pipes.taken.Load(); n != 0 {
				t.Errorf("%d pipes are in use", n)
			}
		})
	}
	f("up", Options{Sent: unlucky{}})
	f("down", Options{Received: unlucky{}})
}

type panicking struct {
	closing
	told chan any
}

func (p *panicking) Panicked(value any, _ []byte) { p.told <- value }

type unlucky struct{}

func (unlucky) Add(float64) { panic("no luck") }

// Without the lot, tunnels wait in goroutines. Here no end has a descriptor, so none can be
// parked.
func TestTunnelWithoutLot(t *testing.T) {
	client, endpoint, result, _ := inMemory(Options{})
	go client.Write([]byte("up"))
	wantBytes(t, endpoint, "up")
	client.Close()
	endpoint.Close()
	<-result
}
