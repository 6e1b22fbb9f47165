package soak

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// webSockets2 opens several WebSockets on one HTTP/2 connection (RFC 8441). It expects each message back, and
// makes pauses in which weir parks the connection. At the end it closes one WebSocket and resets another one,
// and the connection still works.
func webSockets2(ctx context.Context, n *node) error {
	nc, err := transport(n, "secure").DialContext(ctx, "", "")
	if err != nil {
		return err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(4 * patience))
	c := tls.Client(nc, &tls.Config{InsecureSkipVerify: true, ServerName: host, NextProtos: []string{"h2"}})
	h := &conn2{Framer: http2.NewFramer(c, bufio.NewReader(c)), came: map[uint32]*bytes.Buffer{}, dec: hpack.NewDecoder(4096, nil)}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	h.WriteSettings()
	streams := 0
	for ; streams < 4; streams++ {
		err := h.open(2*uint32(streams) + 1)
		if errors.Is(err, errLeft) {
			break
		}
		if err != nil {
			return fmt.Errorf("opening a WebSocket: %w", err)
		}
	}
	if streams == 0 {
		return nil // the next connection tries again
	}
	for i := 0; i < 8 && ctx.Err() == nil; i++ {
		if err := h.exchange(1 + i%streams); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		pause(ctx, nowAndThen())
	}
	h.WriteData(1, true, []byte("\x88\x80\x00\x00\x00\x00")) // a close frame whose mask is zero
	if streams > 1 {
		h.WriteRSTStream(3, http2.ErrCodeCancel)
	}
	if err := h.until(func() bool { return h.ended }); err != nil {
		return fmt.Errorf("closing a WebSocket: %w", err)
	}
	if streams < 3 {
		return nil // weir sent GOAWAY, and no stream is left
	}
	pause(ctx, nowAndThen())
	h.WritePing(false, [8]byte{1})
	return h.until(func() bool { return h.pinged })
}

// errLeft means that no stream can be opened because weir has sent GOAWAY. A client must
// not open more streams then (RFC 9113, section 6.8), and weir ignores them.
var errLeft = errors.New("weir has said GOAWAY")

// conn2 is an HTTP/2 connection on which the test writes single frames.
type conn2 struct {
	*http2.Framer
	dec           *hpack.Decoder
	offered       bool   // the server accepts WebSockets
	left          bool   // the server accepts no more streams
	last          uint32 // the last stream that the server accepts
	status        string
	came          map[uint32]*bytes.Buffer
	ended, pinged bool // ended: the first stream has ended; pinged: the PING was acknowledged
}

func (h *conn2) open(id uint32) error {
	if err := h.until(func() bool { return h.offered }); err != nil {
		return err
	}
	if h.left {
		return errLeft
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "CONNECT"}, {":protocol", "websocket"}, {":scheme", "https"}, {":authority", host},
		{":path", "/steady/ws"}, {"sec-websocket-version", "13"}} {
		enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	h.came[id], h.status = new(bytes.Buffer), ""
	if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		return err
	}
	err := h.until(func() bool { return h.status != "" || h.left && id > h.last })
	if h.status == "" && h.left {
		return errLeft // weir sent GOAWAY after this stream was sent
	}
	if err != nil {
		return err
	}
	if h.status != "200" {
		return fmt.Errorf("the answer is %s", h.status)
	}
	return nil
}

// exchange sends a message on each of the first streams and expects it back.
func (h *conn2) exchange(streams int) error {
	want := map[uint32][]byte{}
	for i := range uint32(streams) {
		size := 126 + mathrand.IntN(16_000) // the message fits into one frame of WebSocket and of HTTP/2
		head := []byte{0x82, 126, byte(size >> 8), byte(size)}
		message := make([]byte, size)
		rand.Read(message)
		masked := bytes.Clone(head)
		masked[1] |= 0x80
		if err := h.WriteData(2*i+1, false, append(append(masked, 0, 0, 0, 0), message...)); err != nil {
			return err
		}
		want[2*i+1] = append(head, message...)
	}
	for id, message := range want {
		got := h.came[id]
		if err := h.until(func() bool { return got.Len() >= len(message) }); err != nil {
			return fmt.Errorf("%d bytes of %d came back: %w", got.Len(), len(message), err)
		}
		if !bytes.Equal(got.Bytes(), message) {
			return errors.New("something else came back")
		}
		got.Reset()
	}
	return nil
}

func (h *conn2) until(ok func() bool) error {
	for !ok() {
		f, err := h.ReadFrame()
		if err == nil {
			err = h.take(f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *conn2) take(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		v, _ := f.Value(http2.SettingEnableConnectProtocol)
		h.offered = v == 1
		return h.WriteSettingsAck()
	case *http2.PingFrame:
		if !f.IsAck() {
			return h.WritePing(true, f.Data)
		}
		h.pinged = true
	case *http2.HeadersFrame:
		fields, err := h.dec.DecodeFull(f.HeaderBlockFragment())
		if err != nil || len(fields) == 0 {
			return fmt.Errorf("a head without fields, %w", err)
		}
		h.status = fields[0].Value
	case *http2.DataFrame:
		h.ended = h.ended || f.StreamID == 1 && f.StreamEnded()
		h.came[f.StreamID].Write(f.Data())
		if n := f.Length; n > 0 {
			return errors.Join(h.WriteWindowUpdate(0, n), h.WriteWindowUpdate(f.StreamID, n))
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("stream %d is reset with %v", f.StreamID, f.ErrCode)
	case *http2.GoAwayFrame: // weir drains: open streams continue
		if f.ErrCode != http2.ErrCodeNo {
			return fmt.Errorf("weir ends the connection with %v: %s", f.ErrCode, f.DebugData())
		}
		h.left, h.last = true, f.LastStreamID
	}
	return nil
}
