package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/soak"
)

// called runs the command line like weir-soak.
func called(ctx context.Context, args ...string) (out, errOut string, status int) {
	var o, e bytes.Buffer
	status = Main(ctx, New("weir-soak", "--worker"), args, &o, &e)
	return o.String(), e.String(), status
}

// TestExitStatus: the command line that leads to each exit status.
func TestExitStatus(t *testing.T) {
	asked := make(chan bool, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- true
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer s.Close()
	f := func(want int, wantErr, args string) {
		t.Helper()
		args = strings.ReplaceAll(args, "URL", s.URL)
		out, errOut, status := called(t.Context(), strings.Fields("-n 2 --connect-rate 20/s -d 300ms "+args)...)
		if status != want || !strings.Contains(errOut, wantErr) || want == 0 && errOut != "" {
			t.Errorf("weir-soak %s: status %d, printed\n%s\n%s", args, status, out, errOut)
		}
	}
	f(soak.StatusOK, "", "URL")
	f(soak.StatusOK, "", "--rate 50/s --max-p99 1h --max-errors 0 URL")
	f(soak.StatusOK, "", "--max-errors 100% URL/gone")
	f(soak.StatusFailed, "weir-soak: cannot write the report: open /nowhere/report.json", "--json /nowhere/report.json URL")
	f(soak.StatusUsage, "weir-soak: name a target: a URL like https://example.org/, or HOST:PORT\nTry \"weir-soak --help\".\n", "")
	f(soak.StatusAnomalies, "weir-soak: anomalies were found: ", "URL/gone")
	f(soak.StatusThreshold, "weir-soak: threshold missed: p99 is ", "--max-p99 1ns URL")
	f(soak.StatusThreshold, " errors in ", "--max-errors 1% URL/gone")
	f(soak.StatusNoAnswer, "weir-soak: http://127.0.0.1:1/ never answered\n", "http://127.0.0.1:1/")
	f(soak.StatusNoAnswer, "weir-soak: cannot find the address of nowhere.invalid: ", "http://nowhere.invalid/")

	for len(asked) > 0 {
		<-asked
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel() // the same as a signal
	}()
	out, errOut, status := called(ctx, "-n", "1", "-d", "1h", s.URL)
	if status != soak.StatusInterrupted || !strings.Contains(errOut, "weir-soak: the run was interrupted after ") || !strings.Contains(out, "s, interrupted\n") {
		t.Errorf("interrupted: status %d, printed\n%s\n%s", status, out, errOut)
	}
}

func TestUsage(t *testing.T) {
	f := func(args, want string) {
		t.Helper()
		_, errOut, status := called(t.Context(), strings.Fields(args)...)
		if status != soak.StatusUsage || !strings.Contains(errOut, want) {
			t.Errorf("weir-soak %s: status %d, printed %q, want %q", args, status, errOut, want)
		}
	}
	f("localhost", "neither a URL like https://example.org/ nor HOST:PORT")
	f("--rate 500 127.0.0.1:80", "a rate is written as 500/s, 90/m or 3600/h")
	f("--rate 500/s --every 1s 127.0.0.1:80", "--rate and --every cannot be combined")
	f("--max-errors x 127.0.0.1:80", "a limit is a share like 0.1%, or a number like 10")
	f("--proxy-header v3 127.0.0.1:80", `--proxy-header is "v3": it must be v1 or v2`)
	f("--clients example.org 127.0.0.1:80", "--clients:")
	f("--from example.org 127.0.0.1:80", "--from:")
	f("--delay header+8 127.0.0.1:80", `is not PLACE=DURATION, as in header+8=3s`)
	f("--cut tail 127.0.0.1:80", `--cut: "tail" is not a place: use header`)
	f(`--send \q tcp://127.0.0.1:80`, "--send:")
	f("--share 200% 127.0.0.1:80", "a share is written as 5% or 0.05")
	f("--proxy-header v1 --delay hello=1s 127.0.0.1:80", "needs TLS: an https URL, or --tls")
	out, _, status := called(t.Context(), "--help")
	if status != 0 || strings.Contains(out, "worker") || strings.Contains(out, "weir soak") || !strings.Contains(out, "--slow-readers") {
		t.Errorf("the help is %s", out)
	}
	for _, line := range strings.Split(out, "\n") {
		if len([]rune(line)) > 170 {
			t.Errorf("the help has a long line: %s", line)
		}
	}
	for _, status := range []int{soak.StatusOK, soak.StatusFailed, soak.StatusUsage, soak.StatusAnomalies, soak.StatusThreshold, soak.StatusNoAnswer, soak.StatusInterrupted} {
		if !strings.Contains(out, fmt.Sprintf("\n  %-4d ", status)) {
			t.Errorf("the help does not explain the exit status %d", status)
		}
	}
}

// TestDefaults: with a rate, the defaults are fewer connections, opened faster.
func TestDefaults(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Who") != "me" {
			t.Errorf("the headers are %v", r.Header)
		}
		w.Header().Set("X-Client", r.RemoteAddr)
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "report.json")
	f := func(args string, connections int, connectRate, rate, every float64) {
		t.Helper()
		out, errOut, status := called(t.Context(), strings.Fields("--json "+file+" "+args+" "+s.URL)...)
		text, _ := os.ReadFile(file)
		var r soak.Report
		if err := json.Unmarshal(text, &r); err != nil || status != 0 {
			t.Errorf("weir-soak %s: status %d, %v, printed\n%s\n%s", args, status, err, out, errOut)
		}
		o := r.Settings
		if o.Connections != connections || o.ConnectRate != connectRate || o.Rate != rate || o.Every != every || r.Schema != soak.Schema || r.Wanted != connections {
			t.Errorf("weir-soak %s: %+v", args, o)
		}
	}
	// --field and --address-field are former names of flags.
	f("-d 50ms --field X-Who:me --address-field X-Client", 1000, 200, 0, 10)
	f("-d 50ms -H X-Who:me -r 500/s", 100, 500, 500, 0)
	f("-d 50ms --header X-Who:me --rate 60/s -n 3", 3, 200, 60, 0)
	f("-d 50ms --header X-Who:me --rate 300/s -n 3 --connect-rate 100/s", 3, 100, 300, 0)
}

// TestOutput: which output goes where.
func TestOutput(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	out, errOut, status := called(t.Context(), "-n", "1", "-d", "50ms", "--json", "-", s.URL)
	var r soak.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 || !strings.Contains(errOut, "anomalies    none\n") || r.Result != "ok" {
		t.Errorf("status %d, %v, printed\n%s\n%s", status, err, out, errOut)
	}
	if time.Since(r.Start) > time.Hour || r.Targets[0].Name != s.URL {
		t.Errorf("the report is of %s at %s", r.Targets[0].Name, r.Start)
	}
}
