// Package certs finds certificates by name: certificates from files, self-signed ones,
// and those of authorities. It loads changed files again, staples OCSP responses, and
// holds the session ticket keys. All of this state outlives a reload of the
// configuration: clients can still resume sessions, and weir keeps a self-signed
// certificate that clients may have pinned.
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

// Store chooses the certificate for each client. Its methods are safe for concurrent use;
// Get takes no lock.
type Store struct {
	// Missing, if set before the first Get, is called with a listed name that a client
	// requested while its entry has no certificate yet. It must not block.
	Missing func(name string)
	// Stapled, if set before Run, receives the results of OCSP requests.
	Stapled func(OCSPEvent)
	// ReadFile reads the file of a certificate or of a key. New sets a function that
	// refuses everything but regular files. Another one must be set before the first
	// certificate is loaded.
	ReadFile func(path string) ([]byte, error)

	metrics *Metrics
	change  sync.Mutex // held while a caller replaces the table
	table   atomic.Pointer[table]
	staples staples
}

// Managed is an entry whose certificates come from an authority; acme.Entry fits.
type Managed interface {
	// Certificate returns the certificate for a name that the entry lists, or nil while
	// there is none. It does not block.
	Certificate(name string) *tls.Certificate
	// Demand returns the certificate for a name that clients may request, and may wait
	// for it. It returns nil and nil if the entry allows no certificate for the name.
	Demand(h *tls.ClientHelloInfo) (*tls.Certificate, error)
	// All returns the certificates that the entry has at the moment.
	All() []*tls.Certificate
}

// New returns a Store without certificates.
func New(m *Metrics) *Store {
	s := &Store{metrics: m, ReadFile: readFile}
	s.staples.init()
	s.table.Store(newTable(nil))
	m.store.Store(s)
	return s
}

// Load replaces the certificates by those of entries. Their order matters: weir uses the
// first entry for clients without SNI and for names that no entry lists. On an error,
// nothing changes; the error names every bad entry.
func (s *Store) Load(entries []config.Certificate) error {
	commit, err := s.Prepare(entries)
	if err != nil {
		return err
	}
	commit()
	return nil
}

// Prepare is ReadFiles and Plan for entries without ACME. commit is the plan's Commit.
func (s *Store) Prepare(entries []config.Certificate) (commit func(), err error) {
	files, err := s.ReadFiles(entries)
	if err != nil {
		return nil, err
	}
	p, err := s.Plan(entries, nil, files)
	if err != nil {
		return nil, err
	}
	return p.Commit, nil
}

// Files are the certificates of a configuration that come from files, already read, and
// its self-signed ones.
type Files struct{ entries map[identity]*entry }

// ReadFiles reads the files of entries, and makes new self-signed certificates. It may take
// long if the file system is slow, and it changes nothing. It keeps an existing entry if its
// files have the same content, or if they are unusable now (Reload reports that). It keeps
// self-signed certificates with their keys. The error names every bad entry.
func (s *Store) ReadFiles(entries []config.Certificate) (*Files, error) {
	previous := s.byIdentity()
	f := &Files{entries: make(map[identity]*entry)}
	var errs []error
	for _, source := range entries {
		if source.ACME != nil || source.Pair != nil {
			continue
		}
		id := identify(source)
		if f.entries[id] != nil {
			continue
		}
		e, err := open(source, previous[id], s.ReadFile)
		switch {
		case err != nil && previous[id] == nil:
			errs = append(errs, err)
			continue
		case err != nil:
			e = previous[id]
		}
		f.entries[id] = e
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return f, nil
}

// byIdentity returns the entries in use.
func (s *Store) byIdentity() map[identity]*entry {
	all := make(map[identity]*entry)
	for _, e := range s.table.Load().entries {
		all[identify(e.source)] = e
	}
	return all
}

// Plan is a prepared set of certificates. Commit puts it into use.
type Plan struct {
	store *Store
	next  []*entry
}

// Plan prepares entries and opens no file; Commit does the part that cannot fail. So a
// reload can prepare all its parts before it changes any. files is the result of ReadFiles
// for the same entries; nil: only pairs may have changed, and all other entries are in use.
// managed returns the Managed of an ACME entry; it may be nil if there is no ACME entry.
// The caller prevents other plans and Changes from being committed between Plan and Commit.
func (s *Store) Plan(entries []config.Certificate, managed func(*config.ACME) Managed, files *Files) (*Plan, error) {
	previous := s.byIdentity()
	if files == nil {
		files = &Files{entries: previous}
	}
	p := &Plan{store: s, next: make([]*entry, 0, len(entries))}
	var errs []error
	for _, source := range entries {
		if source.ACME != nil {
			p.next = append(p.next, openManaged(source, managed(source.ACME)))
			continue
		}
		e, err := files.entryOf(source, previous[identify(source)])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if e.source.Position != source.Position || e.source.NoOCSP != source.NoOCSP { // only the configuration changed
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

// entryOf returns the entry of source. A pair is opened now; if it is unusable, the previous
// entry stays.
func (f *Files) entryOf(source config.Certificate, previous *entry) (*entry, error) {
	if source.Pair == nil {
		if e := f.entries[identify(source)]; e != nil {
			return e, nil
		}
		return nil, fmt.Errorf("%s: this certificate was not read before it was planned; that is a bug in weir", source.Position)
	}
	e, err := open(source, previous, nil) // a pair has no files
	if err != nil && previous != nil {
		return previous, nil
	}
	return e, err
}

// Commit puts the certificates of the plan into use.
func (p *Plan) Commit() {
	p.store.change.Lock()
	defer p.store.change.Unlock()
	p.store.publish(p.next)
}

// InUse reports whether weir uses a pair of files, and for which names.
func (s *Store) InUse(certFile, keyFile string) (names []string, ok bool) {
	for _, e := range s.table.Load().entries {
		if e.source.CertFile == certFile && e.source.KeyFile == keyFile && certFile != "" {
			return e.names, true
		}
	}
	return nil, false
}

// Reload is ReadAgain and Commit.
func (s *Store) Reload() (replaced []string, err error) {
	c, err := s.ReadAgain()
	return c.Commit(), err
}

// Changes are new versions of certificates in use. Commit puts them into use.
type Changes struct {
	store *Store
	next  map[*entry]*entry // the new version of each entry that changed
}

// ReadAgain reads the files in use again. It may take long if the file system is slow, and
// it changes nothing. If a pair cannot be read or does not match, for example because only
// one of its files is written yet, the previous pair stays in use, and the error reports
// it; the Changes have the other pairs. ReadAgain also renews self-signed certificates that
// end soon.
func (s *Store) ReadAgain() (*Changes, error) {
	c := &Changes{store: s, next: make(map[*entry]*entry)}
	var errs []error
	for _, old := range s.table.Load().entries {
		if old.managed != nil {
			continue
		}
		e, err := open(old.source, old, s.ReadFile)
		switch {
		case err != nil:
			s.metrics.failed.Inc()
			errs = append(errs, fmt.Errorf("%w; the certificate read before stays in use", err))
		case e != old:
			c.next[old] = e
		}
	}
	return c, errors.Join(errs...)
}

// Commit puts the new versions into use, and returns the paths of their certificates. An
// entry that was removed or replaced after ReadAgain stays as it is.
func (c *Changes) Commit() (replaced []string) {
	s := c.store
	s.change.Lock()
	defer s.change.Unlock()
	entries := slices.Clone(s.table.Load().entries)
	changed := false
	for i, old := range entries {
		e := c.next[old]
		if e == nil {
			continue
		}
		entries[i], changed = e, true
		if e.source.CertFile != "" {
			s.metrics.replaced.Inc()
			replaced = append(replaced, e.source.CertFile)
		}
	}
	if changed {
		s.publish(entries)
	}
	return replaced
}

// Refresh makes Run look for new certificates from authorities.
func (s *Store) Refresh() { s.staples.checkSoon() }

// publish puts entries into use. The caller holds s.change.
func (s *Store) publish(entries []*entry) {
	s.table.Store(newTable(entries))
	s.staples.checkSoon()
}

// Get chooses the certificate for a client. It fits tls.Config.GetCertificate. If an
// entry lists the name, the client gets a certificate of that entry, or of another entry
// with the same name. That is so even if the client supports none of the keys: crypto/tls
// then refuses it with the fitting alert. For other names Get uses an entry with names on
// demand if it allows the name, else the first entry. If there is no certificate, both
// results are nil, and crypto/tls refuses the client with unrecognized_name.
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

// Of returns how to choose the certificate for the clients of a TLS policy that has
// certificates of its own. They get a certificate that is valid for their name, or else any of
// the policy. If it has none, crypto/tls refuses them with unrecognized_name.
func (s *Store) Of(owner string) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c := s.table.Load().ofOwner(owner, hello.Name(h.ServerName))
		cert, err := c.choose(h)
		if cert == nil && err == nil && len(c) > 0 && s.Missing != nil {
			s.Missing(c[0].name)
		}
		return s.staples.with(cert), err
	}
}

// ofOwner returns the certificates of a TLS policy for a name.
func (t *table) ofOwner(owner, name string) (c choice) {
	entries := t.owned[owner]
	if len(entries) == 1 {
		return entries[0].own()
	}
	_, parent, _ := strings.Cut(name, ".")
	for _, e := range entries {
		if _, exact := slices.BinarySearch(e.names, name); exact {
			c = c.with(e.own())
		} else if _, wild := slices.BinarySearch(e.names, "*."+parent); wild {
			c = c.with(e.own())
		}
	}
	for _, e := range entries {
		if len(c) == 0 || name == "" {
			c = c.with(e.own())
		}
	}
	return c
}

// table is an immutable set of certificates by name.
type table struct {
	entries  []*entry // in the order of the configuration
	exact    map[string]choice
	wildcard map[string]choice   // by the name after "*."
	owner    map[string]origin   // the origin that serves each name, wildcards as "*.parent"
	first    choice              // for names that no entry lists, and without SNI
	owned    map[string][]*entry // the entries of each TLS policy that has its own
	// The entries with names on demand: by name, by the name after "*.", and for any
	// name.
	demandExact, demandWildcard map[string]Managed
	demandAny                   Managed
}

func newTable(entries []*entry) *table {
	t := &table{entries: entries, exact: make(map[string]choice), wildcard: make(map[string]choice), owner: make(map[string]origin),
		owned: make(map[string][]*entry), demandExact: make(map[string]Managed), demandWildcard: make(map[string]Managed)}
	t.addNames(entries)
	first := leader(entries)
	for _, e := range entries {
		// An ECDSA and an RSA pair for the same names are two entries, but one
		// certificate for the user. Old clients without SNI need the RSA pair.
		switch {
		case e == first && e.source.Pair != nil: // for all clients, even if none of its names can be a host
			t.first = t.first.with(e.candidates)
		case first != nil && len(e.names) > 0 && originOf(e) == originOf(first) && slices.Equal(e.names, first.names):
			t.first = t.first.with(e.of(cmp.Or(first.leading, first.names[0])))
		}
		t.addDemand(e)
		if owner := ownerOf(e); owner != "" {
			t.owned[owner] = append(t.owned[owner], e)
		}
	}
	return t
}

// origin is the source of an entry. The first origin that lists a name serves it, with
// all its kinds of keys. No origin adds keys to the names of another.
type origin int

const (
	fromFile    origin = iota
	fromObject         // for certain hosts only
	fromDefault        // also an object, for all other hosts
	fromNothing        // an object without a certificate
	fromOwner          // an object, for the clients of one TLS policy
)

func originOf(e *entry) origin {
	switch p := e.source.Pair; {
	case ownerOf(e) != "":
		return fromOwner
	case p == nil:
		return fromFile
	case p.Default:
		return fromDefault
	case len(p.CertPEM) > 0:
		return fromObject
	}
	return fromNothing
}

// ownerOf returns the TLS policy whose clients alone get the certificates of an entry; "": any.
func ownerOf(e *entry) string {
	switch {
	case e.source.Pair != nil:
		return e.source.Pair.Owner
	case e.source.ACME != nil:
		return e.source.ACME.Owner
	}
	return ""
}

// addNames sets the certificates and the origin of each name.
func (t *table) addNames(entries []*entry) {
	byOrigin := slices.Clone(entries)
	slices.SortStableFunc(byOrigin, func(a, b *entry) int { return int(originOf(a)) - int(originOf(b)) })
	for _, e := range byOrigin {
		from := originOf(e)
		if from == fromOwner {
			continue
		}
		for _, name := range e.names {
			if other, taken := t.owner[name]; taken && other != from {
				continue
			}
			_, above, _ := strings.Cut(name, ".")
			if other, taken := t.owner["*."+above]; from == fromDefault && taken && other == fromFile {
				continue // the wildcard of the file serves it
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

// leader returns the entry for names that no entry lists. It skips pairs for certain
// hosts: weir must not show them to clients of other hosts.
func leader(entries []*entry) *entry {
	for _, e := range entries {
		if p := e.source.Pair; ownerOf(e) == "" && (p == nil || p.Default) {
			return e
		}
	}
	return nil
}

// addDemand adds the names that e has on demand. The first entry with a name keeps it.
func (t *table) addDemand(e *entry) {
	if e.managed == nil || e.source.ACME.OnDemand == nil || ownerOf(e) != "" {
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

// find returns the certificates for serverName if an entry lists it. Exact names win over
// wildcards. A wildcard stands for exactly one label (RFC 6125, section 6.4.3).
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

// onDemand returns the entry that has serverName on demand, or nil.
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

// choice is the certificates for one name, in the order of preference.
type choice []*candidate

// with returns c and more, sorted by kind. Certificates of one kind keep the order of the
// configuration.
func (c choice) with(more []*candidate) choice {
	for _, one := range more {
		if !slices.Contains(c, one) {
			c = append(c, one)
		}
	}
	slices.SortStableFunc(c, func(a, b *candidate) int { return int(a.kind) - int(b.kind) })
	return c
}

// choose returns the first certificate whose key the client supports, or else the last
// one, without a check. It returns nil while there is no certificate.
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

// supports reports whether the client supports the key of cert. SupportsCertificate would
// also check the name. That is wrong here: the table has already decided about the name,
// and the first entry serves names that it does not list. So supports clears the name
// during the call. h belongs to this handshake alone, so the change has no effect
// elsewhere, and saves a copy.
func supports(h *tls.ClientHelloInfo, cert *tls.Certificate) bool {
	name := h.ServerName
	h.ServerName = ""
	err := h.SupportsCertificate(cert)
	h.ServerName = name
	return err == nil
}
