package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// patience limits each wait.
const patience = 20 * time.Second

// side is one of the two binaries, with the files and endpoints of its own.
type side struct {
	binary, dir string
	address     map[string]string
	endpoints   endpoints
}

func (s *side) close() { s.endpoints.close() }

var addressName = regexp.MustCompile(`@[a-z][a-z0-9]*`)

// prepare opens the endpoints and chooses the addresses of weir.
func (s *side) prepare() error {
	s.address = map[string]string{}
	for _, name := range []string{"web", "secure", "edge", "raw", "health", "admin", "gone", "app", "next", "pages", "decider", "stream"} {
		a, err := freeport.Compare.Take("127.0.0.1")
		if err != nil {
			return err
		}
		s.address[name] = a
	}
	if err := s.endpoints.open(s.address); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "users"), []byte("ada:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"), 0o600)
}

func (s *side) write(name, text string) (string, error) {
	text = strings.ReplaceAll(text, "@@dir", s.dir)
	text = addressName.ReplaceAllStringFunc(text, func(m string) string {
		if a := s.address[m[1:]]; a != "" {
			return a
		}
		return m
	})
	path := filepath.Join(s.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// run runs a command of weir, and returns its output and exit status.
func (s *side) run(args ...string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, args...)
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(s.normal(string(out))), "\n")
	if err != nil {
		lines = append(lines, err.Error())
	}
	return lines
}

func titled(title string, lines []string) []string {
	all := make([]string, 0, len(lines))
	for _, line := range lines {
		all = append(all, title+": "+line)
	}
	return all
}

// play checks configurations, and serves the first one without errors. Routes with errors are taken out.
func (s *side) play(w *world) ([]string, error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	var seen []string
	c := w.configuration()
	for n := range 30 {
		path, err := s.write("weir.yaml", c.text())
		if err != nil {
			return nil, err
		}
		result := s.run("check", path)
		seen = append(seen, titled(fmt.Sprintf("check %d", n), result)...)
		if strings.HasPrefix(result[len(result)-1], "exit status") {
			if c.drop(result) {
				continue
			}
			return seen, nil
		}
		for m := range 8 {
			broken, err := s.write("broken.yaml", w.broken(c.text()))
			if err != nil {
				return nil, err
			}
			seen = append(seen, titled(fmt.Sprintf("broken %d", m), s.run("check", broken))...)
		}
		served, err := s.serve(w, path)
		return append(seen, served...), err
	}
	return seen, nil
}

// serve runs weir and sends requests.
func (s *side) serve(w *world, path string) (seen []string, err error) {
	var log bytes.Buffer
	cmd := exec.Command(s.binary, "run", "-c", path)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	defer func() {
		cmd.Process.Kill()
		<-exited
		if err == nil && bytes.Contains(log.Bytes(), []byte("panic: ")) {
			err = fmt.Errorf("it panicked:\n%s", log.Bytes())
		}
	}()
	if err := s.untilReady(exited); err != nil {
		return nil, fmt.Errorf("%w:\n%s", err, log.Bytes())
	}
	for n := range 40 {
		r := w.request(n)
		title := fmt.Sprintf("request %d %s %s %s %s", n, r.over, r.method, r.host, r.path)
		if r.raw != "" {
			title = fmt.Sprintf("request %d %s %.60q", n, r.over, r.raw)
		}
		seen = append(seen, titled(title, s.send(r))...)
		if n%8 == 0 {
			seen = append(seen, titled(title, s.explain(r, path))...)
		}
	}
	seen = append(seen, titled("tunnel", s.tunnel())...)
	metrics, err := s.metrics()
	if err != nil {
		return nil, err
	}
	s.endpoints.untilQuiet()
	cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-exited:
		exited <- err
	case <-time.After(patience):
		return nil, errors.New("weir does not end after SIGTERM")
	}
	lines, err := s.accessLog()
	if err != nil {
		return nil, err
	}
	var arrived []string
	for _, r := range s.endpoints.all() {
		arrived = append(arrived, s.normal(r))
	}
	slices.Sort(arrived)
	seen = append(seen, titled("endpoint", arrived)...)
	return append(append(seen, titled("log", lines)...), titled("metric", metrics)...), nil
}

func (s *side) untilReady(exited chan error) error {
	for deadline := time.Now().Add(patience); ; {
		if resp, err := http.Get("http://" + s.address["health"] + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return nil
			}
		}
		select {
		case err := <-exited:
			exited <- err
			return fmt.Errorf("weir ended at once: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return errors.New("weir does not get ready")
		}
	}
}

func (s *side) explain(r request, path string) []string {
	over, scheme := r.over, "http"
	if over == "h2" || over == "secure" {
		over, scheme = "secure", "https"
	}
	_, port, _ := net.SplitHostPort(s.address[over])
	args := []string{"explain", "-c", path, "--client", "192.0.2.7", "--method", r.method}
	for _, h := range r.header {
		args = append(args, "--header", h[0]+": "+h[1])
	}
	return s.run(append(args, scheme+"://"+r.host+":"+port+r.path)...)
}

// metrics are the counters that do not depend on time or on the machine.
func (s *side) metrics() ([]string, error) {
	resp, err := http.Get("http://" + s.address["admin"] + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if counter.MatchString(line) && !fickle.MatchString(line) && !strings.HasSuffix(line, " 0") {
			lines = append(lines, s.normal(line))
		}
	}
	slices.Sort(lines)
	return lines, nil
}

var (
	counter = regexp.MustCompile(`^weir_[a-z0-9_]+_total[{ ]`)
	fickle  = regexp.MustCompile(`bytes|seconds|pool|idle|reuse|opened|gc_|memory|mirror|check|log_lines|_ended`)
)

// accessLog returns the lines of the access log without times.
func (s *side) accessLog() ([]string, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, "access.log"))
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			return nil, fmt.Errorf("a line of the access log is not JSON: %w: %s", err, line)
		}
		for name := range fields {
			if passing.MatchString(name) {
				delete(fields, name)
			}
		}
		line, err := json.Marshal(fields) // sorted
		if err != nil {
			return nil, err
		}
		lines = append(lines, s.normal(string(line)))
	}
	slices.Sort(lines)
	return lines, nil
}

var passing = regexp.MustCompile(`^time$|_ms$|_seconds$|duration|bytes|reused|_id$|_port$`)

var (
	loopback  = regexp.MustCompile(`(127\.0\.0\.1|\[::1\]):[0-9]+`)
	long      = regexp.MustCompile(`[0-9a-f]{16,}|[0-9a-f]{8}-[0-9a-f-]{27}`)
	countdown = regexp.MustCompile(`(t=|Retry-After: |retry-after: |in )[0-9]+`)
	suite     = regexp.MustCompile(`TLS_[A-Z0-9_]+`) // depends on the processor
	version   = regexp.MustCompile(`go1\.[0-9.]+`)
)

// normal replaces what differs between two runs of the same binary.
func (s *side) normal(text string) string {
	text = strings.ReplaceAll(text, s.dir, "@@dir")
	for name, a := range s.address {
		text = strings.ReplaceAll(text, a, "@"+name)
	}
	text = loopback.ReplaceAllString(text, "$1:#")
	for name, a := range s.address {
		_, port, _ := net.SplitHostPort(a)
		text = regexp.MustCompile(`\b`+port+`\b`).ReplaceAllString(text, "@"+name)
	}
	text = long.ReplaceAllString(text, "HEX")
	text = countdown.ReplaceAllString(text, "$1#")
	text = suite.ReplaceAllString(text, "SUITE")
	return version.ReplaceAllString(text, "go")
}
