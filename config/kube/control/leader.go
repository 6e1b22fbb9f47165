package control

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirproxy/weir/config/kube/api"
)

const (
	// leaseFor is how long the Lease of a dead leader prevents other replicas from writing.
	leaseFor = 15 * time.Second
	// renewFor is how long a leader without an answer of the API server may still write.
	renewFor = 10 * time.Second
	// tryEvery is how often the leader renews the Lease, and others look whether it is free.
	tryEvery = 3 * time.Second
	// soon is the time after which a replica takes a stale Lease.
	soon = 50 * time.Millisecond
)

func (c *Control) bid() api.Bid {
	return api.Bid{Name: c.opts.Lease.Name, Holder: c.opts.Holder, Duration: leaseFor}
}

// elect takes the Lease when it is free, and writes while it holds the Lease. When
// ctx ends, it keeps the Lease.
func (c *Control) elect(ctx context.Context) {
	t := &term{c: c}
	defer t.end()
	for ctx.Err() == nil {
		asked := time.Now()
		limited, cancel := whole(ctx)
		got, err := c.leases.Take(limited, c.bid())
		cancel()
		if ctx.Err() != nil {
			return
		}
		c.outcome("acquire the leader-election Lease", "", err)
		switch {
		case err != nil:
			c.opts.Metrics.leaseFailures.Inc() // the term goes on until it expires
		case got:
			t.extend(asked.Add(renewFor))
		default:
			t.end()
		}
		again := tryEvery/2 + rand.N(tryEvery)
		if free := c.leases.FreeIn(c.opts.Lease.Name); free > 0 {
			again = min(again, free+soon)
		}
		pause(ctx, again, nil)
	}
}

// writeFor limits each write to the cluster. It ends before another replica, which
// considers this one dead, may begin to write.
const writeFor = (leaseFor - renewFor) * 4 / 5

// whole is a context for a request that goes on when ctx ends. The outcome of a
// canceled request is unknown, and it could arrive after the request that reverts it.
func whole(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeFor)
}

// term is the time in which this replica is the leader.
type term struct {
	c *Control

	mu    sync.Mutex
	timer *time.Timer // nil: this replica does not write
}

// extend begins a term, or extends it.
func (t *term) extend(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Reset(time.Until(until))
		return
	}
	t.timer = time.AfterFunc(time.Until(until), t.end)
	t.c.opts.Metrics.leader.Set(1)
	if t.c.opts.Leading != nil {
		t.c.opts.Leading(true)
	}
	t.c.leading.start(context.Background(), t.c.lead)
}

// end ends the term, if there is one, and waits for the current write.
func (t *term) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		return
	}
	t.timer.Stop()
	t.timer = nil
	t.c.leading.stop()
	t.c.opts.Metrics.leader.Set(0)
	if t.c.opts.Leading != nil {
		t.c.opts.Leading(false)
	}
}

// lead is the work of the leader.
func (c *Control) lead(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.tell(ctx) })
	running.Go(func() { c.publish(ctx) })
	running.Go(func() { c.writeGateways(ctx) })
	running.Go(func() { c.writeServices(ctx) })
}
