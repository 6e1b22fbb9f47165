package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// load is one "weir soak" that runs for the whole time. Its clients expect every response, whatever happens
// meanwhile to weir, its configuration and its endpoints.
type load struct {
	name     string
	listener string
	n        int // number of connections, multiplied by -load
	args     []string
	least    int64 // required number of requests in 10 s
}

// Arguments for the listeners. The TLS listener requires a PROXY header.
var (
	byTLS  = []string{"--tls", "--proxy-header", "v2", "--clients", "198.18.0.0/15,2001:db8::/32"}
	byTLS1 = []string{"--tls", "--proxy-header", "v1"}
	by2    = append([]string{"--protocol", "http2"}, byTLS...)
	raw    = []string{"--protocol", "raw", "--send", "is anybody there?", "--reply", "is anybody there\\?"}
)

// loads are the runs of "weir soak". Some keep opening and closing busy connections. Some wait so long
// between exchanges that weir parks the connection. Some misbehave on a part of their connections, which must
// not affect the others.
var loads = []load{
	{"plain", "web", 16, []string{"--every", "200ms", "--churn", "8s"}, 200},
	{"plain, quiet", "web", 40, []string{"--every", "4s"}, 40},
	{"plain HTTP/2, quiet", "web", 10, []string{"--protocol", "http2", "--every", "3s"}, 10},
	{"TLS", "secure", 16, append([]string{"--every", "300ms", "--churn", "5s"}, byTLS...), 100},
	{"TLS, quiet", "secure", 40, append([]string{"--every", "4s"}, byTLS1...), 40},
	{"HTTP/2", "secure", 16, append([]string{"--every", "300ms", "--churn", "5s"}, by2...), 100},
	{"HTTP/2, quiet", "secure", 40, append([]string{"--every", "4s"}, by2...), 40},
	{"through a second weir", "secure", 10, append([]string{"--every", "300ms", "--churn", "4s", "--path", "/chain/"}, byTLS...), 50},
	// An endpoint that dies loses its open requests. No client waits for those in vain, and other requests
	// are served.
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

// report has the fields of a "weir soak" report that the test reads.
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

// run runs "weir soak" against n until ctx ends, and fails the test for every anomaly. It returns what the tool
// reported. more is how many times the usual number of connections it holds.
func (l load) run(ctx context.Context, t *testing.T, n *node, more float64) report {
	return l.runFrom(ctx, t, nil, n.at(l.listener), more)
}

// runFrom is run for any address. within is a command that runs the tool.
func (l load) runFrom(ctx context.Context, t *testing.T, within []string, address string, more float64) (r report) {
	path, err := tool()
	if err != nil {
		t.Error(err)
		return r
	}
	begun, d := time.Now(), 24*time.Hour
	if end, ok := ctx.Deadline(); ok {
		d = time.Until(end).Round(time.Second)
	}
	connections := max(1, int(float64(l.n)*more))
	args := []string{"soak", "--json", "-", "-n", strconv.Itoa(connections), "--connect-rate", strconv.Itoa(connections) + "/s", "-d", d.String(), "--timeout", patience.String(), "--host", host}
	if !strings.HasPrefix(l.listener, "raw") && !slices.Contains(l.args, "--status") { // responses that weir makes itself do not contain the client's address
		args = append(args, "--address-pattern", `client=(\S+) `)
	}
	args = slices.Concat(within, []string{path}, args, l.args, []string{address})
	var text bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = &text
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) && cmd.Process != nil {
			cmd.Process.Signal(os.Interrupt) // it ends with a report
		}
	})()
	out, err := cmd.Output()
	if wrong := json.Unmarshal(out, &r); wrong != nil {
		t.Errorf("%s: %v, %v: %s\n%s", l.name, err, wrong, out, text.String())
		return r
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
	if want := int64(float64(l.least) * more * float64(time.Since(begun)/(10*time.Second))); r.Requests < want {
		t.Errorf("%s: %d requests are no load: %d at least were meant", l.name, r.Requests, want)
	}
	return r
}
