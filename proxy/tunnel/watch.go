package tunnel

import (
	"os"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
)

// watch ends a tunnel at its limits. Copied bytes do not move its timer: when the timer
// fires, checkLimits checks the time of the last bytes. If both ends can be parked, watch uses a
// coarse timer of the lot, which costs almost nothing.
type watch struct {
	token park.Token
	timer *time.Timer
}

func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	} else {
		conn.Lot().Cancel(w.token)
	}
}

func (t *tunnel) startWatch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watchFor(t.untilLimit(0))
}

func (t *tunnel) watchFor(d time.Duration) {
	switch w := &t.watch; {
	case t.client.parks() && t.endpoint.parks():
		w.token = conn.Lot().After(time.Now().Add(d), t)
	case w.timer == nil:
		w.timer = time.AfterFunc(d, t.checkLimits)
	default:
		w.timer.Reset(d)
	}
}

// Wake checks the limits. The lot calls it when the timer fires.
func (t *tunnel) Wake(park.Reason) { t.checkLimits() }

func (t *tunnel) checkLimits() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.begun)
	left := t.untilLimit(now)
	switch {
	case t.over:
	case left > 0:
		t.watchFor(left)
	case t.Lifetime > 0 && now >= t.Lifetime:
		t.endLocked(ReasonLifetime, conn.Explain(os.ErrDeadlineExceeded, "the tunnel was open for %s (max_lifetime of the route)", t.Lifetime))
	default:
		t.endLocked(ReasonIdle, conn.Explain(os.ErrDeadlineExceeded, "the tunnel was idle for %s (tunnel_idle of the route or listener)", t.Idle))
	}
}

// untilLimit returns the time from now to the nearer limit. now counts from the begin of the
// tunnel.
func (t *tunnel) untilLimit(now time.Duration) time.Duration {
	left := time.Duration(t.active.Load()) + t.Idle - now
	if t.Lifetime > 0 {
		left = min(left, t.Lifetime-now)
	}
	return left
}
