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

// h2conn is a connection of HTTP/2 whose frames a test writes by hand, right or wrong.
type h2conn struct {
	net.Conn
	framer *http2.Framer
	out    *bufio.Writer // before the connection, where hold was called
	block  bytes.Buffer
	enc    *hpack.Encoder
	dec    *hpack.Decoder
	status map[uint32]string
}

// h2frames begins a connection of HTTP/2 on c.
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
	h.framer.WriteSettingsAck() // those that are on their way
	return h
}

// dialH2 is h2frames on a new connection, by ALPN where the port is for TLS.
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

// hold has what is written wait for a flush of h.out, so that it comes at once.
func (h *h2conn) hold() {
	h.framer = http2.NewFramer(h.out, h.Conn)
	h.framer.AllowIllegalWrites = true
}

// getFields are those of a plain request, with others behind them.
func getFields(more ...string) []string {
	return append([]string{":method: GET", ":scheme: https", ":path: /", ":authority: app.example.org"}, more...)
}

func postFields(more ...string) []string {
	return append([]string{":method: POST", ":scheme: https", ":path: /", ":authority: app.example.org"}, more...)
}

// fields encodes "name: value" lines as they are. A leading colon belongs to the name.
func (h *h2conn) fields(lines ...string) []byte {
	h.block.Reset()
	for _, line := range lines {
		i := strings.Index(line[1:], ":") + 1
		h.enc.WriteField(hpack.HeaderField{Name: line[:i], Value: strings.TrimPrefix(line[i+1:], " ")})
	}
	return bytes.Clone(h.block.Bytes())
}

// head writes HEADERS, with CONTINUATION where that is needed.
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

// number is four bytes.
func number(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

// ended is how a connection or a stream ended.
type ended struct {
	code http2.ErrCode
	why  string // the debug data of GOAWAY
	err  error  // of reading, where there was no GOAWAY
}

func (e ended) String() string {
	if e.err != nil {
		return "no GOAWAY: " + e.err.Error()
	}
	return fmt.Sprintf("%s %s", e.code, e.why)
}

// toTheEnd reads until GOAWAY with an error, or until the connection ends.
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

// answer reads until stream id has ended: its status and body, or how it was
// reset. PINGs are answered, windows given back at once.
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
