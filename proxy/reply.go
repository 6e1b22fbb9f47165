package proxy

import (
	"net/http"
	"strconv"

	"github.com/weirproxy/weir/proxy/message"
)

// reply answers a request that weir does not forward, with a short text.
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

// beginReply begins a response that weir generates. The caller may add fields and then calls
// endReply, which sends the response.
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
	if x.status >= http.StatusBadRequest && isGRPC(&x.req) {
		x.endReplyGRPC(body)
		return
	}
	res := &x.res
	if !message.BodyForbidden(res.Status) { // RFC 9110, section 8.6
		res.Add(message.ContentLength, strconv.AppendInt(nil, int64(len(body)), 10))
	}
	res.Length = int64(len(body))
	if x.replaced(res) {
		return
	}
	x.answered = true
	x.writeHead(res)
	if !x.req.IsHead {
		x.wire.WriteBody([]byte(body))
		x.sent += int64(len(body))
	}
	if err := x.wire.Flush(); err != nil {
		x.ended, x.err = true, err
	}
}

// writeHead writes the head of a final response, or of a 101, to the output for the client.
func (x *exchange) writeHead(res *message.Response) {
	x.completeHead(res)
	x.wire.WriteHead(&x.req, res)
}

// completeHead applies the filters of the route to the head of a final response, and adds a Date.
func (x *exchange) completeHead(res *message.Response) {
	if x.route != nil {
		x.route.filters.EditResponse(x, res)
	}
	stampDate(res)
}
