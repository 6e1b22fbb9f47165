package api

import (
	"context"
	"errors"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Leases are the Lease objects of a namespace, used as locks: one process holds a
// Lease, and another may take it over when the holder has died.
//
// Clocks of machines are not compared: a Lease is stale if this process has seen no
// change of it for its duration. So a new process waits for that time once. The time
// starts again when the API server fails, because then no holder can extend its
// Lease. A holder must extend its Lease well before it expires. If two processes
// change a Lease at the same time, its resource version decides which one succeeds.
type Leases struct {
	client    rest.Interface
	namespace string

	mu   sync.Mutex
	seen map[string]sighting
}

// sighting is when this process saw the last change of a Lease, and its duration.
type sighting struct {
	version string
	since   time.Time
	lasts   time.Duration
}

// NewLeases returns the Leases of a namespace.
func NewLeases(c *Client, namespace string) *Leases {
	return &Leases{client: c.Coordination, namespace: namespace, seen: make(map[string]sighting)}
}

// Bid is what a process writes into a Lease that it takes.
type Bid struct {
	Name        string
	Holder      string        // no other process ever has the same
	Duration    time.Duration // whole seconds
	Labels      map[string]string
	Annotations map[string]string
}

const leases = "leases"

// Take takes a Lease that is free, stale or already held by the same holder, and
// extends it. False: another process holds it.
func (l *Leases) Take(ctx context.Context, c Bid) (bool, error) {
	return l.modify(ctx, c, func(held *coordinationv1.Lease) (bool, error) {
		if held == nil {
			l.forget(c.Name)
			return l.create(ctx, c)
		}
		if holder := holderOf(held); holder != c.Holder && holder != "" && !l.stale(held) {
			return false, nil
		}
		return l.put(ctx, held, c)
	})
}

// Extend makes a Lease last for its duration from now. False: this holder does not
// hold it.
func (l *Leases) Extend(ctx context.Context, c Bid) (bool, error) {
	return l.modify(ctx, c, func(held *coordinationv1.Lease) (bool, error) {
		if held == nil || holderOf(held) != c.Holder {
			return false, nil
		}
		return l.put(ctx, held, c)
	})
}

// Drop gives a Lease up by deleting the object. False: this holder does not hold it.
func (l *Leases) Drop(ctx context.Context, c Bid) (bool, error) {
	return l.modify(ctx, c, func(held *coordinationv1.Lease) (bool, error) {
		if held == nil || holderOf(held) != c.Holder {
			return false, nil
		}
		return l.remove(ctx, held)
	})
}

// errMoved is returned if a Lease has changed since it was read.
var errMoved = errors.New("another process changed the Lease")

// modify calls f with the Lease, or nil if there is none. If the Lease changes
// meanwhile, modify begins again: the change may be a request of this holder that
// was given up and arrived late.
func (l *Leases) modify(ctx context.Context, c Bid, f func(*coordinationv1.Lease) (bool, error)) (ok bool, err error) {
	for range 3 {
		held, err := l.get(ctx, c.Name)
		switch {
		case apierrors.IsNotFound(err):
			held = nil
		case err != nil:
			return false, Failure("get", leases+" "+c.Name, l.namespace, err)
		}
		if ok, err = f(held); !errors.Is(err, errMoved) {
			return ok, err
		}
	}
	return false, nil // another process changes it
}

// Alive lists the Leases with a label that are not stale. It deletes those that have
// been stale for as long as their duration.
func (l *Leases) Alive(ctx context.Context, selector string) ([]coordinationv1.Lease, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var list coordinationv1.LeaseList
	err := l.told(l.client.Get().Namespace(l.namespace).Resource(leases).
		VersionedParams(&metav1.ListOptions{LabelSelector: selector}, metav1.ParameterCodec).Do(ctx).Into(&list))
	if err != nil {
		return nil, Failure("list", leases, l.namespace, err)
	}
	alive := list.Items[:0]
	for i := range list.Items {
		one := &list.Items[i]
		switch age := l.age(one); {
		case age <= durationOf(one)/2, age <= durationOf(one) && !longGone(one):
			alive = append(alive, *one)
		case age > 2*durationOf(one):
			l.remove(ctx, one) // on an error, the next call tries again
		}
	}
	return alive, nil
}

// longGone reports whether a Lease that this process has just seen for the first time
// was not extended for several durations; clocks are exact enough for that. The API
// server may have been away as long, so the check waits for holders to extend theirs.
func longGone(held *coordinationv1.Lease) bool {
	renewed := held.Spec.RenewTime
	return renewed != nil && time.Since(renewed.Time) > 3*durationOf(held)+time.Minute
}

func (l *Leases) get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	held := new(coordinationv1.Lease)
	return held, l.told(l.client.Get().Namespace(l.namespace).Resource(leases).Name(name).Do(ctx).Into(held))
}

func (l *Leases) create(ctx context.Context, c Bid) (bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	wanted := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Namespace: l.namespace}}
	c.fill(wanted)
	err := l.told(l.client.Post().Namespace(l.namespace).Resource(leases).Body(wanted).Do(ctx).Error())
	if apierrors.IsAlreadyExists(err) {
		return false, errMoved
	}
	if err != nil {
		return false, Failure("create", leases+" "+c.Name, l.namespace, err)
	}
	return true, nil
}

// put writes the bid into a Lease that has not changed since it was read.
func (l *Leases) put(ctx context.Context, found *coordinationv1.Lease, c Bid) (bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	c.fill(found)
	err := l.told(l.client.Put().Namespace(l.namespace).Resource(leases).Name(c.Name).Body(found).Do(ctx).Error())
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, errMoved
	case err != nil:
		return false, Failure("update", leases+" "+c.Name, l.namespace, err)
	}
	l.forget(c.Name)
	return true, nil
}

// remove deletes a Lease that has not changed since it was read.
func (l *Leases) remove(ctx context.Context, found *coordinationv1.Lease) (bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	l.forget(found.Name)
	err := l.told(l.client.Delete().Namespace(l.namespace).Resource(leases).Name(found.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion}}).Do(ctx).Error())
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, errMoved
	case err != nil:
		return false, Failure("delete", leases+" "+found.Name, l.namespace, err)
	}
	return true, nil
}

// fill writes a bid into a Lease.
func (c Bid) fill(held *coordinationv1.Lease) {
	now := metav1.NowMicro()
	if holderOf(held) != c.Holder {
		if held.Spec.AcquireTime != nil {
			transitions := int32(1)
			if held.Spec.LeaseTransitions != nil {
				transitions += *held.Spec.LeaseTransitions
			}
			held.Spec.LeaseTransitions = &transitions
		}
		held.Spec.AcquireTime = &now
	}
	seconds := int32(max(1, (c.Duration+time.Second-1)/time.Second))
	held.Spec.HolderIdentity, held.Spec.LeaseDurationSeconds, held.Spec.RenewTime = &c.Holder, &seconds, &now
	held.Labels, held.Annotations = c.Labels, c.Annotations
}

func holderOf(held *coordinationv1.Lease) string {
	if held.Spec.HolderIdentity == nil {
		return ""
	}
	return *held.Spec.HolderIdentity
}

func durationOf(held *coordinationv1.Lease) time.Duration {
	if held.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*held.Spec.LeaseDurationSeconds) * time.Second
}

func (l *Leases) stale(held *coordinationv1.Lease) bool { return l.age(held) > durationOf(held) }

// age is the time since this process saw the last change of a Lease.
func (l *Leases) age(held *coordinationv1.Lease) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.seen[held.Name]
	if !known || s.version != held.ResourceVersion {
		s = sighting{held.ResourceVersion, time.Now(), durationOf(held)}
		l.seen[held.Name] = s
	}
	return time.Since(s.since)
}

// told returns the error of a request. If the API server did not answer, or failed,
// the age of all Leases starts again: their holders could not extend them either.
func (l *Leases) told(err error) error {
	if IsAway(err) {
		l.mu.Lock()
		defer l.mu.Unlock()
		clear(l.seen)
	}
	return err
}

// FreeIn is the time until a Lease of another holder is stale if the holder does not
// extend it; 0 if no other holder was seen.
func (l *Leases) FreeIn(name string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.seen[name]
	if !known {
		return 0
	}
	return max(0, time.Until(s.since.Add(s.lasts)))
}

func (l *Leases) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, name)
}
