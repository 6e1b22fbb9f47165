package proxy

import (
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/trace"
)

// This file has the histograms of times.

// histograms are the histograms of a Metrics.
type histograms struct {
	duration  *prometheus.HistogramVec // of exchanges, by route
	head      *prometheus.HistogramVec // until the endpoint's response head
	connect   *prometheus.HistogramVec
	queue     *prometheus.HistogramVec
	handshake *prometheus.HistogramVec // of clients, by listener
	buckets   int                      // number of buckets of each, without the last, which has no limit
}

// shape has the options that all histograms have in common.
type shape struct {
	buckets []float64
	native  bool
}

func newShape(c *config.Metrics) shape {
	s := shape{native: c.Native}
	for _, b := range c.Buckets {
		s.buckets = append(s.buckets, b.Seconds())
	}
	return s
}

// The limits of native histograms: the width of a bucket, and the number of buckets.
const (
	nativeFactor  = 1.1
	nativeBuckets = 160
)

func (s shape) named(name, help string) prometheus.HistogramOpts {
	o := prometheus.HistogramOpts{Name: name, Help: help, Buckets: s.buckets}
	if s.native {
		o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber, o.NativeHistogramMinResetDuration = nativeFactor, nativeBuckets, time.Hour
	}
	return o
}

func newHistograms(s shape) histograms {
	return histograms{
		buckets: len(s.buckets),
		duration: prometheus.NewHistogramVec(s.named("weir_http_request_duration_seconds",
			"Time from the request head to the end of the response."), []string{"route", "namespace", "ingress", "host", "backend"}),
		head: prometheus.NewHistogramVec(s.named("weir_backend_response_head_duration_seconds",
			"Time from the request head to the head of the endpoint's response, with the queue and all attempts."), []string{"backend"}),
		connect: prometheus.NewHistogramVec(s.named("weir_backend_connect_duration_seconds",
			"Time to connect to an endpoint, with its TLS handshake. Attempts that failed are not counted."), []string{"backend"}),
		queue: prometheus.NewHistogramVec(s.named("weir_backend_queue_duration_seconds",
			"Time for which requests and tunnels waited in the queue of a backend with max_connections; those that did not wait count too."), []string{"backend"}),
		handshake: prometheus.NewHistogramVec(s.named("weir_tls_handshake_duration_seconds",
			"Time of the TLS handshakes of clients that succeeded."), []string{"listener"}),
	}
}

func (h *histograms) each(f func(prometheus.Collector)) {
	for _, c := range []prometheus.Collector{h.duration, h.head, h.connect, h.queue, h.handshake} {
		f(c)
	}
}

// Shape sets the buckets of the histograms. The caller calls it before the first connection.
func (m *Metrics) Shape(c *config.Metrics) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.each(func(c prometheus.Collector) { m.registry.Unregister(c) })
	m.histograms = newHistograms(newShape(c))
	m.each(func(c prometheus.Collector) { m.registry.MustRegister(c) })
}

// times are the histograms of one backend. Several routes may share them. A nil times counts
// nothing.
type times struct {
	m                    *Metrics
	backend              string
	head, connect, queue atomic.Pointer[prometheus.Observer] // nil: weir has counted nothing yet
	users                int                                 // series of routes that have them; guarded by m.mu
}

// handshook counts the time of a handshake.
func (m *Metrics) handshook(e *edge, d time.Duration) {
	o := e.handshakes.Load()
	if o == nil {
		if o = m.handshakesOf(e.name); o == nil {
			return
		}
		e.handshakes.Store(o)
	}
	(*o).Observe(d.Seconds())
}

// handshakesOf returns the histogram of a listener; nil: the listener was removed, and its series
// with it.
func (m *Metrics) handshakesOf(listener string) *prometheus.Observer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.listeners[listener] {
		return nil
	}
	o := m.handshake.WithLabelValues(listener)
	return &o
}

// timesOf returns the histograms of a backend, for the series of a route. The caller holds m.mu.
func (m *Metrics) timesOf(backend string) *times {
	t := m.times[backend]
	if t == nil {
		t = &times{m: m, backend: backend}
		m.times[backend] = t
	}
	t.users++
	return t
}

// leaveTimes undoes timesOf; t may be nil. Without users the histograms are removed. The caller
// holds m.mu.
func (m *Metrics) leaveTimes(t *times) {
	if t == nil {
		return
	}
	if t.users--; t.users > 0 {
		return
	}
	delete(m.times, t.backend)
	m.head.DeleteLabelValues(t.backend)
	m.connect.DeleteLabelValues(t.backend)
	m.queue.DeleteLabelValues(t.backend)
}

func (t *times) responseHead(d time.Duration) {
	if t != nil {
		t.observe(&t.head, t.m.head, d)
	}
}

func (t *times) connected(d time.Duration) {
	if t != nil {
		t.observe(&t.connect, t.m.connect, d)
	}
}

func (t *times) queued(d time.Duration) {
	if t != nil {
		t.observe(&t.queue, t.m.queue, d)
	}
}

// observe counts a time in a histogram that is made when it is needed first.
func (t *times) observe(in *atomic.Pointer[prometheus.Observer], vec *prometheus.HistogramVec, d time.Duration) {
	o := in.Load()
	if o == nil {
		if o = t.open(in, vec); o == nil {
			return
		}
	}
	(*o).Observe(d.Seconds())
}

// open makes a histogram; nil: the backend was removed, and its series with it.
func (t *times) open(in *atomic.Pointer[prometheus.Observer], vec *prometheus.HistogramVec) *prometheus.Observer {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.users == 0 {
		return nil
	}
	o := vec.WithLabelValues(t.backend)
	in.Store(&o)
	return &o
}

// observeTraced counts a time with the id of the trace as its exemplar.
func observeTraced(in prometheus.Observer, d time.Duration, t *trace.Trace) {
	if e, ok := in.(prometheus.ExemplarObserver); ok {
		e.ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": hex.EncodeToString(t.ID[:])})
		return
	}
	in.Observe(d.Seconds())
}
