package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/soak"
	"github.com/weirproxy/weir/soak/command"
)

// TestSoakCommand checks the output on each stream, and the exit status.
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
		args = "soak -n 3 --connect-rate 1000/s -d 500ms --address-header X-Client " + args
		out, err, status := weir(strings.Fields(args)...)
		if status != wantStatus || !strings.Contains(out, wantOut) || !strings.Contains(err, wantErr) {
			t.Errorf("weir %s: status %d, printed\n%s\n%s", args, status, out, err)
		}
	}
	f("http://"+ln.Addr().String()+"/", 0, "anomalies    none\n", "")
	f("--path /gone --json "+file+" "+ln.Addr().String(), soak.StatusAnomalies, "unexpected_status", "weir: anomalies were found: ")
	text, _ := os.ReadFile(file)
	var r soak.Report
	if err := json.Unmarshal(text, &r); err != nil || r.AnomaliesInAll == 0 || r.Anomalies[0].Kind != soak.UnexpectedStatus {
		t.Errorf("the report is %+v, %v", r, err)
	}
	f("--json /nowhere/report.json 127.0.0.1:1", statusError, "", "cannot write the report: open /nowhere/report.json")
	f("http://127.0.0.1:1/", soak.StatusNoAnswer, "refused", "weir: http://127.0.0.1:1/ never answered\n")
	f("localhost", statusUsage, "", "Try \"weir soak --help\".\n")
}

// TestSoakExamples: the examples in the help use the ports of "weir demo".
func TestSoakExamples(t *testing.T) {
	var ports []string
	for line := range strings.Lines(command.New("weir soak").Example) {
		command, address, found := strings.Cut(strings.TrimSpace(line), "://127.0.0.1:")
		if !found {
			continue
		}
		port := strings.TrimSuffix(address, "/")
		ports = append(ports, port)
		want := "8080"
		switch {
		case strings.HasSuffix(command, "https"):
			want = "8443"
		case strings.Contains(command, "--proxy-header"):
			want = "8081"
		}
		if port != want || want == "8443" && strings.Contains(command, "--proxy-header") {
			t.Errorf("%s is for another port than %s", line, want)
		}
	}
	if len(ports) != 6 {
		t.Errorf("the examples are for the ports %v", ports)
	}
}
