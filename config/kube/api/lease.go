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

// Leases are the Lease objects of a namespace, as locks that one of many
// processes holds, and that another may take over when their holder has died.
//
// Clocks of machines are not compared: a Lease is stale when it was seen here
// not to change for as long as it says. So who comes new waits for that long
// once, or since the API server last failed: nobody could extend anything then.
// What one holds it has to extend well before; what two do at the same time, one
// wins, by the object's resource version.
type Leases struct {
	client    rest.Interface
	namespace string

	mu   sync.Mutex
	seen map[string]sighting
}

// sighting is since when a Lease has been as it is, and for how long it lasts.
type sighting struct {
	version string
	since   time.Time
	lasts   time.Duration
}

// NewLeases are the Leases of a namespace.
func NewLeases(c *Client, namespace string) *Leases {
	return &Leases{client: c.Coordination, namespace: namespace, seen: make(map[string]sighting)}
}

// Claim is what one who wants a Lease writes into it.
type Claim struct {
	Name        string
	Holder      string        // of no other process, ever
	Duration    time.Duration // whole seconds
	Labels      map[string]string
	Annotations map[string]string
}

const leases = "leases"

// Take takes a Lease that is free, stale or held by the same holder already,
// and extends it. False: somebody else has it.
func (l *Leases) Take(ctx context.Context, c Claim) (bool, error) {
	return l.settle(ctx, c, func(held *coordinationv1.Lease) (bool, error) {
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

// Extend makes a Lease last for its duration from now. False: somebody else has
// it, or nobody.
func (l *Leases) Extend(ctx context.Context, c Claim) (bool, error) {
	return l.settle(ctx, c, func(held *coordinationv1.Lease) (bool, error) {
		if held == nil || holderOf(held) != c.Holder {
			return false, nil
		}
		return l.put(ctx, held, c)
	})
}

// Drop gives a Lease back: it deletes the object. False: somebody else has it, or nobody.
func (l *Leases) Drop(ctx context.Context, c Claim) (bool, error) {
	return l.settle(ctx, c, func(held *coordinationv1.Lease) (bool, error) {
		if held == nil || holderOf(held) != c.Holder {
			return false, nil
		}
		return l.remove(ctx, held)
	})
}

// errMoved says that a Lease is no longer as it was found.
var errMoved = errors.New("the Lease has changed meanwhile")

// settle calls f with what there is, nil for nothing. What changes in between is
// looked at anew: it may have been a request of this very holder, that was given
// up and arrives late.
func (l *Leases) settle(ctx context.Context, c Claim, f func(*coordinationv1.Lease) (bool, error)) (ok bool, err error) {
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
	return false, nil // somebody else is at it
}

// Alive lists the Leases that a label selector finds and that are not stale.
// Those that are, and have been for as long again, are deleted.
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
			l.remove(ctx, one) // or the next time
		}
	}
	return alive, nil
}

// longGone is what clocks are good enough for: a Lease that nobody has extended
// for some times its duration, by who was not there to see it. The API server may
// have been away as long, so there is time for the living to extend theirs.
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

func (l *Leases) create(ctx context.Context, c Claim) (bool, error) {
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

// put writes the claim over what was found, if that is still what is there.
func (l *Leases) put(ctx context.Context, found *coordinationv1.Lease, c Claim) (bool, error) {
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

// remove deletes a Lease if it is still as it was found.
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

// fill writes a claim into a Lease.
func (c Claim) fill(held *coordinationv1.Lease) {
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

// age is for how long a Lease was seen not to change.
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

// told passes on what a request ended with. One that the API server did not
// answer, or failed at, makes all Leases as old as if they were seen anew: who
// lives could not extend them either.
func (l *Leases) told(err error) error {
	if IsAway(err) {
		l.mu.Lock()
		defer l.mu.Unlock()
		clear(l.seen)
	}
	return err
}

// FreeIn is how long it takes until a Lease that another was seen to hold is
// stale, if nobody extends it; 0 where nobody was seen.
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
