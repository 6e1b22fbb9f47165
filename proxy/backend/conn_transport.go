package backend

import (
	"context"
	"crypto/tls"
	"io"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// connTransport is a connection that one link has for itself, for HTTP/1.1 or a tunnel.
type connTransport struct {
	*conn.Conn
	tls *tls.Conn // nil: no TLS
	// rw reads and writes the bytes: tls if it is not nil, else Conn.
	rw io.ReadWriter

	http1     http1.Client
	secure    secureConn    // http1 reads and writes through it, if there is TLS
	made      *dialSettings // the settings that Dial used
	idleSince uint32        // in the endpoint's ticks
}

// newLink makes a link of a connection that was made with the settings d.
func newLink(e *Endpoint, c *conn.Conn, d *dialSettings) *Link {
	s := &Link{endpoint: e, own: connTransport{Conn: c, rw: c, made: d}}
	s.transport = &s.own
	return s
}

// handshake does the TLS handshake. When ctx ends, Cut ends the reads. It does not use
// HandshakeContext, which closes the connection: only its owner may close a Conn.
func (w *connTransport) handshake(ctx context.Context, cfg *tls.Config) error {
	stop := context.AfterFunc(ctx, w.Cut)
	w.tls = tls.Client(w.NetConn(), cfg)
	w.rw = w.tls
	err := w.tls.Handshake()
	if !stop() {
		return context.Cause(ctx)
	}
	return err
}

// speak prepares the codec.
func (w *connTransport) speak(limits message.Limits) {
	w.http1.Init(w.rw, limits)
	if w.tls != nil {
		w.secure = secureConn{w.tls, w.Conn}
		w.http1.Init(&w.secure, limits)
	}
	w.http1.Tolerate(w.made.lenient)
	w.http1.LimitInfos(w.made.infos)
}

// secureConn is a TLS connection that reports how it ended.
type secureConn struct {
	*tls.Conn
	below *conn.Conn
}

// Truncated reports whether the connection ended without a close_notify. Any machine on the
// network path can end a connection like that. crypto/tls returns io.EOF in both cases;
// only without a close_notify has the connection below seen its end.
func (s *secureConn) Truncated() bool { return s.below.SawEnd() }

func (w *connTransport) SetReadDeadline(t time.Time) { w.Conn.SetReadDeadline(t) }

func (w *connTransport) SetWriteTimeout(d time.Duration) { w.WriteTimeout = d }

func (w *connTransport) Usable() bool { return w.http1.Usable(conn.ErrWouldBlock) }

func (w *connTransport) Release() { w.http1.Release() }

func (w *connTransport) Sent() int64 { return w.BytesWritten }

func (w *connTransport) SentNothing(since int64) bool { return w.BytesWritten == since }

func (w *connTransport) Shared() bool { return false }

// CanRefuse returns false: an HTTP/1.1 endpoint only answers, or closes the connection.
func (w *connTransport) CanRefuse() bool { return false }

func (w *connTransport) EndsByLength() bool { return true }

func (w *connTransport) TunnelEnd(*memory.Account) tunnel.End {
	end := &tunnel.ConnEnd{Conn: w.Conn, TLS: w.tls, Early: w.http1.TakeBuffered()}
	w.http1.Close()
	return end
}

func (w *connTransport) Abort() {
	w.Conn.Abort()
	w.tls = nil // close sends a close_notify for it
}

func (w *connTransport) keep(s *Link) {
	e := s.endpoint
	e.mu.Lock() // before the check: a goroutine that changes the settings then empties the pool
	if len(e.idle) < e.mostIdle() && e.dial.Load().takes(w.made) {
		w.idleSince = e.ticks
		e.idle = append(e.idle, s)
		e.stock()
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	s.Close()
}

func (w *connTransport) close(*Link) error {
	w.http1.Close()
	if w.tls != nil {
		return w.tls.Close()
	}
	return w.Conn.Close()
}
