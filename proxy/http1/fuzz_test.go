package http1

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

// requestSeeds are streams of requests near the limits of valid syntax.
var requestSeeds = []string{
	get(), get() + get("A: b"),
	get("Content-Length: 5") + "hello" + get(),
	get("Content-Length: 5", "Content-Length: 5") + "hello",
	get("Content-Length: 5", "Transfer-Encoding: chunked") + "0\r\n\r\n",
	get("Content-Length: 0005") + "hello",
	chunkedPost + "5\r\nhello\r\n0\r\n\r\n" + get(),
	chunkedPost + "5;a=\"b\"\r\nhello\r\n0;c\r\nT: u\r\nHost: x\r\nX-Forwarded-For: 1\r\n\r\n" + get(),
	chunkedPost + "5 \r\nhello\r\n0\r\n\r\n", chunkedPost + "5 ;a\r\nhello\r\n0\r\n\r\n", chunkedPost + "5\nhello\r\n0\r\n\r\n", chunkedPost + "0\r\n\n", chunkedPost + "1\r\nab\r\n",
	chunkedPost + "1;" + strings.Repeat("e", 200) + "\r\nx\r\n1;" + strings.Repeat("e", 200) + "\r\nx\r\n0\r\n\r\n",
	lines("POST / HTTP/1.1", "Host: a", "Trailer: T, U", "TE: trailers", "Connection: T, TE", "Transfer-Encoding: Chunked", "") + "0\r\nT: u\r\n\r\n",
	lines("POST / HTTP/1.1", "Host: a", "Trailer: Content-Length", "Transfer-Encoding: chunked", "") + "0\r\nT: u\r\n\r\n",
	lines("POST / HTTP/1.0", "Transfer-Encoding: chunked", "Content-Length: 5", "") + "0\r\n\r\n",
	lines("GET http://a:80/b?c=%zz;d HTTP/1.1", "Host: A:80", ""), lines("GET https://[::1]/ HTTP/1.0", ""),
	lines("GET //a/%2F;x=y/...?/../ HTTP/1.1", "Host: [::1]:443", ""), lines("GET /% HTTP/1.1", "Host: a", ""),
	lines("OPTIONS * HTTP/1.1", "Host: a", ""), lines("HEAD / HTTP/1.0", "Connection: keep-alive", "Pragma: no-cache", ""),
	get("Pragma: no-cache", "Cache-Control: x", "pragma: y"),
	get("Connection: close, Upgrade, X-Hop, keep-alive", "X-Hop: 1", "Upgrade: websocket", "Keep-Alive: 1"),
	get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x"),
	get("Expect: 100-continue", "Content-Length: 1", "Connection: Expect") + "x",
	get("A: b", " c"), get("A : b"), get("A: \x00"), get("X_Forwarded_For: 1", "Content.Length: 5"),
	"GET / HTTP/1.1\nHost: a\n\n", "\r\n" + get(), "\r\n\r\n" + get("Content-Length: 2") + "hi\r\n" + get() + "\r\n", "\r\n\r\n\r\n\r\n\r\n" + get(),
	"\r\n\r\n\x00\r\nQUIT\n", "\r\n\n" + get(), "\r\r\n" + get(), chunkedPost + "0\r\n\r\n\r\n" + get(),
	lines("GET   /x?y   HTTP/1.1", "Host: a", ""), lines("GET  HTTP/1.1", "Host: a", ""), lines("GET  HTTP/1.1 HTTP/1.1", "Host: a", ""),
	lines("POST / HTTP/1.2", "Host: a", "Transfer-Encoding: chunked", "") + "0\r\n\r\n", lines("GET / HTTP/1.9", "Host: a", "Connection: keep-alive", ""),
	lines("GET http://a:80/ HTTP/1.1", "Host: a", ""), lines("GET https://A/ HTTP/1.1", "Host: a:443", ""), lines("GET http://:80/ HTTP/1.1", "Host:", ""),
	get("Expect:"), get("Expect: x", "Content-Length: 1") + "x", get("Expect: x, 100-continue", "Content-Length: 1") + "x", "GET / HTTP/1.1\r\nHost: a\r\nA: b\n\r\n\r\n",
}

var responseSeeds = []string{
	lines("HTTP/1.1 200 OK", "Content-Length: 5", "") + "hello",
	lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Trailer: T", "") + "5;x\r\nhello\r\n0\r\nT: u\r\n\r\n",
	lines("HTTP/1.1 200 OK", "") + "until the end", lines("HTTP/1.0 200 OK", "Connection: keep-alive", "Content-Length: 0", ""),
	lines("HTTP/1.1 100 Continue", "") + lines("HTTP/1.1 103 x", "Link: y", "") + lines("HTTP/1.1 200", "Content-Length: 0", ""),
	lines("HTTP/1.1 204 No Content", "Content-Length: 5", "") + "hello", lines("HTTP/1.1 304 x", "Transfer-Encoding: chunked", "Trailer: T", ""),
	lines("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: WebSocket", "Content-Length: 2", "") + "frame",
	lines("HTTP/1.1 200 OK", "Connection: close, x", "X: y", "Content-Length: 1", "Pragma: no-cache", "") + "xy",
	lines("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 1", "") + "x",
	lines("HTTP/1.1 200 OK", "Content-Length: 1,1", "Content-Length: 1", "") + "x", lines("HTTP/1.1 200 OK", "Content-Length: 1, 2", "") + "x",
	lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "") + "5   \r\nhello\r\n0 \r\n\r\n",
	lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "") + "5 ;a=b\r\nhello\r\n1\t ;\"c;\" \r\n;\r\n0 ;d\r\nT: u\r\n\r\n",
	"\r\n" + lines("HTTP/1.1 103 x", "") + "\r\n\r\n" + lines("HTTP/1.1 200 OK", "Content-Length: 0", "") + "\r\n",
	lines("HTTP/1.0 200 OK", "Transfer-Encoding: chunked", "") + "0\r\n\r\n", lines("HTTP/1.1 600  odd reason ", "Content-Length: 0", ""),
}

func FuzzRequest(f *testing.F) {
	for _, s := range requestSeeds {
		f.Add(s)
	}
	f.Fuzz(compareRequests)
}

func FuzzResponse(f *testing.F) {
	for _, s := range responseSeeds {
		for i := range answered {
			f.Add(byte(i), s)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, in string) {
		compareResponses(t, answered[int(kind)%len(answered)], in)
	})
}

// FuzzForward forwards a request, and both parsers read the result. It must be the same
// request, without fields that are for weir only.
func FuzzForward(f *testing.F) {
	for _, s := range requestSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		w := newWire(in)
		var s Server
		s.Init(w, Limits{})
		defer s.Close()
		m, req, err := ourRequest(&s, w)
		if err != nil || !m.end {
			return
		}
		if req.Find(message.Host) < 0 { // as the proxy does for HTTP/1.0
			req.Add(message.Host, req.Bytes(req.Host))
		}
		m.closes, m.left = false, 0
		kept := func(f *message.Field) bool { return !f.Dropped }
		m.fields, m.trailers = fieldsOf(&req.Head, kept), fieldsOf(&req.Trailers, kept)
		out := encode(req, m.body)
		m.fields = append(m.fields, written(req)...)
		slices.Sort(m.fields)

		w = newWire(out)
		s.Init(w, Limits{})
		again, second, err := ourRequest(&s, w)
		if err != nil {
			t.Fatalf("%q\nwas forwarded as %q\nwhich we refuse: %v", in, out, err)
		}
		again.fields = fieldsOf(&second.Head, anyField)
		if again.String() != m.String() {
			t.Fatalf("%q\n%s\nwas forwarded as %q\nwhich we read as\n%s", in, m, out, again)
		}
		noLeak(t, out, req, second)

		theirs, _, err := newNetHTTP(out).request()
		if err != nil {
			t.Fatalf("%q\nwas forwarded as %q\nwhich net/http refuses: %v", in, out, err)
		}
		m.fields = interpreted(&second.Head, message.Host)
		if theirs.String() != m.String() {
			t.Fatalf("%q\n%s\nwas forwarded as %q\nwhich net/http reads as\n%s", in, m, out, theirs)
		}
	})
}

func encode(req *message.Request, body string) string {
	var c Client
	w := newWire()
	c.Init(w, Limits{})
	defer c.Close()
	c.WriteHead(req)
	for half := len(body) / 2; ; half = len(body) {
		c.WriteBody([]byte(body[:half]))
		if body = body[half:]; body == "" {
			break
		}
	}
	c.WriteEnd(req)
	c.Flush()
	return w.output()
}

// written returns the fields that the codec itself adds.
func written(req *message.Request) (l []string) {
	if req.Length == message.Unknown {
		l = append(l, "transfer-encoding: chunked")
	}
	if m := string(req.Bytes(req.Method)); req.Length == 0 && (m == "POST" || m == "PUT" || m == "PATCH") && req.Find(message.ContentLength) < 0 {
		l = append(l, "content-length: 0") // RFC 9110, section 8.6
	}
	switch {
	case req.Upgrade.Len() > 0:
		l = append(l, "connection: Upgrade", "upgrade: "+string(req.Bytes(req.Upgrade)))
	case req.AcceptsTrailers:
		l = append(l, "connection: TE", "te: trailers")
	}
	return l
}

// noLeak fails the test if a forwarded request has hop-by-hop fields.
func noLeak(t *testing.T, out string, first, second *message.Request) {
	for i := range second.Fields {
		switch second.Fields[i].ID {
		case message.KeepAlive, message.ProxyConnection, message.ProxyAuthenticate, message.ProxyAuthorization,
			message.HTTP2Settings, message.Misspelt:
			t.Fatalf("%q: %s was forwarded", out, second.Name(i))
		}
	}
	for i := range first.Fields {
		if first.Fields[i].ID != message.Connection {
			continue
		}
		for name := range strings.SplitSeq(strings.ToLower(string(first.Value(i))), ",") {
			switch name = strings.Trim(name, " \t"); name {
			case "host", "content-length", "expect", "transfer-encoding", "connection", "upgrade", "te", "":
			default:
				if second.GetName(name) != nil || second.Trailers.GetName(name) != nil {
					t.Fatalf("%q: %s was forwarded, though Connection names it", out, name)
				}
			}
		}
	}
}

// FuzzFragments reads a stream in one piece, and in pieces whose lengths are the bytes of cuts,
// repeated. The results must be the same. Only the reason of a refusal may differ: weir finds a
// bare line feed before the head is complete.
func FuzzFragments(f *testing.F) {
	for i, s := range requestSeeds {
		f.Add(s, []byte{1})
		f.Add(s, []byte{byte(i), 3})
	}
	for i, s := range responseSeeds {
		f.Add(s, []byte{1})
		f.Add(s, []byte{byte(i), 5})
	}
	f.Fuzz(func(t *testing.T, in string, cuts []byte) {
		var pieces []string
		for i, rest := 0, in; rest != ""; i++ {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[i%len(cuts)]))
			}
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		whole, parts := requestTrace(newWire(in)), requestTrace(newWire(pieces...))
		if whole != parts {
			t.Fatalf("%q\nis in one piece\n%s\nand in pieces\n%s", in, whole, parts)
		}
		for _, request := range answered {
			whole, parts := responseTrace(newWire(in), request), responseTrace(newWire(pieces...), request)
			if whole != parts {
				t.Fatalf("%q\nis, as an answer, in one piece\n%s\nand in pieces\n%s", in, whole, parts)
			}
		}
	})
}

// requestTrace returns all results of reading a stream of requests, as text.
func requestTrace(w *wire) string {
	var b strings.Builder
	var s Server
	s.Init(w, Limits{HeadBytes: 512, Fields: 8})
	defer s.Close()
	for {
		m, req, err := ourRequest(&s, w)
		if err != nil {
			return b.String() + ending(err)
		}
		fmt.Fprintf(&b, "%s\n%+v %v\n", m, req.Fields, s.MustClose())
		if !m.end {
			_, err := s.ReadBody(req) // returns the same error again
			return b.String() + ending(err)
		}
	}
}

func responseTrace(w *wire, request string) string {
	return responseTraceBy(w, request, func(*Client) {})
}

// responseTraceBy is like responseTrace. set changes the Client first.
func responseTraceBy(w *wire, request string, set func(*Client)) string {
	var b strings.Builder
	var c Client
	var req message.Request
	var res message.Response
	parseInto(&req, request)
	c.Init(w, Limits{HeadBytes: 512, Fields: 8})
	set(&c)
	defer c.Close()
	c.WriteHead(&req)
	c.WriteEnd(&req)
	c.Flush()
	for {
		if err := again(func() error { return c.ReadHead(&req, &res) }); err != nil {
			return b.String() + ending(err)
		}
		body, err := readAll(func() ([]byte, error) { return c.ReadBody(&res) })
		fmt.Fprintf(&b, "%d %q %d %v %+v\n%q\n%q\n", res.Status, res.Bytes(res.Reason), res.Length, res.Close, res.Fields, body,
			fieldsOf(&res.Trailers, anyField))
		if err != nil {
			return b.String() + ending(err)
		}
		if !res.Informational() {
			return fmt.Sprintf("%s%d left", b.String(), len(c.in.buffered())+w.left())
		}
	}
}

func ending(err error) string {
	if _, refused := err.(*message.Refusal); refused {
		return "refused"
	}
	return err.Error()
}
