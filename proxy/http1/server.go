package http1

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Server is the codec of one client connection. It reads requests and writes their responses,
// one exchange after another. It does not close the connection. The zero value needs Init.
type Server struct {
	in     reader
	out    writer
	body   body
	limits Limits
	rules  Lenient

	failed    bool // weir refused a request: it reads nothing after it
	mustClose bool // the response announced the end of the connection, or ends with it
}

// Init makes s the codec of rw. The caller still owns rw.
func (s *Server) Init(rw io.ReadWriter, limits Limits) {
	*s = Server{in: reader{src: rw}, out: writer{dst: rw}, limits: limits.OrDefault()}
}

// ChargeTo charges a for the memory of a large head; see Client.ChargeTo.
func (s *Server) ChargeTo(a *memory.Account) { s.in.account, s.out.account = a, a }

// ReadHead reads the head of the next request. Its errors:
//   - io.EOF: the client closed the connection between requests.
//   - io.ErrUnexpectedEOF: the connection ended within a head.
//   - *message.Refusal: it contains the answer. No further request may be read.
//   - conn.ErrWouldBlock: call it again.
//   - other errors of the connection.
//
// After an error, req is empty or contains the parsed part of this request, never data of an
// earlier request.
func (s *Server) ReadHead(req *message.Request) error {
	if s.MustClose() {
		return errNothingFollows
	}
	req.Reset()
	req.RawTargets = s.rules.accepts(RawTargets)
	head, n, err := s.in.headBy(s.rules, s.limits.HeadBytes)
	if err == nil {
		if err = parseRequest(req, head, s.limits, s.rules); err == nil {
			s.in.consume(n)
			s.in.skipped = 0
			s.body.start(req.Length, req.Length == message.Unknown, false, 0)
			if n != len(head) || s.in.loose {
				s.mustClose = true // parsers disagree about where this head ends, so another request may hide after it
			}
			return nil
		}
	}
	if err == message.ErrHeadTooLarge && !s.in.hasLine(s.limits.HeadBytes) {
		err = errTargetTooLong
	}
	if r, refused := err.(*message.Refusal); refused {
		s.failed = true
		err = s.rules.hinted(r, head, s.limits)
	}
	return err
}

// errNothingFollows is the error if the caller reads a request when none may follow. weir
// must not take the bytes of an unread body, or after a refused message, for a request.
var errNothingFollows = errors.New("read a request: the connection carries no further request")

// HeadStarted returns true if some bytes of the next request have arrived. Empty lines do not
// count.
func (s *Server) HeadStarted() bool { return !s.in.empty() }

// EmptyLines returns the number of empty lines skipped before the next request. If another
// Server continues with the connection, pass this number to its Skipped.
func (s *Server) EmptyLines() int { return s.in.skipped }

// Skipped sets the number of empty lines that were already skipped before the next request.
func (s *Server) Skipped(n int) { s.in.skipped = n }

// BufferedBody returns the rest of the body if all of it has arrived: the bytes that ReadBody
// has not returned. It does not consume them, so a second attempt may call it again. The
// slice is valid until SkipBody.
func (s *Server) BufferedBody() ([]byte, bool) {
	if s.body.ended() {
		return nil, true
	}
	b := s.in.buffered()
	if s.body.state != bodyLength || int64(len(b)) < s.body.left {
		return nil, false
	}
	return b[:s.body.left], true
}

// SkipBody consumes the bytes that BufferedBody returned.
func (s *Server) SkipBody() {
	s.in.consume(int(s.body.left))
	s.body = body{}
}

// ReadBody returns the next piece of the request's body, valid until the next call. At the
// end of the body it returns io.EOF; then the trailers are in req.
func (s *Server) ReadBody(req *message.Request) ([]byte, error) {
	p, err := s.body.next(&s.in, &req.Head, &req.Trailers, s.limits)
	if _, refused := err.(*message.Refusal); refused {
		s.failed = true
	}
	return p, err
}

// Owes reports whether the client must send more of the body soon; see Client.Owes.
func (s *Server) Owes() bool { return s.body.owes() }

// BodyEnded reports whether the request was read to its end.
func (s *Server) BodyEnded() bool { return s.body.ended() }

// MustClose reports whether no other request may follow on this connection.
func (s *Server) MustClose() bool { return s.failed || s.mustClose || !s.body.ended() }

// WriteHead buffers a response's head. Flush sends it. If last is true, the head announces
// the end of the connection. A body of unknown length is sent in chunks if the client
// supports them; otherwise the end of the connection ends the body.
func (s *Server) WriteHead(req *message.Request, res *message.Response, last bool) {
	s.out.chunked, last = false, last || s.mustClose
	b := appendStatusLine(s.out.room(), res)
	b = appendFields(b, &res.Head)
	if res.Status == 101 {
		b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
		b = append(b, res.Bytes(res.Upgrade)...)
		s.out.gathered(append(b, "\r\n\r\n"...))
		return
	}
	if res.Informational() {
		s.out.gathered(append(b, '\r', '\n'))
		return
	}
	switch {
	case res.Length == 0 && !req.IsHead && !message.BodyForbidden(res.Status) && res.Find(message.ContentLength) < 0:
		b = append(b, "Content-Length: 0\r\n"...) // an HTTP/2 response needs no Content-Length
	case res.Length == message.Unknown:
		if req.Minor == 1 {
			s.out.chunked = true
			b = append(b, "Transfer-Encoding: chunked\r\n"...)
		} else {
			last = true
		}
	}
	switch {
	case last:
		s.mustClose = true
		b = append(b, "Connection: close\r\n"...)
	case req.Minor == 0:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	s.out.gathered(append(b, '\r', '\n'))
}

func appendStatusLine(b []byte, res *message.Response) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = append(b, byte('0'+res.Status/100), byte('0'+res.Status/10%10), byte('0'+res.Status%10), ' ')
	b = append(b, res.Bytes(res.Reason)...)
	return append(b, '\r', '\n')
}

// WriteBody buffers or sends a piece of the response's body.
func (s *Server) WriteBody(p []byte) error { return s.out.body(p) }

// WriteEnd buffers the end of the response's body.
func (s *Server) WriteEnd(res *message.Response) { s.out.end(&res.Trailers) }

// Flush sends the buffered bytes.
func (s *Server) Flush() error { return s.out.flush() }

// TakeBuffered returns a copy of the bytes after the last request, and releases the memory.
// It is for a connection that is no longer HTTP.
func (s *Server) TakeBuffered() []byte {
	return s.in.take()
}

// Begins returns true if the unread bytes of the connection begin with prefix. Skipped empty
// lines count as unread bytes.
func (s *Server) Begins(prefix string) bool {
	for range s.in.skipped {
		after, found := strings.CutPrefix(prefix, "\r\n")
		if !found {
			return false
		}
		prefix = after
	}
	return bytes.HasPrefix(s.in.buffered(), []byte(prefix))
}

// Release releases the memory that an idle connection does not need.
func (s *Server) Release() { s.in.release() }

// Close releases all memory. The connection stays open. Close may be called twice.
func (s *Server) Close() {
	s.in.discard()
	s.out.discard()
}
