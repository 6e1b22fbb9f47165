package status

import (
	"slices"
	"sync"
	"time"
)

// Limits for the memory that strangers and tenants can make weir use.
const (
	mostRefusals = 200 // kinds of refusals
	mostEvents   = 100
	detailEvery  = time.Second // at least, between two updates of the details of a kind
)

// Refusals counts refused connections and requests by kind. The zero value is ready for use.
type Refusals struct {
	mu    sync.Mutex
	kinds map[refusalKey]*refusals
}

type refusalKey struct{ what, where, reason string }

// refusals are the refusals of one kind.
type refusals struct {
	Refusal
	detailed time.Time // the last update of Client and Detail
	sum      uint64    // of requests: the RefusedRequests.Count of the last call
}

// RefusedRequests are the requests that weir has refused for a reason.
type RefusedRequests struct {
	Count uint64 // it becomes smaller when a route with such requests is removed
	Route string // the route with most of them
}

// Count counts one refused connection of a listener. Count calls detail at most once a second for
// each kind.
func (r *Refusals) Count(now time.Time, where, reason string, detail func() (client, text string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusalKey{"connection", where, reason}
	k := r.kind(key)
	if k == nil {
		return
	}
	k.Count++
	k.Last = now
	if now.Sub(k.detailed) >= detailEvery {
		k.detailed = now
		k.Client, k.Detail = detail()
	}
}

// CountRequests adds the requests that weir has refused since the last call. all has the refused requests
// of all routes, by reason.
func (r *Refusals) CountRequests(now time.Time, all map[string]RefusedRequests) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, k := range r.kinds {
		k.sum = min(k.sum, all[key.reason].Count)
	}
	for reason, of := range all {
		k := r.kind(refusalKey{what: "request", reason: reason})
		if k == nil || of.Count == k.sum {
			continue
		}
		k.Count += of.Count - k.sum
		k.sum, k.Where, k.Last = of.Count, of.Route, now
	}
}

// kind returns the entry of a key; nil: there are too many kinds.
func (r *Refusals) kind(key refusalKey) *refusals {
	k := r.kinds[key]
	if k != nil || len(r.kinds) >= mostRefusals {
		return k
	}
	if r.kinds == nil {
		r.kinds = make(map[refusalKey]*refusals)
	}
	k = &refusals{Refusal: Refusal{What: key.what, Where: key.where, Reason: key.reason}}
	r.kinds[key] = k
	return k
}

// List returns all kinds. The kind with the latest refusal comes first.
func (r *Refusals) List() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Refusal, 0, len(r.kinds))
	for _, k := range r.kinds {
		list = append(list, k.Refusal)
	}
	slices.SortFunc(list, func(a, b Refusal) int { return b.Last.Compare(a.Last) })
	return list
}

// Events keeps the latest events. The zero value is ready for use.
type Events struct {
	mu   sync.Mutex
	list []Event // the oldest first
}

// Add adds an event. An event with the same text as the last one replaces it.
func (e *Events) Add(now time.Time, bad bool, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.list); n > 0 && e.list[n-1].Text == text {
		e.list[n-1].At = now
		e.list[n-1].Times++
		return
	}
	if len(e.list) == mostEvents {
		copy(e.list, e.list[1:])
		e.list = e.list[:mostEvents-1]
	}
	e.list = append(e.list, Event{At: now, Bad: bad, Text: text, Times: 1})
}

// List returns the events, the latest one first.
func (e *Events) List() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := slices.Clone(e.list)
	slices.Reverse(list)
	if list == nil {
		list = []Event{}
	}
	return list
}
