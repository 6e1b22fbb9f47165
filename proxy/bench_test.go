//go:build !race

package proxy

import (
	"bytes"
	"io"
	"net"
	"testing"
)

// loop answers every read with the same response; it allocates nothing.
func loop(t testing.TB, response []byte) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
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

// exchanges returns what runs one exchange over a kept connection, without
// allocating anything itself.
func exchanges(t testing.TB, request, response string) func() {
	r := newRig(t, plain, nil, "@app", loop(t, []byte(response)))
	r.proxy.SetLog(nil)
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
	small   = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\r\nhello, world"
)

// An exchange allocates nothing, the waits on both connections included.
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
	f(browser, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\nhello, world\r\n0\r\n\r\n")
}

func BenchmarkExchange(b *testing.B) {
	one := exchanges(b, browser, small)
	b.ReportAllocs()
	for b.Loop() {
		one()
	}
}
