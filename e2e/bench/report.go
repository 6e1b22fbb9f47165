package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is the result of a run.
type report struct {
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Peers    []string          `json:"peers"`
	Fields   string            `json:"fields"`
	Threads  int               `json:"threads"`
	Rounds   int               `json:"rounds"`
	Duration string            `json:"duration"`
	Rows     []result          `json:"rows"`
}

type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	When   string `json:"when"`
}

// result is one row of the table.
type result struct {
	Row     string              `json:"row"`
	Name    string              `json:"name"`
	Micros  map[string]spread   `json:"cpu_microseconds_per_request,omitempty"`
	KiB     map[string]spread   `json:"resident_kib_per_connection,omitempty"`
	Ratios  map[string]spread   `json:"weir_ratio_to"`
	Single  map[string]spread   `json:"ratio_to_single_route,omitempty"` // the key is a proxy; nil: the row has a single route
	Budget  float64             `json:"budget,omitempty"`                // 0: none
	Against string              `json:"budget_against,omitempty"`
	Met     *bool               `json:"met,omitempty"`
	Samples map[string][]sample `json:"samples"`
}

// spread is the median of some rounds, with their range.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(v []float64) spread {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

func (b *bench) report() report {
	rep := report{Machine: thisMachine(), Versions: b.versions(), Peers: b.peers, Fields: b.fields, Threads: b.threads, Rounds: b.rounds, Duration: b.duration.String()}
	for _, r := range b.rows {
		samples := b.samples[r.Key]
		budget, against := b.budget(r)
		res := result{Row: r.Key, Name: r.Name, Budget: budget, Against: against,
			Samples: samples, Ratios: map[string]spread{}}
		values := map[string]spread{}
		if res.Micros = values; r.idle {
			res.Micros, res.KiB = nil, values
		}
		for name, s := range samples {
			values[name] = spreadOf(valuesOf(s))
			if weir := samples["weir"]; name != "weir" && !strings.HasSuffix(name, singleRoute) && weir != nil {
				res.Ratios[name] = spreadOf(ratios(weir, s))
			}
		}
		if r.among != "" {
			res.Single = singleRatios(samples)
		}
		if ratio, ok := res.against(); ok {
			met := ratio.Median <= budget
			res.Met = &met
		}
		rep.Rows = append(rep.Rows, res)
	}
	return rep
}

func valuesOf(s []sample) []float64 {
	var v []float64
	for _, one := range s {
		v = append(v, one.value())
	}
	return v
}

// ratios compares the two proxies round by round, because a disturbance of a round
// affects both.
func ratios(weir, peer []sample) []float64 {
	var v []float64
	for i := range weir {
		v = append(v, weir[i].value()/peer[i].value())
	}
	return v
}

// table returns the report in Markdown.
func (r report) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "CPU microseconds of the proxy per request (user + system), median of %d rounds of %s (least to most).\n", r.Rounds, r.Duration)
	fmt.Fprintf(&t, "%s, %d cores, Linux %s, %s, %s. Threads of each proxy: %d. HTTP headers set by the peers: %s.\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go, r.Machine.When, r.Threads, r.Fields)
	for _, name := range r.Peers {
		fmt.Fprintf(&t, "%s: %s\n", name, r.Versions[name])
	}
	head := r.head()
	budgets := r.head("must reach", "")
	r.rowsOf(&t, "\n"+budgets, func(row result) bool { return row.Budget > 0 && row.KiB == nil && row.Single == nil })
	r.amongRows(&t)
	r.rowsOf(&t, "\nResident KiB of the proxy per idle connection:\n\n"+budgets,
		func(row result) bool { return row.Budget > 0 && row.KiB != nil })
	r.rowsOf(&t, "\nFor comparison; in rows of handshakes each connection has one request:\n\n"+head,
		func(row result) bool { return row.Budget == 0 && row.KiB == nil })
	r.rowsOf(&t, "\nResident KiB of the proxy per idle connection, for comparison:\n\n"+head,
		func(row result) bool { return row.Budget == 0 && row.KiB != nil })
	return t.String()
}

// labels are the names of the proxies in tables.
var labels = map[string]string{"weir": "weir", "haproxy": "HAProxy", "haproxy3": "HAProxy 3.x", "nginx": "nginx"}

// head returns the head of a table: the proxies, the ratios of weir to them, and more columns.
func (r report) head(more ...string) string {
	columns := []string{""}
	for _, name := range r.Peers {
		columns = append(columns, labels[name])
	}
	for _, name := range r.Peers {
		if name != "weir" {
			columns = append(columns, "weir / "+labels[name])
		}
	}
	columns = append(columns, more...)
	return "| " + strings.Join(columns, " | ") + " |\n|" + strings.Repeat("---|", len(columns)) + "\n"
}

// rowsOf writes the table of the rows for which belongs returns true. Without such rows it writes nothing.
func (r report) rowsOf(t *strings.Builder, head string, belongs func(result) bool) {
	for _, row := range r.Rows {
		if !belongs(row) {
			continue
		}
		t.WriteString(head)
		head = ""
		fmt.Fprintf(t, "| %s |", row.Name)
		for _, name := range r.Peers {
			fmt.Fprintf(t, " %s |", cell(row.values(), name, 1))
		}
		for _, name := range r.Peers {
			if name != "weir" {
				fmt.Fprintf(t, " %s |", cell(row.Ratios, name, 2))
			}
		}
		if row.Budget > 0 {
			fmt.Fprintf(t, " <= %.3g x %s | %s |", row.Budget, row.Against, verdict(row.Met))
		}
		t.WriteString("\n")
	}
}

// values returns the row's values, whatever the row measures.
func (r result) values() map[string]spread {
	if r.KiB != nil {
		return r.KiB
	}
	return r.Micros
}

func cell(of map[string]spread, name string, digits int) string {
	s, ok := of[name]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, s.Median, digits, s.Min, digits, s.Max)
}

func verdict(met *bool) string {
	switch {
	case met == nil:
		return ""
	case *met:
		return "met"
	}
	return "missed"
}

func (r report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func thisMachine() machine {
	m := machine{CPU: "unknown CPU", Cores: runtime.NumCPU(), Go: runtime.Version(), When: time.Now().UTC().Format(time.DateOnly)}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	return m
}

// versions gets the first line of each proxy's version output.
func (b *bench) versions() map[string]string {
	v := map[string]string{}
	for _, name := range b.peers {
		args := slices.Clone(proxies[name].version)
		args[0] = b.program(name)
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		line, _, _ := strings.Cut(string(out), "\n")
		if v[name] = line; err != nil {
			v[name] = err.Error()
		}
	}
	return v
}
