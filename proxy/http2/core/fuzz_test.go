package core

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// invariants checks conditions that hold for a core whatever its peer sends.
func (x *side) invariants(t testing.TB) {
	t.Helper()
	c := &x.core
	if !slices.IsSorted(c.table.ids) || len(c.table.ids) != len(c.table.streams) {
		t.Fatal("the table is out of order")
	}
	if c.config.Role == Server && (len(c.table.ids) > c.config.Streams || c.working > 2*c.config.Streams) {
		t.Fatalf("%d streams, %d worked on", len(c.table.ids), c.working)
	}
	if c.err == nil && c.recvWindow+c.unreturned != c.recvSize {
		t.Fatalf("the connection's window: %d and %d of %d", c.recvWindow, c.unreturned, c.recvSize)
	}
	var grown int64
	waiting := 0
	for _, s := range c.table.streams {
		if s.closed {
			t.Fatalf("stream %d is closed", s.id)
		}
		if c.err == nil && s.recvWindow+s.held+s.unreturned != s.recvSize {
			t.Fatalf("stream %d: %d, %d held, %d unreturned of %d", s.id, s.recvWindow, s.held, s.unreturned, s.recvSize)
		}
		if c.err == nil && (s.sendWindow > mostWindow || s.sendWindow < -mostWindow) {
			t.Fatalf("stream %d: may send %d", s.id, s.sendWindow)
		}
		if s.waiting {
			waiting++
		}
		grown += s.recvSize - initialWindow
	}
	for s := c.queue.first; s != nil; s = s.next {
		waiting--
	}
	switch {
	case waiting != 0:
		t.Fatal("the queue is not of those who wait")
	case grown != c.grown || grown > int64(c.config.Growth):
		t.Fatalf("windows have grown by %d, counted as %d", grown, c.grown)
	case c.sendWindow < 0 || c.err == nil && c.sendWindow > mostWindow:
		t.Fatalf("the connection may send %d", c.sendWindow)
	case len(c.gather.block) > 2*c.config.Limits.HeadBytes+leastFrameSize || len(c.pending) > leastFrameSize+frameHeaderSize:
		t.Fatalf("%d and %d bytes are kept", len(c.gather.block), len(c.pending))
	case len(c.free) > mostFree:
		t.Fatalf("%d streams are kept", len(c.free))
	}
}

// script turns bytes into frames, most of them valid, and into actions of a driver.
type script struct {
	in   []byte
	peer *http2test.Peer
}

func (s *script) byte() byte {
	if len(s.in) == 0 {
		return 0
	}
	b := s.in[0]
	s.in = s.in[1:]
	return b
}

func (s *script) id() uint32 { return uint32(s.byte() % 16) }

var someLines = []string{":method: GET", ":method: POST", ":method: CONNECT", ":scheme: https", ":path: /", ":path: *", ":authority: a",
	":protocol: websocket", ":status: 200", ":status: 103", ":status: 204", "host: a", "content-length: 5", "content-length: 0", "te: trailers",
	"connection: x", "cookie: a", "A: b", "x: y", "expect: 100-continue", "trailer: x"}

func (s *script) block() []byte {
	lines := []string{}
	switch k := s.byte(); k % 4 {
	case 0, 1:
		lines = http2test.GetLines()
	case 2:
		lines = append(lines, ":status: 200")
	}
	for range s.byte() % 4 {
		lines = append(lines, someLines[int(s.byte())%len(someLines)])
	}
	return s.peer.Fields(lines...)
}

// frame writes one frame.
func (s *script) frame() {
	p := s.peer
	switch k := s.byte() % 16; k {
	case 0, 1, 2, 3:
		block, flags := s.block(), s.byte()&(flagEndStream|flagEndHeaders)|flagEndHeaders*(s.byte()&1)
		p.Raw(frameHeaders, flags, s.id()|1, string(block))
	case 4:
		p.Raw(frameContinuation, s.byte()&flagEndHeaders, s.id()|1, string(s.block()))
	case 5, 6, 7:
		p.Raw(frameData, s.byte()&flagEndStream, s.id()|1, strings.Repeat("d", int(s.byte())*int(s.byte())%leastFrameSize))
	case 8:
		p.Raw(frameData, s.byte()&flagEndStream|flagPadded, s.id()|1, string(s.byte()%8)+strings.Repeat("\x00", int(s.byte()%32)))
	case 9:
		p.Raw(frameReset, 0, s.id(), "\x00\x00\x00"+string(rune(s.byte()%14)))
	case 10:
		p.Framer.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingID(s.byte() % 9), Val: uint32(s.byte()) << (s.byte() % 24)})
	case 11:
		p.Raw(frameSettings, flagAck, 0, "")
	case 12:
		p.Framer.WriteWindowUpdate(s.id(), uint32(s.byte())<<(s.byte()%24))
	case 13:
		p.Raw(framePing, s.byte()&flagAck, 0, [...]string{pingAlive, pingPath, pingGoAway, "12345678"}[s.byte()%4])
	case 14:
		p.Raw(frameGoAway, 0, 0, "\x00\x00\x00"+string(rune(s.byte()%16))+"\x00\x00\x00\x00")
	case 15:
		n, kind, flags, id := int(s.byte()%16), s.byte()%12, s.byte(), s.id()
		n = min(n, len(s.in))
		p.Raw(kind, flags, id, string(s.in[:n]))
		s.in = s.in[n:]
	}
}

// drive does one action that a driver may do.
func (s *script) drive(x *side) {
	c := &x.core
	var stream *Stream
	if n := len(c.table.streams); n > 0 {
		stream = c.table.streams[int(s.byte())%n]
	}
	switch k := s.byte() % 12; {
	case k == 0:
		c.Take()
	case k == 1:
		c.Ping()
	case k == 2:
		c.GoAway()
	case k == 3 && c.config.Role == Client:
		if s, err := c.Open(http2test.NewRequest("POST", "/", "a"), s.byte()%2 == 0); err == nil {
			x.of(s)
		}
	case stream == nil:
	case k == 4 && c.config.Role == Server:
		c.Respond(stream, http2test.NewResponse(200), s.byte()%2 == 0)
	case k == 5 && c.config.Role == Server:
		c.Respond(stream, http2test.NewResponse(103), false)
	case k == 6, k == 7:
		x.send(stream, make([]byte, int(s.byte())*int(s.byte())), s.byte()%4 == 0)
	case k == 8:
		c.Finish(stream, http2test.NewHead("t: u"))
	case k == 9:
		c.Reset(stream, Cancel)
	case k == 10:
		c.Release(stream)
		delete(x.streams, stream)
	case k == 11:
		if held := stream.Held(); held > 0 {
			c.Consumed(stream, int(min(held, int64(s.byte()))))
		}
	}
}

// FuzzFrames plays scripts to both roles, once in one piece and once in many: the
// invariants hold, the output consists of frames, and the events do not depend on the
// pieces.
func FuzzFrames(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(false, uint8(r.Uint32()), b)
		f.Add(true, uint8(r.Uint32()), b)
	}
	f.Fuzz(func(t *testing.T, client bool, piece uint8, in []byte) {
		whole := play(t, client, 0, in)
		if cut := play(t, client, 1+int(piece), in); cut != whole {
			t.Errorf("in one piece:\n%s\ncut:\n%s", whole, cut)
		}
	})
}

func play(t testing.TB, client bool, piece int, in []byte) string {
	config := Config{Streams: 5, Limits: message.Limits{HeadBytes: 500, Fields: 10}, Output: 20000}
	s := &script{in: in, peer: http2test.NewPeer()}
	if client {
		config.Role = Client
		s.peer.Framer.WriteSettings()
	} else {
		s.peer.Greet()
	}
	x := newSide(config)
	x.keep = s.byte()%2 == 0
	for len(s.in) > 0 {
		for range s.byte() % 8 {
			s.frame()
		}
		err := x.receive(s.peer.Bytes(), piece)
		s.peer.Reset()
		x.invariants(t)
		if err != nil {
			x.note("%v", err)
			break
		}
		for range s.byte() % 4 {
			s.drive(x)
			x.invariants(t)
		}
	}
	x.core.Abort(InternalError, "over", "")
	x.invariants(t)
	frames(t, x.core.Take().Bytes(), false)
	return strings.Join(x.log, "\n")
}

// FuzzBytes gives arbitrary bytes to both roles.
func FuzzBytes(f *testing.F) {
	f.Add(http2test.Greeted().Get(1).Post(3).Data(3, true, "hello").Bytes())
	f.Add(http2test.Greeted().Raw(framePing, 0, 0, "12345678").Raw(frameWindowUpdate, 0, 0, "\x00\x00\x00\x01").Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, role := range []Role{Server, Client} {
			x := newSide(Config{Role: role})
			x.receive(in, 0)
			x.invariants(t)
			x.core.Take()
			y := newSide(Config{Role: role})
			y.receive(in, 3)
			http2test.Equal(t, "cut", y.log, x.log)
		}
	})
}

// FuzzHeads compares how the core and x/net interpret a request's head. If x/net refuses
// it, the core refuses it. If the core accepts it, both have the same fields.
func FuzzHeads(f *testing.F) {
	f.Add([]byte(http2test.NewPeer().Fields(http2test.GetLines("a: b", "cookie: c", "te: trailers")...)))
	f.Add([]byte(http2test.NewPeer().Fields(http2test.GetLines("A: b")...)))
	f.Add([]byte(http2test.NewPeer().Fields(http2test.GetLines("a: b\x00", "connection: x")...)))
	f.Add([]byte("\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"))
	f.Fuzz(func(t *testing.T, block []byte) {
		if len(block) > leastFrameSize {
			return
		}
		raw := http2test.NewPeer().Raw(frameHeaders, flagEndHeaders|flagEndStream, 1, string(block)).Bytes()
		framer := xhttp2.NewFramer(nil, bytes.NewReader(raw))
		framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		theirs, err := framer.ReadFrame()
		x := newSide(Config{})
		x.receive(http2test.Greeted().Bytes(), 0)
		x.receive(raw, 0)
		if len(x.log) < 2 || !strings.Contains(x.log[1], " host ") {
			return // both refuse the head, for any reason
		}
		meta, ok := theirs.(*xhttp2.MetaHeadersFrame)
		if err != nil || !ok {
			t.Fatalf("accepted %s, which x/net does not: %v", x.log[1], err)
		}
		compareFields(t, x, meta)
	})
}

func compareFields(t *testing.T, x *side, meta *xhttp2.MetaHeadersFrame) {
	t.Helper()
	var want, got []string
	var crumbs []string
	for _, f := range meta.RegularFields() {
		switch {
		case f.Name == "cookie":
			crumbs = append(crumbs, f.Value)
		case f.Name != "host":
			want = append(want, f.Name+": "+f.Value)
		}
	}
	if crumbs != nil {
		want = append(want, "cookie: "+strings.Join(crumbs, "; "))
	}
	for _, seen := range x.streams {
		for i := range seen.req.Fields {
			if name := string(seen.req.Name(i)); name != "host" && name != "Sec-WebSocket-Key" {
				got = append(got, name+": "+string(seen.req.Value(i)))
			}
		}
		http2test.Equal(t, "path", string(seen.req.Bytes(seen.req.Target)), meta.PseudoValue("path"))
	}
	slices.Sort(want)
	slices.Sort(got)
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("fields:\n got %q\nwant %q", got, want)
	}
}
