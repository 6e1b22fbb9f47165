// Package trace records the traces of some requests, by the conventions of OpenTelemetry. A
// Tracer decides whether a request is traced. A Trace has the spans of one request. A Buffer
// holds finished spans in the encoding of OTLP, and an Exporter sends them. No request waits for
// the receiver of the spans.
package trace

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"

	"github.com/weirproxy/weir/proxy/accesslog"
)

// Parent is the span of the client, by the HTTP header traceparent (W3C Trace Context).
type Parent struct {
	Trace   [16]byte // zero: the client sent no valid header
	Span    [8]byte
	Sampled bool
}

// The form of the header is "00-TRACE-SPAN-FLAGS", in lower-case hexadecimal.
const (
	headerLength = 2 + 1 + 32 + 1 + 16 + 1 + 2
	spanAt       = 2 + 1 + 32 + 1
	flagsAt      = spanAt + 16 + 1
)

// Parse reads a traceparent. It accepts later versions of the form, as the specification requires
// (section 3.2.4 of W3C Trace Context, level 2).
func Parse(b []byte) (p Parent, ok bool) {
	if len(b) < headerLength || b[2] != '-' || b[spanAt-1] != '-' || b[flagsAt-1] != '-' {
		return p, false
	}
	var version, flags [1]byte
	if !unhex(version[:], b[:2]) || version[0] == 0xff || version[0] == 0 && len(b) != headerLength || len(b) > headerLength && b[headerLength] != '-' {
		return p, false
	}
	if !unhex(p.Trace[:], b[3:3+32]) || !unhex(p.Span[:], b[spanAt:spanAt+16]) || !unhex(flags[:], b[flagsAt:flagsAt+2]) {
		return Parent{}, false
	}
	if p.Trace == ([16]byte{}) || p.Span == ([8]byte{}) {
		return Parent{}, false
	}
	p.Sampled = flags[0]&1 != 0
	return p, true
}

// unhex decodes lower-case digits.
func unhex(to, from []byte) bool {
	for _, c := range from {
		if 'A' <= c && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(to, from)
	return err == nil
}

// Unsample changes a traceparent so that the endpoint does not take it for sampled.
func Unsample(header []byte) {
	if len(header) >= headerLength {
		copy(header[flagsAt:], "00")
	}
}

// appendHeader appends the traceparent of a span.
func appendHeader(b []byte, trace *[16]byte, span *[8]byte) []byte {
	b = append(b, "00-"...)
	b = append(hex.AppendEncode(b, trace[:]), '-')
	return append(hex.AppendEncode(b, span[:]), "-01"...)
}

// Tracer decides which requests are traced. It is never changed.
type Tracer struct {
	below  uint64 // a random number below it: the request is traced
	always bool
	buffer *Buffer
	redact *accesslog.Redaction
}

// NewTracer returns a Tracer of a share of the requests, from 0 to 1. Their spans go to b. redact are
// the query parameters whose values are hidden.
func NewTracer(share float64, redact []string, b *Buffer) *Tracer {
	return &Tracer{redact: accesslog.NewRedaction(redact), below: uint64(math.Ldexp(min(share, 0.999999), 64)), always: share >= 1, buffer: b}
}

// Begin returns the trace of a request, or nil if the request is not traced. trusted: the sender
// of the request may decide whether it is traced.
func (t *Tracer) Begin(p Parent, trusted bool) *Trace {
	has := p.Trace != [16]byte{}
	switch {
	case has && trusted:
		if !p.Sampled {
			return nil
		}
	case !t.always && rand.Uint64() >= t.below:
		return nil
	}
	x := traces.Get().(*Trace)
	x.tracer, x.parent, x.ID = t, p, p.Trace
	if !has {
		x.ID = newID()
	}
	x.Span = newSpan()
	return x
}

func newID() (id [16]byte) {
	binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64()|1) // never zero
	return id
}

func newSpan() (id [8]byte) {
	binary.NativeEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}
