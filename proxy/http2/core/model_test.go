package core

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// model implements the rules of RFC 9113, section 5.1, for the streams of a connection,
// and of section 6.9 for its windows, from the side of weir. It shares nothing with the
// core. The test reports to it what the peer sends and what the driver does. The model
// returns the events and frames that must follow, and reads every outgoing frame as a
// strict peer would.
type model struct {
	server  bool
	limit   int // streams that the peer may have at once
	streams map[uint32]*modelled
	highest uint32 // highest stream that the peer has opened
	next    uint32 // the next stream that we open
	working int    // streams that the driver has not released
	most    uint32 // streams that the peer allows
	left    bool   // our final GOAWAY was sent
	gone    bool   // the peer's GOAWAY has arrived

	initial    int64 // the window of a new stream, set by the peer
	send, recv int64 // the connection's windows
	over       bool  // a connection error

	events, frames []string // events and frames that must have come
	wrong          []string // errors that a strict peer would find in our output
}

// modelled is one stream. A stream that is missing from the model is idle, or was
// skipped.
type modelled struct {
	head      bool // the peer's (final) head has come
	peerDone  bool
	sentHead  bool
	weDone    bool
	closed    bool
	resetByUs bool
	isGone    bool // released
	send      int64
	recv      int64
}

func newModel(c *Connection) *model {
	return &model{server: c.config.Role == Server, limit: c.config.Streams, streams: map[uint32]*modelled{}, next: 1,
		most: 100, initial: initialWindow, send: initialWindow, recv: initialWindow}
}

func (m *model) event(format string, args ...any) {
	m.events = append(m.events, fmt.Sprintf(format, args...))
}

// fails: the connection ends with a GOAWAY.
func (m *model) fails(code Code) {
	m.over = true
	m.frames = append(m.frames, fmt.Sprintf("GOAWAY %d %s", m.highest, code))
}

// refuses: the stream never exists.
func (m *model) refuses(id uint32, code Code) {
	m.frames = append(m.frames, fmt.Sprintf("RST_STREAM %d %s", id, code))
	if s := m.streams[id]; s != nil {
		s.resetByUs = true
	} else {
		m.streams[id] = &modelled{closed: true, resetByUs: true, isGone: true}
	}
}

// resets: the stream ends because of an error of the peer.
func (m *model) resets(id uint32, code Code) {
	m.refuses(id, code)
	m.event("%d: reset %s", id, code)
	m.streams[id].closed = true
}

func (m *model) idle(id uint32) bool {
	if (id%2 == 1) == m.server { // a number for the peer's streams
		return id > m.highest
	}
	return m.server || id >= m.next
}

func (m *model) open() (n int) {
	for _, s := range m.streams {
		if !s.closed {
			n++
		}
	}
	return n
}

// ends: the peer has sent everything.
func (m *model) ends(id uint32) {
	s := m.streams[id]
	s.peerDone = true
	s.closed = s.closed || s.weDone
	m.event("%d: end", id)
}

// headKinds are the kinds of heads that the script sends.
type headKinds uint8

const (
	properHead headKinds = iota
	malformedHead
	infoHead // 103; to a server, trailers
)

// headers is HEADERS from the peer.
func (m *model) headers(id uint32, kind headKinds, end bool) {
	s := m.streams[id]
	switch {
	case s == nil || s.closed:
		m.headersOnNoStream(id, s, kind, end)
	case s.peerDone:
		m.resets(id, StreamClosed)
	case s.head: // trailers
		if kind != infoHead || !end {
			m.resets(id, ProtocolError)
		} else {
			m.ends(id)
		}
	case kind == malformedHead, kind == infoHead && end:
		m.resets(id, ProtocolError)
	case kind == infoHead:
		m.event("%d: head", id)
	default:
		m.begins(id, end)
	}
}

func (m *model) begins(id uint32, end bool) {
	m.streams[id].head = true
	m.event("%d: head", id)
	if end {
		m.ends(id)
	}
}

func (m *model) headersOnNoStream(id uint32, s *modelled, kind headKinds, end bool) {
	switch {
	case !m.server && m.idle(id), m.server && id%2 == 0:
		m.fails(ProtocolError)
	case !m.server: // a response to a call that was reset
	case id <= m.highest:
		if s == nil || !s.resetByUs {
			m.fails(StreamClosed)
		}
	default:
		m.opens(id, kind, end)
	}
}

func (m *model) opens(id uint32, kind headKinds, end bool) {
	m.highest = id
	switch {
	case m.left: // the peer knows that the connection goes away: no answer
		m.streams[id] = &modelled{closed: true, resetByUs: true, isGone: true}
		return
	case m.open() >= m.limit || m.working >= 2*m.limit:
		m.refuses(id, RefusedStream)
		return
	}
	m.working++
	m.streams[id] = &modelled{send: m.initial, recv: initialWindow}
	if kind != properHead {
		m.resets(id, ProtocolError)
		return
	}
	m.begins(id, end)
}

// data is DATA from the peer: n bytes, including padding.
func (m *model) data(id uint32, n int, end bool) {
	if id == 0 || m.idle(id) {
		m.fails(ProtocolError)
		return
	}
	if m.recv -= int64(n); m.recv < 0 {
		m.fails(FlowControlError)
		return
	}
	s := m.streams[id]
	switch {
	case s != nil && s.closed && s.resetByUs:
	case s == nil || s.closed:
		m.refuses(id, StreamClosed)
	case s.peerDone:
		m.resets(id, StreamClosed)
	case !s.head:
		m.resets(id, ProtocolError)
	default:
		if s.recv -= int64(n); s.recv < 0 {
			m.resets(id, FlowControlError)
			return
		}
		if n > 0 {
			m.event("%d: data %d", id, n)
		}
		if end {
			m.ends(id)
		}
	}
}

// reset is RST_STREAM from the peer.
func (m *model) reset(id uint32, code Code) {
	if id == 0 || m.idle(id) {
		m.fails(ProtocolError)
	} else if s := m.streams[id]; s != nil && !s.closed {
		s.closed = true
		m.event("%d: reset by peer %s", id, code)
	}
}

// window is WINDOW_UPDATE from the peer.
func (m *model) window(id uint32, n int64) {
	if id == 0 {
		switch m.send += n; {
		case n == 0:
			m.fails(ProtocolError)
		case m.send > mostWindow:
			m.fails(FlowControlError)
		}
		return
	}
	s := m.streams[id]
	switch {
	case m.idle(id):
		m.fails(ProtocolError)
	case s == nil || s.closed:
	case n == 0:
		m.resets(id, ProtocolError)
	default:
		if s.send += n; s.send > mostWindow {
			m.resets(id, FlowControlError)
		}
	}
}

// settings is SETTINGS_INITIAL_WINDOW_SIZE from the peer.
func (m *model) settings(window int64) {
	change := window - m.initial
	m.initial = window
	for _, id := range slices.Sorted(maps.Keys(m.streams)) {
		if s := m.streams[id]; !s.closed {
			if s.send += change; s.send > mostWindow {
				m.fails(FlowControlError)
				return
			}
		}
	}
}

// goAway is GOAWAY from the peer. A server does nothing about it.
func (m *model) goAway(last uint32) {
	m.gone = true
	if m.server {
		return
	}
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(m.streams))) {
		if s := m.streams[id]; id > last && !s.closed {
			s.closed = true
			m.event("%d: reset by peer %s", id, RefusedStream)
		}
	}
}

// released is the effect of the driver's Release on a stream that is not over.
func (m *model) released(id uint32) {
	s := m.streams[id]
	if !s.closed {
		code := Cancel
		if m.server && s.weDone || !m.server && s.peerDone { // the response is complete
			code = NoError
		} else if m.server {
			code = InternalError
		}
		m.refuses(id, code)
		s.closed = true
	}
	s.isGone = true
	m.working--
}

// judge reads a frame of ours as a strict peer would, and records its meaning.
func (m *model) judge(f frame, p []byte) {
	bad := func(why string) {
		m.wrong = append(m.wrong, fmt.Sprintf("frame %d on stream %d: %s", f.kind, f.id, why))
	}
	s := m.streams[f.id]
	switch f.kind {
	case frameHeaders:
		final := p[0] != 0x08 || !bytes.HasPrefix(p[1:], []byte("\x03103"))
		switch {
		case s == nil || s.closed || s.weDone:
			bad("the stream takes nothing")
		case s.sentHead && !f.has(flagEndStream):
			bad("a second head that does not end the stream")
		case !f.has(flagEndHeaders):
			bad("is longer than anything that was sent")
		}
		if s != nil {
			s.sentHead = s.sentHead || final
		}
	case frameData:
		switch {
		case s == nil || s.closed || s.weDone || !s.sentHead:
			bad("the stream takes no data")
		case int64(f.length) > s.send || int64(f.length) > m.send:
			bad("more than a window allows")
		case f.length > leastFrameSize:
			bad("too large")
		}
		if s != nil {
			s.send -= int64(f.length)
		}
		m.send -= int64(f.length)
	case frameWindowUpdate:
		n := int64(binary.BigEndian.Uint32(p))
		switch {
		case n == 0:
			bad("by nothing")
		case f.id == 0:
			if m.recv += n; m.recv > mostWindow {
				bad("overflow")
			}
		case s == nil || s.closed || s.peerDone:
			bad("nobody sends anything there")
		default:
			if s.recv += n; s.recv > mostWindow {
				bad("overflow")
			}
		}
	}
	if (f.kind == frameHeaders || f.kind == frameData) && f.has(flagEndStream) && s != nil {
		s.weDone = true
		s.closed = s.closed || s.peerDone
	}
}
