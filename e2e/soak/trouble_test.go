package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// These methods cause disturbances while the clients run. Each continues until the time is over, and restores
// the state that it found.

// badConfig is a key that weir does not know.
const badConfig = "nonsense"

// reloads changes the configuration again and again, sometimes to one that weir refuses.
func (h *house) reloads(ctx context.Context) {
	for ctx.Err() == nil {
		h.form++
		config, result := h.config(h.form), "success"
		if h.form%7 == 0 {
			config, result = config+badConfig+": 1\n", "failure"
		}
		h.trimAccessLog()
		h.report("a reload", h.front.reload(config, result))
		pause(ctx, 700*time.Millisecond)
		if h.form%5 == 0 { // a drain through the admin port, while clients run
			err := h.front.post("/drain")
			pause(ctx, 300*time.Millisecond)
			h.report("drain and undrain", errors.Join(err, h.front.post("/undrain")))
		}
	}
}

// trimAccessLog removes the access log if it is large. The next reload starts a new file.
func (h *house) trimAccessLog() {
	if info, err := os.Stat(h.front.file("access.log")); err == nil && info.Size() > 64<<20 {
		os.Remove(h.front.file("access.log"))
	}
}

// drains drains and restarts the two weirs behind the first one, in turns.
func (h *house) drains(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		b := h.behind[i%2]
		pause(ctx, 2*time.Second)
		h.report("a drain", b.stop())
		pause(ctx, 500*time.Millisecond)
		h.report("a start", b.start())
		// The next drain begins only when the first weir sees that both are healthy.
		h.report("a start", eventually("the front finds "+b.name, func() error {
			up, err := h.front.metric("weir_backend_endpoint_up", "backend", "chain")
			if err == nil && up < 2 {
				err = fmt.Errorf("%v are up", up)
			}
			return err
		}))
	}
}

// deaths shuts down endpoints gracefully and starts them again, one at a time. It also kills and restarts
// others.
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
		pause(ctx, 500*time.Millisecond) // time for open requests
		leaving.die()
		pause(ctx, time.Second)
		h.report("an endpoint", leaving.come())
	}
}

// watch reads the metrics, and fails the test if the clients did not open and park enough connections.
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
	// Most clients with pauses of seconds are parked at any time, except on a slow machine.
	if open == 0 || tunnels == 0 || parked < 30 {
		h.t.Error("that was no load")
	}
}

// report counts a disturbance, and fails the test if the disturbance failed.
func (h *house) report(what string, err error) {
	h.forms.Add(1)
	if err != nil {
		h.t.Errorf("%s: %v", what, err)
	}
}

// parkedMetric is the metric that counts parked connections.
const parkedMetric = "weir_connections_parked"
