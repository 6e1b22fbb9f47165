//go:build !race

package proxy

import (
	"strconv"
	"testing"
)

func TestCompressedExchangesAllocateNothing(t *testing.T) {
	body := words(10 << 10)
	response := []byte("HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	r := newRig(t, packed, nil, "@app", loop(t, "127.0.0.1:0", response))
	r.proxy.SetLog(nil)
	c := r.dial("web")
	request, in := []byte("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"), make([]byte, 64<<10)
	one := func() {
		if _, err := c.Conn.Write(request); err != nil {
			t.Fatal(err)
		}
		for n := 0; ; {
			k, err := c.Conn.Read(in[n:])
			if err != nil {
				t.Fatal(err)
			}
			if n += k; string(in[n-7:n]) == "\r\n0\r\n\r\n" {
				return
			}
		}
	}
	for range 20 {
		one()
	}
	if n := testing.AllocsPerRun(100, one); n > 0.5 {
		t.Errorf("a compressed exchange allocates %v times", n)
	}
}
