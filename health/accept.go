package health

import (
	"container/list"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
)

const (
	// maxConnections limits the open connections of the port. When there are more, weir
	// closes the oldest: a check takes milliseconds, so a connection that stays open is
	// not a check.
	maxConnections = 1024
	// reserved is the number of reserved descriptors.
	reserved = 8
)

// acceptor accepts for the health port. It reads nothing itself, limits the open
// connections, and accepts with a reserved descriptor when no other is left.
type acceptor struct {
	*conn.Reserve
	from *atomic.Pointer[[]netip.Prefix]
	// count has the open connections of the port.
	count *atomic.Int64

	mu   sync.Mutex
	open list.List // of *portConn, the oldest first
}

func newAcceptor(ln net.Listener, from *atomic.Pointer[[]netip.Prefix]) *acceptor {
	a := &acceptor{from: from, count: new(atomic.Int64)}
	a.Reserve = conn.NewReserve(ln, reserved, a.closeOldest)
	return a
}

// Accept returns the next connection.
func (a *acceptor) Accept() (net.Conn, error) {
	nc, err := a.Reserve.Accept()
	if err != nil {
		return nil, err
	}
	return a.admit(nc), nil
}

func (a *acceptor) admit(nc net.Conn) net.Conn {
	c := &portConn{Conn: nc, acceptor: a}
	a.mu.Lock()
	c.place = a.open.PushBack(c)
	a.count.Add(1)
	full := a.open.Len() > maxConnections
	a.mu.Unlock()
	if full {
		a.closeOldest()
	}
	return c
}

func (a *acceptor) closeOldest() bool {
	a.mu.Lock()
	front := a.open.Front()
	a.mu.Unlock()
	if front == nil {
		return false
	}
	front.Value.(*portConn).closeKeeping(false)
	return true
}

// portConn reads an optional PROXY header within its first Read, which net/http calls in
// the goroutine of the connection and under readHeadTimeout. The addresses of the
// connection stay the addresses of the socket, because no answer of the port depends on
// the client.
type portConn struct {
	net.Conn
	acceptor *acceptor
	place    *list.Element
	closed   atomic.Bool

	begun bool
	ahead []byte // bytes that were read together with the header
	err   error
}

func (c *portConn) Read(p []byte) (int, error) {
	if !c.begun {
		c.begun = true
		c.ahead, c.err = c.readHeader()
	}
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

// readHeader returns the bytes after a PROXY header, or all bytes if there is no header.
// For a bad header it returns io.EOF, so that net/http closes the connection without an
// answer. For other errors net/http would answer 400.
func (c *portConn) readHeader() ([]byte, error) {
	buf := make([]byte, 0, 512)
	for {
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, header.MaxSize+512), buf...)
		}
		n, err := c.Conn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		end, scanErr := header.Scan(buf)
		switch {
		case errors.Is(scanErr, header.ErrAbsent):
			return buf, err
		case scanErr != nil:
			return nil, io.EOF
		case end > 0:
			_, bad := header.Parse(buf[:end])
			if errors.Is(bad, header.ErrMixedFamilies) {
				bad = nil // nobody uses the addresses
			}
			if bad != nil || !c.mayVouch() {
				return nil, io.EOF
			}
			return buf[end:], err
		case err != nil:
			return nil, err // a check that connects and sends nothing ends here
		}
	}
}

// mayVouch reports whether the peer may send a PROXY header.
func (c *portConn) mayVouch() bool {
	from := *c.acceptor.from.Load()
	if from == nil {
		return true
	}
	t, ok := c.Conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	peer := t.AddrPort().Addr().Unmap().WithZone("")
	for _, p := range from {
		if p.Contains(peer) {
			return true
		}
	}
	return false
}

func (c *portConn) Close() error { return c.closeKeeping(true) }

// closeKeeping closes the connection. If refill is true, its descriptor goes back to the reserve. Otherwise
// the caller uses the descriptor to accept another connection.
func (c *portConn) closeKeeping(refill bool) error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.acceptor.mu.Lock()
	c.acceptor.open.Remove(c.place)
	c.acceptor.count.Add(-1)
	c.acceptor.mu.Unlock()
	err := c.Conn.Close()
	if refill {
		c.acceptor.Refill()
	}
	return err
}
