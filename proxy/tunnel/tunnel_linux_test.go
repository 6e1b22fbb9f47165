package tunnel

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/listener/conn"
)

// cork delays bytes, so that the kernel sends them in one segment with the end of the stream.
func cork(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		panic(err)
	}
	raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
}

func drainPipes() {
	pipes.mu.Lock()
	defer pipes.mu.Unlock()
	for _, p := range pipes.spare {
		unix.Close(p.r)
		unix.Close(p.w)
	}
	pipes.spare = nil
}

// descriptors counts the open sockets and pipes of the process.
func descriptors(t *testing.T) int {
	t.Helper()
	n := 0
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && (strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "pipe:")) {
			n++
		}
	}
	return n
}

// eventually polls a condition until another goroutine makes it true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s never came true", what)
		}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	drainPipes()
	conn.Lot() // starts the lot, which has its own goroutine
	goroutines, open := runtime.NumGoroutine(), descriptors(t)
	t.Run("tunnels", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 30 {
			b := newBench(t).run(Options{})
			wg.Go(func() {
				if i%3 == 0 {
					go produce(t, b.client, 2<<20, 1)
				} else {
					go io.Copy(b.client, zeros{})
				}
				switch i % 3 {
				case 0: // an orderly end
					consume(t, b.endpoint, 2<<20, 1)
					b.endpoint.Close()
					b.want(t, ReasonEOF)
				case 1: // a pipe with bytes in it
					io.CopyN(io.Discard, b.endpoint, 100<<10)
					b.ends[0].Conn.Cut()
					<-b.result
				case 2:
					io.CopyN(io.Discard, b.endpoint, 100<<10)
					b.endpoint.SetLinger(0)
					b.endpoint.Close()
					<-b.result
				}
			})
		}
		wg.Wait()
	})
	if n := pipes.taken.Load(); n != 0 {
		t.Errorf("%d pipes were not given back", n)
	}
	if n := len(pipes.spare); n > sparePipes {
		t.Errorf("%d pipes are kept, want at most %d", n, sparePipes)
	}
	drainPipes()
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if now := descriptors(t); now > open {
		t.Errorf("%d sockets and pipes are open, %d were before", now, open)
	}
}

func TestIdleTunnelHoldsNoPipe(t *testing.T) {
	b := newBench(t).run(Options{})
	for range 3 {
		const size = 4 << 20
		go io.CopyN(b.client, zeros{}, size)
		if _, err := io.CopyN(io.Discard, b.endpoint, size); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pipe is given back", func() bool { return pipes.taken.Load() == 0 })
	}
	b.client.Close()
	b.endpoint.Close()
	b.want(t, ReasonEOF)
}

// The tunnel has sent the whole answer to the client, but the client has not read it yet. Now
// the endpoint does not accept the client's stream. A reset would destroy the answer.
func TestWholeStreamIsNotReset(t *testing.T) {
	const size = 1 << 20
	b := newBench(t)
	b.client.SetReadBuffer(64 << 10)
	socket := -1 // a copy: the tunnel owns its descriptor
	b.ends[0].Conn.Control(func(fd uintptr) { socket, _ = unix.Dup(int(fd)) })
	b.run(Options{})
	go produce(t, b.endpoint, size, 7)
	eventually(t, "the end is passed on", func() bool {
		const finWait1 = 4 // TCP_FIN_WAIT1: the FIN follows all bytes
		info, err := unix.GetsockoptTCPInfo(socket, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.State == finWait1
	})
	unix.Close(socket)
	b.endpoint.SetLinger(0)
	b.endpoint.Close()
	send(t, b.client, "too late")
	b.want(t, ReasonEndpointReset)
	consume(t, b.client, size, 7)
}

func TestBulkWithoutPipes(t *testing.T) {
	pipes.taken.Add(maxPipes)
	defer pipes.taken.Add(-maxPipes)
	b := newBench(t).run(Options{})
	go produce(t, b.client, 8<<20, 5)
	consume(t, b.endpoint, 8<<20, 5)
	b.endpoint.Close()
	b.want(t, ReasonEOF)
}

func TestUnixSocket(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	out, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	b.ends[1].Conn.Close()
	b.ends[1].Conn = conn.New(out)
	b.run(Options{})
	endpoint := a.(*net.UnixConn)
	var wg sync.WaitGroup
	wg.Go(func() { produce(t, b.client, 1<<20, 1) })
	wg.Go(func() { produce(t, endpoint, 1<<20, 2) })
	wg.Go(func() { consume(t, endpoint, 1<<20, 1) })
	consume(t, b.client, 1<<20, 2)
	wg.Wait()
	b.want(t, ReasonEOF)
}

// A tunnel in its steady state does not allocate.
func BenchmarkRequestResponse(b *testing.B) {
	t := newBench(b).run(Options{Idle: time.Minute})
	buf := make([]byte, 128)
	go func() { io.Copy(t.endpoint, t.endpoint); t.endpoint.Close() }()
	b.ReportAllocs()
	for b.Loop() {
		t.client.Write(buf)
		if _, err := io.ReadFull(t.client, buf); err != nil {
			b.Fatal(err)
		}
	}
	t.client.Close()
	t.want(b, ReasonEOF)
}
