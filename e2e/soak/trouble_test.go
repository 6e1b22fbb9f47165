package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// What goes on beside the clients. Each goes on until the time is over, and
// leaves everything as it was.

// badConfig is a key that no configuration has.
const badConfig = "nonsense"

// reloads changes the configuration, now and then to one that is refused.
func (h *house) reloads(ctx context.Context) {
	for ctx.Err() == nil {
		h.form++
		config, result := h.config(h.form), "success"
		if h.form%7 == 0 {
			config, result = config+badConfig+": 1\n", "failure"
		}
		if info, err := os.Stat(h.front.file("access.log")); err == nil && info.Size() > 64<<20 {
			os.Remove(h.front.file("access.log")) // a new one is begun
		}
		h.report("a reload", h.front.reload(config, result))
		pause(ctx, 700*time.Millisecond)
		if h.form%5 == 0 { // by hand, while all goes on
			err := h.front.post("/drain")
			pause(ctx, 300*time.Millisecond)
			h.report("drain and undrain", errors.Join(err, h.front.post("/undrain")))
		}
	}
}

// drains ends and starts the two weirs behind, one after the other.
func (h *house) drains(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		b := h.behind[i%2]
		pause(ctx, 2*time.Second)
		h.report("a drain", b.stop())
		pause(ctx, 500*time.Millisecond)
		h.report("a start", b.start())
		// The other one is not drained before the front has found this one well.
		h.report("a start", eventually("the front finds "+b.name, func() error {
			up, err := h.front.metric("weir_backend_endpoint_up", "backend", "chain")
			if err == nil && up < 2 {
				err = fmt.Errorf("%v are up", up)
			}
			return err
		}))
	}
}

// deaths has endpoints leave in good order and come back, one at a time, and kills others.
func (h *house) deaths(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		leaving, doomed, lost := h.apps[1+i%2], h.doomed[i%2], h.lost[i%2]
		pause(ctx, time.Second)
		leaving.sick.Store(true)
		doomed.die()
		lost.die()
		pause(ctx, time.Second)
		h.report("an endpoint", errors.Join(doomed.come(), lost.come(), eventually("the front does without an endpoint that is sick", func() error {
			up, err := h.front.metric("weir_backend_endpoint_up", "endpoint", leaving.address)
			if err == nil && up > 0 {
				err = errNotYet
			}
			return err
		})))
		pause(ctx, 500*time.Millisecond) // requests that it has
		leaving.die()
		pause(ctx, time.Second)
		h.report("an endpoint", leaving.come())
	}
}

// watch looks at what weir says of itself, and remembers what has to have happened.
func (h *house) watch(ctx context.Context) {
	var parked, tunnels, open float64
	for ctx.Err() == nil {
		pause(ctx, 500*time.Millisecond)
		metrics, err := h.front.metrics()
		if err != nil {
			h.report("the metrics", err)
			continue
		}
		parked = max(parked, sum(metrics, parkedMetric))
		tunnels = max(tunnels, sum(metrics, "weir_tunnels_open"))
		open = max(open, sum(metrics, "weir_connections_open"))
	}
	h.t.Logf("%d times something happened; at most %v connections open, %v parked, %v tunnels", h.forms.Load(), open, parked, tunnels)
	// Of the clients that are quiet for seconds most are parked at any moment, but while the machine is slow.
	if open == 0 || tunnels == 0 || parked < 30 {
		h.t.Error("that was no load")
	}
}

// report counts what happened, and fails the test if it went wrong.
func (h *house) report(what string, err error) {
	h.forms.Add(1)
	if err != nil {
		h.t.Errorf("%s: %v", what, err)
	}
}

// parkedMetric counts what is parked.
const parkedMetric = "weir_connections_parked"
