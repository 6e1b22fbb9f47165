package backend

import (
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// Codec writes the request of an exchange to the endpoint, and reads the response. One
// goroutine may write while another one reads. *http1.Client and *http2.Call implement it.
// The methods of *http1.Client document each method.
type Codec interface {
	RequestWriter
	ResponseReader
	// ChargeTo sets the account of a client that the codec charges for the memory of the
	// exchange. The exchange calls it before WriteHead, and with nil after the codec has
	// released that memory.
	ChargeTo(*memory.Account)
	Reusable() bool
}

// RequestWriter writes the request of an exchange.
type RequestWriter interface {
	WriteHead(req *message.Request)
	WriteBody(p []byte) error
	WriteEnd(req *message.Request)
	Flush() error
}

// ResponseReader reads the response of an exchange.
type ResponseReader interface {
	ReadHead(req *message.Request, res *message.Response) error
	Started() bool
	Answered() bool
	ReadBody(res *message.Response) ([]byte, error)
	Owes() bool
	BodyEnded() bool
}

// Link connects one exchange or tunnel with an endpoint: a connection of its own, or
// a stream of a shared connection. It has one owner at a time: the caller of Dial, Connect
// or Idle owns it until Keep or Close.
type Link struct {
	transport // &own or &call

	// HTTP is the codec of an HTTP link; nil until Speak.
	HTTP Codec
	// Reused means that the link comes from the pool. The endpoint may have closed it
	// while it was idle.
	Reused bool

	endpoint *Endpoint
	private  bool // it belongs to one client connection

	own  connTransport // used if the link has a connection of its own
	call callTransport // used if it has a stream of a shared connection
}

// transport is how a link reaches its endpoint: a connTransport or a callTransport.
type transport interface {
	// Await calls step until it returns true, or until the wait ends with an error (see
	// conn.Conn). Reads within step do not wait.
	Await(step func() bool) error
	// SetReadDeadline limits the waits for the response.
	SetReadDeadline(t time.Time)
	// SetWriteTimeout limits the time until the endpoint takes bytes.
	SetWriteTimeout(d time.Duration)
	// LookAgain makes the next read within Await check whether the response has ended
	// before its time. It returns false if that is already known.
	LookAgain() bool
	// Cut ends every wait with conn.ErrCut. Any goroutine may call it until Close or Keep.
	Cut()
	// WasCut reports whether Cut was called.
	WasCut() bool

	// Usable reports whether an idle link can carry another request. Call it within
	// Await.
	Usable() bool
	// Release releases the buffers that hold no bytes.
	Release()
	// Sent returns how many bytes weir has sent. The number counts only for SentNothing.
	Sent() int64
	// SentNothing reports whether weir has certainly sent no byte of the link since Sent
	// returned the number since.
	SentNothing(since int64) bool

	// Shared reports whether other exchanges use the connection at the same time.
	Shared() bool
	// CanRefuse reports whether the endpoint may still tell that it has not processed the
	// request (http2.Unprocessed), so that weir may send a request with a body again.
	CanRefuse() bool
	// EndsByLength reports whether a request with a Content-Length ends with the last byte
	// of its body. Otherwise it ends with a frame or a chunk that has no bytes.
	EndsByLength() bool

	// TunnelEnd makes the link the end of a tunnel. The close of the end closes the
	// link. a is charged for the memory that a shared connection holds for the tunnel;
	// nil: no account is.
	TunnelEnd(a *memory.Account) tunnel.End

	// Abort makes the next Close send a reset, over TLS without a close_notify, so that the
	// endpoint cannot take an incomplete stream for a complete one.
	Abort()

	// keep and close are Keep and Close of the link s, which uses this transport.
	keep(s *Link)
	close(s *Link) error
}

// Endpoint returns the endpoint of the link.
func (s *Link) Endpoint() *Endpoint { return s.endpoint }

// Speak prepares a new connection for HTTP/1.1: it sets HTTP.
func (s *Link) Speak(limits message.Limits) {
	s.own.speak(limits)
	s.HTTP = &s.own.http1
}

// Close ends the connection, over TLS with a close_notify, and releases the codec's
// memory. Of a shared connection it ends only the stream. After Close the caller must not
// use the link.
func (s *Link) Close() error { return s.close(s) }

// Idle returns a stream of a shared connection, or the link that became idle last. It
// returns nil if there is neither; then the caller calls Connect. The caller checks whether
// the link is still alive, and closes it if it is not.
func (e *Endpoint) Idle(need Need) *Link {
	e.mu.Lock()
	if len(e.trunks.list) > 0 && e.dial.Load().mayShare(need) {
		if t := e.take(); t != nil {
			e.mu.Unlock()
			return t.link()
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

// Keep puts a link into the pool for keep_alive. Any exchange may use it again. After
// Keep the caller must not use the link. Keep closes the link instead if
//   - the pool already holds max_idle,
//   - the endpoint was removed, or is terminating while others serve,
//   - the settings with which the connection was made (takes) have changed.
func (e *Endpoint) Keep(s *Link) { s.keep(s) }

// mostIdle returns the number of idle connections that the pool may hold.
func (e *Endpoint) mostIdle() int {
	if e.removed.Load() || e.draining.Load() {
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

// takeIdle removes and returns all idle links, including private ones.
func (e *Endpoint) takeIdle() []*Link {
	e.mu.Lock()
	defer e.mu.Unlock()
	idle := slices.AppendSeq(e.idle, maps.Keys(e.held))
	e.idle, e.held = nil, nil
	return idle
}

func closeAll(links []*Link) {
	for _, s := range links {
		s.Close()
	}
}
