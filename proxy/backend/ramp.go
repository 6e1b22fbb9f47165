package backend

import "time"

const (
	whole = 100 // percent
	// leastShare is the percentage of its share with which an endpoint begins. With 0 it would
	// not warm up.
	leastShare = 10
)

// ramp computes the slow start at the time now: the part of its share that each endpoint
// does not get yet. An endpoint that is new, or returns, begins with leastShare if others
// already serve. It has nothing in flight; without slow start it would get every request
// until it has as many in flight as the others, with cold caches and no connections. If no
// other endpoint served before, it gets its full share at once. The caller holds b.mu.
func (b *Backend) ramp(now time.Time) {
	b.ramping = false
	others := false
	for _, e := range b.endpoints {
		others = others || e.serving && e.usable() && !e.cfg.Terminating
	}
	for _, e := range b.endpoints {
		serves := e.usable() && !e.cfg.Terminating
		switch {
		case !serves || !others && !e.serving:
			e.since = nil
		case !e.serving:
			e.since = new(now)
		}
		e.serving = serves
		e.withheld = 0
		if e.since == nil {
			continue
		}
		if age := now.Sub(*e.since); age < b.cfg.RampUp {
			e.withheld = int8(whole - max(leastShare, int(whole*age/b.cfg.RampUp)))
			b.ramping = true
			b.wake()
		}
	}
}
