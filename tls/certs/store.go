// Package certs finds certificates by name, from files, self-signed and from
// authorities, takes up files that change, staples what responders say of them,
// and holds the session ticket keys. All of that outlives a reload of the
// configuration: sessions are not forgotten, and a self-signed certificate that
// somebody pinned stays.
package certs

import (
	"cmp"
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
	// Missing, if set before the first Get, hears of a listed name that a client
	// asked for while its entry has no certificate yet. It must not wait.
	Missing func(name string)
	// Stapled, if set before Run, hears what responders say (OCSP).
	Stapled func(OCSPEvent)

	metrics *Metrics
	change  sync.Mutex // held while the table is replaced
	table   atomic.Pointer[table]
	staples staples
}

// Managed is an entry whose certificates come from an authority; acme.Entry fits.
type Managed interface {
	// Certificate returns the one for a name that the entry lists, nil while
	// there is none. It waits for nothing.
	Certificate(name string) *tls.Certificate
	// Demand returns the one for a name that clients may ask for, and may wait
	// for it. Two nils: there can be none.
	Demand(h *tls.ClientHelloInfo) (*tls.Certificate, error)
	// All returns those that there are at the moment.
	All() []*tls.Certificate
}

// New returns a Store without certificates.
func New(m *Metrics) *Store {
	s := &Store{metrics: m}
	s.staples.init()
	s.table.Store(newTable(nil))
	m.store.Store(s)
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

// Prepare is Plan for entries without ACME; commit is the plan's.
func (s *Store) Prepare(entries []config.Certificate) (commit func(), err error) {
	p, err := s.Plan(entries, nil)
	if err != nil {
		return nil, err
	}
	return p.Commit, nil
}

// Plan is a set of certificates that is ready to be served.
type Plan struct {
	store *Store
	next  []*entry
}

// Plan does the part of Load that can fail, and leaves to Commit the part that
// cannot, for a reload that has other things to try before it changes any.
// Entries that are there already, with files of the same content, are kept as
// they are, self-signed ones with their keys; so are those whose files are
// unusable now, which Reload tells of. managed returns what serves an ACME
// entry; it may be nil where there is none.
func (s *Store) Plan(entries []config.Certificate, managed func(*config.ACME) Managed) (*Plan, error) {
	return s.plan(entries, managed, open)
}

// PlanPairs is Plan for a change of pairs that came without files: it opens no
// file whose entry is there already.
func (s *Store) PlanPairs(entries []config.Certificate, managed func(*config.ACME) Managed) (*Plan, error) {
	return s.plan(entries, managed, func(source config.Certificate, old *entry) (*entry, error) {
		if old != nil && source.Pair == nil {
			return old, nil
		}
		return open(source, old)
	})
}

func (s *Store) plan(entries []config.Certificate, managed func(*config.ACME) Managed, open func(config.Certificate, *entry) (*entry, error)) (*Plan, error) {
	previous := make(map[identity]*entry)
	for _, e := range s.table.Load().entries {
		previous[identify(e.source)] = e
	}
	p := &Plan{store: s, next: make([]*entry, 0, len(entries))}
	var errs []error
	for _, source := range entries {
		if source.ACME != nil {
			p.next = append(p.next, openManaged(source, managed(source.ACME)))
			continue
		}
		old := previous[identify(source)]
		e, err := open(source, old)
		switch {
		case err != nil && old == nil:
			errs = append(errs, err)
			continue
		case err != nil:
			e = old
		}
		if e.source.Position != source.Position || e.source.NoOCSP != source.NoOCSP { // the entry changed in the configuration alone
			moved := *e
			moved.source = source
			e = &moved
		}
		p.next = append(p.next, e)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// Commit makes the plan what is served.
func (p *Plan) Commit() {
	p.store.change.Lock()
	defer p.store.change.Unlock()
	p.store.publish(p.next)
}

// InUse reports whether a pair of files is being served, and for which names.
func (s *Store) InUse(certFile, keyFile string) (names []string, ok bool) {
	for _, e := range s.table.Load().entries {
		if e.source.CertFile == certFile && e.source.KeyFile == keyFile && certFile != "" {
			return e.names, true
		}
	}
	return nil, false
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
		if old.managed != nil {
			continue
		}
		e, err := open(old.source, old)
		if err != nil {
			s.metrics.failed.Inc()
			errs = append(errs, fmt.Errorf("%w; the certificate read before stays in use", err))
			continue
		}
		if e != old {
			next[i] = e
			changed = true
			if e.source.CertFile != "" {
				s.metrics.replaced.Inc()
				replaced = append(replaced, e.source.CertFile)
			}
		}
	}
	if changed {
		s.publish(next)
	}
	return replaced, errors.Join(errs...)
}

// Refresh takes note of certificates from authorities that are other ones now.
func (s *Store) Refresh() { s.staples.look() }

// publish makes entries the ones in use. The caller holds s.change.
func (s *Store) publish(entries []*entry) {
	s.table.Store(newTable(entries))
	s.staples.look()
}

// Get chooses the certificate for a client; it has the shape of
// tls.Config.GetCertificate. A name that an entry lists gets a certificate of
// that entry (or of another one that lists the same name), even if the client
// can use none of its keys: crypto/tls then refuses with the fitting alert. Of
// the others, an entry with names on demand has those that it is for, and the
// first entry the rest. Without any certificate both results are nil, on which
// crypto/tls refuses with unrecognized_name.
func (s *Store) Get(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	t := s.table.Load()
	c, listed := t.find(h.ServerName)
	if !listed {
		if m := t.onDemand(h.ServerName); m != nil {
			cert, err := m.Demand(h)
			return s.staples.with(cert), err
		}
		c = t.first
	}
	cert, err := c.choose(h)
	if cert == nil && err == nil && len(c) > 0 && s.Missing != nil {
		s.Missing(c[0].name)
	}
	return s.staples.with(cert), err
}

// table is an immutable set of certificates by name.
type table struct {
	entries  []*entry // in the configuration's order
	exact    map[string]choice
	wildcard map[string]choice // by what follows "*."
	owner    map[string]origin // the origin that serves each name, wildcards as "*.parent"
	first    choice            // for names that nobody lists
	// Who has names on demand: by name, by what follows "*.", and for any.
	demandExact, demandWildcard map[string]Managed
	demandAny                   Managed
}

func newTable(entries []*entry) *table {
	t := &table{entries: entries, exact: make(map[string]choice), wildcard: make(map[string]choice), owner: make(map[string]origin),
		demandExact: make(map[string]Managed), demandWildcard: make(map[string]Managed)}
	t.addNames(entries)
	first := leader(entries)
	for _, e := range entries {
		// An ECDSA and an RSA pair for the same names are two entries, but one
		// certificate to the user: old clients without SNI need the RSA one.
		switch {
		case e == first && e.source.Pair != nil: // for everybody, even where none of its names can be a host
			t.first = t.first.with(e.candidates)
		case first != nil && len(e.names) > 0 && originOf(e) == originOf(first) && slices.Equal(e.names, first.names):
			t.first = t.first.with(e.of(cmp.Or(first.leading, first.names[0])))
		}
		t.addDemand(e)
	}
	return t
}

// origin is whom an entry is from. The first one that lists a name serves it,
// with all kinds of keys that it has: nobody adds to another's.
type origin int

const (
	fromFile    origin = iota
	fromObject         // for certain hosts alone
	fromDefault        // an object too, for whatever is left over
	fromNothing        // an object that has no certificate
)

func originOf(e *entry) origin {
	switch p := e.source.Pair; {
	case p == nil:
		return fromFile
	case p.Default:
		return fromDefault
	case len(p.CertPEM) > 0:
		return fromObject
	}
	return fromNothing
}

// addNames enters what lists each name.
func (t *table) addNames(entries []*entry) {
	byOrigin := slices.Clone(entries)
	slices.SortStableFunc(byOrigin, func(a, b *entry) int { return int(originOf(a)) - int(originOf(b)) })
	for _, e := range byOrigin {
		from := originOf(e)
		for _, name := range e.names {
			if other, taken := t.owner[name]; taken && other != from {
				continue
			}
			_, above, _ := strings.Cut(name, ".")
			if other, taken := t.owner["*."+above]; from == fromDefault && taken && other == fromFile {
				continue // the file's wildcard serves it
			}
			t.owner[name] = from
			if parent, ok := strings.CutPrefix(name, "*."); ok {
				t.wildcard[parent] = t.wildcard[parent].with(e.of(name))
			} else {
				t.exact[name] = t.exact[name].with(e.of(name))
			}
		}
	}
}

// leader is the entry for names that no entry lists. What was given for certain
// hosts alone is shown to nobody else.
func leader(entries []*entry) *entry {
	for _, e := range entries {
		if p := e.source.Pair; p == nil || p.Default {
			return e
		}
	}
	return nil
}

// addDemand enters the names that e has on demand. The first entry that claims one has it.
func (t *table) addDemand(e *entry) {
	if e.managed == nil || e.source.ACME.OnDemand == nil {
		return
	}
	hosts := e.source.ACME.OnDemand.Hosts
	if len(hosts) == 0 && t.demandAny == nil {
		t.demandAny = e.managed
	}
	for _, host := range hosts {
		in, key := t.demandExact, hello.Name(host)
		if parent, ok := strings.CutPrefix(key, "*."); ok {
			in, key = t.demandWildcard, parent
		}
		if in[key] == nil {
			in[key] = e.managed
		}
	}
}

// find returns what serves serverName if an entry lists it: exact names before
// wildcards, which stand for exactly one label (RFC 6125, section 6.4.3).
func (t *table) find(serverName string) (c choice, listed bool) {
	if serverName == "" {
		return nil, false
	}
	name := hello.Name(serverName)
	if c, ok := t.exact[name]; ok {
		return c, true
	}
	if label, parent, ok := strings.Cut(name, "."); ok && label != "" {
		if c, ok := t.wildcard[parent]; ok {
			return c, true
		}
	}
	return nil, false
}

// onDemand returns who has serverName on demand, nil where nobody has.
func (t *table) onDemand(serverName string) Managed {
	if serverName == "" || t.demandAny == nil && len(t.demandExact) == 0 && len(t.demandWildcard) == 0 {
		return nil
	}
	name := hello.Name(serverName)
	if m := t.demandExact[name]; m != nil {
		return m
	}
	if label, parent, ok := strings.Cut(name, "."); ok && label != "" {
		if m := t.demandWildcard[parent]; m != nil {
			return m
		}
	}
	return t.demandAny
}

// choice are the certificates that serve one name, the preferred ones first.
type choice []*candidate

// with returns c and some more, sorted; among equals the configuration's order stays.
func (c choice) with(more []*candidate) choice {
	for _, one := range more {
		if !slices.Contains(c, one) {
			c = append(c, one)
		}
	}
	slices.SortStableFunc(c, func(a, b *candidate) int { return int(a.kind) - int(b.kind) })
	return c
}

// choose returns the first certificate whose key the client can use, else the
// last one. A lone candidate needs no thought, and the last none either.
// Without any certificate yet it returns nil.
func (c choice) choose(h *tls.ClientHelloInfo) (best *tls.Certificate, err error) {
	for i, one := range c {
		cert, err := one.get()
		if err != nil {
			return nil, err
		}
		if cert == nil {
			continue
		}
		if i == len(c)-1 || supports(h, cert) {
			return cert, nil
		}
		best = cert
	}
	return best, nil
}

// supports reports whether the client can use the key of cert. The name is not to
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
