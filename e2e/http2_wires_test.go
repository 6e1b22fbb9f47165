package e2e

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// said is a request that can be sent over HTTP/1.1 and over HTTP/2.
type said struct {
	method, path, host string
	fields             []string // "name: value"
	body               string
	chunked            bool // no Content-Length; trailers are possible
	trailers           []string
}

func (s *said) String() string {
	return fmt.Sprintf("%q %q %q %q %q %v %q", s.method, s.path, s.host, s.fields, s.body, s.chunked, s.trailers)
}

// byHTTP1 sends the request over HTTP/1.1 and returns the status of the response.
func (s *said) byHTTP1(t *testing.T, w *weir) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", s.method, s.path, s.host)
	for _, f := range s.fields {
		b.WriteString(f + "\r\n")
	}
	switch {
	case s.chunked:
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		if s.body != "" {
			fmt.Fprintf(&b, "%x\r\n%s\r\n", len(s.body), s.body)
		}
		b.WriteString("0\r\n")
		for _, f := range s.trailers {
			b.WriteString(f + "\r\n")
		}
		b.WriteString("\r\n")
	case s.body != "":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(s.body), s.body)
	default:
		b.WriteString("\r\n")
	}
	c := dialWith(t, w.at("web"), []byte(b.String()))
	defer c.Close()
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: s.method})
	if err != nil {
		t.Errorf("%s by HTTP/1.1: %v", s, err)
		return ""
	}
	io.Copy(io.Discard, res.Body)
	return fmt.Sprint(res.StatusCode)
}

// byHTTP2 sends the request over HTTP/2 and returns the status of the response. If weir resets the stream
// because the request is malformed, the status is 400.
func (s *said) byHTTP2(t *testing.T, w *weir) string {
	t.Helper()
	h := dialH2(t, w, "web")
	defer h.Close()
	lower := func(lines []string) (all []string) {
		for _, l := range lines {
			name, value, _ := strings.Cut(l, ":")
			all = append(all, strings.ToLower(name)+": "+strings.Trim(value, " \t"))
		}
		return all
	}
	lines := append([]string{":method: " + s.method, ":scheme: http", ":path: " + s.path, ":authority: " + s.host}, lower(s.fields)...)
	if s.body != "" && !s.chunked {
		lines = append(lines, fmt.Sprint("content-length: ", len(s.body)))
	}
	h.head(1, s.body == "" && !s.chunked, lines...)
	if s.body != "" {
		h.framer.WriteData(1, !s.chunked, []byte(s.body))
	}
	if s.chunked {
		if len(s.trailers) > 0 {
			h.head(1, true, lower(s.trailers)...)
		} else {
			h.framer.WriteData(1, true, nil)
		}
	}
	status, _, err := h.answer(1)
	if err != nil && status == "" && strings.Contains(err.Error(), http2.ErrCodeProtocol.String()) {
		return "400"
	}
	if err != nil {
		t.Errorf("%s by HTTP/2: %v", s, err)
	}
	return status
}

var requestID = regexp.MustCompile(`(?mi)^x-request-id: .*$`)

// told returns the head of a request in a form that does not depend on order and case.
func told(head string) string {
	lines := strings.Split(requestID.ReplaceAllString(strings.TrimSpace(head), "x-request-id:"), "\n")
	for i, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ":")
		lines[1+i] = strings.ToLower(name) + ":" + strings.TrimRight(value, "\r")
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}

// A request over HTTP/1.1 and the same request over HTTP/2 reach the backend as the same message, or weir
// refuses both with the same status and for the same reason.
func TestOneRequestByBothWires(t *testing.T) {
	t.Parallel()
	raw := newRawBackend(t)
	w := newWeir(t)
	w.address["app"] = raw.address
	config := strings.Replace(http2Config, "  - {listeners: [web, secure], backend: app}\n", `
  - {listeners: [web], hosts: [a, "a.example", "[::1]", "b", "a_b"], backend: app}
  - {listeners: [web], hosts: [a], paths: [/tiny], max_body: 10B, backend: app}
  - {listeners: [secure], backend: app}
`, 1)
	w.start(config)
	try := func(s said) {
		t.Helper()
		var heads, trailers, statuses [2]string
		for i, by := range []func(*testing.T, *weir) string{s.byHTTP1, s.byHTTP2} {
			before, trailed := len(raw.seen()), len(raw.trailers())
			statuses[i] = by(t, w)
			for _, head := range raw.seen()[before:] {
				heads[i] += told(head)
			}
			trailers[i] = strings.ToLower(raw.trailers()[trailed:])
		}
		if heads == [2]string{} && statuses[0] >= "400" && statuses[1] >= "400" {
			return // if a request has several faults, HTTP/1.1 and HTTP/2 may report different ones
		}
		if heads[0] != heads[1] || trailers[0] != trailers[1] || statuses[0] != statuses[1] {
			t.Errorf("%s\nby HTTP/1.1: %s\n%s\n%s\nby HTTP/2: %s\n%s\n%s", &s, statuses[0], heads[0], trailers[0], statuses[1], heads[1], trailers[1])
		}
	}
	try(said{method: "GET", path: "/", host: "a", fields: []string{"Accept: */*", "X-Forwarded-For: 6.6.6.6", "x_forwarded_for: 6.6.6.6", "Cookie: a=b; c=d", "Via: 1.1 x", "TE: trailers"}})
	try(said{method: "POST", path: "/up?x=%zz", host: "a:8080", body: "hello", fields: []string{"Expect: 100-continue", "Content-Type: text/plain"}})
	try(said{method: "POST", path: "/up", host: "A", body: "hello", chunked: true, fields: []string{"Trailer: X-T"}, trailers: []string{"X-T: 1", "Content-Length: 7", "Host: b"}})
	r := rand.New(rand.NewPCG(9, 10))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	for range 300 {
		s := said{method: pick("GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE", "get", "M-SEARCH"),
			path: pick("/", "/a/b?c=d", "/%2e%2e/", "/a/../b", "/a%2fb", "//", "/a\\b", "/%00", "/a#b", "*", "/\x7f", "/small"),
			host: pick("a", "a", "a.example:80", "[::1]:80", "u@a", "a,b", "a_b", ""), chunked: r.IntN(4) == 0}
		if r.IntN(2) == 0 {
			s.body = pick("hello", "0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 2000))
		}
		for range r.IntN(4) {
			s.fields = append(s.fields, pick("X-A", "Referer", "Expect", "Forwarded", "X-Real-IP", "X.Real.IP", "Trailer", "HTTP2-Settings", "Proxy-Authorization", "Traceparent", "X-Request-Id")+
				": "+pick("1", "", "100-continue", "a\x7fb", "\xff", "content-length", "for=6.6.6.6", "a, b"))
		}
		if s.chunked && r.IntN(2) == 0 {
			s.trailers = append(s.trailers, pick("X-T", "Content-Length", "X-Forwarded-For", "Trailer")+": "+pick("1", "transfer-encoding", ""))
		}
		try(s)
	}
	w = newWeir(t) // a new weir, so that the log contains nothing else
	w.address["app"] = raw.address
	w.start(config)
	for reason, s := range map[string]said{
		"bad_target":      {method: "GET", path: "*", host: "a"},
		"ambiguous_path":  {method: "GET", path: "/a/%2e%2e/b", host: "a"},
		"method":          {method: "TRACE", path: "/", host: "a"},
		"bad_host":        {method: "GET", path: "/", host: "a,b"},
		"bad_trailer":     {method: "POST", path: "/", host: "a", chunked: true, fields: []string{"Trailer: content-length"}},
		"expectation":     {method: "POST", path: "/", host: "a", body: "x", fields: []string{"Expect: 200-ok, 100-continue"}},
		"head_too_large":  {method: "GET", path: "/", host: "a", fields: []string{"X: " + strings.Repeat("x", 66_000)}},
		"too_many_fields": {method: "GET", path: "/", host: "a", fields: slices.Repeat([]string{"X: y"}, 260)},
		"guarded_path":    {method: "GET", path: "/TINY", host: "a"},
		"body_too_large":  {method: "POST", path: "/tiny", host: "a", body: "more than ten bytes"},
		"no_route":        {method: "GET", path: "/", host: "elsewhere.example"},
	} {
		lines := len(w.accessLog())
		if one, two := s.byHTTP1(t, w), s.byHTTP2(t, w); one != two || one < "400" {
			t.Errorf("%s: %s by HTTP/1.1, %s by HTTP/2", reason, one, two)
		}
		eventually(t, "both are logged for "+reason, func() error {
			all := w.accessLog()[lines:]
			if len(all) != 2 || all[0].text("reason") != reason || all[1].text("reason") != reason {
				return fmt.Errorf("%v", all)
			}
			return nil
		})
	}
}
