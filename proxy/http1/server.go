package http1

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Server is the codec of one client connection: it reads requests and writes
// responses, in turn. It does not close the connection. The zero value needs Init.
type Server struct {
	in     reader
	out    writer
	body   body
	limits Limits

	failed    bool // a request could not be read to its end: nothing after it is
	mustClose bool // what was written is told apart only by the connection's end
}

// Init makes s the codec of rw, which stays the caller's.
func (s *Server) Init(rw io.ReadWriter, limits Limits) {
	*s = Server{in: reader{src: rw}, out: writer{dst: rw}, limits: limits.OrDefault()}
}

// ChargeTo charges a for the memory of a large head; see Client.ChargeTo.
func (s *Server) ChargeTo(a *memory.Account) { s.in.account, s.out.account = a, a }

// ReadHead reads the next request's head. The errors: io.EOF where the client
// closed between requests, io.ErrUnexpectedEOF within a head, a
// *message.Refusal that tells what to answer (no request may be read after
// it), conn.ErrWouldBlock (call again), or the connection's own. With an error,
// req is empty or holds what was understood of the request, never an earlier one.
func (s *Server) ReadHead(req *message.Request) error {
	if s.MustClose() {
		return errNothingFollows
	}
	req.Reset()
	head, err := s.in.head(s.limits.HeadBytes)
	if err == nil {
		if err = parseRequest(req, head, s.limits); err == nil {
			s.in.consume(len(head))
			s.in.skipped = 0
			s.body.start(req.Length, req.Length == message.Unknown, false, 0)
			return nil
		}
	}
	if err == message.ErrHeadTooLarge && !s.in.hasLine(s.limits.HeadBytes) {
		err = errTargetTooLong
	}
	if _, refused := err.(*message.Refusal); refused {
		s.failed = true
	}
	return err
}

// errNothingFollows guards against the bytes of an unread body, or those behind
// a refused message, being taken for a request.
var errNothingFollows = errors.New("read a request: the connection carries no further request")

// HeadStarted returns true if some bytes of a next request have arrived. Empty lines do not count.
func (s *Server) HeadStarted() bool { return !s.in.empty() }

// EmptyLines returns how many empty lines were skipped before the next request. If another
// Server continues with the connection, its Skipped takes the number.
func (s *Server) EmptyLines() int { return s.in.skipped }

// Skipped says how many empty lines were skipped already before the next request.
func (s *Server) Skipped(n int) { s.in.skipped = n }

// BufferedBody returns the whole body, or what ReadBody left of it, if it is
// there already; it may be taken again, for a second attempt, until SkipBody.
// The slice is valid until then.
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

// SkipBody consumes what BufferedBody returned.
func (s *Server) SkipBody() {
	s.in.consume(int(s.body.left))
	s.body = body{}
}

// ReadBody returns the next piece of the request's body, valid until the next
// call, or io.EOF at its end; the trailers are then in req.
func (s *Server) ReadBody(req *message.Request) ([]byte, error) {
	p, err := s.body.next(&s.in, &req.Head, &req.Trailers, s.limits)
	if _, refused := err.(*message.Refusal); refused {
		s.failed = true
	}
	return p, err
}

// BodyEnded reports whether the request was read to its end.
func (s *Server) BodyEnded() bool { return s.body.ended() }

// MustClose says that no other request may follow on this connection.
func (s *Server) MustClose() bool { return s.failed || s.mustClose || !s.body.ended() }

// WriteHead gathers a response's head, to be sent by Flush. With last, the
// client is told that the connection ends. A body of unknown length is sent in
// chunks where the client understands them, else it ends with the connection.
func (s *Server) WriteHead(req *message.Request, res *message.Response, last bool) {
	s.out.chunked = false
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
		b = append(b, "Content-Length: 0\r\n"...) // it came by HTTP/2, where that goes without saying
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

// WriteBody gathers or sends a piece of the response's body.
func (s *Server) WriteBody(p []byte) error { return s.out.body(p) }

// WriteEnd gathers the end of the response's body.
func (s *Server) WriteEnd(res *message.Response) { s.out.end(&res.Trailers) }

// Flush sends what was gathered.
func (s *Server) Flush() error { return s.out.flush() }

// TakeBuffered returns a copy of the bytes that were read and belong to no
// request, for a connection that stops being HTTP.
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

// Release gives memory back that an idle connection does not need.
func (s *Server) Release() { s.in.release() }

// Close gives all memory back. The connection stays open. Closing twice is fine.
func (s *Server) Close() {
	s.in.discard()
	s.out.discard()
}
