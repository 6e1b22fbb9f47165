package soak

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	s := emptySnapshot()
	s.Elapsed = 2 * time.Second
	s.Peak, s.Opened, s.Exchanges, s.Received, s.Sent, s.EndedIdle = 1000, 1234567, 9, 3<<20, 100, 2
	s.Statuses[200], s.Statuses[503] = 8, 1
	s.GRPC[14] = 1
	s.Exchange[bucket(time.Millisecond)] = 9
	s.Outcomes["faults"] = map[string]int64{closed: 3, served: 4}
	s.Anomalies[Reset] = &Anomaly{Kind: Reset, What: kinds[Reset], Count: 5, Examples: []Example{
		{1.25, 7, "127.0.0.8:4711", "198.18.0.8", "read: connection reset by peer"}}}
	s.Slots = []slot{{9, 5, 1000, 0, Durations{}}, {0, 0, 0, 900, Durations{}}, {0, 0, 0, 100, Durations{}}}
	o := Defaults()
	o.Targets, o.TLS, o.Header, o.MaxP99 = []string{"127.0.0.1:8443"}, true, 2, 50*time.Millisecond
	o.Fields = []string{"X-Who: me", "authorization: Bearer abc"}
	o.MaxErrors.Set("0.1%")
	if err := o.Prepare(); err != nil {
		t.Fatal(err)
	}
	r := newReport(&o, []*Snapshot{s}, time.Unix(0, 0), 2, true)
	var text, encoded bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	const want = `127.0.0.1:8443: HTTP/1.1 over TLS with PROXY v2, 2.0 s, 2 processes, interrupted
connections  1,000 wanted, peak 1,000, 1,234,567 opened, 2 closed by the target while idle
requests     9 (8 × 200, 1 × 503, 1 × grpc-status 14 (UNAVAILABLE)); 100 B sent, 3.0 MiB received
request      p50 1.01 ms, p90 1.01 ms, p99 1.01 ms, max 1.01 ms
faults       closed 3, served 4
anomalies    5

  5 × reset: the connection, or its stream, was reset
    1.2 s, connection 7 from 127.0.0.8:4711 for 198.18.0.8: read: connection reset by peer
    and 4 more
threshold met: p99 is 1.01 ms, the limit is 50ms
threshold MISSED: 5 errors in 14 requests, the limit is 0.1%
`
	if got := text.String(); got != want {
		t.Errorf("the report is\n%s", got)
	}
	if err := r.JSON(&encoded); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(encoded.Bytes(), &back); err != nil || back.Peak != 1000 || back.Targets[0].Anomalies[0].Examples[0].Client != "198.18.0.8" {
		t.Errorf("%v, %+v", err, back)
	}
	if back.Schema != Schema || back.Result != "threshold_missed" || back.Status != StatusThreshold || len(back.Thresholds) != 2 || back.Thresholds[1].Met {
		t.Errorf("the result is %q, %d, %+v", back.Result, back.Status, back.Thresholds)
	}
	if strings.Contains(encoded.String(), "abc") || !slices.Equal(back.Settings.Fields, []string{"X-Who: me", "Authorization: (left out)"}) {
		t.Errorf("the headers in the report are %q", back.Settings.Fields)
	}
	// The time after the end of the load has no request, so it is no interval of the run.
	if len(back.Series) != 2 || back.Series[0].Errors != 5 || back.Series[0].Connections != 1000 || back.Series[1].Connections != 100 {
		t.Errorf("the time series is %+v", back.Series)
	}
}

// TestSettings: the report contains every option, under its name in the code.
// A rate that three decimals cannot express is rounded.
func TestPlannedRate(t *testing.T) {
	for rate, want := range map[float64]string{500: "500", 1.5: "1.5", 4.0 / 3: "1.333"} {
		var text bytes.Buffer
		(&OpenLoop{Rate: rate}).text(&text)
		if want = "open loop\t" + want + " requests/s planned: 0 due, 0 unsent\n"; text.String() != want {
			t.Errorf("%q, want %q", &text, want)
		}
	}
}

func TestSettings(t *testing.T) {
	options, settings := reflect.TypeFor[Options](), reflect.TypeFor[Settings]()
	for i := range options.NumField() {
		if f := options.Field(i); f.IsExported() {
			if _, ok := settings.FieldByName(f.Name); !ok {
				t.Errorf("the report does not have the option %s", f.Name)
			}
		}
	}
	page, err := os.ReadFile("../docs/soak.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range settings.NumField() {
		if name := settings.Field(i).Tag.Get("json"); !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("docs/soak.md does not name %s of the report", name)
		}
	}
}

// TestReportIsDocumented: docs/soak.md has every key of the JSON report.
func TestReportIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/soak.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Report](), reflect.TypeFor[Target](), reflect.TypeFor[Numbers](), reflect.TypeFor[Point](),
		reflect.TypeFor[OpenLoop](), reflect.TypeFor[Percentiles](), reflect.TypeFor[Threshold](), reflect.TypeFor[Anomaly](), reflect.TypeFor[Example]()} {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name != "" && !bytes.Contains(page, []byte("`"+name+"`")) {
				t.Errorf("docs/soak.md does not name %s of %s", name, of.Name())
			}
		}
	}
	for status, result := range results {
		if !bytes.Contains(page, fmt.Appendf(nil, "| %d | `%s` |", status, result)) {
			t.Errorf("docs/soak.md does not explain the exit status %d, %s", status, result)
		}
	}
}

func TestKindsAreExplained(t *testing.T) {
	page, err := os.ReadFile("../docs/soak.md")
	if err != nil {
		t.Fatal(err)
	}
	for kind, what := range kinds {
		if !bytes.Contains(page, []byte("\n| `"+string(kind)+"` |")) {
			t.Errorf("docs/soak.md does not say what %s is", kind)
		}
		if kind == "" || what == "" || strings.Contains(string(kind), " ") {
			t.Errorf("%q: %q", kind, what)
		}
	}
}

func TestProgress(t *testing.T) {
	o := Defaults()
	o.Targets = []string{"127.0.0.1:8443"}
	s := emptySnapshot()
	s.Elapsed = 5 * time.Second
	s.Open, s.Opened, s.Exchanges, s.States["held"] = 1000, 1200, 5000, 1000
	s.Anomalies[WrongAddress] = &Anomaly{Count: 2}
	var plain, live bytes.Buffer
	p := NewProgress(&plain, 0, &o)
	p.Show(s)
	p.Show(s) // too early for another line
	if want := "5s: open 1,000 of 1,000 (held 1,000); opened 1,200, 240/s; requests 5,000, 1,000/s; anomalies: wrong address 2\n"; plain.String() != want {
		t.Errorf("the line is %q", plain.String())
	}
	p = NewProgress(&live, 30, &o)
	p.Show(s)
	for line := range strings.Lines(live.String()) {
		if n := len([]rune(line)); n > 30 { // including its end
			t.Errorf("%q has %d columns", line, n)
		}
	}
	lines := strings.Count(live.String(), "\n")
	p.Show(s)
	p.Clear()
	p.Clear()
	if up := fmt.Sprintf("\r\x1b[%dA\x1b[J", lines); strings.Count(live.String(), up) != 2 || strings.Contains(plain.String(), "\x1b") {
		t.Errorf("the terminal gets %q", live.String())
	}
}
