package soak

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Schema is the version of the JSON report. It changes when programs that read the report
// may have to change.
const Schema = 1

// Report is the result of a run.
type Report struct {
	Schema      int       `json:"schema"`
	Start       time.Time `json:"start"`
	Seconds     float64   `json:"seconds"` // until the load ended
	Interrupted bool      `json:"interrupted"`
	Processes   int       `json:"processes"`
	Result      string    `json:"result"`
	Status      int       `json:"exit_status"`
	why         string
	Settings    Settings    `json:"options"`
	Thresholds  []Threshold `json:"thresholds"`
	Numbers                 // sums for all targets
	Targets     []Target    `json:"targets"`
}

// A Target is the result for one target.
type Target struct {
	Name        string `json:"target"`
	Address     string `json:"address"`
	Protocol    string `json:"protocol"`
	TLS         bool   `json:"tls"`
	ProxyHeader int    `json:"proxy_header"` // its version; 0: none
	Host        string `json:"host"`
	SNI         string `json:"sni"` // as it was sent; empty: without
	Path        string `json:"path"`
	Numbers
}

// Numbers are the counters for one target, or for all.
type Numbers struct {
	Wanted         int                         `json:"connections_wanted"`
	Peak           int64                       `json:"connections_peak"`
	Opened         int64                       `json:"connections_opened"`
	EndedIdle      int64                       `json:"connections_ended_idle"`
	Refused        int64                       `json:"connections_refused"` // failed attempts to connect; each is also an anomaly
	Requests       int64                       `json:"requests"`            // successful ones
	Received       int64                       `json:"bytes_received"`
	Sent           int64                       `json:"bytes_sent"`
	Statuses       map[int]int64               `json:"statuses"`
	GRPCStatuses   map[int]int64               `json:"grpc_statuses"`
	Latency        map[string]Percentiles      `json:"latency"`
	OpenLoop       *OpenLoop                   `json:"open_loop,omitempty"`
	Outcomes       map[string]map[string]int64 `json:"outcomes"`     // of connections with faults, by fault
	ClosedAfter    Percentiles                 `json:"closed_after"` // how long the connections lived that the other side closed
	AnomaliesInAll int64                       `json:"anomalies_total"`
	Anomalies      []*Anomaly                  `json:"anomalies"`
	Interval       float64                     `json:"interval_seconds"`
	Series         []Point                     `json:"series"`
}

// examplesShown is how many examples of each kind the text report shows.
const examplesShown = 3

// The kinds of latency, in the order of reports.
var latencies = []string{"connect", "handshake", "upgrade", "request"}

func (s *Snapshot) latencies() []Durations {
	return []Durations{s.Connect, s.Handshake, s.Upgrade, s.Exchange}
}

func newReport(o *Options, targets []*Snapshot, start time.Time, processes int, interrupted bool) *Report {
	all := total(targets)
	r := &Report{
		Schema: Schema, Start: start, Seconds: all.Elapsed.Seconds(), Interrupted: interrupted, Processes: processes,
		Settings: newSettings(o), Thresholds: []Threshold{}, Numbers: newNumbers(o, all, o.Connections, o.planned()),
	}
	for i, s := range targets {
		p := o.plans[i]
		t := Target{
			Name: p.name, Address: p.resolved.String(), Protocol: p.Protocol, TLS: p.TLS, ProxyHeader: p.Header, Host: p.Host, Path: p.Path,
			Numbers: newNumbers(o, s, portion(o.Connections, i, len(targets)), planned(o, i)),
		}
		if c := p.tlsConfig(); c != nil && net.ParseIP(c.ServerName) == nil {
			t.SNI = c.ServerName
		}
		r.Targets = append(r.Targets, t)
	}
	r.judge(o, targets)
	return r
}

// planned returns the number of requests of an open loop for one target.
func planned(o *Options, target int) int64 {
	n, targets := o.planned(), int64(len(o.plans))
	return (n + targets - 1 - int64(target)) / targets
}

func newNumbers(o *Options, s *Snapshot, wanted int, planned int64) Numbers {
	n := Numbers{
		Wanted: wanted, Peak: s.Peak, Opened: s.Opened, EndedIdle: s.EndedIdle, Refused: refusedConnects(s),
		Requests: s.Exchanges, Received: s.Received, Sent: s.Sent, Statuses: s.Statuses, GRPCStatuses: s.GRPC,
		Latency: map[string]Percentiles{}, OpenLoop: newOpenLoop(o, s, planned),
		Outcomes: s.Outcomes, ClosedAfter: s.GivenUp.Percentiles(),
		Anomalies: slices.AppendSeq([]*Anomaly{}, maps.Values(s.Anomalies)),
		Interval:  o.interval().Seconds(), Series: points(s.Slots, o.interval(), s.Elapsed),
	}
	for i, d := range s.latencies() {
		n.Latency[latencies[i]] = d.Percentiles()
	}
	slices.SortFunc(n.Anomalies, func(a, b *Anomaly) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(string(a.Kind), string(b.Kind)))
	})
	for _, a := range n.Anomalies {
		n.AnomaliesInAll += a.Count
		slices.SortStableFunc(a.Examples, func(a, b Example) int { return cmp.Compare(a.After, b.After) })
	}
	return n
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
	for _, t := range r.Targets {
		fmt.Fprintf(&b, "%s: %s", t.Name, t.speaks())
		if len(r.Targets) == 1 {
			b.WriteString(r.how())
		}
		b.WriteString("\n")
		t.text(&b)
		if len(r.Targets) > 1 {
			b.WriteString("\n")
		}
	}
	if len(r.Targets) > 1 {
		fmt.Fprintf(&b, "all %d targets%s\n", len(r.Targets), r.how())
		short := r.Numbers
		short.Anomalies = withoutExamples(short.Anomalies) // the examples are printed above
		short.text(&b)
	}
	for _, t := range r.Thresholds {
		fmt.Fprintf(&b, "threshold %s: %s\n", map[bool]string{true: "met", false: "MISSED"}[t.Met], r.named(t.Target, t.text))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// how describes how the run was made.
func (r *Report) how() string {
	s := fmt.Sprintf(", %.1f s", r.Seconds)
	if r.Processes > 1 {
		s += fmt.Sprintf(", %d processes", r.Processes)
	}
	if r.Interrupted {
		s += ", interrupted"
	}
	return s
}

func (n *Numbers) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "connections\t%s wanted, peak %s, %s opened", number(int64(n.Wanted)), number(n.Peak), number(n.Opened))
	if n.EndedIdle > 0 {
		fmt.Fprintf(t, ", %s closed by the target while idle", number(n.EndedIdle))
	}
	if n.Refused > 0 {
		fmt.Fprintf(t, "\nconnect refused\t%s times, before a request was sent", number(n.Refused))
	}
	fmt.Fprintf(t, "\nrequests\t%s%s; %s sent, %s received\n", number(n.Requests), n.statuses(), size(n.Sent), size(n.Received))
	for _, what := range latencies {
		if p := n.Latency[what]; p.Count > 0 {
			fmt.Fprintf(t, "%s\t%s\n", what, p)
		}
	}
	n.OpenLoop.text(t)
	for _, role := range slices.Sorted(maps.Keys(n.Outcomes)) {
		fmt.Fprintf(t, "%s\t%s\n", strings.ReplaceAll(role, "_", " "), counted(n.Outcomes[role]))
	}
	if n.ClosedAfter.Count > 0 {
		fmt.Fprintf(t, "closed after\t%s\n", n.ClosedAfter)
	}
	n.anomalies(t)
	t.Flush()
}

func (l *OpenLoop) text(w io.Writer) {
	if l == nil {
		return
	}
	fmt.Fprintf(w, "open loop\t%s requests/s planned: %s due, %s unsent\n", trimmed(l.Rate), number(l.Due), number(l.Unsent))
	if l.Waited.Max > 0.001 {
		fmt.Fprintf(w, "waited\t%s for a free connection; the request latency includes this\n", l.Waited)
	}
	if l.Behind.Count == 0 {
		return // no request began
	}
	fmt.Fprintf(w, "generator\t%s behind its timetable\n", l.Behind)
	if !l.KeptUp {
		fmt.Fprintf(w, "\tTHIS MACHINE COULD NOT KEEP UP with the rate, so the request latency is partly its own: use a lower --rate or more --processes\n")
	}
}

// trimmed returns f with at most three decimals.
func trimmed(f float64) string { return strconv.FormatFloat(math.Round(f*1000)/1000, 'f', -1, 64) }

func withoutExamples(all []*Anomaly) []*Anomaly {
	var short []*Anomaly
	for _, a := range all {
		short = append(short, &Anomaly{Kind: a.Kind, What: a.What, Count: a.Count})
	}
	return short
}

// speaks describes the connections to the target.
func (t *Target) speaks() string {
	s := map[string]string{HTTP1: "HTTP/1.1", HTTP2: "HTTP/2", GRPC: "gRPC", WebSocket: "WebSocket", Raw: "raw"}[t.Protocol]
	if t.TLS {
		s += " over TLS"
	}
	if t.ProxyHeader > 0 {
		s += fmt.Sprintf(" with PROXY v%d", t.ProxyHeader)
	}
	return s
}

func (n *Numbers) statuses() string {
	var all []string
	for _, status := range slices.Sorted(maps.Keys(n.Statuses)) {
		all = append(all, fmt.Sprintf("%s × %d", number(n.Statuses[status]), status))
	}
	for _, status := range slices.Sorted(maps.Keys(n.GRPCStatuses)) {
		all = append(all, fmt.Sprintf("%s × grpc-status %s", number(n.GRPCStatuses[status]), grpcText(status)))
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

func (n *Numbers) anomalies(w io.Writer) {
	if n.AnomaliesInAll == 0 {
		fmt.Fprintf(w, "anomalies\tnone\n")
		return
	}
	fmt.Fprintf(w, "anomalies\t%s\n", number(n.AnomaliesInAll))
	for _, a := range n.Anomalies {
		fmt.Fprintf(w, "\n  %s × %s: %s\n", number(a.Count), a.Kind, a.What)
		shown := a.Examples[:min(examplesShown, len(a.Examples))]
		for _, e := range shown {
			fmt.Fprintf(w, "    %s\n", e)
		}
		if len(shown) == 0 {
			continue
		}
		if more := a.Count - int64(len(shown)); more > 0 {
			fmt.Fprintf(w, "    and %s more\n", number(more))
		}
	}
}

func (e Example) String() string {
	s := fmt.Sprintf("%.1f s", e.After)
	if e.Connection >= 0 {
		s += fmt.Sprintf(", connection %d", e.Connection)
	}
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

// seconds formats with three digits, which is the precision of the measurement.
func seconds(s float64) string {
	switch {
	case s < 0.001:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}

// number adds separators between thousands.
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

// counted lists counters by name.
func counted[K ~string](counts map[K]int64) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name]; n > 0 {
			all = append(all, fmt.Sprintf("%s %s", strings.ReplaceAll(string(name), "_", " "), number(n)))
		}
	}
	return strings.Join(all, ", ")
}
