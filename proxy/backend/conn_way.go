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

// connWay is a connection that one session has for itself, for HTTP/1.1 or a tunnel.
type connWay struct {
	*conn.Conn
	tls *tls.Conn // nil: no TLS
	// rw reads and writes the bytes: tls if it is not nil, else Conn.
	rw io.ReadWriter

	http1     http1.Client
	secure    secureWay     // http1 reads and writes through it, if there is TLS
	made      *dialSettings // the settings that Dial used
	idleSince uint32        // in the endpoint's ticks
}

// newSession makes a session of a connection that was made with the settings d.
func newSession(e *Endpoint, c *conn.Conn, d *dialSettings) *Session {
	s := &Session{endpoint: e, own: connWay{Conn: c, rw: c, made: d}}
	s.way = &s.own
	return s
}

// handshake does the TLS handshake. When ctx ends, Cut ends the reads. It does not use
// HandshakeContext, which closes the connection: only its owner may close a Conn.
func (w *connWay) handshake(ctx context.Context, cfg *tls.Config) error {
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
func (w *connWay) speak(limits message.Limits) {
	w.http1.Init(w.rw, limits)
	if w.tls != nil {
		w.secure = secureWay{w.tls, w.Conn}
		w.http1.Init(&w.secure, limits)
	}
	w.http1.Tolerate(w.made.lenient)
}

// secureWay is a TLS connection that reports how it ended.
type secureWay struct {
	*tls.Conn
	below *conn.Conn
}

// Truncated reports whether the connection ended without a close_notify. Any machine on the
// network path can end a connection like that. crypto/tls returns io.EOF in both cases;
// only without a close_notify has the connection below seen its end.
func (s *secureWay) Truncated() bool { return s.below.SawEnd() }

func (w *connWay) SetReadDeadline(t time.Time) { w.Conn.SetReadDeadline(t) }

func (w *connWay) SetWriteTimeout(d time.Duration) { w.WriteTimeout = d }

func (w *connWay) Usable() bool { return w.http1.Quiet(conn.ErrWouldBlock) }

func (w *connWay) Release() { w.http1.Release() }

func (w *connWay) Sent() int64 { return w.BytesWritten }

func (w *connWay) SentNothing(since int64) bool { return w.BytesWritten == since }

func (w *connWay) Shared() bool { return false }

// CanRefuse returns false: an HTTP/1.1 endpoint only answers, or closes the connection.
func (w *connWay) CanRefuse() bool { return false }

func (w *connWay) EndsByLength() bool { return true }

func (w *connWay) TunnelEnd(*memory.Account) tunnel.End {
	end := &tunnel.ConnEnd{Conn: w.Conn, TLS: w.tls, Early: w.http1.TakeBuffered()}
	w.http1.Close()
	return end
}

func (w *connWay) keep(s *Session) {
	e := s.endpoint
	e.mu.Lock() // before the check: a goroutine that changes the settings then empties the pool
	if len(e.idle) < e.mostIdle() && e.dial.Load().takes(w.made) {
		w.idleSince = e.ticks
		e.idle = append(e.idle, s)
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	s.Close()
}

func (w *connWay) close(*Session) error {
	w.http1.Close()
	if w.tls != nil {
		return w.tls.Close()
	}
	return w.Conn.Close()
}
