package listener

import (
	"sync"
	"time"
)

// Repeats keeps lines that repeat from flooding a log: of each key it lets a
// few through in a second, and afterwards says how many more there were. Keys
// are few, such as a listener and a reason; they are remembered for a second.
type Repeats struct {
	// PerSecond is how many lines of a key may be written in a second; 0: one.
	PerSecond int
	// More is told once, at the end of a second, how many lines of key were held back in it.
	More func(key string, held int)

	mu   sync.Mutex
	keys map[string]*second
}

// second is what a key did in the current second.
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

// end ends the key's second.
func (r *Repeats) end(key string) {
	r.mu.Lock()
	held := r.keys[key].held
	delete(r.keys, key)
	r.mu.Unlock()
	if held > 0 && r.More != nil {
		r.More(key, held)
	}
}
