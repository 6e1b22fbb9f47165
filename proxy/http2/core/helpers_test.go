package core

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// side is one side of a connection: a core, and a record of its events.
type side struct {
	core    Connection
	streams map[*Stream]*seen
	log     []string // events as text
	refused []string // the reasons of Refused
	keep    bool     // do not consume bodies
	now     time.Time
	terse   bool            // the log is for the model
	opened  func(s *Stream) // called for each stream of the peer
}

// seen is the record of the events of a stream.
type seen struct {
	req    message.Request
	res    message.Response
	body   []byte
	toSend []byte
	finish bool // the stream ends after toSend
	ended  bool
	over   bool
	headed bool
}

func newSide(config Config) *side {
	s := &side{streams: map[*Stream]*seen{}, now: time.Unix(1e9, 0)}
	s.core.Init(config, s)
	return s
}

func (x *side) of(s *Stream) *seen {
	if x.streams[s] == nil {
		x.streams[s] = new(seen)
	}
	return x.streams[s]
}

func (x *side) note(format string, args ...any) { x.log = append(x.log, fmt.Sprintf(format, args...)) }

func (x *side) Request(s *Stream) *message.Request {
	x.streams[s] = new(seen)
	x.streams[s].req.Reset()
	if x.opened != nil {
		x.opened(s)
	}
	return &x.streams[s].req
}

func (x *side) Response(s *Stream) *message.Response {
	r := &x.of(s).res
	r.Reset()
	return r
}

func (x *side) Head(s *Stream, refusal *message.Refusal) {
	t := x.of(s)
	t.headed = true
	switch {
	case x.terse:
		x.note("%d: head", s.ID())
	case refusal != nil:
		x.note("%d: refused %d %s", s.ID(), refusal.Status, refusal.Reason)
	case x.core.config.Role == Server:
		x.note("%d: %s", s.ID(), requestText(&t.req))
	default:
		x.note("%d: %s", s.ID(), responseText(&t.res))
	}
}

func (x *side) Data(s *Stream, p []byte) {
	t := x.of(s)
	if x.terse {
		x.note("%d: data %d", s.ID(), len(p))
	} else {
		t.body = append(t.body, p...)
	}
	if !x.keep {
		x.core.Consumed(s, len(p))
	}
}

func (x *side) End(s *Stream) {
	t := x.of(s)
	t.ended = true
	trailers := &t.req.Trailers
	if x.core.config.Role == Client {
		trailers = &t.res.Trailers
	}
	text := fmt.Sprintf("%d: end", s.ID())
	if len(t.body) > 0 {
		text += fmt.Sprintf(" %q", short(t.body))
	}
	x.log = append(x.log, text+http2test.FieldsText(trailers))
}

func short(b []byte) string {
	if len(b) > 40 {
		return fmt.Sprintf("%s... %d", b[:20], len(b))
	}
	return string(b)
}

func (x *side) Reset(s *Stream, e Ending) {
	x.of(s).over = true
	who := "reset"
	if e.ByPeer {
		who = "reset by peer"
	}
	if e.Unprocessed {
		who += ", unprocessed"
	}
	if x.terse {
		x.note("%d: %s %s", s.ID(), strings.TrimSuffix(who, ", unprocessed"), e.Code)
		return
	}
	x.note("%d: %s %s %s", s.ID(), who, e.Code, e.Reason)
}

func (x *side) Refused(reason string) { x.refused = append(x.refused, reason) }

func (x *side) Writable(s *Stream)         { x.pump(s) }
func (x *side) Settings()                  { x.note("settings") }
func (x *side) SettingsAcked()             { x.note("settings acked") }
func (x *side) PingAcked()                 { x.note("ping acked") }
func (x *side) GoAway(code Code, _ uint32) { x.note("goaway %s", code) }

// send sends a body and its end, as far as the windows allow.
func (x *side) send(s *Stream, body []byte, end bool) {
	t := x.of(s)
	t.toSend, t.finish = append(t.toSend, body...), end
	x.pump(s)
}

func (x *side) pump(s *Stream) {
	t := x.of(s)
	n, _ := x.core.Write(s, t.toSend, t.finish)
	t.toSend = t.toSend[n:]
}

// receive calls core.Receive with pieces of that many bytes; 0: one piece.
func (x *side) receive(b []byte, piece int) error {
	for len(b) > 0 {
		n := len(b)
		if piece > 0 {
			n = min(n, piece)
		}
		if err := x.core.Receive(x.now, bytes.Clone(b[:n])); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// exchange passes output back and forth until both outputs are empty.
func exchange(a, b *side) error {
	for a.core.Pending()+b.core.Pending() > 0 {
		if err := b.receive(a.core.Take().Bytes(), 0); err != nil {
			return err
		}
		if err := a.receive(b.core.Take().Bytes(), 0); err != nil {
			return err
		}
	}
	return nil
}

func requestText(r *message.Request) string {
	text := fmt.Sprintf("%s %s host %q length %d", r.Bytes(r.Method), r.Bytes(r.Target), r.Bytes(r.Host), r.Length)
	if r.Upgrade.Len() > 0 {
		text += fmt.Sprintf(" upgrade %q", r.Bytes(r.Upgrade))
	}
	if r.ExpectContinue {
		text += " expects"
	}
	if r.AcceptsTrailers {
		text += " te"
	}
	return text + http2test.FieldsText(&r.Head)
}

func responseText(r *message.Response) string {
	return fmt.Sprintf("%d length %d", r.Status, r.Length) + http2test.FieldsText(&r.Head)
}

// frames describes the frames in the output as text, except SETTINGS and WINDOW_UPDATE.
func frames(t testing.TB, out []byte, verbose bool) (words []string) {
	t.Helper()
	out = bytes.TrimPrefix(out, []byte(Preface))
	framer := xhttp2.NewFramer(io.Discard, bytes.NewReader(out))
	framer.SetMaxReadFrameSize(1 << 20)
	dec := hpack.NewDecoder(4096, nil)
	var block []byte
	var id uint32
	var end bool
	finish := func(done bool) {
		if !done {
			return
		}
		fields, err := dec.DecodeFull(block)
		if err != nil {
			t.Errorf("a head that cannot be decoded: %v", err)
		}
		text := fmt.Sprintf("HEADERS %d", id)
		for _, f := range fields {
			text += fmt.Sprintf(" [%s: %s]", f.Name, f.Value)
		}
		if end {
			text += " end"
		}
		words = append(words, text)
	}
	for {
		f, err := framer.ReadFrame()
		if err == io.EOF {
			return words
		}
		if err != nil {
			t.Errorf("output that is no frame: %v", err)
			return words
		}
		switch f := f.(type) {
		case *xhttp2.HeadersFrame:
			block, id, end = bytes.Clone(f.HeaderBlockFragment()), f.StreamID, f.StreamEnded()
			finish(f.HeadersEnded())
		case *xhttp2.ContinuationFrame:
			block = append(block, f.HeaderBlockFragment()...)
			finish(f.HeadersEnded())
		case *xhttp2.DataFrame:
			text := fmt.Sprintf("DATA %d %q", f.StreamID, short(f.Data()))
			if f.StreamEnded() {
				text += " end"
			}
			words = append(words, text)
		case *xhttp2.RSTStreamFrame:
			words = append(words, fmt.Sprintf("RST_STREAM %d %s", f.StreamID, Code(f.ErrCode)))
		case *xhttp2.GoAwayFrame:
			words = append(words, fmt.Sprintf("GOAWAY %d %s %s", f.LastStreamID, Code(f.ErrCode), f.DebugData()))
		case *xhttp2.SettingsFrame:
			if verbose {
				words = append(words, f.String())
			}
		case *xhttp2.WindowUpdateFrame:
			if verbose {
				words = append(words, fmt.Sprintf("WINDOW_UPDATE %d %d", f.StreamID, f.Increment))
			}
		case *xhttp2.PingFrame:
			if string(f.Data[:]) == pingPath && !verbose {
				break
			}
			words = append(words, fmt.Sprintf("PING %q ack %v", f.Data[:], f.IsAck()))
		default:
			words = append(words, f.Header().String())
		}
	}
}
