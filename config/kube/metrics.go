package kube

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// State is how weir treats an object.
type State string

// The states of objects.
const (
	InUse  State = "in_use"
	Faulty State = "faulty" // it has errors, and events for them
	Unused State = "unused" // no other object names it, or weir does not serve it
)

// published is the last conversion, for metrics and the admin port.
type published struct {
	routing *Routing
	at      time.Time // when it took effect
}

// show publishes the last conversion to metrics and the admin port. s.converting is held.
func (s *Source) show() { s.published.Store(&published{s.routing, time.Now()}) }

// LastSync is the time of the last change of routes, or when they became known.
func (s *Source) LastSync() time.Time {
	if v := s.published.Load(); v != nil {
		return v.at
	}
	return time.Time{}
}

// Events are the current errors of objects.
func (s *Source) Events() []event.Event {
	if v := s.published.Load(); v != nil && v.routing != nil {
		return v.routing.Events
	}
	return nil
}

// kindOf maps the kinds in events to Kinds.
var kindOf = map[string]Kind{"IngressClass": IngressClasses, "Ingress": Ingresses, "Service": Services, "Secret": Secrets, "ConfigMap": ConfigMaps}

// Objects counts the watched objects.
func (s *Source) Objects() map[Kind]map[State]int {
	v := s.published.Load()
	if v == nil || v.routing == nil {
		return nil
	}
	used, faulty := v.routing.names()
	all := map[Kind]map[State]int{}
	for kind, informers := range s.informers {
		n := map[State]int{InUse: 0, Faulty: 0, Unused: 0}
		for _, i := range informers {
			for _, key := range i.Items.ListKeys() {
				n[stateIn(kind, objectOf(key), used, faulty)]++
			}
		}
		all[kind] = n
	}
	return all
}

// objectSet has the names of objects; Namespace is empty for kinds without namespaces.
type objectSet map[config.ObjectName]struct{}

func (s objectSet) has(o config.ObjectName) bool {
	_, there := s[o]
	return there
}

// objectOf returns the name of which key is the key in a store.
func objectOf(key string) config.ObjectName {
	if namespace, name, ok := strings.Cut(key, "/"); ok {
		return config.ObjectName{Namespace: namespace, Name: name}
	}
	return config.ObjectName{Name: key}
}

func stateIn(kind Kind, o config.ObjectName, used, faulty map[Kind]objectSet) State {
	switch {
	case faulty[kind].has(o):
		return Faulty
	case used[kind] != nil && !used[kind].has(o):
		return Unused
	}
	return InUse
}

// names are the objects that r uses, of kinds that may be unused, and the objects with
// errors, by kind.
func (r *Routing) names() (used, faulty map[Kind]objectSet) {
	ingresses, services, secrets := make(objectSet, len(r.Ingresses)), make(objectSet, len(r.Backends)), make(objectSet, len(r.Certificates))
	for _, i := range r.Ingresses {
		ingresses[i] = struct{}{}
	}
	for i := range r.Backends {
		services[r.Backends[i].Source] = struct{}{}
	}
	secret := func(c *config.Certificate) {
		if c != nil && c.Pair != nil {
			secrets[objectOf(c.Pair.Name)] = struct{}{}
		}
	}
	secret(r.Default)
	for i := range r.Certificates {
		secret(&r.Certificates[i])
	}
	faulty = map[Kind]objectSet{}
	for i := range r.Events {
		o := &r.Events[i].Object
		kind := kindOf[o.Kind]
		if faulty[kind] == nil {
			faulty[kind] = objectSet{}
		}
		faulty[kind][config.ObjectName{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
	}
	return map[Kind]objectSet{Ingresses: ingresses, Services: services, Secrets: secrets}, faulty
}

// Metrics are the series of the cluster that weir serves.
type Metrics struct {
	source  atomic.Pointer[Source]
	latency *prometheus.HistogramVec
	trouble *prometheus.CounterVec

	objects, faults, synced, last *prometheus.Desc
}

// NewMetrics registers the metrics of a cluster; without a cluster there are no series.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weir_kubernetes_change_duration_seconds",
			Help:    "Time from when weir saw a change of an object until the change was in effect, by what changed: routes (a new route table) or endpoints.",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10}}, []string{"what"}),
		trouble: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_kubernetes_watch_errors_total",
			Help: "Failed attempts to list or watch objects, by kind. The known objects stay in effect."}, []string{"kind"}),
		objects: prometheus.NewDesc("weir_kubernetes_objects",
			"Watched objects, by kind and state: in_use, faulty (the object has events with its errors) or unused.", []string{"kind", "state"}, nil),
		faults: prometheus.NewDesc("weir_kubernetes_faults",
			"Current errors of objects, by kind and by the reason of their events.", []string{"kind", "reason"}, nil),
		synced: prometheus.NewDesc("weir_kubernetes_synced",
			"1 when weir knows all objects of the cluster; before that weir is not ready.", nil, nil),
		last: prometheus.NewDesc("weir_kubernetes_last_sync_timestamp_seconds",
			"Last change of routes because of objects, as Unix time.", nil, nil),
	}
	reg.MustRegister(m, m.latency, m.trouble)
	return m
}

// Show makes the metrics those of s; nil: there is no cluster.
func (m *Metrics) Show(s *Source) { m.source.Store(s) }

// Applied records that a change is in effect.
func (m *Metrics) Applied(c *Change) {
	what := "endpoints"
	switch {
	case c.Routing != nil:
		what = "routes"
	case c.Endpoints == nil:
		return
	}
	m.latency.WithLabelValues(what).Observe(time.Since(c.Since).Seconds())
}

// Trouble counts a failed attempt.
func (m *Metrics) Trouble(kind Kind) { m.trouble.WithLabelValues(string(kind)).Inc() }

// Describe belongs to prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.objects, m.faults, m.synced, m.last} {
		ch <- d
	}
}

// Collect belongs to prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.source.Load()
	if s == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if !s.HasSynced() {
		gauge(m.synced, 0)
		return
	}
	gauge(m.synced, 1)
	if at := s.LastSync(); !at.IsZero() {
		gauge(m.last, float64(at.UnixMilli())/1000)
	}
	for kind, states := range s.Objects() {
		for state, n := range states {
			gauge(m.objects, float64(n), string(kind), string(state))
		}
	}
	faults := map[[2]string]int{}
	for _, e := range s.Events() {
		faults[[2]string{string(kindOf[e.Object.Kind]), string(e.Reason)}]++
	}
	for labels, n := range faults {
		gauge(m.faults, float64(n), labels[0], labels[1])
	}
}
