package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/listener/park"
)

// parker is the Waiter of a parked connection.
type parker chan park.Reason

func (p parker) Wake(why park.Reason) { p <- why }

func (p parker) want(t *testing.T, want park.Reason) {
	t.Helper()
	select {
	case got := <-p:
		if got != want {
			t.Fatalf("woken with %d, want %d", got, want)
		}
	case <-time.After(2 * patience):
		t.Fatalf("not woken, want %d", want)
	}
}

func parkConn(t *testing.T, c *Conn, deadline time.Time) parker {
	t.Helper()
	p := make(parker, 2)
	if !c.CanPark() || !c.Park(p, deadline) {
		t.Fatal("it cannot be parked")
	}
	return p
}

// unpolled is a pair whose connection was in the poller and has left it.
func unpolled(t *testing.T) (*Conn, *net.TCPConn) {
	c, other := pair(t)
	go io.WriteString(other, "x")
	wantError(t, c.Await(func() bool { _, err := c.Read(make([]byte, 1)); return err == nil }), nil)
	c.Unpoll()
	if c.Polled() {
		t.Fatal("the poller still knows it")
	}
	return c, other
}

// eachState runs f with a connection in every state in which it can be parked.
func eachState(t *testing.T, f func(*testing.T, *Conn, *net.TCPConn)) {
	for name, make := range map[string]func(*testing.T) (*Conn, *net.TCPConn){"polled": pair, "bare": bare, "unpolled": unpolled} {
		for _, duplex := range []bool{false, true} {
			if duplex {
				name += ", duplex"
			}
			t.Run(name, func(t *testing.T) {
				c, other := make(t)
				c.SetDuplex(duplex)
				f(t, c, other)
			})
		}
	}
}

func TestParkEnds(t *testing.T) {
	f := func(name string, deadline time.Duration, act func(c *Conn, other *net.TCPConn), want park.Reason) {
		t.Run(name, func(t *testing.T) {
			eachState(t, func(t *testing.T, c *Conn, other *net.TCPConn) {
				p := parkConn(t, c, time.Now().Add(deadline))
				act(c, other)
				p.want(t, want)
				c.Cut() // on a connection that no goroutine waits for
				if len(p) != 0 {
					t.Error("woken twice")
				}
			})
		})
	}
	f("bytes", time.Minute, func(_ *Conn, other *net.TCPConn) { io.WriteString(other, "x") }, park.Ready)
	f("half close", time.Minute, func(_ *Conn, other *net.TCPConn) { other.CloseWrite() }, park.Ready)
	f("reset", time.Minute, func(_ *Conn, other *net.TCPConn) { other.SetLinger(0); other.Close() }, park.Ready)
	f("deadline", 10*time.Millisecond, func(*Conn, *net.TCPConn) {}, park.Late)
	f("cut", time.Minute, func(c *Conn, _ *net.TCPConn) { c.Cut() }, park.Called)
}

func TestParkAfterCut(t *testing.T) {
	eachState(t, func(t *testing.T, c *Conn, _ *net.TCPConn) {
		c.Cut()
		parkConn(t, c, time.Time{}).want(t, park.Called)
	})
}

func TestUnpark(t *testing.T) {
	eachState(t, func(t *testing.T, c *Conn, other *net.TCPConn) {
		if c.Unpark() {
			t.Error("taken back, and it was never parked")
		}
		p := parkConn(t, c, time.Time{})
		if !c.Unpark() || c.Unpark() {
			t.Error("it cannot be taken back, or twice")
		}
		io.WriteString(other, "x")
		parkConn(t, c, time.Time{}).want(t, park.Ready)
		if c.Unpark() || len(p) > 0 {
			t.Error("taken back after it was woken, or woken after it was taken back")
		}
	})
}

// A connection is parked, woken, read and written many times, in the lot and in the
// poller.
func TestParkedConnectionGoesOn(t *testing.T) {
	eachState(t, func(t *testing.T, c *Conn, other *net.TCPConn) {
		for i := range 12 {
			p := parkConn(t, c, time.Now().Add(time.Minute))
			io.WriteString(other, "ping")
			p.want(t, park.Ready)
			var got []byte
			wantError(t, c.Await(func() bool {
				b := make([]byte, 10)
				n, err := c.Read(b)
				got = append(got, b[:n]...)
				return len(got) == 4 || err != nil && err != ErrWouldBlock
			}), nil)
			if string(got) != "ping" {
				t.Fatalf("read %q", got)
			}
			io.WriteString(c, "pong")
			wantRead(t, other, "pong")
			if i%3 == 2 {
				c.Unpoll()
			}
		}
		other.CloseWrite()
		parkConn(t, c, time.Time{}).want(t, park.Ready)
		wantError(t, c.Await(func() bool {
			_, err := c.Read(make([]byte, 1))
			return err == io.EOF
		}), nil)
		c.CloseWrite()
		if b, err := io.ReadAll(other); len(b) > 0 || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
	})
}

// The end of a stream wakes a parked connection, even if it came with bytes that were
// read before.
func TestParkFindsHiddenEnd(t *testing.T) {
	eachState(t, func(t *testing.T, c *Conn, other *net.TCPConn) {
		raw, _ := other.SyscallConn()
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
		io.WriteString(other, "all")
		other.CloseWrite()
		n := 0
		wantError(t, c.Await(func() bool {
			n, _ = c.Read(make([]byte, 10))
			return n > 0
		}), nil)
		if n != 3 {
			t.Errorf("read %d bytes", n)
		}
		parkConn(t, c, time.Now().Add(time.Minute)).want(t, park.Ready)
	})
}

func TestNothingToPark(t *testing.T) {
	c, _ := pipe(t)
	if c.CanPark() || c.Park(make(parker, 1), time.Time{}) {
		t.Error("a connection without a descriptor was parked")
	}
	c.Unpoll() // does nothing
	if !c.Polled() {
		t.Error("it was unpolled")
	}
}

func sockets(t *testing.T) (n int) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestUnpollKeepsNothing(t *testing.T) {
	c, other := pair(t)
	c.CanPark() // the first caller opens the lot, which has descriptors of its own
	before := sockets(t)
	for range 3 {
		c.Unpoll()
		if n := sockets(t); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
		io.WriteString(c, "x")
		wantRead(t, other, "x")
		c.JoinPoller()
		if n := sockets(t); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
		p := parkConn(t, c, time.Time{}) // the lot knows the connection by a descriptor that will be closed
		io.WriteString(other, "y")
		p.want(t, park.Ready)
		wantRead(t, c, "y")
	}
	c.Close()
	wantEnd(t, other)
}

func wantEnd(t *testing.T, r io.Reader) {
	t.Helper()
	if b, err := io.ReadAll(r); len(b) > 0 || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
}

// Cut may be called while the owner does anything else.
func TestCutWhileUnpolling(t *testing.T) {
	for range 200 {
		c, _ := pair(t)
		c.SetReadDeadline(time.Time{})
		c.SetDuplex(true)
		var cut sync.WaitGroup
		cut.Go(c.Cut)
		p := make(parker, 1)
		for {
			c.Unpoll()
			if !c.Park(p, time.Time{}) {
				t.Fatal("it cannot be parked")
			}
			if c.Unpark() {
				c.JoinPoller()
				continue
			}
			p.want(t, park.Called)
			break
		}
		wantError(t, c.AwaitBusy(func() bool { return false }), ErrCut)
		cut.Wait()
		c.Close()
	}
}

func TestAwaitBusy(t *testing.T) {
	eachSocket(t, func(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
		c, other := pair(t)
		c.SetReadDeadline(time.Time{})
		c.SetDuplex(true)
		c.Unpoll()
		buf := make([]byte, 10)
		wouldBlock := func() bool {
			for {
				if _, err := c.Read(buf); err != nil {
					if err != ErrWouldBlock {
						t.Error(err)
					}
					return false
				}
			}
		}
		begun := time.Now()
		for range calmWaits { // each returns at once
			wantError(t, c.AwaitBusy(wouldBlock), ErrQuiet)
			if c.Polled() {
				t.Fatal("it joined the poller at once")
			}
		}
		took := time.Since(begun)
		wantError(t, c.AwaitBusy(wouldBlock), ErrQuiet)
		if d := time.Since(begun); took < Linger && (!c.Polled() || d < Linger) {
			t.Errorf("one that waits often did not linger in the poller (%v)", d)
		}
		if !c.Polled() {
			return // the machine was too slow for this test
		}
		begun = time.Now() // again, because the poller's deadline has passed
		steps := 0
		wantError(t, c.AwaitBusy(func() bool { steps++; return wouldBlock() }), ErrQuiet)
		if d := time.Since(begun); d < Linger || steps == 0 {
			t.Errorf("it lingered for %v and looked %d times", d, steps)
		}
		io.WriteString(other, "x")
		wantError(t, c.AwaitBusy(func() bool {
			_, err := c.Read(buf)
			return err == nil
		}), nil)
	})
}

// A write that has to wait joins the poller while the reading side is parked.
func TestWriteThatWaitsWhileParked(t *testing.T) {
	c, other := bare(t)
	c.SetReadDeadline(time.Time{})
	c.SetDuplex(true)
	p := parkConn(t, c, time.Time{})
	const size = 16 << 20
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		written <- err
	}()
	for deadline := time.Now().Add(10 * time.Second); !c.Polled(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a write of more than the kernel keeps does not wait")
		}
	}
	if n, err := io.CopyN(io.Discard, other, size); n != size || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	wantError(t, <-written, nil)
	io.WriteString(other, "x")
	p.want(t, park.Ready)
	wantError(t, c.AwaitBusy(func() bool {
		_, err := c.Read(make([]byte, 1))
		return err == nil
	}), nil)
	if lot().Waiter(park.Token(c.watch.Load())) != nil {
		t.Error("its end is watched for though nobody waits")
	}
}

// If there is no spare descriptor, a connection stays in the poller and works.
func TestUnpollWithoutDescriptors(t *testing.T) {
	c, other := pair(t)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := syscall.Rlimit{Cur: 3, Max: was.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	c.Unpoll()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !c.Polled() {
		t.Error("it was unpolled")
	}
	io.WriteString(other, "x")
	wantRead(t, c, "x")
}

func TestClosed(t *testing.T) {
	c := Closed()
	if err := c.Close(); err != nil || c.Header == nil {
		t.Error(err)
	}
	c.Cut()
	if errors.Is(c.readError(io.EOF), io.EOF) {
		t.Error("it was cut")
	}
}
