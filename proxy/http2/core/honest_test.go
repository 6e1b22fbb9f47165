package core

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/proxy/http2/http2test"
)

// honest plays a peer that follows the protocol, in an arbitrary manner, and the driver of the core.
// The core is a server or a client. No time passes, except in pauses, so budgets do not fill up.
type honest struct {
	*rand.Rand
	t       testing.TB
	x       *side
	peer    *http2test.Peer // what the peer sends next
	wire    []byte          // output of the core that the peer has not read
	streams []*honestStream // of the peer, open
	handles []*Stream       // of the driver

	next            uint32 // the next stream that a client opens
	sendWindow      int64  // of the connection, for the peer
	owed            []owed // DATA that the peer has received, and whose windows it has not returned
	frames, opened  int
	small, useless  int // the share of small pieces; of frames that are useless for weir, in percent
	window, longest int
}

type honestStream struct {
	id         uint32
	sendWindow int64
	toSend     int
	head       bool // the peer has sent its head
	sent, got  bool // the end
	cancelIn   int  // the peer resets the stream after so many turns; 0: never
}

// owed is a DATA frame, for one window.
type owed struct {
	id uint32 // 0: the connection
	n  int
}

func newHonest(t testing.TB, role Role, seed uint64) *honest {
	h := &honest{Rand: rand.New(rand.NewPCG(seed, uint64(role))), t: t, x: newSide(Config{Role: role}), peer: http2test.NewPeer(),
		next: 1, sendWindow: initialWindow}
	h.x.opened = func(s *Stream) { h.handles = append(h.handles, s) }
	h.small, h.useless, h.window, h.longest = h.IntN(100), h.IntN(50), 1<<h.IntN(21), 1<<(2+h.IntN(15))
	settings := []xhttp2.Setting{{ID: settingWindow, Val: uint32(h.window)}}
	if role == Server {
		h.peer.Greet(settings...)
	} else {
		h.peer.Framer.WriteSettings(settings...)
	}
	return h
}

// size returns the size of a piece, at least 1.
func (h *honest) size() int {
	if h.IntN(100) < h.small {
		return 1 + h.IntN(10)
	}
	return 1 + h.IntN(h.longest)
}

func (h *honest) run(turns int) {
	for range turns {
		h.x.now = h.x.now.Add(time.Duration(h.IntN(2000)/1999*h.IntN(10)) * time.Second / 10)
		for range h.IntN(8) {
			h.peerActs()
		}
		h.deliver()
		for range h.IntN(8) {
			h.driverActs()
		}
		h.wire = append(h.wire, h.x.core.Take().Bytes()...)
		h.x.log = nil
		h.read()
	}
}

// deliver gives the core what the peer has sent.
func (h *honest) deliver() {
	b := h.peer.Bytes()
	if err := h.x.receive(b, h.IntN(2)*(1+h.IntN(100))); err != nil {
		h.t.Fatalf("after %d frames and %d streams: %v; windows of %d, pieces of up to %d", h.frames, h.opened, err, h.window, h.longest)
	}
	h.peer.Reset()
}

// read makes the peer read some of the output. Sometimes it waits, and then reads very much.
func (h *honest) read() {
	if h.IntN(20) > 0 && len(h.wire) < 1<<20 {
		return
	}
	h.wire = []byte(strings.TrimPrefix(string(h.wire), Preface))
	for len(h.wire) > 0 {
		f := parseFrame(h.wire)
		h.got(f, h.wire[frameHeaderSize:frameHeaderSize+f.length])
		h.wire = h.wire[frameHeaderSize+f.length:]
	}
}

func (h *honest) find(id uint32) *honestStream {
	for _, s := range h.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}

// over forgets a stream that is over, for the peer.
func (h *honest) over(s *honestStream) {
	h.streams = slices.DeleteFunc(h.streams, func(o *honestStream) bool { return o == s })
}

func (h *honest) got(f frame, p []byte) {
	s := h.find(f.id)
	switch f.kind {
	case frameSettings:
		if !f.has(flagAck) {
			h.peer.Raw(frameSettings, flagAck, 0, "")
		}
	case framePing:
		if !f.has(flagAck) {
			h.peer.Raw(framePing, flagAck, 0, string(p))
		}
	case frameWindowUpdate:
		if n := int64(binary.BigEndian.Uint32(p)); f.id == 0 {
			h.sendWindow += n
		} else if s != nil {
			s.sendWindow += n
		}
	case frameReset:
		if s != nil {
			h.over(s)
		}
	case frameHeaders:
		if s == nil && h.x.core.config.Role == Client {
			s = h.open(f.id)
		}
	case frameData:
		if f.length > 0 {
			h.owed = append(h.owed, owed{0, f.length})
			if s != nil && !f.has(flagEndStream) {
				h.owed = append(h.owed, owed{f.id, f.length})
			}
			h.annoy()
		}
	}
	if s != nil && f.has(flagEndStream) && (f.kind == frameHeaders || f.kind == frameData) {
		s.got = true
		h.endIfOver(s)
	}
}

func (h *honest) endIfOver(s *honestStream) {
	if s.sent && s.got {
		h.over(s)
	}
}

func (h *honest) open(id uint32) *honestStream {
	s := &honestStream{id: id, sendWindow: initialWindow, toSend: h.IntN(2) * h.IntN(3*h.longest)}
	if h.IntN(4) == 0 {
		s.cancelIn = 1 + h.IntN(20)
	}
	h.streams = append(h.streams, s)
	h.opened++
	return s
}

// annoy follows a useful frame with one that is useless for weir.
func (h *honest) annoy() {
	if h.IntN(100) >= h.useless {
		return
	}
	switch id := uint32(1 + 2*h.IntN(100)); h.IntN(5) {
	case 0:
		h.peer.Raw(framePing, 0, 0, "12345678")
	case 1:
		h.peer.Raw(framePriority, 0, id, string(binary.BigEndian.AppendUint32(nil, id+2))+"x")
	case 2:
		h.peer.Raw(0x10, 0, 0, "\x00\x00\x00\x01u=1") // PRIORITY_UPDATE
	case 3:
		h.window = 1 << h.IntN(21)
		h.peer.Framer.WriteSettings(xhttp2.Setting{ID: settingWindow, Val: uint32(h.window)})
	case 4:
		for _, s := range h.streams {
			if s.head && !s.sent {
				h.peer.Data(s.id, false, "")
				return
			}
		}
	}
	h.frames++
}

func (h *honest) peerActs() {
	h.frames++
	switch k := h.IntN(8); {
	case k < 5 && len(h.owed) > 0:
		for range 1 + h.IntN(min(len(h.owed), 3000)) {
			h.giveBack()
		}
	case k == 5 && h.x.core.config.Role == Server && len(h.streams) < 128:
		s := h.open(h.next)
		h.next += 2
		h.sendHead(s, ":method: POST", ":scheme: https", ":path: /"+strings.Repeat("x", h.IntN(100)), ":authority: a")
		if h.IntN(2) == 0 {
			h.peer.Framer.WriteWindowUpdate(s.id, uint32(1+h.IntN(1<<20)))
		}
	case len(h.streams) > 0:
		s := h.streams[h.IntN(len(h.streams))]
		h.continues(s)
		if s.cancelIn > 0 {
			if s.cancelIn--; s.cancelIn == 0 {
				h.peer.Framer.WriteRSTStream(s.id, xhttp2.ErrCodeCancel)
				h.over(s)
			}
		}
	}
}

// giveBack returns a window for one DATA frame that the peer has received.
func (h *honest) giveBack() {
	o := h.owed[0]
	h.owed = h.owed[1:]
	if o.id == 0 || h.find(o.id) != nil {
		h.frames++
		h.peer.Framer.WriteWindowUpdate(o.id, uint32(o.n))
	}
}

// sendHead sends a head, in pieces of any size.
func (h *honest) sendHead(s *honestStream, lines ...string) {
	s.head, s.sent = true, s.toSend == 0 && h.IntN(2) == 0
	block, flags := string(h.peer.Fields(lines...)), uint8(0)
	if s.sent {
		flags = flagEndStream
	}
	kind, size := frameHeaders, len(block)
	if h.IntN(3) == 0 {
		size = h.size()
	}
	for len(block) > size {
		h.peer.Raw(kind, flags, s.id, block[:size])
		block, kind, flags = block[size:], frameContinuation, 0
	}
	h.peer.Raw(kind, flags|flagEndHeaders, s.id, block)
	h.annoy()
	h.endIfOver(s)
}

// continues sends more of what the peer has to send on a stream.
func (h *honest) continues(s *honestStream) {
	switch {
	case !s.head:
		h.sendHead(s, ":status: 200", "x-text: "+strings.Repeat("x", h.IntN(100)))
		return
	case s.sent:
		return
	case s.toSend == 0:
		if s.sent = true; h.IntN(2) == 0 {
			h.peer.Head(s.id, true, "trailer: x")
		} else {
			h.peer.Data(s.id, true, "")
		}
		h.endIfOver(s)
		return
	}
	padding := h.IntN(2) * h.IntN(30) * h.IntN(2)
	for range h.size() { // often many small pieces
		n := min(h.size(), s.toSend, leastFrameSize-padding-1)
		if all := int64(n + padding + 1); all > s.sendWindow || all > h.sendWindow {
			return
		}
		s.toSend -= n
		flags, p, size := uint8(0), strings.Repeat("d", n), n
		if padding > 0 {
			flags, p, size = flagPadded, string([]byte{byte(padding)})+p+strings.Repeat("\x00", padding), n+1+padding
		}
		s.sendWindow, h.sendWindow = s.sendWindow-int64(size), h.sendWindow-int64(size)
		h.peer.Raw(frameData, flags, s.id, p)
		h.frames++
		if h.annoy(); s.toSend == 0 {
			return
		}
	}
}

func (h *honest) driverActs() {
	c := &h.x.core
	if c.config.Role == Client && h.IntN(4) == 0 && c.Capacity() > 0 && c.Working() < 100 {
		s, err := c.Open(http2test.NewRequest("POST", "/", "a"), false)
		if err != nil {
			h.t.Fatal(err)
		}
		h.x.of(s).toSend = nil
		h.handles = append(h.handles, s)
	}
	if len(h.handles) == 0 {
		if c.Working() == 0 {
			c.Trim()
		}
		return
	}
	i := h.IntN(len(h.handles))
	s := h.handles[i]
	t := h.x.of(s)
	switch k := h.IntN(40); {
	case s.Closed(), k == 0 && c.config.Role == Client, k < 8 && s.Sent(): // weir has answered, and does not want the rest of the request
		delete(h.x.streams, s)
		c.Release(s)
		h.handles = slices.Delete(h.handles, i, i+1)
	case c.config.Role == Server && !s.sendHead:
		if c.Respond(s, http2test.NewResponse(200), h.IntN(10) == 0) != nil {
			h.t.Fatal("no response")
		}
	case !t.finish && len(t.toSend) == 0:
		for range h.size() { // often many small pieces
			if h.x.send(s, make([]byte, h.size()), h.IntN(5) == 0); t.finish || len(t.toSend) > 0 {
				return
			}
		}
	}
}

// No budget ends a connection whose peer follows the protocol.
func TestHonestPeersReachNoLimit(t *testing.T) {
	for _, role := range []Role{Server, Client} {
		for seed := range uint64(40) {
			t.Run(fmt.Sprint(role, seed), func(t *testing.T) { newHonest(t, role, seed).run(2000) })
		}
	}
}

func FuzzHonestPeers(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed%2 == 0, seed)
	}
	f.Fuzz(func(t *testing.T, client bool, seed uint64) {
		role := Server
		if client {
			role = Client
		}
		newHonest(t, role, seed).run(2000)
	})
}
