package soak

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"
)

// load is one "weir soak" for the whole time: these clients want every answer,
// whatever happens to the weir, its configuration and its endpoints meanwhile.
type load struct {
	name     string
	listener string
	n        int // connections, times -load
	args     []string
	least    int64 // required number of requests in 10 s
}

// Clients of the port for TLS, which wants a header of each.
var (
	byTLS  = []string{"--tls", "--proxy-header", "v2", "--clients", "198.18.0.0/15,2001:db8::/32"}
	byTLS1 = []string{"--tls", "--proxy-header", "v1"}
	by2    = append([]string{"--protocol", "http2"}, byTLS...)
	raw    = []string{"--protocol", "raw", "--send", "is anybody there?", "--reply", "is anybody there\\?"}
)

// loads: some are busy and come and go, some are so quiet that they are parked
// between any two exchanges, and some misbehave on a part of their connections
// while the others must not notice.
var loads = []load{
	{"plain", "web", 16, []string{"--every", "200ms", "--churn", "8s"}, 200},
	{"plain, quiet", "web", 40, []string{"--every", "4s"}, 40},
	{"plain HTTP/2, quiet", "web", 10, []string{"--protocol", "http2", "--every", "3s"}, 10},
	{"TLS", "secure", 16, append([]string{"--every", "300ms", "--churn", "5s"}, byTLS...), 100},
	{"TLS, quiet", "secure", 40, append([]string{"--every", "4s"}, byTLS1...), 40},
	{"HTTP/2", "secure", 16, append([]string{"--every", "300ms", "--churn", "5s"}, by2...), 100},
	{"HTTP/2, quiet", "secure", 40, append([]string{"--every", "4s"}, by2...), 40},
	{"through a second weir", "secure", 10, append([]string{"--every", "300ms", "--churn", "4s", "--path", "/chain/"}, byTLS...), 50},
	// An endpoint that dies takes the requests with it that it had. Nobody waits for them, and others are served.
	{"endpoints that die", "secure", 10, append([]string{"--every", "100ms", "--churn", "2s", "--path", "/doomed/", "--status", "200,502,503"}, byTLS...), 100},
	{"tunnels", "raw", 16, append([]string{"--every", "100ms", "--churn", "3s"}, raw...), 200},
	{"tunnels, quiet", "raw", 40, append([]string{"--every", "4s"}, raw...), 40},

	{"bodies without an end", "web", 10, []string{"--path", "/steady/", "--body", "50000", "--open-bodies", "20%", "--every", "500ms", "--churn", "4s"}, 20},
	{"slow readers", "web", 10, []string{"--path", "/steady/bytes/300000", "--slow-readers", "30%", "--every", "1s", "--churn", "6s"}, 10},
	{"half a head", "web", 10, []string{"--cut", "head+20=silent", "--share", "50%", "--expect", "unserved", "--every", "1s", "--churn", "6s"}, 10},
	{"late headers", "secure", 10, append([]string{"--delay", "header+8=20s", "--share", "50%", "--expect", "closed", "--every", "1s"}, byTLS...), 10},
	{"cut headers", "secure", 10, append([]string{"--cut", "header+50%", "--share", "50%", "--expect", "closed", "--every", "1s"}, byTLS...), 10},
	{"reset headers", "secure", 10, append([]string{"--cut", "header+8=reset", "--share", "50%", "--every", "1s", "--churn", "2s"}, byTLS...), 10},
	{"cut ClientHellos", "secure", 10, append([]string{"--cut", "hello+50%", "--share", "50%", "--expect", "closed", "--every", "1s"}, byTLS...), 10},
}

// report is what "weir soak" says, as far as it is looked at.
type report struct {
	Requests int64                       `json:"requests"`
	Opened   int64                       `json:"connections_opened"`
	Idle     int64                       `json:"connections_ended_idle"`
	Outcomes map[string]map[string]int64 `json:"outcomes"`
	Latency  map[string]struct {
		P50 float64 `json:"p50_seconds"`
		P99 float64 `json:"p99_seconds"`
	} `json:"latency"`
	Anomalies []struct {
		Kind     string           `json:"kind"`
		Count    int64            `json:"count"`
		Examples []map[string]any `json:"examples"`
	} `json:"anomalies"`
}

// run soaks n for d, and fails the test for every anomaly.
func (l load) run(t *testing.T, n *node, d time.Duration) {
	path, err := binary()
	if err != nil {
		t.Error(err)
		return
	}
	connections := l.n * *more
	args := []string{"soak", "--json", "-", "-n", strconv.Itoa(connections), "--connect-rate", strconv.Itoa(connections) + "/s", "-d", d.String(), "--timeout", patience.String(), "--host", host}
	if l.listener != "raw" && !slices.Contains(l.args, "--status") { // weir's own answers do not say it
		args = append(args, "--address-pattern", `client=(\S+) `)
	}
	args = append(append(args, l.args...), n.at(l.listener))
	var text bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stderr = &text
	out, err := cmd.Output()
	var r report
	if wrong := json.Unmarshal(out, &r); wrong != nil {
		t.Errorf("%s: %v, %v: %s\n%s", l.name, err, wrong, out, text.String())
		return
	}
	t.Logf("%-22s %6d requests, %5d connections, %d ended while idle; p50 %.1f ms, p99 %.1f ms %v",
		l.name, r.Requests, r.Opened, r.Idle, 1e3*r.Latency["request"].P50, 1e3*r.Latency["request"].P99, r.Outcomes)
	for _, a := range r.Anomalies {
		t.Errorf("%s: %d times %s", l.name, a.Count, a.Kind)
		for i, e := range a.Examples {
			if i < 5 {
				t.Errorf("\t%s", fmt.Sprint(e))
			}
		}
	}
	if want := l.least * int64(d/(10*time.Second)); r.Requests < want {
		t.Errorf("%s: %d requests are no load: %d at least were meant", l.name, r.Requests, want)
	}
}
