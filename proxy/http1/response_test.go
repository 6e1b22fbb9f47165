package http1

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

const (
	getRequest     = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	headRequest    = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
	oldRequest     = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
	upgradeRequest = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
)

func TestResponsesReturned(t *testing.T) {
	f := func(request, in, want string, reusable bool) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			w.blocked, w.final = false, nil
			out, end, client := returned(w, request)
			if name == "in bytes" && strings.Contains(want, "chunked") {
				continue // its chunks differ; TestEveryFragmentation tests that
			}
			equal(t, name+": "+in, out, want)
			equal(t, name+": end of "+in, end, "")
			// In single bytes, excess bytes of the endpoint have not arrived yet.
			if got := client.Reusable(); got != reusable && (reusable || name == "in one piece") {
				t.Errorf("%s: %q: the connection's being reusable should be %v", name, in, reusable)
			}
		}
	}
	same := func(request, in string) { t.Helper(); f(request, in, in, true) }

	// RFC 9112, section 6.3, in its order. No body by definition:
	same(headRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5", ""))
	f(headRequest, lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", ""), lines("HTTP/1.1 200 OK", ""), true)
	same(headRequest, lines("HTTP/1.1 404 Not Found", "A: b", ""))
	same(getRequest, lines("HTTP/1.1 304 Not Modified", "Content-Length: 5", "Etag: x", ""))
	f(getRequest, lines("HTTP/1.1 304 Not Modified", "Transfer-Encoding: chunked", ""), lines("HTTP/1.1 304 Not Modified", ""), true)
	same(getRequest, lines("HTTP/1.1 204 No Content", "A: b", ""))
	f(getRequest, lines("HTTP/1.1 204 No Content", "Content-Length: 0", ""), lines("HTTP/1.1 204 No Content", ""), true)
	f(getRequest, lines("HTTP/1.1 204 No Content", "Content-Length: 5", ""), lines("HTTP/1.1 204 No Content", ""), false)
	f(getRequest, lines("HTTP/1.1 204 No Content", "Transfer-Encoding: chunked", ""), lines("HTTP/1.1 204 No Content", ""), false)
	f(getRequest, lines("HTTP/1.1 204 No Content", "")+"x", lines("HTTP/1.1 204 No Content", ""), false)
	f(headRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5", "")+"hello", lines("HTTP/1.1 200 OK", "Content-Length: 5", ""), false)
	// Chunked:
	chunked := lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")
	same(getRequest, chunked+"5\r\nhello\r\n0\r\n\r\n")
	same(getRequest, chunked+"0\r\nGrpc-Status: 0\r\n\r\n")
	f(getRequest, chunked+"5;x\r\nhello\r\n0\r\nContent-Length: 1\r\nX-Real-IP: 2\r\n\r\n", chunked+"5\r\nhello\r\n0\r\n\r\n", true)
	f(getRequest, chunked+"0\r\n\r\nx", chunked+"0\r\n\r\n", false)
	// A length:
	same(getRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5", "")+"hello")
	same(getRequest, lines("HTTP/1.1 205 Reset Content", "Content-Length: 0", ""))
	f(getRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5", "")+"hello!", lines("HTTP/1.1 200 OK", "Content-Length: 5", "")+"hello", false)
	// A repeated equal length is one length. Blanks after a chunk's size mean nothing.
	one := lines("HTTP/1.1 200 OK", "Content-Length: 5", "") + "hello"
	f(getRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Length: 5", "content-length:5", "")+"hello", one, true)
	f(getRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5, 5 ,5", "")+"hello", one, true)
	f(getRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Length: 5,5", "")+"hello", one, true)
	f(headRequest, lines("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Length: 5", ""), lines("HTTP/1.1 200 OK", "Content-Length: 5", ""), true)
	f(getRequest, lines("HTTP/1.1 304 x", "Content-Length: 5,5", ""), lines("HTTP/1.1 304 x", "Content-Length: 5", ""), true)
	f(getRequest, lines("HTTP/1.1 204 x", "Content-Length: 0", "Content-Length: 0", ""), lines("HTTP/1.1 204 x", ""), true)
	f(getRequest, chunked+"5    \r\nhello\r\n0     \r\n\r\n", chunked+"5\r\nhello\r\n0\r\n\r\n", true)
	f(getRequest, chunked+"5 \t\r\nhello\r\n0\t\r\nT: u\r\n\r\n", chunked+"5\r\nhello\r\n0\r\nT: u\r\n\r\n", true)
	// Empty lines before it:
	f(getRequest, "\r\n"+one, one, true)
	f(getRequest, strings.Repeat("\r\n", maxEmptyLines)+lines("HTTP/1.1 103 x", "")+"\r\n"+one, lines("HTTP/1.1 103 x", "")+one, true)
	f(getRequest, one+"\r\n", one, false)
	// Until the connection's end:
	f(getRequest, lines("HTTP/1.1 200 OK", "")+"hello", chunked+"5\r\nhello\r\n0\r\n\r\n", false)
	f(getRequest, lines("HTTP/1.0 200 OK", "Connection: keep-alive", "")+"hello", chunked+"5\r\nhello\r\n0\r\n\r\n", false)
	f(getRequest, lines("HTTP/1.1 200 OK", ""), chunked+"0\r\n\r\n", false)

	// Responses that close or keep the connection.
	f(getRequest, lines("HTTP/1.1 200 OK", "Content-Length: 0", "Connection: close", ""), lines("HTTP/1.1 200 OK", "Content-Length: 0", ""), false)
	f(getRequest, lines("HTTP/1.0 200 OK", "Content-Length: 0", ""), lines("HTTP/1.1 200 OK", "Content-Length: 0", ""), false)
	f(getRequest, lines("HTTP/1.0 200 OK", "Content-Length: 0", "Connection: keep-alive", ""), lines("HTTP/1.1 200 OK", "Content-Length: 0", ""), true)

	// An HTTP/1.0 client supports no chunks and no trailers, and no persistent connection unless
	// it asks for one.
	f(oldRequest, lines("HTTP/1.1 200 OK", "Content-Length: 2", "")+"hi", lines("HTTP/1.1 200 OK", "Content-Length: 2", "Connection: keep-alive", "")+"hi", true)
	f(oldRequest, chunked+"5\r\nhello\r\n0\r\nT: u\r\n\r\n", lines("HTTP/1.1 200 OK", "Connection: close", "")+"hello", true)

	// weir forwards fields and status lines, but no hop-by-hop fields.
	same(getRequest, lines("HTTP/1.1 200 \xc3\xa4 \tok  ", "Content-Length: 0", "Set-Cookie: a", "Set-Cookie: b", "x_forwarded_for: 1", ""))
	same(getRequest, lines("HTTP/1.1 299 ", "Content-Length: 0", ""))
	f(getRequest, lines("HTTP/1.1 599", "Content-Length: 0", ""), lines("HTTP/1.1 599 ", "Content-Length: 0", ""), true)
	f(getRequest, lines("HTTP/1.1 200 OK", "A: 1", "Connection: a, keep-alive, Content-Length", "Keep-Alive: x", "Proxy-Authenticate: x", "Upgrade: h2c",
		"Content-Length: 0", "Proxy-Connection: x", "TE: x", ""), lines("HTTP/1.1 200 OK", "Content-Length: 0", ""), true)

	// 1xx before it.
	f(getRequest, lines("HTTP/1.1 103 Early Hints", "Link: x", "Connection: y", "Y: z", "Content-Length: 5", "")+lines("HTTP/1.1 100 Continue", "")+
		lines("HTTP/1.1 200 OK", "Content-Length: 0", ""),
		lines("HTTP/1.1 103 Early Hints", "Link: x", "")+lines("HTTP/1.1 100 Continue", "")+lines("HTTP/1.1 200 OK", "Content-Length: 0", ""), true)

	// 101 with the requested protocol: the connection is no longer HTTP.
	switched := lines("HTTP/1.1 101 Switching Protocols", "Sec-WebSocket-Accept: x", "Connection: Upgrade", "Upgrade: websocket", "")
	f(upgradeRequest, switched, switched, false)
	f(upgradeRequest, lines("HTTP/1.1 101 Switching Protocols", "Sec-WebSocket-Accept: x", "Upgrade: WebSocket", "Content-Length: 5", "")+"frame",
		strings.Replace(switched, ": websocket", ": WebSocket", 1), false)
	same(upgradeRequest, lines("HTTP/1.1 403 Forbidden", "Content-Length: 2", "")+"no")
}

func TestResponsesRefused(t *testing.T) {
	f := func(want, request, in string) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			out, end, client := returned(w, request)
			equal(t, name+": "+in, end, want)
			if client.Reusable() {
				t.Errorf("%q: the connection is used again", in)
			}
			if strings.Contains(out, "HTTP/1.1 200") {
				t.Errorf("%q: the client got %q", in, out)
			}
		}
	}
	for _, line := range []string{"", "200 OK", "HTTP/1.1", "HTTP/1.1 ", "HTTP/1.1 20", "HTTP/1.1 2000", "HTTP/1.1 2x0 OK", "HTTP/1.1 +20 OK", "HTTP/1.1 200OK",
		"HTTP/1.1  200 OK", "HTTP/1.1\t200 OK", "HTTP/1.1 200\tOK", "HTTP/2.0 200 OK", "HTTP/1.2 200 OK", "http/1.1 200 OK", "HTTP/1.1 099 x", "HTTP/1.1 000 x",
		"HTTP/1.1 200 O\x00K", "HTTP/1.1 200 O\x7fK", "ICY 200 OK", " HTTP/1.1 200 OK", "HTTP/1.1 200 O\rK"} {
		f("502 bad_status_line", getRequest, lines(line, "Content-Length: 0", ""))
	}
	ok := func(fields ...string) string {
		return lines(append(append([]string{"HTTP/1.1 200 OK"}, fields...), "")...)
	}
	f("400 bad_field_name", getRequest, ok("A : b"))
	f("400 bad_field_name", getRequest, ok("A: b", " c"))
	f("400 bad_field_value", getRequest, ok("A: b\x00"))
	f("400 bad_length", getRequest, ok("Content-Length: x"))
	f("400 bad_length", headRequest, ok("Content-Length: x"))
	f("400 two_lengths", getRequest, ok("Content-Length: 1", "Content-Length: 2")+"x")
	f("400 two_lengths", getRequest, ok("Content-Length: 1", "Content-Length: 01")+"x")
	f("400 two_lengths", getRequest, ok("Content-Length: 1, 1", "Content-Length: 2")+"x")
	f("400 two_lengths", getRequest, ok("Content-Length: 1", "A: b", "Content-Length: 1", "Content-Length: 2")+"x")
	f("400 two_lengths", getRequest, ok("Content-Length: 1", "Content-Length: 1", "Transfer-Encoding: chunked")+"0\r\n\r\n")
	for _, list := range []string{"1, 2", "1, 01", "1,", ",1", ",", "1,,1", "1 1", "1, x", "x, x", "1, 1, 1,", "+1, +1"} {
		f("400 bad_length", getRequest, ok("Content-Length: "+list)+"x")
		f("400 bad_length", headRequest, ok("Content-Length: "+list))
	}
	f("400 empty_lines", getRequest, strings.Repeat("\r\n", maxEmptyLines+1)+ok("Content-Length: 0"))
	f("400 bare_line_feed", getRequest, "\n"+ok("Content-Length: 0"))
	f("400 bare_line_feed", getRequest, ok("A: b\nC: d", "Content-Length: 0"))
	f("400 two_lengths", getRequest, ok("Content-Length: 1", "Transfer-Encoding: chunked")+"0\r\n\r\n")
	f("400 two_transfer_encodings", getRequest, ok("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")+"0\r\n\r\n")
	f("501 transfer_encoding", getRequest, ok("Transfer-Encoding: gzip, chunked")+"0\r\n\r\n")
	f("501 transfer_encoding", getRequest, ok("Transfer-Encoding: identity")+"x")
	f("400 transfer_encoding_1_0", getRequest, lines("HTTP/1.0 200 OK", "Transfer-Encoding: chunked", "")+"0\r\n\r\n")
	f("400 bad_trailer", getRequest, ok("Transfer-Encoding: chunked", "Trailer: Content-Length")+"0\r\n\r\n")
	f("400 connection_options", getRequest, ok("Connection: "+strings.Repeat(",", 100)))
	f("431 head_too_large", getRequest, ok("A: "+strings.Repeat("x", 64<<10)))
	f("431 too_many_fields", getRequest, ok(strings.Repeat("A: b\r\n", 256)+"B: c"))

	f("502 bad_upgrade", getRequest, lines("HTTP/1.1 101 x", "Connection: Upgrade", "Upgrade: websocket", ""))
	f("502 bad_upgrade", upgradeRequest, lines("HTTP/1.1 101 x", "Connection: Upgrade", "Upgrade: other", ""))
	f("502 bad_upgrade", upgradeRequest, lines("HTTP/1.1 101 x", "Connection: Upgrade", ""))
	f("502 too_many_1xx", getRequest, strings.Repeat(lines("HTTP/1.1 102 x", ""), message.MaxInfos+1))

	// The endpoint ends the connection within a response.
	f("EOF", getRequest, "")
	f("EOF", getRequest, lines("HTTP/1.1 100 Continue", ""))
	whole := ok("Content-Length: 5")
	for i := 1; i < len(whole); i++ {
		f("unexpected EOF", getRequest, whole[:i])
	}
}

func TestResponsesCutShort(t *testing.T) {
	f := func(want, in string) {
		t.Helper()
		_, end, client := returned(newWire(in), getRequest)
		equal(t, in, end, want)
		if client.Reusable() || client.BodyEnded() {
			t.Errorf("%q: the response has not ended", in)
		}
	}
	f("unexpected EOF", lines("HTTP/1.1 200 OK", "Content-Length: 5", ""))
	f("unexpected EOF", lines("HTTP/1.1 200 OK", "Content-Length: 5", "")+"hell")
	f("unexpected EOF", lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")+"5\r\nhello\r\n")
	f("unexpected EOF", lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")+"0\r\n")
	f("unexpected EOF", lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")+"0\r\nA: b\r\n")
	f("400 bad_chunk", lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")+"x\r\n")

	// If the body ends with the connection, a reset is no valid end.
	w := newWire(lines("HTTP/1.1 200 OK", "") + "hello")
	w.final = message.ErrBadLength
	_, end, _ := returned(w, getRequest)
	equal(t, "an error in place of an end", end, "400 bad_length")
}

func TestResponseTrailersFollowConnection(t *testing.T) {
	in := lines("HTTP/1.1 200 OK", "Connection: X-Hop", "Transfer-Encoding: chunked", "") + "0\r\nX-Hop: 1\r\nX-End: 2\r\n\r\n"
	out, _, _ := returned(newWire(in), getRequest)
	equal(t, "returned", out, lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")+"0\r\nX-End: 2\r\n\r\n")
}

func TestClientState(t *testing.T) {
	var c Client
	var req message.Request
	var res message.Response
	w := newWire(lines("HTTP/1.1 103 x", ""), lines("HTTP/1.1 200 OK", "Content-Length: 2", ""), "hi", "late")
	w.blocked = true
	c.Init(w, Limits{})
	parseInto(&req, lines("POST / HTTP/1.1", "Host: a", "Content-Length: 1", ""))
	if !c.Reusable() || !c.Usable(conn.ErrWouldBlock) || c.Started() || c.Answered() {
		t.Error("a new connection is fit for a request")
	}
	c.WriteHead(&req)
	if c.Reusable() {
		t.Error("the request has not ended")
	}
	c.ReadHead(&req, &res)
	if !res.Informational() || !c.Answered() || c.Started() {
		t.Errorf("after a 103: answered %v, started %v", c.Answered(), c.Started())
	}
	if err := again(func() error { return c.ReadHead(&req, &res) }); err != nil || res.Status != 200 {
		t.Fatal(err)
	}
	readAll(func() ([]byte, error) { return c.ReadBody(&res) })
	if !c.BodyEnded() || c.Reusable() {
		t.Error("the response has ended, but the request has not: its rest would be the next request")
	}
	c.WriteBody([]byte("x"))
	c.WriteEnd(&req)
	c.Flush()
	if !c.Reusable() {
		t.Error("the exchange has ended")
	}
	if c.Usable(conn.ErrWouldBlock) != true {
		t.Error("nothing is there yet")
	}
	if c.Usable(conn.ErrWouldBlock) {
		t.Error("what nobody asked for is there")
	}
	if c.Usable(conn.ErrWouldBlock) || c.Reusable() {
		t.Error("what nobody asked for is still there")
	}
	c.WriteHead(&req)
	c.Close()
	c.Close()

	c.Init(newWire("\r\n", "HTTP/1.1 200 OK\r\n"), Limits{})
	c.WriteHead(&req)
	if c.ReadHead(&req, &res); !c.Answered() || c.Started() {
		t.Errorf("after an empty line: answered %v, started %v", c.Answered(), c.Started())
	}
}

func TestUsableAtTheEnd(t *testing.T) {
	var c Client
	c.Init(newWire(), Limits{})
	if c.Usable(conn.ErrWouldBlock) {
		t.Error("the connection has ended")
	}
}

// After a 101 the tunnel owns the unread bytes, and their memory.
func TestTakeBuffered(t *testing.T) {
	w := newWire(lines("HTTP/1.1 101 x", "Upgrade: websocket", "") + "frame")
	_, _, client := returned(w, upgradeRequest)
	equal(t, "behind the 101", string(client.TakeBuffered()), "frame")
	if client.in.buf != nil || client.Started() || client.Reusable() {
		t.Error("the client holds memory, or takes the connection for HTTP")
	}

	var s Server
	var req message.Request
	s.Init(newWire(upgradeRequest+"early"), Limits{})
	s.ReadHead(&req)
	taken := s.TakeBuffered()
	spoilPool()
	equal(t, "behind the request", string(taken), "early")
	if s.in.buf != nil {
		t.Error("the server holds memory")
	}
	equal(t, "twice", string(s.TakeBuffered()), "")
}
