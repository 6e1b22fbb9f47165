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
)

// Codec is what an exchange needs of the wire to its endpoint: it writes a
// request, and reads the response, in turn or at once from two goroutines.
// *http1.Client and *http2.Call fit; the methods of the first say what each of these does.
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

// Session is one exchange's way to an endpoint: a connection that it has for
// itself, or a stream of one that it shares. It has one owner at a time: who got
// it from Dial, Connect or Idle, until Keep or Close. Await, SetReadDeadline,
// SetWriteTimeout, LookAgain, Cut and WasCut are the connection's, or the stream's.
type Session struct {
	// Conn is the connection, for tunnels; nil where the session is a stream.
	Conn *conn.Conn
	// Stream is the stream of HTTP/2; nil where the session is a connection.
	Stream *http2.Call
	TLS    *tls.Conn // nil for a plain connection
	// RW is what bytes go through: TLS, or else Conn.
	RW io.ReadWriter
	// HTTP is the codec of an HTTP session; nil until Speak.
	HTTP Codec
	// Reused says that the session came from the pool: the endpoint may have
	// closed it while it was idle.
	Reused bool

	http1     http1.Client
	secure    secureWay // what http1 reads and writes, where there is TLS
	trunk     *trunk    // of Stream
	endpoint  *Endpoint
	made      *dialSettings // what it was made with
	idleSince uint32        // in the endpoint's ticks
	private   bool          // it belongs to one client connection
}

// Endpoint is the other end.
func (s *Session) Endpoint() *Endpoint { return s.endpoint }

// Speak makes a session that was dialled one of HTTP.
func (s *Session) Speak(limits message.Limits) {
	s.http1.Init(s.RW, limits)
	if s.TLS != nil {
		s.secure = secureWay{s.TLS, s.Conn}
		s.http1.Init(&s.secure, limits)
	}
	s.http1.Tolerate(s.made.lenient)
	s.HTTP = &s.http1
}

// secureWay is TLS that says how it ended.
type secureWay struct {
	*tls.Conn
	below *conn.Conn
}

// Truncated reports whether the connection ended without a close_notify, as anybody
// on the way can end it. crypto/tls returns io.EOF for that as well, but only
// there after an end of what is below it.
func (s *secureWay) Truncated() bool { return s.below.SawEnd() }

// way is what a Session has of its connection or stream.
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

// Await is conn.Conn's: it calls step until that returns true or the wait ends
// in an error. Reads within do not wait.
func (s *Session) Await(step func() bool) error { return s.way().Await(step) }

// SetReadDeadline bounds waits for the response.
func (s *Session) SetReadDeadline(t time.Time) {
	if s.Stream != nil {
		s.Stream.SetReadDeadline(t)
	} else {
		s.Conn.SetReadDeadline(t)
	}
}

// SetWriteTimeout bounds the wait for the endpoint to take bytes.
func (s *Session) SetWriteTimeout(d time.Duration) {
	if s.Stream != nil {
		s.Stream.SetWriteTimeout(d)
	} else {
		s.Conn.WriteTimeout = d
	}
}

// LookAgain makes the next read within Await ask whether the end has come.
func (s *Session) LookAgain() { s.way().LookAgain() }

// Cut ends every wait with conn.ErrCut. Anyone may call it, until Close or Keep.
func (s *Session) Cut() { s.way().Cut() }

// WasCut reports whether Cut was called.
func (s *Session) WasCut() bool { return s.way().WasCut() }

// Sent is how many bytes the connection was sent so far; of a part of a shared
// one it says nothing.
func (s *Session) Sent() int64 {
	if s.Conn == nil {
		return 0
	}
	return s.Conn.BytesWritten
}

// Close ends the connection, over TLS with a close_notify, and gives the
// codec's memory back; of a shared connection it ends the stream alone. The
// caller must not use the session any more.
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

// Idle takes room on a shared connection, or the session that became idle last,
// or returns nil: Connect finds another way. The caller looks whether it is still
// alive and closes it otherwise.
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
	if s.endsSoon(e.ticks) { // so do the others, which are older; sweep closes them
		e.mu.Unlock()
		return nil
	}
	e.idle[n-1] = nil
	e.idle = e.idle[:n-1]
	e.mu.Unlock()
	s.Reused = true
	return s
}

// Keep gives a session back that can be used again by anybody, to be kept for keep_alive.
// It is closed instead where max_idle are kept, the endpoint is gone, or about to
// go while others serve, or its TLS or header settings changed. The caller must not use it any more.
func (e *Endpoint) Keep(s *Session) {
	if s.Stream != nil {
		s.end()
		return
	}
	e.mu.Lock() // before looking: who changes what counts takes out what was kept until then
	if len(e.idle) < e.mostIdle() && e.dial.Load().takes(s.made) {
		s.idleSince = e.ticks
		e.idle = append(e.idle, s)
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	s.Close()
}

// mostIdle is how many connections are kept that nobody uses.
func (e *Endpoint) mostIdle() int {
	if e.removed.Load() || e.resting.Load() {
		return 0
	}
	return e.dial.Load().maxIdle
}

// IdleCount counts the connections that nobody uses.
func (e *Endpoint) IdleCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.idle) + e.idleTrunks()
}

// SharedCount counts the connections of HTTP/2 that exchanges share.
func (e *Endpoint) SharedCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.trunks.list)
}

// takeIdle takes all unused sessions, private ones included.
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
