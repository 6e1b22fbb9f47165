package http2

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// serveAll sends the same answer to every request of one connection. All fields are in
// the static table, because hpack.Decoder makes a string of each literal.
func serveAll(tb testing.TB) (address string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	res, page := http2test.NewResponse(200), make([]byte, 128)
	res.Length = 128
	requests := sync.Pool{New: func() any { return new(message.Request) }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := ln.Accept()
		ln.Close()
		if err != nil {
			return
		}
		c := new(Connection)
		c.Init(nc, core.Config{}, func(x *Exchange) {
			req := requests.Get().(*message.Request)
			x.ReadHead(req)
			x.SkipBody()
			x.WriteHead(req, res)
			x.WriteBody(page)
			x.WriteEnd(res)
			x.Flush()
			x.Close()
			requests.Put(req)
		})
		c.Step()
		nc.Close()
	}()
	tb.Cleanup(func() { <-done })
	return ln.Addr().String()
}

// caller makes one call after another, like an exchange.
type caller struct {
	trunk *Trunk
	x     *Call
	req   *message.Request
	res   message.Response
	sent  bool
	step  func() bool
	err   error
	bytes int
}

func newCaller(t *Trunk) *caller {
	c := &caller{trunk: t, req: http2test.NewRequest("GET", "/", "a")}
	c.step = c.ready
	return c
}

func (c *caller) call() error {
	c.x, c.sent, c.err, c.bytes, c.res.Status = c.trunk.Call(), false, nil, 0, 0
	c.x.SetReadDeadline(time.Now().Add(20 * time.Second))
	if err := c.x.Await(c.step); err != nil {
		c.err = err
	}
	c.x.End()
	if c.err == nil && c.bytes != 128 {
		c.err = fmt.Errorf("%d bytes", c.bytes)
	}
	return c.err
}

func (c *caller) ready() bool {
	if !c.sent {
		c.sent = true
		c.x.WriteHead(c.req)
		c.x.WriteEnd(c.req)
		if c.err = c.x.Flush(); c.err != nil {
			return true
		}
	}
	if c.res.Status == 0 {
		if c.err = c.x.ReadHead(c.req, &c.res); c.err == conn.ErrWouldBlock {
			c.err = nil
			return false
		}
	}
	for c.err == nil && !c.x.BodyEnded() {
		p, err := c.x.ReadBody(&c.res)
		if err == conn.ErrWouldBlock {
			return false
		}
		if c.bytes += len(p); err != io.EOF {
			c.err = err
		}
	}
	return true
}

func BenchmarkTrunk(b *testing.B) {
	trunk := newTrunk(b, serveAll(b))
	b.SetParallelism(16)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		c := newCaller(trunk)
		for pb.Next() {
			if err := c.call(); err != nil {
				b.Error(err)
			}
		}
	})
	b.StopTimer()
}
