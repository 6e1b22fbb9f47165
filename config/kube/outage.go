package kube

import (
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// outage is what weir cannot watch at the moment.
type outage struct {
	answered func() // called when all works again; nil: nobody

	mu       sync.Mutex
	lost     map[*lost]bool
	reported bool // Options.Trouble was called since all worked
}

// lost is one thing that weir reads: the objects of an informer, for example. While its watch begins again, or after an
// error, it is part of the outage.
type lost struct{ outage *outage }

// begin records that it does not work.
func (l *lost) begin() {
	l.outage.mu.Lock()
	defer l.outage.mu.Unlock()
	if l.outage.lost == nil {
		l.outage.lost = map[*lost]bool{}
	}
	l.outage.lost[l] = true
}

// over records that it works, or is not needed any more.
func (l *lost) over() {
	o := l.outage
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lost, l)
	if o.reported && len(o.lost) == 0 {
		o.reported = false
		if o.answered != nil {
			o.answered()
		}
	}
}

// trouble reports an error. A watch that expired and begins again is not an error.
func (s *Source) trouble(l *lost, kind Kind, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	l.begin()
	s.outage.mu.Lock()
	s.outage.reported = true
	s.outage.mu.Unlock()
	if s.opts.Trouble != nil {
		s.opts.Trouble(kind, err)
	}
}
