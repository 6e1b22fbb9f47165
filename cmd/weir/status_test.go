package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/cmd/weir/node/status"
)

func TestStatusCommand(t *testing.T) {
	r := newRunning(t, drainable, "web", "admin", "health")
	f := func(wantStatus int, wants ...string) {
		t.Helper()
		out, errs, status := weir("status", r.address("admin"))
		if status != wantStatus || errs != "" {
			t.Errorf("status %d: %s", status, errs)
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("it prints no %q:\n%s", want, out)
			}
		}
	}
	f(0, "weir          v1, process ", "configuration (built in), loaded 2", "health        healthy\n", "listener      web: http on "+r.address("web")+", connections 0\n", "connections   0\n")
	if _, errs, status := weir("drain", r.address("admin")); status != 0 {
		t.Fatal(errs)
	}
	f(statusUnhealthy, "health        503: weir is draining\n")
	if _, errs, status := weir("status", "127.0.0.1:1"); status != statusError || !strings.Contains(errs, "cannot query the admin port") {
		t.Errorf("without a weir: status %d, %s", status, errs)
	}
	// The node of this test has no file.
	if _, errs, status := weir("reload", r.address("admin")); status != statusError || !strings.Contains(errs, "weir cannot read it again") {
		t.Errorf("reload: status %d, %s", status, errs)
	}
}

// A text of a weir never changes the terminal, and a problem has an exit status.
func TestStatusOfAProblem(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/reload" {
			w.Write([]byte("the configuration is in effect; its hash is 1\n"))
			return
		}
		w.Write([]byte(`{"at": "2026-11-29T12:00:00Z", "uptime": 60, "version": "v1\u001b[2J", "pid": 7, "generation": 3, "old_processes": [{"generation": 2, "pid": 6, "version": "v0", "binary": "/usr/bin/weir", "connections": 1, "until": "2026-11-29T12:00:00Z"}], "config_file": "/etc/weir/weir.yaml", "config_loaded": "2026-11-29T12:00:00Z",
			"health": {"healthy": true}, "connections": {"open": 3, "states": {"idle": 2, "active": 1, "tunnel": 0}}, "problems": [{"text": "not loaded", "since": "2026-11-29T12:00:00Z"}],
			"backends": {"bad": 1, "rows": [{"name": "app", "count": 2, "endpoints": [{"address": "192.0.2.1:80", "error": "refused"}]}]}}`))
	}))
	defer admin.Close()
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC).Local()
	show := func(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") }
	want := "weir          v1?[2J, process 7, generation 3, since " + show(at.Add(-time.Minute)) + "\n" +
		"configuration /etc/weir/weir.yaml, loaded " + show(at) + ", hash \n" +
		"health        healthy\nconnections   3, active 1, idle 2\nold process   6 of generation 2 (v0, /usr/bin/weir), connections 1, until " + show(at) + "\nproblem       not loaded (for 0s)\nproblem       backend app: 0 of 2 endpoints work: 192.0.2.1:80: refused\n"
	out, errs, status := weir("status", admin.URL)
	if out = strings.Replace(out, "node          \n", "", 1); out != want || errs != "" || status != statusProblem {
		t.Errorf("status %d, printed\n%s%s; want\n%s", status, out, errs, want)
	}
	if out, errs, status := weir("reload", admin.URL); status != 0 || out != "the configuration is in effect; its hash is 1\n" {
		t.Errorf("reload: status %d, %s%s", status, out, errs)
	}
}

// A reload may take longer than a query, and its result is known later.
func TestLateAnswers(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	defer admin.Close()
	for path, want := range map[string]string{
		"/status": "has not answered within 15s; compare the address with admin.address",
		"/reload": "has not answered within 1m0s; a reload that has begun goes on: weir status",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // sooner than the limit
		_, err := requestAdmin(ctx, http.MethodPost, admin.URL, adminOptions{}, path, nil)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
		if limit := timeoutOf(path); !strings.Contains(want, limit.String()) {
			t.Errorf("%s: the limit is %v", path, limit)
		}
	}
}

// An answer 503 has the reason, and an answer that weir does not give is told with the method.
func TestUnexpectedAnswers(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusServiceUnavailable: " answers 503 Service Unavailable to POST /reload: an upgrade ended meanwhile",
		http.StatusNotFound:           " is not the admin port of a weir with POST /reload: it answers 404 Not Found",
	} {
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "an upgrade ended meanwhile", code)
		}))
		_, err := requestAdmin(t.Context(), http.MethodPost, admin.URL, adminOptions{}, reloadPath, nil)
		admin.Close()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestWhyAnEndpointIsOut(t *testing.T) {
	for _, test := range []struct {
		of   status.Endpoint
		want string
	}{
		{status.Endpoint{Address: "a:1", State: "down"}, "a:1 has not passed enough health checks yet (health_check.rise)"},
		{status.Endpoint{Address: "a:1", State: "ejected"}, "a:1 is ejected"},
		{status.Endpoint{Address: "a:1", State: "down", Error: "status 500"}, "a:1: status 500"},
		{status.Endpoint{Address: "a:1", State: "down", Error: "connecting to a:1: refused"}, "connecting to a:1: refused"},
	} {
		if got := whyOut(&test.of); got != test.want {
			t.Errorf("%+v: %s", test.of, got)
		}
	}
}
