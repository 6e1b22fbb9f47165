package certs

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"slices"
	"sync"
	"time"
	"weak"
)

// A ticket key encrypts for ticketRotation and decrypts until ticketKeys newer
// ones are there: a ticket serves for 16 to 24 hours. (A TLS 1.2 session keeps
// its secret when it is resumed and gets a new ticket; crypto/tls ends it after
// 7 days.)
const (
	ticketRotation = 8 * time.Hour
	ticketKeys     = 3
)

// Tickets holds the session ticket keys. They are kept by scope: a session made
// in one scope never resumes in another, so a scope names everything that a
// resumed session takes over unchecked, who was trusted above all. Keys
// live here and not in a tls.Config, so that sessions survive a reload of the
// configuration. They are never written anywhere.
type Tickets struct {
	mu     sync.Mutex
	scopes map[string]*scope
}

type scope struct {
	keys [][32]byte // the newest first
	// configs are those that get new keys. Weak, because nobody tells when a
	// replaced configuration has served its last connection.
	configs []weak.Pointer[tls.Config]
}

// NewTickets returns Tickets without scopes.
func NewTickets() *Tickets {
	return &Tickets{scopes: make(map[string]*scope)}
}

// Attach gives c the keys of the scope name, now and at each rotation for as
// long as something else refers to c. It is called before c is used.
func (t *Tickets) Attach(name string, c *tls.Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[name]
	if s == nil {
		s = &scope{keys: [][32]byte{newKey()}}
		t.scopes[name] = s
	}
	c.SetSessionTicketKeys(s.keys)
	s.configs = append(s.live(), weak.Make(c))
}

// Rotate puts a new key in front in every scope and drops the oldest. Scopes
// whose configurations are all gone are forgotten.
func (t *Tickets) Rotate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, s := range t.scopes {
		if s.configs = s.live(); len(s.configs) == 0 {
			delete(t.scopes, name)
			continue
		}
		s.keys = append([][32]byte{newKey()}, s.keys[:min(len(s.keys), ticketKeys-1)]...)
		for _, p := range s.configs {
			if c := p.Value(); c != nil {
				c.SetSessionTicketKeys(s.keys)
			}
		}
	}
}

// Run rotates the keys until ctx ends.
func (t *Tickets) Run(ctx context.Context) {
	ticker := time.NewTicker(ticketRotation)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			t.Rotate()
		}
	}
}

// live returns the configurations that are still in use.
func (s *scope) live() []weak.Pointer[tls.Config] {
	return slices.DeleteFunc(s.configs, func(p weak.Pointer[tls.Config]) bool { return p.Value() == nil })
}

func newKey() (key [32]byte) {
	rand.Read(key[:]) // never fails: crypto/rand ends the process instead
	return key
}
