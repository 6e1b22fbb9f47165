// Package ratelimit limits how many requests of each key weir admits in a time (GCRA, the
// generic cell rate algorithm). It knows nothing of HTTP.
//
// A key has one number: the time at which all of its requests would have been due, if they had
// come evenly. The number of keys is bounded. A key that has not been used for so long that its
// whole burst is available again needs no entry, and its place is free.
package ratelimit

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Limit is a rate, and what may exceed it.
type Limit struct {
	Every time.Duration // the time between two requests at the rate; at least 1 ns
	Burst int           // requests that are admitted at once from rest; at least 1
}

// Verdict is the answer for one request.
type Verdict struct {
	Admitted bool
	// Left is how many more requests of the key would be admitted now.
	Left int
	// Retry is the time after which a request of the key would be admitted; 0: now.
	Retry time.Duration
	// Full is the time after which the whole burst is available again.
	Full time.Duration
}

// Table counts the requests of many keys. Goroutines on different cores share a cache line only
// if their keys do, and take a lock only for the first request of a key.
type Table struct {
	limit     Limit
	tolerates int64 // how far ahead of now the due time of a key may be, in nanoseconds
	start     time.Time
	buckets   uint64
	segments  []atomic.Pointer[segment] // nil: no key yet
	keys      atomic.Int64
	evictions atomic.Int64
}

const (
	ways           = 8  // keys of a bucket
	segmentBuckets = 32 // buckets that are allocated together
	// A table has twice as many places as keys, so that few buckets are full before the table
	// is. A place takes 16 bytes, and the lock of a bucket one byte for each place.
	spare = 2
)

// segment is a part of the table. It is allocated for its first key.
type segment [segmentBuckets]bucket

type bucket struct {
	mu     sync.Mutex // guards the choice of a place for a new key
	places [ways]place
}

// place holds a key. A hash of 0 is no key.
type place struct {
	hash atomic.Uint64
	due  atomic.Int64 // nanoseconds since the table's start
}

// NewTable makes a table for about this many keys. Memory is allocated when keys come.
func NewTable(limit Limit, keys int) *Table {
	buckets := max(keys, 1)*spare/ways + 1
	return &Table{
		limit:     limit,
		tolerates: int64(limit.Every) * int64(limit.Burst-1),
		start:     time.Now(),
		buckets:   uint64(buckets),
		segments:  make([]atomic.Pointer[segment], (buckets-1)/segmentBuckets+1),
	}
}

// Keys returns the number of places in use. Some of their keys may be at rest again.
func (t *Table) Keys() int { return int(t.keys.Load()) }

// Evictions returns how often a new key took the place of a key that was not at rest.
func (t *Table) Evictions() int64 { return t.evictions.Load() }

// Admit counts a request of the key with this hash, if it is admitted. The hash must be keyed
// with a secret, so that strangers cannot choose keys of one bucket. A table that is too full
// forgets the key of the bucket that is nearest to rest.
func (t *Table) Admit(hash uint64, now time.Time) Verdict {
	hash |= 1 // 0 is no key
	at := now.Sub(t.start).Nanoseconds()
	b := t.bucket(hash)
	for i := range b.places {
		if p := &b.places[i]; p.hash.Load() == hash {
			return t.count(p, at)
		}
	}
	return t.count(t.place(b, hash, at), at)
}

// count moves the due time of a key by one request. If another goroutine did that meanwhile,
// it tries again. If the place got another key meanwhile, one request is counted for that key.
func (t *Table) count(p *place, now int64) Verdict {
	for {
		old := p.due.Load()
		due := max(old, now)
		ahead := due - now
		if ahead > t.tolerates {
			return Verdict{Retry: time.Duration(ahead - t.tolerates), Full: time.Duration(ahead)}
		}
		if p.due.CompareAndSwap(old, due+int64(t.limit.Every)) {
			full := ahead + int64(t.limit.Every)
			v := Verdict{Admitted: true, Full: time.Duration(full)}
			if full > t.tolerates {
				v.Retry = time.Duration(full - t.tolerates)
			} else {
				v.Left = int((t.tolerates-full)/int64(t.limit.Every)) + 1
			}
			return v
		}
	}
}

// Count is a request that counts by a limit of its own, in a table that many limits share.
type Count struct {
	Limit
	Hash uint64 // of the limit and the key
}

// AdmitAll counts a request by several limits, if all of them admit it. A request that one of them
// refuses counts for none.
func (t *Table) AdmitAll(all []Count, now time.Time) bool {
	at := now.Sub(t.start).Nanoseconds()
	for i := range all {
		c := &all[i]
		if p := t.find(c.Hash | 1); p != nil && max(p.due.Load(), at)-at > int64(c.Every)*int64(c.Burst-1) {
			return false
		}
	}
	for i := range all {
		c := &all[i]
		p := t.find(c.Hash | 1)
		if p == nil {
			p = t.place(t.bucket(c.Hash|1), c.Hash|1, at)
		}
		for old := p.due.Load(); !p.due.CompareAndSwap(old, max(old, at)+int64(c.Every)); old = p.due.Load() {
		}
	}
	return true
}

// find returns the place of a key; nil: it has none.
func (t *Table) find(hash uint64) *place {
	b := t.bucket(hash)
	for i := range b.places {
		if p := &b.places[i]; p.hash.Load() == hash {
			return p
		}
	}
	return nil
}

// bucket returns the bucket of a key.
func (t *Table) bucket(hash uint64) *bucket {
	n, _ := bits.Mul64(hash, t.buckets) // n is evenly spread over the buckets
	s := &t.segments[n/segmentBuckets]
	all := s.Load()
	if all == nil {
		s.CompareAndSwap(nil, new(segment))
		all = s.Load()
	}
	return &all[n%segmentBuckets]
}

// place gives a new key the place of no key, or of the key that is nearest to rest.
func (t *Table) place(b *bucket, hash uint64, now int64) *place {
	b.mu.Lock()
	defer b.mu.Unlock()
	chosen := &b.places[0]
	for i := range b.places {
		p := &b.places[i]
		switch p.hash.Load() {
		case hash: // another goroutine was first
			return p
		case 0:
			t.keys.Add(1)
			p.due.Store(now)
			p.hash.Store(hash)
			return p
		}
		if p.due.Load() < chosen.due.Load() {
			chosen = p
		}
	}
	if chosen.due.Load() > now {
		t.evictions.Add(1)
	}
	chosen.hash.Store(0) // requests of the key that leaves find no place meanwhile
	chosen.due.Store(now)
	chosen.hash.Store(hash)
	return chosen
}
