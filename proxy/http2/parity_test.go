package http2

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/message"
)

// plain is a request that both wires can say.
type plain struct {
	method, target, host string
	fields               [][2]string
	body                 string
}

// byHTTP1 is what http1 makes of p, in words, or why it refuses it.
func (p *plain) byHTTP1() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", p.method, p.target, p.host)
	for _, f := range p.fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f[0], f[1])
	}
	if p.body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(p.body))
	}
	b.WriteString("\r\n" + p.body)
	var s http1.Server
	var req message.Request
	s.Init(struct {
		io.Reader
		io.Writer
	}{strings.NewReader(b.String()), io.Discard}, message.Limits{})
	defer s.Close()
	if err := s.ReadHead(&req); err != nil {
		return "refused"
	}
	return same(&req)
}

func (p *plain) byHTTP2() string {
	b := newPeer().fields()
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
	flags := uint8(flagEndHeaders)
	if p.body != "" {
		literal("content-length", fmt.Sprint(len(p.body)))
	} else {
		flags |= flagEndStream
	}
	x := newSide(Config{})
	g := greeted().raw(frameHeaders, flags, 1, string(b))
	if p.body != "" {
		g.data(1, true, p.body)
	}
	if x.receive(g.Bytes(), 0) != nil {
		return "refused"
	}
	for _, seen := range x.streams {
		if seen.headed && !seen.over && !strings.Contains(x.log[1], "refused") {
			return same(&seen.req)
		}
	}
	return "refused"
}

// same is a request in words that do not depend on how it came.
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

// Every wire's requests are judged alike: they become the same message or are
// refused. What HTTP/1.1 says to its own connection, HTTP/2 may not say at all.
func compareWires(t *testing.T, p plain) {
	t.Helper()
	for _, f := range p.fields {
		switch id := message.Lookup([]byte(f[0])); id {
		case message.Connection, message.TransferEncoding, message.KeepAlive, message.ProxyConnection, message.Upgrade, message.TE,
			message.Host, message.ContentLength:
			return
		}
		if strings.EqualFold(f[0], "cookie") || f[0] == "" || f[0][0] == ':' {
			return
		}
	}
	if strings.HasPrefix(strings.ToLower(p.target), "http") {
		return // the absolute form is HTTP/1.1's alone
	}
	for _, s := range []string{p.method, p.target} {
		if s == "" || strings.ContainsAny(s, " \r\n") {
			return // it would be another request line
		}
	}
	if strings.ContainsAny(p.host, "\r\n") || strings.Trim(p.host, " \t") != p.host {
		return // HTTP/1.1 allows white space around it
	}
	for _, f := range p.fields {
		if strings.ContainsAny(f[0]+f[1], "\r\n:") {
			return // it would be other fields
		}
	}
	if one, two := p.byHTTP1(), p.byHTTP2(); one != two {
		t.Errorf("%+q\nby HTTP/1.1 %s\nby HTTP/2   %s", p, one, two)
	}
}

func FuzzWires(f *testing.F) {
	f.Add("GET", "/", "a", "x", "y", "z", "", "")
	f.Add("POST", "/a?b=c", "a:80", "X_Forwarded_For", "y", "Expect", "100-continue", "hello")
	f.Add("OPTIONS", "*", "[::1]", "trailer", "content-length", "x-y", "\xff", "")
	f.Add("CONNECT", "/%2e", "u@a", "A(b", "\x00", "proxy-authorization", "\x7f", "x")
	f.Fuzz(func(t *testing.T, method, target, host, n1, v1, n2, v2, body string) {
		compareWires(t, plain{method, target, host, [][2]string{{n1, v1}, {n2, v2}}, body})
	})
}

func TestWiresAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	accepted := 0
	for range 5000 {
		p := plain{method: pick("GET", "POST", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "PRI", "a(b"),
			target: pick("/", "/a?b", "*", "//x", "/..", "/%2e", "/%2F", "/a;b", "/\\", "/%zz", "a", "?x", "/a/./b", "/\xff", "/a#b", "/..;/x", "/%00", "/?../%"),
			host:   pick("a", "a.b:80", "A", "", "[::1]", "[::1", "u@a", "a:99999", "a,b", "a_b", "a b"), body: pick("", "", "hello")}
		for range r.IntN(4) {
			p.fields = append(p.fields, [2]string{pick("X", "x-y", "Expect", "X_Forwarded_For", "X-Forwarded-For", "Proxy-Authorization", "HTTP2-Settings",
				"Trailer", "content_length", "a(b", "a b", "", "\xc3", "Referer"), pick("1", "", "100-continue", " a ", "\x00", "\x7f", "\tb", "content-length", "x, transfer-encoding", "\xff")})
		}
		compareWires(t, p)
		if p.byHTTP2() != "refused" {
			accepted++
		}
	}
	if accepted < 100 {
		t.Errorf("only %d requests were accepted: this compares nothing", accepted)
	}
}
