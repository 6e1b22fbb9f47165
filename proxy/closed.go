package proxy

import (
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
	if c == nil {
		return nil
	}
	return &closed{message.Refusal{Status: http.StatusServiceUnavailable, Reason: c.Reason, Detail: "the path is closed"}, errors.New(c.Why)}
}
