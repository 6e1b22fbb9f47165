package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Progress shows the progress of a run: on a terminal a few lines that are redrawn,
// elsewhere a line every few seconds.
type Progress struct {
	out     io.Writer
	columns int
	o       *Options
	last    *Snapshot // the snapshot from which rates are computed
	drawn   int       // lines on the terminal
}

// plainEvery is the interval between lines if the output is not a terminal.
const plainEvery = 5 * time.Second

// NewProgress shows the run of o on out, a terminal with this number of columns; 0: out
// is no terminal.
func NewProgress(out io.Writer, columns int, o *Options) *Progress {
	return &Progress{out: out, columns: columns, o: o, last: emptySnapshot()}
}

// Show shows s.
func (p *Progress) Show(s *Snapshot) {
	switch {
	case p.columns > 0:
		p.Clear()
		for line := range strings.Lines(p.block(s)) {
			fmt.Fprintln(p.out, clip(strings.TrimSuffix(line, "\n"), p.columns))
			p.drawn++
		}
	case s.Elapsed-p.last.Elapsed >= plainEvery:
		fmt.Fprintln(p.out, p.line(s))
	default:
		return
	}
	p.last = s
}

// Clear removes the lines from the terminal.
func (p *Progress) Clear() {
	if p.drawn > 0 {
		fmt.Fprintf(p.out, "\r\x1b[%dA\x1b[J", p.drawn) // from the left: Ctrl-C may have been echoed
		p.drawn = 0
	}
}

// clip shortens a line so that the terminal does not wrap it.
func clip(line string, columns int) string {
	letters := []rune(line)
	if len(letters) < columns {
		return line
	}
	return string(letters[:max(0, columns-2)]) + "…"
}

func (p *Progress) rate(now, before int64, s *Snapshot) string {
	d := (s.Elapsed - p.last.Elapsed).Seconds()
	if d <= 0 {
		return "0/s"
	}
	return fmt.Sprintf("%s/s", number(int64(float64(now-before)/d+0.5)))
}

func (p *Progress) block(s *Snapshot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s of %s, Ctrl-C ends\n", strings.Join(p.o.Targets, " "), s.Elapsed.Round(time.Second), p.o.length().Round(time.Second))
	fmt.Fprintf(&b, "  open       %s of %s: %s\n", number(s.Open), number(int64(p.o.Connections)), counted(s.States))
	fmt.Fprintf(&b, "  opened     %s, %s\n", number(s.Opened), p.rate(s.Opened, p.last.Opened, s))
	fmt.Fprintf(&b, "  requests   %s, %s\n", number(s.Exchanges), p.rate(s.Exchanges, p.last.Exchanges, s))
	for i, d := range s.latencies() {
		if len(d) > 0 {
			fmt.Fprintf(&b, "  %-9s  %s\n", latencies[i], d.Percentiles())
		}
	}
	for _, role := range slices.Sorted(maps.Keys(s.Outcomes)) {
		fmt.Fprintf(&b, "  %s: %s\n", strings.ReplaceAll(role, "_", " "), counted(s.Outcomes[role]))
	}
	fmt.Fprintf(&b, "  anomalies  %s\n", found(s))
	return b.String()
}

// line returns the information that fits into one line.
func (p *Progress) line(s *Snapshot) string {
	var states, latency string
	if text := counted(s.States); text != "" {
		states = " (" + text + ")"
	}
	if len(s.Exchange) > 0 {
		latency = ", " + s.Exchange.Percentiles().String()
	}
	return fmt.Sprintf("%s: open %s of %s%s; opened %s, %s; requests %s, %s%s; anomalies: %s",
		s.Elapsed.Round(time.Second), number(s.Open), number(int64(p.o.Connections)), states,
		number(s.Opened), p.rate(s.Opened, p.last.Opened, s),
		number(s.Exchanges), p.rate(s.Exchanges, p.last.Exchanges, s), latency, found(s))
}

// found returns the anomalies so far, as text.
func found(s *Snapshot) string {
	counts := map[Kind]int64{}
	for kind, a := range s.Anomalies {
		counts[kind] = a.Count
	}
	if text := counted(counts); text != "" {
		return text
	}
	return "none"
}
