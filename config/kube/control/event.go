package control

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config/kube/api"
)

const (
	// renewEvent is how often an event that is still true is written again: API
	// servers delete events, usually after an hour.
	renewEvent = 20 * time.Minute
	// renewedFirst is the number of events that are always renewed that often: the
	// most urgent.
	renewedFirst = 2000
	// forgetEvent is how long weir remembers an event that is no longer true, so that
	// an error that comes and goes is not written more often.
	forgetEvent = 2 * time.Hour
	// eventPace is the time between two events.
	eventPace = 100 * time.Millisecond
	// lookAtEvents is how often weir looks for events that are due.
	lookAtEvents = time.Minute
	// retryEvents is the time after which a failed write is repeated.
	retryEvents = 5 * time.Second
)

// written is the last write of an event.
type written struct {
	at         time.Time
	count      int
	superseded bool // an event reported that the fault is corrected
}

// tell writes events until ctx ends.
func (c *Control) tell(ctx context.Context) {
	all, began := make(map[Event]*written), time.Now()
	for again := time.Duration(0); pause(ctx, again, c.events); {
		again = lookAtEvents
		w, _ := c.want()
		for i, e := range w.Events {
			if ctx.Err() != nil {
				return
			}
			wrote, err := c.write(ctx, e, all, renewal(i, len(w.Events)))
			if err != nil {
				again = retryEvents
				break
			}
			if !wrote {
				continue
			}
			pause(ctx, eventPace, nil)
			if len(c.events) > 0 { // the events have changed, and the first ones are the most urgent
				again = 0
				break
			}
		}
		if again == lookAtEvents { // the events of all faults are written
			if err := c.sync(ctx, all, began); err != nil {
				again = retryEvents
			}
		}
		forget := forgetEvent + renewal(len(w.Events), len(w.Events))
		maps.DeleteFunc(all, func(_ Event, w *written) bool { return time.Since(w.at) > forget })
	}
}

// renewal is how often the i-th of n events is written again. The others use at most
// half of the time: otherwise the first would be due again before the last were
// written at all.
func renewal(i, n int) time.Duration {
	if i < renewedFirst {
		return renewEvent
	}
	return max(renewEvent, 2*time.Duration(n)*eventPace)
}

// write writes an event if it is due.
func (c *Control) write(ctx context.Context, e Event, all map[Event]*written, renew time.Duration) (wrote bool, err error) {
	before := all[e]
	namespace := e.Object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	if before != nil && !before.superseded && time.Since(before.at) < renew || !c.mayTry("events", namespace) {
		return false, nil
	}
	now := &written{at: time.Now(), count: 1}
	verb := "create"
	if before != nil {
		now.count = before.count + 1
		verb, err = "patch", c.repeatEvent(ctx, namespace, e, now)
	}
	if before == nil || apierrors.IsNotFound(err) {
		verb, err = "create", c.createEvent(ctx, namespace, e)
	}
	if isLeaving(err) {
		c.outcome("write events", namespace, nil)
		all[e] = now
		return true, nil // it was a request as well, so the pace applies
	}
	c.opts.Metrics.events.WithLabelValues(result(err)).Inc()
	if err != nil {
		err = api.Failure(verb, "events", namespace, err)
	}
	c.outcome("write events", namespace, err)
	if c.deny("events", namespace, err) {
		return false, nil
	}
	if api.IsAway(err) {
		return false, err
	}
	all[e] = now // even after an error that lasts: the event would hold up the others
	return true, nil
}

// isLeaving reports whether an object could not be created because its namespace is
// being deleted, or is gone. The API server answers as if a right were missing, and
// no later success would end the trouble.
func isLeaving(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err)
}

// eventName is the same on all replicas, so there is only one event.
func eventName(e Event) string {
	name := strings.TrimRight(e.Object.Name[:min(len(e.Object.Name), 200)], "-.") // a label of a name must not end with these
	return name + "." + hashOf(e.Object.Kind+"\x00"+string(e.Object.UID)+"\x00"+e.Reason+"\x00"+e.Message)
}

// maxMessage is the maximum length of a message in an event.
const maxMessage = 1024

func (c *Control) createEvent(ctx context.Context, namespace string, e Event) error {
	limited, cancel := whole(ctx)
	defer cancel()
	now := metav1.Now()
	kind := corev1.EventTypeWarning
	if e.Reason == reasonSync {
		kind = corev1.EventTypeNormal
	}
	o := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: eventName(e), Namespace: namespace}, InvolvedObject: e.Object, Type: kind,
		Reason: e.Reason, Message: truncated(e.Message), Source: corev1.EventSource{Component: "weir"}, ReportingController: "weirproxy.github.io/weir",
		ReportingInstance: c.opts.Holder[:min(len(c.opts.Holder), 128)], FirstTimestamp: now, LastTimestamp: now, Count: 1}
	err := c.opts.Client.Core.Post().Namespace(namespace).Resource("events").Body(o).Do(limited).Error()
	if apierrors.IsAlreadyExists(err) && e.Reason == reasonSync {
		return c.patchEvent(ctx, namespace, e, map[string]any{"lastTimestamp": now}) // an earlier fault had the same event
	}
	if apierrors.IsAlreadyExists(err) {
		return nil // by the replica before this one, at most renewEvent ago
	}
	return err
}

func truncated(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len("…")], "") + "…"
}

func (c *Control) repeatEvent(ctx context.Context, namespace string, e Event, now *written) error {
	return c.patchEvent(ctx, namespace, e, map[string]any{"count": now.count, "lastTimestamp": metav1.NewTime(now.at)})
}

func (c *Control) patchEvent(ctx context.Context, namespace string, e Event, fields map[string]any) error {
	limited, cancel := whole(ctx)
	defer cancel()
	patch, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return c.opts.Client.Core.Patch(types.MergePatchType).Namespace(namespace).Resource("events").Name(eventName(e)).Body(patch).Do(limited).Error()
}
