package listener

import (
	"sync"
	"time"
)

// Repeats prevents a log from being flooded by repeated lines. It allows a few lines per
// key and second, and then reports how many more there were. Keys are few, for example a
// listener and a reason. Repeats keeps each key for one second.
type Repeats struct {
	// PerSecond is the number of lines per key and second; 0: one.
	PerSecond int
	// More is called at the end of a second in which lines of key were held back, once,
	// with their number.
	More func(key string, held int)

	mu   sync.Mutex
	keys map[string]*second
}

// second counts the lines of a key in the current second.
type second struct{ written, held int }

// Allow reports whether a line of key may be written now.
func (r *Repeats) Allow(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.keys[key]
	if s == nil {
		if r.keys == nil {
			r.keys = make(map[string]*second)
		}
		s = new(second)
		r.keys[key] = s
		time.AfterFunc(time.Second, func() { r.end(key) })
	}
	if s.written >= max(r.PerSecond, 1) {
		s.held++
		return false
	}
	s.written++
	return true
}

// end ends the current second of key.
func (r *Repeats) end(key string) {
	r.mu.Lock()
	held := r.keys[key].held
	delete(r.keys, key)
	r.mu.Unlock()
	if held > 0 && r.More != nil {
		r.More(key, held)
	}
}
