package proxy

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// closed answers the requests of a closed route. The access log has the reason; the client
// only learns that the path is closed.
type closed struct {
	refusal message.Refusal
	why     error
}

func newClosed(c *config.Closure) *closed {
	switch {
	case c == nil:
		return nil
	case c.Status == http.StatusNotFound:
		return &closed{*refuseNoRoute, errors.New(c.Why)}
	}
	return &closed{message.Refusal{Status: cmp.Or(c.Status, http.StatusServiceUnavailable), Reason: c.Reason, Detail: "the path is closed"}, errors.New(c.Why)}
}

// missing answers the requests for a backend that does not exist.
var missing = &closed{message.Refusal{Status: http.StatusInternalServerError, Reason: reasonMissing, Detail: "nothing serves this path at the moment"},
	errors.New("weir cannot apply a filter of the rule, or a backend of it does not exist or must not be used; the status of the object has the reason")}

// reasonMissing is the reason of a response because of a missing backend.
const reasonMissing = "no_backend"

// orMissing returns c, or the reason why no request reaches a missing backend.
func (c *closed) orMissing(isMissing bool) *closed {
	if c == nil && isMissing {
		return missing
	}
	return c
}
