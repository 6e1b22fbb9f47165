package acme

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Kind is what happened, in words for a log.
type Kind string

// The kinds of events.
const (
	Obtained     Kind = "a certificate was obtained"
	Renewed      Kind = "a certificate was renewed"
	Found        Kind = "a certificate was found in the storage" // by another process, or by an earlier one
	Failed       Kind = "a certificate could not be obtained"
	Waiting      Kind = "a certificate is not requested again yet: an earlier attempt failed, or another process requests it"
	StorageError Kind = "the certificate storage does not work"
	Refused      Kind = "on_demand refused to request a certificate, and perhaps others in the last minute"
	AskError     Kind = "the URL in on_demand.ask did not say whether a certificate is allowed"
)

// Event describes what happened to the certificate of a name.
type Event struct {
	Kind      Kind
	Name      string
	Directory string // URL of the authority's directory
	// NotAfter is the end of the served certificate; zero: there is none.
	NotAfter time.Time
	Err      error     // from the authority or the storage, perhaps to an earlier process; nil: no failure, or its error is unknown
	Next     time.Time // time of the next attempt; zero: when the certificate is due
	OnDemand bool
}

// Metrics counts issuances and challenges.
type Metrics struct {
	obtained, renewed, failed prometheus.Counter
	http, tlsALPN             map[string]prometheus.Counter
}

// The results of a challenge.
const (
	answered = "answered"
	unknown  = "unknown" // no order is open for the name
	refused  = "refused" // too many at the same time
	errored  = "errored" // the storage does not work
)

// NewMetrics registers the metrics of this package with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	issuances := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_acme_issuances_total",
		Help: "Attempts of this process to obtain a certificate, by result: obtained, renewed or failed.",
	}, []string{"result"})
	challenges := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_acme_challenges_total",
		Help: "Incoming ACME challenges, by result: answered, unknown (no order is open for that name), refused (too many at the same time) or errored (the storage does not work).",
	}, []string{"type", "result"})
	reg.MustRegister(issuances, challenges)
	m := &Metrics{obtained: issuances.WithLabelValues("obtained"), renewed: issuances.WithLabelValues("renewed"),
		failed: issuances.WithLabelValues("failed"), http: map[string]prometheus.Counter{}, tlsALPN: map[string]prometheus.Counter{}}
	for _, result := range []string{answered, unknown, refused, errored} {
		m.http[result] = challenges.WithLabelValues("http-01", result)
		m.tlsALPN[result] = challenges.WithLabelValues("tls-alpn-01", result)
	}
	return m
}

// debugOnly returns log with every line at debug level, because certmagic logs each of its
// steps, and each failure more than once.
func debugOnly(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return debugCore{c} }), zap.AddStacktrace(zapcore.FatalLevel+1))
}

// debugCore is a core that writes everything at debug level.
type debugCore struct{ zapcore.Core }

func (c debugCore) Enabled(zapcore.Level) bool { return c.Core.Enabled(zapcore.DebugLevel) }

func (c debugCore) With(fields []zapcore.Field) zapcore.Core { return debugCore{c.Core.With(fields)} }

func (c debugCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return ce
	}
	return ce.AddCore(e, c)
}

func (c debugCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	e.Level = zapcore.DebugLevel
	return c.Core.Write(e, fields)
}
