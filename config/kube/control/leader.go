package control

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirproxy/weir/config/kube/api"
)

const (
	// leaseFor is for how long a dead replica keeps the others from writing.
	leaseFor = 15 * time.Second
	// renewFor is for how long one that hears nothing of the API server takes the Lease for its own.
	renewFor = 10 * time.Second
	// tryEvery is how often who has it renews it, and who has not looks whether it is free.
	tryEvery = 3 * time.Second
	// soon is when one that is stale is taken.
	soon = 50 * time.Millisecond
)

func (c *Control) claim() api.Claim {
	return api.Claim{Name: c.opts.Lease.Name, Holder: c.opts.Holder, Duration: leaseFor}
}

// elect takes the Lease when it is free and writes while it is held. It keeps
// the Lease when ctx ends.
func (c *Control) elect(ctx context.Context) {
	t := &term{c: c}
	defer t.end()
	for ctx.Err() == nil {
		asked := time.Now()
		limited, cancel := whole(ctx)
		got, err := c.leases.Take(limited, c.claim())
		cancel()
		if ctx.Err() != nil {
			return
		}
		c.outcome("lead", "", err)
		switch {
		case err != nil:
			c.opts.Metrics.leaseFailures.Inc() // and the term ends when it is over
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

// writeFor bounds what is written to the cluster. It ends before another may
// begin to write, who takes this one for dead.
const writeFor = (leaseFor - renewFor) * 4 / 5

// whole is a context for a request that is not broken off when ctx ends: nobody
// would know what became of it, and it could arrive after the one that takes it back.
func whole(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeFor)
}

// term is the time in which this replica writes.
type term struct {
	c *Control

	mu    sync.Mutex
	timer *time.Timer // nil: this replica does not write
}

// extend begins a term, or has it end later.
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

// end ends the term, if there is one, and waits for what is being written.
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

// lead is what the one replica does that has the Lease.
func (c *Control) lead(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.tell(ctx) })
	running.Go(func() { c.publish(ctx) })
}
