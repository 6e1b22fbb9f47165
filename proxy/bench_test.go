//go:build !race

package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/trace"
)

// loop listens on address, and answers every read with the same response, without an allocation.
// It returns the actual address.
func loop(t testing.TB, address string, response []byte) string {
	ln, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 64<<10)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					c.Write(response)
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// exchanges returns a function that runs one exchange over a kept connection. The function itself
// allocates nothing.
func exchanges(t testing.TB, request, response string) func() {
	return exchangesOf(t, plain, request, response)
}

// exchangesOf is like exchanges, with a configuration.
func exchangesOf(t testing.TB, text, request, response string) func() {
	return exchangesBy(t, text, request, response, func(p *Proxy) { p.SetLog(nil) })
}

// exchangesBy is like exchangesOf; change sets up the proxy.
func exchangesBy(t testing.TB, text, request, response string, change func(*Proxy)) func() {
	r := newRig(t, text, nil, "@app", loop(t, "127.0.0.1:0", []byte(response)))
	change(r.proxy)
	c, err := net.Dial("tcp", r.addrs["web"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	out, in := []byte(request), make([]byte, len(response))
	return func() {
		if _, err := c.Write(out); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, in); err != nil || !bytes.HasPrefix(in, []byte("HTTP/1.1 200")) {
			t.Fatal(err)
		}
	}
}

const (
	browser = "GET /a/path?with=query HTTP/1.1\r\nHost: app.example.org\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\nCookie: session=0123456789abcdef\r\n\r\n"
	small   = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\r\nhello, world"
)

// An exchange allocates nothing, and neither do the waits on both connections.
func TestExchangesAllocateNothing(t *testing.T) {
	f := func(request, response string) {
		t.Helper()
		one := exchanges(t, request, response)
		for range 100 {
			one()
		}
		if n := testing.AllocsPerRun(1000, one); n > 0 {
			t.Errorf("an exchange of %q allocates %v times", request[:4], n)
		}
	}
	f(browser, small)
	f("PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", small)
	f(browser, "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nTransfer-Encoding: chunked\r\n\r\nc\r\nhello, world\r\n0\r\n\r\n")
}

// A line of the access log allocates nothing either, nor does a request that is not traced.
func TestObservedExchangesAllocateNothing(t *testing.T) {
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "x"}) }
	w, err := accesslog.Open(accesslog.Options{Path: os.DevNull, Buffer: 16 << 20, Written: counter(), Full: counter(), Failed: counter()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	format := accesslog.NewFormat(*config.NewAccessLog())
	one := exchangesBy(t, plain, browser, small, func(p *Proxy) {
		p.SetLog(func(r *accesslog.Record) { w.Put(format, r) })
		p.SetTracer(trace.NewTracer(0, nil, trace.NewBuffer(1<<20, counter())))
	})
	for range 1000 {
		one()
	}
	if n := testing.AllocsPerRun(1000, one); n > 0 {
		t.Errorf("an exchange allocates %v times", n)
	}
}

// exchanges2 is like exchanges, for HTTP/2 over TLS with several streams at once. The function returns the
// number of TLS records in which the responses arrived.
func exchanges2(t testing.TB, streams int, post bool) func() (records int) {
	r := newRig(t, secure2, nil, "@app", loop(t, "127.0.0.1:0", []byte(small)))
	r.proxy.SetLog(nil)
	c := r.dial2("tls")
	c.framer.WriteWindowUpdate(0, 1<<30)
	c.alive()
	c.SetDeadline(time.Time{})
	// The rest uses neither framer nor decoder, because they allocate.
	var out bytes.Buffer
	flags, in, id, method := byte(0x5), make([]byte, 64<<10), uint32(3), "GET"
	if post {
		flags, method = 0x4, "POST"
	}
	fields := []string{":method: " + method, ":authority: a", ":path: /a/path?with=query", "user-agent: Mozilla/5.0", "accept: */*", "cookie: session=0123456789abcdef"}
	c.want2(c.request(true, "/", fields...), 200, "hello, world")
	c.request(true, "/", fields...) // all fields are indexed now, as in a browser's second request
	head := append([]byte(nil), c.sent...)
	c.answer(id)
	conn := c.Conn
	id += 2
	return func() (records int) {
		out.Reset()
		for range streams {
			out.Write([]byte{0, 0, byte(len(head)), 1, flags, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)})
			out.Write(head)
			if post {
				out.Write([]byte{0, 0, 5, 0, 1, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)})
				out.WriteString("hello")
			}
			id += 2
		}
		if _, err := conn.Write(out.Bytes()); err != nil {
			t.Fatal(err)
		}
		have := 0
		for ends := 0; ends < streams; {
			n, err := conn.Read(in[have:])
			if err != nil {
				t.Fatal(err)
			}
			records++
			have += n
			at := 0
			for have-at >= 9 && have-at >= 9+int(in[at+1])<<8+int(in[at+2]) {
				if in[at+3] == 3 || in[at+3] == 7 {
					t.Fatalf("a frame %x", in[at:have])
				}
				if in[at+3] <= 1 && in[at+4]&1 != 0 {
					ends++
				}
				at += 9 + int(in[at+1])<<8 + int(in[at+2])
			}
			have = copy(in, in[at:have])
		}
		return records
	}
}

// Over HTTP/2 an exchange allocates nothing either.
func TestHTTP2ExchangesAllocateNothing(t *testing.T) {
	f := func(streams int, post bool) {
		t.Helper()
		some := exchanges2(t, streams, post)
		for range 200 {
			some()
		}
		records := 0
		n := testing.AllocsPerRun(500, func() { records += some() })
		// the allocations of crypto/tls for a record do not grow with the number of exchanges in it
		if per := float64(records) / 501; n > 4*per {
			t.Errorf("%d exchanges at once (with a body: %t) allocate %v times, in %.1f records", streams, post, n, per)
		}
	}
	f(1, false)
	f(10, false)
	f(1, true)
	f(10, true)
}

func BenchmarkExchange2(b *testing.B) {
	for _, streams := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(streams), func(b *testing.B) {
			some := exchanges2(b, streams, false)
			b.ReportAllocs()
			for b.Loop() {
				some()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*streams), "ns/request")
		})
	}
}

func BenchmarkExchange(b *testing.B) {
	one := exchanges(b, browser, small)
	b.ReportAllocs()
	for b.Loop() {
		one()
	}
}

// An exchange costs the same with one route, and with one of many paths or hosts.
func BenchmarkExchangeAmong(b *testing.B) {
	const head = "listeners: {web: {address: '@0', protocol: http}}\nbackends: {app: {endpoints: ['@app']}}\nroutes:\n"
	many := func(n int, line string) string {
		var text strings.Builder
		text.WriteString(head)
		for i := range n {
			fmt.Fprintf(&text, line+"\n", i)
		}
		return text.String()
	}
	for _, n := range []int{1, 10_000} {
		request := strings.ReplaceAll(browser, "/a/path", fmt.Sprintf("/p%d/path", n*3/4))
		b.Run(fmt.Sprintf("paths/%d", n), func(b *testing.B) {
			benchmarkExchanges(b, many(n, "  - {listeners: [web], hosts: [app.example.org], paths: [/p%d], backend: app}"), request)
		})
		request = strings.ReplaceAll(browser, "app.example.org", fmt.Sprintf("h%d.example.org", n*3/4))
		b.Run(fmt.Sprintf("hosts/%d", n), func(b *testing.B) {
			benchmarkExchanges(b, many(n, "  - {listeners: [web], hosts: [h%d.example.org], backend: app}"), request)
		})
	}
}

func benchmarkExchanges(b *testing.B, text, request string) {
	one := exchangesOf(b, text, request, small)
	b.ReportAllocs()
	for b.Loop() {
		one()
	}
}
