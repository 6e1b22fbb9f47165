package certs

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// Metrics reports when certificates end, and counts the files that changed. One Store
// uses it.
type Metrics struct {
	notAfter, due, folded *prometheus.Desc
	replaced, failed      prometheus.Counter // counters of changed files

	store atomic.Pointer[Store] // set by New
	limit atomic.Pointer[config.ObjectMetrics]
}

// NewMetrics registers the metrics of this package with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		notAfter: prometheus.NewDesc("weir_tls_certificate_not_after_timestamp_seconds",
			"Expiry of the certificate for a name, as Unix time; the earliest if there are several.", []string{"name"}, nil),
		due: prometheus.NewDesc("weir_tls_certificate_renewal_due_timestamp_seconds",
			"Time by which the certificate for a name should have been renewed, as Unix time: 14 days before its expiry, later for a short-lived one. The earliest if there are several.", []string{"name"}, nil),
		folded: prometheus.NewDesc("weir_metrics_folded_certificate_names",
			"Names of a namespace without weir_tls_certificate_not_after_timestamp_seconds, because of the limits of kubernetes.metrics. The names whose certificates expire first have it.", []string{"namespace"}, nil),
	}
	m.SetLimit(config.DefaultObjectMetrics)
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_tls_certificate_reloads_total",
		Help: "Changed certificate files: now in use (success), or unusable, so that weir keeps the previous certificate (failure).",
	}, []string{"result"})
	reg.MustRegister(ends{m}, reloads)
	m.replaced, m.failed = reloads.WithLabelValues("success"), reloads.WithLabelValues("failure")
	return m
}

// SetLimit limits the names of objects that have series.
func (m *Metrics) SetLimit(limit config.ObjectMetrics) { m.limit.Store(&limit) }

// nameSeries is the number of series of a name.
const nameSeries = 2

// ends collects the ends of the certificates in use.
type ends struct{ *Metrics }

// Describe implements prometheus.Collector.
func (m ends) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.notAfter
	ch <- m.due
	ch <- m.folded
}

// Collect implements prometheus.Collector. Tenants of a cluster choose the number of their
// names, so a limited number of each namespace has series, those whose certificates expire
// first. The others are counted.
func (m ends) Collect(ch chan<- prometheus.Metric) {
	s := m.store.Load()
	if s == nil {
		return
	}
	shown, folded := choose(s.table.Load().expiries(), m.limit.Load())
	for _, e := range shown {
		ch <- prometheus.MustNewConstMetric(m.notAfter, prometheus.GaugeValue, float64(e.at.Unix()), e.name)
		ch <- prometheus.MustNewConstMetric(m.due, prometheus.GaugeValue, float64(e.due.Unix()), e.name)
	}
	for namespace, n := range folded {
		ch <- prometheus.MustNewConstMetric(m.folded, prometheus.GaugeValue, float64(n), namespace)
	}
}

// expiry is when the first certificate for a name expires.
type expiry struct {
	name      string
	namespace string // of the object that brought the name; empty: the configuration did
	at        time.Time
	due       time.Time // time by which the first of them should have been renewed
}

// sooner sorts by expiry.
func sooner(a, b expiry) int {
	return cmp.Or(a.at.Compare(b.at), strings.Compare(a.name, b.name))
}

// choose decides which names have series: all names of the configuration, and of each namespace a
// limited number of names, those that expire first. If that is too many in all namespaces
// together, the first name of each namespace comes before the second of any, and so on, so
// that no namespace displaces another. folded counts the other names by namespace.
func choose(all map[string]expiry, limit *config.ObjectMetrics) (shown []expiry, folded map[string]int) {
	type turn struct {
		expiry
		place int // position within its namespace
	}
	turns := make([]turn, 0, len(all))
	for _, e := range all {
		turns = append(turns, turn{expiry: e})
	}
	slices.SortFunc(turns, func(a, b turn) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), sooner(a.expiry, b.expiry))
	})
	for i := range turns {
		if i > 0 && turns[i].namespace != "" && turns[i].namespace == turns[i-1].namespace {
			turns[i].place = turns[i-1].place + 1
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Or(a.place-b.place, sooner(a.expiry, b.expiry)) })
	folded = make(map[string]int)
	room := limit.CertificateSeries() / nameSeries
	for _, t := range turns {
		switch {
		case t.namespace == "":
			shown = append(shown, t.expiry)
		case t.place < limit.CertificateNames && room > 0:
			shown = append(shown, t.expiry)
			room--
		default:
			folded[t.namespace]++
		}
	}
	return shown, folded
}

// expiries returns, for each listed name, when the first certificate that serves it
// expires. It ignores an entry that lists a name that another origin serves.
func (t *table) expiries() map[string]expiry {
	all := make(map[string]expiry, len(t.owner))
	for _, e := range t.entries {
		whose := e.whose()
		for _, name := range e.names {
			if from, served := t.owner[name]; !served || from != originOf(e) {
				continue
			}
			c := e.first(name)
			if c == nil { // there is none yet
				continue
			}
			next := expiry{name, whose(name), c.Leaf.NotAfter, dueOf(c, e.managed != nil)}
			if known, ok := all[name]; ok {
				if known.due.Before(next.due) {
					next.due = known.due
				}
				if !next.at.Before(known.at) {
					next.namespace, next.at = known.namespace, known.at
				}
			}
			all[name] = next
		}
	}
	return all
}

// whose returns a function that finds the namespace of the objects from which the entry has a
// name. It returns "" for names from the configuration, which include those in the default
// certificate. If Ingresses use the default certificate for hosts that are not in it, these hosts
// belong to the namespace of its Secret.
func (e *entry) whose() func(name string) (namespace string) {
	p := e.source.Pair
	if p == nil {
		return func(string) string { return "" }
	}
	namespace, _, _ := strings.Cut(p.Name, "/")
	if !p.Default {
		return func(string) string { return namespace }
	}
	named := make(map[string]bool)
	for _, c := range e.candidates {
		if cert, err := c.get(); err == nil && cert != nil {
			for _, name := range namesOf(cert.Leaf) {
				named[name] = true
			}
		}
	}
	return func(name string) string {
		if named[name] {
			return ""
		}
		return namespace
	}
}
