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
	// servers forget them, after an hour mostly.
	renewEvent = 20 * time.Minute
	// renewedFirst are so many of the events that are renewed that often, however
	// many there are: the most urgent.
	renewedFirst = 2000
	// forgetEvent is for how long one that is no longer true is remembered, so
	// that what comes and goes all the time is written no more often.
	forgetEvent = 2 * time.Hour
	// eventPace is the time between two.
	eventPace = 100 * time.Millisecond
	// lookAtEvents is how often it is looked which are due.
	lookAtEvents = time.Minute
	// retryEvents is when one that could not be written is tried again.
	retryEvents = 10 * time.Second
)

// written is what became of an event.
type written struct {
	at    time.Time
	count int
}

// tell writes events until ctx ends.
func (c *Control) tell(ctx context.Context) {
	all := make(map[Event]*written)
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
			if len(c.events) > 0 { // there are others to tell by now, and the first are the most urgent
				again = 0
				break
			}
		}
		forget := forgetEvent + renewal(len(w.Events), len(w.Events))
		maps.DeleteFunc(all, func(_ Event, w *written) bool { return time.Since(w.at) > forget })
	}
}

// renewal is how often the i-th of n events is written again. The first leave
// time for the others, and these, where they are many, take half of it: else the
// first would be due again before the last were written at all.
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
	if before != nil && time.Since(before.at) < renew || !c.mayTry("events", namespace) {
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
		c.outcome("tell", namespace, nil)
		all[e] = now
		return true, nil // it took a request
	}
	c.opts.Metrics.events.WithLabelValues(result(err)).Inc()
	if err != nil {
		err = api.Failure(verb, "events", namespace, err)
	}
	c.outcome("tell", namespace, err)
	if c.deny("events", namespace, err) {
		return false, nil
	}
	if api.IsAway(err) {
		return false, err
	}
	all[e] = now // even if it is wrong (a namespace that is going away): it would hold up the others
	return true, nil
}

// isLeaving says whether what could not be made is of a namespace that goes away,
// or is gone: that is refused as if a right were missing, nobody would look for it
// there, and no success would ever say that the trouble is over.
func isLeaving(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err)
}

// eventName is the same whichever replica writes it, so there is one.
func eventName(e Event) string {
	name := strings.TrimRight(e.Object.Name[:min(len(e.Object.Name), 200)], "-.") // as labels of names end
	return name + "." + hashOf(e.Object.Kind+"\x00"+string(e.Object.UID)+"\x00"+e.Reason+"\x00"+e.Message)
}

// maxMessage is what an event takes.
const maxMessage = 1024

func (c *Control) createEvent(ctx context.Context, namespace string, e Event) error {
	limited, cancel := whole(ctx)
	defer cancel()
	now := metav1.Now()
	o := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: eventName(e), Namespace: namespace}, InvolvedObject: e.Object, Type: corev1.EventTypeWarning,
		Reason: e.Reason, Message: truncated(e.Message), Source: corev1.EventSource{Component: "weir"}, ReportingController: "weirproxy.github.io/weir",
		ReportingInstance: c.opts.Holder[:min(len(c.opts.Holder), 128)], FirstTimestamp: now, LastTimestamp: now, Count: 1}
	err := c.opts.Client.Core.Post().Namespace(namespace).Resource("events").Body(o).Do(limited).Error()
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
	limited, cancel := whole(ctx)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"count": now.count, "lastTimestamp": metav1.NewTime(now.at)})
	if err != nil {
		return err
	}
	return c.opts.Client.Core.Patch(types.MergePatchType).Namespace(namespace).Resource("events").Name(eventName(e)).Body(patch).Do(limited).Error()
}
