package listener

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/listener/conn"
)

// Reason is the reason why a connection was refused.
type Reason uint8

// The reasons. Reasons that begin with ReasonHeader are results of reading the PROXY
// header. ReasonDescriptors counts attempts to accept that had to wait for a descriptor;
// meanwhile the connection stays in the kernel's queue.
const (
	ReasonMaxConnections Reason = iota
	ReasonMaxConnectionsAll
	ReasonPending
	ReasonPendingPerSource
	ReasonClientConnections
	ReasonClientRate
	ReasonFairShare
	ReasonDescriptors
	ReasonHeaderMissing
	ReasonHeaderLate
	ReasonHeaderTruncated
	ReasonHeaderMalformed
	ReasonHeaderChecksum
	ReasonHeaderDenied
	numReasons = iota
)

var reasonNames = [numReasons]string{
	"max_connections", "max_connections_all", "pending", "pending_per_source",
	"client_connections", "client_rate", "fair_share", "descriptors",
	"header_missing", "header_late", "header_truncated", "header_malformed", "header_checksum", "header_denied",
}

// String is the label in weir_connections_rejected_total.
func (r Reason) String() string { return reasonNames[r] }

// result is the result of reading a PROXY header, a label in weir_proxy_headers_total.
type result uint8

const (
	resultAccepted result = iota
	resultLocal
	resultAbsent
	resultMissing // this and the following ones refuse the connection
	resultLate
	resultTruncated
	resultMalformed
	resultChecksum
	resultDenied
	resultCut  // the process ends; not counted
	numResults = resultCut
)

var resultNames = [numResults]string{
	"accepted", "local", "absent", "missing", "late", "truncated", "malformed", "checksum", "denied",
}

func (r result) refused() bool { return r >= resultMissing && r <= resultDenied }

func (r result) reason() Reason { return ReasonHeaderMissing + Reason(r-resultMissing) }

// versionNames are the values of the label version; none: no PROXY header began.
var versionNames = [3]string{"none", "v1", "v2"}

// possible lists the versions for each result.
var possible = [numResults][]int{
	resultAccepted:  {1, 2},
	resultLocal:     {1, 2},
	resultAbsent:    {0},
	resultMissing:   {0},
	resultLate:      {0, 1, 2},
	resultTruncated: {0, 1, 2},
	resultMalformed: {1, 2},
	resultChecksum:  {2},
	resultDenied:    {0},
}

// Metrics are the counters of all listeners.
type Metrics struct {
	accepted, rejected, headers *prometheus.CounterVec

	openDesc, parkedDesc *prometheus.Desc
	tracker              *Tracker

	mu        sync.Mutex
	listeners map[string]*counters
}

// counters are the counters of one listener, looked up once.
type counters struct {
	accepted prometheus.Counter
	rejected [numReasons]prometheus.Counter
	headers  [numResults][len(versionNames)]prometheus.Counter
}

// NewMetrics registers the metrics of listeners whose connections are in t.
func NewMetrics(reg prometheus.Registerer, t *Tracker) *Metrics {
	m := &Metrics{tracker: t, listeners: make(map[string]*counters)}
	m.accepted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_connections_total", Help: "Accepted connections, refused ones included.",
	}, []string{"listener"})
	m.rejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_connections_rejected_total", Help: "Connections that weir closed before serving them, without writing a byte, by reason.",
	}, []string{"listener", "reason"})
	m.headers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_proxy_headers_total", Help: "Results of reading PROXY headers, by version and result.",
	}, []string{"listener", "version", "result"})
	m.openDesc = prometheus.NewDesc("weir_connections_open", "Open client connections, by state: pending, active, idle or tunnel.", []string{"listener", "state"}, nil)
	m.parkedDesc = prometheus.NewDesc("weir_connections_parked", "Parked connections: idle clients and tunnels that hold neither goroutine nor buffer. Part of weir_connections_open.", []string{"listener"}, nil)
	remaining := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_drain_connections_remaining", Help: "Connections that are still open during a drain, and those of the old processes of upgrades; otherwise 0.",
	}, t.remaining)
	lastNew := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_drain_last_new_connection_seconds", Help: "Seconds from the beginning of the drain to its last new connection; 0 without a drain or a connection.",
	}, func() float64 { return t.Arrivals().Last.Seconds() })
	reg.MustRegister(m.accepted, m.rejected, m.headers, openConnections{m}, remaining, lastNew)
	return m
}

// remaining counts what a drain waits for, whoever began it. After upgrades old processes drain, and
// nobody can scrape them any more: so this process counts the connections there, too.
func (t *Tracker) remaining() float64 {
	n := t.former.Load()
	if t.Draining() || t.arrivals.since.Load() != nil {
		n += t.open.Load()
	}
	return float64(n)
}

// listener returns the counters of a listener, always the same for the same name.
func (m *Metrics) listener(name string) *counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.listeners[name]; c != nil {
		return c
	}
	c := &counters{accepted: m.accepted.WithLabelValues(name)}
	for r := range Reason(numReasons) {
		c.rejected[r] = m.rejected.WithLabelValues(name, r.String())
	}
	for r := range numResults {
		for _, v := range possible[r] {
			c.headers[r][v] = m.headers.WithLabelValues(name, versionNames[v], resultNames[r])
		}
	}
	m.listeners[name] = c
	return c
}

// Forget removes the series of a listener that is closed and no longer configured.
func (m *Metrics) Forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.listeners, name)
	of := prometheus.Labels{"listener": name}
	m.accepted.DeletePartialMatch(of)
	m.rejected.DeletePartialMatch(of)
	m.headers.DeletePartialMatch(of)
}

// openConnections counts the states at each scrape, so that a change of state costs
// nothing.
type openConnections struct{ m *Metrics }

func (o openConnections) Describe(ch chan<- *prometheus.Desc) {
	ch <- o.m.openDesc
	ch <- o.m.parkedDesc
}

// OpenNow has the open connections of a listener.
type OpenNow struct {
	States [conn.NumStates]int // by conn.State
	Parked int                 // idle connections and tunnels that are parked; States counts them, too
}

// Open returns the open connections of each listener.
func (m *Metrics) Open() map[string]*OpenNow {
	counts := make(map[string]*OpenNow)
	m.mu.Lock()
	for name := range m.listeners {
		counts[name] = new(OpenNow)
	}
	m.mu.Unlock()
	for i := range m.tracker.shards {
		m.tracker.shards[i].each(func(a *admission) {
			if n := counts[a.l.name]; n != nil {
				n.States[a.c.State()]++
				if a.c.Parked() {
					n.Parked++
				}
			}
		})
	}
	return counts
}

func (o openConnections) Collect(ch chan<- prometheus.Metric) {
	for name, n := range o.m.Open() {
		ch <- prometheus.MustNewConstMetric(o.m.parkedDesc, prometheus.GaugeValue, float64(n.Parked), name)
		for state, count := range n.States {
			ch <- prometheus.MustNewConstMetric(o.m.openDesc, prometheus.GaugeValue, float64(count), name, conn.State(state).String())
		}
	}
}
