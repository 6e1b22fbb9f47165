package core

import (
	"encoding/binary"
	"time"
)

// settings handles SETTINGS (RFC 9113, section 6.5).
func (c *Connection) settings(f frame, p []byte) {
	switch {
	case f.id != 0:
		c.fail(ProtocolError, "bad_settings", "a SETTINGS frame came on a stream")
	case f.has(flagAck) && f.length != 0, f.length%6 != 0:
		c.fail(FrameSizeError, "bad_settings", "a SETTINGS frame has an invalid length")
	case !c.spend(forSettings):
	case f.has(flagAck):
		if c.acks > 0 {
			c.acks--
			c.events.SettingsAcked()
		}
	default:
		c.greeted = true
		c.applySettings(p)
	}
}

func (c *Connection) applySettings(p []byte) {
	window := c.peer.window
	for ; len(p) > 0; p = p[6:] {
		value := binary.BigEndian.Uint32(p[2:])
		switch binary.BigEndian.Uint16(p) {
		case settingTableSize:
			// A peer that lowers it must learn that we comply (RFC 7541, section 4.2). We
			// use no table anyway, and say so once.
			c.tableReset = c.tableReset || value < 4096
		case settingPush:
			if value > 1 || value == 1 && c.config.Role == Client {
				c.fail(ProtocolError, "bad_settings", "SETTINGS_ENABLE_PUSH has an invalid value")
			}
		case settingStreams:
			c.peer.streams = value
		case settingWindow:
			if window = value; value > mostWindow {
				c.fail(FlowControlError, "bad_settings", "SETTINGS_INITIAL_WINDOW_SIZE is too large")
			}
		case settingFrameSize:
			if c.peer.frameSize = value; value < leastFrameSize || value > mostFrameSize {
				c.fail(ProtocolError, "bad_settings", "SETTINGS_MAX_FRAME_SIZE has an invalid value")
			}
		case settingHeadSize:
			c.peer.headSize = value
		case settingConnectProtocol:
			if value > 1 || value == 0 && c.peer.connect {
				c.fail(ProtocolError, "bad_settings", "SETTINGS_ENABLE_CONNECT_PROTOCOL has an invalid value")
			}
			c.peer.connect = value == 1
		}
		if c.err != nil {
			return
		}
	}
	if !c.changeWindows(window) {
		return
	}
	c.appendControl(0, frameSettings, flagAck, 0) // before the data that the new settings allow
	for _, s := range c.table.streams {
		c.unblock(s)
	}
	c.wake()
	c.events.Settings()
}

// changeWindows applies another initial window to all streams (RFC 9113, section 6.9.2).
func (c *Connection) changeWindows(window uint32) bool {
	change := int64(window) - int64(c.peer.window)
	c.peer.window = window
	for _, s := range c.table.streams {
		if s.sendWindow += change; s.sendWindow > mostWindow {
			c.fail(FlowControlError, "window_overflow", "SETTINGS_INITIAL_WINDOW_SIZE makes a stream's window overflow")
			return false
		}
	}
	return true
}

// ping handles PING (RFC 9113, section 6.7).
func (c *Connection) ping(f frame, p []byte) {
	switch {
	case f.id != 0:
		c.fail(ProtocolError, "bad_ping", "a PING frame came on a stream")
	case f.length != 8:
		c.fail(FrameSizeError, "bad_ping", "a PING frame does not have 8 bytes")
	case f.has(flagAck):
		c.pingAcked(string(p))
	case c.spend(forPings):
		c.pingedAt = c.now
		c.appendControl(8, framePing, flagAck, 0)
		c.out = append(c.out, p...)
	}
}

// The payloads of our PINGs, one for each purpose.
const (
	pingAlive  = "weirlive" // sent by Ping, for the driver
	pingPath   = "weirpath" // measures how much fits into the path
	pingGoAway = "weirexit" // checks that the peer knows our GOAWAY
)

func (c *Connection) pingAcked(payload string) {
	switch {
	case payload == pingAlive && c.pinging:
		c.pinging = false
		c.events.PingAcked()
	case payload == pingPath && c.path.probing:
		c.measured()
	case payload == pingGoAway && c.goingAway == goAwaySent:
		c.GoAwayNow()
	default:
		c.spend(forPings)
	}
}

// PingedAt returns when the peer last sent a PING of its own; zero: never.
func (c *Connection) PingedAt() time.Time { return c.pingedAt }

// Ping sends a PING to learn whether the peer is alive. PingAcked follows when the peer
// answers. While a Ping is not answered, another one does nothing.
func (c *Connection) Ping() {
	if !c.pinging {
		c.pinging = true
		c.appendPing(pingAlive)
	}
}

// ForgetPing makes the next Ping ask again, although the last one was not answered. A
// driver calls it if other frames have shown that the peer is alive.
func (c *Connection) ForgetPing() { c.pinging = false }

func (c *Connection) appendPing(payload string) {
	c.appendControl(8, framePing, 0, 0)
	c.out = append(c.out, payload...)
}

// priority handles PRIORITY, which we ignore (RFC 9113, section 5.3.2).
func (c *Connection) priority(f frame, p []byte) {
	switch {
	case f.id == 0:
		c.fail(ProtocolError, "bad_priority", "a PRIORITY frame came on stream 0")
	case f.length != 5:
		c.fail(FrameSizeError, "bad_priority", "a PRIORITY frame does not have 5 bytes")
	case binary.BigEndian.Uint32(p)&mostStreamID == f.id:
		c.fail(ProtocolError, "bad_priority", "a stream depends on itself")
	default:
		c.spend(forIgnored)
	}
}

// idle reports whether a stream was never opened.
func (c *Connection) idle(id uint32) bool {
	if c.own(id) {
		return id >= c.nextOwn
	}
	return id > c.lastPeer
}

// own reports whether weir, not the peer, opens streams with this number.
func (c *Connection) own(id uint32) bool { return (id%2 == 1) == (c.config.Role == Client) }

// resetByPeer handles RST_STREAM (RFC 9113, section 6.4).
func (c *Connection) resetByPeer(f frame, p []byte) {
	switch {
	case f.id == 0 || c.idle(f.id):
		c.fail(ProtocolError, "bad_reset", "an RST_STREAM frame came for a stream that was never opened")
		return
	case f.length != 4:
		c.fail(FrameSizeError, "bad_reset", "an RST_STREAM frame does not have 4 bytes")
		return
	}
	s := c.table.find(f.id)
	if s == nil {
		c.ignore(f.length)
		return
	}
	rapid := c.config.Role == Server && !s.sendHead && c.now.Sub(s.opened) < soon
	if rapid && !c.spend(forResets) {
		return
	}
	code := Code(binary.BigEndian.Uint32(p))
	c.close(s)
	c.events.Reset(s, Ending{Code: code, ByPeer: true, Unprocessed: code == RefusedStream, Reason: "reset_by_peer",
		Detail: "the peer reset the stream: " + code.String()})
}

// windowUpdate handles WINDOW_UPDATE (RFC 9113, section 6.9).
func (c *Connection) windowUpdate(f frame, p []byte) {
	if f.length != 4 {
		c.fail(FrameSizeError, "bad_window", "a WINDOW_UPDATE frame does not have 4 bytes")
		return
	}
	if !c.spend(forWindows) {
		return
	}
	n := int64(binary.BigEndian.Uint32(p) & mostWindow)
	if f.id == 0 {
		c.enlargeConnection(n)
		return
	}
	if c.idle(f.id) {
		c.fail(ProtocolError, "bad_window", "a WINDOW_UPDATE frame came for a stream that was never opened")
		return
	}
	s := c.table.find(f.id)
	if s == nil {
		return // the stream is over, and the peer did not know that
	}
	s.taken = true
	switch s.sendWindow += n; {
	case n == 0:
		c.provoked(s, ProtocolError, "bad_window", "a WINDOW_UPDATE frame has an increment of 0")
	case s.sendWindow > mostWindow:
		c.provoked(s, FlowControlError, "window_overflow", "a WINDOW_UPDATE frame makes the stream's window overflow")
	default:
		c.unblock(s)
		c.wake()
	}
}

func (c *Connection) enlargeConnection(n int64) {
	switch c.sendWindow += n; {
	case n == 0:
		c.fail(ProtocolError, "bad_window", "a WINDOW_UPDATE frame has an increment of 0")
	case c.sendWindow > mostWindow:
		c.fail(FlowControlError, "window_overflow", "a WINDOW_UPDATE frame makes the connection's window overflow")
	default:
		c.wake()
	}
}

// goAway handles GOAWAY (RFC 9113, section 6.8).
func (c *Connection) goAway(f frame, p []byte) {
	switch {
	case f.id != 0:
		c.fail(ProtocolError, "bad_goaway", "a GOAWAY frame came on a stream")
		return
	case f.length < 8:
		c.fail(FrameSizeError, "bad_goaway", "a GOAWAY frame is too short")
		return
	case !c.spend(forSettings):
		return
	}
	last, code := binary.BigEndian.Uint32(p)&mostStreamID, Code(binary.BigEndian.Uint32(p[4:]))
	if c.peerGone && last > c.peerLast {
		last = c.peerLast // the number may only decrease
	}
	c.peerGone, c.peerLast = true, last
	c.events.GoAway(code, last)
	for i := len(c.table.streams) - 1; i >= 0; i-- {
		// Handlers may close streams, too.
		if i >= len(c.table.streams) {
			continue
		}
		if s := c.table.streams[i]; c.own(s.id) && s.id > last {
			c.close(s)
			c.events.Reset(s, Ending{Code: RefusedStream, ByPeer: true, Unprocessed: true, Reason: "goaway",
				Detail: "the peer sent GOAWAY and did not process the stream"})
		}
	}
}

// provoked resets a stream because of an error of the peer. An endpoint has no budget for
// that: it cannot provoke more resets than it gets requests, and bad answers to one
// client must not end the connection for other clients.
func (c *Connection) provoked(s *Stream, code Code, reason, detail string) {
	if c.config.Role == Server && !c.spend(forProvoked) || s.closed {
		return
	}
	c.appendReset(s.id, code)
	c.excuse(s)
	c.close(s)
	c.events.Reset(s, Ending{Code: code, Reason: reason, Detail: detail})
}
