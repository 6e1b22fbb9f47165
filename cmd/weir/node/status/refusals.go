package status

import (
	"slices"
	"sync"
	"time"
)

// The limits of what strangers and tenants can make weir remember.
const (
	mostRefusals = 200 // kinds of refusals
	mostEvents   = 100
	detailEvery  = time.Second // details of one kind are noted at most that often
)

// Refusals counts refused connections and requests by kind. The zero value is ready for use.
type Refusals struct {
	mu    sync.Mutex
	kinds map[refusalKey]*Refusal
	noted map[refusalKey]time.Time // when the details were noted
}

type refusalKey struct{ what, where, reason string }

// Count counts one refused connection of a listener. detail is called only if its text is needed.
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
	if now.Sub(r.noted[key]) >= detailEvery {
		r.noted[key] = now
		k.Client, k.Detail = detail()
	}
}

// Requests sets the number of requests that weir has refused for a reason. where is a route for
// which the number has grown.
func (r *Refusals) Requests(now time.Time, where, reason string, count uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.kind(refusalKey{what: "request", reason: reason})
	if k == nil || k.Count == count {
		return
	}
	k.Where, k.Count, k.Last = where, count, now
}

// kind returns the entry of a key; nil: there are too many.
func (r *Refusals) kind(key refusalKey) *Refusal {
	k := r.kinds[key]
	if k != nil || len(r.kinds) >= mostRefusals {
		return k
	}
	if r.kinds == nil {
		r.kinds, r.noted = make(map[refusalKey]*Refusal), make(map[refusalKey]time.Time)
	}
	k = &Refusal{What: key.what, Where: key.where, Reason: key.reason}
	r.kinds[key] = k
	return k
}

// List returns all kinds, the last one first.
func (r *Refusals) List() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Refusal, 0, len(r.kinds))
	for _, k := range r.kinds {
		list = append(list, *k)
	}
	slices.SortFunc(list, func(a, b Refusal) int { return b.Last.Compare(a.Last) })
	return list
}

// Events keeps the last events. The zero value is ready for use.
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

// List returns the events, the last one first.
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
