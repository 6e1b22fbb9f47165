package certs

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"weak"
)

// ticketInterval is the interval at which Tickets checks whether a new key is due, and
// reads the keys of other replicas. The actual time varies by a quarter, so that replicas
// do not all use the storage at the same time.
const ticketInterval = time.Minute

// Tickets holds the session ticket keys, by scope. A session of one scope never resumes
// in another. So the name of a scope must contain everything that a resumed session takes
// over without a check, above all which clients were trusted. The keys are here and not
// in a tls.Config, so that sessions survive a reload of the configuration. weir writes
// them nowhere but into the storage given to Share.
//
// No method except Sync waits for a storage. No handshake waits for any of the methods.
type Tickets struct {
	mu     sync.Mutex
	scopes map[string]*scope
	given  map[string][]ticketKey // by scope: of a process before this one; see Adopt
	sharing
}

type scope struct {
	keys []ticketKey
	// unused reports that no client can have a session of these keys yet.
	unused bool
	// list is what configs have: the key that encrypts, then the keys that only decrypt.
	list [][32]byte
	// configs are the configurations that get new keys. The pointers are weak, because
	// weir does not know when a replaced configuration has served its last connection.
	configs []weak.Pointer[tls.Config]
}

// NewTickets returns Tickets without scopes, whose keys stay in the process.
func NewTickets() *Tickets {
	return &Tickets{scopes: make(map[string]*scope)}
}

// Attach gives c the keys of the scope name, now and whenever they change, as long as
// other code refers to c. The caller must not use c before. A new scope has only keys of
// this process until the next Sync or round of Run.
func (t *Tickets) Attach(name string, c *tls.Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[name]
	if s == nil {
		s = &scope{unused: true}
		if keys := t.given[name]; len(keys) > 0 {
			s.keys, s.unused = slices.Clone(keys), false
		}
		s.tend(time.Now())
		t.scopes[name] = s
	}
	c.SetSessionTicketKeys(s.list)
	s.configs = append(s.live(), weak.Make(c))
}

// Run changes the keys when they are due, and exchanges them with other replicas, until
// ctx ends.
func (t *Tickets) Run(ctx context.Context) {
	sweep := time.Now().Add(rand.N(ticketSweep))
	for {
		timer := time.NewTimer(ticketInterval*3/4 + rand.N(ticketInterval/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		due := time.Now().After(sweep)
		if due {
			sweep = time.Now().Add(ticketSweep)
		}
		t.round(ctx, due)
		t.tend()
	}
}

// tend does the work that is due for all scopes. It removes scopes without a live
// configuration.
func (t *Tickets) tend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, s := range t.scopes {
		if s.configs = s.live(); len(s.configs) == 0 {
			delete(t.scopes, name)
			continue
		}
		s.tend(time.Now())
	}
}

// tend drops keys that are too old. It makes a new key if one is due and neither this
// replica nor another one has made it.
func (s *scope) tend(now time.Time) {
	s.keys = slices.DeleteFunc(s.keys, func(k ticketKey) bool { return k.expired(now) })
	if next := newest(s.keys).From.Add(ticketRotation); !next.After(now) {
		s.keys = append(s.keys, newTicketKey(now, now))
	}
	list := inOrder(s.keys, now)
	if slices.Equal(list, s.list) {
		return
	}
	s.list = list
	for _, p := range s.configs {
		if c := p.Value(); c != nil {
			c.SetSessionTicketKeys(list)
		}
	}
}

// live returns the configurations that are still in use.
func (s *scope) live() []weak.Pointer[tls.Config] {
	return slices.DeleteFunc(s.configs, func(p weak.Pointer[tls.Config]) bool { return p.Value() == nil })
}
