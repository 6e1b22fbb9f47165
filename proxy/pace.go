package proxy

import (
	"bytes"
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// pace is the time for which weir still waits for the body of a client's request. Waiting reduces
// the time. Every byte adds time, in accordance with the minimum rate, so a slower client runs out
// of time. The time never exceeds its initial value, so fast bytes do not pay for a long pause
// later. The time in which an endpoint accepts the bytes does not count.
type pace struct {
	most, left time.Duration
	rate       int64 // bytes per second; 0: any rate, and each piece restores the whole time

	silence time.Duration // limits a wait in which the client owes nothing; 0: such a wait also reduces the time
	call    bool          // a call (see isCall), whose client may be silent before the response too
}

func newPace(idle time.Duration, rate int64) pace { return pace{most: idle, left: idle, rate: rate} }

// came notes that n bytes arrived after a wait of that length.
func (p *pace) came(n int, waited time.Duration) {
	if n == 0 {
		return
	}
	won := p.most
	if p.rate > 0 {
		won = min(won, time.Duration(n)*time.Second/time.Duration(p.rate))
	}
	p.left = min(p.most, max(0, p.left-waited)+won)
}

// minRate returns the minimum rate of the request's body, in bytes per second. A call may be a
// conversation in which the client sends nothing for most of the time, so it has none.
func (x *exchange) minRate() int64 {
	if isCall(&x.req) {
		return 0
	}
	return x.edge.timeouts.BodyMinRate
}

// isCall reports whether a request is a gRPC call, or a streaming call of the Connect protocol.
func isCall(req *message.Request) bool {
	return isGRPC(req) || bytes.HasPrefix(req.GetName("content-type"), []byte("application/connect+"))
}
