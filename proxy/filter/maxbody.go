package filter

import (
	"net/http"

	"github.com/weirproxy/weir/proxy/message"
)

// maxBody refuses requests with a larger body (max_body of a route), in bytes.
type maxBody int64

var refuseBody = &message.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: "body_too_large",
	Detail: "the request's body is too large", Hint: "max_body of the route"}

// GuardName returns the key of a route that limits bodies.
func (m maxBody) GuardName() string { return "max_body" }

// Answer refuses a request whose body is known to be too large.
func (m maxBody) Answer(x Exchange) bool {
	if x.KnownLength() <= int64(m) {
		return false
	}
	x.Refuse(refuseBody)
	return true
}

// GuardBody refuses a request whose body has become too large.
func (m maxBody) GuardBody(n int64) *message.Refusal {
	if n <= int64(m) {
		return nil
	}
	return refuseBody
}
