package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/cmd/weir/soak"
)

// TestSoakCommand: what is printed where, and the exit status.
func TestSoakCommand(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Client", r.RemoteAddr)
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusGone)
		}
	})}
	go s.Serve(ln)
	t.Cleanup(func() { s.Close() })
	file := filepath.Join(t.TempDir(), "report.json")
	f := func(args string, wantStatus int, wantOut, wantErr string) {
		t.Helper()
		args = "soak -n 3 -r 1000 -d 500ms --address-field X-Client " + args + " " + ln.Addr().String()
		out, err, status := weir(strings.Fields(args)...)
		if status != wantStatus || !strings.Contains(out, wantOut) || !strings.Contains(err, wantErr) {
			t.Errorf("weir %s: status %d, printed\n%s\n%s", args, status, out, err)
		}
	}
	read := func(text string) (r soak.Report) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Errorf("%v in %s", err, text)
		}
		return r
	}
	f("", 0, "anomalies    none\n", "")
	f("--path /gone --json "+file, statusError, "unexpected_status", "weir: anomalies were found: ")
	text, _ := os.ReadFile(file)
	if r := read(string(text)); r.AnomaliesInAll == 0 || r.Anomalies[0].Kind != soak.UnexpectedStatus {
		t.Errorf("the report is %+v", r)
	}
	f("--json -", 0, `"anomalies_total": 0`, "anomalies    none\n")
	f("--json /nowhere/report.json", statusError, "", "cannot write the report: open /nowhere/report.json")
}

func TestSoakUsage(t *testing.T) {
	f := func(args, wantErr string) {
		t.Helper()
		_, err, status := weir(strings.Fields("soak " + args)...)
		if status != statusUsage || !strings.Contains(err, wantErr) {
			t.Errorf("weir soak %s: status %d, printed %q, want %q", args, status, err, wantErr)
		}
	}
	f("", "accepts 1 arg(s)")
	f("localhost", "not HOST:PORT")
	f("--proxy-header v3 127.0.0.1:80", `--proxy-header is v1 or v2, and not "v3"`)
	f("--clients example.org 127.0.0.1:80", "--clients:")
	f("--from example.org 127.0.0.1:80", "--from:")
	f("--delay header+8 127.0.0.1:80", "--delay: a delay is PLACE=DURATION")
	f("--cut tail 127.0.0.1:80", `--cut: "tail" is not a place`)
	f(`--protocol raw --send \q 127.0.0.1:80`, "--send:")
	f("--share 200% 127.0.0.1:80", "a share is written as 5% or 0.05")
	f("--proxy-header v1 --delay hello=1s 127.0.0.1:80", "needs --tls")
	if out, _, status := weir("soak", "--help"); status != 0 || strings.Contains(out, "worker") || !strings.Contains(out, "--slow-readers") {
		t.Errorf("the help is %s", out)
	}
}

// TestSoakExamples: who tries the examples of the help at a demo finds what they are about.
func TestSoakExamples(t *testing.T) {
	var ports []string
	for line := range strings.Lines(newSoakCommand().Example) {
		command, address, found := strings.Cut(strings.TrimSpace(line), " 127.0.0.1:")
		if !found {
			continue
		}
		ports = append(ports, address)
		want := "8080"
		switch {
		case strings.Contains(command, "--protocol raw"):
			want = "22"
		case strings.Contains(command, "--tls"):
			want = "8443"
		case strings.Contains(command, "--proxy-header"):
			want = "8081"
		}
		if address != want || want == "8443" && strings.Contains(command, "--proxy-header") {
			t.Errorf("%s is for another port than %s", command, address)
		}
	}
	if len(ports) != 6 {
		t.Errorf("the examples are for the ports %v", ports)
	}
}
