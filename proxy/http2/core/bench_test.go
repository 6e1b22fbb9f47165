package core

import (
	"bytes"
	"testing"
	"time"

	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// The HTTP headers of a browser, and of an application's response.
var browserLines = []string{":method: GET", ":scheme: https", ":authority: shop.example.com", ":path: /shop/items/4711?sort=price&page=2",
	`sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"`, "sec-ch-ua-mobile: ?0", `sec-ch-ua-platform: "Linux"`, "upgrade-insecure-requests: 1",
	"user-agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
	"accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", "sec-fetch-site: same-origin",
	"sec-fetch-mode: navigate", "sec-fetch-user: ?1", "sec-fetch-dest: document", "referer: https://shop.example.com/shop/",
	"accept-encoding: gzip, deflate, br, zstd", "accept-language: en-GB,en;q=0.9,de;q=0.8", "cookie: session=0123456789abcdef0123456789abcdef",
	"cookie: theme=dark", "cookie: consent=1"}

var benchResponse = http2test.NewResponse(200, "Date: Sat, 21 Nov 2026 11:00:00 GMT", "Content-Type: text/html; charset=utf-8", "Content-Length: 128",
	"Cache-Control: private, max-age=0", "Vary: Accept-Encoding", "Set-Cookie: session=0123456789abcdef; HttpOnly")

// bench is a minimal driver.
type bench struct {
	core   Connection
	req    message.Request
	res    message.Response
	page   []byte
	served int
}

func (b *bench) Request(s *Stream) *message.Request   { b.req.Reset(); return &b.req }
func (b *bench) Response(s *Stream) *message.Response { b.res.Reset(); return &b.res }
func (b *bench) Head(s *Stream, _ *message.Refusal)   {}
func (b *bench) Data(s *Stream, p []byte)             { b.core.Consumed(s, len(p)) }
func (b *bench) Reset(s *Stream, e Ending)            { panic(e.Detail) }
func (b *bench) Writable(s *Stream)                   {}
func (b *bench) Refused(string)                       {}
func (b *bench) Settings()                            {}
func (b *bench) SettingsAcked()                       {}
func (b *bench) PingAcked()                           {}
func (b *bench) GoAway(code Code, last uint32)        {}
func (b *bench) End(s *Stream) {
	if b.page != nil {
		b.core.Respond(s, benchResponse, false)
		b.core.Write(s, b.page, true)
	}
	b.core.Release(s)
	b.served++
}

// requests sends one request after another to a server.
type requests struct {
	bench
	in  []byte
	ids []int // positions of the stream numbers in in
	id  uint32
	now time.Time
}

func newRequests(tb testing.TB, post int) *requests {
	r := &requests{id: 1, now: time.Unix(1e9, 0)}
	r.page = make([]byte, 128)
	r.core.Init(Config{}, r)
	p := http2test.Greeted()
	p.Head(1, true, browserLines...)
	r.receive(tb, p.Bytes())
	p.Reset()
	p.Framer.WriteWindowUpdate(0, 128)
	r.ids = append(r.ids, p.Len()+5)
	p.Head(1, post == 0, browserLines...) // as short as possible: all fields are in the table
	for sent := 0; sent < post; sent += 10000 {
		r.ids = append(r.ids, p.Len()+5)
		p.Data(1, sent+10000 >= post, string(make([]byte, min(10000, post-sent))))
	}
	r.in = bytes.Clone(p.Bytes())
	return r
}

func (r *requests) receive(tb testing.TB, in []byte) {
	if err := r.core.Receive(r.now, in); err != nil {
		tb.Fatal(err)
	}
	r.core.Take().Free()
}

func (r *requests) next(tb testing.TB) {
	r.id += 2
	for _, at := range r.ids {
		r.in[at], r.in[at+1], r.in[at+2], r.in[at+3] = byte(r.id>>24), byte(r.id>>16), byte(r.id>>8), byte(r.id)
	}
	r.receive(tb, r.in)
}

func BenchmarkServer(b *testing.B) {
	for name, post := range map[string]int{"get": 0, "post 30 KB": 30000} {
		b.Run(name, func(b *testing.B) {
			r := newRequests(b, post)
			b.ReportAllocs()
			for b.Loop() {
				r.next(b)
			}
			if r.served < b.N {
				b.Fatal(r.served)
			}
		})
	}
}

// exchanger sends requests from a client to a server.
type exchanger struct {
	client, server bench
	req            *message.Request
}

func newExchanger() *exchanger {
	x := &exchanger{req: http2test.NewRequest("GET", "/a?b", "a", "User-Agent: x", "Accept: */*")}
	x.server.page = make([]byte, 128)
	x.client.core.Init(Config{Role: Client}, &x.client)
	x.server.core.Init(Config{}, &x.server)
	return x
}

func (x *exchanger) exchange(tb testing.TB) {
	if x.client.core.Capacity() > 0 {
		if _, err := x.client.core.Open(x.req, true); err != nil {
			tb.Fatal(err)
		}
	}
	for x.client.core.Pending()+x.server.core.Pending() > 0 {
		carry(tb, &x.client.core, &x.server.core)
		carry(tb, &x.server.core, &x.client.core)
	}
}

// carry takes the output of one core to another one.
func carry(tb testing.TB, from, to *Connection) {
	out := from.Take()
	if err := to.Receive(time.Time{}, out.Bytes()); err != nil {
		tb.Fatal(err)
	}
	out.Free()
}

func BenchmarkExchange(b *testing.B) {
	x := newExchanger()
	b.ReportAllocs()
	for b.Loop() {
		x.exchange(b)
	}
}

// A driver may release a stream before the event of its end returns.
func TestReleaseWithinTheEnd(t *testing.T) {
	x := newExchanger()
	for range 500 {
		x.exchange(t)
	}
	if x.client.served < 499 || x.client.served != x.server.served || x.client.core.Working()+x.server.core.Working() != 0 {
		t.Errorf("%d and %d exchanges", x.client.served, x.server.served)
	}
}
