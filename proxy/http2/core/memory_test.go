package core

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2/http2test"
)

// finish gives back what a core and its driver hold.
func (x *side) finish() {
	x.core.Abort(Cancel, "lost", "the connection was lost")
	x.core.fail(Cancel, "lost", "the connection was lost")
	x.core.forgetGather()
	x.core.forgetPending()
	for s := range x.streams {
		x.core.Release(s)
	}
	x.core.Take().Free()
}

// A value that a head contains several times is stored once.
func TestHeadIsPacked(t *testing.T) {
	x := newSide(Config{})
	large, small := strings.Repeat("v", 3000), strings.Repeat("w", leastPacked)
	lines := []string{"x-a: " + large}
	for i := range 15 {
		lines = append(lines, "x-a: "+large, fmt.Sprintf("x-%d: %s", i%3, small))
	}
	lines = append(lines, "x-other: "+large[1:]+"u")
	if err := x.receive(http2test.Greeted().Get(1, lines...).Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	for _, seen := range x.streams {
		h := &seen.req.Head
		if room := h.Room(); room > 12<<10 {
			t.Errorf("the head takes %d bytes", room)
		}
		at := len(h.Fields) - len(lines)
		for i, line := range lines {
			if got := string(h.Name(at+i)) + ": " + string(h.Value(at+i)); got != line {
				t.Fatalf("field %d is %.40q, want %.40q", i, got, line)
			}
		}
	}
}

// weir refuses a stream without memory, before or while it decodes the head, and the
// connection continues.
func TestStreamsRefusedForMemory(t *testing.T) {
	x := newSide(Config{Account: http2test.NewAccount(t, 2*memory.Exchange+20<<10)})
	p := http2test.Greeted()
	p.Get(1)
	p.Get(3, "x-a: "+strings.Repeat("a", 7000), "x-b: "+strings.Repeat("b", 7000))
	if err := x.receive(p.Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	for s, seen := range x.streams {
		if seen.over { // as drivers do
			x.core.Release(s)
			delete(x.streams, s)
		}
	}
	p.Get(5).Get(7)
	if err := x.receive(p.Bytes(), 0); err != nil {
		t.Fatal(err)
	}
	out := x.core.Take()
	var resets []string
	for _, f := range frames(t, out.Bytes(), false) {
		if strings.HasPrefix(f, "RST") {
			resets = append(resets, f)
		}
	}
	out.Free()
	http2test.Equal(t, "resets", resets, []string{"RST_STREAM 3 REFUSED_STREAM", "RST_STREAM 7 REFUSED_STREAM"})
	http2test.Equal(t, "reasons", x.refused, []string{"memory"}) // stream 3 gets a Reset event
	x.finish()
}

// A head that comes in many frames, and the beginning of a frame, are charged while they
// arrive.
func TestHeadInPiecesIsCharged(t *testing.T) {
	for _, c := range []struct {
		what string
		send func(p *http2test.Peer)
	}{
		{"CONTINUATION", func(p *http2test.Peer) {
			p.Raw(frameHeaders, 0, 1, strings.Repeat("\x00", 16000))
			p.Raw(frameContinuation, 0, 1, strings.Repeat("\x00", 16000))
		}},
		{"a part of a frame", func(p *http2test.Peer) {
			p.Write(appendFrame(nil, 16384, frameHeaders, 0, 1))
			p.WriteString(strings.Repeat("a", 16000))
		}},
	} {
		x := newSide(Config{Account: http2test.NewAccount(t, 40<<10)}) // the output takes 16 KiB
		p := http2test.Greeted()
		c.send(p)
		if c.what == "CONTINUATION" {
			err := x.receive(p.Bytes(), 0)
			if err == nil || err.(*ConnError).Reason != "memory" {
				t.Errorf("%s: %v", c.what, err)
			}
		} else {
			before := x.core.config.Account.Used()
			if err := x.receive(p.Bytes(), 0); err != nil {
				t.Fatal(err)
			}
			if more := x.core.config.Account.Used() - before; more < 16000 {
				t.Errorf("%s: %d bytes are charged", c.what, more)
			}
		}
		x.finish()
	}
}

// A connection to an endpoint carries the calls of many clients. A frame in pieces does not end it, however
// little memory there is.
func TestEndpointGoesOnWithoutMemory(t *testing.T) {
	x := newSide(Config{Role: Client, Account: http2test.NewAccount(t, 0)})
	p := http2test.NewPeer()
	p.Framer.WriteSettings()
	p.Write(appendFrame(nil, 16384, frameHeaders, 0, 1)[:5])
	if err := x.receive(p.Bytes(), 0); err != nil {
		t.Errorf("the connection ends: %v", err)
	}
	x.finish()
}
