package policy

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// CRLs has the revocation list files of all policies. Reload loads changed files, even if
// the configuration has errors. It outlives reloads.
type CRLs struct {
	change sync.Mutex // held while files, or the content of a file, are replaced
	files  atomic.Pointer[map[string]*crlEntry]

	nextUpdate       *prometheus.Desc
	replaced, failed prometheus.Counter
}

// crlEntry is a file in use, and the CAs that must have signed its lists.
type crlEntry struct {
	*crlFile
	authorities []*x509.Certificate
}

// NewCRLs returns a CRLs without files and registers its metrics with reg.
func NewCRLs(reg prometheus.Registerer) *CRLs {
	c := &CRLs{nextUpdate: prometheus.NewDesc("weir_tls_crl_next_update_timestamp_seconds",
		"Earliest expiry (nextUpdate) of the revocation lists in a file, as Unix time. After it weir refuses the certificates of that CA.", []string{"file"}, nil)}
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_tls_crl_reloads_total",
		Help: "Changed revocation list files: now in use (success), or unusable, so that weir keeps the previous list (failure).",
	}, []string{"result"})
	c.replaced, c.failed = reloads.WithLabelValues("success"), reloads.WithLabelValues("failure")
	c.files.Store(&map[string]*crlEntry{})
	reg.MustRegister(c, reloads)
	return c
}

// CRLPlan has the files of a configuration, already read. Commit puts them in use.
type CRLPlan struct {
	crls  *CRLs
	next  map[string]*crlEntry
	files map[string]*crlFile
}

// Plan reads the files of policies that are not in use yet. On an error nothing changes.
func (c *CRLs) Plan(policies []config.TLSPolicy) (*CRLPlan, error) {
	inUse := *c.files.Load()
	p := &CRLPlan{crls: c, next: make(map[string]*crlEntry), files: make(map[string]*crlFile)}
	for _, t := range policies {
		authorities, _ := config.Authorities(t.ClientAuthPool)
		for _, path := range t.ClientAuthCRL {
			e := p.next[path]
			if e == nil {
				e = &crlEntry{crlFile: &crlFile{path: path}}
				if old := inUse[path]; old != nil {
					e.crlFile = old.crlFile
				} else if lists, err := readCRL(path, authorities, nil); err != nil {
					return nil, fmt.Errorf("TLS policy %s: client_auth.crl: %w", t.Name, err)
				} else {
					e.lists.Store(lists)
				}
				p.next[path], p.files[path] = e, e.crlFile
			}
			e.authorities = append(e.authorities, authorities...)
		}
	}
	return p, nil
}

// Commit puts the plan's files in use, and drops all others.
func (p *CRLPlan) Commit() {
	p.crls.change.Lock()
	defer p.crls.change.Unlock()
	p.crls.files.Store(&p.next)
}

// InUse returns true if the lists of a file are in use.
func (c *CRLs) InUse(file string) bool { return (*c.files.Load())[file] != nil }

// Reload loads files whose content has changed, and returns their paths. If a file cannot
// be used, its previous lists stay in use, and the error names it.
func (c *CRLs) Reload() (replaced []string, err error) {
	c.change.Lock()
	defer c.change.Unlock()
	var errs []error
	for path, e := range *c.files.Load() {
		old := e.lists.Load()
		lists, err := readCRL(path, e.authorities, old)
		switch {
		case err != nil:
			c.failed.Inc()
			errs = append(errs, fmt.Errorf("%w; the lists read before stay in use", err))
		case lists != old:
			e.lists.Store(lists)
			c.replaced.Inc()
			replaced = append(replaced, path)
		}
	}
	slices.Sort(replaced)
	return replaced, errors.Join(errs...)
}

// readCRL reads a file. It returns old if the content has not changed.
func readCRL(path string, authorities []*x509.Certificate, old *crlLists) (*crlLists, error) {
	data, err := config.ReadRevocationFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	next := &crlLists{version: 1, sum: sha256.Sum256(data)}
	if old != nil {
		if next.sum == old.sum {
			return old, nil
		}
		next.version = old.version + 1
	}
	lists, err := config.ParseRevocationLists(data)
	if err == nil {
		err = config.CheckSigners(lists, authorities)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	for _, l := range lists {
		next.lists = append(next.lists, &signedList{RevocationList: l})
	}
	return next, nil
}

// Ending is a revocation list that has expired.
type Ending struct {
	File, Issuer string
	NextUpdate   time.Time
}

// Expired returns the revocation lists in use that have expired.
func (c *CRLs) Expired(now time.Time) (all []Ending) {
	for path, e := range *c.files.Load() {
		for _, l := range e.lists.Load().lists {
			if l.Expired(now) {
				all = append(all, Ending{path, l.Issuer(), l.List.NextUpdate})
			}
		}
	}
	return all
}

// Describe implements prometheus.Collector.
func (c *CRLs) Describe(ch chan<- *prometheus.Desc) { ch <- c.nextUpdate }

// Collect implements prometheus.Collector.
func (c *CRLs) Collect(ch chan<- prometheus.Metric) {
	for path, e := range *c.files.Load() {
		var first time.Time
		for _, l := range e.lists.Load().lists {
			if at := l.List.NextUpdate; !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
		if !first.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.nextUpdate, prometheus.GaugeValue, float64(first.Unix()), path)
		}
	}
}
