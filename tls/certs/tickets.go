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

// How often Tickets looks whether keys are due, and what other replicas made:
// give or take a quarter, so that replicas do not all ask at once.
const ticketLook = time.Minute

// Tickets holds the session ticket keys. They are kept by scope: a session made
// in one scope never resumes in another, so a scope names everything that a
// resumed session takes over unchecked, who was trusted above all. Keys
// live here and not in a tls.Config, so that sessions survive a reload of the
// configuration. They are written nowhere but into the storage given to Share.
//
// No method but Sync waits for a storage, and no handshake for any of them.
type Tickets struct {
	mu     sync.Mutex
	scopes map[string]*scope
	sharing
}

type scope struct {
	keys []ticketKey
	// unused says that no session can have been made with the keys yet.
	unused bool
	// list is what configs have: the key that encrypts, then those that decrypt.
	list [][32]byte
	// configs are those that get new keys. Weak, because nobody tells when a
	// replaced configuration has served its last connection.
	configs []weak.Pointer[tls.Config]
}

// NewTickets returns Tickets without scopes, whose keys stay in the process.
func NewTickets() *Tickets {
	return &Tickets{scopes: make(map[string]*scope)}
}

// Attach gives c the keys of the scope name, now and whenever they change, for
// as long as something else refers to c. It is called before c is used. The
// keys of a scope that is new are the process's own until the next Sync.
func (t *Tickets) Attach(name string, c *tls.Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[name]
	if s == nil {
		s = &scope{unused: true}
		s.tend(time.Now())
		t.scopes[name] = s
	}
	c.SetSessionTicketKeys(s.list)
	s.configs = append(s.live(), weak.Make(c))
}

// Run changes the keys when their time has come, and exchanges them with other
// replicas, until ctx ends.
func (t *Tickets) Run(ctx context.Context) {
	sweep := time.Now().Add(rand.N(ticketSweep))
	for {
		timer := time.NewTimer(ticketLook*3/4 + rand.N(ticketLook/2))
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
		t.look(ctx, due)
		t.tend()
	}
}

// tend does for all scopes what is due. Those whose configurations are all gone are forgotten.
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

// tend drops the keys that are too old and makes one where none came in time,
// neither from here nor from another replica.
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
