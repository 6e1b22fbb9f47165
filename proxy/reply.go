package proxy

import (
	"net/http"
	"strconv"

	"github.com/weirproxy/weir/proxy/message"
)

// reply answers a request in weir's own name, shortly.
func (s *session) reply(r *message.Refusal) {
	s.status, s.reason = r.Status, r.Reason
	if s.err == nil {
		s.err = r
	}
	body := r.Detail + "\n"
	res := &s.res
	res.Reset()
	res.Status = r.Status
	res.Reason = res.StoreString(http.StatusText(r.Status))
	res.AddField("Content-Type", "text/plain; charset=utf-8")
	res.AddField("X-Content-Type-Options", "nosniff")
	res.Add(message.ContentLength, strconv.AppendInt(nil, int64(len(body)), 10))
	res.Length = int64(len(body))
	s.answered = true
	s.server.WriteHead(&s.req, res, s.last())
	if !s.req.IsHead {
		s.server.WriteBody([]byte(body))
	}
	if err := s.server.Flush(); err != nil {
		s.ended, s.err = true, err
	}
}
