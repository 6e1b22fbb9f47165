package proxy

import (
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// If the end of an endpoint's stream arrives in one segment with a part of a response head,
// weir notices it at once, and not after conn.Linger. Otherwise a response_head below
// conn.Linger would make it a timeout.
func TestEndpointClosesWithinAHead(t *testing.T) {
	for name, part := range map[string]string{
		"head":                "HTTP/1.1 200 OK\r\nContent-",
		"after an empty line": "\r\n",
		"after a 103":         "HTTP/1.1 103 Early Hints\r\n\r\n",
		"head after a 103":    "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200",
	} {
		t.Run(name, func(t *testing.T) {
			r, e := newPlain(t, func(c *config.Config) { c.Backends[0].Timeouts.ResponseHead = conn.Linger * 9 / 10 })
			c := r.dial("web")
			c.write(get)
			s := e.accept()
			s.head()
			cork(t, s.Conn.(*net.TCPConn))
			io.WriteString(s, part)
			s.Close()
			for range strings.Count(part, " 103 ") {
				c.head()
			}
			c.wantResponse(502, "the endpoint sent no valid response\n")
			r.record().want(t, "status", 502, "reason", "endpoint_closed")
		})
	}
}

// cork delays bytes, so that the kernel sends them in one segment with the end of the stream.
func cork(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
	if err != nil {
		t.Fatal(err)
	}
}
