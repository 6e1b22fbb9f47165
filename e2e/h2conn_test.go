package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2conn is an HTTP/2 connection on which a test writes single frames, valid or not.
type h2conn struct {
	net.Conn
	framer *http2.Framer
	out    *bufio.Writer // after hold, the framer writes to this buffer
	block  bytes.Buffer
	enc    *hpack.Encoder
	dec    *hpack.Decoder
	status map[uint32]string
}

// h2frames starts an HTTP/2 connection on c.
func h2frames(t testing.TB, c net.Conn, settings ...http2.Setting) *h2conn {
	t.Helper()
	c.SetDeadline(time.Now().Add(patience))
	h := &h2conn{Conn: c, dec: hpack.NewDecoder(4096, nil), status: map[uint32]string{}}
	h.enc = hpack.NewEncoder(&h.block)
	h.framer = http2.NewFramer(c, c)
	h.framer.AllowIllegalWrites = true
	h.out = bufio.NewWriterSize(c, 64<<10)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := h.framer.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	h.framer.WriteSettingsAck() // for the settings that weir is about to send
	return h
}

// dialH2 opens a connection to a listener and starts HTTP/2 on it, with ALPN if the listener uses TLS.
func dialH2(t testing.TB, w *weir, listener string, settings ...http2.Setting) *h2conn {
	t.Helper()
	c := dial(t, w.at(listener))
	if listener != "secure" {
		return h2frames(t, c, settings...)
	}
	config := anyCertificate("app.example.org")
	config.NextProtos = []string{"h2"}
	secure := tls.Client(c, config)
	if err := secure.Handshake(); err != nil {
		t.Fatal(err)
	}
	if got := secure.ConnectionState().NegotiatedProtocol; got != "h2" {
		t.Fatalf("ALPN chose %q", got)
	}
	return h2frames(t, secure, settings...)
}

// hold buffers all frames until the test flushes h.out, so that weir receives them together.
func (h *h2conn) hold() {
	h.framer = http2.NewFramer(h.out, h.Conn)
	h.framer.AllowIllegalWrites = true
}

// getFields returns the fields of a simple GET request, followed by more.
func getFields(more ...string) []string {
	return append([]string{":method: GET", ":scheme: https", ":path: /", ":authority: app.example.org"}, more...)
}

func postFields(more ...string) []string {
	return append([]string{":method: POST", ":scheme: https", ":path: /", ":authority: app.example.org"}, more...)
}

// fields encodes lines of the form "name: value" without a change. A leading colon is part of the name.
func (h *h2conn) fields(lines ...string) []byte {
	h.block.Reset()
	for _, line := range lines {
		i := strings.Index(line[1:], ":") + 1
		h.enc.WriteField(hpack.HeaderField{Name: line[:i], Value: strings.TrimPrefix(line[i+1:], " ")})
	}
	return bytes.Clone(h.block.Bytes())
}

// head writes HEADERS, and CONTINUATION frames if they are needed.
func (h *h2conn) head(id uint32, end bool, lines ...string) error {
	const most = 16 << 10
	block := h.fields(lines...)
	first := block[:min(most, len(block))]
	block = block[len(first):]
	err := h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0})
	for len(block) > 0 && err == nil {
		piece := block[:min(most, len(block))]
		block = block[len(piece):]
		err = h.framer.WriteContinuation(id, len(block) == 0, piece)
	}
	return err
}

func (h *h2conn) get(id uint32) error { return h.head(id, true, getFields()...) }

func (h *h2conn) raw(kind http2.FrameType, flags http2.Flags, id uint32, payload string) error {
	return h.framer.WriteRawFrame(kind, flags, id, []byte(payload))
}

// number returns n as four bytes.
func number(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

// ended describes how a connection ended.
type ended struct {
	code http2.ErrCode
	why  string // the debug data of GOAWAY
	err  error  // the read error, if there was no GOAWAY
}

func (e ended) String() string {
	if e.err != nil {
		return "no GOAWAY: " + e.err.Error()
	}
	return fmt.Sprintf("%s %s", e.code, e.why)
}

// toTheEnd reads until the connection ends, and returns the last GOAWAY with an error, or else the read
// error.
func (h *h2conn) toTheEnd() ended {
	var e ended
	for {
		f, err := h.framer.ReadFrame()
		if err != nil {
			if e.why == "" {
				e.err = err
			}
			return e
		}
		if f, ok := f.(*http2.GoAwayFrame); ok && f.ErrCode != http2.ErrCodeNo {
			e.code, e.why = f.ErrCode, string(f.DebugData())
		}
	}
}

// answer reads until stream id has ended. It returns the status and the body, or an error if the stream was
// reset. It acknowledges PINGs and opens windows again at once.
func (h *h2conn) answer(id uint32) (status, body string, err error) {
	var b strings.Builder
	for {
		f, err := h.framer.ReadFrame()
		if err != nil {
			return "", "", err
		}
		end := false
		switch f := f.(type) {
		case *http2.PingFrame:
			if !f.IsAck() {
				h.framer.WritePing(true, f.Data)
			}
		case *http2.HeadersFrame:
			fields, err := h.dec.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				return "", "", err
			}
			if fields[0].Name == ":status" {
				h.status[f.StreamID] = fields[0].Value
			}
			end = f.StreamID == id && f.StreamEnded()
		case *http2.DataFrame:
			if n := f.Header().Length; n > 0 {
				h.framer.WriteWindowUpdate(0, n)
				h.framer.WriteWindowUpdate(f.StreamID, n)
			}
			if f.StreamID == id {
				b.Write(f.Data())
				end = f.StreamEnded()
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return h.status[id], b.String(), fmt.Errorf("reset: %s", f.ErrCode)
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return "", "", fmt.Errorf("GOAWAY %s %s", f.ErrCode, f.DebugData())
			}
		}
		if end {
			return h.status[id], b.String(), nil
		}
	}
}
