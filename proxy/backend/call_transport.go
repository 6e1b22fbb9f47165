package backend

import (
	"sync"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// callTransport is a stream of a shared HTTP/2 connection.
type callTransport struct {
	*http2.Call
	trunk *trunk
	link  *Link // that uses this transport
}

var callLinks = sync.Pool{New: func() any { return new(Link) }}

// link returns a link for the room that take has taken.
func (t *trunk) link() *Link {
	s := callLinks.Get().(*Link)
	s.call = callTransport{t.Call(), t, s}
	s.transport, s.HTTP = &s.call, s.call.Call
	s.endpoint, s.Reused = t.endpoint, t.used.Load()
	return s
}

// LookAgain returns false: a call gets every event of its stream.
func (w *callTransport) LookAgain() bool { return false }

// Release has nothing to release: a call only holds bytes that were not read.
func (w *callTransport) Release() {}

// Sent returns 0: the bytes of the connection belong to many exchanges.
func (w *callTransport) Sent() int64 { return 0 }

// SentNothing returns false: an error of the call tells whether the endpoint has processed
// the request.
func (w *callTransport) SentNothing(int64) bool { return false }

func (w *callTransport) Shared() bool { return true }

func (w *callTransport) CanRefuse() bool { return !w.Taken() }

// EndsByLength returns false: the end of the stream, or trailers, may follow the body.
func (w *callTransport) EndsByLength() bool { return false }

func (w *callTransport) TunnelEnd(a *memory.Account) tunnel.End {
	w.Lighten(a)
	return &tunnel.StreamEnd{Stream: tunnelStream{w.Call, w.link}}
}

// tunnelStream is the call of a link that is the end of a tunnel.
type tunnelStream struct {
	*http2.Call
	link *Link
}

// Close ends the link.
func (t tunnelStream) Close() { t.link.Close() }

// Abort does nothing: a close of an incomplete stream is a reset anyway.
func (w *callTransport) Abort() {}

// keep ends the link: the trunk stays for other exchanges.
func (w *callTransport) keep(s *Link) { s.Close() }

func (w *callTransport) close(s *Link) error {
	t := w.trunk
	w.End()
	*s = Link{}
	callLinks.Put(s)
	t.release()
	return nil
}
