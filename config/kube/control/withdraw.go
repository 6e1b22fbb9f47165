package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
)

const (
	// A replica that shuts down waits up to leavePatience for the Lease while another replica
	// that shuts down holds it. It tries again after each leavePause.
	leavePatience = 5 * time.Second
	leavePause    = 200 * time.Millisecond

	// atOnce is the number of parallel writes of a withdrawal, so that a slow API server
	// receives many of them in the time of a drain.
	atOnce = 32
	// withdrawPace is the time between the starts of two of these writes.
	withdrawPace = 2 * time.Millisecond
	// withdrawAgain is the time after which a failed write is repeated.
	withdrawAgain = 500 * time.Millisecond
	// mostFruitless limits the consecutive attempts at all remaining Ingresses of which
	// none succeeds although the API server answers: a right is missing, for example.
	mostFruitless = 5
	// lastAnswers is the time for the answers to the last writes after ctx has ended.
	lastAnswers = 500 * time.Millisecond
	// mostNamed is how many of the remaining Ingresses an error names.
	mostNamed = 5
)

// These errors are causes for the end of a withdrawal.
var (
	// errOthers: there is another replica by now, which publishes the addresses again.
	errOthers  = errors.New("another replica serves the Ingresses by now")
	errNoLease = fmt.Errorf("the API server did not extend the leader-election Lease for %v", renewFor)
)

// withdrawAsLast removes the addresses from all Ingresses except kept, if there is no other
// replica. It calls withdrawn after each of them.
func (c *Control) withdrawAsLast(ctx context.Context, kept []config.ObjectName, withdrawn func()) error {
	others, err := c.leases.Alive(ctx, c.replicas())
	if err != nil || len(others) > 0 {
		return err
	}
	// The leader is leaving as well. It either believed that other replicas stay, or
	// removes the addresses itself.
	for deadline := time.Now().Add(leavePatience); time.Now().Before(deadline); {
		asked := time.Now()
		mine, err := c.leases.Take(ctx, c.bid())
		if err != nil {
			return err
		}
		if mine {
			return c.withdraw(ctx, kept, asked.Add(renewFor), withdrawn)
		}
		if !pause(ctx, leavePause, nil) {
			break
		}
	}
	return nil
}

// withdraw removes the addresses as the leader. This replica may use the Lease until the
// time `until`, and extends it.
func (c *Control) withdraw(ctx context.Context, kept []config.ObjectName, until time.Time, withdrawn func()) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var holding background
	holding.start(ctx, func(ctx context.Context) { c.hold(ctx, until, end) })
	defer holding.stop()
	w := &withdrawal{c: c, kept: kept, withdrawn: withdrawn, done: make(map[types.UID]bool)}
	err := w.run(ctx)
	if errors.Is(err, errOthers) {
		return nil
	}
	return err
}

// hold extends the Lease until ctx ends. It ends the withdrawal if another replica has
// begun to serve, or if this replica loses the Lease: otherwise it could remove addresses
// after the other replica has written them.
func (c *Control) hold(ctx context.Context, until time.Time, end context.CancelCauseFunc) {
	lost := time.AfterFunc(time.Until(until), func() { end(errNoLease) })
	defer lost.Stop()
	for pause(ctx, tryEvery, nil) {
		asked := time.Now()
		limited, cancel := whole(ctx)
		mine, err := c.leases.Take(limited, c.bid())
		cancel()
		switch {
		case err != nil:
			continue
		case !mine:
			end(errOthers)
			return
		}
		lost.Reset(time.Until(asked.Add(renewFor)))
		if others, err := c.leases.Alive(ctx, c.replicas()); err == nil && len(others) > 0 {
			end(errOthers)
			return
		}
	}
}

// withdrawal removes the published addresses from the status of Ingresses.
type withdrawal struct {
	c         *Control
	kept      []config.ObjectName // they keep their addresses
	withdrawn func()              // called after each success

	mu   sync.Mutex
	done map[types.UID]bool // the Ingresses without addresses; the informer may not show it yet
	err  error              // of the last failed write
}

// run ends when no Ingress has addresses any more, when ctx ends, or when all further
// writes fail. The error names the Ingresses that are left.
func (w *withdrawal) run(ctx context.Context) error {
	for fruitless := 0; ; {
		left := w.left()
		switch {
		case len(left) == 0:
			return nil
		case ctx.Err() != nil:
			return w.incomplete(left, context.Cause(ctx))
		case fruitless == mostFruitless:
			return w.incomplete(left, w.err)
		}
		before := len(w.done)
		away := w.tryAll(ctx, left)
		switch n := len(w.done) - before; {
		case n == len(left):
			continue
		case n > 0 || away:
			fruitless = 0
		default:
			fruitless++
		}
		pause(ctx, withdrawAgain, nil)
	}
}

// left are the Ingresses that still have addresses from weir.
func (w *withdrawal) left() []*networkingv1.Ingress {
	return slices.DeleteFunc(w.c.toWithdraw(w.kept), func(i *networkingv1.Ingress) bool { return w.done[i.UID] })
}

// tryAll writes each status once. away is true if the API server did not answer, or
// failed, at least once.
func (w *withdrawal) tryAll(ctx context.Context, left []*networkingv1.Ingress) (away bool) {
	next := make(chan *networkingv1.Ingress)
	var running sync.WaitGroup
	var failed atomic.Bool
	for range min(atOnce, len(left)) {
		running.Go(func() {
			for i := range next {
				if api.IsAway(w.try(ctx, i)) {
					failed.Store(true)
					pause(ctx, withdrawAgain, nil) // the API server may be overloaded
				}
			}
		})
	}
	for _, i := range left {
		select {
		case next <- i:
		case <-ctx.Done():
		}
		if !pause(ctx, withdrawPace, nil) {
			break
		}
	}
	close(next)
	running.Wait()
	return failed.Load()
}

// try removes the addresses of one Ingress.
func (w *withdrawal) try(ctx context.Context, i *networkingv1.Ingress) error {
	if !w.c.mayTry("statuses", i.Namespace) {
		w.failed(fmt.Errorf("weir has no right to patch ingresses/status in namespace %s", i.Namespace))
		return nil
	}
	limited, cancel := whole(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if why := context.Cause(ctx); why != errOthers && why != errNoLease {
			time.AfterFunc(lastAnswers, cancel)
		} // otherwise another replica may write, so no write may be under way when the Lease is free
	})()
	err := w.c.patchStatus(limited, i, nil, "")
	if apierrors.IsNotFound(err) {
		err = nil
	} else {
		w.c.opts.Metrics.statuses.WithLabelValues(result(err)).Inc()
	}
	if err != nil {
		w.c.deny("statuses", i.Namespace, err)
		w.failed(api.Failure("patch", "ingresses/status "+i.Name, i.Namespace, err))
		return err
	}
	w.mu.Lock()
	w.done[i.UID] = true
	w.mu.Unlock()
	w.withdrawn()
	return nil
}

func (w *withdrawal) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// incomplete is the error for Ingresses that keep their addresses.
func (w *withdrawal) incomplete(left []*networkingv1.Ingress, why error) error {
	names := make([]string, 0, len(left))
	for _, i := range left {
		names = append(names, nameOf(i).String())
	}
	slices.Sort(names)
	more := ""
	if n := len(names) - mostNamed; n > 0 {
		names, more = names[:mostNamed], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%d of %d Ingresses still have the published addresses in their status (%s%s), because %w; the next weir removes these addresses, or writes its own",
		len(left), len(left)+len(w.done), strings.Join(names, ", "), more, why)
}

// toWithdraw are the Ingresses whose addresses weir wrote. Of those that were written
// under a former Lease, it returns only the ones that weir still serves: another
// installation may hold that Lease by now.
func (c *Control) toWithdraw(kept []config.ObjectName) (all []*networkingv1.Ingress) {
	w, _ := c.want()
	ours, stay := setOf(w.Ingresses), setOf(kept)
	before := make([]string, 0, len(c.opts.Formerly))
	for _, lease := range c.opts.Formerly {
		before = append(before, managerOf(lease))
	}
	for _, i := range c.opts.Ingresses() {
		name := nameOf(i)
		if (wroteLast(i, c.manager) || ours[name] && wroteLast(i, before...)) && !stay[name] && len(shown(i)) > 0 {
			all = append(all, i)
		}
	}
	return all
}
