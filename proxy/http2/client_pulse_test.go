package http2

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// weir does not send many PINGs to an endpoint that is silent but alive: grpc-go would
// end the connection.
func TestPulse(t *testing.T) {
	var p pulse
	now := time.Unix(1e9, 0)
	// hour simulates an hour in which weir sends something at an interval of every. It
	// counts the PINGs. With answered, the endpoint answers.
	hour := func(every time.Duration, answered bool) (pings int) {
		for second := time.Duration(0); second < time.Hour; second += time.Second {
			now = now.Add(time.Second)
			if every > 0 && second%every == 0 {
				if p.said(now); answered {
					p.heard(now)
					p.answered()
				}
			}
			if p.due(now) {
				p.ask(now)
				p.said(now)
				p.heard(now)
				pings++
			}
		}
		return pings
	}
	http2test.Equal(t, "PINGs while idle", hour(0, false), 0)
	http2test.Equal(t, "PINGs while busy", hour(time.Second, true), 0)
	http2test.Equal(t, "PINGs between rare exchanges", hour(time.Minute, true), 0)
	if n := hour(time.Minute, false); n < 8 || n > freePings+10 {
		t.Errorf("%d PINGs while nothing is answered", n)
	}
	p.answered()
	p.said(now)
	now = now.Add(askAfter)
	if !p.due(now) {
		t.Error("none is due after an answer")
	}
}

// playedTrunk returns a trunk, and the connection by which the test plays its endpoint.
func playedTrunk(t *testing.T) (*Trunk, net.Conn, *xhttp2.Framer) {
	t.Helper()
	peers := make(chan net.Conn, 1)
	nc, err := net.Dial("tcp", http2test.Listen(t, func(c net.Conn) { peers <- c }))
	if err != nil {
		t.Fatal(err)
	}
	trunk := NewTrunk(conn.New(nc), nil, message.Limits{}, func() {})
	c := <-peers
	t.Cleanup(func() { c.Close(); <-trunk.done })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	f := xhttp2.NewFramer(c, c)
	f.WriteSettings()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := trunk.Start(ctx); err != nil {
		t.Fatal(err)
	}
	c.Read(make([]byte, len(core.Preface)))
	return trunk, c, f
}

func awaitFrame[T xhttp2.Frame](t *testing.T, f *xhttp2.Framer) (want T) {
	t.Helper()
	for {
		got, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("waiting for %T: %v", want, err)
		}
		if w, ok := got.(T); ok {
			return w
		}
	}
}

// The pulse detects an endpoint that has disappeared without closing the connection.
func TestPulseFindsTheDead(t *testing.T) {
	trunk, _, f := playedTrunk(t)
	x := trunk.Call()
	defer x.End()
	x.SetReadDeadline(time.Now().Add(20 * time.Second))
	x.WriteHead(http2test.NewRequest("GET", "/", "a"))
	x.Flush()
	id := awaitFrame[*xhttp2.HeadersFrame](t, f).StreamID
	ahead := func(d time.Duration) { trunk.Pulse(time.Now().Add(d)) }
	ahead(askAfter - 2*time.Second)
	ahead(askAfter + time.Second)
	awaitFrame[*xhttp2.PingFrame](t, f)
	ahead(askAfter + 2*time.Second)
	if trunk.Limit() == 0 {
		t.Error("it is in doubt too early")
	}
	ahead(askAfter + doubtAfter + 2*time.Second)
	if trunk.Limit() != 0 || trunk.Over() || x.Usable() {
		t.Error("a connection in doubt takes calls, or is over")
	}
	f.WriteRawFrame(xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, id, []byte{0x88})
	var res message.Response
	if err := x.ReadHead(nil, &res); err != nil {
		t.Fatal(err)
	}
	ahead(askAfter + doubtAfter + 2*time.Second)
	if trunk.Limit() == 0 {
		t.Error("it is not trusted again")
	}

	y := trunk.Call()
	defer y.End()
	y.SetReadDeadline(time.Now().Add(20 * time.Second))
	y.WriteHead(http2test.NewRequest("GET", "/", "a"))
	y.Flush()
	awaitFrame[*xhttp2.HeadersFrame](t, f)
	ahead(askAfter + time.Second)
	awaitFrame[*xhttp2.PingFrame](t, f)
	ahead(askAfter + time.Second + deadAfter)
	if err := y.ReadHead(nil, &res); !errors.Is(err, errSilent) {
		t.Error(err)
	}
	if _, err := x.ReadBody(&res); !errors.Is(err, errSilent) {
		t.Error(err)
	}
}
