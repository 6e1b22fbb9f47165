package http2

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Many clients share a connection to an endpoint. Nothing that one client does, and no
// response to it, ends the connection for the others.
func TestOneClientDoesNotEndTheConnection(t *testing.T) {
	const calls = 3000
	piece := strings.Repeat("x", 100)
	tests := map[string]struct {
		what func(x *side, s *Stream, p *peer) // one call of the client, and the frames of the endpoint for it
		log  string                            // the expected result of each call
	}{
		"it calls requests off": {what: func(x *side, s *Stream, p *peer) {
			x.core.Reset(s, Cancel)
			p.head(s.ID(), false, ":status: 200")
			for range 20 {
				p.data(s.ID(), false, piece)
			}
			p.head(s.ID(), true, "grpc-status: 0")
		}},
		"it calls requests off, and the endpoint resets them": {what: func(x *side, s *Stream, p *peer) {
			x.core.Reset(s, Cancel)
			p.head(s.ID(), false, ":status: 200").raw(frameReset, 0, s.ID(), "\x00\x00\x00\x08")
		}},
		"it has no memory for responses": {log: "memory", what: func(x *side, s *Stream, p *peer) {
			p.head(s.ID(), false, ":status: 200", "x: "+strings.Repeat("v", 5<<10)).data(s.ID(), true, piece)
		}},
		"it is answered badly": {log: "malformed", what: func(x *side, s *Stream, p *peer) {
			p.head(s.ID(), false, ":status: 200", "content-length: 1").data(s.ID(), false, piece).data(s.ID(), true, piece)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x, _, others := asking(t)
			account := newAccount(t, 0)
			id, messages := others.ID(), make([]*peer, 0, calls)
			for range calls { // no response has arrived when the last call begins
				s, err := x.core.Open(newRequest("GET", "/", "a"), true)
				if err != nil {
					t.Fatal(err)
				}
				s.ChargeTo(account)
				p := newPeer()
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
			if err := x.receive(newPeer().head(id, false, ":status: 200").Bytes(), 0); err != nil {
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
	p := newPeer().data(s.ID(), false, strings.Repeat("x", leastFrameSize))
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

// A client sends large requests to an endpoint that reads nothing, and cancels them. When
// much of them waits on the connection, it accepts no more. All of it is charged. When the
// endpoint reads again, the connection accepts calls again.
func TestEndpointThatReadsNothingGetsNoMoreCalls(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reads := make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.(*net.TCPConn).SetReadBuffer(128 << 10)
		c.Write(newPeer().raw(frameSettings, 0, 0, "").Bytes())
		<-reads
		io.Copy(io.Discard, c)
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc.(*net.TCPConn).SetWriteBuffer(128 << 10)
	changed := make(chan struct{}, 10)
	trunk := NewTrunk(conn.New(nc), nil, message.Limits{}, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	process := memory.NewProcess(ctx)
	trunk.Account(process)
	if err := trunk.Start(ctx); err != nil {
		t.Fatal(err)
	}
	req := newRequest("GET", "/", "a", "x: "+strings.Repeat("v", 48<<10))
	const most = 256 // 12 MiB in total, more than the sockets hold
	n := 0
	for ; n < most && trunk.Limit() > 0; n++ {
		x := trunk.Call()
		x.WriteHead(req)
		x.Flush()
		x.End()
	}
	trunk.mu.Lock()
	pending := trunk.core.Pending()
	trunk.mu.Unlock()
	if n == most || pending < mostUnread || pending > mostUnread+64<<10 {
		t.Errorf("%d calls began, %d bytes wait", n, pending)
	}
	if used := process.Used(); used < int64(pending) {
		t.Errorf("%d bytes are charged of %d", used, pending)
	}
	close(reads)
	for trunk.Limit() == 0 {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the connection takes no calls again")
		}
	}
	trunk.Leave()
	<-trunk.done
	if used := process.Used(); used != 0 {
		t.Errorf("%d bytes are left in the account", used)
	}
}
