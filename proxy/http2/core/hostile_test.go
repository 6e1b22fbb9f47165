package core

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// flood sends a server the frames of next until the server ends the connection. It returns the reason. The
// test takes all output. It holds each request until the request is reset, as a driver does.
func flood(t *testing.T, limit int, next func(i int) *http2test.Peer) string {
	t.Helper()
	x := newSide(Config{})
	x.receive(http2test.Greeted().Raw(frameSettings, flagAck, 0, "").Bytes(), 0)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	answered := 0
	for i := range limit {
		err := x.receive(next(i).Bytes(), 0)
		answered += len(x.core.Take().Bytes())
		for s, seen := range x.streams {
			if seen.over {
				x.core.Release(s)
				delete(x.streams, s)
			}
		}
		x.log = nil
		if err != nil {
			runtime.GC()
			runtime.ReadMemStats(&after)
			if answered > 64<<10 {
				t.Errorf("%v: %d bytes were sent in answer", err, answered)
			}
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
				t.Errorf("%v: %d bytes are held", err, grown)
			}
			runtime.KeepAlive(x)
			return err.(*ConnError).Code.String() + " " + err.(*ConnError).Reason
		}
	}
	return "borne"
}

func TestFloods(t *testing.T) {
	f := func(what, want string, limit int, next func(i int) *http2test.Peer) {
		t.Helper()
		http2test.Equal(t, what, flood(t, limit, next), want)
	}
	id := func(i int) uint32 { return uint32(1 + 2*i) }
	f("rapid reset", "ENHANCE_YOUR_CALM rapid_reset", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Get(id(i)).Raw(frameReset, 0, id(i), "\x00\x00\x00\x08")
	})
	f("MadeYouReset, by windows of nothing", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Get(id(i)).Raw(frameWindowUpdate, 0, id(i), "\x00\x00\x00\x00")
	})
	f("MadeYouReset, by windows that overflow", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Get(id(i)).Raw(frameWindowUpdate, 0, id(i), "\x7f\xff\xff\xff")
	})
	f("MadeYouReset, by a stream that ended", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Get(id(i)).Data(id(i), false, "x")
	})
	f("MadeYouReset, by HEADERS behind the end", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Get(id(i)).Get(id(i))
	})
	f("malformed requests", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer { return http2test.NewPeer().Get(id(i), "A: b") })
	f("empty heads", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Raw(frameHeaders, flagEndHeaders|flagEndStream, id(i), "")
	})
	f("trailers that are none", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Post(id(i)).Head(id(i), true, "connection: close")
	})
	f("trailers behind trailers", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Post(id(i)).Head(id(i), true, "a: b").Head(id(i), true, "a: b")
	})
	f("streams in excess", "ENHANCE_YOUR_CALM provoked_resets", 1000, func(i int) *http2test.Peer { return http2test.NewPeer().Get(id(i)) })
	f("PINGs", "ENHANCE_YOUR_CALM ping_flood", 1000, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(framePing, 0, 0, "12345678") })
	f("answers to no PINGs", "ENHANCE_YOUR_CALM ping_flood", 1000, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(framePing, flagAck, 0, "12345678") })
	f("SETTINGS", "ENHANCE_YOUR_CALM settings_flood", 100, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(frameSettings, 0, 0, "") })
	settings := strings.Repeat("\x00\x04\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00", leastFrameSize/12)
	f("long SETTINGS", "ENHANCE_YOUR_CALM settings_flood", 100, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(frameSettings, 0, 0, settings) })
	f("SETTINGS acks", "ENHANCE_YOUR_CALM settings_flood", 100, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(frameSettings, flagAck, 0, "") })
	f("GOAWAYs", "ENHANCE_YOUR_CALM settings_flood", 100, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(frameGoAway, 0, 0, "12345678") })
	f("PRIORITYs", "ENHANCE_YOUR_CALM useless_frames", 2000, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(framePriority, 0, 3, "12345") })
	f("unknown frames", "ENHANCE_YOUR_CALM useless_frames", 2000, func(i int) *http2test.Peer { return http2test.NewPeer().Raw(99, 0, 3, "12345") })
	f("windows by 1", "ENHANCE_YOUR_CALM window_flood", 3000, func(i int) *http2test.Peer {
		return http2test.NewPeer().Raw(frameWindowUpdate, 0, 0, "\x00\x00\x00\x01")
	})
	f("windows by nothing", "PROTOCOL_ERROR bad_window", 2, func(i int) *http2test.Peer {
		return http2test.NewPeer().Raw(frameWindowUpdate, 0, 0, "\x00\x00\x00\x00")
	})
	f("windows that overflow", "FLOW_CONTROL_ERROR window_overflow", 2, func(i int) *http2test.Peer {
		return http2test.NewPeer().Raw(frameWindowUpdate, 0, 0, "\x7f\xff\xff\xff")
	})
	first := func(i int, p *http2test.Peer) *http2test.Peer {
		if i == 0 {
			return http2test.NewPeer().Post(1)
		}
		return p
	}
	f("windows by 1 of a stream", "ENHANCE_YOUR_CALM window_flood", 3000, func(i int) *http2test.Peer {
		return first(i, http2test.NewPeer().Raw(frameWindowUpdate, 0, 1, "\x00\x00\x00\x01"))
	})
	f("empty DATA", "ENHANCE_YOUR_CALM empty_frames", 1000, func(i int) *http2test.Peer { return first(i, http2test.NewPeer().Data(1, false, "")) })
	f("padding", "ENHANCE_YOUR_CALM empty_frames", 1000, func(i int) *http2test.Peer {
		return first(i, http2test.NewPeer().Raw(frameData, flagPadded, 1, "\x05\x00\x00\x00\x00\x00"))
	})
	f("RST_STREAM on closed streams", "ENHANCE_YOUR_CALM useless_frames", 2000, func(i int) *http2test.Peer {
		return first(i, http2test.NewPeer().Raw(frameReset, 0, 1, "\x00\x00\x00\x08"))
	})
	block := string(http2test.NewPeer().Fields(http2test.GetLines()...))
	start := func(i int, p *http2test.Peer) *http2test.Peer {
		if i == 0 {
			return http2test.NewPeer().Raw(frameHeaders, 0, 1, block)
		}
		return p
	}
	f("empty CONTINUATIONs", "ENHANCE_YOUR_CALM continuation_flood", 1000, func(i int) *http2test.Peer { return start(i, http2test.NewPeer().Raw(frameContinuation, 0, 1, "")) })
	f("CONTINUATIONs of a byte", "ENHANCE_YOUR_CALM continuation_flood", 1000, func(i int) *http2test.Peer { return start(i, http2test.NewPeer().Raw(frameContinuation, 0, 1, "x")) })
	f("an endless head", "ENHANCE_YOUR_CALM continuation_flood", 1000, func(i int) *http2test.Peer {
		return start(i, http2test.NewPeer().Raw(frameContinuation, 0, 1, strings.Repeat("\x82", 16000)))
	})
}

// Endpoints have limits like clients.
func TestFloodsOfEndpoints(t *testing.T) {
	f := func(what, want string, limit int, next func(i int) *http2test.Peer) {
		t.Helper()
		x, _, _ := asking(t)
		var err error
		answered := 0
		for i := 0; err == nil && i < limit; i++ {
			err = x.receive(next(i).Bytes(), 0)
			answered += len(x.core.Take().Bytes())
		}
		if e, ok := err.(*ConnError); !ok || e.Reason != want || answered > 64<<10 {
			t.Errorf("%s: it ended with %v, %d bytes were sent in answer", what, err, answered)
		}
	}
	first := func(i int, p *http2test.Peer) *http2test.Peer {
		if i == 0 {
			return http2test.NewPeer().Head(3, false, ":status: 200")
		}
		return p
	}
	f("PINGs", "ping_flood", 1000, func(int) *http2test.Peer { return http2test.NewPeer().Raw(framePing, 0, 0, "12345678") })
	f("SETTINGS", "settings_flood", 100, func(int) *http2test.Peer { return http2test.NewPeer().Raw(frameSettings, 0, 0, "") })
	f("GOAWAYs", "settings_flood", 100, func(int) *http2test.Peer {
		return http2test.NewPeer().Raw(frameGoAway, 0, 0, "\x7f\xff\xff\xff\x00\x00\x00\x00")
	})
	f("windows by 1", "window_flood", 3000, func(int) *http2test.Peer { return http2test.NewPeer().Raw(frameWindowUpdate, 0, 0, "\x00\x00\x00\x01") })
	f("unknown frames", "useless_frames", 2000, func(int) *http2test.Peer { return http2test.NewPeer().Raw(99, 0, 0, "12345") })
	f("answers to nobody", "useless_frames", 2000, func(int) *http2test.Peer { return http2test.NewPeer().Head(1, true, ":status: 200") })
	f("empty DATA", "empty_frames", 1000, func(i int) *http2test.Peer { return first(i, http2test.NewPeer().Data(3, false, "")) })
	f("CONTINUATIONs", "continuation_flood", 1000, func(i int) *http2test.Peer {
		if i == 0 {
			return http2test.NewPeer().Raw(frameHeaders, 0, 3, "\x88")
		}
		return http2test.NewPeer().Raw(frameContinuation, 0, 3, strings.Repeat("\x88", 1000))
	})
}

// A client that never acknowledges our SETTINGS may not exceed them without end.
func TestStreamsInExcessBeforeSettings(t *testing.T) {
	x := newSide(Config{})
	err := x.receive(http2test.Greeted().Bytes(), 0)
	for i := 0; err == nil && i < 2000; i++ {
		err = x.receive(http2test.NewPeer().Post(uint32(1+2*i)).Bytes(), 0)
		x.core.Take()
	}
	if e, ok := err.(*ConnError); !ok || e.Reason != "useless_frames" {
		t.Errorf("it ended with %v", err)
	}
}

// Budgets fill up again.
func TestBudgetsRefill(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Bytes(), 0)
	for range 60 {
		for range 100 {
			if err := x.receive(http2test.NewPeer().Raw(framePing, 0, 0, "12345678").Bytes(), 0); err != nil {
				t.Fatal(err)
			}
		}
		x.core.Take()
		x.now = x.now.Add(time.Second)
	}
	var p purse
	now := time.Unix(1, 0)
	for p.spend(forPings, now) {
	}
	if p.spend(forPings, now.Add(-time.Hour)) { // the clock was set back
		t.Error("time went backwards and filled it")
	}
	if !p.spend(forPings, now.Add(24*365*time.Hour)) || p.spent[forPings] != 1 {
		t.Errorf("%d are spent a year later", p.spent[forPings])
	}
}

// A peer gets no memory for answers that it provokes and does not read.
func TestAnswersNobodyReads(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Bytes(), 0)
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		for range 50 {
			if err = x.receive(http2test.NewPeer().Raw(framePing, 0, 0, "12345678").Bytes(), 0); err != nil {
				break
			}
		}
		x.now = x.now.Add(time.Second)
	}
	if e, ok := err.(*ConnError); !ok || e.Reason != "control_flood" || x.core.Pending() > 100<<10 {
		t.Errorf("%v with %d bytes of output", err, x.core.Pending())
	}
}

// The limits do not affect honest connections, however long these last.
func TestHonestUseIsBorne(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.Greeted().Bytes(), 0)
	for i := range 20000 { // all at the same time
		id := uint32(1 + 2*i)
		p := http2test.NewPeer().Get(id)
		if i%3 == 0 {
			p = http2test.NewPeer().Post(id).Data(id, false, "hello").Data(id, true, "")
		}
		p.Framer.WriteWindowUpdate(id, 10<<20) // as curl does
		if err := x.receive(p.Bytes(), 0); err != nil {
			t.Fatal(err)
		}
		s := x.only(t)
		if x.core.Respond(s, http2test.NewResponse(200), i%4 > 0); i%4 == 0 {
			x.send(s, make([]byte, 300), true)
		}
		x.core.Release(s)
		clear(x.streams)
		x.log = nil
		if i%4 == 0 {
			if err := x.receive(http2test.NewPeer().Raw(frameWindowUpdate, 0, 0, "\x00\x00\x01\x2c").Bytes(), 0); err != nil {
				t.Fatal(err)
			}
		}
		x.core.Take()
	}
}

// An endpoint that resets each stream behind its response is honest: it answers uploads before they have arrived.
func TestEndpointsThatResetBehindTheirResponse(t *testing.T) {
	x := newSide(Config{Role: Client})
	x.receive(http2test.NewPeer().Raw(frameSettings, 0, 0, "").Bytes(), 0)
	for i := range 5000 { // all at the same time
		s, err := x.core.Open(http2test.NewRequest("POST", "/", "a"), true)
		if err != nil {
			t.Fatal(i, err)
		}
		p := http2test.NewPeer().Head(s.ID(), true, ":status: 200").Raw(frameReset, 0, s.ID(), "\x00\x00\x00\x00")
		if err := x.receive(p.Bytes(), 0); err != nil {
			t.Fatal(i, err)
		}
		x.core.Release(s)
		clear(x.streams)
		x.log = nil
		x.core.Take().Free()
	}
}

// weir may answer as many requests as a client may open at once, before their bodies have arrived. What the client
// sends on these streams before it knows of the resets is no error.
func TestBodiesOfAnsweredRequests(t *testing.T) {
	const streams = 1000
	x := newSide(Config{Streams: streams})
	x.receive(http2test.Greeted().Bytes(), 0)
	late := http2test.NewPeer()
	for i := range streams {
		id := uint32(1 + 2*i)
		x.receive(http2test.NewPeer().Post(id).Bytes(), 0)
		s := x.only(t)
		x.core.Respond(s, http2test.NewResponse(200), true)
		x.core.Release(s)
		clear(x.streams)
		if i < streams/2 {
			for range 20 { // together more frames than the budget for frames on closed streams
				late.Data(id, false, "h")
			}
			late.Data(id, true, "hello")
		} else {
			late.Head(id, true, "a: b")
		}
	}
	x.core.Take().Free()
	if err := x.receive(late.Bytes(), 0); err != nil || len(x.refused) > 0 {
		t.Error(err, x.refused)
	}
}

// A peer that returns windows in small parts is honest: Go does so for each 4 KiB, or for each small message.
// A peer with tiny windows returns them for tiny frames. A peer that returns large frames byte by byte is not honest.
func TestWindowsGivenBackByLittle(t *testing.T) {
	f := func(window uint32, size, each, total int, want string) {
		t.Helper()
		x := newSide(Config{})
		x.receive(http2test.NewPeer().Greet(xhttp2.Setting{ID: settingWindow, Val: window}).Get(1).Bytes(), 0)
		s := x.only(t)
		x.core.Respond(s, http2test.NewResponse(200), false)
		body, more := make([]byte, size), string(binary.BigEndian.AppendUint32(nil, uint32(each)))
		back := http2test.NewPeer().Raw(frameWindowUpdate, 0, 0, more).Raw(frameWindowUpdate, 0, 1, more).Bytes()
		got := ""
		for sent, returned := 0, 0; sent < total && got == ""; {
			n, err := x.core.Write(s, body, false)
			if err != nil {
				t.Fatal(err)
			}
			x.core.Take()
			for sent += n; returned+each <= sent && got == ""; returned += each {
				if err := x.receive(back, 0); err != nil {
					got = err.(*ConnError).Reason
				}
			}
		}
		http2test.Equal(t, fmt.Sprintf("%d of %d by %d", size, window, each), got, want)
	}
	f(65535, 16<<10, 4<<10, 64<<20, "")
	f(1<<20, 40<<10, 1<<10, 64<<20, "")
	f(65535, 5, 5, 100000, "")
	f(65535, 16<<10, 1, 1<<20, "window_flood")
	f(1, 16<<10, 1, 20000, "")
	f(100, 16<<10, 100, 1<<20, "")
	f(300, 16<<10, 300, 1<<20, "")
}

// A client that waits for a slow endpoint, and then gives up, is honest, and so is one that does not read a
// response to its end. A client that does not wait is not.
func TestRequestsThatAreGivenUp(t *testing.T) {
	f := func(what string, wait time.Duration, answered bool, want string) {
		t.Helper()
		x := newSide(Config{})
		x.receive(http2test.Greeted().Bytes(), 0)
		got := ""
		for i := 0; i < 1000 && got == ""; i++ {
			id := uint32(1 + 2*i)
			x.receive(http2test.NewPeer().Get(id).Bytes(), 0)
			s := x.only(t)
			if answered {
				x.core.Respond(s, http2test.NewResponse(200), false)
			}
			x.now = x.now.Add(wait)
			if err := x.receive(http2test.NewPeer().Raw(frameReset, 0, id, "\x00\x00\x00\x08").Bytes(), 0); err != nil {
				got = err.(*ConnError).Reason
			}
			x.core.purse.filled = x.now // the budgets do not fill up
			x.core.Release(s)
			clear(x.streams)
			x.log = nil
			x.core.Take().Free()
		}
		http2test.Equal(t, what, got, want)
	}
	f("at once", 0, false, "rapid_reset")
	f("after a while", soon, false, "")
	f("after the head of the response", 0, true, "")
}

// A few compressed bytes can stand for many. weir does not decode more than the limits
// allow.
func TestBombs(t *testing.T) {
	x := newSide(Config{})
	p := http2test.Greeted()
	p.Head(1, true, http2test.GetLines("bomb: "+strings.Repeat("x", 3900))...) // this enters the table
	x.receive(p.Bytes(), 0)
	x.core.Take()
	index := bytes.Clone(p.Fields("bomb: " + strings.Repeat("x", 3900)))
	if len(index) != 1 {
		t.Fatalf("the field is not indexed: %d bytes", len(index))
	}
	block := string(p.Fields(http2test.GetLines()...)) + strings.Repeat(string(index), 16000)
	x.receive(http2test.NewPeer().Raw(frameHeaders, flagEndHeaders|flagEndStream, 3, block).Bytes(), 0)
	http2test.Equal(t, "events", x.log[3:], []string{"3: refused 431 head_too_large", "3: end"})
	for s, seen := range x.streams {
		if s.ID() == 3 && len(seen.req.Fields) > 20 {
			t.Errorf("%d fields were decoded", len(seen.req.Fields))
		}
	}
	// Many pieces of a cookie. They count as one for the limit of fields.
	block = string(http2test.NewPeer().Fields(http2test.GetLines()...)) + strings.Repeat("\x0f\x11\x00", 5000)
	x = newSide(Config{Limits: message.Limits{HeadBytes: 16 << 10}})
	x.receive(http2test.Greeted().Raw(frameHeaders, flagEndHeaders|flagEndStream, 1, block).Bytes(), 0)
	http2test.Equal(t, "crumbs", x.log[1:], []string{"1: refused 431 head_too_large", "1: end"})
}

// A head of up to twice the limit gets an answer, and the connection continues.
func TestHeadsTooLarge(t *testing.T) {
	f := func(size int, want string) {
		t.Helper()
		x := newSide(Config{})
		block := string(http2test.NewPeer().Fields(http2test.GetLines()...)) + "\x00\x01x" + string(appendString(nil, []byte(strings.Repeat("\x7e", size))))
		p := http2test.Greeted()
		for first := true; len(block) > 0; first = false {
			n := min(len(block), leastFrameSize)
			kind, flags := frameContinuation, uint8(0)
			if first {
				kind = frameHeaders
			}
			if n == len(block) {
				flags |= flagEndHeaders
			}
			p.Raw(kind, flags, 1, block[:n])
			block = block[n:]
		}
		err := x.receive(p.Bytes(), 1000)
		got := x.log[len(x.log)-1]
		if err != nil {
			got = err.(*ConnError).Reason
		}
		http2test.Equal(t, want, got, want)
		if cap(x.core.gather.block) > 0 {
			t.Error("the block is kept")
		}
	}
	f(100000, "1: refused 431 head_too_large")
	f(130000, "1: refused 431 head_too_large")
	f(140000, "continuation_flood")
	x := newSide(Config{})
	x.receive(http2test.Greeted().Raw(frameHeaders, flagEndHeaders, 1, "\x00\x01x\x7f\x81\xff\x08").Bytes(), 0)
	if x.core.Err() == nil || x.core.Err().Reason != "head_too_large" {
		t.Error(x.core.Err())
	}
}

// weir does not hold table sizes that the peer requests without end.
func TestTableSizes(t *testing.T) {
	x := newSide(Config{})
	x.receive(http2test.NewPeer().Greet(xhttp2.Setting{ID: settingTableSize, Val: 0}).Get(1).Bytes(), 0)
	x.core.Take()
	x.core.Respond(x.only(t), http2test.NewResponse(204), true)
	if out := x.core.Take().Bytes(); out[frameHeaderSize] != noTable {
		t.Errorf("the head begins with %#x", out[frameHeaderSize])
	}
}
