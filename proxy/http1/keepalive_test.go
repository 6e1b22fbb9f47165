package http1

import (
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

func TestAnnouncedIdle(t *testing.T) {
	f := func(headers string, want uint32) {
		t.Helper()
		var c Client
		c.Init(newWire("HTTP/1.1 204 No Content\r\n"+headers+"\r\n"), Limits{})
		var req message.Request
		var res message.Response
		if err := c.ReadHead(&req, &res); err != nil {
			t.Fatal(err)
		}
		if got := c.AnnouncedIdle(); got != want {
			t.Errorf("%q: %d s, want %d", headers, got, want)
		}
	}
	f("", 0)
	f("Keep-Alive: timeout=5\r\n", 5)
	f("Connection: Keep-Alive\r\nKeep-Alive: timeout=15, max=100\r\n", 15)
	f("keep-alive: max=100 , TIMEOUT=7\r\n", 7)
	f("Keep-Alive: max=100\r\nKeep-Alive: timeout=7\r\n", 7)
	f("Keep-Alive: timeout=0\r\n", 0)
	f("Keep-Alive: timeout\r\n", 0)
	f("Keep-Alive: timeout=\r\n", 0)
	f("Keep-Alive: timeout=-5\r\n", 0)
	f("Keep-Alive: timeout=5s\r\n", 0)
	f("Keep-Alive: timeout=99999999999\r\n", 1<<32-1)
	f("Keep-Alive: 300\r\n", 0)
}
