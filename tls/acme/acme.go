// Package acme obtains certificates from authorities by ACME (RFC 8555) and renews them
// before they expire. certmagic implements the protocol, the locks and the layout of the
// storage. This package decides when to try, what to serve meanwhile and how much work
// strangers may cause. It keeps the state that several processes share in the storage. A
// handshake waits for a storage only if it is an ACME challenge, and for a storage or an
// authority if an entry allows that for names on demand.
package acme

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/sockets"
)

// Storage holds accounts, keys, certificates and the records of attempts.
type Storage interface {
	certmagic.Storage
	io.Closer
}

// Options connect a Manager with the rest of weir.
type Options struct {
	// Open opens the storage at url: a directory, or the URL of a Redis or of Secrets.
	// The Manager calls it until it succeeds, once for all entries with equal settings.
	// The Manager closes each result.
	Open func(url string) (Storage, error)
	// Notify receives the events of certificates, one call at a time for each name.
	Notify func(Event)
	// Log receives certmagic's messages, all of them at debug level. Notify gets
	// everything that an operator has to know.
	Log     *zap.Logger
	Metrics *Metrics
}

// Manager obtains and renews the certificates of all ACME entries. Its methods are safe
// for concurrent use. Close ends it.
type Manager struct {
	Options
	ctx      context.Context
	stop     context.CancelFunc
	retiring sync.WaitGroup // removed authorities whose work has not ended yet
	lookups  chan struct{}  // limits the reads that strangers can cause

	mu          sync.Mutex
	authorities map[string]*authority // by settings
	placeholder *placeholder          // nil until there is an entry

	reservations sync.Mutex
	// reserved has the names with an attempt in progress. Each channel is closed when the
	// attempt ends.
	reserved map[string]chan struct{}
}

const (
	maxLookups = 32
	// lookupTimeout limits the time that a challenge waits for the storage.
	lookupTimeout = 2 * time.Second
	// closePatience limits the time that Close waits for attempts to end, and then for
	// storages.
	closePatience = 5 * time.Second
)

// New returns a Manager without entries.
func New(o Options) *Manager {
	m := &Manager{Options: o, lookups: make(chan struct{}, maxLookups),
		authorities: make(map[string]*authority), reserved: make(map[string]chan struct{})}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// Close ends all attempts and releases their locks, so that other processes need not wait
// until the locks expire. It takes at most twice closePatience.
func (m *Manager) Close() {
	m.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	authorities := m.authorities
	await(closePatience, func() {
		for _, a := range authorities {
			a.finish()
		}
		m.retiring.Wait()
	})
	// A storage that hangs keeps its locks until the process ends.
	await(closePatience, func() {
		if len(authorities) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), closePatience)
			defer cancel()
			certmagic.CleanUpOwnLocks(ctx, debugOnly(m.Log))
		}
		for _, a := range authorities {
			a.closeStorage()
		}
	})
	if m.placeholder != nil {
		m.placeholder.Close()
	}
}

// await calls f, and waits for it no longer than d.
func await(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// reserve waits until no other entry requests a certificate for name, and reserves the name
// until release, because certmagic knows only one challenge for a name at a time. It
// returns false if ctx ended first.
func (m *Manager) reserve(ctx context.Context, name string) bool {
	for {
		m.reservations.Lock()
		other := m.reserved[name]
		if other == nil {
			m.reserved[name] = make(chan struct{})
			m.reservations.Unlock()
			return true
		}
		m.reservations.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return false
		}
	}
}

func (m *Manager) release(name string) {
	m.reservations.Lock()
	defer m.reservations.Unlock()
	close(m.reserved[name])
	delete(m.reserved, name)
}

// Plan is a prepared set of entries. Commit puts it into effect.
type Plan struct {
	m       *Manager
	entries map[*config.ACME]*Entry
	next    map[string]*authority
	names   map[*authority]map[string]bool
}

// Entry is one ACME entry of a configuration: certs.Managed.
type Entry struct{ a *authority }

// Prepare prepares the ACME entries of a configuration. It changes nothing, and contacts
// neither storages nor authorities: a process can start without them. It returns an error
// after Close. The caller prevents other plans from being committed between Prepare and
// Commit.
func (m *Manager) Prepare(entries []config.Certificate) (*Plan, error) {
	p := &Plan{m: m, entries: make(map[*config.ACME]*Entry), next: make(map[string]*authority), names: make(map[*authority]map[string]bool)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range entries {
		if c.ACME == nil {
			continue
		}
		if m.ctx.Err() != nil {
			return nil, fmt.Errorf("%s: weir is shutting down, and issues no certificates through ACME any more", c.Position)
		}
		if m.placeholder == nil {
			var err error
			if m.placeholder, err = newPlaceholder(); err != nil {
				return nil, fmt.Errorf("%s: cannot issue certificates through ACME: %w", c.Position, err)
			}
		}
		key := settingsOf(c.ACME)
		a := p.next[key]
		if a == nil {
			if a = m.authorities[key]; a == nil {
				var err error
				if a, err = newAuthority(m, c.ACME, key); err != nil {
					return nil, fmt.Errorf("%s: %w", c.Position, err)
				}
			}
			p.next[key] = a
			p.names[a] = make(map[string]bool)
		}
		for _, host := range c.ACME.Hosts {
			p.names[a][nameOf(host)] = true
		}
		p.entries[c.ACME] = &Entry{a}
	}
	return p, nil
}

// Entry returns the Entry for a, which must be one of the entries given to Prepare. The
// caller may ask it for certificates before Commit; a new entry has none then.
func (p *Plan) Entry(a *config.ACME) *Entry { return p.entries[a] }

// Commit puts the plan into effect: it starts keepers for new names, stops the keepers of
// removed names, and leaves all others as they are.
func (p *Plan) Commit() {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	old := p.m.authorities
	p.m.authorities = p.next
	for _, a := range p.next {
		a.setNames(p.names[a], old)
	}
	for key, a := range old {
		if p.next[key] == nil {
			a.retire()
		}
	}
}

// Certificate returns the certificate for a name that the entry lists, or nil while there
// is none. name is spelled as hello.Name does. Certificate does not wait.
func (e *Entry) Certificate(name string) *tls.Certificate {
	if k := (*e.a.listed.Load())[name]; k != nil {
		return k.certificate()
	}
	return nil
}

// Replace makes weir replace a certificate at once, because its authority revoked it.
func (m *Manager) Replace(leaf *x509.Certificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.authorities {
		for _, k := range *a.listed.Load() {
			k.replace(leaf)
		}
		a.replaceDemanded(leaf)
	}
}

// All returns the certificates that the entry has at the moment.
func (e *Entry) All() (all []*tls.Certificate) {
	for _, k := range *e.a.listed.Load() {
		if c := k.certificate(); c != nil {
			all = append(all, c)
		}
	}
	return append(all, e.a.demanded()...)
}

// placeholder is a port that certmagic finds in use. For HTTP-01 and TLS-ALPN-01,
// certmagic opens a port and answers challenges there. If that port is in use and accepts
// connections, certmagic leaves the answers to the process that has it. weir's own
// listeners answer them.
type placeholder struct {
	net.Listener
	host string
	port int
}

func newPlaceholder() (*placeholder, error) {
	ln, err := sockets.Loopback()
	if err != nil {
		return nil, fmt.Errorf("cannot listen on a port of the loopback address: %w", err)
	}
	at := ln.Addr().(*net.TCPAddr)
	p := &placeholder{ln, at.IP.String(), at.Port}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return p, nil
}

// Ends returns the end of the certificate that weir has for the host of each entry, which has one host and an issuer. It is
// zero if there is none.
func (m *Manager) Ends(entries []*config.ACME) []time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]time.Time, len(entries))
	of := make(map[*config.ACMEIssuer]*authority) // entries with one issuer have the same settings
	for i, e := range entries {
		a, known := of[e.Issuer]
		if !known {
			a = m.authorities[settingsOf(e)]
			of[e.Issuer] = a
		}
		if a == nil {
			continue
		}
		if k := (*a.listed.Load())[nameOf(e.Hosts[0])]; k != nil {
			if c := k.certificate(); c != nil {
				all[i] = c.Leaf.NotAfter
			}
		}
	}
	return all
}

// Served reports for each name that an entry lists whether weir has a certificate for it.
func (m *Manager) Served() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string]bool)
	for _, a := range m.authorities {
		for name, k := range *a.listed.Load() {
			all[name] = all[name] || k.current.Load() != nil
		}
	}
	return all
}
