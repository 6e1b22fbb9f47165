// Package overlay has maps that never change. A changed copy shares nearly all of its content
// with the original, so a change among ten thousand entries takes microseconds.
package overlay

import (
	"iter"
	"maps"
)

// Map is a map from strings to values. Several goroutines may use it at once, because it never
// changes. A nil Map is empty.
//
// A Map is a plain map and a small map of changes above it. When the map of changes has become large, With
// makes a new plain map.
type Map[V any] struct {
	base *plain[V]
	over map[string]Change[V] // nil: none
	size int
}

// plain is a map that several Maps may share.
type plain[V any] struct{ of map[string]V }

// Change is a change of one key.
type Change[V any] struct {
	Key   string
	Value V
	Gone  bool // the key is removed; Value does not matter
}

// Of returns a Map with these entries. The caller must not change m afterwards.
func Of[V any](m map[string]V) *Map[V] { return &Map[V]{base: &plain[V]{m}, size: len(m)} }

// Get returns the value of a key.
func (m *Map[V]) Get(key string) (value V, found bool) {
	if m == nil {
		return value, false
	}
	if len(m.over) > 0 {
		if c, changed := m.over[key]; changed {
			return c.Value, !c.Gone
		}
	}
	value, found = m.base.of[key]
	return value, found
}

// Find is Get for a key in a []byte. It does not allocate.
func (m *Map[V]) Find(key []byte) (value V, found bool) {
	if m == nil {
		return value, false
	}
	if len(m.over) > 0 {
		if c, changed := m.over[string(key)]; changed {
			return c.Value, !c.Gone
		}
	}
	value, found = m.base.of[string(key)]
	return value, found
}

// Len returns the number of keys.
func (m *Map[V]) Len() int {
	if m == nil {
		return 0
	}
	return m.size
}

// All returns all keys and values, in no order.
func (m *Map[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		if m == nil {
			return
		}
		for key, value := range m.base.of {
			if _, changed := m.over[key]; !changed && !yield(key, value) {
				return
			}
		}
		for key, c := range m.over {
			if !c.Gone && !yield(key, c.Value) {
				return
			}
		}
	}
}

// A plain map with fewer than spare entries has no map of changes. Others may have spare changes, and one
// more for each part entries.
const (
	spare = 32
	part  = 16
)

// With returns a Map with these changes. If a key has several changes, the last one counts.
func (m *Map[V]) With(changes ...Change[V]) *Map[V] {
	if m == nil {
		m = Of[V](nil)
	}
	if len(changes) == 0 {
		return m
	}
	if len(m.base.of) < spare || len(m.over)+len(changes) > spare+len(m.base.of)/part {
		return m.flat(changes)
	}
	next := &Map[V]{base: m.base, over: maps.Clone(m.over), size: m.size}
	if next.over == nil {
		next.over = make(map[string]Change[V], len(changes))
	}
	for _, c := range changes {
		_, had := next.Get(c.Key)
		next.over[c.Key] = c
		switch {
		case had && c.Gone:
			next.size--
		case !had && !c.Gone:
			next.size++
		}
	}
	return next
}

// flat is With that makes a new plain map.
func (m *Map[V]) flat(changes []Change[V]) *Map[V] {
	all := make(map[string]V, m.size+len(changes))
	maps.Insert(all, m.All())
	for _, c := range changes {
		if c.Gone {
			delete(all, c.Key)
		} else {
			all[c.Key] = c.Value
		}
	}
	return Of(all)
}

// Replaced returns the keys that m and o both have, with different values. equal compares two values. known
// is false if m and o do not share their plain map: then Replaced does not compare them.
func (m *Map[V]) Replaced(o *Map[V], equal func(a, b V) bool) (keys []string, known bool) {
	if m == nil || o == nil {
		return nil, m.Len() == 0 || o.Len() == 0
	}
	if m.base != o.base {
		return nil, false
	}
	look := func(over map[string]Change[V]) {
		for key := range over {
			a, inA := m.Get(key)
			b, inB := o.Get(key)
			if inA && inB && !equal(a, b) {
				keys = append(keys, key)
			}
		}
	}
	look(m.over)
	look(o.over)
	return keys, true
}
