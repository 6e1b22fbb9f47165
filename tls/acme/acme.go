// Package acme gets certificates from authorities that speak ACME (RFC 8555)
// and keeps them from running out. certmagic does the protocol, the locks and
// the layout of the storage; when to try, what to serve meanwhile and what a
// stranger may cause is decided here, with the state that several processes
// have to agree on kept in the storage. Nothing in a handshake waits for a
// storage or an authority, but where an entry wants that for names on demand.
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
)

// Storage is where accounts, keys, certificates and what was tried are kept.
type Storage interface {
	certmagic.Storage
	io.Closer
}

// Options are what a Manager needs of the rest of weir.
type Options struct {
	// Open opens the storage at url, a directory or a redis URL. It is called
	// again until it succeeds, and once for each entry of the configuration that
	// has the URL; each result is closed by the Manager.
	Open func(url string) (Storage, error)
	// Notify is told of what happened to certificates, one call at a time for each name.
	Notify func(Event)
	// Log takes what certmagic has to say, all of it at debug level. What an
	// operator has to know comes through Notify.
	Log     *zap.Logger
	Metrics *Metrics
}

// Manager looks after the certificates of all ACME entries. Its methods may be
// called by anyone at any time. Close ends it.
type Manager struct {
	Options
	ctx      context.Context
	stop     context.CancelFunc
	retiring sync.WaitGroup // authorities that are gone and still end their work
	lookups  chan struct{}  // bounds what strangers can make us read

	mu          sync.Mutex
	authorities map[string]*authority // by settings
	placeholder *placeholder          // nil until there is an entry

	claims sync.Mutex
	// claimed are the names that are being got, each with what closes when that is over.
	claimed map[string]chan struct{}
}

const (
	maxLookups = 32
	// lookupTimeout bounds what a challenge waits for the storage.
	lookupTimeout = 2 * time.Second
	// closePatience bounds how long Close waits for attempts to give up.
	closePatience = 5 * time.Second
)

// New returns a Manager without entries.
func New(o Options) *Manager {
	m := &Manager{Options: o, lookups: make(chan struct{}, maxLookups),
		authorities: make(map[string]*authority), claimed: make(map[string]chan struct{})}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// Close ends all attempts and gives locks back, so that other processes need
// not wait until they are stale. It takes at most some seconds.
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
			certmagic.CleanUpOwnLocks(ctx, quiet(m.Log))
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

// claim waits until no other entry gets a certificate for name, and keeps others
// from it until release: certmagic knows one challenge for a name at a time.
func (m *Manager) claim(ctx context.Context, name string) bool {
	for {
		m.claims.Lock()
		other := m.claimed[name]
		if other == nil {
			m.claimed[name] = make(chan struct{})
			m.claims.Unlock()
			return true
		}
		m.claims.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return false
		}
	}
}

func (m *Manager) release(name string) {
	m.claims.Lock()
	defer m.claims.Unlock()
	close(m.claimed[name])
	delete(m.claimed, name)
}

// Plan is a set of entries that is ready to be looked after.
type Plan struct {
	m       *Manager
	entries map[*config.ACME]*Entry
	next    map[string]*authority
	names   map[*authority]map[string]bool
}

// Entry is one ACME entry of a configuration: certs.Managed.
type Entry struct{ a *authority }

// Prepare readies the ACME entries of a configuration without changing
// anything. It asks neither storages nor authorities: a process starts without them.
func (m *Manager) Prepare(entries []config.Certificate) (*Plan, error) {
	p := &Plan{m: m, entries: make(map[*config.ACME]*Entry), next: make(map[string]*authority), names: make(map[*authority]map[string]bool)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range entries {
		if c.ACME == nil {
			continue
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

// Entry returns what serves the names of a, which was among the entries of the
// Plan. It may be asked for certificates before Commit, and has none then.
func (p *Plan) Entry(a *config.ACME) *Entry { return p.entries[a] }

// Commit puts the plan into effect: names that are new are looked after from
// here on, those that are gone no more, and all others stay as they are.
func (p *Plan) Commit() {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	old := p.m.authorities
	p.m.authorities = p.next
	for _, a := range p.next {
		a.look(p.names[a], old)
	}
	for key, a := range old {
		if p.next[key] == nil {
			a.retire()
		}
	}
}

// Certificate returns the certificate for a name that the entry lists, spelled
// as there, or nil while there is none. It waits for nothing.
func (e *Entry) Certificate(name string) *tls.Certificate {
	if k := (*e.a.listed.Load())[name]; k != nil {
		return k.certificate()
	}
	return nil
}

// Replace has a certificate replaced at once, because its authority revoked it.
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

// placeholder is a port that certmagic finds taken. For HTTP-01 and TLS-ALPN-01
// it would bind a port of its own and answer there, unless somebody has that
// port already and can be connected to; then it trusts them to answer. weir's
// own listeners do.
type placeholder struct {
	net.Listener
	host string
	port int
}

func newPlaceholder() (*placeholder, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		if ln, err = net.Listen("tcp", "[::1]:0"); err != nil {
			return nil, fmt.Errorf("cannot listen on a port of the loopback address: %w", err)
		}
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
