package proxy

import (
	"math"
	"sync/atomic"

	"github.com/weirproxy/weir/overlay"
	"github.com/weirproxy/weir/proxy/backend"
)

// weighted has the destinations of a route with several backends: for each of them the same
// route with this backend alone, and with its metrics.
type weighted struct {
	routes []*Route           // in the order of the configuration; without a canary without those of weight 0
	upTo   []uint64           // the sum of the weights up to and including this one, without common factors
	step   uint64             // see next
	all    []*backend.Backend // in the order of the configuration
	canary *canary            // chooses between two routes; nil: none
	turn   atomic.Uint64
}

// newWeighted returns destinations with weights. One of them is greater than 0.
func newWeighted(routes []*Route, weights []uint64) *weighted {
	w := &weighted{routes: routes, upTo: make([]uint64, len(weights))}
	var common, sum uint64
	for _, weight := range weights {
		common = divisor(common, weight)
	}
	for i, weight := range weights {
		sum += weight / common
		w.upTo[i] = sum
	}
	w.step = stepOf(sum)
	return w
}

// stepOf returns the step around a circle of length sum: a number without a common divisor with
// sum, so that the steps meet every point. Of the numbers about sum divided by the golden ratio it
// is the one whose multiples are spread most evenly.
func stepOf(sum uint64) uint64 {
	middle, best, least := uint64(math.Round(float64(sum)/math.Phi)), uint64(1), uint64(math.MaxUint64)
	for step := middle - min(middle, stepsAround); step <= middle+stepsAround; step++ {
		if divisor(step, sum) != 1 {
			continue
		}
		if u := unevenness(step%sum, sum); u < least {
			best, least = step, u
		}
	}
	return best
}

// stepsAround is how many numbers on each side stepOf tries.
const stepsAround = 8

// unevenness is the sum of the terms of the continued fraction of step/sum. The multiples of step
// deviate from an even spread by no more than that (Niederreiter 1992, theorem 3.4).
func unevenness(step, sum uint64) (terms uint64) {
	for step != 0 {
		terms += sum / step
		sum, step = step, sum%step
	}
	return terms
}

// divisor returns the greatest common divisor.
func divisor(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// next returns the destination of the next request or connection. Each turn goes one step
// further around a circle whose length is the sum of the weights. The steps meet each of its
// points once in a round, so each destination gets exactly its share of a round. The step spreads
// the turns of a destination evenly within the round. That needs neither a lock nor a list of the turns.
func (w *weighted) next() *Route {
	sum := w.upTo[len(w.upTo)-1]
	at := (w.turn.Add(1) - 1) % sum * w.step % sum
	i := 0
	for w.upTo[i] <= at {
		i++
	}
	return w.routes[i]
}

// leadsTo reports whether the map has the backends of the route under their names. After a reload a
// name may belong to another backend.
func (r *Route) leadsTo(backends *overlay.Map[*backend.Backend]) bool {
	if r.weighted == nil {
		b, _ := backends.Get(r.config.Backend)
		return r.backend == b
	}
	for i, b := range r.weighted.all {
		if now, _ := backends.Get(r.config.Backends[i].Name); now != b {
			return false
		}
	}
	return true
}

// destination returns the route with one backend for the next request or connection.
func (r *Route) destination() *Route {
	if r.weighted == nil {
		return r
	}
	return r.weighted.next()
}

// configured returns the route of which r is a destination; r itself if it has only one backend.
func (r *Route) configured() *Route {
	if r.whole != nil {
		return r.whole
	}
	return r
}

// destination returns the route with one backend for the request. It prefers a backend to which
// the client has a private connection, because the user was authenticated on that connection.
// Then it prefers the backend of the client's cookie.
func (x *exchange) destination(r *Route) *Route {
	if r.weighted != nil && x.privates != nil {
		for _, d := range r.weighted.routes {
			if x.privates.has(d.backend) {
				return d
			}
		}
	}
	if r.weighted != nil && r.weighted.canary != nil {
		return x.canaryDestination(r.weighted)
	}
	if r.weighted != nil {
		if d := x.stickyDestination(r.weighted); d != nil {
			return d
		}
	}
	return r.destination()
}
