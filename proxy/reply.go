package proxy

import (
	"net/http"
	"strconv"

	"github.com/weirproxy/weir/proxy/message"
)

// reply answers a request that goes no further, shortly.
func (x *exchange) reply(r *message.Refusal) {
	if x.err == nil {
		x.err = r
	}
	if isGRPC(&x.req) {
		x.replyGRPC(r)
		return
	}
	x.beginReply(r.Status, r.Reason)
	x.endReply(r.Detail + "\n")
}

// beginReply begins an answer in weir's own name, which endReply sends; fields
// may be added between the two.
func (x *exchange) beginReply(status int, reason string) {
	x.status, x.reason = status, reason
	x.generate(reason)
	res := &x.res
	res.Reset()
	res.Status = status
	res.Reason = res.StoreString(http.StatusText(status))
	res.AddField("Content-Type", "text/plain; charset=utf-8")
	res.AddField("X-Content-Type-Options", "nosniff")
}

func (x *exchange) endReply(body string) {
	res := &x.res
	res.Add(message.ContentLength, strconv.AppendInt(nil, int64(len(body)), 10))
	res.Length = int64(len(body))
	x.answered = true
	x.writeHead(res)
	if !x.req.IsHead {
		x.wire.WriteBody([]byte(body))
	}
	if err := x.wire.Flush(); err != nil {
		x.ended, x.err = true, err
	}
}

// writeHead gathers the head of a final response, or of a 101, for the client.
func (x *exchange) writeHead(res *message.Response) {
	x.promise(res)
	stampDate(res)
	x.wire.WriteHead(&x.req, res, x.last())
}

// promise makes a response over TLS say what the route promises of it (HSTS),
// whatever the endpoint says of that. Over anything else nobody would heed it
// (RFC 6797, section 7.2).
func (x *exchange) promise(res *message.Response) {
	if !x.security.Terminated() || x.route == nil || x.route.hsts == nil {
		return
	}
	res.Drop(message.StrictTransportSecurity)
	res.Add(message.StrictTransportSecurity, x.route.hsts)
}
