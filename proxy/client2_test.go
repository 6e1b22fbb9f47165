package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/config"
)

// client2 is the HTTP/2 client of a test, which sends and reads single frames.
type client2 struct {
	*peer
	framer *xhttp2.Framer
	block  bytes.Buffer
	sent   []byte // the last header block
	enc    *hpack.Encoder
	dec    *hpack.Decoder
	last   uint32
	mu     sync.Mutex // guards the framer's writes, if another goroutine of the test writes, too

	got  map[uint32]*answer2
	away []string // GOAWAYs, as "last code debug"
}

// answer2 is the response on a stream.
type answer2 struct {
	heads  []string // fields, in lines
	body   strings.Builder
	ended  bool
	reset  string // the error code of RST_STREAM
	length int    // length of all DATA frames, with padding
}

// secure2 offers HTTP/2 on a TLS listener, and accepts it on a plain one.
const secure2 = `
listeners:
  tls: {address: '@0', protocol: tls}
  web: {address: '@1', protocol: http, http2: {prior_knowledge: true}}
certificates: [{self_signed: {hosts: [a, b]}}]
routes: [{listeners: [tls, web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

func newRig2(t testing.TB, tune func(*config.Config)) (*rig, *endpoint) {
	e := newEndpoint(t)
	return newRig(t, secure2, tune, "@app", e.address), e
}

// dial2 connects to a listener and exchanges greetings.
func (r *rig) dial2(listener string) *client2 {
	r.Helper()
	return greet2(r.dialBare2(listener))
}

// dialBare2 connects to a listener that speaks HTTP/2, and sends nothing.
func (r *rig) dialBare2(listener string) *peer {
	r.Helper()
	if listener != "tls" {
		return r.dial(listener)
	}
	return r.dialTLS(listener, "a", func(c *tls.Config) { c.NextProtos = []string{"h2"} })
}

func greet2(p *peer) *client2 {
	p.t.Helper()
	p.write(xhttp2.ClientPreface)
	return settings2(p)
}

// settings2 is the part of greet2 after the preface.
func settings2(p *peer, settings ...xhttp2.Setting) *client2 {
	p.t.Helper()
	c := &client2{peer: p, framer: xhttp2.NewFramer(p, p.r), got: make(map[uint32]*answer2)}
	c.framer.SetMaxReadFrameSize(16 << 10)
	c.enc = hpack.NewEncoder(&c.block)
	c.dec = hpack.NewDecoder(4096, nil)
	c.framer.WriteSettings(settings...)
	return c
}

// request opens a stream with a GET request for path. fields ("name: value") may replace the pseudo-fields.
func (c *client2) request(end bool, path string, fields ...string) uint32 {
	c.t.Helper()
	c.last = max(1, c.last+2)
	if c.last%2 == 0 {
		c.last--
	}
	return c.head2(c.last, end, append([]string{":method: GET", ":scheme: https", ":authority: a", ":path: " + path}, fields...)...)
}

// head2 sends a head unchanged, except that a later pseudo-field replaces an earlier one.
func (c *client2) head2(id uint32, end bool, fields ...string) uint32 {
	c.t.Helper()
	c.block.Reset()
	var all []hpack.HeaderField
	for _, f := range fields {
		at := strings.Index(f[1:], ":") + 1
		h := hpack.HeaderField{Name: f[:at], Value: strings.TrimPrefix(f[at+1:], " ")}
		if i := slices.IndexFunc(all, func(o hpack.HeaderField) bool { return o.Name == h.Name && h.IsPseudo() }); i >= 0 {
			all[i] = h
			continue
		}
		all = append(all, h)
	}
	slices.SortStableFunc(all, func(a, b hpack.HeaderField) int {
		switch {
		case a.IsPseudo() && !b.IsPseudo():
			return -1
		case b.IsPseudo() && !a.IsPseudo():
			return 1
		}
		return 0
	})
	for _, h := range all {
		c.enc.WriteField(h)
	}
	c.sent = append(c.sent[:0], c.block.Bytes()...)
	first := c.block.Next(16 << 10)
	c.framer.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: c.block.Len() == 0})
	for c.block.Len() > 0 {
		piece := c.block.Next(16 << 10)
		c.framer.WriteContinuation(id, c.block.Len() == 0, piece)
	}
	return id
}

func (c *client2) data(id uint32, end bool, text string) {
	c.t.Helper()
	for len(text) > 16<<10 {
		c.framer.WriteData(id, false, []byte(text[:16<<10]))
		text = text[16<<10:]
	}
	if err := c.framer.WriteData(id, end, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// step reads one frame.
func (c *client2) step() error {
	f, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	a := c.got[f.Header().StreamID]
	if a == nil {
		a = new(answer2)
		c.got[f.Header().StreamID] = a
	}
	switch f := f.(type) {
	case *xhttp2.SettingsFrame:
		if !f.IsAck() {
			c.beside(c.framer.WriteSettingsAck)
		}
	case *xhttp2.PingFrame:
		if !f.IsAck() {
			c.beside(func() error { return c.framer.WritePing(true, f.Data) })
		}
	case *xhttp2.HeadersFrame:
		fields, err := c.dec.DecodeFull(f.HeaderBlockFragment())
		if err != nil {
			return err
		}
		var b strings.Builder
		for _, h := range fields {
			fmt.Fprintf(&b, "%s: %s\n", h.Name, h.Value)
		}
		a.heads = append(a.heads, b.String())
		a.ended = a.ended || f.StreamEnded()
	case *xhttp2.DataFrame:
		a.body.Write(f.Data())
		a.length += int(f.Length)
		a.ended = a.ended || f.StreamEnded()
	case *xhttp2.RSTStreamFrame:
		a.reset, a.ended = f.ErrCode.String(), true
	case *xhttp2.GoAwayFrame:
		c.away = append(c.away, fmt.Sprintf("%d %s %s", f.LastStreamID, f.ErrCode, f.DebugData()))
	}
	return nil
}

// until reads frames until ok returns true.
func (c *client2) until(what string, ok func() bool) {
	c.t.Helper()
	for !ok() {
		if err := c.step(); err != nil {
			c.t.Fatalf("waiting for %s: %v; streams %v, away %q", what, err, c.got, c.away)
		}
	}
}

// beside calls write. It holds the lock, because another goroutine may write, too.
func (c *client2) beside(write func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return write()
}

// on returns the part of the response that has arrived on a stream.
func (c *client2) on(id uint32) *answer2 {
	if c.got[id] == nil {
		c.got[id] = new(answer2)
	}
	return c.got[id]
}

// answer waits for the whole response on a stream.
func (c *client2) answer(id uint32) *answer2 {
	c.t.Helper()
	c.until(fmt.Sprintf("stream %d to end", id), func() bool { return c.on(id).ended })
	return c.on(id)
}

// want2 waits for a whole response with that status and body ("*": any).
func (c *client2) want2(id uint32, status int, body string) *answer2 {
	c.t.Helper()
	a := c.answer(id)
	if a.reset != "" || len(a.heads) == 0 || a.status() != fmt.Sprint(status) || body != "*" && a.body.String() != body {
		c.t.Fatalf("stream %d got %v, not %d with %q", id, a, status, body)
	}
	return a
}

// wantReset waits for a stream's reset.
func (c *client2) wantReset(id uint32, code string) {
	c.t.Helper()
	if a := c.answer(id); a.reset != code {
		c.t.Fatalf("stream %d got %v, not a reset with %s", id, a, code)
	}
}

// wantAway waits for a GOAWAY and the end of the connection.
func (c *client2) wantAway(want string) {
	c.t.Helper()
	var err error
	for err == nil {
		err = c.step()
	}
	if !errors.Is(err, io.EOF) || len(c.away) == 0 || !strings.HasSuffix(c.away[len(c.away)-1], want) {
		c.t.Fatalf("the connection ended with %v behind %q, not %q", err, c.away, want)
	}
}

// status returns the status of the final head, not of trailers.
func (a *answer2) status() string {
	for i := len(a.heads) - 1; i >= 0; i-- {
		if s := field2(a.heads[i], ":status"); s != "" {
			return s
		}
	}
	return ""
}

func (a *answer2) String() string {
	return fmt.Sprintf("{%q %q ended %t reset %q}", a.heads, shortened(a.body.String()), a.ended, a.reset)
}

func shortened(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%s... (%d bytes)", s[:100], len(s))
	}
	return s
}

// field2 returns the value of a field in a head.
func field2(head, name string) string {
	for line := range strings.Lines(head) {
		if v, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSuffix(v, "\n")
		}
	}
	return ""
}

// alive checks that a connection answers a PING.
func (c *client2) alive() {
	c.t.Helper()
	c.framer.WritePing(false, [8]byte{42})
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			c.t.Fatalf("the connection does not live: %v", err)
		}
		if p, ok := f.(*xhttp2.PingFrame); ok && p.IsAck() && p.Data[0] == 42 {
			return
		}
	}
}
