package core

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// plain is a request that can be sent by HTTP/1.1 and by HTTP/2.
type plain struct {
	method, target, host string
	fields               [][2]string
	body                 string
	unknown              bool // the body comes without a length, with trailers
	trailers             [][2]string
}

// refusedWord is the result of a request that weir does not forward.
const refusedWord = "refused"

// byHTTP1 returns the request that reaches a backend if p comes by HTTP/1.1.
func (p *plain) byHTTP1(t *testing.T) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", p.method, p.target, p.host)
	for _, f := range p.fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f[0], f[1])
	}
	switch {
	case p.unknown:
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		if p.body != "" {
			fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p.body), p.body)
		}
		b.WriteString("0\r\n")
		for _, f := range p.trailers {
			fmt.Fprintf(&b, "%s: %s\r\n", f[0], f[1])
		}
		b.WriteString("\r\n")
	case p.body != "":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(p.body), p.body)
	default:
		b.WriteString("\r\n")
	}
	var s http1.Server
	var req message.Request
	s.Init(struct {
		io.Reader
		io.Writer
	}{strings.NewReader(b.String()), io.Discard}, message.Limits{})
	defer s.Close()
	if err := s.ReadHead(&req); err != nil {
		return refusedWord
	}
	var body []byte
	if whole, ok := s.BufferedBody(); ok {
		body = append(body, whole...)
		s.SkipBody()
	}
	for !s.BodyEnded() {
		piece, err := s.ReadBody(&req)
		if body = append(body, piece...); err != nil && err != io.EOF {
			return refusedWord
		}
	}
	return same(&req) + reaching(t, &req, string(body))
}

// byHTTP2 returns the request that reaches a backend if p comes by HTTP/2.
func (p *plain) byHTTP2(t *testing.T) string {
	var b []byte
	literal := func(name, value string) {
		b = appendString(appendString(append(b, 0), []byte(name)), []byte(value))
	}
	literal(":method", p.method)
	literal(":scheme", "https")
	literal(":path", p.target)
	literal(":authority", p.host)
	for _, f := range p.fields {
		literal(strings.ToLower(f[0]), strings.Trim(f[1], " \t"))
	}
	if p.body != "" && !p.unknown {
		literal("content-length", fmt.Sprint(len(p.body)))
	}
	g, flags := http2test.Greeted(), uint8(flagEndHeaders)
	if p.body == "" && !p.unknown {
		flags |= flagEndStream
	}
	g.Raw(frameHeaders, flags, 1, string(b))
	if p.body != "" {
		g.Data(1, !p.unknown, p.body)
	}
	if p.unknown {
		b = b[:0]
		for _, f := range p.trailers {
			literal(strings.ToLower(f[0]), strings.Trim(f[1], " \t"))
		}
		g.Raw(frameHeaders, flagEndHeaders|flagEndStream, 1, string(b))
	}
	x := newSide(Config{})
	if x.receive(g.Bytes(), 0) != nil {
		return refusedWord
	}
	for _, seen := range x.streams {
		if seen.headed && seen.ended && !seen.over && !strings.Contains(x.log[1], "refused") {
			return same(&seen.req) + reaching(t, &seen.req, string(seen.body))
		}
	}
	return refusedWord
}

// reaching returns the request that backends of both kinds get, as text that does not
// depend on the order of its fields or the case of their names. net/http must find
// exactly one request in it, and nothing after it.
func reaching(t *testing.T, req *message.Request, body string) string {
	t.Helper()
	var wire bytes.Buffer
	var c http1.Client
	c.Init(&wire, message.Limits{})
	defer c.Close()
	c.WriteHead(req)
	if body != "" {
		c.WriteBody([]byte(body))
	}
	c.WriteEnd(req)
	c.Flush()
	text := wire.String()
	rest := bufio.NewReader(&wire)
	if back, err := http.ReadRequest(rest); err != nil {
		t.Errorf("%q reaches the backend, which is no request: %v", text, err)
	} else if got, err := io.ReadAll(back.Body); err != nil || string(got) != body || rest.Buffered() > 0 {
		t.Errorf("%q reaches the backend: a body of %q, not of %q, %v, and %d bytes more", text, got, body, err, rest.Buffered())
	}
	head, rest1, _ := strings.Cut(text, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	for i, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		lines[1+i] = strings.ToLower(name) + ":" + value
	}
	slices.Sort(lines[1:])

	client := newSide(Config{Role: Client})
	s, err := client.core.Open(req, false)
	if err != nil {
		t.Fatal(err)
	}
	client.send(s, []byte(body), false)
	client.core.Finish(s, &req.Trailers)
	out := frames(t, client.core.Take().Bytes(), false)
	for i := range out {
		fields := strings.Split(out[i], " [")
		slices.Sort(fields)
		out[i] = strings.Join(fields, " [")
	}
	return fmt.Sprintf("\nby HTTP/1.1 %q, %q\nby HTTP/2 %q", lines, strings.ToLower(rest1), out)
}

// same returns a request as text that does not depend on the HTTP version.
func same(r *message.Request) string {
	var fields []string
	for i := range r.Fields {
		if !r.Fields[i].Dropped {
			fields = append(fields, fmt.Sprintf("%s: %q", strings.ToLower(string(r.Name(i))), r.Value(i)))
		}
	}
	slices.Sort(fields)
	return fmt.Sprintf("%q %q %q %q %d %v %v %v\n%s", r.Bytes(r.Method), r.Bytes(r.Target), r.Bytes(r.Path), r.Bytes(r.Host), r.Length,
		r.Idempotent, r.IsHead, r.ExpectContinue, strings.Join(fields, "\n"))
}

// unsayable compares p with the limits of both versions. must is true if HTTP/1.1 would read p as another
// request, so HTTP/2 must refuse it. skip is true if only one of the versions can send p.
func (p *plain) unsayable() (must bool, skip bool) {
	for _, s := range []string{p.method, p.target, p.host} {
		must = must || strings.ContainsAny(s, "\r\n\x00 ")
	}
	must = must || p.method == "" || p.target == "" || strings.HasPrefix(strings.ToLower(p.target), "http")
	cookies := 0 // HTTP/2 joins them
	for i, f := range slices.Concat(p.fields, p.trailers) {
		must = must || f[0] == "" || strings.ContainsAny(f[0], "\r\n\x00: \t") || strings.ContainsAny(strings.Trim(f[1], " \t"), "\r\n\x00")
		switch id := message.Lookup([]byte(f[0])); id {
		case message.Connection, message.TransferEncoding, message.KeepAlive, message.ProxyConnection, message.Upgrade:
			must = true
		case message.TE:
			skip = true
		case message.Other:
			if strings.EqualFold(f[0], "cookie") {
				cookies++
			}
		case message.Host, message.ContentLength:
			skip = skip || i < len(p.fields) // in trailers, weir drops them
		}
	}
	return must, skip || cookies > 1 || strings.Trim(p.host, " \t") != p.host // HTTP/1.1 allows white space around it
}

// compareWires: HTTP/1.1 and HTTP/2 treat requests alike: both forward the same message
// to a backend, or both refuse it. HTTP/2 must refuse fields that are only for a
// connection of HTTP/1.1, and everything that HTTP/1.1 would read as another request.
func compareWires(t *testing.T, p plain) (accepted bool) {
	t.Helper()
	must, skip := p.unsayable()
	two := p.byHTTP2(t)
	if must {
		if two != refusedWord && !skip {
			t.Errorf("%v\nwas accepted by HTTP/2: %s", p.quoted(), two)
		}
		return false
	}
	if skip {
		return false
	}
	if one := p.byHTTP1(t); one != two {
		t.Errorf("%v\nby HTTP/1.1 %s\nby HTTP/2   %s", p.quoted(), one, two)
	}
	return two != refusedWord
}

func FuzzWires(f *testing.F) {
	f.Add("GET", "/", "a", "x", "y", "z", "", "", false, "", "")
	f.Add("POST", "/a?b=c", "a:80", "X_Forwarded_For", "y", "Expect", "100-continue", "hello", false, "", "")
	f.Add("OPTIONS", "*", "[::1]", "trailer", "content-length", "x-y", "\xff", "", false, "", "")
	f.Add("CONNECT", "/%2e", "u@a", "A(b", "\x00", "proxy-authorization", "\x7f", "x", false, "", "")
	f.Add("POST", "/", "a", "trailer", "t", "cookie", "a=b; c=d", "hello", true, "t", "u")
	f.Add("POST", "/", "a", "x\r\ny", "1", "z", "a\r\nb: c", "", true, "content-length", "5")
	f.Add("GET / HTTP/1.1\r\nx:", "/ HTTP/1.1", "a\r\n", "transfer-encoding", "chunked", "connection", "close", "0\r\n\r\n", false, "", "")
	f.Fuzz(func(t *testing.T, method, target, host, n1, v1, n2, v2, body string, unknown bool, n3, v3 string) {
		p := plain{method: method, target: target, host: host, fields: [][2]string{{n1, v1}, {n2, v2}}, body: body, unknown: unknown}
		if unknown && n3 != "" {
			p.trailers = [][2]string{{n3, v3}}
		}
		if len(target)+len(n1)+len(v1)+len(n2)+len(v2)+len(n3)+len(v3)+len(host)+len(method)+len(body) < 10000 {
			compareWires(t, p)
		}
	})
}

func TestWiresAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	field := func() [2]string {
		return [2]string{pick("X", "x-y", "Expect", "X_Forwarded_For", "X-Forwarded-For", "Proxy-Authorization", "HTTP2-Settings", "Trailer",
			"content_length", "a(b", "a b", "", "\xc3", "Referer", "Cookie", "Connection", "transfer-encoding", "x\r\ny", "x:", "Via", "Forwarded", "Content-Length", "Host"),
			pick("1", "", "100-continue", " a ", "\x00", "\x7f", "\tb", "content-length", "x, transfer-encoding", "\xff", "a\r\nb: c", "a\nb", "close", "chunked")}
	}
	accepted := 0
	for range 20000 {
		p := plain{method: pick("GET", "POST", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "PRI", "a(b", "GET "),
			target: pick("/", "/a?b", "*", "//x", "/..", "/%2e", "/%2F", "/a;b", "/\\", "/%zz", "a", "?x", "/a/./b", "/\xff", "/a#b", "/..;/x", "/%00", "/?../%",
				"http://a/", "/ HTTP/1.1\r\nx: y", ""),
			host: pick("a", "a", "a.b:80", "A", "", "[::1]", "[::1", "u@a", "a:99999", "a,b", "a_b", "a b", "a\r\nx: y"), body: pick("", "", "hello", "0\r\n\r\n"),
			unknown: r.IntN(3) == 0}
		for range r.IntN(3) {
			p.fields = append(p.fields, field())
		}
		if p.unknown && r.IntN(2) == 0 {
			p.trailers = append(p.trailers, field())
		}
		if compareWires(t, p) {
			accepted++
		}
	}
	if accepted < 200 {
		t.Errorf("only %d requests were accepted: this compares nothing", accepted)
	}
}

func (p *plain) quoted() string {
	return fmt.Sprintf("%q %q %q %q %q %v %q", p.method, p.target, p.host, p.fields, p.body, p.unknown, p.trailers)
}
