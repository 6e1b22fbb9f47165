package trace

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The times of an Exporter.
const (
	// gather is how long spans wait for others, so that one request has many.
	gather = time.Second
	// sendTimeout limits one request.
	sendTimeout = 10 * time.Second
	// firstPause and longestPause are the waits after requests that failed; each is twice as long
	// as the one before.
	firstPause, longestPause = time.Second, 30 * time.Second
	// patience is the time after which the spans of a request are dropped.
	patience = time.Minute
	// farewell limits the last requests when the Exporter is closed.
	farewell = 2 * time.Second
)

// RetryError is the error of a request that may succeed later.
type RetryError struct {
	Err   error
	After time.Duration // the receiver asks to wait so long; 0: it does not say
}

func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// ExporterOptions are the surroundings of an Exporter.
type ExporterOptions struct {
	Resource Resource
	// Send sends an ExportTraceServiceRequest. If its error is a RetryError, the Exporter tries
	// again later. A PartialError means that the receiver accepted the other spans.
	Send func(ctx context.Context, body []byte) error
	// Failed is called when requests begin to fail, and Recovered when they succeed again.
	Failed    func(err error)
	Recovered func()
	// Exported counts the spans that the receiver accepted, Refused the spans that it refused, and
	// Unavailable the spans that were dropped because it did not answer in time.
	Exported, Refused, Unavailable prometheus.Counter
}

// Exporter sends the spans of a Buffer.
type Exporter struct {
	ExporterOptions
	buffer          *Buffer
	resource, scope []byte
	ctx             context.Context // ends two seconds after Close was called
	cancel          context.CancelFunc
	closing, ended  chan struct{}
	failing         bool
}

// StartExporter sends the spans of b until Close.
func StartExporter(b *Buffer, o ExporterOptions) *Exporter {
	e := &Exporter{ExporterOptions: o, buffer: b, closing: make(chan struct{}), ended: make(chan struct{})}
	e.resource, e.scope = o.Resource.preamble()
	e.ctx, e.cancel = context.WithCancel(context.Background())
	go e.run()
	return e
}

// Close sends the remaining spans, within two seconds.
func (e *Exporter) Close() {
	close(e.closing)
	defer time.AfterFunc(farewell, e.cancel).Stop()
	<-e.ended
	e.cancel()
}

func (e *Exporter) run() {
	defer close(e.ended)
	for {
		select {
		case <-e.buffer.wake:
			e.wait(gather, e.buffer.filled)
		case <-e.closing:
		}
		if e.isClosing() {
			e.finish()
			return
		}
		for c := e.buffer.take(); c.spans > 0; c = e.buffer.take() {
			e.deliver(c)
			if e.isClosing() {
				break
			}
		}
	}
}

func (e *Exporter) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// wait waits for some time, or until a channel has a value, or until the Exporter is closed.
func (e *Exporter) wait(d time.Duration, until <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-until:
	case <-e.closing:
	}
}

// deliver sends a chunk. It repeats the request while the receiver may still accept it.
func (e *Exporter) deliver(c chunk) {
	begun, pause := time.Now(), firstPause
	body := request(e.resource, e.scope, c.b)
	for {
		ctx, cancel := context.WithTimeout(e.ctx, sendTimeout)
		err := e.Send(ctx, body)
		cancel()
		if e.count(c, err, time.Since(begun) < patience && !e.isClosing()) {
			return
		}
		var retry *RetryError
		if errors.As(err, &retry) {
			pause = max(pause, min(retry.After, patience))
		}
		e.wait(pause, nil)
		pause = min(2*pause, longestPause)
	}
}

// count counts the spans of a request, and returns false if the caller must repeat the request.
func (e *Exporter) count(c chunk, err error, again bool) bool {
	var retry *RetryError
	var partial *PartialError
	n := float64(c.spans)
	switch {
	case err == nil:
		e.Exported.Add(n)
		if e.failing {
			e.failing = false
			e.Recovered()
		}
		return true
	case !e.failing:
		e.failing = true
		e.Failed(err)
	}
	if errors.As(err, &partial) {
		refused := min(float64(partial.Rejected), n)
		e.Exported.Add(n - refused)
		e.Refused.Add(refused)
		return true
	}
	if !errors.As(err, &retry) {
		e.Refused.Add(n)
		return true
	}
	if again {
		return false
	}
	e.Unavailable.Add(n)
	return true
}

// finish sends the remaining spans, each chunk once, until e.ctx ends.
func (e *Exporter) finish() {
	for c := e.buffer.take(); c.spans > 0; c = e.buffer.take() {
		err := e.ctx.Err()
		if err == nil {
			err = e.Send(e.ctx, request(e.resource, e.scope, c.b))
		}
		if partial := (*PartialError)(nil); err != nil && !errors.As(err, &partial) {
			err = &RetryError{Err: err}
		}
		e.count(c, err, false)
	}
}
