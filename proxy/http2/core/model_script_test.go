package core

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/proxy/http2/http2test"
)

// modelling runs a script against a core and against the model.
type modelling struct {
	*script
	t       testing.TB
	x       *side
	m       *model
	events  int // number of events of x.log that were compared
	read    int // bytes of the core's output that were read
	late    int // bytes of core.late that were read
	seen    int // number of the model's frames that have come
	handles []*Stream
	history []string
}

func (r *modelling) fail(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\nafter\n%s", fmt.Sprintf(format, args...), strings.Join(r.history, "\n"))
}

// rarely is for actions that end the connection, so that most scripts run longer.
func (r *modelling) rarely() bool { return r.byte() < 2 }

// someID returns an existing or former stream, rarely one that never existed; 0: none.
func (r *modelling) someID() uint32 {
	b := r.byte()
	switch ids := slices.Sorted(maps.Keys(r.m.streams)); {
	case r.rarely():
		return uint32(b % 64)
	case b < 200 && len(r.handles) > 0:
		return r.handles[int(b)%len(r.handles)].ID()
	case len(ids) > 0:
		return ids[int(b)%len(ids)]
	}
	return 0
}

// headID returns a stream on which a head may come.
func (r *modelling) headID() uint32 {
	id := r.someID()
	if s := r.m.streams[id]; r.m.server && !r.rarely() && (s == nil || r.byte() < 160 || s.closed && !s.resetByUs) {
		return r.m.highest + 1 + r.m.highest%2 + uint32(r.byte()%8)/7*2
	}
	return id
}

// peerSends sends one frame, and reports it to the model.
func (r *modelling) peerSends() {
	p, m := r.peer, r.m
	switch k := r.byte() % 16; {
	case k < 5:
		id, kind, end := r.headID(), properHead, r.byte()%2 == 0
		if id == 0 {
			return
		}
		if s := m.streams[id]; s != nil && s.head {
			kind = infoHead // trailers
		}
		if k == 0 {
			kind = headKinds(r.byte() % 3)
		}
		r.note("HEADERS %d %d %v", id, kind, end)
		r.head(id, kind, end)
		m.headers(id, kind, end)
	case k < 9:
		id, n, end := r.someID(), int(r.byte())*int(r.byte())%leastFrameSize, r.byte()%4 == 0
		if id == 0 && !r.rarely() {
			return
		}
		r.note("DATA %d %d %v", id, n, end)
		p.Data(id, end, strings.Repeat("d", n))
		m.data(id, n, end)
	case k == 9:
		id, code := r.someID(), Code(r.byte()%14)
		if id == 0 && !r.rarely() {
			return
		}
		r.note("RST_STREAM %d %s", id, code)
		p.Raw(frameReset, 0, id, string(binary.BigEndian.AppendUint32(nil, uint32(code))))
		m.reset(id, code)
	case k < 12:
		id, n := r.someID(), int64(r.byte())<<(r.byte()%25)&mostWindow
		if r.byte()%2 == 0 {
			id = 0
		}
		if n == 0 && (id == 0 || r.byte() > 8) || m.send+n > mostWindow && !r.rarely() {
			n = 1
		}
		r.note("WINDOW_UPDATE %d %d", id, n)
		p.Framer.WriteWindowUpdate(id, uint32(n))
		m.window(id, n)
	case k == 12:
		n := int64(r.byte()) << (r.byte() % 24)
		if n > 1<<20 && !r.rarely() {
			n >>= 10
		}
		r.note("SETTINGS window %d", n)
		p.Framer.WriteSettings(xhttp2.Setting{ID: settingWindow, Val: uint32(n)})
		m.settings(n)
	case k == 13:
		id := r.someID()
		if id == 0 && !r.rarely() {
			return
		}
		r.note("PRIORITY %d", id)
		p.Raw(framePriority, 0, id, string(binary.BigEndian.AppendUint32(nil, id+1))+"x")
		if id == 0 {
			m.fails(ProtocolError)
		}
	case k == 14:
		r.note("PING")
		p.Raw(framePing, 0, 0, "12345678").Raw(framePing, flagAck, 0, pingPath)
	case k == 15 && r.rarely():
		last := r.someID()
		r.note("GOAWAY %d", last)
		p.Raw(frameGoAway, 0, 0, string(binary.BigEndian.AppendUint32(nil, last))+"\x00\x00\x00\x00")
		m.goAway(last)
	}
}

// head writes a head of one kind, sometimes with CONTINUATION frames.
func (r *modelling) head(id uint32, kind headKinds, end bool) {
	lines := []string{":status: 200"}
	if r.m.server {
		lines = []string{":method: POST", ":scheme: https", ":path: /", ":authority: a"}
	}
	switch s := r.m.streams[id]; {
	case kind == malformedHead:
		lines = append(lines, "Upper: case")
	case kind == infoHead && (r.m.server || s != nil && s.head):
		lines = []string{"trailer: x"}
	case kind == infoHead:
		lines = []string{":status: 103"}
	}
	block, flags := string(r.peer.Fields(lines...)), uint8(0)
	if end {
		flags = flagEndStream
	}
	if cut := int(r.byte()); cut < len(block) {
		r.peer.Raw(frameHeaders, flags, id, block[:cut]).Raw(frameContinuation, flagEndHeaders, id, block[cut:])
	} else {
		r.peer.Raw(frameHeaders, flags|flagEndHeaders, id, block)
	}
}

func (r *modelling) note(format string, args ...any) {
	r.history = append(r.history, fmt.Sprintf(format, args...))
}

// driverActs does one action that a driver may do, and reports it to the model.
func (r *modelling) driverActs() {
	c := &r.x.core
	switch k := r.byte() % 12; {
	case k == 0 && !r.m.server:
		r.opens()
	case k == 1 && r.rarely():
		r.leaves()
	case k == 2:
		r.x.keep = !r.x.keep
	case len(r.handles) == 0:
	default:
		i := int(r.byte()) % len(r.handles)
		s := r.handles[i]
		switch {
		case k < 5 && r.m.server:
			status := [...]int{200, 200, 103, 204}[r.byte()%4]
			r.note("respond %d %d", s.ID(), status)
			c.Respond(s, http2test.NewResponse(status), status == 204)
		case k < 8:
			n, end := int(r.byte())*int(r.byte())*2, r.byte()%3 == 0
			r.note("write %d %d %v", s.ID(), n, end)
			if w := r.m.streams[s.ID()]; w.sentHead && !w.weDone && !r.x.of(s).finish {
				r.x.send(s, make([]byte, n), end)
			}
		case k == 8:
			if t := r.x.of(s); len(t.toSend) == 0 && !t.finish { // a driver must wait until everything is sent
				r.note("finish %d", s.ID())
				c.Finish(s, http2test.NewHead("t: u"))
			}
		case k == 9 && !s.Closed():
			r.note("reset %d", s.ID())
			r.m.refuses(s.ID(), Cancel)
			r.m.streams[s.ID()].closed = true
			c.Reset(s, Cancel)
		case k == 10:
			r.note("release %d", s.ID())
			r.m.released(s.ID())
			delete(r.x.streams, s)
			c.Release(s)
			r.handles = slices.Delete(r.handles, i, i+1)
		case k == 11:
			r.note("consume %d", s.ID())
			c.Consumed(s, int(s.Held()))
		}
	}
}

func (r *modelling) opens() {
	end := r.byte()%2 == 0
	m := r.m
	may := !m.gone && !m.left && m.open() < int(m.most)
	if may {
		m.streams[m.next] = &modelled{send: m.initial, recv: initialWindow}
	}
	s, err := r.x.core.Open(http2test.NewRequest("POST", "/", "a"), end)
	r.note("open %v: %v", end, err)
	if (err == nil) != may {
		r.fail("a stream can be opened: %v, and must: %v", err == nil, may)
	}
	if may {
		m.next += 2
		m.working++
		r.x.of(s).finish = end
		r.handles = append(r.handles, s)
	}
}

// leaves is for servers and clients. After it, a client opens no more streams.
func (r *modelling) leaves() {
	r.note("leave")
	if !r.m.left {
		r.m.left = true
		r.m.frames = append(r.m.frames, fmt.Sprintf("GOAWAY %d NO_ERROR", r.m.highest))
	}
	r.x.core.GoAwayNow()
}

// readOutput reads the new part of the output, before anything else happens.
func (r *modelling) readOutput() {
	out := slices.Concat(r.x.core.out[r.read:], r.x.core.late[r.late:])
	r.read, r.late = len(r.x.core.out), len(r.x.core.late)
	out = bytes.TrimPrefix(out, []byte(Preface))
	for len(out) > 0 {
		f := parseFrame(out)
		p := out[frameHeaderSize : frameHeaderSize+f.length]
		out = out[frameHeaderSize+f.length:]
		got := ""
		switch r.m.judge(f, p); f.kind {
		case frameReset:
			got = fmt.Sprintf("RST_STREAM %d %s", f.id, Code(binary.BigEndian.Uint32(p)))
		case frameGoAway:
			got = fmt.Sprintf("GOAWAY %d %s", binary.BigEndian.Uint32(p), Code(binary.BigEndian.Uint32(p[4:])))
		}
		if got == "" {
			continue
		}
		if r.seen >= len(r.m.frames) || r.m.frames[r.seen] != got {
			r.fail("%s went out, must: %q", got, r.m.frames[min(r.seen, len(r.m.frames)):])
		}
		r.seen++
	}
	if len(r.m.wrong) > 0 {
		r.fail("%q", r.m.wrong)
	}
}

// checkEvents compares the events with those that the model expects.
func (r *modelling) checkEvents() {
	var got []string
	for _, line := range r.x.log[r.events:] {
		if i := strings.Index(line, ": "); i > 0 {
			got = append(got, line)
		}
	}
	r.events = len(r.x.log)
	http2test.Equal(r.t, "events", strings.Join(got, "\n"), strings.Join(r.m.events, "\n"))
	r.m.events = nil
	if r.t.Failed() {
		r.fail("events differ")
	}
}

// checkLiveness: no stream waits without a reason.
func (r *modelling) checkLiveness() {
	c, m := &r.x.core, r.m
	for _, s := range r.handles {
		t, w := r.x.of(s), m.streams[s.ID()]
		if s.Closed() != w.closed {
			r.fail("stream %d is closed: %v, and must: %v", s.ID(), s.Closed(), w.closed)
		}
		if w.closed {
			continue
		}
		if len(t.toSend) > 0 && w.sentHead && w.send > 0 && m.send > 0 && c.Pending() < c.config.Output {
			r.fail("stream %d has %d bytes to send, and waits with windows of %d and %d", s.ID(), len(t.toSend), w.send, m.send)
		}
		if s.Held() == 0 && w.head && !w.peerDone && w.recv < initialWindow/2 {
			r.fail("stream %d gives back too little: the peer may send %d", s.ID(), w.recv)
		}
	}
	if m.recv < initialWindow/2 {
		r.fail("the connection gives back too little: the peer may send %d", m.recv)
	}
}

// FuzzModel runs scripts in both roles and compares every step with the model.
func FuzzModel(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(i%2 == 0, b)
	}
	f.Fuzz(func(t *testing.T, client bool, in []byte) { runModel(t, client, in) })
}

func TestModelAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 3000 {
		b := make([]byte, r.IntN(1200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		runModel(t, i%2 == 0, b)
	}
}

func runModel(t testing.TB, client bool, in []byte) {
	if len(in) > 2000 {
		return // the model has no budgets, which long scripts could overdraw
	}
	config := Config{Streams: 6, Output: 20000}
	if client {
		config.Role = Client
	}
	x := newSide(config)
	x.terse = true
	r := &modelling{script: &script{in: in, peer: http2test.NewPeer()}, t: t, x: x, m: newModel(&x.core)}
	x.opened = func(s *Stream) { r.handles = append(r.handles, s) }
	r.readOutput()
	if !client {
		r.peer.WriteString(Preface)
	}
	r.peer.Framer.WriteSettings()
	for first := true; len(r.in) > 0 && !r.m.over; first = false {
		if b := r.byte(); b < 160 || first {
			r.peerSends()
			x.receive(r.peer.Bytes(), 0)
			r.peer.Reset()
		} else if b < 240 {
			r.driverActs()
		} else {
			x.core.Take()
			r.read, r.late = r.late, 0
		}
		r.readOutput()
		if len(r.m.frames) != r.seen {
			r.fail("did not go out: %q", r.m.frames[r.seen:])
		}
		if e := x.core.Err(); e != nil && e.Code == EnhanceYourCalm {
			return // the model has no budgets
		}
		if (x.core.Err() != nil) != r.m.over {
			r.fail("the connection ended with %v, and must have ended: %v", x.core.Err(), r.m.over)
		}
		if r.m.over {
			return // other effects of the last frame do not matter
		}
		r.checkEvents()
		x.invariants(t)
		if x.core.Pending() < config.Output {
			r.checkLiveness()
		}
	}
}

// A request that arrives after our GOAWAY is ignored to its end, with its trailers. The
// streams before it continue.
func TestTrailersOfARequestThatCameTooLate(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Post(1).Bytes(), 0)
	x.core.GoAwayNow()
	if err := x.receive(http2test.NewPeer().Post(3).Data(3, false, "x").Head(3, true, "t: u").Data(1, true, "x").Bytes(), 0); err != nil {
		t.Error(err)
	}
	http2test.Equal(t, "output", frames(t, x.core.Take().Bytes(), false), []string{"GOAWAY 1 NO_ERROR "})
}

// weir refuses many uploads at once. The data that the client has sent before it knows
// that is not an error of the client.
func TestManyUploadsRefusedAtOnce(t *testing.T) {
	x := newSide(Config{})
	p := http2test.Greeted()
	for i := range 128 {
		p.Post(uint32(1 + 2*i))
	}
	x.receive(p.Bytes(), 0)
	for _, s := range slices.Clone(x.core.table.streams) {
		x.core.Respond(s, http2test.NewResponse(413), true)
		x.core.Release(s)
	}
	p = http2test.NewPeer()
	for i := range 128 {
		p.Data(uint32(1+2*i), false, "hello").Data(uint32(1+2*i), false, "hello").Head(uint32(1+2*i), true, "t: u")
	}
	x.core.Take()
	x.core.Take().Bytes() // the resets
	if err := x.receive(p.Bytes(), 0); err != nil {
		t.Error(err)
	}
	http2test.Equal(t, "output", frames(t, x.core.Take().Bytes(), false), []string{})
	x.core.Trim()
	if r := &x.core.recent; cap(r.ids) > 40 || !r.has(1) || !r.has(255) || !r.has(251) || r.has(257) {
		t.Errorf("an idle connection remembers %d streams: %v", len(r.ids), r.ids)
	}
	// A client that was suspended sends the rest only now.
	p = http2test.NewPeer()
	for i := range 128 {
		p.Data(uint32(1+2*i), false, "hello").Head(uint32(1+2*i), true, "t: u")
	}
	if err := x.receive(p.Bytes(), 0); err != nil || len(x.refused) > 0 {
		t.Error(err, x.refused)
	}
}

// A peer that receives many small messages measures the path with many PINGs, as gRPC
// does.
func TestPingsBetweenSmallMessages(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Get(1).Bytes(), 0)
	s := x.only(t)
	x.core.Respond(s, http2test.NewResponse(200), false)
	for range 3000 { // together less than the windows
		x.send(s, []byte("twenty bytes of gRPC"), false)
		if err := x.receive(http2test.NewPeer().Raw(framePing, 0, 0, "12345678").Bytes(), 0); err != nil {
			t.Fatal(err)
		}
		x.core.Take()
	}
}
