package control

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
)

// Events stay in the cluster for an hour after their fault is corrected, and look
// current. So weir writes an event of type Normal, as other controllers do, on an
// Ingress that has no fault any more.

const (
	reasonSync  = "Sync"
	messageSync = "weir serves this Ingress, and the errors in older events are corrected."
	// syncEvery is the time between two such events on one Ingress.
	syncEvery = 5 * time.Minute
	// takeover is the time before a term in which the former leader may not have written its last events.
	takeover = time.Minute
)

// fault is the time in which an Ingress had faults.
type fault struct {
	since time.Time
	until time.Time // zero: it still has faults
}

// noteFaults records which Ingresses have faults, and which had faults recently.
// Every replica does this, so that the next leader knows. c.mu is held.
func (c *Control) noteFaults(events []Event, now time.Time) {
	open := make(map[corev1.ObjectReference]bool)
	for _, e := range events {
		if e.Object.Kind != "Ingress" || e.Served {
			continue
		}
		open[e.Object] = true
		if f := c.faults[e.Object]; f != nil {
			f.until = time.Time{}
		} else {
			c.faults[e.Object] = &fault{since: now}
		}
	}
	for o, f := range c.faults {
		switch {
		case open[o]:
		case f.until.IsZero():
			f.until = now
		case now.Sub(f.until) > forgetEvent:
			delete(c.faults, o)
		}
	}
}

// corrected are the Ingresses that had faults and have none any more.
func (c *Control) corrected() (all []corev1.ObjectReference) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o, f := range c.faults {
		if !f.until.IsZero() {
			all = append(all, o)
		}
	}
	return all
}

// sync writes events on corrected Ingresses that have events with their former
// errors. all has the events that this leader has written since began.
func (c *Control) sync(ctx context.Context, all map[Event]*written, began time.Time) error {
	corrected := c.corrected()
	if len(corrected) == 0 {
		return nil
	}
	served, told := c.served(), make(map[corev1.ObjectReference]bool)
	for e, w := range all {
		if e.Reason != reasonSync && !w.superseded {
			told[e.Object] = true
		}
	}
	for _, o := range corrected {
		name := config.ObjectName{Namespace: o.Namespace, Name: o.Name}
		if o.UID != served[name] || !c.wasTold(o, told[o], began) {
			c.forgetFault(o)
			continue
		}
		wrote, err := c.write(ctx, Event{Object: o, Reason: reasonSync, Message: messageSync}, all, syncEvery)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if !wrote { // too early
			continue
		}
		c.forgetFault(o)
		for e, w := range all { // if the fault returns, its event is written at once
			w.superseded = w.superseded || e.Object == o && e.Reason != reasonSync
		}
		if !pause(ctx, eventPace, nil) || len(c.events) > 0 {
			break
		}
	}
	return nil
}

// served are the UIDs of the existing Ingresses that weir serves.
func (c *Control) served() map[config.ObjectName]types.UID {
	w, _ := c.want()
	ours := make(map[config.ObjectName]bool, len(w.Ingresses))
	for _, name := range w.Ingresses {
		ours[name] = true
	}
	uids := make(map[config.ObjectName]types.UID, len(ours))
	for _, i := range c.opts.Ingresses() {
		if name := (config.ObjectName{Namespace: i.Namespace, Name: i.Name}); ours[name] {
			uids[name] = i.UID
		}
	}
	return uids
}

// wasTold reports whether an event may report a corrected fault: an event of this
// leader, or of the former leader, which had no time to write the event Sync.
func (c *Control) wasTold(o corev1.ObjectReference, here bool, began time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.faults[o]
	return f != nil && (here || f.since.Before(began) && f.until.After(began.Add(-takeover)))
}

// forgetFault ends the time in which an Ingress had faults, unless it has some by now.
func (c *Control) forgetFault(o corev1.ObjectReference) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.faults[o]; f != nil && !f.until.IsZero() {
		delete(c.faults, o)
	}
}
