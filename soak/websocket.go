package soak

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Frames of WebSockets (RFC 6455, section 5).
const (
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10

	final      = 0x80 // of the first byte
	reserved3  = 0x70
	masked     = 0x80 // of the second byte
	maxControl = 125  // bytes of a control frame's payload
)

// What a Close frame means while the tool expects nothing.
const (
	closeNormal  = 1000
	closeLeaving = 1001
	closeNoCode  = 1005
	closeRestart = 1012
	closeLater   = 1013
)

// webSocketSpeaker upgrades a connection, and sends pings, or messages that the target must
// send back.
type webSocketSpeaker struct {
	*link
	extra  []byte // bytes after the response to the upgrade
	number int    // number of the message
}

// A frame is the head of a WebSocket frame.
type frame struct {
	op     byte
	final  bool
	length uint64
}

// begin makes the upgrade.
func (s *webSocketSpeaker) begin() error {
	began := time.Now()
	var nonce [16]byte
	rand.Read(nonce[:])
	key := base64.StdEncoding.EncodeToString(nonce[:])
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: weir-soak\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n", s.run.Path, s.run.Host, key)
	for _, f := range s.run.Fields {
		fmt.Fprintf(&b, "%s\r\n", f)
	}
	b.WriteString("\r\n")
	err := s.send(Head, b.Bytes(), func(b []byte) error {
		_, err := s.link.Write(b)
		return err
	})
	if err != nil {
		return during("sending the request for an upgrade", err)
	}
	r := readers.Get().(*bufio.Reader)
	r.Reset(s.link)
	defer readers.Put(r)
	if err := s.upgraded(r, key); err != nil {
		return err
	}
	if n := r.Buffered(); n > 0 {
		s.extra = make([]byte, n)
		io.ReadFull(r, s.extra)
	}
	if s.untouched() {
		s.run.upgrade.add(time.Since(began))
	}
	return nil
}

// upgraded reads the response to the upgrade, and checks it.
func (s *webSocketSpeaker) upgraded(r *bufio.Reader, key string) error {
	response, err := readHead(r, &http.Request{Method: http.MethodGet})
	if err != nil {
		return during("waiting for the upgrade", err)
	}
	defer response.Body.Close()
	s.run.status(response.StatusCode)
	if response.StatusCode != http.StatusSwitchingProtocols {
		seen, _ := io.ReadAll(io.LimitReader(response.Body, 64))
		return problemf(UnexpectedStatus, "the upgrade was answered with %s: %.64q", response.Status, seen)
	}
	accept := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	h := response.Header
	switch {
	case !strings.EqualFold(h.Get("Upgrade"), "websocket") || !hasToken(h.Values("Connection"), "upgrade"):
		return problemf(Malformed, "the upgrade has Upgrade: %q and Connection: %q", h.Get("Upgrade"), h.Get("Connection"))
	case h.Get("Sec-WebSocket-Accept") != base64.StdEncoding.EncodeToString(accept[:]):
		return problemf(Malformed, "the upgrade has the wrong Sec-WebSocket-Accept %q", h.Get("Sec-WebSocket-Accept"))
	case h.Get("Sec-WebSocket-Extensions") != "":
		return problemf(Malformed, "the upgrade has the extension %q, which was not offered", h.Get("Sec-WebSocket-Extensions"))
	}
	return s.checkAddress(h.Get(s.run.AddressField), nil)
}

func hasToken(values []string, want string) bool {
	for _, v := range values {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(token), want) {
				return true
			}
		}
	}
	return false
}

// payload returns different bytes for each message, so that an answer to another message is
// noticed.
func (s *webSocketSpeaker) payload() []byte {
	s.number++
	b := fmt.Appendf(nil, "weir-soak %d %d ", s.link.number, s.number)
	size := s.run.Body
	if size == 0 {
		return b
	}
	if len(b) < size {
		b = append(b, s.run.body[len(b):]...)
	}
	return b[:size]
}

func (s *webSocketSpeaker) exchange() (last bool, err error) {
	sent, op, want := s.payload(), byte(opText), byte(opPong)
	if s.run.Message == MessagePing {
		op = opPing
	}
	if err := s.write(op, sent); err != nil {
		return true, during("sending a message", err)
	}
	if s.run.Message == MessagePing {
		err = s.answer(want, sent)
	} else {
		err = s.echo(sent)
	}
	return err != nil, during("waiting for the answer to a message", err)
}

// answer waits for the control frame that answers a ping.
func (s *webSocketSpeaker) answer(want byte, sent []byte) error {
	for {
		f, got, err := s.next()
		switch {
		case err != nil:
			return err
		case f.op != want:
			if err := s.skip(f); err != nil {
				return err
			}
		case bytes.Equal(got, sent):
			return nil
		case len(got) > 0: // an empty pong may arrive at any time
			return problemf(UnexpectedReply, "a ping with %q was answered with %.64q", sent, got)
		}
	}
}

// echo waits until the message comes back.
func (s *webSocketSpeaker) echo(sent []byte) error {
	rest := sent
	for {
		f, _, err := s.next()
		if err != nil {
			return err
		}
		if f.op >= opClose {
			continue
		}
		if f.length > uint64(len(rest)) {
			got := make([]byte, min(64, f.length))
			io.ReadFull(s, got)
			return problemf(UnexpectedReply, "a message of %d bytes was answered with another: %q…", len(sent), got)
		}
		got := make([]byte, f.length)
		if _, err := io.ReadFull(s, got); err != nil {
			return err
		}
		if !bytes.HasPrefix(rest, got) {
			return problemf(UnexpectedReply, "want the echo of %.64q, got %.64q", rest, got)
		}
		rest = rest[len(got):]
		if !f.final {
			continue
		}
		if len(rest) > 0 {
			return problemf(UnexpectedReply, "the echo of a message ended %d bytes too early", len(rest))
		}
		return nil
	}
}

// next reads the head of a frame. It reads control frames completely: it answers a ping,
// and returns an error for a Close.
func (s *webSocketSpeaker) next() (f frame, payload []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(s, head[:2]); err != nil {
		return f, nil, withoutClose(err)
	}
	f = frame{op: head[0] & 15, final: head[0]&final != 0, length: uint64(head[1] &^ masked)}
	switch {
	case head[0]&reserved3 != 0 || f.op > opPong || f.op > opBinary && f.op < opClose:
		return f, nil, problemf(Malformed, "a frame begins with %#02x", head[0])
	case head[1]&masked != 0:
		return f, nil, problemf(Malformed, "a frame is masked, and only clients may send masked frames")
	case f.op >= opClose && (!f.final || f.length > maxControl):
		return f, nil, problemf(Malformed, "a control frame is fragmented, or longer than %d bytes", maxControl)
	case f.length == 126:
		_, err = io.ReadFull(s, head[:2])
		f.length = uint64(binary.BigEndian.Uint16(head[:]))
	case f.length == 127:
		_, err = io.ReadFull(s, head[:8])
		f.length = binary.BigEndian.Uint64(head[:])
	}
	if err != nil || f.op < opClose {
		return f, nil, withoutClose(err)
	}
	payload = make([]byte, f.length)
	if _, err = io.ReadFull(s, payload); err != nil {
		return f, nil, withoutClose(err)
	}
	switch f.op {
	case opPing:
		return f, payload, s.write(opPong, payload)
	case opClose:
		return f, payload, s.closedBy(payload)
	}
	return f, payload, nil
}

// skip reads and ignores the payload of a frame.
func (s *webSocketSpeaker) skip(f frame) error {
	if f.op >= opClose {
		return nil
	}
	_, err := io.CopyN(io.Discard, s, int64(min(f.length, 1<<62)))
	return withoutClose(err)
}

// withoutClose returns the error of a connection that ended without a Close frame.
func withoutClose(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return problemf(Closed, "the connection ended without a Close frame")
	}
	return err
}

// A closeFrame is the error of a WebSocket that the target closed.
type closeFrame struct {
	code   int
	reason []byte
}

func (c *closeFrame) Error() string {
	return fmt.Sprintf("the target closed the WebSocket with %d %.64q", c.code, c.reason)
}

func (s *webSocketSpeaker) closedBy(payload []byte) error {
	c := &closeFrame{code: closeNoCode}
	if len(payload) >= 2 {
		c.code, c.reason = int(binary.BigEndian.Uint16(payload)), payload[2:]
	}
	s.write(opClose, payload)
	return c
}

// write sends a frame, masked as RFC 6455 requires.
func (s *webSocketSpeaker) write(op byte, payload []byte) error {
	var mask [4]byte
	rand.Read(mask[:])
	b := make([]byte, 0, 14+len(payload))
	b = append(b, final|op)
	switch n := len(payload); {
	case n <= maxControl:
		b = append(b, masked|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, masked|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, masked|127), uint64(n))
	}
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	_, err := s.link.Write(b)
	return err
}

// Read reads the bytes after the upgrade first, and then from the link.
func (s *webSocketSpeaker) Read(p []byte) (int, error) {
	if len(s.extra) > 0 {
		n := copy(p, s.extra)
		s.extra = s.extra[n:]
		return n, nil
	}
	return s.link.Read(p)
}

// idleUntil answers pings, and ignores messages.
func (s *webSocketSpeaker) idleUntil(t time.Time) error {
	for {
		if len(s.extra) == 0 {
			ready, err := s.await(t)
			if err != nil {
				return during("while idle", withoutClose(err))
			}
			if !ready {
				return nil
			}
		}
		f, _, err := s.next()
		if err == nil {
			err = s.skip(f)
		}
		var c *closeFrame
		if errors.As(err, &c) {
			switch c.code {
			case closeNormal, closeLeaving, closeNoCode, closeRestart, closeLater:
				return errIdleEnd
			}
		}
		if err != nil {
			return during("while idle", err)
		}
	}
}

// closeTime is how long the target may take to answer a Close frame.
const closeTime = time.Second

// closeWebSocket closes the WebSocket as RFC 6455 requires, and waits for the answer.
func (s *webSocketSpeaker) closeWebSocket() {
	s.lock.Lock()
	if s.run.phase.Load() != over {
		s.idle = false
		s.tcp.SetDeadline(time.Now().Add(closeTime))
	}
	s.lock.Unlock()
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], closeNormal)
	var mask [4]byte
	frame := append([]byte{final | opClose, masked | 2}, mask[:]...)
	if _, err := s.top.Write(append(frame, b[:]...)); err == nil {
		io.Copy(io.Discard, onlyReader{s.top})
	}
}
