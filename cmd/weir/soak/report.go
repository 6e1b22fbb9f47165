package soak

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a run has found.
type Report struct {
	Address        string                      `json:"address"`
	Protocol       string                      `json:"protocol"`
	TLS            bool                        `json:"tls"`
	ProxyHeader    int                         `json:"proxy_header"` // its version; 0: none
	Start          time.Time                   `json:"start"`
	Seconds        float64                     `json:"seconds"`
	Interrupted    bool                        `json:"interrupted"`
	Processes      int                         `json:"processes"`
	Wanted         int                         `json:"connections_wanted"`
	Peak           int64                       `json:"connections_peak"`
	Opened         int64                       `json:"connections_opened"`
	EndedIdle      int64                       `json:"connections_ended_idle"`
	Exchanges      int64                       `json:"exchanges"`
	Received       int64                       `json:"bytes_received"`
	Sent           int64                       `json:"bytes_sent"`
	Statuses       map[int]int64               `json:"statuses"`
	Latency        map[string]Percentiles      `json:"latency"`
	Outcomes       map[string]map[string]int64 `json:"outcomes"`     // of connections with faults, by what they had
	ClosedAfter    Percentiles                 `json:"closed_after"` // how long those lived that the other side closed
	AnomaliesInAll int64                       `json:"anomalies_total"`
	Anomalies      []*Anomaly                  `json:"anomalies"`
}

// examplesShown is how many examples of each kind there are in text.
const examplesShown = 3

// What latency is measured of, in the order of reports.
var latencies = []string{"connect", "handshake", "exchange"}

func newReport(o *Options, s *Snapshot, start time.Time, processes int, interrupted bool) *Report {
	r := &Report{
		Address: o.Address, Protocol: o.Protocol, TLS: o.TLS, ProxyHeader: o.Header,
		Start: start, Seconds: s.Elapsed.Seconds(), Interrupted: interrupted, Processes: processes,
		Wanted: o.Connections, Peak: s.Peak, Opened: s.Opened, EndedIdle: s.EndedIdle,
		Exchanges: s.Exchanges, Received: s.Received, Sent: s.Sent, Statuses: s.Statuses,
		Latency:  map[string]Percentiles{"connect": s.Connect.Percentiles(), "handshake": s.Handshake.Percentiles(), "exchange": s.Exchange.Percentiles()},
		Outcomes: s.Outcomes, ClosedAfter: s.GivenUp.Percentiles(),
		Anomalies: slices.AppendSeq([]*Anomaly{}, maps.Values(s.Anomalies)),
	}
	slices.SortFunc(r.Anomalies, func(a, b *Anomaly) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(string(a.Kind), string(b.Kind)))
	})
	for _, a := range r.Anomalies {
		r.AnomaliesInAll += a.Count
		slices.SortStableFunc(a.Examples, func(a, b Example) int { return cmp.Compare(a.After, b.After) })
	}
	return r
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %.1f s", r.Address, r.speaks(), r.Seconds)
	if r.Processes > 1 {
		fmt.Fprintf(&b, ", %d processes", r.Processes)
	}
	if r.Interrupted {
		b.WriteString(", interrupted")
	}
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "\nconnections\t%s wanted, %s open at once at most, %s opened", number(int64(r.Wanted)), number(r.Peak), number(r.Opened))
	if r.EndedIdle > 0 {
		fmt.Fprintf(t, ", %s ended by the other side while idle", number(r.EndedIdle))
	}
	fmt.Fprintf(t, "\nexchanges\t%s%s; %s sent, %s received\n", number(r.Exchanges), r.statuses(), size(r.Sent), size(r.Received))
	for _, what := range latencies {
		if p := r.Latency[what]; p.Count > 0 {
			fmt.Fprintf(t, "%s\t%s\n", what, p)
		}
	}
	for _, role := range slices.Sorted(maps.Keys(r.Outcomes)) {
		fmt.Fprintf(t, "%s\t%s\n", strings.ReplaceAll(role, "_", " "), counted(r.Outcomes[role]))
	}
	if r.ClosedAfter.Count > 0 {
		fmt.Fprintf(t, "closed after\t%s\n", r.ClosedAfter)
	}
	r.anomalies(t)
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

// speaks is what the connections of the run are, in words.
func (r *Report) speaks() string {
	s := map[string]string{HTTP1: "HTTP/1.1", HTTP2: "HTTP/2", Raw: "raw"}[r.Protocol]
	if r.TLS {
		s += " over TLS"
	}
	if r.ProxyHeader > 0 {
		s += fmt.Sprintf(" with PROXY v%d", r.ProxyHeader)
	}
	return s
}

func (r *Report) statuses() string {
	var all []string
	for _, status := range slices.Sorted(maps.Keys(r.Statuses)) {
		all = append(all, fmt.Sprintf("%s × %d", number(r.Statuses[status]), status))
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

func (r *Report) anomalies(w io.Writer) {
	if r.AnomaliesInAll == 0 {
		fmt.Fprintf(w, "anomalies\tnone\n")
		return
	}
	fmt.Fprintf(w, "anomalies\t%s\n", number(r.AnomaliesInAll))
	for _, a := range r.Anomalies {
		fmt.Fprintf(w, "\n  %s × %s: %s\n", number(a.Count), a.Kind, a.What)
		shown := a.Examples[:min(examplesShown, len(a.Examples))]
		for _, e := range shown {
			fmt.Fprintf(w, "    %s\n", e)
		}
		if more := a.Count - int64(len(shown)); more > 0 {
			fmt.Fprintf(w, "    and %s more\n", number(more))
		}
	}
}

func (e Example) String() string {
	s := fmt.Sprintf("%.1f s, connection %d", e.After, e.Connection)
	if e.From != "" {
		s += " from " + e.From
	}
	if e.Client != "" {
		s += " for " + e.Client
	}
	return s + ": " + e.Detail
}

func (p Percentiles) String() string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s", seconds(p.P50), seconds(p.P90), seconds(p.P99), seconds(p.Max))
}

// seconds has three digits, which is what there is to know.
func seconds(s float64) string {
	switch {
	case s < 0.001:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}

// number separates thousands.
func number(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	v := float64(n)
	for len(units) > 1 && v >= 1024 {
		v, units = v/1024, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}

// counted lists counts by name.
func counted[K ~string](counts map[K]int64) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name]; n > 0 {
			all = append(all, fmt.Sprintf("%s %s", strings.ReplaceAll(string(name), "_", " "), number(n)))
		}
	}
	return strings.Join(all, ", ")
}
