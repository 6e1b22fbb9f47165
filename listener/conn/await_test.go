package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestAwait(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, other net.Conn) {
		const text = "what comes in pieces"
		go func() {
			for i := range text {
				io.WriteString(other, text[i:i+1])
			}
			other.Close()
		}()
		var got []byte
		var end error
		buf := make([]byte, 7)
		err := c.Await(func() bool {
			for {
				n, err := c.Read(buf)
				got = append(got, buf[:n]...)
				if err == ErrWouldBlock {
					return false
				}
				if err != nil {
					end = err
					return true
				}
			}
		})
		if err != nil || string(got) != text || end != io.EOF {
			t.Errorf("got %q, %v, %v", got, end, err)
		}
		if c.BytesRead != int64(len(text)) {
			t.Errorf("%d bytes were read", c.BytesRead)
		}
	})
}

// No read within Await waits. After a short read, Read trusts that the socket is empty. After LookAgain, Read
// asks the kernel.
func TestAwaitReads(t *testing.T) { eachSocket(t, testAwaitReads) }

func testAwaitReads(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	io.WriteString(other, "some")
	buf := make([]byte, 100)
	calls := 0
	err := c.Await(func() bool {
		calls++
		n, err := c.Read(buf)
		switch {
		case err == ErrWouldBlock:
			return false
		case err != nil:
			t.Error(err)
			return true
		}
		if string(buf[:n]) == "more" {
			return true
		}
		if n, err := c.Read(nil); n != 0 || err != nil && err != ErrWouldBlock {
			t.Errorf("a read into nothing: %d, %v", n, err)
		}
		if _, err := c.Read(buf); err != ErrWouldBlock {
			t.Errorf("after a short read: %v", err)
		}
		if !c.LookAgain() {
			t.Error("the end of the stream may be there, and LookAgain returns false")
		}
		if _, err := c.Read(buf); err != ErrWouldBlock {
			t.Errorf("looked again: %v", err)
		}
		if c.LookAgain() {
			t.Error("the kernel has just returned that nothing is left, and LookAgain returns true")
		}
		io.WriteString(other, "more")
		return false
	})
	if err != nil || calls < 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
	//lint:ignore SA1019 crypto/tls asks for it
	if e, ok := ErrWouldBlock.(net.Error); !ok || !e.Temporary() || e.Timeout() {
		t.Error("crypto/tls would take it for final")
	}
}

func TestAwaitSeesPeekedBytes(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, _ net.Conn) {
		c.Unread([]byte("ahead"))
		err := c.Await(func() bool {
			wantRead(t, c, "ahead")
			return true
		})
		wantError(t, err, nil)
	})
}

// If the end of a stream arrives with the last bytes, it causes no event of its own. A wait still finds it:
// at once, after a silence, and in the next wait.
func TestAwaitFindsTheEnd(t *testing.T) { eachSocket(t, testAwaitFindsTheEnd) }

func testAwaitFindsTheEnd(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	t.Parallel()
	end := func(other *net.TCPConn) {
		io.WriteString(other, "last words")
		other.CloseWrite()
	}
	// wait reads once per event, and so does not look for the end.
	wait := func(t *testing.T, c *Conn, enough int) error {
		t.Helper()
		var failed error
		read := 0
		err := c.Await(func() bool {
			n, err := c.Read(make([]byte, 100))
			if read += n; err != ErrWouldBlock {
				failed = err
			}
			return failed != nil || read >= enough
		})
		wantError(t, err, nil)
		return failed
	}
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		c, other := pair(t)
		end(other)
		wantError(t, wait(t, c, 100), io.EOF)
	})
	t.Run("after a silence", func(t *testing.T) {
		t.Parallel()
		c, other := pair(t)
		time.AfterFunc(Linger+Linger/4, func() { end(other) })
		wantError(t, wait(t, c, 100), io.EOF)
	})
	t.Run("by the next wait", func(t *testing.T) {
		t.Parallel()
		c, other := pair(t)
		time.AfterFunc(Linger+Linger/4, func() { end(other) })
		wantError(t, wait(t, c, 1), nil)
		wantError(t, wait(t, c, 1), io.EOF)
	})
}

func TestAwaitDeadline(t *testing.T) { eachSocket(t, testAwaitDeadline) }

func testAwaitDeadline(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	buf := make([]byte, 10)
	step := func() bool {
		n, err := c.Read(buf)
		return n > 0 || err != ErrWouldBlock
	}
	begin := time.Now()
	waits := func(want time.Duration) {
		t.Helper()
		wantError(t, c.Await(step), os.ErrDeadlineExceeded)
		if got := time.Since(begin); got < want {
			t.Errorf("waited %v, want %v", got, want)
		}
	}
	at := func(d time.Duration) {
		begin = time.Now()
		c.SetReadDeadline(begin.Add(d))
	}
	at(20 * time.Millisecond)
	waits(20 * time.Millisecond)
	waits(0)
	at(10 * time.Millisecond)
	at(50 * time.Millisecond)
	waits(50 * time.Millisecond)
	at(time.Hour)
	at(20 * time.Millisecond)
	waits(20 * time.Millisecond)
	at(-time.Second)
	waits(0)
	at(10 * time.Millisecond)
	c.SetReadDeadline(time.Time{})
	time.AfterFunc(30*time.Millisecond, func() { io.WriteString(other, "late") })
	wantError(t, c.Await(step), nil)
	// Bytes that arrive after the deadline are still there when a new deadline is set.
	io.WriteString(other, "later")
	at(patience)
	wantError(t, c.Await(step), nil)
}

// Bytes that arrive after the deadline do not count, even if the wait has not yet noticed that the deadline
// has passed.
func TestAwaitTakesNothingLate(t *testing.T) { eachSocket(t, testAwaitTakesNothingLate) }

func testAwaitTakesNothingLate(t *testing.T, open func(*testing.T) (*Conn, *net.TCPConn)) {
	for range 3 { // code that misses the deadline only sometimes might pass once
		c, other := open(t)
		c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		time.AfterFunc(100*time.Millisecond, func() { other.Write([]byte("late")) })
		err := c.Await(func() bool {
			_, err := c.Read(make([]byte, 8))
			return err != ErrWouldBlock
		})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Await with bytes after the deadline returned %v, want os.ErrDeadlineExceeded", err)
		}
		c.Close()
	}
}

// A wait longer than Linger stays one wait, without bytes and with them.
func TestAwaitBeyondLinger(t *testing.T) { eachSocket(t, testAwaitBeyondLinger) }

func testAwaitBeyondLinger(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	t.Parallel()
	c, other := pair(t)
	begin := time.Now()
	c.SetReadDeadline(begin.Add(Linger + Linger/5))
	io.WriteString(other, "early")
	calls, read := 0, 0
	err := c.Await(func() bool {
		calls++
		n, err := c.Read(make([]byte, 100))
		read += n
		return err != nil && err != ErrWouldBlock
	})
	wantError(t, err, os.ErrDeadlineExceeded)
	if took := time.Since(begin); read != 5 || took < Linger+Linger/5 || calls > 5 {
		t.Errorf("%d bytes in %v and %d calls", read, took, calls)
	}
}

func TestWriteInsideAwait(t *testing.T) { eachSocket(t, testWriteInsideAwait) }

func testWriteInsideAwait(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	long := strings.Repeat("0123456789", 1<<17) // more than the socket takes
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.WriteString(other, "go")
		wantRead(t, other, "short"+long)
	}()
	err := c.Await(func() bool {
		if _, err := c.Read(make([]byte, 10)); err == ErrWouldBlock {
			return false
		}
		for _, s := range []string{"short", "", long} {
			if n, err := io.WriteString(c, s); n != len(s) || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
		}
		return true
	})
	wantError(t, err, nil)
	<-done
	if c.BytesWritten != int64(len(long)+5) {
		t.Errorf("%d bytes were written", c.BytesWritten)
	}
}

// A step must not end its own wait, and must not wait itself: in some states of the connection it would never
// return. So it panics in every state, and the owner can still close the connection.
func TestMisuseInAStep(t *testing.T) {
	step := func() bool { return true }
	for name, misuse := range map[string]func(*Conn){
		"Await":           func(c *Conn) { c.Await(step) },
		"AwaitBusy":       func(c *Conn) { c.AwaitBusy(step) },
		"Peek":            func(c *Conn) { c.Peek(1) },
		"Close":           func(c *Conn) { c.Close() },
		"CloseAfterReply": func(c *Conn) { c.CloseAfterReply(time.Second) },
		"Park":            func(c *Conn) { c.Park(make(sleeper, 1), time.Time{}) },
		"Unpoll":          func(c *Conn) { c.Unpoll() },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, c *Conn, other net.Conn) {
				c.Unread([]byte("there are bytes, so that only the rule makes it fail"))
				func() {
					defer func() {
						want := "conn: a step of Await called " + name + " of the same connection"
						if got := recover(); got != want {
							t.Errorf("it panicked with %v, want %q", got, want)
						}
					}()
					c.Await(func() bool { misuse(c); return true })
				}()
				wantError(t, c.Close(), nil)
			})
		})
	}
	t.Run("AwaitOrPark", func(t *testing.T) {
		both(t, func(t *testing.T, c *Conn, other net.Conn) {
			defer func() {
				if got := recover(); got != "conn: a step of Await called Await of the same connection" {
					t.Errorf("it panicked with %v", got)
				}
			}()
			c.AwaitOrPark(func() bool { c.AwaitOrPark(step, step); return true }, step)
		})
	})
}

// A step may wait for another connection, and may use that connection without restrictions.
func TestStepMayUseAnotherConnection(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, _ net.Conn) {
		d, other := pair(t)
		err := c.Await(func() bool {
			io.WriteString(other, "in it")
			wantError(t, d.Await(func() bool { wantRead(t, d, "in it"); return true }), nil)
			wantError(t, d.Close(), nil)
			return true
		})
		wantError(t, err, nil)
	})
}
