package filter

import (
	"strconv"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// hsts is the value of Strict-Transport-Security in responses over TLS (hsts of a route). It
// replaces the endpoint's value. Without TLS, clients ignore HSTS (RFC 6797, section 7.2).
type hsts []byte

// newHSTS returns the value (RFC 6797, section 6.1).
func newHSTS(h *config.HSTS) hsts {
	b := strconv.AppendInt([]byte("max-age="), int64(h.MaxAge/time.Second), 10)
	if h.IncludeSubdomains {
		b = append(b, "; includeSubDomains"...)
	}
	if h.Preload {
		b = append(b, "; preload"...)
	}
	return b
}

// EditResponse sets the value.
func (h hsts) EditResponse(x Exchange, res *message.Response) {
	if !x.Terminated() {
		return
	}
	res.Drop(message.StrictTransportSecurity)
	res.Add(message.StrictTransportSecurity, h)
}
