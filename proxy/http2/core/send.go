package core

import (
	"encoding/binary"
	"errors"

	"github.com/weirproxy/weir/proxy/message"
)

// The errors of sending.
var (
	// ErrStreamOver: either side has reset the stream, or everything was sent.
	ErrStreamOver = errors.New("http2: the stream has ended")
	// ErrNoStream: no further stream may be opened now, see Connection.Capacity.
	ErrNoStream = errors.New("http2: the peer accepts no more streams on this connection")
	// ErrHeadForPeer: the head is larger than the peer accepts.
	ErrHeadForPeer = errors.New("http2: the headers are larger than the peer's SETTINGS_MAX_HEADER_LIST_SIZE")
	// ErrNoConnectProtocol: the peer does not accept requests to upgrade (RFC 8441).
	ErrNoConnectProtocol = errors.New("http2: the peer does not support extended CONNECT (RFC 8441)")
)

// Pending returns the number of bytes in the output.
func (c *Connection) Pending() int { return len(c.out) }

// Take returns the output, which then belongs to the caller until Output.Free. More output
// may follow at once, see Pending. Take calls Writable for a stream that waits for room.
func (c *Connection) Take() Output {
	out := Output{bytes: c.out, charged: c.outCharged, account: c.config.Account}
	c.out, c.late = c.late, nil
	c.outCharged, c.control, c.tail = 0, 0, tail{}
	c.wake()
	return out
}

// mostControl limits the control frames in the output. A peer that provokes them and does
// not read them gets no more memory than this.
const mostControl = 4096

// controlRoom is enough for every control frame except one with a long reason. headRoom
// is enough for most heads.
const controlRoom, headRoom = 64, 1 << 10

func (c *Connection) countControl() {
	if c.control++; c.control > mostControl {
		c.fail(EnhanceYourCalm, "control_flood", "the peer sends frames that weir must answer, and does not read the answers")
	}
}

func (c *Connection) appendControl(length int, kind, flags uint8, id uint32) {
	c.countControl()
	c.withRoom(controlRoom)
	c.out = appendFrame(c.out, length, kind, flags, id)
}

func (c *Connection) appendReset(id uint32, code Code) {
	c.recent.add(id)
	c.appendControl(4, frameReset, 0, id)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
}

// refuse resets a stream that the driver does not have.
func (c *Connection) refuse(id uint32, code Code, reason string) {
	c.appendReset(id, code)
	c.events.Refused(reason)
}

// appendLate resets a stream whose response is complete and whose request is not. The
// RST_STREAM leaves in a write of its own, after the current output: libcurl before 8
// forgets a response that it has read together with the reset.
func (c *Connection) appendLate(id uint32) {
	if len(c.out) == 0 {
		c.appendReset(id, NoError)
		return
	}
	c.recent.add(id)
	c.countControl()
	c.late = binary.BigEndian.AppendUint32(appendFrame(c.late, 4, frameReset, 0, id), uint32(NoError))
}

func (c *Connection) appendWindow(id uint32, n int64) {
	c.appendControl(4, frameWindowUpdate, 0, id)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(n))
}

func (c *Connection) appendGoAway(last uint32, code Code, reason string) {
	c.withRoom(controlRoom)
	c.out = appendFrame(c.out, 8+len(reason), frameGoAway, 0, 0)
	c.out = binary.BigEndian.AppendUint32(c.out, last)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
	c.out = append(c.out, reason...)
}

// Capacity returns how many streams may be opened now.
func (c *Connection) Capacity() int {
	if c.err != nil || c.peerGone || c.goingAway != running || c.numbersUsedUp() {
		return 0
	}
	return max(0, int(min(c.peer.streams, mostStreamID))-len(c.table.ids))
}

// StreamLimit returns how many streams the peer accepts at once, by its settings.
func (c *Connection) StreamLimit() uint32 { return c.peer.streams }

// numbersUsedUp reports whether there is no number for a further stream of ours.
func (c *Connection) numbersUsedUp() bool { return c.nextOwn >= mostStreamID-1 }

// Open sends a request's head on a new stream. With end, no body follows. req must not
// change until the response's head has arrived. Only clients call Open.
func (c *Connection) Open(req *message.Request, end bool) (*Stream, error) {
	tunnel := req.Upgrade.Len() > 0
	switch {
	case c.Capacity() == 0:
		return nil, ErrNoStream
	case tunnel && !c.peer.connect:
		return nil, ErrNoConnectProtocol
	case c.peer.headSize > 0 && listSize(req) > int64(c.peer.headSize):
		return nil, ErrHeadForPeer
	}
	s := c.newStream(c.nextOwn)
	c.nextOwn += 2
	s.isHead, s.tunnel = req.IsHead, tunnel
	if tunnel {
		s.protocol = append(s.protocol, req.Bytes(req.Upgrade)...)
		s.key = append(s.key, req.GetName(webSocketKey)...)
		end = false
	}
	at := c.beginHead(s)
	c.out = c.appendRequest(c.out, req)
	c.endHead(s, at, end)
	s.sendHead = true
	if end {
		s.sendEnd = true
	}
	return s, nil
}

// Respond sends a response's head. With end, no body follows. For servers.
func (c *Connection) Respond(s *Stream, res *message.Response, end bool) error {
	if s.closed || s.sendHead {
		return ErrStreamOver
	}
	at := c.beginHead(s)
	c.out = appendResponse(c.out, res)
	end = end && !res.Informational()
	c.endHead(s, at, end)
	s.sendHead = !res.Informational()
	if end {
		c.sent(s)
	}
	return nil
}

// beginHead makes room, appends the header of HEADERS, and returns its position.
func (c *Connection) beginHead(s *Stream) int {
	c.withRoom(headRoom)
	at := len(c.out)
	c.out = appendFrame(c.out, 0, frameHeaders, flagEndHeaders, s.id)
	if c.tableReset {
		c.tableReset = false
		c.out = append(c.out, noTable)
	}
	return at
}

// endHead completes the frame at position at. If the block is too large for one frame,
// CONTINUATION frames follow.
func (c *Connection) endHead(s *Stream, at int, end bool) {
	defer func() { c.chargeOutput(cap(c.out)) }()
	if end {
		c.out[at+4] |= flagEndStream
	}
	n := len(c.out) - at - frameHeaderSize
	s.written += int64(frameHeaderSize + n)
	if n <= leastFrameSize {
		setFrameLength(c.out, at, n)
		return
	}
	c.out[at+4] &^= flagEndHeaders
	setFrameLength(c.out, at, leastFrameSize)
	rest := append([]byte(nil), c.out[at+frameHeaderSize+leastFrameSize:]...)
	c.out = c.out[:at+frameHeaderSize+leastFrameSize]
	for len(rest) > 0 {
		n, flags := min(len(rest), leastFrameSize), uint8(0)
		if n == len(rest) {
			flags = flagEndHeaders
		}
		c.out = appendFrame(c.out, n, frameContinuation, flags, s.id)
		c.out = append(c.out, rest[:n]...)
		rest = rest[n:]
	}
}

// Write sends as much of p as the windows and the output have room for, and returns how
// much. With end, the last byte of p ends the body. If Write did not send all of p,
// Writable reports when to continue.
func (c *Connection) Write(s *Stream, p []byte, end bool) (n int, err error) {
	if s.closed || s.sendEnd || !s.sendHead {
		return 0, ErrStreamOver
	}
	c.queue.remove(s)
	s.blocked = false
	limit := c.outputLimit()
	for n < len(p) {
		room := min(s.sendWindow, c.sendWindow, int64(limit-len(c.out)), leastFrameSize)
		if room <= 0 {
			c.wait(s)
			c.wake() // another stream, if only the window of s is full
			return n, nil
		}
		piece := p[n:]
		last := int64(len(piece)) <= room
		if !last {
			piece = piece[:room]
		}
		n += len(piece)
		c.appendData(s, piece, end && last)
	}
	if end {
		if len(p) == 0 {
			c.appendEnd(s)
		}
		c.sent(s)
	}
	c.wake() // the next stream, if there is room left
	return n, nil
}

func (c *Connection) appendData(s *Stream, p []byte, end bool) {
	flags := uint8(0)
	if end {
		flags = flagEndStream
	}
	c.withRoom(frameHeaderSize + len(p))
	at := len(c.out)
	c.out = appendFrame(c.out, len(p), frameData, flags, s.id)
	c.out = append(c.out, p...)
	c.tail = tail{id: s.id, at: at, end: len(c.out)}
	s.written += int64(frameHeaderSize + len(p))
	s.sendWindow -= int64(len(p))
	c.sendWindow -= int64(len(p))
	c.purse.sentData(len(p))
}

// tail is the last frame of the output, if that is DATA.
type tail struct {
	id      uint32
	at, end int
}

// appendEnd ends the stream: with a flag of its last DATA, if that is still the end of
// the output; otherwise with an empty DATA.
func (c *Connection) appendEnd(s *Stream) {
	if c.tail.id == s.id && c.tail.end == len(c.out) {
		c.out[c.tail.at+4] |= flagEndStream
		return
	}
	c.out = appendFrame(c.out, 0, frameData, flagEndStream, s.id)
}

// Finish ends the body, with the trailers that are not dropped.
func (c *Connection) Finish(s *Stream, trailers *message.Head) error {
	if s.closed || s.sendEnd || !s.sendHead {
		return ErrStreamOver
	}
	if !HasTrailers(trailers) {
		_, err := c.Write(s, nil, true)
		return err
	}
	at := c.beginHead(s)
	for i := range trailers.Fields {
		if f := &trailers.Fields[i]; !f.Dropped && f.ID == message.Other {
			c.out = appendField(c.out, trailers.Name(i), trailers.Value(i))
		}
	}
	c.endHead(s, at, true)
	c.queue.remove(s)
	c.sent(s)
	return nil
}

// HasTrailers reports whether h has trailers that Finish would send.
func HasTrailers(h *message.Head) bool {
	for i := range h.Fields {
		if f := &h.Fields[i]; !f.Dropped && f.ID == message.Other {
			return true
		}
	}
	return false
}

// sent records that everything was sent on s.
func (c *Connection) sent(s *Stream) {
	s.sendEnd = true
	c.end(s)
}

// Reset ends s before its time. No Reset event follows.
func (c *Connection) Reset(s *Stream, code Code) {
	if s.closed {
		return
	}
	c.appendReset(s.id, code)
	c.excuse(s)
	c.close(s)
}

// excuse is called when weir resets s. Until the peer learns of the reset, it may send what
// the stream's window allows in frames of any size, and heads. That is not the peer's fault,
// however many requests a client cancels or weir answers before their bodies have arrived.
func (c *Connection) excuse(s *Stream) {
	if !s.recvEnd {
		c.excused += max(0, s.recvWindow) + leastFrameSize
	}
}

// excuses subtracts a frame of n bytes for an ended stream from the excused bytes. It
// returns false if they do not suffice.
func (c *Connection) excuses(n int) bool {
	cost := int64(max(1, n))
	if cost > c.excused {
		return false
	}
	c.excused -= cost
	return true
}

// ignore accepts a frame of n bytes for an ended stream.
func (c *Connection) ignore(n int) {
	if !c.excuses(n) {
		c.spend(forIgnored)
	}
}

// wait records that s has something to send, and whether it waits for its own window or
// for its turn.
func (c *Connection) wait(s *Stream) {
	if s.sendWindow <= 0 {
		s.blocked = true
	} else {
		c.queue.push(s)
	}
}

// unblock puts s into the queue again when its own window is open.
func (c *Connection) unblock(s *Stream) {
	if s.blocked && s.sendWindow > 0 {
		s.blocked = false
		c.queue.push(s)
	}
}

// wake calls Writable for the stream that has waited longest, if there is room. When that stream writes or
// ends, the core calls Writable for the next one.
func (c *Connection) wake() {
	s := c.queue.first
	if s == nil || c.err != nil || c.sendWindow <= 0 || c.Crowded() {
		return
	}
	c.queue.remove(s)
	c.events.Writable(s)
}

// goingAway is the progress of the end of the connection that weir has begun.
type goingAway uint8

const (
	running goingAway = iota
	goAwaySent
	goAwayFinal
)

// GoAway begins to end the connection (RFC 9113, section 6.8): it sends GOAWAY and a PING.
// When the peer answers the PING, it must know the GOAWAY, and the core accepts no more
// streams. A driver that cannot rely on an answer calls GoAwayNow later.
func (c *Connection) GoAway() {
	if c.goingAway != running || c.err != nil {
		return
	}
	c.goingAway = goAwaySent
	c.appendGoAway(mostStreamID, NoError, "")
	c.appendPing(pingGoAway)
}

// GoAwayNow accepts no more streams.
func (c *Connection) GoAwayNow() {
	if c.goingAway == goAwayFinal || c.err != nil {
		return
	}
	c.goingAway, c.goneLast = goAwayFinal, c.lastPeer
	c.excused += c.recvWindow // for streams that the peer opens before it knows
	c.appendGoAway(c.lastPeer, NoError, "")
}

// GoingAway reports whether no further stream will begin. If Working is 0 as well, the
// connection can be closed.
func (c *Connection) GoingAway() bool {
	return c.goingAway == goAwayFinal || c.config.Role == Client && (c.peerGone || c.numbersUsedUp())
}

// Working returns the number of streams that the driver has not released.
func (c *Connection) Working() int { return c.working }

// Behind reports that the driver has not yet released as many ended streams as the peer
// may have at once. The peer does not know that, even if it keeps to its limit. A core that
// is Behind may have to refuse the peer's new streams, so a driver waits until it is not.
func (c *Connection) Behind() bool { return c.working-len(c.table.ids) >= c.config.Streams }
