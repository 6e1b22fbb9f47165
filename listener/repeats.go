package listener

import (
	"cmp"
	"sync"
	"time"
)

// Repeats prevents a log from being flooded by repeated lines. It allows a few lines per
// key and second, and then reports how many more there were. Keys are few, for example a
// listener and a reason. Repeats keeps each key for one second.
type Repeats struct {
	// PerSecond is the number of lines per key and second; 0: one.
	PerSecond int
	// Every, if set, takes the place of the second. While a key goes on, no further line of it is
	// allowed: More reports each period, until one of them has no line. At most mostKeys keys
	// are told apart then, and all others are the key "".
	Every time.Duration
	// More is called at the end of a period in which lines of key were held back, once,
	// with their number.
	More func(key string, held int)

	mu   sync.Mutex
	keys map[string]*period
}

const mostKeys = 1000

// period counts the lines of a key in the current period.
type period struct{ written, held int }

// Allow reports whether a line of key may be written now.
func (r *Repeats) Allow(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Every > 0 && r.keys[key] == nil && len(r.keys) >= mostKeys {
		key = ""
	}
	p := r.keys[key]
	if p == nil {
		if r.keys == nil {
			r.keys = make(map[string]*period)
		}
		p = new(period)
		r.keys[key] = p
		r.begin(key)
	}
	if p.written >= max(r.PerSecond, 1) {
		p.held++
		return false
	}
	p.written++
	return true
}

func (r *Repeats) begin(key string) {
	time.AfterFunc(cmp.Or(r.Every, time.Second), func() { r.end(key) })
}

// end ends the current period of key.
func (r *Repeats) end(key string) {
	r.mu.Lock()
	p := r.keys[key]
	held := p.held
	if p.held = 0; r.Every > 0 && held > 0 {
		r.begin(key)
	} else {
		delete(r.keys, key)
	}
	r.mu.Unlock()
	if held > 0 && r.More != nil {
		r.More(key, held)
	}
}
