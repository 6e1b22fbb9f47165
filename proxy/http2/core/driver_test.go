package core

import (
	"fmt"
	"slices"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// A core without output holds no buffer, and gives back the memory of all output.
func TestOutputIsChargedUntilFree(t *testing.T) {
	account := http2test.NewAccount(t, 1<<20)
	f := func(what string, x *side) {
		t.Helper()
		before := account.Used() - int64(cap(x.core.out))
		x.core.Take().Free()
		if account.Used() != before || x.core.out != nil {
			t.Errorf("%s: %d bytes are charged for no output, %d for a buffer", what, account.Used()-before, cap(x.core.out))
		}
	}
	f("an account from the start", newSide(Config{Account: account}))
	late := newSide(Config{Role: Client})
	late.core.ChargeTo(account)
	f("a later account", late)
	late.core.Ping()
	f("more output", late)
}

// A stream without memory for its body is reset with another code by each role.
func TestOutOfMemory(t *testing.T) {
	server := newSide(Config{})
	server.receive(http2test.Greeted().Post(1).Bytes(), 0)
	client, _, post := asking(t)
	for want, x := range map[string]*side{"ENHANCE_YOUR_CALM": server, "CANCEL": client} {
		x.core.Take().Free()
		s := post
		if x == server {
			s = x.only(t)
		}
		x.core.OutOfMemory(s)
		http2test.Equal(t, want, frames(t, x.core.Take().Bytes(), false), []string{"RST_STREAM " + map[bool]string{true: "1", false: "3"}[x == server] + " " + want})
	}
}

// The memory of a stream is given back to the account that was charged for it.
func TestStreamChargesAnotherAccount(t *testing.T) {
	first, second := http2test.NewAccount(t, 1<<20), http2test.NewAccount(t, 1<<20)
	x := newSide(Config{Account: first})
	x.receive(http2test.Greeted().Post(1).Bytes(), 0)
	x.core.Take().Free()
	s, before := x.only(t), first.Used()
	s.ChargeTo(second)
	if given := before - first.Used(); given < memory.Exchange || s.Account() != second {
		t.Errorf("%d bytes were given back", given)
	}
	x.finish()
}

// A stream says how much of its body is missing, and how much the peer may send.
func TestStreamState(t *testing.T) {
	x := newSide(Config{})
	x.keep = true
	x.receive(http2test.Greeted().Post(1, "content-length: 1000").Data(1, false, "hello").Bytes(), 0)
	s := x.only(t)
	in, out := s.Transferred()
	if s.Missing() != 995 || s.Window() != initialWindow-5 || in < 2*frameHeaderSize+5 || out != 0 {
		t.Errorf("%d bytes are missing, %d allowed; %d and %d transferred", s.Missing(), s.Window(), in, out)
	}
	x.core.Respond(s, http2test.NewResponse(200), false)
	x.core.Write(s, make([]byte, initialWindow+1), false)
	if !s.Blocked() {
		t.Error("the window of the stream is used up, and the stream is not blocked")
	}
	if _, out = s.Transferred(); out < initialWindow {
		t.Errorf("%d bytes were sent", out)
	}
}

// Only the window of the connection is used up: the stream is not blocked.
func TestConnectionLimits(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 20}).Post(1).Bytes(), 0)
	s := x.only(t)
	x.core.Respond(s, http2test.NewResponse(200), false)
	if n, _ := x.core.Write(s, make([]byte, initialWindow+1), false); n != initialWindow || s.Blocked() {
		t.Errorf("%d bytes were sent, blocked: %v", n, s.Blocked())
	}
}

// Streams are those that are not closed, oldest first.
func TestStreams(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Post(1).Post(3).Post(5).Raw(frameReset, 0, 3, "\x00\x00\x00\x08").Bytes(), 0)
	var ids []uint32
	for _, s := range slices.Collect(x.core.Streams()) {
		ids = append(ids, s.ID())
	}
	http2test.Equal(t, "streams", ids, []uint32{1, 5})
}

// A client has no more streams when their numbers are used up.
func TestNumbersUsedUp(t *testing.T) {
	x, _, _ := asking(t)
	x.core.nextOwn = mostStreamID - 4
	for _, leaving := range []bool{false, true} {
		if x.core.GoingAway() != leaving || (x.core.Capacity() == 0) != leaving {
			t.Errorf("leaving: %v, with room for %d streams", x.core.GoingAway(), x.core.Capacity())
		}
		x.core.Open(http2test.NewRequest("GET", "/", "a"), true)
		x.core.Open(http2test.NewRequest("GET", "/", "a"), true)
	}
}

// A driver may repeat a Ping that is not answered.
func TestForgetPing(t *testing.T) {
	x := newSide(Config{Role: Client})
	x.core.Take().Free()
	x.core.Ping()
	x.core.Ping()
	x.core.ForgetPing()
	x.core.Ping()
	http2test.Equal(t, "output", frames(t, x.core.Take().Bytes(), false), []string{`PING "weirlive" ack false`, `PING "weirlive" ack false`})
}

// Only trailers that Finish sends count.
func TestHasTrailers(t *testing.T) {
	dropped := http2test.NewHead("x: y")
	dropped.Fields[0].Dropped = true
	for _, c := range []struct {
		h    *message.Head
		want bool
	}{{http2test.NewHead(), false}, {http2test.NewHead("x: y"), true}, {http2test.NewHead("content-length: 1"), false}, {dropped, false}} {
		http2test.Equal(t, http2test.FieldsText(c.h), HasTrailers(c.h), c.want)
	}
}

// Accepts returns false for a response to an upgrade that has a wrong key, or another 2xx than 101. Such a
// response would start a tunnel.
func TestAccepts(t *testing.T) {
	const key, accept = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
	for _, c := range []struct {
		upgrade string
		fields  []string
		res     *message.Response
		want    bool
	}{
		{"", nil, http2test.NewResponse(200), true},
		{"websocket", []string{key}, http2test.NewResponse(200), false},
		{"websocket", []string{key}, http2test.NewResponse(403), true},
		{"websocket", []string{key}, http2test.NewResponse(101), false},
		{"websocket", []string{key}, http2test.NewResponse(101, accept), true},
		{"websocket", []string{key}, http2test.NewResponse(101, accept+"x"), false},
		{"websocket", nil, http2test.NewResponse(101), true},
		{"other", []string{key}, http2test.NewResponse(101), true},
	} {
		req := http2test.NewRequest("GET", "/", "a", c.fields...)
		if c.upgrade != "" {
			req.Upgrade = req.StoreString(c.upgrade)
		}
		http2test.Equal(t, fmt.Sprint(c.upgrade, c.fields, responseText(c.res)), Accepts(req, c.res), c.want)
	}
}
