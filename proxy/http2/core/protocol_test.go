package core

import (
	"strings"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/proxy/http2/http2test"
)

// served gives a client's frames to a server, in one piece and in small pieces. It
// compares the frames that the server sends, except SETTINGS and WINDOW_UPDATE.
func served(t *testing.T, what string, p *http2test.Peer, want ...string) {
	t.Helper()
	for _, piece := range []int{0, 1, 7} {
		x := newSide(Config{})
		x.receive(p.Bytes(), piece)
		http2test.Equal(t, what, frames(t, x.core.Take().Bytes(), false), want)
	}
}

// asked is like served, for a client that has opened stream 1 with a GET and stream 3
// with a POST.
func asked(t *testing.T, what string, p *http2test.Peer, want ...string) {
	t.Helper()
	for _, piece := range []int{0, 1, 7} {
		x, _, _ := asking(t)
		x.receive(p.Bytes(), piece)
		http2test.Equal(t, what, frames(t, x.core.Take().Bytes(), false), want)
	}
}

func TestConnectionErrors(t *testing.T) {
	f := func(what string, p *http2test.Peer, code, reason string) {
		t.Helper()
		last := "0"
		if strings.HasPrefix(what, "1: ") {
			last = "1"
		}
		served(t, what, p, "GOAWAY "+last+" "+code+" "+reason)
	}
	raw := func(kind, flags uint8, id uint32, payload string) *http2test.Peer {
		return http2test.Greeted().Raw(kind, flags, id, payload)
	}
	const protocol, size, flow, closed = "PROTOCOL_ERROR", "FRAME_SIZE_ERROR", "FLOW_CONTROL_ERROR", "STREAM_CLOSED"

	// The beginning.
	p := http2test.NewPeer()
	p.WriteString("GET / HTTP/1.1\r\n")
	f("no preface", p, protocol, "bad_preface")
	p = http2test.NewPeer()
	p.WriteString(Preface)
	f("no settings", p.Raw(framePing, 0, 0, "12345678"), protocol, "no_settings")
	p = http2test.NewPeer()
	p.WriteString(Preface)
	f("an ack in place of settings", p.Raw(frameSettings, flagAck, 0, ""), protocol, "no_settings")

	// Sizes and streams of frames.
	f("too large", raw(frameData, 0, 1, strings.Repeat("x", leastFrameSize+1)), size, "frame_size")
	f("SETTINGS on a stream", raw(frameSettings, 0, 1, ""), protocol, "bad_settings")
	f("SETTINGS ack with payload", raw(frameSettings, flagAck, 0, "123456"), size, "bad_settings")
	f("SETTINGS cut", raw(frameSettings, 0, 0, "12345"), size, "bad_settings")
	f("PING on a stream", raw(framePing, 0, 1, "12345678"), protocol, "bad_ping")
	f("PING cut", raw(framePing, 0, 0, "1234567"), size, "bad_ping")
	f("PRIORITY on no stream", raw(framePriority, 0, 0, "12345"), protocol, "bad_priority")
	f("PRIORITY cut", raw(framePriority, 0, 1, "1234"), size, "bad_priority")
	f("PRIORITY on itself", raw(framePriority, 0, 1, "\x00\x00\x00\x015"), protocol, "bad_priority")
	f("RST_STREAM on no stream", raw(frameReset, 0, 0, "1234"), protocol, "bad_reset")
	f("RST_STREAM on an idle stream", raw(frameReset, 0, 1, "1234"), protocol, "bad_reset")
	f("1: RST_STREAM cut", http2test.Greeted().Post(1).Raw(frameReset, 0, 1, "123"), size, "bad_reset")
	f("WINDOW_UPDATE cut", raw(frameWindowUpdate, 0, 0, "123"), size, "bad_window")
	f("WINDOW_UPDATE by nothing", raw(frameWindowUpdate, 0, 0, "\x00\x00\x00\x00"), protocol, "bad_window")
	f("WINDOW_UPDATE on an idle stream", raw(frameWindowUpdate, 0, 1, "\x00\x00\x00\x01"), protocol, "bad_window")
	f("WINDOW_UPDATE overflow", raw(frameWindowUpdate, 0, 0, "\x7f\xff\xff\xff"), flow, "window_overflow")
	f("GOAWAY on a stream", raw(frameGoAway, 0, 1, "12345678"), protocol, "bad_goaway")
	f("GOAWAY cut", raw(frameGoAway, 0, 0, "1234567"), size, "bad_goaway")
	f("DATA on no stream", raw(frameData, 0, 0, "x"), protocol, "bad_data")
	f("DATA on an idle stream", raw(frameData, 0, 1, "x"), protocol, "bad_data")
	f("HEADERS on no stream", raw(frameHeaders, flagEndHeaders, 0, "\x82"), protocol, "bad_head")
	f("HEADERS on an even stream", http2test.Greeted().Get(2), protocol, "bad_stream")
	f("PUSH_PROMISE", raw(framePushPromise, flagEndHeaders, 1, "\x00\x00\x00\x02"), protocol, "push")
	f("1: DATA with too much padding", http2test.Greeted().Post(1).Raw(frameData, flagPadded, 1, "\x02x"), protocol, "bad_padding")
	f("1: DATA without room for padding", http2test.Greeted().Post(1).Raw(frameData, flagPadded, 1, ""), size, "bad_padding")
	f("HEADERS with too much padding", raw(frameHeaders, flagPadded|flagEndHeaders, 1, "\x02x"), protocol, "bad_padding")
	f("HEADERS without room for padding", raw(frameHeaders, flagPadded|flagEndHeaders, 1, ""), protocol, "bad_padding")
	f("HEADERS without room for priority", raw(frameHeaders, flagPriority|flagEndHeaders, 1, "1234"), size, "bad_head")

	// Settings' values.
	set := func(id xhttp2.SettingID, v uint32) *http2test.Peer {
		return http2test.NewPeer().Greet(xhttp2.Setting{ID: id, Val: v})
	}
	f("ENABLE_PUSH", set(settingPush, 2), protocol, "bad_settings")
	f("INITIAL_WINDOW_SIZE", set(settingWindow, 1<<31), flow, "bad_settings")
	f("MAX_FRAME_SIZE small", set(settingFrameSize, 1<<14-1), protocol, "bad_settings")
	f("MAX_FRAME_SIZE large", set(settingFrameSize, 1<<24), protocol, "bad_settings")
	f("ENABLE_CONNECT_PROTOCOL", set(settingConnectProtocol, 2), protocol, "bad_settings")
	p = http2test.Greeted().Post(1).Raw(frameWindowUpdate, 0, 1, "\x7f\xff\x00\x00")
	p.Framer.WriteSettings(xhttp2.Setting{ID: settingWindow, Val: 1 << 17})
	f("1: windows overflow by SETTINGS", p, flow, "window_overflow")

	// Heads.
	block := string(http2test.NewPeer().Fields(http2test.GetLines()...))
	f("CONTINUATION alone", raw(frameContinuation, flagEndHeaders, 1, ""), protocol, "bad_continuation")
	f("1: CONTINUATION behind the end", http2test.Greeted().Get(1).Raw(frameContinuation, flagEndHeaders, 1, ""), protocol, "bad_continuation")
	f("1: a head interrupted", raw(frameHeaders, 0, 1, block).Raw(framePing, 0, 0, "12345678"), protocol, "broken_head")
	f("1: a head interrupted by DATA", raw(frameHeaders, 0, 1, block).Raw(frameData, 0, 1, "x"), protocol, "broken_head")
	f("1: a head continued elsewhere", raw(frameHeaders, 0, 1, block).Raw(frameContinuation, flagEndHeaders, 3, ""), protocol, "broken_head")
	f("1: no such index", raw(frameHeaders, flagEndHeaders, 1, "\xff\xff\xff\x01"), "COMPRESSION_ERROR", "bad_compression")
	f("1: a string cut", raw(frameHeaders, flagEndHeaders, 1, "\x00\x05ab"), "COMPRESSION_ERROR", "bad_compression")
	f("1: a table too large", raw(frameHeaders, flagEndHeaders, 1, "\x3f\xff\xff\x03"+block), "COMPRESSION_ERROR", "bad_compression")
	f("1: HEADERS on a closed stream", http2test.Greeted().Post(1).Raw(frameReset, 0, 1, "\x00\x00\x00\x08").Get(1), closed, "stream_closed")
}

func TestStreamErrors(t *testing.T) {
	f := func(what string, p *http2test.Peer, want ...string) { t.Helper(); served(t, what, p, want...) }
	f("WINDOW_UPDATE by nothing", http2test.Greeted().Post(1).Raw(frameWindowUpdate, 0, 1, "\x00\x00\x00\x00"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("WINDOW_UPDATE overflow", http2test.Greeted().Post(1).Raw(frameWindowUpdate, 0, 1, "\x7f\xff\xff\xff"), "RST_STREAM 1 FLOW_CONTROL_ERROR")
	f("DATA behind the end", http2test.Greeted().Get(1).Data(1, false, "x"), "RST_STREAM 1 STREAM_CLOSED")
	f("HEADERS behind the end", http2test.Greeted().Get(1).Get(1), "RST_STREAM 1 STREAM_CLOSED")
	f("a second head", http2test.Greeted().Post(1).Post(1), "RST_STREAM 1 PROTOCOL_ERROR")
	f("a second head that does not end", http2test.Greeted().Post(1).Head(1, false, "a: b"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("DATA behind the peer's reset", http2test.Greeted().Post(1).Raw(frameReset, 0, 1, "\x00\x00\x00\x08").Data(1, false, "x"), "RST_STREAM 1 STREAM_CLOSED")
	f("DATA behind our reset", http2test.Greeted().Post(1).Post(1).Data(1, false, "x").Data(1, true, "x"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("HEADERS behind our reset", http2test.Greeted().Post(1).Post(1).Head(1, true, "a: b"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("a stream depends on itself", http2test.Greeted().Raw(frameHeaders, flagEndHeaders|flagPriority, 1, "\x00\x00\x00\x015"+string(http2test.NewPeer().Fields(http2test.GetLines()...))),
		"RST_STREAM 1 PROTOCOL_ERROR")
	f("a body too long", http2test.Greeted().Post(1, "content-length: 1").Data(1, false, "xy"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("a body too short", http2test.Greeted().Post(1, "content-length: 3").Data(1, false, "xy").Data(1, true, ""), "RST_STREAM 1 PROTOCOL_ERROR")
	f("a body too short, trailers", http2test.Greeted().Post(1, "content-length: 3").Data(1, false, "xy").Head(1, true, "a: b"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("no body, but a length", http2test.Greeted().Get(1, "content-length: 1"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("trailers with a pseudo-field", http2test.Greeted().Post(1).Head(1, true, ":path: /"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("trailers in upper case", http2test.Greeted().Post(1).Head(1, true, "A: b"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("trailers of a connection", http2test.Greeted().Post(1).Head(1, true, "connection: b"), "RST_STREAM 1 PROTOCOL_ERROR")
}

// The core tells the driver when it resets a stream that the driver does not have.
func TestRefusedIsReported(t *testing.T) {
	head := string(http2test.NewPeer().Fields(http2test.GetLines()...))
	for _, c := range []struct {
		want string
		p    *http2test.Peer
	}{
		{"too_many_streams", http2test.Greeted().Post(1).Post(3)},
		{"data_after_end", http2test.Greeted().Post(1).Raw(frameReset, 0, 1, "\x00\x00\x00\x08").Data(1, false, "x")},
		{"malformed", http2test.Greeted().Raw(frameHeaders, flagEndHeaders|flagPriority, 1, "\x00\x00\x00\x015"+head)},
	} {
		x := newSide(Config{Streams: 1})
		x.receive(c.p.Bytes(), 0)
		http2test.Equal(t, "reasons", x.refused, []string{c.want})
	}
}

func TestHarmless(t *testing.T) {
	f := func(what string, p *http2test.Peer, want ...string) { t.Helper(); served(t, what, p, want...) }
	f("PRIORITY on an idle stream", http2test.Greeted().Raw(framePriority, 0, 7, "\x00\x00\x00\x015"))
	f("an unknown frame", http2test.Greeted().Raw(77, 0xff, 5, "payload"))
	f("an unknown setting", http2test.NewPeer().Greet(xhttp2.Setting{ID: 77, Val: 5}))
	f("a PING", http2test.Greeted().Raw(framePing, 0, 0, "12345678"), `PING "12345678" ack true`)
	f("an answer to no PING", http2test.Greeted().Raw(framePing, flagAck, 0, "12345678"))
	f("WINDOW_UPDATE on a closed stream", http2test.Greeted().Post(1).Raw(frameReset, 0, 1, "\x00\x00\x00\x08").Raw(frameWindowUpdate, 0, 1, "\x00\x00\x00\x01"))
	f("RST_STREAM on a closed stream", http2test.Greeted().Post(1).Raw(frameReset, 0, 1, "\x00\x00\x00\x08").Raw(frameReset, 0, 1, "\x00\x00\x00\x08"))
	f("streams left out", http2test.Greeted().Get(7).Get(11))
	f("settings in the middle", http2test.Greeted().Get(1).Raw(frameSettings, 0, 0, ""))
}

func TestEvents(t *testing.T) {
	f := func(what string, p *http2test.Peer, want ...string) {
		t.Helper()
		for _, piece := range []int{0, 1, 7} {
			x := newSide(Config{})
			if err := x.receive(p.Bytes(), piece); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			http2test.Equal(t, what, x.log[1:], want)
		}
	}
	block := string(http2test.NewPeer().Fields(http2test.GetLines("a: b")...))
	f("a request", http2test.Greeted().Get(1), `1: GET / host "a" length 0 [host: a]`, "1: end")
	f("in pieces", http2test.Greeted().Raw(frameHeaders, flagEndStream, 1, block[:5]).Raw(frameContinuation, 0, 1, block[5:6]).Raw(frameContinuation, flagEndHeaders, 1, block[6:]),
		`1: GET / host "a" length 0 [host: a] [a: b]`, "1: end")
	f("padded, with priority", http2test.Greeted().Raw(frameHeaders, flagEndStream|flagEndHeaders|flagPadded|flagPriority, 1, "\x03\x80\x00\x00\x03\x10"+block+"xyz"),
		`1: GET / host "a" length 0 [host: a] [a: b]`, "1: end")
	f("a body", http2test.Greeted().Post(1, "content-length: 5").Data(1, false, "he").Data(1, true, "llo"),
		`1: POST / host "a" length 5 [host: a] [content-length: 5]`, `1: end "hello"`)
	f("a padded body", http2test.Greeted().Post(1).Raw(frameData, flagPadded, 1, "\x03hel\x00\x00\x00").Raw(frameData, flagPadded|flagEndStream, 1, "\x00lo").Data(1, true, ""),
		`1: POST / host "a" length -1 [host: a]`, `1: end "hello"`, "1: reset STREAM_CLOSED data_after_end")
	f("padding alone", http2test.Greeted().Post(1).Raw(frameData, flagPadded, 1, "\x03\x00\x00\x00").Raw(frameData, flagPadded|flagEndStream, 1, "\x00"),
		`1: POST / host "a" length -1 [host: a]`, `1: end`)
	f("trailers", http2test.Greeted().Post(1).Data(1, false, "x").Head(1, true, "t: u", "content-length: 5", "x-real-ip: 1"),
		`1: POST / host "a" length -1 [host: a]`, `1: end "x" [t: u]`)
	f("a reset", http2test.Greeted().Post(1).Raw(frameReset, 0, 1, "\x00\x00\x00\x08"),
		`1: POST / host "a" length -1 [host: a]`, "1: reset by peer CANCEL reset_by_peer")
	f("settings acked", http2test.Greeted().Raw(frameSettings, flagAck, 0, "").Raw(frameSettings, flagAck, 0, ""), "settings acked")
	f("a client goes away", http2test.Greeted().Post(1).Raw(frameGoAway, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x0b"),
		`1: POST / host "a" length -1 [host: a]`, "goaway ENHANCE_YOUR_CALM")
}

// asking returns a client with a GET on stream 1 and a POST on stream 3.
func asking(t *testing.T) (x *side, get, post *Stream) {
	t.Helper()
	x = newSide(Config{Role: Client})
	x.receive(http2test.NewPeer().Raw(frameSettings, 0, 0, "").Bytes(), 0)
	var err error
	if get, err = x.core.Open(http2test.NewRequest("GET", "/", "a"), true); err != nil {
		t.Fatal(err)
	}
	if post, err = x.core.Open(http2test.NewRequest("POST", "/", "a"), false); err != nil {
		t.Fatal(err)
	}
	x.core.Take()
	x.log = nil
	return x, get, post
}

func TestClientErrors(t *testing.T) {
	f := func(what string, p *http2test.Peer, want ...string) { t.Helper(); asked(t, what, p, want...) }
	ok := func(id uint32, end bool, more ...string) *http2test.Peer {
		return http2test.NewPeer().Head(id, end, append([]string{":status: 200"}, more...)...)
	}
	f("a push", http2test.NewPeer().Raw(framePushPromise, flagEndHeaders, 1, "\x00\x00\x00\x02"), "GOAWAY 0 PROTOCOL_ERROR push")
	f("a response on a stream of its own", ok(2, true), "GOAWAY 0 PROTOCOL_ERROR bad_stream")
	f("a response to nothing", ok(5, true), "GOAWAY 0 PROTOCOL_ERROR bad_stream")
	f("DATA before the head", http2test.NewPeer().Data(1, true, "x"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("push allowed", http2test.NewPeer().Raw(frameSettings, 0, 0, "\x00\x02\x00\x00\x00\x01"), "GOAWAY 0 PROTOCOL_ERROR bad_settings")
	bad := func(what string, end bool, lines ...string) {
		t.Helper()
		f(what, http2test.NewPeer().Head(1, end, lines...), "RST_STREAM 1 PROTOCOL_ERROR")
	}
	bad("no status", true, "a: b")
	bad("status twice", true, ":status: 200", ":status: 200")
	bad("status behind", true, "a: b", ":status: 200")
	bad("status 101", false, ":status: 101")
	bad("status 99", true, ":status: 099")
	bad("status 2000", true, ":status: 2000")
	bad("status +20", true, ":status: +20")
	bad("a request's field", true, ":status: 200", ":path: /")
	bad("1xx ends", true, ":status: 103")
	bad("connection", true, ":status: 200", "connection: close")
	bad("two lengths", true, ":status: 200", "content-length: 0", "content-length: 0")
	bad("bad length", true, ":status: 200", "content-length: x")
	bad("length without body", true, ":status: 200", "content-length: 5")
	f("204 with body", http2test.NewPeer().Head(1, false, ":status: 204").Data(1, true, "x"), "RST_STREAM 1 PROTOCOL_ERROR")
	f("too much", ok(1, false, "content-length: 1").Data(1, true, "xy"), "RST_STREAM 1 PROTOCOL_ERROR")
	p := http2test.NewPeer()
	for range 17 {
		p.Head(1, false, ":status: 103")
	}
	f("too many 1xx", p, "RST_STREAM 1 PROTOCOL_ERROR")
	f("fine", ok(1, false, "content-length: 1").Data(1, true, "x"))
}

func TestClientEvents(t *testing.T) {
	f := func(what string, p *http2test.Peer, want ...string) {
		t.Helper()
		for _, piece := range []int{0, 1, 7} {
			x, _, _ := asking(t)
			if err := x.receive(p.Bytes(), piece); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			http2test.Equal(t, what, x.log, want)
		}
	}
	f("a response", http2test.NewPeer().Head(1, true, ":status: 200", "a: b"), "1: 200 length 0 [a: b]", "1: end")
	f("1xx before it", http2test.NewPeer().Head(1, false, ":status: 103", "link: x", "content-length: 5").Head(1, false, ":status: 200").Data(1, true, "hi"),
		"1: 103 length 0 [link: x]", "1: 200 length -1", `1: end "hi"`)
	f("204", http2test.NewPeer().Head(1, true, ":status: 204", "content-length: 5"), "1: 204 length 0", "1: end")
	f("304", http2test.NewPeer().Head(1, false, ":status: 304", "content-length: 5").Data(1, true, ""), "1: 304 length 0 [content-length: 5]", "1: end")
	f("trailers alone", http2test.NewPeer().Head(3, true, ":status: 200", "grpc-status: 5"), "3: 200 length 0 [grpc-status: 5]", "3: end")
	f("trailers", http2test.NewPeer().Head(3, false, ":status: 200", "trailer: grpc-status").Data(3, false, "x").Head(3, true, "grpc-status: 0", "host: x"),
		"3: 200 length -1 [trailer: grpc-status]", `3: end "x" [grpc-status: 0]`)
	f("refused", http2test.NewPeer().Raw(frameReset, 0, 3, "\x00\x00\x00\x07"), "3: reset by peer, unprocessed REFUSED_STREAM reset_by_peer")
	f("going away", http2test.NewPeer().Raw(frameGoAway, 0, 0, "\x00\x00\x00\x01\x00\x00\x00\x00"), "goaway NO_ERROR", "3: reset by peer, unprocessed REFUSED_STREAM goaway")
	f("going away softly", http2test.NewPeer().Raw(frameGoAway, 0, 0, "\x7f\xff\xff\xff\x00\x00\x00\x00").Head(1, true, ":status: 200").
		Raw(frameGoAway, 0, 0, "\x00\x00\x00\x03\x00\x00\x00\x00"), "goaway NO_ERROR", "1: 200 length 0", "1: end", "goaway NO_ERROR")
}
