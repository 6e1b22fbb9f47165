package proxy

import "time"

// pace is how long a client may still be waited for with its request's body.
// Waiting uses it up, and every byte wins time back, as much as the least rate
// gives it: who sends less runs out of it. It is never more than at the
// beginning, so that what came fast does not pay for a long pause. The time that
// an endpoint takes to accept what came is not the client's.
type pace struct {
	most, left time.Duration
	rate       int64 // bytes a second; 0: any, and each piece wins back all
}

func newPace(idle time.Duration, rate int64) pace { return pace{most: idle, left: idle, rate: rate} }

// came notes that n bytes came after waiting for them.
func (p *pace) came(n int, waited time.Duration) {
	if n == 0 {
		return
	}
	won := p.most
	if p.rate > 0 {
		won = min(won, time.Duration(n)*time.Second/time.Duration(p.rate))
	}
	p.left = min(p.most, p.left-waited+won)
}

// minRate is the least rate of the request's body. A call of gRPC may be a
// conversation, in which the client has nothing to say for most of the time.
func (x *exchange) minRate() int64 {
	if isGRPC(&x.req) {
		return 0
	}
	return x.edge.timeouts.BodyMinRate
}
