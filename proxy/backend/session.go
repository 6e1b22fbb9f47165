package backend

import (
	"crypto/tls"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// Codec writes the request of an exchange to the endpoint, and reads the response. One
// goroutine may write while another one reads. *http1.Client and *http2.Call implement it.
// The methods of *http1.Client document each method.
type Codec interface {
	// ChargeTo sets the account of a client that the codec charges for the memory of the
	// exchange. The exchange calls it before WriteHead, and with nil after the codec has
	// released that memory.
	ChargeTo(*memory.Account)
	Quiet(wouldBlock error) bool
	WriteHead(req *message.Request)
	WriteBody(p []byte) error
	WriteEnd(req *message.Request)
	Flush() error
	ReadHead(req *message.Request, res *message.Response) error
	Started() bool
	Answered() bool
	ReadBody(res *message.Response) ([]byte, error)
	BodyEnded() bool
	Reusable() bool
	TakeBuffered() []byte
	Release()
	Close()
}

// Session is the way of one exchange or tunnel to an endpoint: a connection of its own, or
// a stream of a shared connection. It has one owner at a time: the caller of Dial, Connect
// or Idle owns it until Keep or Close. Await, SetReadDeadline, SetWriteTimeout, LookAgain,
// Cut and WasCut call the method of the connection or of the stream.
type Session struct {
	// Conn is the connection, for tunnels; nil if the session is a stream.
	Conn *conn.Conn
	// Stream is the HTTP/2 stream; nil if the session is a connection.
	Stream *http2.Call
	TLS    *tls.Conn // nil for a plain connection
	// RW reads and writes the bytes: TLS if it is not nil, else Conn.
	RW io.ReadWriter
	// HTTP is the codec of an HTTP session; nil until Speak.
	HTTP Codec
	// Reused means that the session comes from the pool. The endpoint may have closed it
	// while it was idle.
	Reused bool

	http1     http1.Client
	secure    secureWay // http1 reads and writes through it, if there is TLS
	trunk     *trunk    // the trunk of Stream
	endpoint  *Endpoint
	made      *dialSettings // the settings that Dial used
	idleSince uint32        // in the endpoint's ticks
	private   bool          // it belongs to one client connection
}

// Endpoint returns the endpoint of the session.
func (s *Session) Endpoint() *Endpoint { return s.endpoint }

// Speak prepares a new connection for HTTP/1.1: it sets HTTP.
func (s *Session) Speak(limits message.Limits) {
	s.http1.Init(s.RW, limits)
	if s.TLS != nil {
		s.secure = secureWay{s.TLS, s.Conn}
		s.http1.Init(&s.secure, limits)
	}
	s.http1.Tolerate(s.made.lenient)
	s.HTTP = &s.http1
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

// way is the connection or stream of a Session.
type way interface {
	Await(step func() bool) error
	LookAgain()
	Cut()
	WasCut() bool
}

func (s *Session) way() way {
	if s.Stream != nil {
		return s.Stream
	}
	return s.Conn
}

// Await calls step until it returns true, or until the wait ends with an error (see
// conn.Conn). Reads within step do not wait.
func (s *Session) Await(step func() bool) error { return s.way().Await(step) }

// SetReadDeadline limits the waits for the response.
func (s *Session) SetReadDeadline(t time.Time) {
	if s.Stream != nil {
		s.Stream.SetReadDeadline(t)
	} else {
		s.Conn.SetReadDeadline(t)
	}
}

// SetWriteTimeout limits the time until the endpoint takes bytes.
func (s *Session) SetWriteTimeout(d time.Duration) {
	if s.Stream != nil {
		s.Stream.SetWriteTimeout(d)
	} else {
		s.Conn.WriteTimeout = d
	}
}

// LookAgain makes the next read within Await check whether the connection has ended.
func (s *Session) LookAgain() { s.way().LookAgain() }

// Cut ends every wait with conn.ErrCut. Any goroutine may call it until Close or Keep.
func (s *Session) Cut() { s.way().Cut() }

// WasCut reports whether Cut was called.
func (s *Session) WasCut() bool { return s.way().WasCut() }

// Sent returns the number of bytes that weir has sent on the connection; always 0 for a
// stream.
func (s *Session) Sent() int64 {
	if s.Conn == nil {
		return 0
	}
	return s.Conn.BytesWritten
}

// Close ends the connection, over TLS with a close_notify, and releases the codec's
// memory. Of a shared connection it ends only the stream. After Close the caller must not
// use the session.
func (s *Session) Close() error {
	if s.Stream != nil {
		s.end()
		return nil
	}
	s.http1.Close()
	if s.TLS != nil {
		return s.TLS.Close()
	}
	return s.Conn.Close()
}

// TunnelEnd makes the session the end of a tunnel. The close of the end closes the session.
// a is charged for the memory of a stream from now on; nil: no account is.
func (s *Session) TunnelEnd(a *memory.Account) tunnel.End {
	if s.Stream != nil {
		s.Stream.Lighten(a)
		return &tunnel.StreamEnd{Stream: tunnelStream{s.Stream, s}}
	}
	end := &tunnel.ConnEnd{Conn: s.Conn, TLS: s.TLS, Early: s.http1.TakeBuffered()}
	s.http1.Close()
	return end
}

// tunnelStream is the stream of a session that is the end of a tunnel.
type tunnelStream struct {
	*http2.Call
	session *Session
}

// Close ends the session.
func (t tunnelStream) Close() { t.session.end() }

// Idle returns a stream of a shared connection, or the session that became idle last. It
// returns nil if there is neither; then the caller calls Connect. The caller checks whether
// the session is still alive, and closes it if it is not.
func (e *Endpoint) Idle(need Need) *Session {
	e.mu.Lock()
	if len(e.trunks.list) > 0 && e.dial.Load().mayShare(need) {
		if t := e.take(); t != nil {
			e.mu.Unlock()
			return t.session()
		}
	}
	n := len(e.idle)
	if n == 0 {
		e.mu.Unlock()
		return nil
	}
	s := e.idle[n-1]
	if s.endsSoon(e.ticks) { // the others are older and end soon, too; sweep closes them
		e.mu.Unlock()
		return nil
	}
	e.idle[n-1] = nil
	e.idle = e.idle[:n-1]
	e.mu.Unlock()
	s.Reused = true
	return s
}

// Keep puts a session into the pool for keep_alive. Any exchange may use it again. After
// Keep the caller must not use the session. Keep closes the session instead if
//   - the pool already holds max_idle,
//   - the endpoint was removed, or is terminating while others serve,
//   - the settings with which the connection was made (takes) have changed.
func (e *Endpoint) Keep(s *Session) {
	if s.Stream != nil {
		s.end()
		return
	}
	e.mu.Lock() // before the check: a goroutine that changes the settings then empties the pool
	if len(e.idle) < e.mostIdle() && e.dial.Load().takes(s.made) {
		s.idleSince = e.ticks
		e.idle = append(e.idle, s)
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	s.Close()
}

// mostIdle returns the number of idle connections that the pool may hold.
func (e *Endpoint) mostIdle() int {
	if e.removed.Load() || e.resting.Load() {
		return 0
	}
	return e.dial.Load().maxIdle
}

// IdleCount counts the idle connections.
func (e *Endpoint) IdleCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.idle) + e.idleTrunks()
}

// SharedCount counts the shared HTTP/2 connections, idle or not.
func (e *Endpoint) SharedCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.trunks.list)
}

// takeIdle removes and returns all idle sessions, including private ones.
func (e *Endpoint) takeIdle() []*Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	idle := slices.AppendSeq(e.idle, maps.Keys(e.held))
	e.idle, e.held = nil, nil
	return idle
}

func closeAll(sessions []*Session) {
	for _, s := range sessions {
		s.Close()
	}
}
