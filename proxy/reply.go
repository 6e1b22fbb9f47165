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
	x.completeHead(res)
	if !x.cover(2 * len(body)) { // the text and its copy for the codec
		x.starve()
		return
	}
	x.writeReply(body)
}

// writeReply writes weir's own response, whose head is complete.
func (x *exchange) writeReply(body string) {
	x.answered = true
	x.wire.WriteHead(&x.req, &x.res)
	if !x.req.IsHead {
		x.wire.WriteBody([]byte(body))
		x.sent += int64(len(body))
	}
	if err := x.wire.Flush(); err != nil {
		x.ended, x.err = true, err
	}
}

// starve sends a refusal in place of weir's own response, for which there is no memory. The refusal has nothing of the
// filters.
func (x *exchange) starve() {
	x.filtered.End()
	x.err = message.ErrMemory
	x.beginReply(message.ErrMemory.Status, message.ErrMemory.Reason)
	if isGRPC(&x.req) {
		x.res.Reset()
		x.beginGRPC(message.ErrMemory)
		stampDate(&x.res)
		x.writeGRPC()
		return
	}
	body := message.ErrMemory.Detail + "\n"
	x.res.Add(message.ContentLength, strconv.AppendInt(nil, int64(len(body)), 10))
	x.res.Length = int64(len(body))
	stampDate(&x.res)
	x.writeReply(body)
}

// completeHead applies the filters of the route to the head of a final response, and adds a Date.
func (x *exchange) completeHead(res *message.Response) {
	if x.route != nil {
		x.route.filters.EditResponse(x, res)
	}
	stampDate(res)
}
