package trace

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/message"
)

// Trace has the spans of one request. It belongs to the request's goroutine, except for Answered:
// the goroutine that reads the response calls it.
type Trace struct {
	tracer *Tracer
	parent Parent
	ID     [16]byte // of the trace
	Span   [8]byte  // of the request

	head   *message.Head // of the request for the endpoint; nil: Inject was not called
	header message.Span  // traceparent in head

	tries        [mostTries]try
	made         int // may be more than mostTries
	scratch, out []byte
	clean, url   []byte
}

// mostTries is the number of attempts that have a span.
const mostTries = 8

// try is an attempt at an endpoint.
type try struct {
	span          [8]byte
	queued, begun time.Time // queued: zero unless the request may have waited in a queue
	ended         time.Time
	endpoint      string
	before        time.Duration // how long the last connect before it took
	connect       time.Duration // zero: an open connection was used
	status        int
	reason        string
}

var traces = sync.Pool{New: func() any { return new(Trace) }}

// Inject sets the traceparent of the request for the endpoint. Each attempt writes its own span
// into it.
func (t *Trace) Inject(h *message.Head) {
	value := h.Build(func(b []byte) []byte { return appendHeader(b, &t.ID, &t.Span) })
	t.head, t.header = h, value
	known := t.parent.Trace != [16]byte{}
	found := false
	for i := range h.Fields {
		name := h.Name(i)
		switch {
		case h.Fields[i].Dropped:
		case message.EqualFold(name, headerName):
			if found {
				h.Fields[i].Dropped = true
				continue
			}
			found = true
			h.SetValueSpan(i, value)
		case !known && message.EqualFold(name, "tracestate"): // of no known trace
			h.Fields[i].Dropped = true
		}
	}
	if !found {
		h.AddSpans(h.StoreString(headerName), value)
	}
}

const headerName = "traceparent"

// Find returns the span of the client. header is the value, for Unsample; nil: there is none, or
// not exactly one.
func Find(h *message.Head) (p Parent, header []byte) {
	for i := range h.Fields {
		name := h.Name(i)
		if len(name) != len(headerName) || h.Fields[i].Dropped || !message.EqualFold(name, headerName) {
			continue
		}
		if header != nil {
			return Parent{}, nil
		}
		header = h.Value(i)
	}
	if header != nil {
		p, _ = Parse(header)
	}
	return p, header
}

// Try begins an attempt. queued is when the request began to wait for the endpoint; zero: it
// cannot have waited. connect is how long the last connect took.
func (t *Trace) Try(queued time.Time, endpoint string, connect time.Duration) {
	t.made++
	if t.made > mostTries {
		return
	}
	y := &t.tries[t.made-1]
	*y = try{span: newSpan(), queued: queued, begun: time.Now(), endpoint: endpoint, before: connect}
	if t.head != nil {
		hex.Encode(t.head.Bytes(t.header)[spanAt:spanAt+16], y.span[:])
	}
}

// last returns the attempt that runs, or a place for the results of the attempts without a span.
func (t *Trace) last() *try { return &t.tries[min(max(t.made, 1), mostTries)-1] }

// Answered notes the status of the endpoint's response.
func (t *Trace) Answered(status int) { t.last().status = status }

// Tried ends an attempt. connect is how long the last connect took; if it is the same as in Try, the
// attempt used an open connection. reason is empty if the attempt succeeded.
func (t *Trace) Tried(connect time.Duration, reason string) {
	y := t.last()
	y.ended, y.reason = time.Now(), reason
	if connect != y.before {
		y.connect = connect
	}
}

// Prelude has the times of a connection before its first request.
type Prelude struct {
	Accepted          time.Time
	Header, Handshake time.Duration // of the PROXY header and of the TLS handshake; 0: there was none
}

// Kinds of spans (Span.SpanKind).
const (
	internal = 1
	server   = 2
	client   = 3
)

// Finish ends the trace. r describes the request. p is nil unless the request is the first one of
// its connection. The caller does not use t any more.
func (t *Trace) Finish(r *accesslog.Record, p *Prelude) {
	spans := 1 + min(t.made, mostTries)
	if !t.tracer.buffer.isFull(spans) {
		t.out = t.out[:0]
		count := t.server(r)
		if p != nil {
			count += t.prelude(r, p)
		}
		for i := range min(t.made, mostTries) {
			count += t.attempt(r, i)
		}
		t.tracer.buffer.add(t.out, count)
	}
	scratch, out, clean, url := t.scratch, t.out, t.clean, t.url
	*t = Trace{scratch: scratch[:0], out: out[:0], clean: clean, url: url}
	if cap(out) <= 64<<10 {
		traces.Put(t)
	}
}

// begin begins a span in t.scratch.
func (t *Trace) begin(id, parent *[8]byte, name string, kind uint64, from, to time.Time) attributes {
	b := appendBytes(t.scratch[:0], 1, t.ID[:])
	b = appendBytes(b, 2, id[:])
	if *parent != [8]byte{} {
		b = appendBytes(b, 4, parent[:])
	}
	b = appendBytes(b, 5, name)
	b = appendNumber(b, 6, kind)
	b = appendFixed64(b, 7, uint64(from.UnixNano()))
	b = appendFixed64(b, 8, uint64(to.UnixNano()))
	return attributes{b: b, field: 9, clean: t.clean}
}

// end appends the span to t.out, as a field of ScopeSpans.
func (t *Trace) end(a *attributes, failed bool) {
	if failed {
		a.b = append(binary.AppendUvarint(appendTag(a.b, 15, bytesOf), 2), 3<<3, 2) // Status.code: ERROR
	}
	t.scratch, t.clean = a.b, a.clean
	t.out = appendBytes(t.out, 2, a.b)
}

// server writes the span of the request.
func (t *Trace) server(r *accesslog.Record) int {
	q := r.Request
	method, known := methodOf(q)
	name := method
	if !known {
		name = "HTTP"
	}
	if r.Route != "" {
		name += " " + r.Route
	}
	a := t.begin(&t.Span, &t.parent.Span, name, server, r.Started, r.Started.Add(r.Duration))
	a.text("http.request.method", method)
	if !known {
		a.bytes("http.request.method_original", q.Bytes(q.Method))
	}
	a.bytes("url.path", q.Bytes(q.Path))
	if target := q.Bytes(q.Target); len(target) > q.Path.Len()+1 {
		t.url = t.tracer.redact.Append(t.url[:0], target)
		a.bytes("url.query", t.url[q.Path.Len()+1:])
	}
	scheme := "http"
	if r.Secure {
		scheme = "https"
	}
	a.text("url.scheme", scheme)
	host, port := r.HostAndPort()
	a.bytes("server.address", host)
	if port > 0 {
		a.number("server.port", int64(port))
	}
	address(&a, "client.address", "client.port", r.ClientAddress())
	if r.Origin != nil {
		address(&a, "network.peer.address", "network.peer.port", r.Origin.Peer)
	}
	a.text("network.protocol.version", r.Version)
	a.bytes("user_agent.original", q.GetName("user-agent"))
	a.number("http.response.status_code", int64(r.Status))
	a.text("http.route", r.Route)
	if r.Reason != "" {
		a.text("error.type", r.Reason)
	} else if r.Status >= 500 {
		a.text("error.type", strconv.Itoa(r.Status))
	}
	if r.Err != nil && r.Reason != "" {
		a.text("error.message", r.Err.Error())
	}
	a.number("http.request.size", r.Received)
	a.number("http.response.size", r.Sent)
	a.text("weir.listener", r.Listener)
	a.text("weir.backend", r.Backend)
	a.bytes("weir.request_id", q.Get(message.XRequestID))
	tlsOf(&a, r)
	t.end(&a, r.Status >= 500)
	return 1
}

func tlsOf(a *attributes, r *accesslog.Record) {
	if r.TLS == nil {
		return
	}
	a.text("tls.protocol.name", "tls")
	a.text("tls.protocol.version", strings.TrimPrefix(r.TLS.Version, "TLS "))
	a.text("tls.cipher", r.TLS.CipherSuite)
	a.text("tls.client.server_name", r.SNI)
	a.yes("tls.resumed", r.TLS.Resumed)
}

func address(a *attributes, name, port string, of netip.AddrPort) {
	if !of.IsValid() {
		return
	}
	var text [64]byte
	a.bytes(name, of.Addr().AppendTo(text[:0]))
	if of.Port() != 0 {
		a.number(port, int64(of.Port()))
	}
}

// prelude writes the spans of the PROXY header and of the handshake.
func (t *Trace) prelude(r *accesslog.Record, p *Prelude) (count int) {
	headed := p.Accepted.Add(p.Header)
	if p.Header > 0 {
		id := newSpan()
		a := t.begin(&id, &t.Span, "PROXY header", internal, p.Accepted, headed)
		if r.Origin != nil {
			address(&a, "network.peer.address", "network.peer.port", r.Origin.Peer)
		}
		t.end(&a, false)
		count++
	}
	if p.Handshake > 0 {
		id := newSpan()
		a := t.begin(&id, &t.Span, "TLS handshake", internal, headed, headed.Add(p.Handshake))
		tlsOf(&a, r)
		t.end(&a, false)
		count++
	}
	return count
}

// attempt writes the spans of an attempt, and of the wait before it.
func (t *Trace) attempt(r *accesslog.Record, i int) (count int) {
	y := &t.tries[i]
	if !y.queued.IsZero() {
		id := newSpan()
		a := t.begin(&id, &t.Span, "queue", internal, y.queued, y.begun)
		a.text("weir.backend", r.Backend)
		t.end(&a, false)
		count++
	}
	if y.ended.IsZero() {
		y.ended = r.Started.Add(r.Duration)
	}
	method, known := methodOf(r.Request)
	name := method
	if !known {
		name = "HTTP"
	}
	a := t.begin(&y.span, &t.Span, name, client, y.begun, y.ended)
	a.text("http.request.method", method)
	if host, err := netip.ParseAddrPort(y.endpoint); err == nil {
		address(&a, "server.address", "server.port", host)
	} else {
		a.text("server.address", y.endpoint)
	}
	if i > 0 {
		a.number("http.request.resend_count", int64(i))
	}
	if y.connect > 0 {
		a.number("weir.connect.microseconds", y.connect.Microseconds())
	}
	if y.status > 0 {
		a.number("http.response.status_code", int64(y.status))
	}
	failed := y.reason != "" || y.status >= 400
	switch {
	case y.reason != "":
		a.text("error.type", y.reason)
	case failed:
		a.text("error.type", strconv.Itoa(y.status))
	}
	t.end(&a, failed)
	return count + 1
}

// methods are the methods of HTTP that the conventions know.
var methods = []string{"GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"}

// methodOf returns the method of the request, or "_OTHER".
func methodOf(q *message.Request) (string, bool) {
	method := q.Bytes(q.Method)
	if i := slices.IndexFunc(methods, func(m string) bool { return string(method) == m }); i >= 0 {
		return methods[i], true
	}
	return "_OTHER", false
}
