package kube

import (
	"context"
	"time"

	"github.com/weirproxy/weir/config"
)

// This file notes which changes were seen, and decides when the Source reports them.

const (
	// debounce is the time without changes of routes after which Source reports
	// them: the objects of one application arrive together.
	debounce = 50 * time.Millisecond
	// maxDebounce limits that time while objects change all the time.
	maxDebounce = 150 * time.Millisecond
	// The same for endpoints and the node, which are cheap to convert and urgent:
	// requests still go to Pods that are gone.
	quickDebounce    = 10 * time.Millisecond
	maxQuickDebounce = 25 * time.Millisecond
	// share is how many times as long as they take conversions count. So they use at most a
	// fifth of a core in the long run.
	share = 5
	// burst is how far ahead of time conversions may be, so that a few changes in a row are
	// served at once: two seconds of conversions.
	burst = share * 2 * time.Second
)

// dirt is the changes that were seen, and are not converted yet.
type dirt struct {
	routes   span                       // objects that routes depend on
	objects  map[config.ObjectName]bool // of routes: the Services that changed themselves
	quick    span                       // node, or services
	node     bool
	services map[config.ObjectName]bool // by their endpoints
}

// span is the times of the first and the last change; zero: there was none.
type span struct{ first, last time.Time }

func (s *span) touch() {
	s.last = time.Now()
	if s.first.IsZero() {
		s.first = s.last
	}
}

// due is when the changes of the span are reported.
func (s span) due(debounce, maxDebounce time.Duration) time.Time {
	if at := s.last.Add(debounce); at.Before(s.first.Add(maxDebounce)) {
		return at
	}
	return s.first.Add(maxDebounce)
}

// loop waits until changes are due, and reports them with flush.
func loop(ctx context.Context, wake <-chan struct{}, due func() (at time.Time, any bool), flush func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		at, any := due()
		if any && !time.Now().Before(at) {
			flush()
			at, any = due()
		}
		if any {
			timer.Reset(time.Until(at))
		}
	}
}

// quickDue is when the next report of endpoints or the node is due, if they have changed.
func (s *Source) quickDue() (at time.Time, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirty.quick.due(quickDebounce, maxQuickDebounce), !s.dirty.quick.last.IsZero()
}

// routesDue is when the next conversion may begin, if routes have changed.
func (s *Source) routesDue() (at time.Time, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at = s.dirty.routes.due(debounce, maxDebounce)
	if allowed := s.paidUntil.Add(-burst); at.Before(allowed) {
		at = allowed
	}
	return at, !s.dirty.routes.last.IsZero()
}

// note records a change.
func (s *Source) note(what func(*dirt)) {
	s.mu.Lock()
	what(&s.dirty)
	s.mu.Unlock()
	for _, wake := range []chan struct{}{s.wake, s.wakeQuick} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// takeQuick returns the changes of endpoints and the node.
func (s *Source) takeQuick() (d dirt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.quick, d.node, d.services = s.dirty.quick, s.dirty.node, s.dirty.services
	s.dirty.quick, s.dirty.node, s.dirty.services = span{}, false, nil
	return d
}

// takeRoutes returns the changes of routes.
func (s *Source) takeRoutes() (d dirt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.routes, d.objects = s.dirty.routes, s.dirty.objects
	s.dirty.routes, s.dirty.objects = span{}, map[config.ObjectName]bool{}
	return d
}

// spent notes a conversion that began at this time and has ended now.
func (s *Source) spent(begun time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paidUntil.Before(begun) {
		s.paidUntil = begun
	}
	s.paidUntil = s.paidUntil.Add(share * time.Since(begun))
}
