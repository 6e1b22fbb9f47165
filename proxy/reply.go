package proxy

import (
	"net/http"
	"strconv"

	"github.com/weirproxy/weir/proxy/message"
)

// reply answers a request that goes no further, shortly.
func (s *session) reply(r *message.Refusal) {
	if s.err == nil {
		s.err = r
	}
	s.beginReply(r.Status, r.Reason)
	s.endReply(r.Detail + "\n")
}

// beginReply begins an answer in weir's own name, which endReply sends; fields
// may be added between the two.
func (s *session) beginReply(status int, reason string) {
	s.status, s.reason = status, reason
	res := &s.res
	res.Reset()
	res.Status = status
	res.Reason = res.StoreString(http.StatusText(status))
	res.AddField("Content-Type", "text/plain; charset=utf-8")
	res.AddField("X-Content-Type-Options", "nosniff")
}

func (s *session) endReply(body string) {
	res := &s.res
	res.Add(message.ContentLength, strconv.AppendInt(nil, int64(len(body)), 10))
	res.Length = int64(len(body))
	s.promise(res)
	s.answered = true
	s.server.WriteHead(&s.req, res, s.last())
	if !s.req.IsHead {
		s.server.WriteBody([]byte(body))
	}
	if err := s.server.Flush(); err != nil {
		s.ended, s.err = true, err
	}
}

// promise makes a response over TLS say what the route promises of it (HSTS),
// whatever the endpoint says of that. Over anything else nobody would heed it
// (RFC 6797, section 7.2).
func (s *session) promise(res *message.Response) {
	if s.tls == nil || s.exchange.route == nil || s.exchange.route.hsts == nil {
		return
	}
	res.Drop(message.StrictTransportSecurity)
	res.Add(message.StrictTransportSecurity, s.exchange.route.hsts)
}
