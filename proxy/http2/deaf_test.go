package http2

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// deaf is a client that sends requests without end and reads nothing, until hangUp.
type deaf struct {
	in     bytes.Buffer
	next   uint32
	left   int // requests
	hangUp chan struct{}
	busy   func() bool
}

func (d *deaf) Read(p []byte) (int, error) {
	for d.busy() { // weir refuses requests beyond the limit of streams
		time.Sleep(10 * time.Microsecond)
	}
	for d.in.Len() < len(p) && d.left > 0 {
		d.in.Write(http2test.NewPeer().Get(d.next).Bytes())
		d.next += 2
		d.left--
	}
	if d.in.Len() == 0 {
		<-d.hangUp
		return 0, io.EOF
	}
	return d.in.Read(p[:min(len(p), 1000)])
}

func (d *deaf) Write([]byte) (int, error) {
	<-d.hangUp
	return 0, errors.New("nobody reads")
}

// Responses that the client does not read take no more memory than bodies do. The heads
// of responses do not wait for a window, and streams that are answered do not block
// others.
func TestNobodyReadsTheHeads(t *testing.T) {
	const head, streams = 4 << 10, 100
	d := &deaf{next: 1, left: 5000, hangUp: make(chan struct{})}
	d.in.Write(http2test.Greeted().Bytes())
	var c Connection
	most := 0
	c.Init(d, core.Config{Streams: streams}, func(x *Exchange) {
		defer x.Close()
		var req message.Request
		x.ReadHead(&req)
		res := http2test.NewResponse(204, "Large: "+strings.Repeat("x", head))
		x.WriteHead(&req, res)
		c.mu.Lock()
		most = max(most, c.core.Pending())
		c.mu.Unlock()
	})
	d.busy = func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.core.Working() > streams/4
	}
	done := make(chan error, 1)
	go func() {
		c.Start()
		err := c.Step()
		c.Abort()
		done <- err
	}()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		full := c.core.Pending() >= mostUnread && c.core.Working() == 0
		c.mu.Unlock()
		if full || time.Now().After(deadline) {
			close(d.hangUp)
			break
		}
	}
	if err := <-done; err == nil || err == io.EOF {
		t.Errorf("it ended with %v", err)
	}
	if d.left == 0 || most > mostUnread+streams*2*head {
		t.Errorf("%d bytes waited to be sent, and %d requests more were not read", most, d.left)
	}
}

// gone is a client whose connection is lost while it sends.
type gone struct {
	io.Reader
	failed chan struct{}
}

var errGone = errors.New("the client is gone")

func (g *gone) Write([]byte) (int, error) {
	close(g.failed)
	return 0, errGone
}

// A lost connection does not count as an error of the client.
func TestConnectionLost(t *testing.T) {
	first, rest := http2test.Greeted().Bytes(), http2test.NewPeer().Get(1).Bytes()
	g := &gone{failed: make(chan struct{})}
	var c Connection
	late := readFunc(func(p []byte) (int, error) {
		<-g.failed
		for c.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return copy(p, rest), nil
	})
	g.Reader = io.MultiReader(bytes.NewReader(first), late)
	c.Init(g, core.Config{}, func(x *Exchange) { x.Close() })
	c.Start()
	if err := c.Step(); err != errGone {
		t.Error(err)
	}
	c.Abort()
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// bursting is a client at which every write panics.
type bursting struct{ io.Reader }

func (bursting) Write([]byte) (int, error) { panic("burst") }

// A panic of the flusher is an error of the connection. Only RepeatPanic repeats it.
func TestPanicOfTheFlusher(t *testing.T) {
	var c Connection
	c.Init(bursting{http2test.Greeted()}, core.Config{}, func(x *Exchange) { x.Close() })
	c.RepeatPanic() // nothing has panicked yet
	c.Start()
	c.Abort()
	var p *PanicError
	if err := c.Err(); !errors.As(err, &p) || p.Value != "burst" {
		t.Errorf("the connection ended with %v", err)
	}
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "burst, in a flusher:") {
			t.Errorf("RepeatPanic panicked with %.80q", text)
		}
	}()
	c.RepeatPanic()
}
