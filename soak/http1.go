package soak

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// http1Speaker speaks HTTP/1.1. It holds no buffer between exchanges.
type http1Speaker struct{ *link }

// requestHead returns the head for all connections except those with an endless body.
func (r *runner) requestHead() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: weir-soak\r\n", r.method(), r.Path, r.Host)
	for _, f := range r.Fields {
		fmt.Fprintf(&b, "%s\r\n", f)
	}
	return b.Bytes()
}

func (r *runner) method() string {
	if r.Body > 0 {
		return "POST"
	}
	return "GET"
}

var readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

func (s *http1Speaker) begin() error { return nil }

func (s *http1Speaker) exchange() (last bool, err error) {
	sent := s.request()
	if k := kindOf(sent); k == none || k == timeIsUp || k == Closed {
		return true, sent
	}
	// If the other side stopped reading the request, it may have sent the reason.
	r := readers.Get().(*bufio.Reader)
	r.Reset(s)
	defer readers.Put(r)
	last, err = s.response(r)
	if kind := kindOf(err); sent != nil && (kind == Reset || kind == Closed || kind == Timeout) {
		err = sent
	}
	if err == nil && r.Buffered() > 0 {
		extra, _ := r.Peek(min(64, r.Buffered()))
		return true, problemf(Malformed, "bytes after the end of a response: %q", extra)
	}
	return last || s.role == openBody || sent != nil, err
}

func (s *http1Speaker) request() error {
	write := func(b []byte) error {
		_, err := s.Write(b)
		return err
	}
	head := s.run.head
	switch {
	case s.role == openBody:
		head = bytes.Replace(head, []byte("GET "), []byte("POST "), 1)
		head = append(bytes.Clone(head), "Transfer-Encoding: chunked\r\n\r\n"+openChunk...)
	case s.run.Body > 0:
		head = fmt.Appendf(bytes.Clone(head), "Content-Length: %d\r\n\r\n", s.run.Body)
	default:
		head = append(bytes.Clone(head), "\r\n"...)
	}
	if err := s.send(Head, head, write); err != nil {
		return during("sending the head of a request", err)
	}
	if s.role == openBody {
		return nil
	}
	return during("sending the body of a request", s.send(Body, s.run.body, write))
}

// openChunk is the only part of an open body that is ever sent.
const openChunk = "a\r\n0123456789\r\n"

// response reads a response and checks it.
func (s *http1Speaker) response(r *bufio.Reader) (last bool, err error) {
	method := s.run.method()
	if s.role == openBody {
		method = http.MethodPost
	}
	response, err := readHead(r, &http.Request{Method: method})
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	s.run.status(response.StatusCode)
	seen, n, err := s.readBody(response.Body)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return true, problemf(ShortBody, "received %d bytes of %s", n, lengthOf(response.ContentLength))
	case err != nil:
		return true, during(fmt.Sprintf("after %d bytes of a response's body", n), err)
	case !s.run.expects(response.StatusCode):
		return true, problemf(UnexpectedStatus, "%s: %.64q", response.Status, seen)
	}
	return response.Close, s.checkAddress(response.Header.Get(s.run.AddressField), seen)
}

func lengthOf(n int64) string {
	if n < 0 {
		return "an unknown number"
	}
	return strconv.FormatInt(n, 10)
}

// readHead reads the head of the response, and skips interim responses.
func readHead(r *bufio.Reader, to *http.Request) (*http.Response, error) {
	if _, err := r.Peek(1); err != nil {
		return nil, during("waiting for a response", err)
	}
	for {
		response, err := http.ReadResponse(r, to)
		if err != nil {
			return nil, during("reading the head of a response", err)
		}
		if response.StatusCode/100 != 1 || response.StatusCode == http.StatusSwitchingProtocols {
			return response, nil
		}
	}
}

// seenLimit is how much of a body or a reply is kept for checks, in bytes.
const seenLimit = 64 << 10

// readBody reads the whole body. It returns the beginning of the body, for checks, and
// its length.
func (s *http1Speaker) readBody(body io.Reader) (seen []byte, n int64, err error) {
	keep := int64(64)
	if s.run.clientIn != nil {
		keep = seenLimit
	}
	seen, err = io.ReadAll(io.LimitReader(body, keep))
	n = int64(len(seen))
	if err == nil {
		var more int64
		more, err = io.Copy(io.Discard, body)
		n += more
	}
	return seen, n, err
}

// checkAddress compares the client address that the other side saw with the right one.
func (l *link) checkAddress(field string, body []byte) error {
	if l.run.AddressField != "" {
		if err := l.compareAddress(field); err != nil {
			return err
		}
	}
	if l.run.clientIn == nil {
		return nil
	}
	m := l.run.clientIn.FindSubmatch(body)
	if m == nil {
		return problemf(WrongAddress, "want %s, and nothing in the body matches --address-pattern", l.client)
	}
	return l.compareAddress(string(m[1]))
}

func (l *link) compareAddress(seen string) error {
	got, ok := parseSeen(seen)
	if want := l.client.Unmap(); !ok || got != want {
		return problemf(WrongAddress, "want %s, the other side saw %q", want, seen)
	}
	return nil
}

// idleUntil waits until t. The other side must send nothing meanwhile.
func (s *http1Speaker) idleUntil(t time.Time) error {
	ready, err := s.await(t)
	switch {
	case errors.Is(err, io.EOF):
		return errIdleEnd
	case err != nil:
		return during("while idle", err)
	case !ready:
		return nil
	}
	first := make([]byte, 64)
	n, _ := s.Read(first)
	more, _ := s.Read(first[n:])
	return problemf(Malformed, "the target sent bytes without a request: %q", first[:n+more])
}
