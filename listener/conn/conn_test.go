package conn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const patience = 10 * time.Second

// pair is a connection over TCP and its other end.
func pair(t *testing.T) (*Conn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := New(server)
	t.Cleanup(func() {
		c.Close()
		client.Close()
	})
	client.SetDeadline(time.Now().Add(patience))
	c.SetReadDeadline(time.Now().Add(patience))
	return c, client.(*net.TCPConn)
}

// bare is a pair whose connection the poller does not know yet.
func bare(t *testing.T) (*Conn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, taken, err := NewAcceptor(ln)
	if err != nil {
		t.Fatal(err)
	}
	if !taken {
		t.Skip("connections are accepted by net alone here")
	}
	defer a.Close()
	client, err := net.Dial("tcp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		client.Close()
	})
	client.SetDeadline(time.Now().Add(patience))
	c.SetReadDeadline(time.Now().Add(patience))
	return c, client.(*net.TCPConn)
}

// eachSocket runs f with both kinds of TCP connections.
func eachSocket(t *testing.T, f func(*testing.T, func(*testing.T) (*Conn, *net.TCPConn))) {
	t.Run("tcp", func(t *testing.T) { f(t, pair) })
	t.Run("bare", func(t *testing.T) { f(t, bare) })
}

// pipe is a pair in memory, without a descriptor.
func pipe(t *testing.T) (*Conn, net.Conn) {
	client, server := net.Pipe()
	c := New(server)
	t.Cleanup(func() {
		c.Close()
		client.Close()
	})
	return c, client
}

// both runs f over TCP and over a pipe (without a descriptor). f must write to the other
// end in a goroutine, because a pipe has no buffer.
func both(t *testing.T, f func(t *testing.T, c *Conn, other net.Conn)) {
	t.Run("tcp", func(t *testing.T) {
		c, other := pair(t)
		f(t, c, other)
	})
	t.Run("bare", func(t *testing.T) {
		c, other := bare(t)
		f(t, c, other)
	})
	t.Run("pipe", func(t *testing.T) {
		c, other := pipe(t)
		f(t, c, other)
	})
}

func wantRead(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestAddresses(t *testing.T) { eachSocket(t, testAddresses) }

func testAddresses(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	if got, want := c.Peer.String(), other.LocalAddr().String(); got != want || c.Client != c.Peer || c.RemoteAddr().String() != want {
		t.Errorf("the peer is %s, want %s", got, want)
	}
	if got, want := c.Local.String(), other.RemoteAddr().String(); got != want || c.LocalAddr().String() != want {
		t.Errorf("local is %s, want %s", got, want)
	}
	c.Client = netip.MustParseAddrPort("192.0.2.1:4711")
	if c.RemoteAddr().String() != "192.0.2.1:4711" {
		t.Error(c.RemoteAddr())
	}
	p, _ := pipe(t)
	if p.Peer.IsValid() || p.Local.IsValid() {
		t.Error("a pipe has addresses")
	}
	if addrPort(&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 1}).String() != "192.0.2.1:1" {
		t.Error("a mapped address stays mapped")
	}
}

func TestPeekAndUnread(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, other net.Conn) {
		go func() {
			io.WriteString(other, "SS")
			io.WriteString(other, "H-2.0 and more")
			other.Close()
		}()
		b, err := c.Peek(4)
		if err != nil || !bytes.HasPrefix(b, []byte("SSH-")) {
			t.Fatalf("peeked %q, %v", b, err)
		}
		if again, err := c.Peek(2); err != nil || !bytes.Equal(again, b) {
			t.Errorf("peeked %q again, %v", again, err)
		}
		wantRead(t, c, "SS")
		c.Unread([]byte("<<"))
		c.Unread(nil)
		c.Unread([]byte(">>"))
		wantRead(t, c, ">><<H-2.0")
		c.Unread([]byte("mine"))
		if b := c.TakePeeked(); !bytes.HasPrefix(b, []byte("mine")) {
			t.Errorf("took %q", b)
		} else {
			c.Unread(b[4:])
		}
		wantRead(t, c, " and more")
		if c.TakePeeked() != nil {
			t.Error("bytes are left")
		}
		b, err = c.Peek(1)
		if len(b) != 0 || err != io.EOF {
			t.Errorf("peeked %q, %v at the end", b, err)
		}
		if n := c.BytesRead; n != int64(len("SSH-2.0 and more")) {
			t.Errorf("%d bytes were read", n)
		}
	})
}

func TestPeekReturnsWhatThereIs(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, other net.Conn) {
		go func() {
			io.WriteString(other, "abc")
			other.Close()
		}()
		b, err := c.Peek(100)
		if string(b) != "abc" || err != io.EOF {
			t.Errorf("peeked %q, %v", b, err)
		}
		wantRead(t, c, "abc")
	})
}

func TestPeekAtMuch(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, other net.Conn) {
		long := strings.Repeat("0123456789", 1000)
		go func() {
			for i := 0; i < len(long); i += 100 {
				io.WriteString(other, long[i:i+100])
			}
		}()
		if b, err := c.Peek(len(long)); string(b) != long || err != nil {
			t.Errorf("peeked %d bytes, %v", len(b), err)
		}
		wantRead(t, c, long)
	})
}

func TestReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, other := pipe(t)
		buf := make([]byte, 10)
		// waits reads, and expects that the wait ends at the deadline, after this time.
		waits := func(want time.Duration) {
			t.Helper()
			begin := time.Now()
			_, err := c.Read(buf)
			wantError(t, err, os.ErrDeadlineExceeded)
			if got := time.Since(begin); got != want {
				t.Errorf("waited %v, want %v", got, want)
			}
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		waits(time.Second)
		waits(0)
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		waits(2 * time.Second)
		c.SetReadDeadline(time.Now().Add(time.Second))
		c.SetReadDeadline(time.Now().Add(5 * time.Second)) // later than the deadline of the socket
		waits(5 * time.Second)
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		c.SetReadDeadline(time.Now().Add(time.Second)) // earlier
		waits(time.Second)
		c.SetReadDeadline(time.Now().Add(-time.Second))
		waits(0)

		c.SetReadDeadline(time.Now().Add(time.Second))
		c.SetReadDeadline(time.Time{}) // no deadline
		time.AfterFunc(time.Hour, func() { io.WriteString(other, "late") })
		wantRead(t, c, "late")
	})
}

func TestWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, other := pipe(t)
		f := func(timeout, want time.Duration) {
			t.Helper()
			c.WriteTimeout = timeout
			begin := time.Now()
			_, err := io.WriteString(c, "nobody reads this")
			wantError(t, err, os.ErrDeadlineExceeded)
			if got := time.Since(begin); got != want {
				t.Errorf("waited %v, want %v", got, want)
			}
		}
		f(time.Second, time.Second)
		f(3*time.Second, 3*time.Second)
		f(0, defaultWriteTimeout)
		go wantRead(t, other, "this is read")
		if _, err := io.WriteString(c, "this is read"); err != nil {
			t.Error(err)
		}
		if c.BytesWritten != int64(len("this is read")) {
			t.Errorf("%d bytes were written", c.BytesWritten)
		}
		synctest.Wait()
	})
}

func TestCut(t *testing.T) {
	waits := map[string]func(c *Conn) error{
		"read":  func(c *Conn) error { _, err := c.Read(make([]byte, 1)); return err },
		"peek":  func(c *Conn) error { _, err := c.Peek(1); return err },
		"await": func(c *Conn) error { return awaitByte(c) },
		"write": func(c *Conn) error {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, c *Conn, _ net.Conn) {
				first, _ := pair(t)
				first.CutAlso(c)
				ended := make(chan error)
				go func() { ended <- wait(c) }()
				first.Cut()
				wantError(t, <-ended, ErrCut)
				if !c.WasCut() || !first.WasCut() {
					t.Error("nobody remembers")
				}
				// A new deadline does not make the connection readable again.
				c.SetReadDeadline(time.Now().Add(time.Hour))
				wantError(t, wait(c), ErrCut)
				c.SetReadDeadline(time.Time{})
				wantError(t, wait(c), ErrCut)
			})
		})
	}
}

func awaitByte(c *Conn) error {
	var failed error
	err := c.Await(func() bool {
		n, err := c.Read(make([]byte, 1))
		if err != nil && err != ErrWouldBlock {
			failed = err
		}
		return n > 0 || failed != nil
	})
	if err == nil {
		err = failed
	}
	return err
}

func TestCutAlso(t *testing.T) {
	a, _ := pipe(t)
	b, _ := pipe(t)
	a.CutAlso(b)
	b.CutAlso(a)
	a.CutAlso(nil)
	a.Cut()
	if b.WasCut() {
		t.Error("CutAlso was undone")
	}
	a.CutAlso(b)
	if !b.WasCut() {
		t.Error("what is linked to a connection that was cut goes on")
	}
}

// One goroutine reads in Await while another writes and a third calls Cut.
func TestDuplex(t *testing.T) { eachSocket(t, testDuplex) }

func testDuplex(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	c.SetDuplex(true)
	const size = 4 << 20
	got := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, other)
		got <- n
	}()
	go func() {
		other.Write(make([]byte, size))
		other.CloseWrite()
	}()
	wrote := make(chan error)
	go func() {
		_, err := c.Write(make([]byte, size))
		if err == nil {
			err = c.CloseWrite()
		}
		wrote <- err
	}()
	buf, read := make([]byte, 1<<16), 0
	var end error
	err := c.Await(func() bool {
		for {
			n, err := c.Read(buf)
			read += n
			if err != nil {
				end = err
				return err != ErrWouldBlock
			}
		}
	})
	wantError(t, err, nil)
	wantError(t, <-wrote, nil)
	if n := <-got; read != size || n != size || end != io.EOF {
		t.Errorf("read %d, %v; the other end %d", read, end, n)
	}
	c.SetDuplex(false)
}

func TestDuplexCut(t *testing.T) { eachSocket(t, testDuplexCut) }

func testDuplexCut(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, _ := pair(t)
	c.SetDuplex(true)
	wrote := make(chan error)
	go func() {
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				wrote <- err
				return
			}
		}
	}()
	read := make(chan error)
	go func() { read <- awaitByte(c) }()
	c.Cut()
	wantError(t, <-wrote, ErrCut)
	wantError(t, <-read, ErrCut)
}

func TestHalfClose(t *testing.T) { eachSocket(t, testHalfClose) }

func testHalfClose(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	go func() {
		io.WriteString(other, "question")
		other.CloseWrite()
	}()
	if b, err := io.ReadAll(c); string(b) != "question" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	io.WriteString(c, "answer")
	c.CloseWrite()
	if b, err := io.ReadAll(other); string(b) != "answer" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	p, _ := pipe(t)
	wantError(t, p.CloseWrite(), nil)
}

// A reply that weir sends before it has read the request arrives completely.
func TestCloseAfterReply(t *testing.T) { eachSocket(t, testCloseAfterReply) }

func testCloseAfterReply(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	sent := make(chan error, 1)
	go func() { // more than all buffers on the way can hold
		_, err := other.Write(make([]byte, 8<<20))
		sent <- err
	}()
	wantRead(t, c, "\x00")
	reply := strings.Repeat("413 ", 10_000)
	io.WriteString(c, reply)
	closed := make(chan error)
	go func() { closed <- c.CloseAfterReply(patience) }()
	wantError(t, <-sent, nil)
	b, err := io.ReadAll(other)
	if string(b) != reply || err != nil {
		t.Errorf("read %d bytes of %d, %v", len(b), len(reply), err)
	}
	other.Write(make([]byte, 1<<10)) // weir still reads it
	other.Close()
	wantError(t, <-closed, nil)
}

func TestCloseAfterReplyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := func(c *Conn, d time.Duration) time.Duration {
			c.SetReadDeadline(time.Now().Add(time.Hour))
			begin := time.Now()
			c.CloseAfterReply(d)
			return time.Since(begin)
		}
		c, _ := pipe(t)
		if d := took(c, 3*time.Second); d != 3*time.Second {
			t.Errorf("a silent client held it for %v", d)
		}
		c, other := pipe(t)
		go func() {
			for {
				if _, err := other.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}()
		if d := took(c, time.Second); d != time.Second || c.BytesRead > discardRate+discardRate/10 {
			t.Errorf("a client that sends for ever held it for %v, and had %d bytes read", d, c.BytesRead)
		}
		c, _ = pipe(t)
		c.Cut()
		if d := took(c, time.Hour); d != 0 {
			t.Errorf("a connection that was cut took %v to close", d)
		}
	})
}

// If a client always sends more, no read waits, so no read reaches a deadline. weir still closes the
// connection.
func TestCloseAfterReplyEndsForBusyClients(t *testing.T) {
	eachSocket(t, func(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
		c, other := pair(t)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for block := make([]byte, 1<<20); ; {
				if _, err := other.Write(block); err != nil {
					return
				}
			}
		}()
		wantRead(t, c, "\x00")
		c.CloseAfterReply(50 * time.Millisecond)
		<-sent // the reset ends it
	})
}

func TestAbort(t *testing.T) { eachSocket(t, testAbort) }

func testAbort(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	c.Abort()
	c.Close()
	_, err := other.Read(make([]byte, 1))
	wantError(t, err, syscall.ECONNRESET)
}

func TestCloseAndEstablishedOnce(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, _ net.Conn) {
		closed, established := 0, 0
		c.OnClose = func() { closed++ }
		c.OnEstablished = func() { established++ }
		for range 3 {
			c.Established()
		}
		for range 3 {
			wantError(t, c.Close(), nil)
		}
		if closed != 1 || established != 1 {
			t.Errorf("called %d and %d times", closed, established)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a closed connection is read from")
		}
	})
	c, _ := pipe(t)
	c.Established() // without callbacks
	c.Close()
}

func TestState(t *testing.T) {
	c, _ := pipe(t)
	for s, want := range []string{"pending", "active", "idle", "tunnel"} {
		c.SetState(State(s))
		if c.State().String() != want {
			t.Errorf("%v, want %s", c.State(), want)
		}
	}
	if NumStates != 4 {
		t.Error(NumStates)
	}
}

func TestReset(t *testing.T) { eachSocket(t, testReset) }

func testReset(t *testing.T, pair func(*testing.T) (*Conn, *net.TCPConn)) {
	c, other := pair(t)
	other.SetLinger(0)
	other.Close()
	err := awaitByte(c)
	wantError(t, err, syscall.ECONNRESET)
	if !Routine(err) {
		t.Error("a reset is an ordinary ending")
	}
}

func TestRoutineAndExhausted(t *testing.T) {
	f := func(err error, routine, exhausted bool) {
		t.Helper()
		for _, e := range []error{err, fmt.Errorf("wrapped: %w", err)} {
			if Routine(e) != routine || Exhausted(e) != exhausted {
				t.Errorf("%v: %t, %t", e, Routine(e), Exhausted(e))
			}
		}
	}
	if !Routine(nil) || Exhausted(nil) {
		t.Error("no error is an ordinary ending")
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, os.ErrDeadlineExceeded, ErrCut, context.Canceled, syscall.EPIPE, syscall.ECONNRESET} {
		f(err, true, false)
	}
	for _, err := range []error{syscall.EMFILE, syscall.ENFILE} {
		f(&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}, false, true)
	}
	f(errors.New("another"), false, false)
	f(ErrWouldBlock, false, false)
}

// An error that names the timeout does not also contain "i/o timeout".
func TestExplain(t *testing.T) {
	for _, cause := range []error{os.ErrDeadlineExceeded, context.DeadlineExceeded, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}} {
		err := Explain(cause, "connecting took longer than %v (timeouts.connect)", time.Second)
		if err.Error() != "connecting took longer than 1s (timeouts.connect)" || !errors.Is(err, cause) || !TimedOut(err) {
			t.Errorf("%v is told as %q", cause, err)
		}
	}
	for _, err := range []error{nil, io.EOF, ErrCut, context.Canceled, syscall.ETIMEDOUT} {
		if TimedOut(err) {
			t.Errorf("%v is a deadline of ours", err)
		}
	}
}

func TestBuffers(t *testing.T) {
	PutBuffer(nil)
	b := GetBuffer()
	if len(b) != BufferSize {
		t.Error(len(b))
	}
	PutBuffer(b)
}
