// Package certs finds certificates by name, from files and self-signed, takes
// up files that change, and holds the session ticket keys. Both outlive a
// reload of the configuration: sessions are not forgotten, and a self-signed
// certificate that somebody pinned stays.
package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/hello"
)

// Store answers which certificate a client gets. Its methods may be called by
// anyone at any time; Get takes no lock.
type Store struct {
	metrics *Metrics
	change  sync.Mutex // held while the table is replaced
	table   atomic.Pointer[table]
}

// New returns a Store without certificates.
func New(m *Metrics) *Store {
	s := &Store{metrics: m}
	s.table.Store(newTable(nil))
	return s
}

// Load replaces the certificates by those of entries, whose order matters: the
// first one is for clients without SNI and for names that no entry lists. On an
// error, which tells of every bad entry, nothing changes.
func (s *Store) Load(entries []config.Certificate) error {
	commit, err := s.Prepare(entries)
	if err != nil {
		return err
	}
	commit()
	return nil
}

// Prepare does the part of Load that can fail, and returns the part that
// cannot, for a reload that has other things to try before it changes any.
// Entries that are there already, with files of the same content, are kept as
// they are, self-signed ones with their keys.
func (s *Store) Prepare(entries []config.Certificate) (commit func(), err error) {
	previous := make(map[identity]*entry)
	for _, e := range s.table.Load().entries {
		previous[identify(e.source)] = e
	}
	next := make([]*entry, 0, len(entries))
	var errs []error
	for _, source := range entries {
		e, err := open(source, previous[identify(source)])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if e.source.Position != source.Position { // the entry moved in its file
			moved := *e
			moved.source = source
			e = &moved
		}
		next = append(next, e)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return func() {
		s.change.Lock()
		defer s.change.Unlock()
		s.publish(next)
	}, nil
}

// Reload reads the files again and takes up those whose content changed; it
// returns their paths. A pair that cannot be read or does not fit together,
// because only one half is written yet for example, leaves the one in use, and
// is told of in the error. Self-signed certificates that end soon are renewed.
func (s *Store) Reload() (replaced []string, err error) {
	s.change.Lock()
	defer s.change.Unlock()
	next := slices.Clone(s.table.Load().entries)
	var errs []error
	changed := false
	for i, old := range next {
		e, err := open(old.source, old)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w; the certificate read before stays in use", err))
			continue
		}
		if e != old {
			next[i] = e
			changed = true
			if e.source.CertFile != "" {
				replaced = append(replaced, e.source.CertFile)
			}
		}
	}
	if changed {
		s.publish(next)
	}
	return replaced, errors.Join(errs...)
}

// publish makes entries the ones in use. The caller holds s.change.
func (s *Store) publish(entries []*entry) {
	t := newTable(entries)
	s.table.Store(t)
	s.metrics.set(t.expiries())
}

// Get chooses the certificate for a client; it has the shape of
// tls.Config.GetCertificate. A name that an entry lists gets a certificate of
// that entry (or of another one that lists the same name), even if the client
// can use none of its keys: crypto/tls then refuses with the fitting alert. All
// others get the first entry. Without any certificate both results are nil, on
// which crypto/tls refuses with unrecognized_name.
func (s *Store) Get(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.table.Load().find(h.ServerName).choose(h)
}

// table is an immutable set of certificates by name.
type table struct {
	entries  []*entry // in the configuration's order
	exact    map[string]choice
	wildcard map[string]choice // by what follows "*."
	first    choice            // for names that nobody lists
}

func newTable(entries []*entry) *table {
	t := &table{entries: entries, exact: make(map[string]choice), wildcard: make(map[string]choice)}
	for _, e := range entries {
		for _, name := range e.names {
			if parent, ok := strings.CutPrefix(name, "*."); ok {
				t.wildcard[parent] = t.wildcard[parent].with(e)
			} else {
				t.exact[name] = t.exact[name].with(e)
			}
		}
		// An ECDSA and an RSA pair for the same names are two entries, but one
		// certificate to the user: old clients without SNI need the RSA one.
		if slices.Equal(e.names, entries[0].names) {
			t.first = t.first.with(e)
		}
	}
	return t
}

// find returns what serves serverName: exact names before wildcards, which
// stand for exactly one label (RFC 6125, section 6.4.3).
func (t *table) find(serverName string) choice {
	if serverName == "" {
		return t.first
	}
	name := hello.Name(serverName)
	if c, ok := t.exact[name]; ok {
		return c
	}
	if label, parent, ok := strings.Cut(name, "."); ok && label != "" {
		if c, ok := t.wildcard[parent]; ok {
			return c
		}
	}
	return t.first
}

// choice are the certificates that serve one name, the preferred ones first.
type choice []*candidate

// with returns c and what e offers, sorted; among equals the configuration's order stays.
func (c choice) with(e *entry) choice {
	for _, one := range e.candidates {
		if !slices.Contains(c, one) {
			c = append(c, one)
		}
	}
	slices.SortStableFunc(c, func(a, b *candidate) int { return int(a.kind) - int(b.kind) })
	return c
}

// choose returns the first candidate whose key the client can use, else the
// last one. A lone candidate needs no thought, and the last none either.
func (c choice) choose(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if len(c) == 0 {
		return nil, nil
	}
	last := len(c) - 1
	for _, one := range c[:last] {
		cert, err := one.get()
		if err != nil {
			return nil, err
		}
		if supports(h, cert) {
			return cert, nil
		}
	}
	return c[last].get()
}

// supports says whether the client can use the key of cert. The name is not to
// be looked at, as SupportsCertificate would: the table has decided on it, and
// the first entry serves names that it does not list. h is crypto/tls's copy
// for this one call, so changing it for a moment harms nobody and saves a copy.
func supports(h *tls.ClientHelloInfo, cert *tls.Certificate) bool {
	name := h.ServerName
	h.ServerName = ""
	err := h.SupportsCertificate(cert)
	h.ServerName = name
	return err == nil
}
