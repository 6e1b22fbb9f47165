package accesslog

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
)

// Format decides which records have a line, and makes the lines. It is never changed.
type Format struct {
	steps  []step
	json   bool
	object bool   // a template makes JSON objects
	begin  string // of a line in JSON
	filter filter
	redact *Redaction
	sample float64
	most   int            // bytes of a line
	count  *atomic.Uint64 // of the lines with the field count
}

// step writes one field, or literal text.
type step struct {
	key    string // of a field in JSON, with the comma before it and the colon after it
	text   string // literal text of a line of text; "": a field
	quoted bool   // a field of text is between quotation marks
	write  func(l *line, r *Record)
}

// lines is the number of lines with the field count since the process began.
var lines atomic.Uint64

// NewFormat makes the format of a configuration.
func NewFormat(c config.AccessLog) *Format {
	f := &Format{filter: newFilter(c), redact: NewRedaction(c.Redact), sample: c.Sample, most: cmp.Or(c.MaxLine, config.DefaultMaxLine), count: &lines}
	switch {
	case c.Format.IsTemplate():
		var parts []any
		for _, p := range c.Format.Parts() {
			if p.Field != "" {
				parts = append(parts, p.Field)
			} else {
				parts = append(parts, p.Text)
			}
		}
		f.steps, f.object = presetSteps(parts), c.Format.IsObject()
		if tabs := slices.Contains(parts, any(config.LogField("tab"))); tabs && !f.object {
			for i := range f.steps {
				f.steps[i].quoted = true // tabs separate the columns, so a value may have spaces
			}
		}
	case c.Format.JSON():
		f.json = true
		d := dialects[c.Format]
		f.begin = "{" + d.begin
		for _, name := range chosenFields(c, d) {
			f.steps = append(f.steps, d.steps(name)...)
			if name == "peer" && c.Format == config.LogJSON && !slices.Contains(c.Fields, name) {
				f.steps[len(f.steps)-1].write = otherPeer
			}
		}
	default:
		f.steps = presetSteps(presets[c.Format])
	}
	return f
}

// chosenFields returns the fields of a line in JSON.
func chosenFields(c config.AccessLog, d dialect) (all []config.LogField) {
	add := func(name config.LogField) {
		if !slices.Contains(all, name) && !slices.Contains(c.Omit, name) {
			all = append(all, name)
		}
	}
	wanted := c.Fields
	if len(wanted) == 0 {
		wanted = []config.LogField{config.DefaultFields}
	}
	for _, name := range wanted {
		if name != config.DefaultFields {
			add(name)
			continue
		}
		usual := d.usual
		if usual == nil {
			usual = config.LogFields
		}
		for _, name := range usual {
			add(name)
		}
	}
	return all
}

// share returns the share of records like r that have a line, and whether r is one of them.
func (f *Format) share(r *Record) (share float64, chosen bool) {
	switch {
	case !f.filter.wants(r):
		return 0, false
	case f.sample >= 1 || !r.Good():
		return 1, true
	}
	return f.sample, rand.Float64() < f.sample
}

// Append appends the line of a record to b, whatever the filter and the share of such records. The
// Writer writes lines by Put; Append is for single ones.
func (f *Format) Append(b []byte, r *Record) []byte {
	l := line{b: b, share: 1}
	f.append(&l, r)
	return l.b
}

// append writes the line of a record. If the line would be too long, append writes it again, and cuts its longest values.
func (f *Format) append(l *line, r *Record) {
	if r.Ended.IsZero() {
		r.Ended = time.Now()
	}
	l.format, l.fields.in, l.counted = f, nil, 0
	begin := len(l.b)
	for l.most = f.most; ; l.most /= 2 {
		if f.write(l, r); len(l.b)-begin <= f.most || l.most < leastCut {
			return
		}
		l.b = l.b[:begin]
	}
}

// leastCut is a length to which a value is always cut, in bytes.
const leastCut = 32

// write writes the line. It cuts each value that is longer than l.most.
func (f *Format) write(l *line, r *Record) {
	if f.json {
		f.appendJSON(l, r)
		return
	}
	l.key, l.object = "", f.object
	for i := range f.steps {
		s := &f.steps[i]
		if s.write == nil {
			l.b = append(l.b, s.text...)
			continue
		}
		before := len(l.b)
		l.quoted = s.quoted
		if s.write(l, r); len(l.b) == before {
			l.b = append(l.b, f.missing(s.quoted)...)
		}
	}
	l.b = append(l.b, '\n')
}

// missing is what a line of text has in place of a missing value.
func (f *Format) missing(quoted bool) string {
	switch {
	case !f.object:
		return "-"
	case quoted:
		return "" // programs that read a number or a time refuse a dash
	}
	return "null"
}

func (f *Format) appendJSON(l *line, r *Record) {
	l.b = append(l.b, f.begin...)
	for i := range f.steps {
		s := &f.steps[i]
		l.key = s.key
		s.write(l, r)
	}
	l.b = append(l.b, '}', '\n')
}

// filter decides which records have a line.
type filter struct {
	kinds       []string // nil: all
	status      []config.StatusRange
	minDuration time.Duration
	retries     bool
	conditions  bool // status, minDuration or retries
}

func newFilter(c config.AccessLog) (f filter) {
	if presets[c.Format] != nil {
		f.kinds = []string{"http", "upgrade"}
	}
	x := c.Filter
	if x == nil {
		return f
	}
	if len(x.Kinds) > 0 {
		f.kinds = nil
	}
	for _, k := range x.Kinds {
		f.kinds = append(f.kinds, string(k))
	}
	f.status, f.minDuration, f.retries = x.Status, x.MinDuration, x.Retries
	f.conditions = len(f.status) > 0 || f.minDuration > 0 || f.retries
	return f
}

func (f *filter) wants(r *Record) bool {
	if f.kinds != nil && !slices.Contains(f.kinds, r.Kind) {
		return false
	}
	if !f.conditions || r.Kind != "http" && r.Kind != "upgrade" {
		return true
	}
	if f.minDuration > 0 && r.Duration >= f.minDuration || f.retries && r.Attempts > 1 {
		return true
	}
	for _, s := range f.status {
		if s.Min <= r.Status && r.Status <= s.Max {
			return true
		}
	}
	return false
}
