package backend

import "time"

const (
	whole = 100 // percent
	// leastShare is the part of its share that an endpoint begins with. With
	// nothing at all it would not warm up.
	leastShare = 10
)

// ramp says how much of their share endpoints do without at now. An endpoint
// that comes to others, because it is new or comes back, begins with a little
// of it: whoever has nothing in flight would otherwise get every request until
// it has as many as the others, with cold caches and no connections. One that
// no other one served before gets all. b.mu is held.
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
			e.since = time.Time{}
		case !e.serving:
			e.since = now
		}
		e.serving = serves
		e.withheld = 0
		if age := now.Sub(e.since); !e.since.IsZero() && age < b.cfg.RampUp {
			e.withheld = whole - max(leastShare, int(whole*age/b.cfg.RampUp))
			b.ramping = true
		}
	}
}
