package core

import "github.com/weirproxy/weir/proxy/message"

// dataFrame is the DATA frame whose payload is being received.
type dataFrame struct {
	stream  *Stream // nil: the data is discarded
	left    int     // bytes of the payload that are still to come, with padding
	padding int     // bytes of padding in left; unknown while padded is set
	padded  bool    // the next byte is the length of the padding
	end     bool    // the stream ends with it
}

// beginData checks the header of a DATA frame. All bytes of the frame count for flow
// control, whatever its stream (RFC 9113, section 6.9).
func (c *Connection) beginData(f frame) {
	if f.id == 0 || c.idle(f.id) {
		c.fail(ProtocolError, "bad_data", "a DATA frame came on stream 0")
		return
	}
	if f.has(flagPadded) && f.length == 0 {
		c.fail(FrameSizeError, "bad_padding", "a DATA frame is too short for the length of its padding")
		return
	}
	if c.recvWindow -= int64(f.length); c.recvWindow < 0 {
		c.fail(FlowControlError, "window_exceeded", "the peer sent more DATA than the connection's window allows")
		return
	}
	c.giveBack(int64(f.length))
	c.probe(f.length)
	if f.length == 0 && !f.has(flagEndStream) && !c.spend(forEmpty) {
		return
	}
	s := c.dataFor(f)
	if c.err != nil {
		return
	}
	c.data = dataFrame{stream: s, left: f.length, padded: f.has(flagPadded), end: f.has(flagEndStream)}
	switch {
	case f.length == 0:
		c.endData()
	case s != nil && !c.data.padded: // useless counts the others
		c.purse.useful(1)
	}
}

// dataFor returns the stream of a DATA frame, or nil if the data is discarded.
func (c *Connection) dataFor(f frame) *Stream {
	s := c.table.find(f.id)
	switch {
	case s == nil && (c.recent.has(f.id) || c.ignored(f.id)):
		c.ignore(f.length)
		return nil
	case s == nil:
		if c.config.Role == Client && c.excuses(f.length) || c.spend(forProvoked) {
			c.refuse(f.id, StreamClosed, "data_after_end")
		}
		return nil
	case s.recvEnd:
		c.provoked(s, StreamClosed, "data_after_end", "a DATA frame came after the end of its stream")
		return nil
	case !s.headDone:
		c.provoked(s, ProtocolError, "malformed", "a DATA frame came before the headers")
		return nil
	}
	if s.recvWindow -= int64(f.length); s.recvWindow < 0 {
		c.provoked(s, FlowControlError, "window_exceeded", "the peer sent more DATA than the stream's window allows")
		return nil
	}
	s.held += int64(f.length)
	c.receivedFor(s, frameHeaderSize+f.length)
	return s
}

// ignored reports whether the peer opened the stream after weir had said that it accepts
// no more.
func (c *Connection) ignored(id uint32) bool {
	return c.goingAway == goAwayFinal && !c.own(id) && id > c.goneLast
}

// receiveData takes the available part of a DATA frame's payload.
func (c *Connection) receiveData(p []byte) []byte {
	d := &c.data
	if d.padded {
		d.padded, d.padding = false, int(p[0])
		d.left--
		if d.padding > d.left {
			c.fail(ProtocolError, "bad_padding", "the padding of a DATA frame is longer than the frame")
			return nil
		}
		c.useless(d)
		p = p[1:]
	}
	if n := min(len(p), d.left-d.padding); n > 0 {
		d.left -= n
		c.deliver(d.stream, p[:n])
		p = p[n:]
	}
	if d.left == d.padding {
		n := min(len(p), d.left)
		d.left, d.padding = d.left-n, d.padding-n
		p = p[n:]
	}
	if d.left == 0 && c.err == nil {
		c.endData()
	}
	return p
}

// useless gives the bytes of padding back to the stream, and limits frames that contain
// only padding.
func (c *Connection) useless(d *dataFrame) {
	if d.left == d.padding && !d.end && !c.spend(forEmpty) {
		return
	}
	if d.stream != nil {
		if d.left > d.padding {
			c.purse.useful(1)
		}
		c.Consumed(d.stream, 1+d.padding)
	}
}

// deliver passes a piece of a body to the driver.
func (c *Connection) deliver(s *Stream, p []byte) {
	if s == nil {
		return
	}
	if s.noBody {
		c.provoked(s, ProtocolError, "malformed", "a response that must not have a body has one")
		return
	}
	if s.left != message.Unknown {
		if s.left -= int64(len(p)); s.left < 0 {
			c.provoked(s, ProtocolError, "malformed", "the body is longer than its Content-Length")
			return
		}
	}
	c.events.Data(s, p)
}

// endData is called after the last byte of a DATA frame.
func (c *Connection) endData() {
	s, end := c.data.stream, c.data.end
	c.data = dataFrame{}
	if s != nil && end {
		c.endReceived(s)
	}
}

// endReceived records that the peer has sent everything on s.
func (c *Connection) endReceived(s *Stream) {
	if s.left > 0 {
		c.provoked(s, ProtocolError, "malformed", "the body is shorter than its Content-Length")
		return
	}
	s.recvEnd = true
	c.end(s)
	c.events.End(s)
}

// firstConnectionWindow is the size of the connection's window from the greeting on, for
// several streams that begin together.
const firstConnectionWindow = 256 << 10

// giveBack returns bytes to the connection's window. It does not wait until they are
// read, so that a slow reader delays only its own stream.
func (c *Connection) giveBack(n int64) {
	if c.unreturned += n; c.unreturned >= c.recvSize/2 {
		c.appendWindow(0, c.unreturned)
		c.recvWindow += c.unreturned
		c.unreturned = 0
	}
}

// growConnection enlarges the connection's window.
func (c *Connection) growConnection(size int64) {
	if more := size - c.recvSize; more > 0 {
		c.recvSize = size
		c.recvWindow += more + c.unreturned
		c.appendWindow(0, more+c.unreturned)
		c.unreturned = 0
	}
}

// Consumed records that n bytes of Data take up no memory any more. The peer may send as
// many again, and more if the path is long and the reader kept up.
func (c *Connection) Consumed(s *Stream, n int) {
	s.held -= int64(n)
	s.unreturned += int64(n)
	over := s.closed || s.recvEnd || c.data.end && c.data.stream == s // nothing more will arrive
	if over || s.unreturned < s.recvSize/2 {
		return
	}
	size := s.recvSize
	if s.held <= 0 {
		size = max(size, min(c.path.size, int64(c.config.StreamWindow), size+int64(c.config.Growth)-c.grown))
	}
	c.grown += size - s.recvSize
	more := s.unreturned + size - s.recvSize
	s.recvSize, s.unreturned = size, 0
	s.recvWindow += more
	c.appendWindow(s.id, more)
}

// path measures how many bytes the peer sends within a round trip. A window must hold
// that many, or the sender waits for weir. The answer to a PING marks the end of a round
// trip, so no clock is needed.
type path struct {
	size    int64 // what a stream's window should be
	probing bool
	bytes   int64 // received since the PING, or since the last answer
}

// probe counts received bytes, and starts a measurement from time to time.
func (c *Connection) probe(n int) {
	p := &c.path
	p.bytes += int64(n)
	if !p.probing && p.size < int64(c.config.StreamWindow) && p.bytes >= p.size {
		p.probing, p.bytes = true, 0
		c.appendPing(pingPath)
	}
}

// measured is called when the PING is answered.
func (c *Connection) measured() {
	p := &c.path
	p.probing = false
	if p.bytes*3 >= p.size { // windows are given back in halves
		p.size = min(2*p.size, int64(c.config.StreamWindow))
		c.growConnection(min(4*p.size, int64(c.config.ConnectionWindow)))
	}
	p.bytes = 0
}
