package proxy

import (
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/trace"
)

// This file traces some exchanges. For all others x.trace is nil.

// SetTracer sets the tracer of exchanges that begin from now on; nil: none is traced.
func (p *Proxy) SetTracer(t *trace.Tracer) { p.tracer.Store(t) }

// beginTrace decides whether the exchange is traced. Only a trusted sender may decide that with
// the sampled flag of its traceparent. From others the flag is cleared, or else they could make
// endpoints trace all their requests.
func (x *exchange) beginTrace(t *trace.Tracer, r *Route) {
	if r != nil && r.config.Untraced {
		return
	}
	parent, header := trace.Find(&x.req.Head)
	trusted := x.trusts != 0
	if x.trace = t.Begin(parent, trusted); x.trace == nil && !trusted {
		trace.Unsample(header)
	}
}

// endTrace ends the trace. The trace of a connection's first request also has spans of the PROXY
// header and of the TLS handshake.
func (x *exchange) endTrace(r *accesslog.Record) {
	t := x.trace
	x.trace = nil
	header, handshake, first := x.conn.TakePrelude()
	if !first {
		t.Finish(r, nil)
		return
	}
	t.Finish(r, &trace.Prelude{Accepted: x.conn.Accepted, Header: header, Handshake: handshake})
}

// tried ends the span of an attempt.
func (r *retries) tried(o *outcome) {
	if o == nil {
		r.trace.Tried(r.connect, "")
		return
	}
	r.trace.Tried(r.connect, o.reason)
}
