package http2

import (
	"slices"
	"sort"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Stream is one exchange's part of a connection. It belongs to the driver from
// Events.Request or Core.Open until Core.Release, however the stream ends
// meanwhile. Its fields are the core's but for User.
type Stream struct {
	// User is the driver's own.
	User any

	id uint32

	headDone bool // the peer's head is complete (for a response: the final one)
	recvEnd  bool // the peer has sent everything
	sendHead bool // our (final) head was sent
	sendEnd  bool // we have sent everything
	closed   bool // it is in the table no more
	tunnel   bool // extended CONNECT
	isHead   bool // the request's method is HEAD
	noBody   bool // the response has none, whatever its fields say

	protocol, key []byte // of a client's extended CONNECT

	left  int64 // of the body by its Content-Length; message.Unknown
	infos int   // 1xx responses

	sendWindow int64 // what we may send
	recvWindow int64 // what the peer may send
	recvSize   int64 // what recvWindow is brought back to
	held       int64 // received, not yet consumed by the driver
	unreturned int64 // consumed, not yet given back to the peer

	received, written int64 // bytes of its frames

	memory  *memory.Account // of the client that the stream belongs to; nil: nothing is charged
	charged int             // bytes charged for the stream until Release; bodies charge for themselves

	req *message.Request
	res *message.Response

	waiting    bool // in the queue of those who wait to send
	starved    bool // waits for its own window
	next, prev *Stream
}

// account returns the account that is charged for the stream.
func (s *Stream) account() *memory.Account {
	if s == nil {
		return nil
	}
	return s.memory
}

// lighten gives back what the stream took in addition to its body. It is for tunnels, which
// may last long and need neither head nor worker.
func (s *Stream) lighten() {
	s.memory.Release(s.charged)
	s.charged = 0
}

// ID is the stream's number on its connection.
func (s *Stream) ID() uint32 { return s.id }

// Sent reports whether everything was sent to the peer.
func (s *Stream) Sent() bool { return s.sendEnd }

// Closed reports whether the stream is over, in whatever way: nothing can be sent any more.
func (s *Stream) Closed() bool { return s.closed }

// Tunnel reports whether the stream is that of an extended CONNECT (RFC 8441).
func (s *Stream) Tunnel() bool { return s.tunnel }

// Held is how many bytes of the body the driver has not consumed yet.
func (s *Stream) Held() int64 { return s.held }

// table holds the streams that are not closed by their number, which only grows.
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

// recent remembers the last streams that we reset: what the peer sent before
// it knew is no error. They are more than can be reset at once.
type recent struct {
	ids []uint32
	at  int
}

const mostRecent = 512

func (r *recent) add(id uint32) {
	if len(r.ids) < mostRecent {
		r.ids = append(r.ids, id)
		return
	}
	r.ids[r.at] = id
	r.at = (r.at + 1) % len(r.ids)
}

// trim leaves the last few.
func (r *recent) trim() {
	const few = 32
	if n := len(r.ids); n > few {
		ids := slices.Concat(r.ids[r.at:], r.ids[:r.at])
		r.ids, r.at = slices.Clone(ids[n-few:]), 0
	}
}

func (r *recent) has(id uint32) bool { return slices.Contains(r.ids, id) }

// queue are the streams that wait for the connection's window or for room in
// the output, first come first served.
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

// newStream takes a stream from those that were released.
func (c *Core) newStream(id uint32) *Stream {
	var s *Stream
	if n := len(c.free); n > 0 {
		s, c.free = c.free[n-1], c.free[:n-1]
	} else {
		s = new(Stream)
	}
	*s = Stream{id: id, left: message.Unknown, sendWindow: int64(c.peer.window), recvWindow: initialWindow, recvSize: initialWindow}
	c.table.add(s)
	c.working++
	return s
}

// mostFree bounds the streams that are kept for later.
const mostFree = 128

// Release gives s back: the driver is through with it. What is not closed yet
// is reset: without error where only the request's body is left, else cancelled,
// or broken off where it is a response (a tunnel's is cancelled: RFC 8441, section 5).
// A peer's stream counts against what may run at once until then.
func (c *Core) Release(s *Stream) {
	server := c.config.Role == Server
	switch {
	case s.closed:
	case server && s.sendEnd: // the response is through
		c.appendLate(s.id)
		c.close(s)
	case !server && s.recvEnd:
		c.Reset(s, NoError)
	case server && !s.tunnel:
		c.Reset(s, InternalError)
	default:
		c.Reset(s, Cancel)
	}
	c.working--
	s.lighten()
	*s = Stream{closed: true}
	if len(c.free) < mostFree {
		c.free = append(c.free, s)
	}
}

// Trim gives memory back that an idle connection does not need.
func (c *Core) Trim() {
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

// end closes s where both sides have sent everything.
func (c *Core) end(s *Stream) {
	if s.recvEnd && s.sendEnd && !s.closed {
		c.purse.earn(forResets, 1)
		c.close(s)
	}
}

// close takes s out of the table.
func (c *Core) close(s *Stream) {
	s.closed = true
	c.grown -= s.recvSize - initialWindow
	c.table.remove(s.id)
	c.queue.remove(s)
	if c.data.stream == s {
		c.data.stream = nil
	}
	s.req, s.res = nil, nil
	c.wake() // s may have been called to send, and now will not
}
