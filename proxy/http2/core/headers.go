package core

import (
	"encoding/binary"

	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// gather is a head that is being received: HEADERS and its CONTINUATIONs.
type gather struct {
	open    bool // CONTINUATION frames follow
	id      uint32
	end     bool // the stream ends with the head
	fate    fate
	block   []byte // the part received so far, if there are several frames
	frames  int
	charged int // bytes that the account was charged for block
}

// fate is what the core does with a head. It decodes every head, because later heads
// depend on the state of HPACK.
type fate uint8

const (
	opens     fate = iota // it opens a new stream
	continues             // it continues an existing stream: a response, trailers
	refused               // it opens one stream too many: REFUSED_STREAM
	starved               // no memory for another stream: REFUSED_STREAM
	depends               // its stream depends on itself: PROTOCOL_ERROR
	late                  // the peer has already ended the stream: STREAM_CLOSED
	unheard               // it is ignored
)

// headers handles HEADERS (RFC 9113, section 6.2).
func (c *Connection) headers(f frame, p []byte) {
	if f.id == 0 {
		c.fail(ProtocolError, "bad_head", "a HEADERS frame came on stream 0")
		return
	}
	p, ok := unpad(f, p)
	if !ok {
		c.fail(ProtocolError, "bad_padding", "the padding of a HEADERS frame is longer than the frame")
		return
	}
	dependency := uint32(0)
	if f.has(flagPriority) {
		if len(p) < 5 {
			c.fail(FrameSizeError, "bad_head", "a HEADERS frame is too short for its priority")
			return
		}
		dependency, p = binary.BigEndian.Uint32(p)&mostStreamID, p[5:]
	}
	g := gather{id: f.id, end: f.has(flagEndStream), fate: c.fateOf(f.id)}
	if c.err != nil {
		return
	}
	if dependency == f.id {
		g.fate = depends
	}
	c.gather = g
	if f.has(flagEndHeaders) {
		c.headReceived(p)
		return
	}
	c.gather.open = true
	c.begun++
	c.collect(p)
}

// collect appends a piece to the head that is being received.
func (c *Connection) collect(p []byte) bool {
	g := &c.gather
	if !c.charge(len(p)) {
		return false
	}
	g.charged += len(p)
	g.block = append(g.block, p...)
	return true
}

// charge charges n bytes for data that the peer has begun to send. If there is no memory,
// it ends a client's connection. A connection to an endpoint carries the calls of many
// clients, and continues.
func (c *Connection) charge(n int) bool {
	switch {
	case c.config.Role == Client:
		c.config.Account.Force(n)
	case !c.config.Account.Charge(n):
		c.fail(EnhanceYourCalm, message.ErrMemory.Reason, message.ErrMemory.Detail)
		return false
	}
	return true
}

// forgetGather gives back the memory of the head that was being received.
func (c *Connection) forgetGather() {
	c.config.Account.Release(c.gather.charged)
	c.gather = gather{}
}

// fateOf decides by a stream's number what the core does with its head.
func (c *Connection) fateOf(id uint32) fate {
	if s := c.table.find(id); s != nil {
		if s.recvEnd {
			return late
		}
		return continues
	}
	switch {
	case c.own(id) && id < c.nextOwn:
		return unheard // weir reset the stream, or the peer sent a head after the end
	case c.config.Role == Client || c.own(id):
		c.fail(ProtocolError, "bad_stream", "a HEADERS frame came on a stream that the peer must not open")
		return unheard
	case id <= c.lastPeer:
		if !c.recent.has(id) && !c.ignored(id) {
			c.fail(StreamClosed, "stream_closed", "a HEADERS frame came on a closed stream")
		}
		return unheard
	}
	c.lastPeer = id
	switch {
	case c.goingAway == goAwayFinal:
		return unheard
	case len(c.table.ids) >= c.config.Streams || c.working >= 2*c.config.Streams:
		return refused
	}
	return opens
}

// leastFrames is how many CONTINUATION frames a head may have, whatever the limit for heads
// is: few heads have as many bytes, so a peer may send them byte by byte.
const leastFrames = 256

// continuation handles CONTINUATION (RFC 9113, section 6.10). It limits both the number
// of the frames and their total size (CVE-2024-24549 and others).
func (c *Connection) continuation(f frame, p []byte) {
	g := &c.gather
	if !g.open {
		c.fail(ProtocolError, "bad_continuation", "a CONTINUATION frame came without a HEADERS frame before it")
		return
	}
	if len(p) == 0 && !f.has(flagEndHeaders) && !c.spend(forEmpty) {
		return
	}
	g.frames++
	most := 2 * c.config.Limits.HeadBytes // up to this size the answer is a 431
	if len(g.block)+len(p) > most || g.frames > leastFrames+most/(1<<10) {
		c.fail(EnhanceYourCalm, "continuation_flood", "the headers are far larger than limits.head_size allows, or come in too many CONTINUATION frames")
		return
	}
	if c.collect(p) && f.has(flagEndHeaders) {
		c.headReceived(g.block)
	}
}

// headReceived decodes a head, and acts on its fate.
func (c *Connection) headReceived(block []byte) {
	g := c.gather
	c.gather = gather{}
	defer c.config.Account.Release(g.charged)
	if g.fate == opens && !c.config.Account.ChargeExchange() {
		g.fate = starved
	}
	switch g.fate {
	case opens:
		c.decodeRequest(g, block)
	case starved:
		c.decode(nil, nil, discard, block)
		if c.spend(forStarved) {
			c.refuse(g.id, RefusedStream, message.ErrMemory.Reason)
		}
	case continues:
		c.decodeMore(c.table.find(g.id), g, block)
	case refused:
		c.decode(nil, nil, discard, block)
		budget := forProvoked
		if c.acks > 0 { // the peer may not know our settings yet: no error
			budget = forIgnored
		}
		if c.spend(budget) {
			c.refuse(g.id, RefusedStream, "too_many_streams")
		}
	case depends, late:
		c.decode(nil, nil, discard, block)
		c.endBad(g)
	case unheard:
		c.decode(nil, nil, discard, block)
		c.ignore(len(block))
	}
}

// endBad resets a stream, old or new, whose head violates the protocol.
func (c *Connection) endBad(g gather) {
	code := StreamClosed
	if g.fate == depends {
		code = ProtocolError
	}
	if s := c.table.find(g.id); s != nil {
		c.provoked(s, code, "malformed", "a HEADERS frame came where HTTP/2 allows none")
	} else if c.err == nil && c.spend(forProvoked) {
		c.refuse(g.id, code, "malformed")
	}
}

// decode decodes a block with HPACK into h, the head of stream s. It returns false if the
// connection must end.
func (c *Connection) decode(s *Stream, h *message.Head, kind headKind, block []byte) bool {
	if c.err != nil {
		return false
	}
	var account *memory.Account
	if s != nil {
		account = s.memory
	}
	c.head.begin(h, kind, c.config.Limits, account)
	c.dec.SetEmitEnabled(kind != discard)
	_, err := c.dec.Write(block)
	if err == nil {
		err = c.dec.Close()
	}
	if c.head.end(); s != nil {
		s.charged += c.head.charged
	}
	switch err {
	case nil:
		return true
	case hpack.ErrStringLength:
		c.fail(EnhanceYourCalm, "head_too_large", "a header is far larger than limits.head_size allows")
	default:
		c.fail(CompressionError, "bad_compression", "the headers cannot be decompressed (HPACK)")
	}
	return false
}

// field is called by the decoder for each field. When a head is known to be refused, the
// rest is only decoded as far as later heads need it.
func (c *Connection) field(f hpack.HeaderField) {
	c.head.field(f)
	if c.head.over() {
		c.dec.SetEmitEnabled(false)
	}
}

// starve resets a stream because there is no memory for it. That is not the peer's fault,
// unless the peer opens streams faster than weir can refuse them. An endpoint opens no
// streams, so it has no budget: the memory of one client is used up, and other clients
// share the connection.
func (c *Connection) starve(s *Stream, code Code) {
	if s.closed || c.config.Role == Server && !c.spend(forStarved) {
		return
	}
	c.appendReset(s.id, code)
	c.excuse(s)
	c.close(s)
	c.events.Reset(s, Ending{Code: code, Reason: message.ErrMemory.Reason, Detail: message.ErrMemory.Detail})
}

// OutOfMemory resets a stream because the driver has no memory for its body.
func (c *Connection) OutOfMemory(s *Stream) {
	if c.config.Role == Server {
		c.starve(s, EnhanceYourCalm)
	} else {
		c.starve(s, Cancel)
	}
}

func (c *Connection) decodeRequest(g gather, block []byte) {
	s := c.newStream(g.id)
	s.memory, s.charged = c.config.Account, memory.Exchange
	c.receivedFor(s, frameHeaderSize+len(block))
	s.req = c.events.Request(s)
	if !c.decode(s, &s.req.Head, request, block) {
		return
	}
	s.req.RawTargets = c.config.RawTargets
	refusal, bad := c.head.request(s.req, g.end, !c.config.NoConnectProtocol)
	switch {
	case bad != "":
		c.provoked(s, ProtocolError, "malformed", bad)
		return
	case refusal == message.ErrMemory:
		c.starve(s, RefusedStream)
		return
	}
	s.headDone, s.recvEnd = true, g.end
	s.tunnel = c.head.seen&pseudoProtocol != 0
	s.isHead = s.req.IsHead
	if !s.tunnel && refusal == nil {
		s.left = s.req.Length
	}
	c.events.Head(s, refusal)
	if g.end && s.id == g.id && !s.closed { // the driver may have released it already
		c.endReceived(s)
	}
}

// decodeMore decodes a head on an existing stream: trailers, or a response for a client.
func (c *Connection) decodeMore(s *Stream, g gather, block []byte) {
	if s != nil {
		c.receivedFor(s, frameHeaderSize+len(block))
	}
	switch {
	case s == nil:
		c.decode(nil, nil, discard, block)
	case !s.headDone:
		c.decodeResponse(s, g, block)
	default:
		c.decodeTrailers(s, g, block)
	}
}

func (c *Connection) decodeResponse(s *Stream, g gather, block []byte) {
	s.taken = true
	s.res = c.events.Response(s)
	if !c.decode(s, &s.res.Head, response, block) {
		return
	}
	if c.head.refusal == message.ErrMemory {
		c.starve(s, Cancel)
		return
	}
	bad, reason := c.head.response(s.res, s, g.end), "malformed"
	if bad == "" && s.res.Informational() {
		if s.infos++; s.infos > int(c.config.Infos) {
			bad, reason = message.ErrTooManyInfo.Detail, message.ErrTooManyInfo.Reason
		}
	}
	if bad != "" {
		c.provoked(s, ProtocolError, reason, bad)
		return
	}
	if !s.res.Informational() {
		s.headDone, s.recvEnd = true, g.end
	}
	c.events.Head(s, nil)
	if g.end && s.id == g.id && !s.closed { // the driver may have released it already
		c.endReceived(s)
	}
}

func (c *Connection) decodeTrailers(s *Stream, g gather, block []byte) {
	var h *message.Head
	if c.config.Role == Server {
		h = &s.req.Trailers
	} else {
		h = &s.res.Trailers
	}
	if !c.decode(s, h, trailers, block) {
		return
	}
	if c.head.refusal == message.ErrMemory {
		h.Reset()
		c.starve(s, EnhanceYourCalm)
		return
	}
	bad := c.head.trailers()
	if !g.end {
		bad = "the trailers do not end their stream"
	}
	if bad != "" {
		h.Reset() // all trailers are dropped
		c.provoked(s, ProtocolError, "malformed", bad)
		return
	}
	message.KeepTrailers(h, h)
	c.endReceived(s)
}
