package http1

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

const chunkedPost = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

// decoded reads a request's body and the bytes after it.
func decoded(w *wire, head string) (body, trailers, end string) {
	w.pieces = append([][]byte{[]byte(head)}, w.pieces...)
	var s Server
	var req message.Request
	s.Init(w, Limits{})
	defer s.Close()
	if err := again(func() error { return s.ReadHead(&req) }); err != nil {
		return "", "", outcome(err)
	}
	body, err := readAll(func() ([]byte, error) { return s.ReadBody(&req) })
	if err != nil {
		if s.BodyEnded() || !s.MustClose() {
			panic("a body that could not be read has not ended, and nothing follows it")
		}
		return body, "", outcome(err)
	}
	if !s.BodyEnded() || s.MustClose() {
		panic("a body that was read has ended")
	}
	trailers = string(appendFields(nil, &req.Trailers))
	err = again(func() error { return s.ReadHead(&req) })
	return body, trailers, outcome(err)
}

func TestChunkedBodies(t *testing.T) {
	f := func(in, body, trailers string) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			b, tr, end := decoded(w, chunkedPost)
			equal(t, name+": "+in, b, body)
			equal(t, name+": trailers of "+in, tr, trailers)
			equal(t, name+": end of "+in, end, "EOF")
		}
	}
	f("0\r\n\r\n", "", "")
	f("000\r\n\r\n", "", "")
	f("5\r\nhello\r\n0\r\n\r\n", "hello", "")
	f("5\r\nhello\r\n00000B\r\n\r\n world 12\r\n000\r\n\r\n", "hello\r\n world 12", "")
	f("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", "01234567890123456789", "")
	f("000000000000001\r\nx\r\n0\r\n\r\n", "x", "")
	f("5;a\r\nhello\r\n0;b\r\n\r\n", "hello", "")
	f("5;a=b;c=\"d;\\\" \xc3\xa4\"\r\nhello\r\n0; ; \r\n\r\n", "hello", "")
	f("1;"+strings.Repeat("x", maxChunkLine-4)+"\r\nx\r\n0\r\n\r\n", "x", "")

	// Trailers, and fields that must not be trailers.
	f("0\r\nA: b\r\n\r\n", "", "A: b\r\n")
	f("1\r\nx\r\n0\r\nA:b\r\nC:  \td \r\nA: e\r\n\r\n", "x", "A: b\r\nC: d\r\nA: e\r\n")
	for _, name := range []string{"Host", "connection", "Content-Length", "Transfer-Encoding", "Expect", "Upgrade", "TE", "Trailer", "Keep-Alive",
		"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "HTTP2-Settings", "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto",
		"X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Server", "X-Real-IP", "X-Request-Id", "X_Forwarded_For", "x.real.ip", "Content_Length"} {
		f("0\r\n"+name+": 5\r\nGrpc-Status: 0\r\n\r\n", "", "Grpc-Status: 0\r\n")
	}
}

func TestBadChunks(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			_, _, end := decoded(w, chunkedPost)
			equal(t, name+": "+in, end, want)
		}
	}
	for _, size := range []string{"", " ", "g", "-1", "+1", "0x1", " 1", "1 ", "1\t", "1 ;a", "1,", "1\x00", "_", "1_0", "１", "10000000000000000", "0000000000000000",
		"ffffffffffffffff", "1;a\x00", "1;a\rb", "1\r", "1;a\x7f", ";a"} {
		f(size+"\r\nx\r\n0\r\n\r\n", "400 bad_chunk")
	}
	f("1\nx\r\n0\r\n\r\n", "400 bare_line_feed")
	f("\n1\r\nx\r\n0\r\n\r\n", "400 bare_line_feed")
	f("1;a\nb\r\nx\r\n0\r\n\r\n", "400 bare_line_feed")
	f("1;"+strings.Repeat("x", maxChunkLine-3)+"\r\nx\r\n0\r\n\r\n", "400 bad_chunk")
	f("1;"+strings.Repeat("x", 2*maxChunkLine), "400 bad_chunk")
	f(strings.Repeat("0", 2*maxChunkLine), "400 bad_chunk")
	for _, end := range []string{"\n", "\rx", "x\r\n", "\n\r", "0\r\n", "\r\r\n", "  \r\n"} {
		f("1\r\nx"+end+"0\r\n\r\n", "400 bad_chunk")
	}
	f("0\r\nA: b\n\r\n", "400 bare_line_feed")
	f("0\r\nA: b\n\n", "400 bare_line_feed")
	f("0\r\n\n", "400 bare_line_feed")
	f("0\r\nA : b\r\n\r\n", "400 bad_field_name")
	f("0\r\n A: b\r\n\r\n", "400 bad_field_name")
	f("0\r\nA: b\r\n c\r\n\r\n", "400 bad_field_name")
	f("0\r\nA: b\x00\r\n\r\n", "400 bad_field_value")
	f("0\r\n\rA\r\n\r\n", "400 bad_field_name")
	f("0\r\n"+strings.Repeat("A: b\r\n", 257)+"\r\n", "431 too_many_fields")
	f("0\r\nA: "+strings.Repeat("x", 64<<10)+"\r\n\r\n", "431 head_too_large")

	// A truncated body is not complete.
	whole := "5;x\r\nhello\r\n0\r\nA: b\r\n\r\n"
	for i := range whole {
		f(whole[:i], "unexpected EOF")
	}
}

// weir accepts blanks after a chunk size only in responses. Otherwise the chunks of responses
// follow the same rules as those of requests.
func TestPaddedChunkSizes(t *testing.T) {
	head := lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")
	for _, size := range []string{"1 ;a=b", "1\t;a", "1 \t ;a=\"b;c\" ", "01  ;"} {
		for name, w := range map[string]*wire{"in one piece": newWire(head + size + "\r\nx\r\n0 ;c\r\n\r\n"), "in bytes": inBytes(head + size + "\r\nx\r\n0\t;c\r\n\r\n")} {
			out, end, client := returned(w, getRequest)
			equal(t, name+": "+size, out, head+"1\r\nx\r\n0\r\n\r\n")
			if equal(t, name+": end of "+size, end, ""); !client.Reusable() {
				t.Errorf("%s: %q: the connection is not used again", name, size)
			}
		}
	}
	for _, size := range []string{"", " ", " 1", "1 x", "1 x;a", " ;a", " 1;a", "1 1;a", "1\r;a", "1 \r;a", "1\x0b;a", "1\x0c;a", "1\xa0;a", "1\x00;a", "1 ;a\rb", "1 ;a\x00",
		"1 \x0b", "1\x00", "1 1", "g ", "g ;a", "1\r ", "1\xa0"} {
		_, end, client := returned(newWire(head+size+"\r\nx\r\n0\r\n\r\n"), getRequest)
		if equal(t, size, end, "400 bad_chunk"); client.Reusable() {
			t.Errorf("%q: the connection is used again", size)
		}
	}
	_, end, _ := returned(newWire(head+strings.Repeat("1"+strings.Repeat(" ", 200)+"\r\nx\r\n", 100)+"0\r\n\r\n"), getRequest)
	equal(t, "long padding", end, "400 bad_chunk")
	_, end, _ = returned(newWire(head+strings.Repeat("1"+strings.Repeat(" ", 200)+";a\r\nx\r\n", 100)+"0\r\n\r\n"), getRequest)
	equal(t, "long padding before an extension", end, "400 bad_chunk")
}

// Clients that write all sizes with the same number of digits may send very small chunks, and so may Apache
// httpd, which pads the sizes with spaces.
func TestManyChunksOfAByte(t *testing.T) {
	for _, size := range []string{"1", "00000001", "000000000000001"} {
		body, _, end := decoded(newWire(strings.Repeat(size+"\r\nx\r\n", 100_000)+"0\r\n\r\n"), chunkedPost)
		equal(t, size, fmt.Sprint(len(body), end), "100000EOF")
	}
	head := lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")
	_, end, _ := returned(newWire(head+strings.Repeat("1       \r\nx\r\n", 100_000)+"0\r\n\r\n"), getRequest)
	equal(t, "padded", end, "")
}

// Endless chunk extensions make a parser work without any data (CVE-2023-39326).
func TestChunksOfExtensionsAlone(t *testing.T) {
	chunk := func(n, extension int) string {
		return fmt.Sprintf("%x;%s\r\n%s\r\n", n, strings.Repeat("e", extension), strings.Repeat("d", n))
	}
	_, _, end := decoded(newWire(strings.Repeat(chunk(1, 200), 100)+"0\r\n\r\n"), chunkedPost)
	equal(t, "long extensions", end, "400 bad_chunk")
	body, _, end := decoded(newWire(strings.Repeat(chunk(100, 200), 1000)+"0\r\n\r\n"), chunkedPost)
	if len(body) != 100*1000 || end != "EOF" {
		t.Errorf("extensions beside data: %d bytes, %s", len(body), end)
	}
}

// Connection also applies to trailers (RFC 9110, section 7.6.1).
func TestNominatedTrailers(t *testing.T) {
	head := lines("POST / HTTP/1.1", "Host: a", "Connection: x-one, keep-alive", "Transfer-Encoding: chunked", "Connection: X-Two", "")
	_, trailers, end := decoded(newWire("0\r\nX-One: 1\r\nX-Three: 3\r\nx-two: 2\r\n\r\n"), head)
	equal(t, "trailers", trailers, "X-Three: 3\r\n")
	equal(t, "end", end, "EOF")
}

func TestLengthBodies(t *testing.T) {
	for _, n := range []int{1, 5, 16<<10 - 100, 16 << 10, 16<<10 + 1, 100000} {
		head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", n)
		want := string(pattern(n))
		body, _, end := decoded(newWire(want), head)
		if body != want || end != "EOF" {
			t.Errorf("%d bytes: got %d, %s", n, len(body), end)
		}
		_, _, end = decoded(newWire(want[:n-1]), head)
		equal(t, "a byte less", end, "unexpected EOF")
		body, _, end = decoded(newWire(want+"GET"), head)
		if body != want {
			t.Errorf("%d bytes and more: got %d", n, len(body))
		}
		equal(t, "a next request that breaks off", end, "unexpected EOF")
	}
	body, _, end := decoded(inBytes("hello"), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
	equal(t, "in bytes", body+" "+end, "hello EOF")
}

// The test splits a stream of messages at every byte position, and into single bytes. No byte
// may be lost or read twice.
func TestEveryFragmentation(t *testing.T) {
	in := get("A: b") +
		lines("POST http://h:1/x?y HTTP/1.1", "Host: h:1", "Content-Length: 11", "") + "hello\r\n\r\nwo" +
		chunkedPost + "3;x=\"y\"\r\nabc\r\n02\r\n\r\n\r\n0\r\nT: u\r\nHost: no\r\n\r\n" +
		lines("HEAD / HTTP/1.0", "Connection: keep-alive", "Host: b", "")
	want, end := forwarded(newWire(in), Limits{})
	if end != "EOF" || strings.Count(want, "HTTP/1.1") != 4 {
		t.Fatalf("%q, %s", want, end)
	}
	check := func(w *wire, how string) {
		t.Helper()
		// Pieces of a body that arrive separately become separate chunks.
		out, end := forwarded(w, Limits{})
		equal(t, how, joinChunks(t, out), joinChunks(t, want))
		equal(t, how, end, "EOF")
	}
	check(inBytes(in), "in bytes")
	for i := range in {
		check(newWire(in[:i], in[i:]), fmt.Sprintf("cut at %d", i))
	}
	for i := range in {
		if _, end := forwarded(newWire(in[:i]), Limits{}); end != "EOF" && end != "unexpected EOF" {
			t.Errorf("ended at %d: %s", i, end)
		}
	}
}

// joinChunks rewrites forwarded requests with one chunk for each chunked body.
func joinChunks(t *testing.T, in string) string {
	t.Helper()
	var s Server
	var req message.Request
	s.Init(newWire(in), Limits{})
	var b strings.Builder
	for {
		err := again(func() error { return s.ReadHead(&req) })
		if err == io.EOF {
			return b.String()
		}
		if err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		for i := range req.Fields {
			fmt.Fprintf(&b, "%s: %s\n", req.Name(i), req.Value(i))
		}
		body, err := readAll(func() ([]byte, error) { return s.ReadBody(&req) })
		fmt.Fprintf(&b, "%s %s: %q %v %s\n", req.Bytes(req.Method), req.Bytes(req.Target), body, err, appendFields(nil, &req.Trailers))
	}
}
