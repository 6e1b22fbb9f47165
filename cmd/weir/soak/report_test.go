package soak

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	s := newCounts().snapshot(2 * time.Second)
	s.Peak, s.Opened, s.Exchanges, s.Received, s.Sent, s.EndedIdle = 1000, 1234567, 9, 3<<20, 100, 2
	s.Statuses[200], s.Statuses[503] = 8, 1
	s.Exchange[bucket(time.Millisecond)] = 9
	s.Outcomes["faults"] = map[string]int64{closed: 3, served: 4}
	s.Anomalies[Reset] = &Anomaly{Kind: Reset, What: kinds[Reset], Count: 5, Examples: []Example{
		{1.25, 7, "127.0.0.8:4711", "198.18.0.8", "read: connection reset by peer"}}}
	o := Defaults()
	o.Address, o.TLS, o.Header = "127.0.0.1:8443", true, 2
	r := newReport(&o, s, time.Unix(0, 0), 2, true)
	var text, encoded bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	const want = `127.0.0.1:8443: HTTP/1.1 over TLS with PROXY v2, 2.0 s, 2 processes, interrupted
connections  1,000 wanted, 1,000 open at once at most, 1,234,567 opened, 2 ended by the other side while idle
exchanges    9 (8 × 200, 1 × 503); 100 B sent, 3.0 MiB received
exchange     p50 1.02 ms, p90 1.02 ms, p99 1.02 ms, max 1.02 ms
faults       closed 3, served 4
anomalies    5

  5 × reset: the connection, or its stream, was reset
    1.2 s, connection 7 from 127.0.0.8:4711 for 198.18.0.8: read: connection reset by peer
    and 4 more
`
	if got := text.String(); got != want {
		t.Errorf("the report is\n%s", got)
	}
	if err := r.JSON(&encoded); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(encoded.Bytes(), &back); err != nil || back.Peak != 1000 || back.Anomalies[0].Examples[0].Client != "198.18.0.8" {
		t.Errorf("%v, %+v", err, back)
	}
}

func TestKindsAreExplained(t *testing.T) {
	page, err := os.ReadFile("../../../docs/soak.md")
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
	o.Address = "127.0.0.1:8443"
	s := newCounts().snapshot(5 * time.Second)
	s.Open, s.Opened, s.Exchanges, s.States["held"] = 1000, 1200, 5000, 1000
	s.Anomalies[WrongAddress] = &Anomaly{Count: 2}
	var plain, live bytes.Buffer
	p := NewProgress(&plain, 0, &o)
	p.Show(s)
	p.Show(s) // too soon
	if want := "5s: open 1,000 of 1,000 (held 1,000); opened 1,200, 240/s; exchanges 5,000, 1,000/s, p50 0 µs, p90 0 µs, p99 0 µs, max 0 µs; anomalies: wrong address 2\n"; plain.String() != want {
		t.Errorf("the line is %q", plain.String())
	}
	p = NewProgress(&live, 30, &o)
	p.Show(s)
	for line := range strings.Lines(live.String()) {
		if n := len([]rune(line)); n > 30 { // with its end
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
