package backend

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirproxy/weir/config"
)

// An endpoint works while it is ready and its last attempts did not all fail. A backend
// without a working endpoint is down. weir never ejects the last endpoint of a backend, so
// this file looks at failures, not at ejections.

// outagePause is the shortest time between two reported outages of a backend. So a backend
// that often goes up and down causes few lines.
const outagePause = time.Minute

// outage is the state of a backend's outages. Guarded by the backend's mutex.
type outage struct {
	down   bool
	told   bool      // the current outage was reported
	toldAt time.Time // when an outage was last reported
	since  time.Time
	untold int // outages since toldAt that ended without being reported

	endpoint string // the endpoint that failed last
	why      error  // the error of that endpoint
}

// failuresToFail returns the number of consecutive failures after which an endpoint does
// not work.
func (b *Backend) failuresToFail() int {
	if n := b.Settings().Ejection.Failures; n > 0 {
		return n
	}
	return config.DefaultEjectionFailures
}

// fails records that the last attempts of the endpoint all failed. The caller holds backend.mu.
func (e *Endpoint) fails(err error) {
	b := e.backend
	if e.removed.Load() || e.failing.Swap(true) {
		return
	}
	if int(e.failures.Load()) < b.failuresToFail() { // an attempt succeeded meanwhile, perhaps before failing was set
		e.failing.Store(false)
		return
	}
	e.failure = err
	e.showUp()
	o := b.outages()
	o.endpoint, o.why = e.address, err
	b.judge()
}

// works records that an attempt succeeded after many that failed.
func (e *Endpoint) works() {
	b := e.backend
	b.mu.Lock()
	defer b.unlock()
	if e.removed.Load() || int(e.failures.Load()) >= b.failuresToFail() {
		return
	}
	e.endFailing()
	b.judge()
}

// endFailing clears the failures, so that the endpoint is used again. The caller holds backend.mu.
func (e *Endpoint) endFailing() {
	e.failing.Store(false)
	e.failure = nil
	e.showUp()
}

// showUp sets e.up: requests may go to the endpoint, and it probably answers. The caller
// holds backend.mu.
func (e *Endpoint) showUp() {
	e.up.Store(e.usable() && !e.draining.Load() && !e.failing.Load())
	e.backend.counted.Store(nil)
}

// Working counts the working endpoints that may get requests now. It takes no lock.
func (b *Backend) Working() (n int) {
	for _, t := range b.view.Load().used() {
		for _, c := range t.members {
			if c.e.up.Load() || c.e.removed.Load() { // see predecessors
				n++
			}
		}
	}
	return n
}

// outages returns b.outage, and makes it if there is none. Most backends have no outages. The caller
// holds b.mu.
func (b *Backend) outages() *outage {
	if b.outage == nil {
		b.outage = new(outage)
	}
	return b.outage
}

// judge checks whether the backend is down, and reports a change. It does nothing while
// endpoints wait for their first check or look-up. The caller holds b.mu.
func (b *Backend) judge() {
	if b.removed || b.cfg.Closed {
		return
	}
	works, pending := false, false
	for _, e := range b.endpoints {
		works = works || e.ready && !e.failing.Load()
		pending = pending || !e.judged
	}
	for _, n := range b.names {
		pending = pending || !n.tried
	}
	if works && b.outage == nil {
		return
	}
	o := b.outages()
	if down := !works; down == o.down || down && pending {
		return
	}
	now := time.Now()
	switch o.down = !works; {
	case o.down:
		o.since = now
		b.tellOutage(now)
	case o.told:
		o.told = false
		b.notify(Event{Kind: BackendRecovered, Reason: "after " + now.Sub(o.since).Round(time.Millisecond).String()})
	default:
		o.untold++
	}
	if o.waits() {
		b.wake()
	}
}

// tellOutage reports the outage, unless another one was reported shortly before. Then tick
// tries again. The caller holds b.mu.
func (b *Backend) tellOutage(now time.Time) {
	o := b.outages()
	if !o.toldAt.IsZero() && now.Sub(o.toldAt) < outagePause {
		return
	}
	ev := Event{Kind: BackendDown}
	ev.Endpoint, ev.Err = b.whyDown()
	if o.untold > 0 {
		ev.Reason = fmt.Sprintf("%d more outages ended since the last one that was logged", o.untold)
	}
	o.told, o.toldAt, o.untold = true, now, 0
	b.notify(ev)
}

// whyDown returns the last error of a backend that is down, and its endpoint.
func (b *Backend) whyDown() (endpoint string, err error) {
	if len(b.endpoints) > 0 {
		o := b.outages()
		return o.endpoint, o.why
	}
	if err := b.lookupError(); err != nil {
		return "", err
	}
	switch {
	case len(b.refusals) > 0:
		return "", errors.New("weir refuses all addresses of the backend; an event of its Service names them")
	case b.cfg.Missing:
		return "", errors.New("routes of the namespace have no backend that weir can use; the status of these routes, or of a BackendTLSPolicy, has the reason")
	case b.cfg.Namespace != "":
		return "", errors.New("the Service has no ready endpoint; check that its Pods run and are ready")
	}
	return "", errors.New("the backend has no endpoint")
}

// waits returns true if there is an outage, or its end, that tick must report. o may be nil.
func (o *outage) waits() bool { return o != nil && (o.down || o.untold > 0) && !o.told }

// tickOutage reports an outage that had to wait. The caller holds b.mu.
func (b *Backend) tickOutage() {
	o := b.outage
	if !o.waits() {
		return
	}
	now := time.Now()
	switch {
	case o.down:
		b.tellOutage(now)
	case now.Sub(o.toldAt) >= outagePause:
		b.notify(Event{Kind: BackendRecovered, Reason: fmt.Sprintf("after %d more outages since the last one that was logged", o.untold)})
		o.untold = 0
	}
}
