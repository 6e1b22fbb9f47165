package acme

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/e2e/freeport"
)

// patience is the time limit of waits that normally end at once.
const patience = 20 * time.Second

// directory is a storage that processes on one machine share.
type directory struct{ *certmagic.FileStorage }

func (directory) Close() error { return nil }

// harness is a Manager and its events.
type harness struct {
	*Manager
	t  *testing.T
	mu sync.Mutex
	// events that no call of expect has taken yet
	events []Event
	news   chan struct{}
}

func newHarness(t *testing.T, open func(string) (Storage, error)) *harness {
	t.TempDir() // the test's folders must exist longer than the manager, which may still write
	h := &harness{t: t, news: make(chan struct{}, 1)}
	if open == nil {
		open = func(path string) (Storage, error) {
			return directory{&certmagic.FileStorage{Path: path}}, nil
		}
	}
	log := zap.NewNop()
	if os.Getenv("ACME_DEBUG") != "" {
		log, _ = zap.NewDevelopment()
	}
	h.Manager = New(Options{Open: open, Log: log, Metrics: NewMetrics(prometheus.NewRegistry()), Notify: h.notify})
	t.Cleanup(h.Close)
	return h
}

func (h *harness) notify(e Event) {
	h.mu.Lock()
	h.events = append(h.events, e)
	h.mu.Unlock()
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// expect waits for an event of a kind and a name. It removes all events up to it.
func (h *harness) expect(kind Kind, name string) Event {
	h.t.Helper()
	deadline := time.After(patience)
	for {
		h.mu.Lock()
		for i, e := range h.events {
			if e.Kind == kind && e.Name == name {
				h.events = h.events[i+1:]
				h.mu.Unlock()
				return e
			}
		}
		seen := fmt.Sprintf("%+v", h.events)
		h.mu.Unlock()
		select {
		case <-h.news:
		case <-deadline:
			h.t.Fatalf("%q was not told of %s; told was %s", kind, name, seen)
		}
	}
}

// pebble is an authority for tests. It validates names at the ports given to startPebble.
type pebble struct {
	directory string
	ca        []byte // the CA of its directory's certificate
	stop      func()
}

// find returns the path of a tool, or skips the test.
func find(t *testing.T, tool string) string {
	t.Helper()
	for _, folder := range append(filepath.SplitList(os.Getenv("PATH")), os.Getenv("GOBIN")) {
		p := filepath.Join(folder, tool)
		if info, err := os.Stat(p); folder != "" && err == nil && !info.IsDir() {
			return p
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not in PATH; install it with go install github.com/letsencrypt/pebble/v2/cmd/%s@v2.10.1", tool, tool)
	}
	t.Skipf("%s is not in PATH: go install github.com/letsencrypt/pebble/v2/cmd/%s@v2.10.1", tool, tool)
	return ""
}

// startPebble starts an authority whose certificates are valid for validity seconds.
func startPebble(t *testing.T, httpPort, tlsPort, validity int) *pebble {
	t.Helper()
	tool := find(t, "pebble")
	dir := t.TempDir()
	certPEM, keyPEM := selfSignedFor(t, "localhost", 24*time.Hour)
	write(t, filepath.Join(dir, "cert.pem"), certPEM)
	write(t, filepath.Join(dir, "key.pem"), keyPEM)
	p := &pebble{ca: certPEM}
	for range 5 { // freePort found free ports, but another process may take them before pebble does
		port, manage := freePort(t), freePort(t)
		conf, _ := json.Marshal(map[string]any{"pebble": map[string]any{
			"listenAddress": fmt.Sprintf("127.0.0.1:%d", port), "managementListenAddress": fmt.Sprintf("127.0.0.1:%d", manage),
			"certificate": filepath.Join(dir, "cert.pem"), "privateKey": filepath.Join(dir, "key.pem"),
			"httpPort": httpPort, "tlsPort": tlsPort, "ocspResponderURL": "", "externalAccountBindingRequired": false,
			"retryAfter": map[string]int{"authz": 1, "order": 1}, "keyAlgorithm": "ecdsa",
			"profiles": map[string]any{"default": map[string]any{"description": "for tests", "validityPeriod": validity}},
		}})
		write(t, filepath.Join(dir, "config.json"), conf)
		// Every name resolves to loopback, independent of the machine's resolver.
		cmd := exec.Command(tool, "-config", filepath.Join(dir, "config.json"), "-dnsserver", loopbackDNS(t))
		cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=20")
		out, err := os.Create(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		p.stop = sync.OnceFunc(func() { cmd.Process.Kill(); <-ended; out.Close() })
		t.Cleanup(p.stop)
		p.directory = fmt.Sprintf("https://localhost:%d/dir", port)
		if listens(port, ended) {
			t.Cleanup(func() {
				if t.Failed() {
					text, _ := os.ReadFile(filepath.Join(dir, "log"))
					t.Logf("pebble said:\n%s", tail(string(text), 6000))
				}
			})
			return p
		}
		p.stop()
	}
	t.Fatal("pebble does not start")
	return nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func listens(port int, ended <-chan struct{}) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			c.Close()
			return true
		}
		select {
		case <-ended:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

// freePort returns a port on which nothing listens.
func freePort(t *testing.T) int {
	t.Helper()
	address, err := freeport.ACME.Take("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return int(netip.MustParseAddrPort(address).Port())
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// serveChallenges answers HTTP-01 as weir's listener does. It serves several Managers,
// because an authority may reach any replica that shares the storage.
func serveChallenges(t *testing.T, answer func(host, token string) (string, bool)) (port int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if text, ok := answer(host, strings.TrimPrefix(r.URL.Path, "/.well-known/acme-challenge/")); ok {
			io.WriteString(w, text)
			return
		}
		http.NotFound(w, r)
	})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	return ln.Addr().(*net.TCPAddr).Port
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
