package http1

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

func TestRequestsRefused(t *testing.T) {
	f := func(want, in string) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			out, end := forwarded(w, Limits{})
			equal(t, name+": "+in, end, want)
			equal(t, name+": forwarded of "+in, out, "")
		}
	}

	// The request line.
	f("400 bad_request_line", "\r\r\n\r\n")
	f("400 bad_request_line", " \r\n"+get())
	f("400 empty_lines", strings.Repeat("\r\n", maxEmptyLines+1))
	f("400 empty_lines", strings.Repeat("\r\n", maxEmptyLines+1)+get())
	f("400 bad_request_line", lines("GET /", ""))
	f("400 bad_request_line", lines("GET", ""))
	f("400 bad_request_line", lines("GET ", ""))
	f("400 bad_request_line", lines(" / HTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET HTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET  HTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET    HTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("  GET / HTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET  / HTTP/1.1  ", "Host: a", ""))
	f("400 bad_request_line", lines("GET \t/ \tHTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("G(T / HTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET\t/ HTTP/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET / HTTP/1.1 ", "Host: a", ""))
	f("400 bad_request_line", lines("GET / http/1.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET / HTTP/1", "Host: a", ""))
	f("400 bad_request_line", lines("GET / HTTP/1.1x", "Host: a", ""))
	f("400 bad_request_line", lines("GET / HTTP/+.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET / HTTP/01.1", "Host: a", ""))
	f("400 bad_request_line", lines("GET / HTTPS/1.1", "Host: a", ""))
	f("400 bad_request_line", "GET / HTTP/1.1\rHost: a\r\n\r\n")
	f("400 bad_target", lines("GET \t/ HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET / / HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET  /  /  HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET  HTTP/1.1  HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET /\t HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET /\x00 HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET /\x7f HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET /\xc3\xa4 HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET /a#b HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET a HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET a:80 HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET ?q HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET * HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("OPTIONS ** HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET ftp://a/ HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET http:/a/ HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET http:// HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET http:///x HTTP/1.1", "Host: ", ""))
	f("400 bad_target", lines("GET http://a HTTP/1.1", "Host: a", ""))
	f("400 bad_target", lines("GET http://a?q HTTP/1.1", "Host: a", ""))
	f("505 version", lines("GET / HTTP/2.0", "Host: a", ""))
	f("505 version", lines("GET / HTTP/0.9", "Host: a", ""))
	f("400 bad_request_line", lines("GET / HTTP/1.10", "Host: a", ""))
	f("505 version", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	f("501 method", lines("PRI * HTTP/1.1", "Host: a", ""))
	f("501 method", lines("CONNECT a:443 HTTP/1.1", "Host: a:443", ""))
	f("501 method", lines("CONNECT / HTTP/1.1", "Host: a", ""))
	f("501 method", lines("TRACE / HTTP/1.1", "Host: a", ""))

	// Field lines.
	f("400 bad_field_name", get(": b"))
	f("400 bad_field_name", get("A : b"))
	f("400 bad_field_name", get("A\t: b"))
	f("400 bad_field_name", get("A"))
	f("400 bad_field_name", get("A B: c"))
	f("400 bad_field_name", get("A\x00: c"))
	f("400 bad_field_name", get("\xc3\xa4: c"))
	f("400 bad_field_name", get(" A: folded"))
	f("400 bad_field_name", get("A: b", " folded"))
	f("400 bad_field_name", get("Transfer-Encoding: chunked", "\tfolded"))
	f("400 bad_field_name", lines("GET / HTTP/1.1", " Host: a", ""))
	f("400 bad_field_value", get("A: b\x00"))
	f("400 bad_field_value", get("A: b\rB: c"))
	f("400 bad_field_value", get("A: b\r\rB: c"))
	f("400 bad_field_value", get("A: 0123456\x7f89"))
	f("400 bad_field_value", get("A: 0123\x0b56789"))

	// The host.
	f("400 no_host", lines("GET / HTTP/1.1", ""))
	f("400 no_host", lines("GET http://a/ HTTP/1.1", ""))
	f("400 two_hosts", get("Host: a"))
	f("400 two_hosts", get("hOST: b"))
	f("400 two_hosts", lines("GET / HTTP/1.0", "Host: a", "Host: b", ""))
	f("400 two_hosts", lines("GET http://b/ HTTP/1.1", "Host: a", ""))
	f("400 two_hosts", lines("GET http://a:443/ HTTP/1.1", "Host: a", ""))
	f("400 two_hosts", lines("GET https://a:80/ HTTP/1.1", "Host: a", ""))
	f("400 two_hosts", lines("GET http://a:80/ HTTP/1.1", "Host: a:443", ""))
	f("400 two_hosts", lines("GET http://a:80:80/ HTTP/1.1", "Host: a:80", ""))
	f("400 two_hosts", lines("GET http://a:080/ HTTP/1.1", "Host: a", ""))
	f("400 two_hosts", lines("GET http://:80/ HTTP/1.1", "Host:", ""))
	f("400 two_hosts", lines("GET http://a:80/ HTTP/1.1", "Host: a", "Host: a:80", ""))
	f("400 bad_host", lines("GET http://:80/ HTTP/1.1", "Host: :80", ""))
	f("400 bad_host", lines("GET http://u@a:80/ HTTP/1.1", "Host: u@a", ""))
	f("400 two_hosts", lines("GET http://a/ HTTP/1.1", "Host:", ""))
	f("400 two_hosts", lines("GET http://u@a/ HTTP/1.1", "Host: a", ""))
	f("400 bad_host", lines("GET http://u@a/ HTTP/1.1", "Host: u@a", ""))
	f("400 bad_host", lines("GET http://a@b/ HTTP/1.0", ""))

	// The length of the body.
	f("400 bad_length", get("Content-Length:"))
	f("400 bad_length", get("Content-Length: +1"))
	f("400 bad_length", get("Content-Length: -1"))
	f("400 bad_length", get("Content-Length: 0x1"))
	f("400 bad_length", get("Content-Length: 1 1"))
	f("400 bad_length", get("Content-Length: 1, 1"))
	f("400 bad_length", get("Content-Length: 1,"))
	f("400 bad_length", get("Content-Length: 1.0"))
	f("400 bad_length", get("Content-Length: 1000000000000000000"))
	f("400 bad_length", get("Content-Length: 18446744073709551617"))
	f("400 two_lengths", get("Content-Length: 1", "Content-Length: 1"))
	f("400 two_lengths", get("Content-Length: 1", "content-length: 2"))
	f("400 two_lengths", get("Content-Length: 1", "Transfer-Encoding: chunked"))
	f("400 two_lengths", get("Transfer-Encoding: chunked", "Content-Length: 0"))
	f("400 two_transfer_encodings", get("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"))
	f("400 two_transfer_encodings", get("Transfer-Encoding: chunked", "Transfer-Encoding: identity"))
	f("501 transfer_encoding", get("Transfer-Encoding: identity"))
	f("501 transfer_encoding", get("Transfer-Encoding: identity", "Transfer-Encoding: chunked"))
	f("501 transfer_encoding", get("Transfer-Encoding:"))
	f("501 transfer_encoding", get("Transfer-Encoding: gzip, chunked"))
	f("501 transfer_encoding", get("Transfer-Encoding: chunked, chunked"))
	f("501 transfer_encoding", get("Transfer-Encoding: chunked,"))
	f("501 transfer_encoding", get("Transfer-Encoding: ,chunked"))
	f("501 transfer_encoding", get("Transfer-Encoding: chunked;q=1"))
	f("501 transfer_encoding", get("Transfer-Encoding: \"chunked\""))
	f("501 transfer_encoding", get("Transfer-Encoding: xchunked"))
	f("501 transfer_encoding", get("Transfer-Encoding: chunked\xa0"))
	f("501 transfer_encoding", get("Transfer-Encoding: chun\u212aed")) // a Kelvin sign is no k
	f("400 bad_field_value", get("Transfer-Encoding: chunked\x0b"))
	f("400 bad_field_name", get("Transfer-Encoding : chunked"))
	f("400 transfer_encoding_1_0", lines("POST / HTTP/1.0", "Transfer-Encoding: chunked", ""))
	f("400 transfer_encoding_1_0", lines("POST / HTTP/1.0", "Connection: keep-alive", "Transfer-Encoding: chunked", ""))
	f("400 bad_trailer", get("Transfer-Encoding: chunked", "Trailer: A, Content-Length"))
	f("400 bad_trailer", get("Trailer: transfer-encoding"))
	f("400 bad_trailer", get("Trailer: Trailer"))

	// The client's options for the connection.
	for _, v := range []string{"100-continue, x", "x,100-continue", "y 100-continue", "100-continue;q=1", "\"100-continue\"", "100 continue", "100", "x100-y",
		"100-continue, 100-continue", "Continue", "\xc2\xa0100-continue"} {
		f("417 expectation", get("Expect: "+v))
		f("417 expectation", lines("GET / HTTP/1.0", "Expect: "+v, ""))
	}
	f("417 expectation", get("Expect: 100-continue", "Expect: x"))
	f("417 expectation", get("Expect: x", "Expect: 100-continue"))
	f("417 expectation", get("Expect:", "A: b", "Expect: 100-continue"))
	f("417 expectation", get("Expect: x", "Expect: y"))
	f("400 upgrade_with_body", get("Connection: upgrade", "Upgrade: websocket", "Transfer-Encoding: chunked"))
	f("400 connection_options", get("Connection: "+strings.Repeat("a,", 64)))
	f("400 connection_options", get(strings.Repeat("Connection: a\r\n", 65)+"A: b"))
}

// Some parsers accept a bare line feed as the end of a line, and then read another message, or two. weir
// refuses it even if the rest of the head has not arrived, because the client may send nothing more.
func TestBareLineFeeds(t *testing.T) {
	for _, in := range []string{
		"GET / HTTP/1.1\nHost: a\n\n",
		"GET / HTTP/1.1\r\nHost: a\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n\n",
		"GET / HTTP/1.1\r\nHost: a\r\nA: b\n\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
		"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		for _, w := range []*wire{newWire(in), inBytes(in)} {
			if out, end := forwarded(w, Limits{}); out != "" || !strings.HasPrefix(end, "400 ") {
				t.Errorf("%q: forwarded %q, then %s", in, out, end)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	limits := Limits{HeadBytes: 100, Fields: 3}
	f := func(want, in string) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			_, end := forwarded(w, limits)
			equal(t, name+": "+in, end, want)
		}
	}
	long := strings.Repeat("x", 100)
	f("EOF", get("A: "+long[:100-len(get("A: "))]))
	f("431 head_too_large", get("A: "+long[:101-len(get("A: "))]))
	f("431 head_too_large", get("A: "+long+long))
	f("414 target_too_long", "GET /"+long+" HTTP/1.1\r\nHost: a\r\n\r\n")
	f("414 target_too_long", "GET /"+long+long)
	f("414 target_too_long", long+long+long)
	f("431 head_too_large", lines("GET /"+long[:84]+" HTTP/1.1")+"Host: a\r\n\r\n") // the line just fits
	f("EOF", get("A:", "B:"))
	f("431 too_many_fields", get("A:", "B:", "C:"))

	limits = Limits{} // the defaults
	f("EOF", get("A: "+strings.Repeat("x", 64<<10-len(get("A: ")))))
	if _, end := forwarded(newWire(get("A: "+strings.Repeat("x", 64<<10-len(get("A: "))+1))), limits); end != "431 head_too_large" {
		t.Errorf("a head of 64 KiB and a byte: %s", end)
	}
	f("EOF", get(strings.Repeat("A:\r\n", 254)+"B:"))
	f("431 too_many_fields", get(strings.Repeat("A:\r\n", 255)+"B:"))
}

func TestRequestsForwarded(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			out, end := forwarded(w, Limits{})
			equal(t, name+": "+in, out, want)
			equal(t, name+": end of "+in, end, "EOF")
		}
	}
	same := func(in string) { t.Helper(); f(in, in) }

	same(get())
	same(get("A: b", "a: c", "B: d", "A: b"))
	f(get("A:b", "B:  \t b \t ", "C:", "D: \t"), get("A: b", "B: b", "C: ", "D: "))
	same(get("A: \"\xc3\xa4\", x\ty", "!#$%&'*+-.^_`|~09AZaz: x", "Cookie: a=1; b=\"2\"", "Cookie: c"))
	same(lines("SPECIAL!#$%&'*+-.^_`|~ / HTTP/1.1", "Host: a", ""))
	same(lines("get / HTTP/1.1", "Host: a", "")) // methods are case-sensitive
	same(lines("OPTIONS * HTTP/1.1", "Host: a", ""))
	same(lines("GET / HTTP/1.1", "Host: ", ""))

	// weir forwards targets byte for byte.
	same(lines("GET /a//b;p=1/%2F%2f%25%41?x=1;y=%zz&%&..&\\&?/../ HTTP/1.1", "Host: a", ""))
	same(lines("GET //b/c HTTP/1.1", "Host: a", ""))
	same(lines(`GET /"<>^{|}'[]`+"` HTTP/1.1", "Host: a", ""))
	f(lines("GET http://A.b:8080/c?d HTTP/1.1", "Host: a.B:8080", ""), lines("GET /c?d HTTP/1.1", "Host: a.B:8080", ""))
	f(lines("GET http://a:80/c HTTP/1.1", "Host: A", ""), lines("GET /c HTTP/1.1", "Host: A", ""))
	f(lines("GET http://a/c HTTP/1.1", "Host: a:80", ""), lines("GET /c HTTP/1.1", "Host: a:80", ""))
	f(lines("GET https://[::1]:443/ HTTP/1.1", "Host: [::1]", ""), lines("GET / HTTP/1.1", "Host: [::1]", ""))
	f(lines("GET hTTps://a//c HTTP/1.1", "Host: a", ""), lines("GET //c HTTP/1.1", "Host: a", ""))

	// One blank is enough on each side of the target.
	f(lines("GET  / HTTP/1.1", "Host: a", ""), get())
	f(lines("GET    /?a=b     HTTP/1.1", "Host: a", ""), lines("GET /?a=b HTTP/1.1", "Host: a", ""))
	f(lines("GET  http://a/  HTTP/1.0", "Host: a", ""), get())

	// Empty lines before a request are not part of it.
	f("\r\n", "")
	f("\r\n\r\n", "")
	f("\r\n"+get("Content-Length: 2")+"hi\r\n"+get()+"\r\n", get("Content-Length: 2")+"hi"+get())
	four := strings.Repeat("\r\n", maxEmptyLines)
	f(four+get()+four+chunkedPost+"0\r\n\r\n"+four, get()+chunkedPost+"0\r\n\r\n")

	// The version is that of the connection (RFC 9112, section 2.3).
	f(lines("GET / HTTP/1.2", "Host: a", ""), get())
	f(lines("GET / HTTP/1.9", "Host: a", "Connection: keep-alive", ""), get())
	f(lines("POST / HTTP/1.2", "Host: a", "Transfer-Encoding: chunked", "")+"0\r\n\r\n", chunkedPost+"0\r\n\r\n")
	f(lines("GET / HTTP/1.0", "Host: a", ""), get())
	f(lines("GET / HTTP/1.0", "Host: a", "Connection: keep-alive", "Keep-Alive: timeout=5", ""), get())
	f(lines("POST / HTTP/1.0", "Host: a", "Content-Length: 2", "")+"hi", lines("POST / HTTP/1.1", "Host: a", "Content-Length: 2", "")+"hi")
	f(lines("POST / HTTP/1.0", "Host: a", "Content-Length: 1", "Expect: 100-continue", "")+"x",
		lines("POST / HTTP/1.1", "Host: a", "Content-Length: 1", "")+"x")

	// Bodies.
	same(get("Content-Length: 0"))
	same(get("Content-Length: 3") + "abc")
	same(get("Content-Length: 003") + "abc")
	same(get("Content-Length: 1", "Expect: 100-continue") + "a")
	f(get("Expect: 100-continue"), get()) // the request has no body
	f(get("Expect:"), get())              // weir drops unknown expectations
	f(get("Expect: 200-ok", "Content-Length: 1")+"x", get("Content-Length: 1")+"x")
	f(get("Expect: x", "Expect: x"), get())
	f(lines("GET / HTTP/1.0", "Host: a", "Expect: x", ""), get())
	same(get("Content-Length: 1", "Expect: 100-continue", "Expect: 100-continue") + "x")
	f(get("transfer-ENCODING:  CHUNKED ")+"0\r\n\r\n", get("Transfer-Encoding: chunked")+"0\r\n\r\n")

	// Upgrades, one at a time and never to HTTP/2.
	upgrade := get("Connection: Upgrade", "Upgrade: websocket")
	same(upgrade)
	f(get("Upgrade: websocket", "Connection: keep-alive, uPGRADE", "Content-Length: 0"),
		get("Content-Length: 0", "Connection: Upgrade", "Upgrade: websocket"))
	same(get("Connection: Upgrade", "Upgrade: foo/1.1"))
	f(get("Upgrade: websocket"), get())
	f(get("Connection: Upgrade"), get())
	f(get("Connection: Upgrade", "Upgrade: websocket, foo"), get())
	f(get("Connection: Upgrade", "Upgrade: foo", "Upgrade: websocket"), get())
	f(get("Connection: Upgrade", "Upgrade: h2c", "Upgrade: websocket"), get())
	f(get("Connection: Upgrade, HTTP2-Settings", "Upgrade: H2C", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"), get())
	f(get("Connection: Upgrade", "Upgrade: h2c;q=1"), get())
	f(get("Connection: Upgrade", "Upgrade: h2c/"), get())
	for _, hides := range []string{"h2c/1", "h2", "HTTP/2.0", "http/1.1", "TLS/1.0", "tls"} {
		f(get("Connection: Upgrade", "Upgrade: "+hides), get())
	}
	same(get("Connection: Upgrade", "Upgrade: SPDY/3.1"))
	f(get("Connection: Upgrade", "Upgrade:"), get())
	f(lines("GET / HTTP/1.0", "Host: a", "Connection: upgrade", "Upgrade: websocket", ""), get())

	// weir itself asks for trailers, because TE applies to one connection.
	f(get("TE: trailers"), get("Connection: TE", "TE: trailers"))
	f(get("Connection: TE", "TE: deflate;q=0.5, Trailers"), get("Connection: TE", "TE: trailers"))
	f(get("TE: gzip"), get())
	f(get("TE: trailers", "Connection: Upgrade", "Upgrade: websocket"), upgrade)

	// Hop-by-hop fields, and the fields that Connection lists.
	f(get("Connection: close", "Keep-Alive: x", "Proxy-Connection: x", "Proxy-Authenticate: x", "Proxy-Authorization: x",
		"TE: x", "Upgrade: x", "HTTP2-Settings: x", "Trailer: x"), get("Trailer: x"))
	f(get("A: 1", "Connection: b , ,keep-alive,\tA", "B: 2", "a: 3", "C: 4"), get("C: 4"))
	f(get("A: 1", "Connection: A", "Connection: B", "B: 2"), get())
	f(get("X-Forwarded-For: 1", "Connection: X-Forwarded-For"), get())
	f(get("Connection: Connection, Close, Host, Content-Length", "Content-Length: 1")+"x", get("Content-Length: 1")+"x")
	f(get("Connection: Expect", "Content-Length: 1", "Expect: 100-continue")+"x", get("Content-Length: 1", "Expect: 100-continue")+"x")
	f(get("Connection: Transfer-Encoding", "Transfer-Encoding: chunked")+"0\r\n\r\n", get("Transfer-Encoding: chunked")+"0\r\n\r\n")

	// Names that equal a known name if a server reads "_" and "." as "-".
	f(get("X_Forwarded_For: 1", "X.Forwarded.For: 1", "X-Forwarded_Proto: 1", "x_real.ip: 1", "Transfer_Encoding: chunked",
		"Content_Length: 5", "Content.Length: 5", "Keep_Alive: 1", "X_Forwarded_Anything: 1", "X_Request_Id: 1", "Proxy_Authorization: 1"), get())
	same(get("X_Custom: 1", "X.Y: 2", "X-Forwarded: 3", "_Host: 4", "Host_: 5"))
}

func TestHosts(t *testing.T) {
	f := func(host string, valid bool) {
		t.Helper()
		_, end := forwarded(newWire(lines("GET / HTTP/1.1", "Host: "+host, "")), Limits{})
		want := "400 bad_host"
		if valid {
			want = "EOF"
		}
		equal(t, host, end, want)
	}
	for _, host := range []string{"", "a", "a.b", "A.B.", "a-b_c.d", "a:80", "a:", "a:0", "a:65535", "a:00080", "10.0.0.1:80", "1",
		"[::1]", "[::1]:443", "[::1]:", "[2001:DB8::1]", "[::ffff:1.2.3.4]", "xn--bcher-kva.example"} {
		f(host, true)
	}
	for _, host := range []string{":", ":80", "a:b", "a:65536", "a:123456", "a:+1", "a:-1", "a:80:80", "a b", "a,b", "a/b", "a?b", "a\\b",
		"a@b", "a#b", "a%41", "a;b", "a\"", "\xc3\xa4", "[", "[]", "[:]", "[a]", "[abc]", "[1.2.3.4]", "[::1", "[::1]x", "[::1]80", "[fe80::1%eth0]",
		"[fe80::1%25eth0]", "[v1.x]", "[::1]]", "[[::1]]", "::1", "a:[::1]", "[" + strings.Repeat("0", 50) + "::1]"} {
		f(host, false)
	}
}

func TestAmbiguousPaths(t *testing.T) {
	f := func(path string, ambiguous bool) {
		t.Helper()
		for _, target := range []string{path, path + "?q=/../", "http://a" + path} {
			_, end := forwarded(newWire(lines("GET "+target+" HTTP/1.1", "Host: a", "")), Limits{})
			want := "EOF"
			if ambiguous {
				want = "400 ambiguous_path"
			}
			equal(t, target, end, want)
		}
	}
	for _, path := range []string{
		"/.", "/..", "/./", "/../", "/a/.", "/a/..", "/a/./b", "/a/../b", "//..", "/..//",
		"/%2e", "/%2E%2e", "/.%2e/", "/%2E./a", "/a/%2e%2e",
		"/a\\b", "/a/..\\b", "/%5c", "/a%5Cb", "/..%5c", "/a;%5c",
		"/..%2f", "/..%2Fa", "/a%2f..", "/a%2f../b", "/a%2f.%2fb", "/%2e%2e%2fa", "/a%2F%2e%2E",
		"/..;", "/..;/", "/..;a=b/c", "/.;/", "/%2e%2e;/", "/a/.%2e;x", "/a%2f..;x", "/..%3b", "/a/..%3Bx/b", "/.%3b/",
		"/%00", "/a%00b", "/..%00/", "/%", "/%4", "/%zz", "/a%4/b", "/%%41", "/%u002e",
	} {
		f(path, true)
	}
	for _, path := range []string{
		"/", "//", "/a/b/", "/...", "/.a", "/..a", "/a.", "/a..", "/a.b/c..d", "/.well-known/x", "/.../x", "/a/.../",
		"/%2e%2e%2e", "/%2ea", "/a%2e%2e", "/%252e%252e/", "/%255c", "/%2f", "/a%2Fb", "/%2f%2f", "/;", "/;a/b", "/a;../b", "/;..", "/...;x",
		"/%20", "/%0a", "/%01", "/%7F", "/%ff", "/%c0%ae", "/a:b@c,d+e!$&'()*=~-_",
	} {
		f(path, false)
	}
}

func TestPipelinedRequestsInOrder(t *testing.T) {
	var in, want strings.Builder
	for i := range 300 {
		switch i % 3 {
		case 0:
			value := strings.Repeat("v", 97*i%5000+1)
			fmt.Fprintf(&in, "GET /%d HTTP/1.1\r\nHost: a\r\nA: %s\r\n\r\n", i, value)
			fmt.Fprintf(&want, "GET /%d HTTP/1.1\r\nHost: a\r\nA: %s\r\n\r\n", i, value)
		case 1:
			body := strings.Repeat("b", 131*i%9000)
			fmt.Fprintf(&in, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", i, len(body), body)
			fmt.Fprintf(&want, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", i, len(body), body)
		default:
			fmt.Fprintf(&in, "PUT /%d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhi\r\n0\r\nT: %d\r\n\r\n", i, i)
			fmt.Fprintf(&want, "PUT /%d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nT: %d\r\n\r\n", i, i)
		}
	}
	for _, size := range []int{1 << 30, 16 << 10, 4099, 7} {
		var pieces []string
		for rest := in.String(); rest != ""; {
			n := min(size, len(rest))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		out, end := forwarded(newWire(pieces...), Limits{})
		if joinChunks(t, out) != joinChunks(t, want.String()) || end != "EOF" {
			t.Errorf("in pieces of %d: %d bytes were forwarded and not %d; %s", size, len(out), want.Len(), end)
		}
	}
}

// weir forwards the requests before a refused request, and none after it.
func TestNothingAfterARefusal(t *testing.T) {
	in := get("A: 1") + get("Content-Length: x") + get("A: 2")
	out, end := forwarded(newWire(in), Limits{})
	equal(t, "forwarded", out, get("A: 1"))
	equal(t, "end", end, "400 bad_length")

	var s Server
	var req message.Request
	s.Init(newWire(in), Limits{})
	s.ReadHead(&req)
	if err := s.ReadHead(&req); err != message.ErrBadLength || !s.MustClose() {
		t.Errorf("%v; must close: %v", err, s.MustClose())
	}
	if err := s.ReadHead(&req); err != errNothingFollows {
		t.Errorf("a request was read after a refusal: %v", err)
	}
}

// An empty line does not begin a request: weir does not wait for the rest of a request, and
// holds no memory. Begins still finds other protocols that begin with empty lines.
func TestEmptyLinesBeginNothing(t *testing.T) {
	var s Server
	var req message.Request
	w := newWire("\r\n", "\r\n", "\x00\r\nQUIT")
	s.Init(w, Limits{})
	for n := 1; n <= 2; n++ {
		if err := s.ReadHead(&req); err != conn.ErrWouldBlock || s.HeadStarted() || s.EmptyLines() != n {
			t.Fatalf("%v; begun: %v; %d empty lines", err, s.HeadStarted(), s.EmptyLines())
		}
		if s.Release(); s.in.buf != nil {
			t.Error("a buffer is held")
		}
	}
	if s.ReadHead(&req); !s.Begins("\r\n\r\n\x00\r\nQUIT") || s.Begins("\x00") || s.Begins("\r\n\x00") || s.Begins("\r\n\r\n\r\n") {
		t.Error("what came begins otherwise")
	}

	// The number of empty lines counts if another Server continues with the connection.
	s.Init(newWire("\r\n"+get()), Limits{})
	s.Skipped(maxEmptyLines - 1)
	if err := s.ReadHead(&req); err != nil || s.EmptyLines() != 0 {
		t.Errorf("%v; %d empty lines before the next request", err, s.EmptyLines())
	}
	s.Init(newWire("\r\n"+get()), Limits{})
	s.Skipped(maxEmptyLines)
	if err := s.ReadHead(&req); err != errEmptyLines || !s.MustClose() {
		t.Errorf("%v; must close: %v", err, s.MustClose())
	}
}

// weir must not answer or log a refused head as if it were the request before it.
func TestRefusedHeadIsNotTheOneBefore(t *testing.T) {
	for _, second := range []string{"GET /" + strings.Repeat("x", 200), "\n", "GET / HTTP/1.1\r\nHo"} {
		var s Server
		var req message.Request
		s.Init(newWire(lines("HEAD /first HTTP/1.0", "Host: first", "Connection: keep-alive", ""), second), Limits{HeadBytes: 200})
		if err := s.ReadHead(&req); err != nil || !req.IsHead {
			t.Fatal(err)
		}
		if err := again(func() error { return s.ReadHead(&req) }); err == nil {
			t.Fatal("no error")
		}
		if req.IsHead || req.Minor != 1 || req.Target.Len() != 0 || req.Host.Len() != 0 || len(req.Fields) != 0 {
			t.Errorf("%q: the request before is still there", second)
		}
	}
}

func TestRequestValues(t *testing.T) {
	f := func(in string, check func(*message.Request) bool) {
		t.Helper()
		var req message.Request
		parseInto(&req, in)
		if !check(&req) {
			t.Errorf("%q: %+v", in, req)
		}
	}
	for _, m := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH", "get"} {
		idempotent := m != "POST" && m != "PATCH" && m != "get"
		f(lines(m+" / HTTP/1.1", "Host: a", ""), func(r *message.Request) bool {
			return r.Idempotent == idempotent && r.IsHead == (m == "HEAD") && string(r.Bytes(r.Method)) == m
		})
	}
	f(get(), func(r *message.Request) bool { return !r.Close && r.Minor == 1 && r.Length == 0 && !r.HasBody() })
	f(get("Connection: CLOSE"), func(r *message.Request) bool { return r.Close })
	f(get("Connection: x, close , keep-alive"), func(r *message.Request) bool { return r.Close })
	f(get("Connection: closed"), func(r *message.Request) bool { return !r.Close })
	f(lines("GET / HTTP/1.0", ""), func(r *message.Request) bool { return r.Close && r.Minor == 0 && r.Host.Len() == 0 })
	f(lines("GET / HTTP/1.0", "Connection: Keep-Alive", ""), func(r *message.Request) bool { return !r.Close })
	f(lines("GET / HTTP/1.0", "Connection: keep-alive, close", ""), func(r *message.Request) bool { return r.Close })
	f(lines("GET http://B/p?q HTTP/1.0", ""), func(r *message.Request) bool {
		return string(r.Bytes(r.Host)) == "B" && string(r.Bytes(r.Target)) == "/p?q" && string(r.Bytes(r.Path)) == "/p"
	})
	f(lines("OPTIONS * HTTP/1.1", "Host: a", ""), func(r *message.Request) bool { return string(r.Bytes(r.Path)) == "*" })
	f(get("Content-Length: 7"), func(r *message.Request) bool { return r.Length == 7 && r.HasBody() && !r.ExpectContinue })
	f(get("Content-Length: 7", "Expect: 100-CONTINUE"), func(r *message.Request) bool { return r.ExpectContinue })
	f(get("Content-Length: 0", "Expect: 100-continue"), func(r *message.Request) bool { return !r.ExpectContinue })
	f(get("Transfer-Encoding: chunked", "Expect: 100-continue"), func(r *message.Request) bool {
		return r.Length == message.Unknown && r.ExpectContinue && r.HasBody()
	})
	f(get("TE: trailers"), func(r *message.Request) bool { return r.AcceptsTrailers })
	f(get("TE: trailers;q=0"), func(r *message.Request) bool { return !r.AcceptsTrailers })
}
