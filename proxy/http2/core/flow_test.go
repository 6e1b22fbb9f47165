package core

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// pair is a client and a server that have exchanged their greetings.
func pair(t *testing.T, c, s Config) (client, server *side) {
	t.Helper()
	c.Role = Client
	client, server = newSide(c), newSide(s)
	if err := exchange(client, server); err != nil {
		t.Fatal(err)
	}
	client.log, server.log = nil, nil
	return client, server
}

// only returns the only stream of a side.
func (x *side) only(t *testing.T) *Stream {
	t.Helper()
	for s := range x.streams {
		if !s.Closed() {
			return s
		}
	}
	t.Fatal("there is no stream")
	return nil
}

func TestExchangeInMemory(t *testing.T) {
	client, server := pair(t, Config{}, Config{})
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	up, err := client.core.Open(http2test.NewRequest("POST", "/up", "a", "Content-Length: 1048576", "Cookie: a=1; b=2"), false)
	if err != nil {
		t.Fatal(err)
	}
	client.send(up, body, true)
	if err := exchange(client, server); err != nil {
		t.Fatal(err)
	}
	s := server.only(t)
	if got := server.of(s); !got.ended || !bytes.Equal(got.body, body) {
		t.Fatalf("%d bytes arrived, ended %v", len(got.body), got.ended)
	}
	res := http2test.NewResponse(200, "Trailer: T")
	server.core.Respond(s, http2test.NewResponse(103, "Link: x"), false)
	server.core.Respond(s, res, false)
	server.send(s, body, false)
	if err := exchange(client, server); err != nil {
		t.Fatal(err)
	}
	var trailers message.Head
	trailers.AddField("T", "u")
	trailers.AddField("Content-Length", "5")
	if err := server.core.Finish(s, &trailers); err != nil {
		t.Fatal(err)
	}
	if err := exchange(client, server); err != nil {
		t.Fatal(err)
	}
	got := client.of(up)
	if !got.ended || !bytes.Equal(got.body, body) || !up.Closed() || !s.Closed() {
		t.Errorf("%d bytes arrived, ended %v", len(got.body), got.ended)
	}
	http2test.Equal(t, "client's events", client.log, []string{"1: 103 length 0 [link: x]", "1: 200 length -1 [trailer: T]",
		`1: end "0123456789abcdef0123... 1048576" [t: u]`})
	client.core.Release(up)
	server.core.Release(s)
	if client.core.Working() != 0 || server.core.Working() != 0 {
		t.Error("streams are left")
	}
}

func TestWebSocketInMemory(t *testing.T) {
	client, server := pair(t, Config{}, Config{})
	req := http2test.NewRequest("GET", "/chat", "a", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
	req.Upgrade = req.StoreString("websocket")
	c, err := client.core.Open(req, false)
	if err != nil {
		t.Fatal(err)
	}
	exchange(client, server)
	s := server.only(t)
	res := http2test.NewResponse(101, "Sec-WebSocket-Accept: whatever", "Connection: Upgrade", "Upgrade: websocket")
	server.core.Respond(s, res, false)
	server.send(s, []byte("hello"), false)
	exchange(client, server)
	client.send(c, []byte("world"), true)
	exchange(client, server)
	server.send(s, nil, true)
	exchange(client, server)
	http2test.Equal(t, "client's events", client.log, []string{"1: 101 length 0 [Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=]", `1: end "hello"`}) // RFC 6455, section 1.3
	http2test.Equal(t, "server's events", len(server.log), 2)
	http2test.Equal(t, "server's end", server.log[1], `1: end "world"`)
	if string(client.of(c).res.Bytes(client.of(c).res.Upgrade)) != "websocket" {
		t.Error("the client has not the protocol of its upgrade")
	}

	// A server refuses the upgrade, and another server does not support it.
	client.core.Open(req, false)
	exchange(client, server)
	server.core.Respond(server.only(t), http2test.NewResponse(403), true)
	client.log = nil
	exchange(client, server)
	http2test.Equal(t, "refused", client.log, []string{"3: 403 length 0", "3: end"})
	client, _ = pair(t, Config{}, Config{NoConnectProtocol: true})
	if _, err := client.core.Open(req, false); err != ErrNoConnectProtocol {
		t.Error(err)
	}
}

// A slow reader delays only its own stream.
func TestSlowReader(t *testing.T) {
	client, server := pair(t, Config{}, Config{})
	server.keep = true
	slow, _ := client.core.Open(http2test.NewRequest("POST", "/", "a"), false)
	client.send(slow, make([]byte, 1<<20), true)
	exchange(client, server)
	s := server.only(t)
	if got := len(server.of(s).body); got != initialWindow {
		t.Fatalf("%d bytes arrived unread", got)
	}
	server.keep = false
	for range 20 {
		quick, err := client.core.Open(http2test.NewRequest("POST", "/", "a"), false)
		if err != nil {
			t.Fatal(err)
		}
		client.send(quick, make([]byte, 200000), true)
		exchange(client, server)
		if len(client.of(quick).toSend) > 0 {
			t.Fatal("a stream waits for the slow one")
		}
	}
	server.core.Consumed(s, initialWindow)
	exchange(client, server)
	if got := len(server.of(s).body); got != 1<<20 || !server.of(s).ended {
		t.Errorf("%d bytes arrived in the end", got)
	}
}

// Bytes that arrive for a stream after its reset still count, and weir returns them to
// the window.
func TestBytesForNobody(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Post(1).Bytes(), 0)
	x.core.Reset(x.only(t), Cancel)
	x.core.Take()
	sent, returned := 0, 0
	for range 100 {
		if err := x.receive(http2test.NewPeer().Data(1, false, strings.Repeat("x", 16000)).Bytes(), 1000); err != nil {
			t.Fatal(err)
		}
		sent += 16000
		for _, f := range frames(t, x.core.Take().Bytes(), true) {
			var n int
			if _, err := fmt.Sscanf(f, "WINDOW_UPDATE 0 %d", &n); err == nil {
				returned += n
			}
		}
	}
	if sent-returned > firstConnectionWindow/2 {
		t.Errorf("of %d bytes %d were given back", sent, returned)
	}
}

// Windows grow to their limits, and no further, if the reader keeps up.
func TestWindowsGrow(t *testing.T) {
	client, server := pair(t, Config{}, Config{})
	up, _ := client.core.Open(http2test.NewRequest("POST", "/", "a"), false)
	for range 20 {
		client.send(up, make([]byte, 4<<20), false)
		exchange(client, server)
	}
	s := server.only(t)
	if s.recvSize != 1<<20 || server.core.recvSize != 4<<20 {
		t.Errorf("windows of %d and %d", s.recvSize, server.core.recvSize)
	}
	if server.core.grown != 1<<20-initialWindow {
		t.Errorf("%d bytes have grown", server.core.grown)
	}
	server.core.Reset(s, Cancel)
	if server.core.grown != 0 {
		t.Errorf("%d bytes are left", server.core.grown)
	}
}

func TestWindowExceeded(t *testing.T) {
	x := newSide(Config{})
	x.keep = true
	p := http2test.Greeted().Post(1)
	for range 5 {
		p.Data(1, false, strings.Repeat("x", 16000))
	}
	x.receive(p.Bytes(), 0)
	http2test.Equal(t, "a stream's", frames(t, x.core.Take().Bytes(), false), []string{"RST_STREAM 1 FLOW_CONTROL_ERROR"})

	x = newSide(Config{ConnectionWindow: initialWindow})
	x.core.recvSize = 1 << 40 // weir returns nothing to the window
	p = http2test.Greeted().Post(1).Post(3)
	for range 3 {
		p.Data(1, false, strings.Repeat("x", 16000)).Data(3, false, strings.Repeat("x", 16000))
	}
	x.receive(p.Bytes(), 0)
	http2test.Equal(t, "the connection's", frames(t, x.core.Take().Bytes(), false), []string{"GOAWAY 3 FLOW_CONTROL_ERROR window_exceeded"})
}

// Sending obeys the peer's windows, which may even become negative.
func TestSendingWindows(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.NewPeer().Greet(xhttp2.Setting{ID: settingWindow, Val: 10}).Get(1).Bytes(), 0)
	s := x.only(t)
	x.core.Respond(s, http2test.NewResponse(200), false)
	x.send(s, []byte("0123456789abcdefghijklmnop"), true)
	f := func(what string, p *http2test.Peer, want ...string) {
		t.Helper()
		x.receive(p.Bytes(), 0)
		http2test.Equal(t, what, frames(t, x.core.Take().Bytes(), false), want)
	}
	f("the first window", http2test.NewPeer(), "HEADERS 1 [:status: 200]", `DATA 1 "0123456789"`)
	p := http2test.NewPeer()
	p.Framer.WriteSettings(xhttp2.Setting{ID: settingWindow, Val: 4})
	f("it shrinks", p)
	if s.sendWindow != -6 {
		t.Errorf("the window is %d", s.sendWindow)
	}
	f("to nothing", http2test.NewPeer().Raw(frameWindowUpdate, 0, 1, "\x00\x00\x00\x06"))
	f("by 2", http2test.NewPeer().Raw(frameWindowUpdate, 0, 1, "\x00\x00\x00\x02"), `DATA 1 "ab"`)
	p = http2test.NewPeer()
	p.Framer.WriteSettings(xhttp2.Setting{ID: settingWindow, Val: 7})
	f("by 3", p, `DATA 1 "cde"`)
	f("wide open", http2test.NewPeer().Raw(frameWindowUpdate, 0, 1, "\x00\x00\x10\x00"), `DATA 1 "fghijklmnop" end`)
}

// Streams that wait for the connection's window get it in turn.
func TestTurns(t *testing.T) {
	x := newSide(Config{})
	p := http2test.NewPeer().Greet(xhttp2.Setting{ID: settingWindow, Val: 1 << 20})
	for i := range 5 {
		p.Get(uint32(1 + 2*i))
	}
	x.receive(p.Bytes(), 0)
	for i := range 5 {
		s := x.core.table.find(uint32(1 + 2*i))
		x.core.Respond(s, http2test.NewResponse(200), false)
		x.send(s, make([]byte, 40000), true)
	}
	got := map[uint32]int{}
	for range 30 {
		for _, f := range frames(t, x.core.Take().Bytes(), false) {
			var id uint32
			if n, _ := fmt.Sscanf(f, "DATA %d", &id); n == 1 {
				got[id]++
			}
		}
		x.receive(http2test.NewPeer().Raw(frameWindowUpdate, 0, 0, "\x00\x00\x20\x00").Bytes(), 0)
	}
	if len(got) != 5 {
		t.Errorf("frames by stream: %v", got)
	}
	for s := range x.streams {
		if !s.Closed() {
			t.Errorf("stream %d waits for ever", s.ID())
		}
	}
}

// Bodies wait while the driver does not take the output.
func TestOutputIsBounded(t *testing.T) {
	x := newSide(Config{Output: 64 << 10})
	x.receive(http2test.NewPeer().Greet(xhttp2.Setting{ID: settingWindow, Val: 1 << 30}).Raw(frameWindowUpdate, 0, 0, "\x40\x00\x00\x00").Get(1).Get(3).Bytes(), 0)
	for s := range x.streams {
		x.core.Respond(s, http2test.NewResponse(200), false)
		x.send(s, make([]byte, 1<<20), true)
	}
	total := 0
	for range 100 {
		if n := x.core.Pending(); n > 64<<10+100 {
			t.Fatalf("%d bytes wait", n)
		}
		total += len(x.core.Take().Bytes())
	}
	if total < 2<<20 {
		t.Errorf("%d bytes were sent", total)
	}
}

func TestManyStreams(t *testing.T) {
	x := newSide(Config{Streams: 3})
	p := http2test.Greeted().Raw(frameSettings, flagAck, 0, "").Post(1).Post(3).Post(5).Post(7)
	x.receive(p.Bytes(), 0)
	http2test.Equal(t, "one too many", frames(t, x.core.Take().Bytes(), false), []string{"RST_STREAM 7 REFUSED_STREAM"})
	// Streams that the client reset count until the driver releases them.
	for id := uint32(9); id < 19; id += 2 {
		x.receive(http2test.NewPeer().Raw(frameReset, 0, id-4, "\x00\x00\x00\x08").Post(id).Bytes(), 0)
	}
	if x.core.Working() != 6 {
		t.Errorf("%d streams are worked on", x.core.Working())
	}

	client, server := pair(t, Config{}, Config{Streams: 2})
	for i := range 3 {
		s, err := client.core.Open(http2test.NewRequest("GET", "/", "a"), true)
		if (err == nil) != (i < 2) {
			t.Fatalf("stream %d: %v", i, err)
		}
		if err == nil {
			client.of(s)
		}
	}
	exchange(client, server)
	for s := range server.streams {
		server.core.Respond(s, http2test.NewResponse(204), true)
	}
	exchange(client, server)
	http2test.Equal(t, "capacity", client.core.Capacity(), 2)
}

func TestGoingAway(t *testing.T) {
	client, server := pair(t, Config{}, Config{})
	one, _ := client.core.Open(http2test.NewRequest("POST", "/", "a"), false)
	exchange(client, server)
	server.core.GoAway()
	two, err := client.core.Open(http2test.NewRequest("POST", "/", "a"), false) // it crosses the first GOAWAY on the way
	if err != nil {
		t.Fatal(err)
	}
	client.of(two)
	exchange(client, server)
	if _, err := client.core.Open(http2test.NewRequest("GET", "/", "a"), true); err != ErrNoStream {
		t.Error(err)
	}
	if !server.core.GoingAway() || server.core.Working() != 2 {
		t.Errorf("leaving %v, working %d", server.core.GoingAway(), server.core.Working())
	}
	client.send(one, []byte("x"), true)
	client.send(two, []byte("y"), true)
	exchange(client, server)
	for s := range server.streams {
		server.core.Respond(s, http2test.NewResponse(204), true)
		server.core.Release(s)
	}
	exchange(client, server)
	if !client.of(one).ended || !client.of(two).ended || server.core.Working() != 0 {
		t.Error("what was taken is not finished")
	}
	// weir ignores a stream that a client opens after GOAWAY, and discards its bytes.
	server.receive(http2test.NewPeer().Post(9).Data(9, true, "x").Bytes(), 0)
	http2test.Equal(t, "a stream too late", len(server.core.Take().Bytes()), 0)
	http2test.Equal(t, "working", server.core.Working(), 0)
}

func TestPingsAndAbort(t *testing.T) {
	client, server := pair(t, Config{}, Config{})
	s, _ := client.core.Open(http2test.NewRequest("GET", "/", "a"), true)
	client.of(s)
	client.core.Ping()
	client.core.Ping()
	exchange(client, server)
	http2test.Equal(t, "events", client.log, []string{"ping acked"})
	client.core.Abort(InternalError, "lost", "the connection was lost")
	http2test.Equal(t, "events", client.log[1:], []string{"1: reset by peer INTERNAL_ERROR lost"})
	if client.core.Receive(time.Now(), []byte("x")) == nil || client.core.Capacity() != 0 {
		t.Error("it goes on")
	}
	client.core.Release(s)
}

// The reset that stops the rest of an upload is not in the same write as the response.
func TestResetBehindAResponse(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Post(1).Post(3).Bytes(), 0)
	for _, s := range []*Stream{x.core.table.streams[0], x.core.table.streams[1]} {
		x.core.Respond(s, http2test.NewResponse(413), true)
		x.core.Release(s)
	}
	http2test.Equal(t, "first", frames(t, x.core.Take().Bytes(), false), []string{"HEADERS 1 [:status: 413] end", "HEADERS 3 [:status: 413] end"})
	http2test.Equal(t, "then", frames(t, x.core.Take().Bytes(), false), []string{"RST_STREAM 1 NO_ERROR", "RST_STREAM 3 NO_ERROR"})
	http2test.Equal(t, "and then", x.core.Pending(), 0)
}
