package proxy

import (
	"io"
	"net/http"
	"time"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// heldBody is the body of a request that a guard has read whole. It stands in for the client as the
// source of the attempts, which may all use it.
type heldBody struct {
	source        // the client, whose stream has been read to its end
	bytes  []byte // the capacity is charged to the account of the client
}

// BufferedBody returns the body.
func (h *heldBody) BufferedBody() ([]byte, bool) { return h.bytes, true }

// body returns the source of the request's body.
func (x *exchange) body() source {
	if x.held != nil {
		return x.held
	}
	return x.wire
}

var refuseHeld = &message.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: "body_too_large",
	Detail: "the request's body is too large", Hint: "for the server that decides about the request"}

// HoldBody reads the request's body, up to most bytes, and keeps it for the attempts. It returns false
// if it has answered the request, because the body is larger or did not arrive.
func (x *exchange) HoldBody(most int) ([]byte, bool) {
	if x.req.Upgrade.Len() > 0 && x.req.Length <= 0 {
		return nil, true // what follows is not a body
	}
	body, whole := x.body().BufferedBody()
	if x.req.Length > int64(most) || len(body) > most {
		x.reply(refuseHeld)
		return nil, false
	}
	if whole {
		return body, true
	}
	if !x.cover(0) {
		x.reply(message.ErrMemory)
		return nil, false
	}
	h := &heldBody{source: x.wire}
	x.held = h
	if !x.fill(h, most) {
		return nil, false
	}
	return h.bytes, true
}

// fill reads the body from the client. It returns false if it has answered the request.
func (x *exchange) fill(h *heldBody, most int) bool {
	if x.req.ExpectContinue {
		x.proceed()
	}
	for pace := x.bodyPace(); ; {
		asked := time.Now()
		x.wire.SetReadDeadline(asked.Add(pace.left))
		p, err := x.wire.ReadBody(&x.req)
		switch {
		case err == io.EOF:
			return true
		case err != nil:
			x.giveUp(x.bodyFailed(err))
			return false
		case len(h.bytes)+len(p) > most:
			x.reply(refuseHeld)
			return false
		}
		pace.came(len(p), time.Since(asked))
		room, ok := grown(x.account, h.bytes, len(p), most)
		if !ok {
			x.reply(message.ErrMemory)
			return false
		}
		h.bytes = append(room, p...)
	}
}

// grown returns p with room for n more bytes, of which there will be most at the end. It returns false if
// the account may not hold them. The capacity is charged, not the length; Release(cap(p)) gives it back.
func grown(account *memory.Account, p []byte, n, most int) ([]byte, bool) {
	if len(p)+n <= cap(p) {
		return p, true
	}
	size := min(max(len(p)+n, 2*cap(p)), most)
	if !account.Charge(size) {
		return p, false
	}
	larger := append(make([]byte, 0, size), p...)
	account.Release(cap(p)) // not before it is copied: until then both exist
	return larger, true
}

// proceed tells a client that waits for it to send the body (100 Continue). The endpoint then gets the
// body together with the head.
func (x *exchange) proceed() {
	sayContinue(&x.res, x) // after an error, the body does not arrive either
	x.req.Drop(message.Expect)
}

// releaseHeld gives back the memory of a held body.
func (x *exchange) releaseHeld() {
	if x.held != nil {
		x.account.Release(cap(x.held.bytes))
		x.held = nil
	}
}
