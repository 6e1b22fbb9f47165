package http1

import (
	"math"

	"github.com/weirproxy/weir/proxy/message"
)

// announcedIdle returns the time in seconds after which the endpoint closes an idle
// connection, from the parameter timeout of the Keep-Alive header; 0 if the endpoint does not
// announce it. Node.js sends the header; Apache sends it only if the request has "Connection:
// keep-alive". RFC 2068, section 19.7.1.1, defined the header, and RFC 9112 mentions it
// (appendix C.2.2).
func announcedIdle(h *message.Head) (seconds uint32) {
	if !h.HasAny(message.SetOf(message.KeepAlive)) {
		return 0
	}
	for i := range h.Fields {
		if h.Fields[i].ID != message.KeepAlive { // dropped fields count: the header is hop-by-hop
			continue
		}
		message.EachToken(h.Value(i), func(parameter []byte) {
			const name = "timeout="
			if len(parameter) <= len(name) || !message.EqualFold(parameter[:len(name)], name) {
				return
			}
			if n, ok := message.ParseLength(parameter[len(name):]); ok {
				seconds = uint32(min(n, math.MaxUint32))
			}
		})
	}
	return seconds
}
