package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// reader is an owner that reads one byte at a time, up to a full stop.
type reader struct {
	c    *Conn
	got  []byte
	err  error
	over bool
}

func (r *reader) step() bool {
	for !r.over {
		var b [1]byte
		if _, r.err = r.c.Read(b[:]); r.err == ErrWouldBlock {
			return false
		} else if r.err != nil || b[0] == '.' {
			r.over = true
			break
		}
		r.got = append(r.got, b[0])
	}
	return true
}

// eachBeginning runs f with a connection in every state in which a wait can begin.
func eachBeginning(t *testing.T, f func(*testing.T, *Conn, *net.TCPConn)) {
	for name, make := range map[string]func(*testing.T) (*Conn, *net.TCPConn){"polled": pair, "bare": bare, "unpolled": unpolled} {
		t.Run(name, func(t *testing.T) {
			c, other := make(t)
			f(t, c, other)
		})
	}
}

// A wait ends with ErrQuiet after Linger without bytes, and not earlier. Then the connection is parked, and
// its waiter notices the bytes that arrive later.
func TestAwaitOrPark(t *testing.T) {
	eachBeginning(t, func(t *testing.T, c *Conn, other *net.TCPConn) {
		io.WriteString(other, "abc")
		r := reader{c: c}
		begun := time.Now()
		c.SetReadDeadline(begun.Add(patience * 2))
		wantError(t, c.AwaitOrPark(r.step, func() bool { return true }), ErrQuiet)
		if string(r.got) != "abc" || time.Since(begun) < Linger {
			t.Errorf("it rests with %q behind it, after %v", r.got, time.Since(begun))
		}
		c.Unpoll()
		p := parkConn(t, c, c.ReadDeadline())
		io.WriteString(other, "def.")
		p.want(t, park.Ready)
		wantError(t, c.Woken(park.Ready), nil)
		wantError(t, c.AwaitOrPark(r.step, func() bool { return true }), nil)
		if string(r.got) != "abcdef" {
			t.Errorf("got %q", r.got)
		}
	})
}

// Woken does not end a connection at its deadline if bytes have arrived.
func TestWokenLate(t *testing.T) {
	eachBeginning(t, func(t *testing.T, c *Conn, other *net.TCPConn) {
		wantError(t, c.Woken(park.Late), os.ErrDeadlineExceeded)
		io.WriteString(other, "x.")
		for begun := time.Now(); c.Woken(park.Late) != nil; time.Sleep(time.Millisecond) {
			if time.Since(begun) > patience {
				t.Fatal("bytes are not seen")
			}
		}
		r := reader{c: c}
		wantError(t, c.Await(r.step), nil)
		wantError(t, c.Woken(park.Late), os.ErrDeadlineExceeded)
		other.Close()
		wantError(t, c.Await(func() bool { _, r.err = c.Read(make([]byte, 1)); return r.err != ErrWouldBlock }), nil)
		wantError(t, c.Woken(park.Late), os.ErrDeadlineExceeded) // an end of stream counts as no bytes, so the deadline applies
		c.Cut()
		wantError(t, c.Woken(park.Late), ErrCut)
	})
}

// A read deadline ends the wait if it is earlier than Linger, or if mayPark returns false.
func TestAwaitOrParkDeadline(t *testing.T) {
	eachBeginning(t, func(t *testing.T, c *Conn, other *net.TCPConn) {
		r := reader{c: c}
		c.SetReadDeadline(time.Now().Add(Linger / 4))
		wantError(t, c.AwaitOrPark(r.step, func() bool { return true }), os.ErrDeadlineExceeded)
		c.SetReadDeadline(time.Now().Add(Linger + Linger/2))
		asked := 0
		wantError(t, c.AwaitOrPark(r.step, func() bool { asked++; return false }), os.ErrDeadlineExceeded)
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
		c.Cut()
		wantError(t, c.AwaitOrPark(r.step, func() bool { return true }), ErrCut)
	})
}

// If mayPark has returned false, Stir makes the wait ask again, from any goroutine and at
// any moment. If mayPark returns false again, the wait continues.
func TestStir(t *testing.T) {
	c, other := pair(t)
	c.Split()
	c.SetReadDeadline(time.Now().Add(patience * 2))
	r := reader{c: c}
	answers := make(chan bool)
	ended := make(chan error)
	go func() { ended <- c.AwaitOrPark(r.step, func() bool { return <-answers }) }()
	answers <- false
	for _, answer := range []bool{false, false, false, true} {
		for asked := false; !asked; { // one Stir may come before mayPark was asked
			c.Stir()
			select {
			case answers <- answer:
				asked = true
			case <-time.After(time.Millisecond):
			}
		}
	}
	wantError(t, <-ended, ErrQuiet)

	c.Stir() // no goroutine waits
	io.WriteString(other, "x.")
	wantError(t, c.AwaitOrPark(r.step, func() bool { return true }), nil)
	if string(r.got) != "x" {
		t.Errorf("got %q", r.got)
	}
}

// Stir, bytes and new waits at the same time lose no byte, and no end of a wait.
func TestStirStorm(t *testing.T) {
	c, other := pair(t)
	c.Split()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				c.parkDenied.Store(true) // as if mayPark had just returned false
				c.Stir()
			}
		}
	}()
	const rounds = 2000
	go func() {
		for range rounds {
			io.WriteString(other, "ab.")
		}
	}()
	for range rounds {
		c.SetReadDeadline(time.Now().Add(patience))
		r := reader{c: c}
		for {
			err := c.AwaitOrPark(r.step, func() bool { return true })
			if errors.Is(err, ErrQuiet) {
				continue
			}
			wantError(t, err, nil)
			break
		}
		if string(r.got) != "ab" {
			t.Fatalf("got %q", r.got)
		}
	}
	close(stop)
	<-stopped
}

// Interrupt wakes a parked connection, even if it is called before Park.
func TestInterruptParked(t *testing.T) {
	eachBeginning(t, func(t *testing.T, c *Conn, _ *net.TCPConn) {
		p := parkConn(t, c, time.Time{})
		c.Interrupt()
		p.want(t, park.Called)
		c.Resume()
		c.Interrupt()
		p = parkConn(t, c, time.Time{})
		p.want(t, park.Called)
		c.JoinPoller()
		wantError(t, c.Await(func() bool { return false }), ErrInterrupted)
		c.Resume()
	})
}

// A connection whose goroutine sleeps in the lot is not parked.
func TestParkedIsWithoutGoroutine(t *testing.T) {
	c, other := bare(t)
	woken := make(chan error, 1)
	r := reader{c: c}
	go func() { woken <- c.Await(r.step) }()
	for c.parked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if c.Parked() {
		t.Error("it is said to be parked")
	}
	io.WriteString(other, ".")
	wantError(t, <-woken, nil)
	p := parkConn(t, c, time.Time{})
	if !c.Parked() {
		t.Error("it is said not to be parked")
	}
	other.Close()
	p.want(t, park.Ready)
	if c.Parked() {
		t.Error("it is said to be parked")
	}
}
