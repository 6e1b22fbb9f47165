package core

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/http2/http2test"
)

// Many clients share a connection to an endpoint. Nothing that one client does, and no
// response to it, ends the connection for the others.
func TestOneClientDoesNotEndTheConnection(t *testing.T) {
	const calls = 3000
	piece := strings.Repeat("x", 100)
	tests := map[string]struct {
		what func(x *side, s *Stream, p *http2test.Peer) // one call of the client, and the frames of the endpoint for it
		log  string                                      // the expected result of each call
	}{
		"it calls requests off": {what: func(x *side, s *Stream, p *http2test.Peer) {
			x.core.Reset(s, Cancel)
			p.Head(s.ID(), false, ":status: 200")
			for range 20 {
				p.Data(s.ID(), false, piece)
			}
			p.Head(s.ID(), true, "grpc-status: 0")
		}},
		"it calls requests off, and the endpoint resets them": {what: func(x *side, s *Stream, p *http2test.Peer) {
			x.core.Reset(s, Cancel)
			p.Head(s.ID(), false, ":status: 200").Raw(frameReset, 0, s.ID(), "\x00\x00\x00\x08")
		}},
		"it has no memory for responses": {log: "memory", what: func(x *side, s *Stream, p *http2test.Peer) {
			p.Head(s.ID(), false, ":status: 200", "x: "+strings.Repeat("v", 5<<10)).Data(s.ID(), true, piece)
		}},
		"it is answered badly": {log: "malformed", what: func(x *side, s *Stream, p *http2test.Peer) {
			p.Head(s.ID(), false, ":status: 200", "content-length: 1").Data(s.ID(), false, piece).Data(s.ID(), true, piece)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x, _, others := asking(t)
			account := http2test.NewAccount(t, 0)
			id, messages := others.ID(), make([]*http2test.Peer, 0, calls)
			for range calls { // no response has arrived when the last call begins
				s, err := x.core.Open(http2test.NewRequest("GET", "/", "a"), true)
				if err != nil {
					t.Fatal(err)
				}
				s.ChargeTo(account)
				p := http2test.NewPeer()
				test.what(x, s, p)
				messages = append(messages, p)
				if test.log != "" { // the call is over when the response has arrived
					x.receive(messages[0].Bytes(), 0)
					messages = messages[:0]
				}
				x.core.Take()
			}
			for _, p := range messages {
				x.receive(p.Bytes(), 0)
				x.core.Take()
			}
			if n := strings.Count(strings.Join(x.log, "\n"), test.log); test.log != "" && n < calls {
				t.Errorf("%d of %d calls ended as %s", n, calls, test.log)
			}
			if err := x.receive(http2test.NewPeer().Head(id, false, ":status: 200").Bytes(), 0); err != nil {
				t.Fatalf("the others lost their connection: %v", err)
			}
		})
	}
}

// weir excuses only the frames that the endpoint may have sent before it knew of the reset.
func TestExcusedFramesAreBounded(t *testing.T) {
	x, s, _ := asking(t)
	x.core.Reset(s, Cancel)
	x.core.Take()
	p := http2test.NewPeer().Data(s.ID(), false, strings.Repeat("x", leastFrameSize))
	var err error
	sent := 0
	for ; err == nil && sent < 5000; sent++ {
		err = x.receive(p.Bytes(), 0)
		x.core.Take()
	}
	if e, ok := err.(*ConnError); !ok || e.Reason != "useless_frames" || sent > int(budgets[forIgnored].burst)+10 {
		t.Errorf("after %d frames it ended with %v", sent, err)
	}
}
