package http2

import (
	"encoding/binary"
	"errors"

	"github.com/weirproxy/weir/proxy/message"
)

// The errors of sending.
var (
	// ErrStreamOver: the stream was reset, by either side, or everything was sent.
	ErrStreamOver = errors.New("http2: the stream has ended")
	// ErrNoStream: the peer takes no further stream now, see Core.Capacity.
	ErrNoStream = errors.New("http2: the peer accepts no more streams on this connection")
	// ErrHeadForPeer: the head is larger than the peer takes.
	ErrHeadForPeer = errors.New("http2: the headers are larger than the peer's SETTINGS_MAX_HEADER_LIST_SIZE")
	// ErrNoConnectProtocol: the peer does not take requests to upgrade (RFC 8441).
	ErrNoConnectProtocol = errors.New("http2: the peer does not support extended CONNECT (RFC 8441)")
)

// Pending is how many bytes of output are there to be taken.
func (c *Core) Pending() int { return len(c.out) }

// Take returns the output, which is the caller's then, and continues in spare.
// Who waited for room is called.
func (c *Core) Take(spare []byte) []byte {
	out, _ := c.take(spare)
	return out
}

// take is Take for a caller that gives back what the output was charged.
func (c *Core) take(spare []byte) (out []byte, charged int) {
	out, charged = c.out, c.outCharged
	c.out, c.control, c.tail, c.outCharged = append(spare[:0], c.late...), 0, tail{}, 0
	c.late = nil
	c.wake()
	return out, charged
}

// mostControl bounds the control frames that wait: a peer that provokes them
// and does not read them gets no more memory than this.
const mostControl = 4096

// controlRoom holds every control frame but the longest reasons, headRoom most heads.
const controlRoom, headRoom = 64, 1 << 10

func (c *Core) countControl() {
	if c.control++; c.control > mostControl {
		c.fail(EnhanceYourCalm, "control_flood", "the peer sends frames that weir must answer, and does not read the answers")
	}
}

func (c *Core) appendControl(length int, kind, flags uint8, id uint32) {
	c.countControl()
	c.withRoom(controlRoom)
	c.out = appendFrame(c.out, length, kind, flags, id)
}

func (c *Core) appendReset(id uint32, code Code) {
	c.recent.add(id)
	c.appendControl(4, frameReset, 0, id)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
}

// appendLate calls the rest of a request off whose response is through. It
// leaves in a write of its own, behind what is in the output: libcurl before 8
// forgets a response that it has read along with the reset.
func (c *Core) appendLate(id uint32) {
	if len(c.out) == 0 {
		c.appendReset(id, NoError)
		return
	}
	c.recent.add(id)
	c.countControl()
	c.late = binary.BigEndian.AppendUint32(appendFrame(c.late, 4, frameReset, 0, id), uint32(NoError))
}

func (c *Core) appendWindow(id uint32, n int64) {
	c.appendControl(4, frameWindowUpdate, 0, id)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(n))
}

func (c *Core) appendGoAway(last uint32, code Code, reason string) {
	c.withRoom(controlRoom)
	c.out = appendFrame(c.out, 8+len(reason), frameGoAway, 0, 0)
	c.out = binary.BigEndian.AppendUint32(c.out, last)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
	c.out = append(c.out, reason...)
}

// Capacity is how many streams may be opened now.
func (c *Core) Capacity() int {
	if c.err != nil || c.peerGone || c.leaving != staying || c.nextOwn >= mostStreamID-1 {
		return 0
	}
	return max(0, int(min(c.peer.streams, mostStreamID))-len(c.table.ids))
}

// Open sends a request's head on a new stream. With end, no body follows. req
// must stay as it is until the response's head. For clients.
func (c *Core) Open(req *message.Request, end bool) (*Stream, error) {
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
func (c *Core) Respond(s *Stream, res *message.Response, end bool) error {
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

// beginHead makes room for the header of HEADERS and returns where it is.
func (c *Core) beginHead(s *Stream) int {
	c.withRoom(headRoom)
	at := len(c.out)
	c.out = appendFrame(c.out, 0, frameHeaders, flagEndHeaders, s.id)
	if c.tableReset {
		c.tableReset = false
		c.out = append(c.out, noTable)
	}
	return at
}

// endHead completes the frame at at. A block that is too large for one frame
// is continued in others.
func (c *Core) endHead(s *Stream, at int, end bool) {
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

// Write sends as much of p as the windows and the output have room for, and
// says how much that was. With end, the last byte of p ends the body. Where it
// falls short, Writable tells when to go on.
func (c *Core) Write(s *Stream, p []byte, end bool) (n int, err error) {
	if s.closed || s.sendEnd || !s.sendHead {
		return 0, ErrStreamOver
	}
	c.queue.remove(s)
	s.starved = false
	limit := c.outputLimit()
	for n < len(p) {
		room := min(s.sendWindow, c.sendWindow, int64(limit-len(c.out)), leastFrameSize)
		if room <= 0 {
			c.wait(s)
			c.wake() // where it is only the stream's own window
			return n, nil
		}
		piece := p[n:]
		last := int64(len(piece)) <= room
		if !last {
			piece = piece[:room]
		}
		n += len(piece)
		c.appendData(s, piece, end && last)
		c.earnWindows(len(piece), last)
	}
	if end {
		if len(p) == 0 {
			c.appendEnd(s)
		}
		c.sent(s)
	}
	c.wake() // the next in turn, where there is room left
	return n, nil
}

func (c *Core) appendData(s *Stream, p []byte, end bool) {
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
	c.purse.earn(forPings, 1) // who measures the path does so with what comes, however small
}

// earnWindows allows for the WINDOW_UPDATEs that n bytes of DATA explain: for
// its frame and for each KiB (Go answers every 4), twice, as stream and
// connection have one each. What is cut short by windows of a few bytes, and is
// not whole, explains none.
func (c *Core) earnWindows(n int, whole bool) {
	if n >= 256 || whole {
		c.purse.earn(forWindows, int32(2+n/(1<<9)))
	}
}

// tail is the last frame of the output, where that is DATA.
type tail struct {
	id      uint32
	at, end int
}

// appendEnd ends the stream, by its last DATA if that is still there behind all else.
func (c *Core) appendEnd(s *Stream) {
	if c.tail.id == s.id && c.tail.end == len(c.out) {
		c.out[c.tail.at+4] |= flagEndStream
		return
	}
	c.out = appendFrame(c.out, 0, frameData, flagEndStream, s.id)
}

// Finish ends the body, with the trailers that are not dropped.
func (c *Core) Finish(s *Stream, trailers *message.Head) error {
	if s.closed || s.sendEnd || !s.sendHead {
		return ErrStreamOver
	}
	if !hasTrailers(trailers) {
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

// hasTrailers reports whether there are trailers to send.
func hasTrailers(h *message.Head) bool {
	for i := range h.Fields {
		if f := &h.Fields[i]; !f.Dropped && f.ID == message.Other {
			return true
		}
	}
	return false
}

// sent notes that everything was sent on s.
func (c *Core) sent(s *Stream) {
	s.sendEnd = true
	c.end(s)
}

// Reset ends s before its time. No Reset event follows.
func (c *Core) Reset(s *Stream, code Code) {
	if s.closed {
		return
	}
	c.appendReset(s.id, code)
	c.excuse(s)
	c.close(s)
}

// excuse is called when a client resets s. Until the endpoint learns of the reset, it may
// send what the stream's window allows, and the heads of a response. That is not the
// endpoint's fault, however many requests the client cancels.
func (c *Core) excuse(s *Stream) {
	if c.config.Role == Client && !s.recvEnd {
		c.excused += max(0, s.recvWindow) + leastFrameSize
	}
}

// excuses subtracts a frame of n bytes for an ended stream from the excused bytes. It returns false if they do not
// suffice.
func (c *Core) excuses(n int) bool {
	cost := int64(max(1, n))
	if cost > c.excused {
		return false
	}
	c.excused -= cost
	return true
}

// ignore accepts a frame of n bytes for an ended stream.
func (c *Core) ignore(n int) {
	if !c.excuses(n) {
		c.spend(forIgnored)
	}
}

// wait notes that s has something to send, and what it waits for.
func (c *Core) wait(s *Stream) {
	if s.sendWindow <= 0 {
		s.starved = true
	} else {
		c.queue.push(s)
	}
}

// unstarve lets s queue again once its own window is open.
func (c *Core) unstarve(s *Stream) {
	if s.starved && s.sendWindow > 0 {
		s.starved = false
		c.queue.push(s)
	}
}

// wake calls the stream that has waited longest, if there is something for it.
// It calls the next one by writing, or by ending.
func (c *Core) wake() {
	s := c.queue.first
	if s == nil || c.err != nil || c.sendWindow <= 0 || c.Crowded() {
		return
	}
	c.queue.remove(s)
	c.events.Writable(s)
}

// leaving is how far we are with going away.
type leaving uint8

const (
	staying leaving = iota
	leavingSoon
	left
)

// Leave begins to go away (RFC 9113, section 6.8): the peer is told, and once
// it must know, by the answer to a PING, new streams are taken no more. Who
// does not trust it to answer calls LeaveNow later.
func (c *Core) Leave() {
	if c.leaving != staying || c.err != nil {
		return
	}
	c.leaving = leavingSoon
	c.appendGoAway(mostStreamID, NoError, "")
	c.appendPing(pingLeave)
}

// LeaveNow takes no more streams.
func (c *Core) LeaveNow() {
	if c.leaving == left || c.err != nil {
		return
	}
	c.leaving, c.goneLast = left, c.lastPeer
	c.appendGoAway(c.lastPeer, NoError, "")
}

// Leaving reports whether no stream will be taken any more; with Working 0, the
// connection can be closed.
func (c *Core) Leaving() bool { return c.leaving == left || c.peerGone && c.config.Role == Client }

// Working is how many streams the driver has not released.
func (c *Core) Working() int { return c.working }

// Behind says that of the streams that are over, the driver has yet to release
// as many as the peer may have at once. A peer that keeps to its limit cannot
// know of them: who reads on may have to refuse what it opens.
func (c *Core) Behind() bool { return c.working-len(c.table.ids) >= c.config.Streams }
