package core

import (
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Stream is the part of one exchange in a connection. It belongs to the driver from
// Events.Request or Connection.Open until Connection.Release, even if the stream ends
// before that.
type Stream struct {
	attached any // of the driver

	id     uint32
	opened time.Time // for streams of the peer

	headDone bool // the peer's head is complete (for a response: the final one)
	recvEnd  bool // the peer has sent everything
	sendHead bool // our (final) head was sent
	sendEnd  bool // we have sent everything
	closed   bool // it is not in the table any more
	taken    bool // the peer has opened its window, or answered: it processes the request
	tunnel   bool // extended CONNECT
	isHead   bool // the request's method is HEAD
	noBody   bool // the response has no body, whatever its fields announce

	protocol, key []byte // of a client's extended CONNECT

	left  int64 // bytes of the body that are still to arrive, by its Content-Length; or message.Unknown
	infos int   // number of 1xx responses

	sendWindow int64 // what we may send
	recvWindow int64 // what the peer may send
	recvSize   int64 // the size to which weir restores recvWindow
	held       int64 // received, not yet consumed by the driver
	unreturned int64 // consumed, not yet given back to the peer

	received, written int64 // bytes of its frames

	memory  *memory.Account // of the client that the stream belongs to; nil: nothing is charged
	charged int             // bytes charged for the stream until Release; bodies charge for themselves

	req *message.Request
	res *message.Response

	waiting    bool // in the queue of streams that wait to send
	blocked    bool // waits for its own window
	next, prev *Stream
}

// Account returns the account that is charged for the stream; nil: nothing is charged. A
// driver charges it for the bodies that it holds.
func (s *Stream) Account() *memory.Account { return s.memory }

// ChargeTo gives back what the stream was charged for, and charges a from now on; nil:
// nothing is charged. It is for clients: a connection to an endpoint carries the streams of
// many clients.
func (s *Stream) ChargeTo(a *memory.Account) {
	s.Lighten()
	s.memory = a
}

// Lighten gives back the memory that the stream took in addition to its body. It is for
// tunnels, which may last long and need neither head nor worker.
func (s *Stream) Lighten() {
	s.memory.Release(s.charged)
	s.charged = 0
}

// Attach makes x, an object of the driver, the result of Attached until Connection.Release.
func (s *Stream) Attach(x any) { s.attached = x }

// Attached returns the object that Attach received; nil: none.
func (s *Stream) Attached() any { return s.attached }

// ID returns the number of the stream on its connection.
func (s *Stream) ID() uint32 { return s.id }

// Sent reports whether everything was sent to the peer.
func (s *Stream) Sent() bool { return s.sendEnd }

// Closed reports whether the stream is over, for any reason: nothing can be sent any
// more.
func (s *Stream) Closed() bool { return s.closed }

// Tunnel reports whether the stream is an extended CONNECT (RFC 8441).
func (s *Stream) Tunnel() bool { return s.tunnel }

// Taken reports whether the peer has shown that it processes the request: it has opened the
// stream's window, or sent a head. Until then, it may still refuse the stream.
func (s *Stream) Taken() bool { return s.taken }

// Blocked reports that the last Write could not send everything because the peer keeps the
// window of this stream closed. Otherwise the whole connection was the limit.
func (s *Stream) Blocked() bool { return s.blocked }

// Missing returns how many bytes of the body are still to arrive, by its Content-Length; or
// message.Unknown.
func (s *Stream) Missing() int64 { return s.left }

// Window returns how many bytes of DATA the peer may send on the stream without a
// WINDOW_UPDATE.
func (s *Stream) Window() int64 { return max(0, s.recvWindow) }

// Transferred returns how many bytes of frames the stream has received and sent.
func (s *Stream) Transferred() (in, out int64) { return s.received, s.written }

// receivedFor counts n bytes of frames that s has received.
func (c *Connection) receivedFor(s *Stream, n int) {
	s.received += int64(n)
	if c.config.Role == Server {
		c.config.Account.Received(int64(n))
	}
}

// Held returns how many bytes of the body the driver has not consumed yet.
func (s *Stream) Held() int64 { return s.held }

// table holds the streams that are not closed, in the order of their numbers. New numbers
// are always higher.
type table struct {
	ids     []uint32
	streams []*Stream
}

func (t *table) find(id uint32) *Stream {
	if i := t.index(id); i < len(t.ids) && t.ids[i] == id {
		return t.streams[i]
	}
	return nil
}

func (t *table) index(id uint32) int {
	if n := len(t.ids); n == 0 || t.ids[n-1] < id {
		return n
	}
	return sort.Search(len(t.ids), func(i int) bool { return t.ids[i] >= id })
}

func (t *table) add(s *Stream) {
	t.ids = append(t.ids, s.id)
	t.streams = append(t.streams, s)
}

func (t *table) remove(id uint32) {
	i := t.index(id)
	t.ids = append(t.ids[:i], t.ids[i+1:]...)
	copy(t.streams[i:], t.streams[i+1:])
	t.streams[len(t.streams)-1] = nil
	t.streams = t.streams[:len(t.streams)-1]
}

// recent remembers the last streams that weir reset: frames that the peer sent before it
// knew of the reset are no error. recent has room for more streams than weir can reset at
// once.
type recent struct {
	most int // streams
	ids  []uint32
	at   int

	from, to uint32 // trim has forgotten streams between them; to is 0: it has not
}

// leastRecent is for connections with few streams: peers may open more before they know the limit.
const leastRecent = 512

func (r *recent) add(id uint32) {
	if len(r.ids) < r.most {
		r.ids = append(r.ids, id)
		return
	}
	r.ids[r.at] = id
	r.at = (r.at + 1) % len(r.ids)
}

// trim keeps only the last few streams. Of the others it keeps the range of their numbers:
// a peer that was suspended may still send frames for all of them. In the range, frames for
// streams that weir did not reset are no error either.
func (r *recent) trim() {
	const few = 32
	n := len(r.ids) - few
	if n <= 0 {
		return
	}
	ids := slices.Concat(r.ids[r.at:], r.ids[:r.at])
	r.from, r.to = slices.Min(ids[:n]), slices.Max(ids[:n])
	r.ids, r.at = slices.Clone(ids[n:]), 0
}

func (r *recent) has(id uint32) bool {
	return r.from <= id && id <= r.to || slices.Contains(r.ids, id)
}

// queue contains the streams that wait for the connection's window or for room in the
// output, first come, first served.
type queue struct{ first, last *Stream }

func (q *queue) push(s *Stream) {
	if s.waiting {
		return
	}
	s.waiting, s.prev, s.next = true, q.last, nil
	if q.last == nil {
		q.first = s
	} else {
		q.last.next = s
	}
	q.last = s
}

func (q *queue) remove(s *Stream) {
	if !s.waiting {
		return
	}
	if s.prev == nil {
		q.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		q.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.waiting, s.prev, s.next = false, nil, nil
}

// Streams iterates over the streams that are not closed, oldest first. The loop must not
// open or close streams.
func (c *Connection) Streams() iter.Seq[*Stream] { return slices.Values(c.table.streams) }

// newStream opens a stream. It reuses a released one if possible.
func (c *Connection) newStream(id uint32) *Stream {
	var s *Stream
	if n := len(c.free); n > 0 {
		s, c.free = c.free[n-1], c.free[:n-1]
	} else {
		s = new(Stream)
	}
	*s = Stream{id: id, opened: c.now, left: message.Unknown, sendWindow: int64(c.peer.window), recvWindow: initialWindow, recvSize: initialWindow}
	c.table.add(s)
	c.purse.opened()
	c.working++
	return s
}

// mostFree limits the streams that are kept for reuse.
const mostFree = 128

// Release gives s back; the driver must not use it any more. If s is not closed, Release
// resets it: with NO_ERROR if the response is complete and only the rest of the request
// is missing; with INTERNAL_ERROR if a server's response is incomplete; otherwise with
// CANCEL, also for a tunnel (RFC 8441, section 5). Until Release, a stream of the peer
// counts against the number of streams that may run at once.
func (c *Connection) Release(s *Stream) {
	server := c.config.Role == Server
	switch {
	case s.closed:
	case server && s.sendEnd: // the response is through
		c.appendLate(s.id)
		c.excuse(s)
		c.close(s)
	case !server && s.recvEnd:
		c.Reset(s, NoError)
	case server && !s.tunnel:
		c.Reset(s, InternalError)
	default:
		c.Reset(s, Cancel)
	}
	c.working--
	if server {
		c.config.Account.EndExchange(s.received)
	}
	s.Lighten()
	*s = Stream{closed: true}
	if len(c.free) < mostFree {
		c.free = append(c.free, s)
	}
}

// Trim gives back the memory that an idle connection does not need.
func (c *Connection) Trim() {
	c.free = nil
	if len(c.table.ids) == 0 {
		c.table = table{}
	}
	if len(c.pending) == 0 {
		c.pending = nil
	}
	if len(c.out) == 0 {
		c.out = nil
	}
	c.head.cookie = nil
	c.recent.trim()
	c.config.Account.Settle()
}

// end closes s if both sides have sent everything. The peer may not know that yet: nginx resets each
// stream whose request it answered before the request had arrived.
func (c *Connection) end(s *Stream) {
	if s.recvEnd && s.sendEnd && !s.closed {
		c.purse.ended()
		c.close(s)
	}
}

// close removes s from the table.
func (c *Connection) close(s *Stream) {
	s.closed = true
	c.grown -= s.recvSize - initialWindow
	c.table.remove(s.id)
	c.queue.remove(s)
	if c.data.stream == s {
		c.data.stream = nil
	}
	s.req, s.res = nil, nil
	c.wake() // if s was called to send, it will not do so now
}
