package probe

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// network returns a dialer that connects to an endpoint in memory, which handles each connection by f. It is for
// tests in a bubble of synctest: there no machine is too busy for the waits of a probe, and the longest wait
// takes no time. serving waits for the endpoint.
func network(f func(net.Conn), serving *sync.WaitGroup) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		out, in := newHalf(), newHalf()
		client := &memConn{in: in, out: out, local: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4711}, remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 443}}
		server := &memConn{in: out, out: in, local: client.remote, remote: client.local}
		serving.Go(func() {
			defer server.Close()
			f(server)
		})
		return client, nil
	}
}

// memConn is one end of a connection in memory.
type memConn struct {
	in, out       *half
	local, remote net.Addr
}

func (c *memConn) Read(b []byte) (int, error)         { return c.in.read(b) }
func (c *memConn) Write(b []byte) (int, error)        { return c.out.write(b) }
func (c *memConn) CloseWrite() error                  { return c.out.end(false) }
func (c *memConn) LocalAddr() net.Addr                { return c.local }
func (c *memConn) RemoteAddr() net.Addr               { return c.remote }
func (c *memConn) SetReadDeadline(t time.Time) error  { return c.in.until(t) }
func (c *memConn) SetWriteDeadline(t time.Time) error { return nil }
func (c *memConn) SetDeadline(t time.Time) error      { return c.in.until(t) }

func (c *memConn) Close() error {
	c.in.end(true)
	return c.out.end(false)
}

// half is one direction of a connection.
type half struct {
	mu          sync.Mutex
	changed     *sync.Cond
	buffer      bytes.Buffer
	ended, gone bool // nothing more is written; nothing more is read
	deadline    time.Time
}

// mostBuffered is about what the sockets of a connection hold.
const mostBuffered = 256 << 10

func newHalf() *half {
	h := new(half)
	h.changed = sync.NewCond(&h.mu)
	return h
}

func (h *half) read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.gone:
			return 0, net.ErrClosed
		case h.buffer.Len() > 0:
			h.changed.Broadcast()
			return h.buffer.Read(b)
		case h.ended:
			return 0, io.EOF
		case !h.deadline.IsZero() && !time.Now().Before(h.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		h.changed.Wait()
	}
}

func (h *half) write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.buffer.Len() > mostBuffered && !h.gone && !h.ended {
		h.changed.Wait()
	}
	if h.gone || h.ended {
		return 0, net.ErrClosed
	}
	h.changed.Broadcast()
	return h.buffer.Write(b)
}

func (h *half) end(gone bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = h.gone || gone
	h.ended = h.ended || !gone
	h.changed.Broadcast()
	return nil
}

func (h *half) until(t time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deadline = t; !t.IsZero() {
		time.AfterFunc(time.Until(t), func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.changed.Broadcast()
		})
	}
	h.changed.Broadcast()
	return nil
}
