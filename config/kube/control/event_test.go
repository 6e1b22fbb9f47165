package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config/kube/api/fake"
)

func event(name, message string) Event {
	return Event{Object: corev1.ObjectReference{APIVersion: "networking.k8s.io/v1", Kind: "Ingress", Namespace: "shop", Name: name, UID: "u"}, Reason: "InvalidHost", Message: message}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := newReplica(t, cluster, "r1")
	class := event("weir", "unclear")
	class.Object.Kind, class.Object.Namespace = "IngressClass", ""
	long := event("long", "a"+strings.Repeat("😀", 500))
	w := Wanted{Events: []Event{event("a", "one thing"), event("a", "another"), event(strings.Repeat("x", 199)+"."+strings.Repeat("x", 53), "y"), class, long}}
	r.Want(w)
	until(t, "events", func() bool { return len(cluster.Objects("events")) == 5 })
	for name, o := range cluster.Objects("events") {
		message := o["message"].(string)
		if o["type"] != "Warning" || o["reason"] != "InvalidHost" || len(message) > maxMessage || strings.Contains(message, "\uFFFD") || strings.Contains(name, "..") || len(strings.Split(name, "/")[1]) > 253 ||
			o["count"] != float64(1) || strings.HasPrefix(name, "default/") != (message == "unclear") {
			t.Errorf("%s is %v", name, o)
		}
	}

	// The event is not repeated with each change, nor by another replica.
	w.Events = append(w.Events, event("b", "new"))
	r.Want(w)
	until(t, "another event", func() bool { return len(cluster.Objects("events")) == 6 })
	r.leave()
	second := newReplica(t, cluster, "r2")
	w.Events = append(w.Events, event("c", "new"))
	second.Want(w)
	until(t, "one more", func() bool { return len(cluster.Objects("events")) == 7 })
	if n := cluster.Asked("patch", "events"); n != 0 {
		t.Errorf("%d events were written again", n)
	}
}

// A new event does not wait for events of lower priority.
func TestNewEventsGoFirst(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := newReplica(t, cluster, "r1")
	var w Wanted
	for i := range 600 { // the work of one minute
		w.Events = append(w.Events, event(fmt.Sprint("old-", i), "something"))
	}
	r.Want(w)
	until(t, "the first event", func() bool { return len(cluster.Objects("events")) > 0 })
	urgent := event("a", "anything")
	w.Events = append([]Event{urgent}, w.Events...)
	r.Want(w)
	until(t, "the new event", func() bool { return cluster.Objects("events")["shop/"+eventName(urgent)] != nil })
	if n := len(cluster.Objects("events")); n > 300 {
		t.Errorf("%d events were written before it", n)
	}
}

// An event that is still true is renewed before the API server deletes it. If the API
// server has deleted it, weir creates it again.
func TestEventsAreRenewed(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := newReplica(t, cluster, "r1")
	e, all := event("a", "b"), map[Event]*written{}
	write := func(want bool) {
		t.Helper()
		if wrote, err := r.write(t.Context(), e, all, renewEvent); wrote != want || err != nil {
			t.Errorf("an event was written: %v, %v, want %v", wrote, err, want)
		}
	}
	count := func(want float64) {
		t.Helper()
		if o := cluster.Objects("events")["shop/"+eventName(e)]; o == nil || o["count"] != want {
			t.Errorf("the event is %v, want count %v", o, want)
		}
	}
	write(true)
	write(false)
	all[e].at = time.Now().Add(-renewEvent)
	write(true)
	count(2)
	cluster.Change("shop", "events", eventName(e), nil)
	all[e].at = time.Now().Add(-renewEvent)
	write(true)
	count(1)
}

// Renewals leave time for events that were never written, however many events there are.
// The most urgent events are in the cluster all the time.
func TestRenewalsLeaveTime(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100, renewedFirst, 6000, 12_000, 50_000, 1_000_000} {
		var perSecond float64
		for i := range n {
			perSecond += 1 / renewal(i, n).Seconds()
		}
		if most := 1 / eventPace.Seconds(); perSecond > 0.7*most {
			t.Errorf("%d events are %.1f renewals a second, and %.1f events are written", n, perSecond, most)
		}
		if first, last := renewal(0, n), renewal(n-1, n); first != renewEvent || last < first || n <= renewedFirst && last != first {
			t.Errorf("of %d events the first is renewed after %v, the last after %v", n, first, last)
		}
	}
	cluster := fake.New(t)
	r := newReplica(t, cluster, "r1")
	e, all := event("a", "b"), map[Event]*written{}
	f := func(i, n int, want bool) {
		t.Helper()
		all[e] = &written{at: time.Now().Add(-renewEvent), count: 1}
		if wrote, err := r.write(t.Context(), e, all, renewal(i, n)); wrote != want || err != nil {
			t.Errorf("the %d. of %d events is written again: %v, %v, want %v", i, n, wrote, err, want)
		}
	}
	f(0, 12_000, true)
	f(renewedFirst, 12_000, false)
	f(renewedFirst, 6000, true)
}

// A namespace that is being deleted, or is gone, is no trouble and delays nothing. Events
// in other namespaces are still written afterwards.
func TestNamespaceGoesAway(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Refuse(func(r fake.Request) int {
		if r.Resource != "events" {
			return 0
		}
		return map[string]int{"shop": fake.Terminating, "past": 404, "closed": 403}[r.Namespace]
	})
	r := newReplica(t, cluster, "r1")
	in := func(namespace string) Event {
		e := event("c", "wrong")
		e.Object.Namespace = namespace
		return e
	}
	r.Want(Wanted{Events: []Event{in("shop"), in("past"), in("blog")}})
	until(t, "the event in another namespace", func() bool { return len(cluster.Objects("events")) == 1 })
	if all := r.troubles(); len(all) > 0 {
		t.Errorf("there is the trouble %q", all)
	}
	r.Want(Wanted{Events: []Event{in("shop"), in("past"), in("blog"), in("closed")}})
	until(t, "a right that is missing is told", func() bool { return len(r.troubles()) == 1 })
	if all := r.troubles(); !strings.Contains(all[0], "no right to create events in namespace closed") {
		t.Errorf("there is the trouble %q", all)
	}
	if wrote, err := r.write(t.Context(), in("shop"), map[Event]*written{}, renewEvent); !wrote || err != nil {
		t.Errorf("an event that was refused took no request: %v, %v", wrote, err) // the pace would not apply to many such events
	}
}
