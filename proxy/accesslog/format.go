package accesslog

import (
	"math/rand/v2"
	"time"

	"github.com/weirproxy/weir/config"
)

// Format decides which records have a line, and makes the lines. It is never changed.
type Format struct {
	steps  []step
	redact *redaction
	sample float64
}

// step writes one field.
type step struct {
	key   string // with the comma before it and the colon after it
	write func(l *line, r *Record)
}

// NewFormat makes the format of a configuration.
func NewFormat(c config.AccessLog) *Format {
	f := &Format{redact: newRedaction(c.Redact), sample: c.Sample}
	for _, x := range fields {
		f.steps = append(f.steps, step{`,"` + x.name + `":`, x.write})
	}
	return f
}

// share returns the share of records like r that have a line, and whether r is one of them.
func (f *Format) share(r *Record) (share float64, chosen bool) {
	if f.sample >= 1 || !r.Good() {
		return 1, true
	}
	return f.sample, rand.Float64() < f.sample
}

// Append appends the line of a record to b, whatever the share of such records. The Writer writes
// lines by Put; Append is for single ones.
func (f *Format) Append(b []byte, r *Record) []byte {
	l := line{b: b, share: 1}
	f.append(&l, r)
	return l.b
}

// append writes the line of a record.
func (f *Format) append(l *line, r *Record) {
	if r.Ended.IsZero() {
		r.Ended = time.Now()
	}
	l.redact = f.redact
	l.b = append(l.b, '{')
	for i := range f.steps {
		s := &f.steps[i]
		l.key = s.key
		s.write(l, r)
	}
	l.b = append(l.b, '}', '\n')
}
