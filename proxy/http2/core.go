// Package http2 is the HTTP/2 codec (RFC 9113) in both roles. Core is the
// protocol of one connection without any I/O: bytes go in, frames come out, and
// events tell a driver what happened. It decodes into and encodes from package
// message, exactly as strictly as http1 does, and bounds what a peer can make it
// work and remember.
//
// What RFC 9113 calls malformed ends its stream with PROTOCOL_ERROR; a request
// that is proper HTTP/2 but is not forwarded, because http1 would refuse it
// (its path, its host, its size), is handed over with a *message.Refusal, to be
// answered.
package http2

import (
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Role is the side of a connection.
type Role uint8

// The roles.
const (
	Server Role = iota // reads requests and writes responses
	Client             // the reverse
)

// Config is how a core behaves. Zero values mean the defaults.
type Config struct {
	Role   Role
	Limits message.Limits
	// Streams is how many streams the peer may have at once; 0: 128. A client's is always none.
	Streams int
	// StreamWindow and ConnectionWindow are what receiving windows may grow to, in bytes; 0: 1 MiB and 4 MiB.
	StreamWindow, ConnectionWindow int
	// Growth bounds by how much the windows of all streams together may have
	// grown, in bytes, and so what unread bodies may take beyond 64 KiB each; 0: 4 MiB.
	Growth int
	// Output is how many bytes may wait to be taken before bodies wait; 0: 256 KiB.
	Output int
	// Account is charged for the memory that the connection makes weir hold, for a server
	// including its streams; nil: nothing is charged. The caller owns it and closes it
	// after the connection.
	Account *memory.Account
	// NoConnectProtocol withholds extended CONNECT (RFC 8441) from clients.
	NoConnectProtocol bool
	// Scheme is a client's :scheme; "": https.
	Scheme string
}

func (c Config) orDefault() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	c.Limits = c.Limits.OrDefault()
	def(&c.Streams, 128)
	def(&c.StreamWindow, 1<<20)
	def(&c.ConnectionWindow, 4<<20)
	def(&c.Growth, 4<<20)
	def(&c.Output, 256<<10)
	if c.Scheme == "" {
		c.Scheme = "https"
	}
	return c
}

// Events tell the driver what happened. They come within calls of the core's
// methods. A handler may call every method of the core but Receive and Abort.
type Events interface {
	// Request returns the empty message that the head of a new stream is
	// decoded into. Head or Reset follows. For servers.
	Request(s *Stream) *message.Request
	// Response is the same for the next response head of s. For clients. The
	// message of the final head must stay until the stream's end, for its trailers.
	Response(s *Stream) *message.Response
	// Head says that a head is complete. With refusal, a request is to be
	// answered so and not forwarded; its body may follow.
	Head(s *Stream, refusal *message.Refusal)
	// Data brings a piece of the body, valid until it returns. Consumed must
	// be told once the bytes take up no memory any more.
	Data(s *Stream, p []byte)
	// End says that the peer has sent everything; trailers are in the message.
	End(s *Stream)
	// Reset says that the stream is over before its time.
	Reset(s *Stream, e Ending)
	// Writable says that Write, which fell short, can go on.
	Writable(s *Stream)
	// Settings says that the peer's settings were received and apply.
	Settings()
	// SettingsAcked says that the peer has taken note of ours.
	SettingsAcked()
	// PingAcked answers Ping.
	PingAcked()
	// GoAway says that the peer takes no more streams, and why. Streams that it
	// did not take are reset after that.
	GoAway(code Code)
}

// Ending is how a stream ended before its time.
type Ending struct {
	Code Code
	// ByPeer: the peer reset it, or went away; else we did, for its fault.
	ByPeer bool
	// Unprocessed: the peer has not acted on the request, which may be repeated.
	Unprocessed bool
	// Reason is a word for metrics, such as "malformed".
	Reason string
	// Detail says in a sentence what was wrong.
	Detail string
}

// ConnError ends a connection. The GOAWAY that says so is in the output.
type ConnError struct {
	Code   Code
	Reason string // a word for metrics, such as "rapid_reset"
	Detail string
}

func (e *ConnError) Error() string { return "http2: " + e.Code.String() + ": " + e.Detail }

// Core is the protocol of one connection. It is not safe for use by several
// goroutines at once. The zero value needs Init.
type Core struct {
	config Config
	events Events
	dec    *hpack.Decoder
	head   head
	err    *ConnError
	now    time.Time
	purse  purse

	// Receiving.
	prefaced int    // how much of the preface has come
	greeted  bool   // the first frame, SETTINGS, has come
	pending  []byte // the beginning of a frame whose end has not come
	begun    uint64 // frames and heads that did not come at once
	gather   gather
	data     dataFrame

	// Streams.
	table    table
	free     []*Stream
	recent   recent
	working  int    // streams that the driver has
	lastPeer uint32 // the highest stream that the peer opened
	nextOwn  uint32 // the stream that we open next
	excused  int64  // bytes of frames that an endpoint may still send on streams that a client reset

	// Flow control of what is received.
	recvWindow, recvSize, unreturned int64
	grown                            int64 // by how much the windows of streams have grown
	path                             path

	// Sending.
	peer       peerSettings
	sendWindow int64
	out        []byte
	outCharged int    // bytes that the account was charged for out
	late       []byte // resets that follow out, in a write of their own
	control    int    // control frames in out
	queue      queue
	tail       tail
	tableReset bool // the next head must say that we use no dynamic table

	acks     int // SETTINGS of ours without an answer
	leaving  leaving
	goneLast uint32 // the last stream that our final GOAWAY named
	peerGone bool
	peerLast uint32
	pinging  bool // a Ping of the driver's is out
}

// peerSettings are the settings that the peer has sent, or their defaults.
type peerSettings struct {
	window    uint32
	frameSize uint32
	streams   uint32
	headSize  uint32 // 0: none was said
	connect   bool
}

// Init makes c the core of a new connection and puts its greeting in the output.
func (c *Core) Init(config Config, events Events) {
	*c = Core{config: config.orDefault(), events: events,
		peer:       peerSettings{window: initialWindow, frameSize: leastFrameSize, streams: 100}, // until SETTINGS come: RFC 9113, section 6.5.2, advises no less
		sendWindow: initialWindow, recvWindow: initialWindow, recvSize: initialWindow}
	c.dec = hpack.NewDecoder(4096, c.field)
	c.dec.SetMaxStringLength(2 * c.config.Limits.HeadBytes)
	c.path.size = initialWindow
	c.nextOwn = 1
	if c.config.Role == Client {
		c.prefaced = len(Preface)
		c.out = append(c.out, Preface...)
	}
	c.greet()
}

// greet writes our SETTINGS, and enlarges the connection's window for several streams at once.
func (c *Core) greet() {
	c.withRoom(controlRoom)
	at := len(c.out)
	c.out = appendFrame(c.out, 0, frameSettings, 0, 0)
	if c.config.Role == Server {
		c.out = appendSetting(c.out, settingStreams, uint32(c.config.Streams))
		if !c.config.NoConnectProtocol {
			c.out = appendSetting(c.out, settingConnectProtocol, 1)
		}
	} else {
		c.out = appendSetting(c.out, settingPush, 0)
	}
	c.out = appendSetting(c.out, settingHeadSize, uint32(c.config.Limits.HeadBytes))
	setFrameLength(c.out, at, len(c.out)-at-frameHeaderSize)
	c.acks++
	c.growConnection(min(int64(c.config.ConnectionWindow), firstConnectionWindow))
}

// Receive takes bytes from the peer, cut anywhere. An error is a *ConnError
// and final: the output is to be sent, and the connection closed.
func (c *Core) Receive(now time.Time, p []byte) error {
	c.now = now
	for len(p) > 0 && c.err == nil {
		switch {
		case c.prefaced < len(Preface):
			p = c.preface(p)
		case c.data.left > 0:
			p = c.receiveData(p)
		default:
			p = c.nextFrame(p)
		}
	}
	if c.err != nil {
		return c.err
	}
	return nil
}

func (c *Core) preface(p []byte) []byte {
	n := min(len(p), len(Preface)-c.prefaced)
	if string(p[:n]) != Preface[c.prefaced:c.prefaced+n] {
		c.fail(ProtocolError, "bad_preface", "the connection does not begin with the HTTP/2 preface")
		return nil
	}
	c.prefaced += n
	return p[n:]
}

// nextFrame takes a frame from p, or the beginning of one, which it keeps.
// DATA need not be there as a whole.
func (c *Core) nextFrame(p []byte) []byte {
	if len(c.pending) > 0 {
		return c.completeFrame(p)
	}
	if len(p) < frameHeaderSize {
		c.keep(p)
		return nil
	}
	f := parseFrame(p)
	if !c.expected(f) {
		return nil
	}
	if f.kind == frameData {
		c.beginData(f)
		return p[frameHeaderSize:]
	}
	whole := frameHeaderSize + f.length
	if len(p) < whole {
		c.keep(p)
		return nil
	}
	c.handle(f, p[frameHeaderSize:whole])
	return p[whole:]
}

// keep notes the beginning of a frame.
func (c *Core) keep(p []byte) {
	if c.addPending(p) && !c.gather.open {
		c.begun++
	}
}

// completeFrame is nextFrame where the beginning of the frame is in pending.
func (c *Core) completeFrame(p []byte) []byte {
	missing := frameHeaderSize - len(c.pending)
	if missing > 0 {
		n := min(missing, len(p))
		if !c.addPending(p[:n]) || n < missing {
			return nil
		}
		p = p[n:]
		f := parseFrame(c.pending)
		if !c.expected(f) {
			return nil
		}
		if f.kind == frameData {
			c.forgetPending()
			c.beginData(f)
			return p
		}
	}
	f := parseFrame(c.pending)
	n := min(len(p), frameHeaderSize+f.length-len(c.pending))
	if !c.addPending(p[:n]) {
		return nil
	}
	p = p[n:]
	if len(c.pending) == frameHeaderSize+f.length {
		c.handle(f, c.pending[frameHeaderSize:])
		c.forgetPending()
	}
	return p
}

// addPending appends to the beginning of a frame. It ends the connection if there is no
// memory.
func (c *Core) addPending(p []byte) bool {
	if !c.charge(len(p)) {
		return false
	}
	c.pending = append(c.pending, p...)
	return true
}

// forgetPending empties pending, and gives its memory back if that is large.
func (c *Core) forgetPending() {
	c.config.Account.Release(len(c.pending))
	if cap(c.pending) > 1<<10 {
		c.pending = nil
	}
	c.pending = c.pending[:0]
}

// expected reports whether a frame may come now, by its header alone.
func (c *Core) expected(f frame) bool {
	switch {
	case f.length > leastFrameSize:
		c.fail(FrameSizeError, "frame_size", "a frame is larger than SETTINGS_MAX_FRAME_SIZE allows")
	case !c.greeted && (f.kind != frameSettings || f.has(flagAck)):
		c.fail(ProtocolError, "no_settings", "the first frame is not SETTINGS")
	case c.gather.open && (f.kind != frameContinuation || f.id != c.gather.id):
		c.fail(ProtocolError, "broken_head", "another frame came between HEADERS and CONTINUATION frames")
	default:
		return true
	}
	return false
}

// handle takes a whole frame of any type but DATA.
func (c *Core) handle(f frame, p []byte) {
	switch f.kind {
	case frameHeaders:
		c.headers(f, p)
	case frameContinuation:
		c.continuation(f, p)
	case framePriority:
		c.priority(f, p)
	case frameReset:
		c.resetByPeer(f, p)
	case frameSettings:
		c.settings(f, p)
	case framePing:
		c.ping(f, p)
	case frameGoAway:
		c.goAway(f, p)
	case frameWindowUpdate:
		c.windowUpdate(f, p)
	case framePushPromise:
		c.fail(ProtocolError, "push", "the peer sent PUSH_PROMISE, and weir allows no server push")
	default:
		c.spend(forIgnored) // RFC 9113, section 5.5
	}
}

// fail ends the connection.
func (c *Core) fail(code Code, reason, detail string) {
	if c.err != nil {
		return
	}
	c.err = &ConnError{Code: code, Reason: reason, Detail: detail}
	c.forgetGather() // nothing more is read
	c.config.Account.Release(len(c.pending))
	c.pending = nil
	c.appendGoAway(c.lastPeer, code, reason)
}

// spend takes from a budget, or ends the connection.
func (c *Core) spend(k budgetKind) bool {
	if c.purse.spend(k, c.now) {
		return true
	}
	c.fail(EnhanceYourCalm, budgets[k].reason, "the peer exceeded a limit against HTTP/2 floods: "+budgets[k].reason)
	return false
}

// Started says which head or frame, DATA apart, the peer has begun and not
// finished, by a number of its own; 0: none.
func (c *Core) Started() uint64 {
	if !c.gather.open && len(c.pending) == 0 {
		return 0
	}
	return c.begun
}

// Greeted reports whether the peer's preface and its first SETTINGS have come.
func (c *Core) Greeted() bool { return c.greeted }

// Err is what ended the connection, or nil.
func (c *Core) Err() *ConnError { return c.err }

// Abort ends every stream, since the connection is no more: each gets its
// Reset event. Those that the peer has not acted on are marked.
func (c *Core) Abort(code Code, reason, detail string) {
	if c.err == nil {
		c.err = &ConnError{Code: code, Reason: reason, Detail: detail}
	}
	for len(c.table.streams) > 0 {
		s := c.table.streams[len(c.table.streams)-1]
		c.close(s)
		c.events.Reset(s, Ending{Code: code, ByPeer: true, Reason: reason, Detail: detail})
	}
}
