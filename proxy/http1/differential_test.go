package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

// seen is a message as a parser read it, in a form for comparison.
type seen struct {
	start    string // the method, or the status with its reason
	target   string
	host     string
	length   int64
	fields   []string // "name: value", sorted; names in lower case
	body     string
	trailers []string
	end      bool // the body was read to its end
	closes   bool
	left     int // number of bytes after the message, if it was read to its end
}

func (m *seen) String() string {
	return fmt.Sprintf("%q %q %q length %d\nfields %q\nbody %q\ntrailers %q\nend %v closes %v left %d",
		m.start, m.target, m.host, m.length, m.fields, m.body, m.trailers, m.end, m.closes, m.left)
}

// fieldsOf returns the fields that keep accepts.
func fieldsOf(h *message.Head, keep func(f *message.Field) bool) []string {
	var l []string
	for i := range h.Fields {
		if keep(&h.Fields[i]) {
			l = append(l, strings.ToLower(string(h.Name(i)))+": "+string(h.Value(i)))
		}
	}
	slices.Sort(l)
	return l
}

func anyField(*message.Field) bool { return true }

// interpreted returns the fields that net/http keeps in a message. net/http removes the special
// field of requests or responses. It adds a Cache-Control for old Pragmas.
func interpreted(h *message.Head, special message.ID) []string {
	chunked := hasField(h, message.TransferEncoding)
	l := fieldsOf(h, func(f *message.Field) bool {
		return f.ID != special && f.ID != message.TransferEncoding && (f.ID != message.Trailer || !chunked)
	})
	if pragma := named(h, "pragma"); pragma >= 0 && string(h.Value(pragma)) == "no-cache" && named(h, "cache-control") < 0 {
		l = append(l, "cache-control: no-cache")
	}
	slices.Sort(l)
	return slices.CompactFunc(l, func(a, b string) bool { return a == b && strings.HasPrefix(a, "content-length: ") }) // in a response
}

// named returns the index of the first field with a name, dropped or not, or -1.
func named(h *message.Head, lower string) int {
	for i := range h.Fields {
		if message.EqualFold(h.Name(i), lower) {
			return i
		}
	}
	return -1
}

// hasField reports whether a field was sent, dropped or not.
func hasField(h *message.Head, id message.ID) bool {
	return slices.ContainsFunc(h.Fields, func(f message.Field) bool { return f.ID == id })
}

func headerFields(h http.Header) []string {
	var l []string
	for name, values := range h {
		for _, v := range values {
			l = append(l, strings.ToLower(name)+": "+v)
		}
	}
	slices.Sort(l)
	return l
}

// ourRequest reads a request. It returns only errors of the head.
func ourRequest(s *Server, w *wire) (*seen, *message.Request, error) {
	req := new(message.Request)
	if err := again(func() error { return s.ReadHead(req) }); err != nil {
		return nil, req, err
	}
	m := &seen{start: string(req.Bytes(req.Method)), target: string(req.Bytes(req.Target)), host: string(req.Bytes(req.Host)),
		length: req.Length, closes: req.Close}
	var err error
	if b, whole := s.BufferedBody(); whole {
		m.body = string(b)
		s.SkipBody()
	} else {
		m.body, err = readAll(func() ([]byte, error) { return s.ReadBody(req) })
	}
	m.fields = interpreted(&req.Head, message.Host)
	m.trailers = fieldsOf(&req.Trailers, anyField)
	if m.end = err == nil; m.end {
		m.left = len(s.in.buffered()) + w.left()
	}
	return m, req, nil
}

func (w *wire) left() (n int) {
	for _, p := range w.pieces {
		n += len(p)
	}
	return n
}

// netHTTP contains the parsers of net/http for one input.
type netHTTP struct {
	in *bytes.Reader
	br *bufio.Reader
}

func newNetHTTP(in string) *netHTTP {
	r := bytes.NewReader([]byte(in))
	return &netHTTP{r, bufio.NewReaderSize(r, 64<<10)} // trailers must fit into the buffer
}

func (n *netHTTP) left() int { return n.in.Len() + n.br.Buffered() }

func (n *netHTTP) request() (*seen, *http.Request, error) {
	req, err := http.ReadRequest(n.br)
	if err != nil {
		return nil, nil, err
	}
	m := &seen{start: req.Method, target: req.RequestURI, host: req.Host, length: req.ContentLength, closes: req.Close}
	body, err := io.ReadAll(req.Body)
	m.body, m.fields, m.trailers = string(body), headerFields(req.Header), headerFields(req.Trailer)
	if m.end = err == nil; m.end {
		m.left = n.left()
	}
	return m, req, nil
}

// withoutEmptyLines removes the empty lines before a message, which weir skips.
func withoutEmptyLines(in string) string {
	for range maxEmptyLines {
		in = strings.TrimPrefix(in, "\r\n")
	}
	return in
}

var blanks = regexp.MustCompile(" +")

// plainRequest edits the first request of a stream so that net/http accepts it. weir also
// accepts empty lines before the request, and more than one space beside the target.
func plainRequest(in string) string {
	line, rest, found := strings.Cut(withoutEmptyLines(in), "\r\n")
	if !found {
		return in
	}
	return blanks.ReplaceAllString(line, " ") + "\r\n" + rest
}

// plainResponse is like plainRequest, for responses. There a Content-Length may also be a list of equal
// lengths.
func plainResponse(in string) string {
	head, rest, found := strings.Cut(withoutEmptyLines(in), "\r\n\r\n")
	if !found {
		return in
	}
	lines := strings.Split(head, "\r\n")
	for i, line := range lines {
		if name, list, _ := strings.Cut(line, ":"); strings.EqualFold(name, "Content-Length") {
			all := strings.Split(list, ",")
			for j := range all {
				all[j] = strings.Trim(all[j], " \t")
			}
			if all = slices.Compact(all); len(all) == 1 {
				lines[i] = name + ": " + all[0]
			}
		}
	}
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + rest
}

// plainChunks removes the spaces and tabs before the extensions of a chunked body, because
// net/http refuses them.
func plainChunks(in string) string {
	plain := ""
	for {
		line, rest, found := strings.Cut(in, "\r\n")
		size, extension, extended := strings.Cut(line, ";")
		size = strings.TrimRight(size, " \t")
		n, err := strconv.ParseUint(size, 16, 31)
		if !found || err != nil {
			return plain + in
		}
		if extended {
			line = size + ";" + extension
		}
		if n == 0 {
			return plain + line + "\r\n" + rest
		}
		end := min(int(n)+len("\r\n"), len(rest))
		plain, in = plain+line+"\r\n"+rest[:end], rest[end:]
	}
}

// canonical returns a host in a form for comparison: in lower case, without the default port of
// the URL's scheme.
func canonical(u *url.URL, host string) string {
	return strings.ToLower(strings.TrimSuffix(host, map[string]string{"http": ":80", "https": ":443"}[u.Scheme]))
}

// compareRequests reads a stream with both parsers until weir refuses it. If weir accepts a
// request, both parsers must read its plain form (see plainRequest) as the same request. The
// reverse does not hold: weir refuses many requests that net/http accepts, on purpose
// (lines that end in a bare line feed, folded lines, a Content-Length beside
// a Transfer-Encoding or twice, a Transfer-Encoding in HTTP/1.0, white space after a
// chunk's size, CONNECT and TRACE, targets without a path or with bytes outside
// ASCII, dot segments, a Host that differs from the target's or is invalid).
func compareRequests(t *testing.T, in string) {
	w := newWire(in)
	var s Server
	s.Init(w, Limits{})
	defer s.Close()
	for rest := in; ; {
		m, req, err := ourRequest(&s, w)
		if err != nil {
			return
		}
		plain := plainRequest(rest)
		again := newWire(plain)
		var second Server
		second.Init(again, Limits{})
		p, _, err := ourRequest(&second, again)
		second.Close()
		if err != nil || p.String() != m.String() {
			t.Fatalf("%q\nwe read\n%s\nand of %q\n%s %v", rest, m, plain, p, err)
		}
		n, nreq, err := newNetHTTP(plain).request()
		if err != nil {
			t.Fatalf("%q\naccepted, but net/http refuses it: %v\n%s", in, err, m)
		}
		if path, err := url.PathUnescape(string(req.Bytes(req.Path))); err != nil || path != nreq.URL.Path {
			t.Fatalf("%q\nthe path %q is %q to net/http (%v)", in, path, nreq.URL.Path, err)
		}
		if nreq.URL.IsAbs() { // net/http keeps the absolute form, and uses the host of the target
			if !strings.HasSuffix(n.target, m.target) || canonical(nreq.URL, n.host) != canonical(nreq.URL, m.host) {
				t.Fatalf("%q\nnet/http reads the target %q, we %q at %q", in, n.target, m.target, m.host)
			}
			n.target, n.host = m.target, m.host
		}
		if compareBodies(t, in, m, n); !m.end {
			return
		}
		rest = rest[len(rest)-m.left:]
	}
}

// compareBodies compares two messages. If weir could not read a body to its end, net/http must
// read the same bytes up to that point.
func compareBodies(t *testing.T, in string, m, n *seen) {
	t.Helper()
	if !m.end {
		k := min(len(m.body), len(n.body))
		m.body, n.body, n.end, n.left = m.body[:k], n.body[:k], false, 0
		m.trailers, n.trailers = nil, nil
	}
	if m.String() != n.String() {
		t.Fatalf("%q\nwe read\n%s\nnet/http reads\n%s", in, m, n)
	}
}

// answered are the requests whose responses FuzzResponse reads.
var answered = []string{getRequest, headRequest, oldRequest, upgradeRequest}

func compareResponses(t *testing.T, request, in string) {
	var req message.Request
	parseInto(&req, request)
	w := newWire(in)
	var c Client
	c.Init(w, Limits{})
	defer c.Close()
	c.WriteHead(&req)
	c.WriteEnd(&req)
	c.Flush()
	for rest := in; ; {
		res := new(message.Response)
		if again(func() error { return c.ReadHead(&req, res) }) != nil {
			return
		}
		body, err := readAll(func() ([]byte, error) { return c.ReadBody(res) })
		m := &seen{start: strings.TrimRight(fmt.Sprintf("%d %s", res.Status, res.Bytes(res.Reason)), " "),
			body: body, end: err == nil, trailers: fieldsOf(&res.Trailers, anyField)}
		if m.fields = interpreted(&res.Head, message.Connection); m.end {
			m.left = len(c.in.buffered()) + w.left()
		}

		plain := plainResponse(rest)
		if head, body, _ := strings.Cut(plain, "\r\n\r\n"); res.Length == message.Unknown && hasField(&res.Head, message.TransferEncoding) {
			plain = head + "\r\n\r\n" + plainChunks(body)
		}
		theirs := newNetHTTP(plain)
		nres, err := http.ReadResponse(theirs.br, &http.Request{Method: string(req.Bytes(req.Method))})
		if err != nil {
			t.Fatalf("%q\naccepted, but net/http refuses it: %v\n%s", in, err, m)
		}
		nbody, err := io.ReadAll(nres.Body)
		n := &seen{start: strings.TrimRight(nres.Status, " "), body: string(nbody), end: err == nil,
			fields: withoutConnection(headerFields(nres.Header)), trailers: headerFields(nres.Trailer)}
		if n.end {
			n.left = theirs.left()
		}
		compareBodies(t, in, m, n)
		if nres.Close && !res.Close && !res.Informational() {
			t.Fatalf("%q\nnet/http knows that the connection ends, we do not", in)
		}
		if c.Reusable() && (m.left > 0 || !m.end) {
			t.Fatalf("%q\nthe connection is used again, with %d bytes on it", in, m.left)
		}
		if !res.Informational() {
			return
		}
		rest = rest[len(rest)-m.left:]
	}
}

// withoutConnection removes the field that net/http deletes if the connection ends.
func withoutConnection(l []string) []string {
	return slices.DeleteFunc(l, func(s string) bool { return strings.HasPrefix(s, "connection: ") })
}
