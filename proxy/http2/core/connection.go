// Package core is the protocol of HTTP/2 (RFC 9113) in both roles, without I/O, goroutines
// and clocks. A Connection takes bytes, makes frames, and reports events to its driver,
// which connects it with a socket: package http2 has the drivers. Connection and Stream are
// RFC 9113's words. The core decodes into package message and encodes from it, exactly as
// strictly as http1 does. It limits the work and the memory that a peer can cause.
//
// A message that RFC 9113 calls malformed ends its stream with PROTOCOL_ERROR. A request
// may be correct HTTP/2 and still not be forwarded, because http1 would refuse it (its
// path, its host, its size). The driver gets such a request with a *message.Refusal,
// which is the answer.
package core

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

// Config has the settings of a core. Zero values mean the defaults.
type Config struct {
	Role   Role
	Limits message.Limits
	// Streams is how many streams the peer may have at once; 0: 128. The peer of a client
	// may have none.
	Streams int
	// StreamWindow and ConnectionWindow limit how far receiving windows grow, in bytes;
	// 0: 1 MiB and 4 MiB.
	StreamWindow, ConnectionWindow int
	// Growth limits by how many bytes the windows of all streams together may grow; 0: 4
	// MiB. Unread bodies can take this much memory, and 64 KiB for each stream.
	Growth int
	// Output is how many bytes of output may wait before bodies wait; 0: 256 KiB.
	Output int
	// Account is charged for the memory that the connection makes weir hold. For a
	// server, that includes its streams. nil: nothing is charged. The caller owns the
	// account and closes it after the connection.
	Account *memory.Account
	// NoConnectProtocol disables extended CONNECT (RFC 8441) for clients.
	NoConnectProtocol bool
	// RawTargets is message.Request.RawTargets for the requests of clients.
	RawTargets bool
	// Infos limits the 1xx responses to a request; 0: message.MaxInfos. See LimitInfos.
	Infos int32
	// Scheme is the :scheme that a client sends; "": https.
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
	if c.Infos == 0 {
		c.Infos = message.MaxInfos
	}
	if c.Scheme == "" {
		c.Scheme = "https"
	}
	return c
}

// Events receives the events of a core, within calls of the core's methods. A handler may
// call every method of the core except Receive and Abort.
type Events interface {
	// Request returns the empty message into which the core decodes the head of a new
	// stream. Head or Reset follows. For servers.
	Request(s *Stream) *message.Request
	// Response returns the message for the next response head of s. For clients. The
	// message of the final head must stay until the end of the stream, for its trailers.
	Response(s *Stream) *message.Response
	// Head reports that a head is complete. If refusal is not nil, the driver must answer
	// the request with it and not forward the request; the body may follow.
	Head(s *Stream, refusal *message.Refusal)
	// Data passes a piece of the body, valid until Data returns. The driver must call
	// Consumed when the bytes take up no memory any more.
	Data(s *Stream, p []byte)
	// End reports that the peer has sent everything. Trailers are in the message.
	End(s *Stream)
	// Reset reports that the stream ended before its time.
	Reset(s *Stream, e Ending)
	// Refused reports that weir reset a stream that the driver does not have: the stream was
	// refused before Request, or has ended. reason is a word for metrics.
	Refused(reason string)
	// Writable reports that Write, which could not send everything, can continue.
	Writable(s *Stream)
	// Settings reports that the peer's settings were received and apply.
	Settings()
	// SettingsAcked reports that the peer has acknowledged our settings.
	SettingsAcked()
	// PingAcked reports the answer to Ping.
	PingAcked()
	// GoAway reports that the peer accepts no more streams, and why. last is the last stream
	// that it accepted. Reset follows for each stream that the peer did not accept.
	GoAway(code Code, last uint32)
}

// Ending is how a stream ended before its time.
type Ending struct {
	Code Code
	// ByPeer: the peer reset the stream or went away. Otherwise weir reset it, because of
	// an error of the peer or for lack of memory.
	ByPeer bool
	// Unprocessed: the peer has not processed the request, which may be repeated.
	Unprocessed bool
	// Reason is a word for metrics, such as "malformed".
	Reason string
	// Detail is a sentence that describes the reason.
	Detail string
}

// ConnError is the error that ends a connection. The GOAWAY that reports it is in the
// output.
type ConnError struct {
	Code   Code
	Reason string // a word for metrics, such as "rapid_reset"
	Detail string
}

func (e *ConnError) Error() string { return "http2: " + e.Code.String() + ": " + e.Detail }

// Connection is the protocol of one connection. It is not safe for use by several
// goroutines at once. The zero value needs Init.
type Connection struct {
	config   Config
	events   Events
	dec      *hpack.Decoder
	head     head
	err      *ConnError
	now      time.Time
	pingedAt time.Time
	purse    purse

	// Receiving.
	prefaced int    // bytes of the preface that have arrived
	greeted  bool   // the first frame, SETTINGS, has arrived
	pending  []byte // the beginning of an incomplete frame
	begun    uint64 // counts the frames and heads that did not arrive in one piece
	gather   gather
	data     dataFrame

	// Streams.
	table    table
	free     []*Stream
	recent   recent
	working  int    // streams that the driver has not released
	lastPeer uint32 // the highest stream that the peer opened
	nextOwn  uint32 // the next stream that we open
	excused  int64  // bytes of frames that the peer may still send on streams that weir reset

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

	acks      int // our SETTINGS that the peer has not acknowledged
	goingAway goingAway
	goneLast  uint32 // the last stream that our final GOAWAY named
	peerGone  bool
	peerLast  uint32
	pinging   bool // a Ping of the driver is not answered
}

// peerSettings are the settings that the peer has sent, or their defaults.
type peerSettings struct {
	window    uint32
	frameSize uint32
	streams   uint32
	headSize  uint32 // 0: the peer sent no limit
	connect   bool
}

// Init makes c the core of a new connection, and puts its greeting into the output.
func (c *Connection) Init(config Config, events Events) {
	*c = Connection{config: config.orDefault(), events: events,
		peer:       peerSettings{window: initialWindow, frameSize: leastFrameSize, streams: 100}, // until SETTINGS arrive (RFC 9113, section 6.5.2: 100 streams or more)
		sendWindow: initialWindow, recvWindow: initialWindow, recvSize: initialWindow}
	c.dec = hpack.NewDecoder(4096, c.field)
	c.dec.SetMaxStringLength(2 * c.config.Limits.HeadBytes)
	c.path.size = initialWindow
	c.nextOwn = 1
	c.recent.most = max(leastRecent, 2*c.config.Streams)
	if c.config.Role == Client {
		c.prefaced = len(Preface)
		c.out = append(c.out, Preface...)
	}
	c.greet()
}

// ChargeTo charges a for the memory that the connection makes weir hold from now on, and
// for the output that waits. It is for a driver that has no account yet when it calls Init,
// and replaces Config.Account. Call it before Receive and Take.
func (c *Connection) ChargeTo(a *memory.Account) {
	c.config.Account = a
	a.Force(c.outCharged)
}

// LimitInfos replaces Config.Infos. Call it before Receive.
func (c *Connection) LimitInfos(most int) { c.config.Infos = int32(most) }

// greet writes our SETTINGS, and enlarges the connection's window for several streams
// that begin together.
func (c *Connection) greet() {
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

// Receive takes bytes from the peer, in pieces of any size. An error is a *ConnError and
// final: the caller must send the output and close the connection.
func (c *Connection) Receive(now time.Time, p []byte) error {
	c.now = now
	for len(p) > 0 && c.err == nil {
		p = c.receiveFrame(p)
	}
	if c.err != nil {
		return c.err
	}
	return nil
}

// ReceiveUntilBehind is Receive for servers. It stops between two frames when the core is
// Behind, and returns the bytes that it did not take.
func (c *Connection) ReceiveUntilBehind(now time.Time, p []byte) (rest []byte, err error) {
	c.now = now
	for len(p) > 0 && c.err == nil && !c.Behind() {
		p = c.receiveFrame(p)
	}
	if c.err != nil {
		return nil, c.err
	}
	return p, nil
}

// receiveFrame takes at most one frame from p, and returns the rest of p.
func (c *Connection) receiveFrame(p []byte) []byte {
	switch {
	case c.prefaced < len(Preface):
		return c.preface(p)
	case c.data.left > 0:
		return c.receiveData(p)
	}
	return c.nextFrame(p)
}

func (c *Connection) preface(p []byte) []byte {
	n := min(len(p), len(Preface)-c.prefaced)
	if string(p[:n]) != Preface[c.prefaced:c.prefaced+n] {
		c.fail(ProtocolError, "bad_preface", "the connection does not begin with the HTTP/2 preface")
		return nil
	}
	c.prefaced += n
	return p[n:]
}

// nextFrame takes a frame from p, or keeps the beginning of an incomplete frame. It takes
// DATA also in pieces. It returns the rest of p.
func (c *Connection) nextFrame(p []byte) []byte {
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

// keep stores the beginning of a frame.
func (c *Connection) keep(p []byte) {
	if c.addPending(p) && !c.gather.open {
		c.begun++
	}
}

// completeFrame is nextFrame for a frame whose beginning is in pending.
func (c *Connection) completeFrame(p []byte) []byte {
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

// addPending appends p to the beginning of a frame. If there is no memory, it ends the
// connection and returns false.
func (c *Connection) addPending(p []byte) bool {
	if !c.charge(len(p)) {
		return false
	}
	c.pending = append(c.pending, p...)
	return true
}

// forgetPending empties pending. It does not keep a large buffer.
func (c *Connection) forgetPending() {
	c.config.Account.Release(len(c.pending))
	if cap(c.pending) > 1<<10 {
		c.pending = nil
	}
	c.pending = c.pending[:0]
}

// expected checks by its header alone whether a frame is allowed now. If not, it ends the
// connection and returns false.
func (c *Connection) expected(f frame) bool {
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

// handle handles a complete frame of any type except DATA.
func (c *Connection) handle(f frame, p []byte) {
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

// Fail ends the connection because of an error of the peer that the driver found.
func (c *Connection) Fail(e *ConnError) { c.fail(e.Code, e.Reason, e.Detail) }

// fail ends the connection, and puts a GOAWAY into the output. If the connection has
// already ended, fail does nothing.
func (c *Connection) fail(code Code, reason, detail string) {
	if c.err != nil {
		return
	}
	c.err = &ConnError{Code: code, Reason: reason, Detail: detail}
	c.forgetGather() // nothing more is read
	c.config.Account.Release(len(c.pending))
	c.pending = nil
	c.appendGoAway(c.lastPeer, code, reason)
}

// spend takes one unit from a budget. If the budget is used up, spend ends the connection
// and returns false.
func (c *Connection) spend(k budgetKind) bool {
	if c.purse.spend(k, c.now) {
		return true
	}
	c.fail(EnhanceYourCalm, budgets[k].reason, "the peer exceeded a limit against HTTP/2 floods: "+budgets[k].reason)
	return false
}

// Started returns the number of the incomplete head or frame (except DATA) that the peer
// has begun; 0: none. Each head or frame has a number of its own.
func (c *Connection) Started() uint64 {
	if !c.gather.open && len(c.pending) == 0 {
		return 0
	}
	return c.begun
}

// Greeted reports whether the peer's preface and its first SETTINGS have arrived.
func (c *Connection) Greeted() bool { return c.greeted }

// Err returns the error that ended the connection, or nil.
func (c *Connection) Err() *ConnError { return c.err }

// Abort ends every stream, because the connection is lost. Each stream gets its Reset
// event.
func (c *Connection) Abort(code Code, reason, detail string) {
	if c.err == nil {
		c.err = &ConnError{Code: code, Reason: reason, Detail: detail}
	}
	for len(c.table.streams) > 0 {
		s := c.table.streams[len(c.table.streams)-1]
		c.close(s)
		c.events.Reset(s, Ending{Code: code, ByPeer: true, Reason: reason, Detail: detail})
	}
}
