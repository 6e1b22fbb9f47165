package http2

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/proxy/message"
)

// side is one side of a connection: a core, and a record of its events.
type side struct {
	core    Core
	streams map[*Stream]*seen
	log     []string // events as text
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
	x.log = append(x.log, text+fieldsText(trailers))
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

func (x *side) Writable(s *Stream) { x.pump(s) }
func (x *side) Settings()          { x.note("settings") }
func (x *side) SettingsAcked()     { x.note("settings acked") }
func (x *side) PingAcked()         { x.note("ping acked") }
func (x *side) GoAway(code Code)   { x.note("goaway %s", code) }

// send sends a body and its end, as far as there is room.
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

func fieldsText(h *message.Head) string {
	var b strings.Builder
	for i := range h.Fields {
		if !h.Fields[i].Dropped {
			fmt.Fprintf(&b, " [%s: %s]", h.Name(i), h.Value(i))
		}
	}
	return b.String()
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
	return text + fieldsText(&r.Head)
}

func responseText(r *message.Response) string {
	return fmt.Sprintf("%d length %d", r.Status, r.Length) + fieldsText(&r.Head)
}

// peer writes frames of a peer that need not obey any rule.
type peer struct {
	bytes.Buffer
	framer *xhttp2.Framer
	block  bytes.Buffer
	enc    *hpack.Encoder
}

func newPeer() *peer {
	p := &peer{}
	p.framer = xhttp2.NewFramer(p, nil)
	p.framer.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	return p
}

// greet writes the beginning of a client's connection.
func (p *peer) greet(settings ...xhttp2.Setting) *peer {
	p.WriteString(Preface)
	p.framer.WriteSettings(settings...)
	return p
}

// fields encodes "name: value" lines. A leading colon is part of the name.
func (p *peer) fields(lines ...string) []byte {
	p.block.Reset()
	for _, line := range lines {
		i := strings.Index(line[1:], ":") + 1
		p.enc.WriteField(hpack.HeaderField{Name: line[:i], Value: strings.TrimPrefix(line[i+1:], " ")})
	}
	return p.block.Bytes()
}

func (p *peer) head(id uint32, end bool, lines ...string) *peer {
	p.framer.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: p.fields(lines...), EndStream: end, EndHeaders: true})
	return p
}

func (p *peer) data(id uint32, end bool, body string) *peer {
	p.framer.WriteData(id, end, []byte(body))
	return p
}

func (p *peer) raw(kind, flags uint8, id uint32, payload string) *peer {
	p.Write(appendFrame(nil, len(payload), kind, flags, id))
	p.WriteString(payload)
	return p
}

// getLines are the fields of a plain request, followed by others.
func getLines(more ...string) []string {
	return append([]string{":method: GET", ":scheme: https", ":path: /", ":authority: a"}, more...)
}

func (p *peer) get(id uint32, more ...string) *peer { return p.head(id, true, getLines(more...)...) }

func (p *peer) post(id uint32, more ...string) *peer {
	return p.head(id, false, append([]string{":method: POST", ":scheme: https", ":path: /", ":authority: a"}, more...)...)
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

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// newRequest returns a request in the form that a proxy has it.
func newRequest(method, target, host string, fields ...string) *message.Request {
	r := new(message.Request)
	r.Reset()
	r.SetMethod(r.StoreString(method))
	r.SetTarget(r.StoreString(target))
	r.Host = r.StoreString(host)
	r.AddField("Host", host)
	addFields(&r.Head, fields)
	return r
}

func newResponse(status int, fields ...string) *message.Response {
	r := new(message.Response)
	r.Status = status
	addFields(&r.Head, fields)
	return r
}

func addFields(h *message.Head, lines []string) {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.AddField(name, value)
	}
}
