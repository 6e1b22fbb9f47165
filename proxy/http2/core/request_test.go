package core

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// judged returns what a server makes of one head, with or without the end of its stream.
func judged(t *testing.T, limits message.Limits, end bool, lines ...string) string {
	t.Helper()
	x := newSide(Config{Limits: limits})
	if err := x.receive(http2test.Greeted().Head(1, end, lines...).Bytes(), 0); err != nil {
		return err.Error()
	}
	if len(x.log) < 2 {
		return "nothing"
	}
	return x.log[1]
}

func TestRequestsMalformed(t *testing.T) {
	f := func(lines ...string) {
		t.Helper()
		http2test.Equal(t, strings.Join(lines, ", "), judged(t, message.Limits{}, true, lines...), "1: reset PROTOCOL_ERROR malformed")
	}
	// Pseudo-fields.
	f(":scheme: https", ":path: /", ":authority: a")
	f(":method: GET", ":path: /", ":authority: a")
	f(":method: GET", ":scheme: https", ":authority: a")
	f(":method: GET", ":scheme: https", ":path:", ":authority: a")
	f(":method:", ":scheme: https", ":path: /", ":authority: a")
	f(":method: G T", ":scheme: https", ":path: /", ":authority: a")
	f(":method: G(T", ":scheme: https", ":path: /", ":authority: a")
	f(http2test.GetLines(":method: GET")...)
	f(http2test.GetLines(":path: /")...)
	f(http2test.GetLines(":authority: a")...)
	f(http2test.GetLines(":scheme: https")...)
	f(http2test.GetLines(":status: 200")...)
	f(http2test.GetLines(":unknown: x")...)
	f(http2test.GetLines(": x")...)
	f(http2test.GetLines(":Path: /")...)
	f(http2test.GetLines("a: b", ":path: /")...)
	f(":method: GET", "host: a", ":scheme: https", ":path: /")
	f(http2test.GetLines(":protocol: websocket")...)
	f(":method: CONNECT", ":protocol: websocket", ":path: /", ":authority: a", ":scheme: https") // with the end of the stream
	f(":method: GET", ":scheme: https", ":path: /\x00", ":authority: a")
	f(":method: GET", ":scheme: https", ":path: /\r\nx: y", ":authority: a")
	f(":method: GET", ":scheme: https", ":path:  /", ":authority: a")
	f(":method: GET", ":scheme: https", ":path: / ", ":authority: a")
	f(":method: GET", ":scheme: https", ":path: /", ":authority: a\n")

	// Names.
	for _, name := range []string{"A", "aB", "a b", "a\r", "a\n", "a\x00", "a\x7f", "\xc3\xa4", "a(b", "transfer-encoding ", " a", "a\t"} {
		f(http2test.GetLines(name + ": b")...)
	}

	literal := func(name, value string) {
		t.Helper()
		b := appendString(appendString(append(http2test.NewPeer().Fields(http2test.GetLines()...), 0), []byte(name)), []byte(value))
		x := newSide(Config{})
		x.receive(http2test.Greeted().Raw(frameHeaders, flagEndHeaders|flagEndStream, 1, string(b)).Bytes(), 0)
		http2test.Equal(t, name+": "+value, x.log[1:], []string{"1: reset PROTOCOL_ERROR malformed"})
	}
	literal("", "x")
	literal("a:b", "x")
	literal("a:", "x")
	for _, value := range []string{"\x00", "a\rb", "a\nb", "a\r\nb", "\x7f", "a\x0b", " a", "a ", "\ta", "a\t", " "} {
		literal("x", value)
	}

	// Fields of a connection.
	for _, line := range []string{"connection: close", "connection:", "keep-alive: x", "proxy-connection: x", "transfer-encoding: chunked",
		"upgrade: websocket", "te: gzip", "te: trailers, gzip", "te:", "te: Trailers"} {
		f(http2test.GetLines(line)...)
	}
	f(http2test.GetLines("content-length: 5")...)
}

func TestRequestsRefused(t *testing.T) {
	limits := message.Limits{}
	f := func(want string, lines ...string) {
		t.Helper()
		http2test.Equal(t, strings.Join(lines, ", "), judged(t, limits, false, lines...), "1: refused "+want)
	}
	target := func(want, path string) {
		t.Helper()
		f(want, ":method: GET", ":scheme: https", ":path: "+path, ":authority: a")
	}
	target("400 bad_target", "a")
	target("400 bad_target", "*")
	target("400 bad_target", "http://a/")
	target("400 bad_target", "/a b")
	target("400 bad_target", "/a#b")
	target("400 bad_target", "/\xc3\xa4")
	target("400 bad_target", "?a")
	target("400 ambiguous_path", "/../a")
	target("400 ambiguous_path", "/%2e%2e/a")
	target("400 ambiguous_path", "/a\\b")
	target("400 ambiguous_path", "/%")
	target("400 ambiguous_path", "/%00")
	f("400 bad_target", ":method: GET", ":scheme: ftp", ":path: /", ":authority: a")
	host := func(want, authority string, more ...string) {
		t.Helper()
		f(want, append([]string{":method: GET", ":scheme: https", ":path: /", ":authority: " + authority}, more...)...)
	}
	host("400 bad_host", "u@a")
	host("400 bad_host", "a/b")
	host("400 bad_host", "a:99999")
	host("400 bad_host", "[::1")
	host("400 two_hosts", "a", "host: b")
	host("400 two_hosts", "a", "host: a:80")
	host("400 two_hosts", "a", "host: a", "host: a")
	host("400 two_hosts", "a", "host: A", "host: b")
	host("400 two_hosts", "", "host: a")
	noAuthority := []string{":method: GET", ":scheme: https", ":path: /"}
	f("400 no_host", noAuthority...)
	f("400 two_hosts", append(noAuthority, "host: a", "host: a")...)
	f("400 bad_host", append(noAuthority, "host: a b")...)

	f("501 method", ":method: CONNECT", ":authority: a:443")
	f("501 method", ":method: TRACE", ":scheme: https", ":path: /", ":authority: a")
	f("501 upgrade", ":method: CONNECT", ":scheme: https", ":path: /", ":authority: a", ":protocol: h2c")
	f("501 upgrade", ":method: CONNECT", ":scheme: https", ":path: /", ":authority: a", ":protocol: a, b")
	f("400 upgrade_with_body", ":method: CONNECT", ":scheme: https", ":path: /", ":authority: a", ":protocol: websocket", "content-length: 1")
	f("417 expectation", http2test.GetLines("expect: x, 100-continue")...)
	f("400 bad_length", http2test.GetLines("content-length: x")...)
	f("400 bad_length", http2test.GetLines("content-length: +1")...)
	f("400 two_lengths", http2test.GetLines("content-length: 1", "content-length: 1")...)
	f("400 bad_trailer", http2test.GetLines("trailer: content-length")...)

	limits = message.Limits{HeadBytes: 100, Fields: 4}
	long := strings.Repeat("x", 100)
	target("414 target_too_long", "/"+long)
	host("431 head_too_large", long)
	f("431 head_too_large", http2test.GetLines("a: "+long)...)
	f("431 head_too_large", http2test.GetLines("cookie: "+long)...)
	f("431 too_many_fields", http2test.GetLines("a: b", "c: d", "e: f", "g: h")...)
	f("431 too_many_fields", http2test.GetLines("a: b", "c: d", "e: f", "cookie: h")...)
	// As large as in HTTP/1.1: "GET / HTTP/1.1", "Host: a", "a: ...", "".
	fits := 100 - len("GET / HTTP/1.1\r\nHost: a\r\na: \r\n\r\n")
	http2test.Equal(t, "as much as fits", judged(t, limits, true, http2test.GetLines("a: "+long[:fits])...)[:6], "1: GET")
	f("431 head_too_large", http2test.GetLines("a: "+long[:fits+1])...)
}

func TestRequests(t *testing.T) {
	f := func(end bool, want string, lines ...string) {
		t.Helper()
		http2test.Equal(t, strings.Join(lines, ", "), judged(t, message.Limits{}, end, lines...), "1: "+want)
	}
	f(true, `GET / host "a" length 0 [host: a]`, http2test.GetLines()...)
	f(true, `GET / host "a" length 0 [host: a]`, ":method: GET", ":scheme: http", ":path: /", "host: a")
	f(true, `GET / host "A" length 0 [host: A]`, ":authority: A", ":method: GET", ":scheme: http", ":path: /", "host: a")
	f(true, `GET / host "" length 0 [host: ]`, ":method: GET", ":scheme: http", ":path: /", ":authority:")
	f(true, `OPTIONS * host "a" length 0 [host: a]`, ":method: OPTIONS", ":scheme: http", ":path: *", ":authority: a")
	f(true, `GET /a//b;p?c=/../d host "[::1]:8" length 0 [host: [::1]:8]`, ":method: GET", ":scheme: https", ":path: /a//b;p?c=/../d", ":authority: [::1]:8")
	f(true, `GET / host "a" length 0 [host: a] [x: ] [y: b  c	d] [z: ä]`, http2test.GetLines("x:", "y: b  c\td", "z: ä")...)
	f(true, `GET / host "a" length 0 [host: a] [b: c] [cookie: d=1; e=2; f=3]`, http2test.GetLines("cookie: d=1", "b: c", "cookie: e=2", "cookie: f=3")...)
	f(true, `GET / host "a" length 0 te [host: a]`, http2test.GetLines("te: trailers")...)
	f(true, `GET / host "a" length 0 [host: a]`, http2test.GetLines("x_forwarded_for: 1", "proxy-authorization: x", "http2-settings: y")...)
	f(true, `GET / host "a" length 0 [host: a] [content-length: 0]`, http2test.GetLines("content-length: 0")...)
	f(true, `GET / host "a" length 0 [host: a]`, http2test.GetLines("expect: 100-continue")...)
	f(false, `GET / host "a" length -1 expects [host: a] [expect: 100-continue]`, http2test.GetLines("expect: 100-continue")...)
	f(false, `GET / host "a" length 5 [host: a] [content-length: 5]`, http2test.GetLines("content-length: 5")...)
	f(false, `GET /chat host "a" length 0 upgrade "websocket" [host: a] [sec-websocket-version: 13] [sec-websocket-key: k]`,
		":method: CONNECT", ":protocol: websocket", ":scheme: https", ":path: /chat", ":authority: a", "sec-websocket-version: 13", "sec-websocket-key: k")
	got := judged(t, message.Limits{}, false, ":method: CONNECT", ":protocol: websocket", ":scheme: https", ":path: /chat", ":authority: a")
	if !strings.Contains(got, `upgrade "websocket" [host: a] [Sec-WebSocket-Key: `) || !strings.HasSuffix(got, "==]") {
		t.Errorf("a WebSocket without a key: %s", got)
	}
}

// After a refused head, the decoder can decode later heads.
func TestHeadsBehindARefusedOne(t *testing.T) {
	x := newSide(Config{Limits: message.Limits{HeadBytes: 200, Fields: 10}})
	p := http2test.Greeted().Head(1, true, http2test.GetLines("one: "+strings.Repeat("x", 150), "two: 2", "three: 3", "four: 4")...)
	p.Head(3, true, http2test.GetLines("BAD: x", "five: 5")...)
	p.Head(5, true, http2test.GetLines("two: 2", "three: 3", "four: 4", "five: 5")...)
	x.receive(p.Bytes(), 0)
	http2test.Equal(t, "events", strings.Join(x.log, "\n"), "settings\n1: refused 431 head_too_large\n1: end\n3: reset PROTOCOL_ERROR malformed\n"+
		`5: GET / host "a" length 0 [host: a] [two: 2] [three: 3] [four: 4] [five: 5]`+"\n5: end")
}

func TestResponsesWritten(t *testing.T) {
	f := func(want string, res *message.Response, end bool) {
		t.Helper()
		x := newSide(Config{})
		x.receive(http2test.Greeted().Get(1).Bytes(), 0)
		x.core.Take()
		for s := range x.streams {
			x.core.Respond(s, res, end)
		}
		http2test.Equal(t, want, frames(t, x.core.Take().Bytes(), true), []string{"HEADERS 1 " + want})
	}
	f("[:status: 200] [content-type: text/plain] end", http2test.NewResponse(200, "Content-Type: text/plain"), true)
	f("[:status: 404] [x-y: Z]", http2test.NewResponse(404, "X-Y: Z"), false)
	f("[:status: 599] end", http2test.NewResponse(599, "Connection: x", "Keep-Alive: y", "Transfer-Encoding: chunked", "Upgrade: z", "Proxy-Connection: a"), true)
	f("[:status: 103] [link: a]", http2test.NewResponse(103, "Link: a"), true)
	long := strings.Repeat("x", 40000)
	f("[:status: 200] ["+strings.ToLower(long)+": "+long+"] end", http2test.NewResponse(200, long+": "+long), true)
	res := http2test.NewResponse(200, "A: b", "C: d")
	res.Fields[0].Dropped = true
	f("[:status: 200] [c: d] end", res, true)
	for i := range 61 { // every name of the static table, and those not in it
		name := staticNames[i]
		f("[:status: 200] ["+name+": v] end", http2test.NewResponse(200, strings.ToUpper(name)+": v"), true)
	}
}

// staticNames are the names of the static table after its pseudo-fields, without the
// names that HTTP/2 does not carry, and some other names.
var staticNames = append(strings.Fields(`accept-charset accept-encoding accept-language accept-ranges accept access-control-allow-origin age allow
	authorization cache-control content-disposition content-encoding content-language content-length content-location content-range
	content-type cookie date etag expect expires from if-match if-modified-since if-none-match if-range if-unmodified-since
	last-modified link location max-forwards proxy-authenticate proxy-authorization range referer refresh retry-after server
	set-cookie strict-transport-security user-agent vary via www-authenticate`), strings.Fields(`a b c d e f g h i j k l m n o p`)...)

func TestSensitiveFieldsAreNeverIndexed(t *testing.T) {
	f := func(name string, want byte) {
		t.Helper()
		if b := appendField(nil, []byte(name), []byte("v")); b[0]&0xf0 != want {
			t.Errorf("%s begins with %#x", name, b[0])
		}
	}
	f("Authorization", neverIndexed)
	f("cookie", neverIndexed)
	f("Set-Cookie", neverIndexed)
	f("Date", 0)
	f("X", 0)
}

func TestRequestsWritten(t *testing.T) {
	f := func(want string, req *message.Request) {
		t.Helper()
		x := newSide(Config{Role: Client, Scheme: "http"})
		x.receive(http2test.NewPeer().Raw(frameSettings, 0, 0, "\x00\x08\x00\x00\x00\x01").Bytes(), 0)
		x.core.Take()
		if _, err := x.core.Open(req, true); err != nil {
			t.Fatal(err)
		}
		http2test.Equal(t, want, frames(t, x.core.Take().Bytes(), true), []string{"HEADERS 1 " + want})
	}
	f("[:method: GET] [:scheme: http] [:authority: a] [:path: /] end", http2test.NewRequest("GET", "/", "a"))
	f("[:method: PUT] [:scheme: http] [:authority: a] [:path: /b?c] [x: y] end", http2test.NewRequest("PUT", "/b?c", "a", "Connection: z", "X: y"))
	r := http2test.NewRequest("POST", "/", "a", "TE: x")
	r.SetValue(0, []byte("b"))
	r.AcceptsTrailers = true
	f("[:method: POST] [:scheme: http] [:authority: b] [:path: /] [te: trailers] end", r)
	r = http2test.NewRequest("GET", "/", "a", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
	r.Upgrade = r.StoreString("websocket")
	f("[:method: CONNECT] [:protocol: websocket] [:scheme: http] [:authority: a] [:path: /] [sec-websocket-version: 13]", r)
}
