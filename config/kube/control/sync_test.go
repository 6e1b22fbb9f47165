package control

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config/kube/api/fake"
)

// faulty returns an event on an existing Ingress.
func faulty(t *testing.T, cluster *fake.API, name, message string) Event {
	t.Helper()
	cluster.Change("shop", "ingresses", name, ingress())
	e := event(name, message)
	for _, i := range ingressesOf(t, cluster) {
		if i.Name == name {
			e.Object.UID = i.UID
		}
	}
	if e.Object.UID == "" {
		t.Fatalf("the Ingress %s has no UID", name)
	}
	return e
}

// syncOf returns the event that reports the correction of the faults of e's object.
func syncOf(cluster *fake.API, e Event) fake.Object {
	return cluster.Objects("events")["shop/"+eventName(Event{Object: e.Object, Reason: reasonSync, Message: messageSync})]
}

// An Ingress whose faults are corrected gets an event about it. This event stays the
// newest one until the Ingress has a fault again.
func TestSync(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	e, other := faulty(t, cluster, "a", "no such Service"), faulty(t, cluster, "b", "no such Service")
	passing := e
	passing.Reason, passing.Message, passing.Served = "UndoneAnnotation", "not done", true
	r := newReplica(t, cluster, "r1")
	want := func(events ...Event) { r.Want(Wanted{Ingresses: names("a", "b"), Events: events}) }
	want(e, passing, other)
	until(t, "events", func() bool { return len(cluster.Objects("events")) == 3 })
	want(passing, other)
	until(t, "the Ingress is told that its faults are corrected", func() bool { return syncOf(cluster, e) != nil })
	if o := syncOf(cluster, e); o["type"] != corev1.EventTypeNormal || o["reason"] != "Sync" || o["count"] != float64(1) || o["involvedObject"].(fake.Object)["uid"] != string(e.Object.UID) {
		t.Errorf("the event is %v", o)
	}
	// The fault returns. Its event is less than an hour old, but must become the newest
	// one.
	want(e, passing, other)
	until(t, "the fault is told again", func() bool { return cluster.Objects("events")["shop/"+eventName(e)]["count"] == float64(2) })
	if o := syncOf(cluster, other); o != nil {
		t.Errorf("an Ingress that has a fault has the event %v", o)
	}
	if n := len(cluster.Objects("events")); n != 4 {
		t.Errorf("there are %d events, want 4", n)
	}
}

// syncing is a replica that has seen faults at the times in the map, and is the leader since began.
type syncing struct {
	*replica
	all   map[Event]*written
	began time.Time
}

func (s *syncing) noted(events ...Event) { s.notedAt(time.Now(), events...) }

func (s *syncing) notedAt(at time.Time, events ...Event) {
	s.Control.mu.Lock()
	defer s.Control.mu.Unlock()
	s.wanted = &Wanted{Ingresses: names("a"), Events: events}
	s.noteFaults(events, at)
}

func (s *syncing) run(t *testing.T) {
	t.Helper()
	w, _ := s.want()
	for _, e := range w.Events {
		if _, err := s.write(t.Context(), e, s.all, renewEvent); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.sync(t.Context(), s.all, s.began); err != nil {
		t.Fatal(err)
	}
}

// An Ingress whose fault comes and goes gets at most one event every syncEvery.
func TestSyncIsBounded(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	e := faulty(t, cluster, "a", "no such Service")
	s := &syncing{replica: newReplica(t, cluster, "r1"), all: map[Event]*written{}, began: time.Now()}
	for range 3 {
		s.noted(e)
		s.run(t)
		s.noted()
		s.run(t)
	}
	warnings := cluster.Objects("events")["shop/"+eventName(e)]
	if o := syncOf(cluster, e); o["count"] != float64(1) || warnings["count"] != float64(2) {
		t.Errorf("after three faults the events are %v and %v", o, warnings)
	}
	// It gets the event after syncEvery.
	s.all[Event{Object: e.Object, Reason: reasonSync, Message: messageSync}].at = time.Now().Add(-syncEvery)
	s.run(t)
	if o := syncOf(cluster, e); o["count"] != float64(2) {
		t.Errorf("after %v the event is %v", syncEvery, o)
	}
	s.run(t)
	if o := syncOf(cluster, e); o["count"] != float64(2) || len(s.faults) > 0 {
		t.Errorf("without a fault the event is %v, and there are the faults %v", o, s.faults)
	}
}

// An Ingress gets the event only if it exists, has a class of weir, and had a fault that an event may name.
func TestSyncOfWhom(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	a, other := faulty(t, cluster, "a", "x"), faulty(t, cluster, "other", "x") // weir does not serve the other Ingress
	replaced := a
	replaced.Object.UID = types.UID("of one before")
	service := a
	service.Object.Kind = "Service"
	now := time.Now()
	f := func(what string, want bool, e Event, wrote bool, since, until, began time.Time) {
		t.Helper()
		s := &syncing{replica: newReplica(t, cluster, what), all: map[Event]*written{}, began: began}
		s.notedAt(since, e)
		if wrote {
			s.all[e] = &written{at: since, count: 1}
		}
		s.notedAt(until)
		s.run(t)
		if o := syncOf(cluster, e); (o != nil) != want {
			t.Errorf("%s: the event is %v", what, o)
		}
		if s.faults[e.Object] != nil {
			t.Errorf("%s: it is never forgotten", what)
		}
		cluster.Change("shop", "events", eventName(Event{Object: e.Object, Reason: reasonSync, Message: messageSync}), nil)
	}
	before, began, after := now.Add(-time.Hour), now.Add(-time.Minute), now.Add(-time.Second)
	f("told by this leader", true, a, true, after, now, began)
	f("too short to be told", false, a, false, after, now, began)
	f("told by the leader before this one", true, a, false, before, now, began)
	f("corrected under the leader before this one", false, a, false, before, began.Add(-2*takeover), began)
	f("corrected as the leader before this one ended", true, a, false, before, began.Add(-takeover/2), began)
	f("an Ingress of another class", false, other, true, after, now, began)
	f("an Ingress that was replaced", false, replaced, true, after, now, began)
	f("no Ingress", false, service, true, after, now, began)

	// This replica is not the leader. It keeps the corrected fault for the time when it is, up to a limit.
	s := &syncing{replica: newReplica(t, cluster, "r9")}
	s.notedAt(before.Add(-forgetEvent), a)
	s.notedAt(before.Add(-forgetEvent))
	s.noted(other)
	if len(s.faults) != 1 {
		t.Errorf("there are the faults %v", s.faults)
	}
}

// A new leader finds the event of an earlier fault, and makes it the newest.
func TestSyncOfLeaderBefore(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	e := faulty(t, cluster, "a", "x")
	for _, holder := range []string{"r1", "r2"} {
		s := &syncing{replica: newReplica(t, cluster, holder), all: map[Event]*written{}, began: time.Now()}
		s.noted(e)
		s.run(t)
		if o := syncOf(cluster, e); o != nil { // as if the event were old
			o["lastTimestamp"] = "2026-01-01T00:00:00Z"
			cluster.Change("shop", "events", eventName(Event{Object: e.Object, Reason: reasonSync, Message: messageSync}), o)
		}
		s.noted()
		s.run(t)
	}
	if o := syncOf(cluster, e); o == nil || o["lastTimestamp"] == "2026-01-01T00:00:00Z" {
		t.Errorf("the event is %v", o)
	}
}
