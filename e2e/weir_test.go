package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// weir is one running process of the binary, with its files and addresses.
type weir struct {
	t      *testing.T
	dir    string
	config string // path of the configuration
	access string // path of the access log
	// address has an address for each @name in the configuration. If a test does not set an address, it is a
	// free port.
	address map[string]string
	naming  sync.Mutex // protects address
	// before is the start of the command line, for example "prlimit" with its arguments.
	before []string
	env    []string
	files  []*os.File // descriptors 3 and above
	binary string     // path; "" means the binary of executable
	// upgrades means that other processes take over from the first one. They write to the same log.
	upgrades bool

	cmd    *exec.Cmd
	log    logFile
	exited chan struct{} // closed when the process has ended
}

// newWeir prepares a weir. Its method start starts it.
func newWeir(t *testing.T) *weir {
	t.Helper()
	dir := t.TempDir()
	return &weir{
		t: t, dir: dir, log: logFile{path: filepath.Join(t.TempDir(), "log")},
		config:  filepath.Join(dir, "weir.yaml"),
		access:  filepath.Join(dir, "access.log"),
		address: map[string]string{},
	}
}

// defaults are the sections that a configuration gets if it lacks them.
var defaults = map[string]string{
	"node":       "node: node-a\n",
	"health":     "health: {address: '@health'}\n",
	"admin":      "admin: {address: '@admin'}\n",
	"drain":      "drain: {lame_duck: 0s, timeout: 10s}\n",
	"log":        "log: {level: debug}\n",
	"access_log": "access_log: {path: '@@access'}\n",
}

var (
	addressName = regexp.MustCompile(`@[a-z][a-z0-9-]*`)
	topLevel    = regexp.MustCompile(`(?m)^([a-z_]+):`)
)

// at returns the address with this name.
func (w *weir) at(name string) string {
	w.naming.Lock()
	defer w.naming.Unlock()
	if w.address[name] == "" {
		w.address[name] = freePort(w.t)
	}
	return w.address[name]
}

// write fills in the addresses and the missing sections. It replaces the file in one step, as editors and
// Kubernetes do.
func (w *weir) write(config string) {
	w.t.Helper()
	given := map[string]bool{}
	for _, m := range topLevel.FindAllStringSubmatch(config, -1) {
		given[m[1]] = true
	}
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		if !given[name] {
			config += defaults[name]
		}
	}
	config = strings.ReplaceAll(config, "@@access", w.access)
	config = strings.ReplaceAll(config, "@@dir", w.dir)
	config = addressName.ReplaceAllStringFunc(config, func(m string) string { return w.at(m[1:]) })
	if err := errors.Join(
		os.WriteFile(w.config+".new", []byte(config), 0o644),
		os.Rename(w.config+".new", w.config)); err != nil {
		w.t.Fatal(err)
	}
}

// start runs weir with config and waits until it is ready.
func (w *weir) start(config string) *weir {
	w.t.Helper()
	w.write(config)
	w.launch()
	eventually(w.t, "weir gets ready", func() error {
		select {
		case <-w.exited:
			w.t.Fatalf("weir ended at once with status %d:\n%s", w.cmd.ProcessState.ExitCode(), w.log.String())
		default:
		}
		status, _, err := w.get("health", "/readyz")
		if err == nil && status != 200 {
			err = fmt.Errorf("/readyz says %d", status)
		}
		return err
	})
	return w
}

func (w *weir) launch() {
	w.t.Helper()
	if w.binary == "" {
		w.binary = executable(w.t)
	}
	args := append(slices.Clone(w.before), w.binary, "run", "-c", w.config)
	w.cmd = exec.Command(args[0], args[1:]...)
	w.cmd.Env = append(os.Environ(), w.env...)
	log := w.log.open(w.t)
	defer log.Close()
	w.cmd.Stdout, w.cmd.Stderr, w.cmd.ExtraFiles = log, log, w.files
	w.exited = make(chan struct{})
	if w.upgrades {
		defer w.endWithAll()()
	}
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		w.cmd.Wait()
		close(w.exited)
	}()
	w.t.Cleanup(func() {
		w.cmd.Process.Kill()
		<-w.exited
		if text := w.log.String(); strings.Contains(text, "panic:") || strings.Contains(text, "DATA RACE") {
			w.t.Error("weir panicked or raced")
		}
		if w.t.Failed() {
			w.t.Logf("weir's log:\n%s", w.log.tail(8<<10))
		}
	})
}

// terminate sends SIGTERM and returns the exit status.
func (w *weir) terminate() int {
	w.t.Helper()
	w.signal(syscall.SIGTERM)
	return w.wait()
}

func (w *weir) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Fatalf("cannot send %s: %v", s, err)
	}
}

// wait waits until the process has ended, and returns its exit status.
func (w *weir) wait() int {
	w.t.Helper()
	select {
	case <-w.exited:
	case <-time.After(patience + 10*time.Second):
		w.t.Fatal("weir does not end")
	}
	return w.cmd.ProcessState.ExitCode()
}

// reload replaces the configuration file, sends SIGHUP, and waits until the new configuration is in effect.
func (w *weir) reload(config string) {
	w.t.Helper()
	before, hash := w.reloads("success"), w.hash()
	old, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(config)
	now, _ := os.ReadFile(w.config)
	w.signal(syscall.SIGHUP)
	eventually(w.t, "the configuration is loaded", func() error {
		if w.reloads("success") == before {
			return errors.New("no reload was counted")
		}
		// weir may have loaded an older change only now, so the hash must be that of the new content.
		if !bytes.Equal(old, now) && w.hash() == hash {
			return errors.New("the hash is the old one")
		}
		return nil
	})
}

func (w *weir) reloads(result string) float64 {
	w.t.Helper()
	return w.metric("weir_config_reloads_total", "result", result)
}

// hash returns the series weir_config_hash with its label, which contains the hash.
func (w *weir) hash() string {
	w.t.Helper()
	for series := range w.metrics() {
		if strings.HasPrefix(series, "weir_config_hash") {
			return series
		}
	}
	return ""
}

// metrics reads the metrics from the admin port. The key is a series with its labels.
func (w *weir) metrics() map[string]float64 {
	w.t.Helper()
	status, text, err := w.get("admin", "/metrics")
	if err != nil || status != 200 {
		w.t.Fatalf("cannot scrape: %d, %v", status, err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if ok {
			series += "}"
		} else {
			series, value, ok = strings.Cut(strings.TrimSpace(line), " ")
		}
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && !strings.HasPrefix(series, "#") {
			all[series] = v
		}
	}
	return all
}

// metric returns the sum of all series of a metric that have these labels. labels alternates names and
// values.
func (w *weir) metric(name string, labels ...string) float64 {
	w.t.Helper()
	var sum float64
	for series, value := range w.metrics() {
		base, rest, _ := strings.Cut(series, "{")
		match := base == name
		for i := 0; i+1 < len(labels); i += 2 {
			match = match && strings.Contains(","+rest, ","+labels[i]+`="`+labels[i+1]+`"`)
		}
		if match {
			sum += value
		}
	}
	return sum
}

// wantMetric waits until the sum is want, because counters change a moment after an event.
func (w *weir) wantMetric(want float64, name string, labels ...string) {
	w.t.Helper()
	eventually(w.t, fmt.Sprint(name, labels, " becomes ", want), func() error {
		if got := w.metric(name, labels...); got != want {
			return fmt.Errorf("it is %v", got)
		}
		return nil
	})
}

// control is the client for weir's own ports. Every request uses a new connection.
var control = &http.Client{
	Timeout:       patience,
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// trusted is the client for requests that change weir, or make profiles. It uses the Unix socket beside the admin port.
var trusted = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true,
	DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "@weir/"+address)
	}}}

// get sends a GET request to the port with this name.
func (w *weir) get(name, path string) (status int, body string, err error) {
	resp, err := control.Get("http://" + w.at(name) + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// post sends a POST request to the admin port.
func (w *weir) post(path string) {
	w.t.Helper()
	resp, err := trusted.Post("http://"+w.at("admin")+path, "", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		w.t.Fatalf("POST %s: %s", path, resp.Status)
	}
}

// wantVerdict waits until the health port answers with this status, and returns the body.
func (w *weir) wantVerdict(status int) string {
	w.t.Helper()
	var body string
	eventually(w.t, fmt.Sprint("the verdict becomes ", status), func() error {
		got, text, err := w.get("health", "/")
		if body = text; err == nil && got != status {
			err = fmt.Errorf("it is %d: %s", got, text)
		}
		return err
	})
	return body
}

// entry is one line of the access log.
type entry map[string]any

// text returns a field as text, also if it is a number or a boolean. A dot in the name leads into an object.
func (e entry) text(field string) string {
	var v any = map[string]any(e)
	for part := range strings.SplitSeq(field, ".") {
		m, _ := v.(map[string]any)
		v = m[part]
	}
	if v == nil {
		return ""
	}
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// accessLog returns all complete lines of the access log.
func (w *weir) accessLog() []entry {
	w.t.Helper()
	text, err := os.ReadFile(w.access)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	var all []entry
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the last line is not complete yet
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			w.t.Fatalf("the access log has a line that is not JSON: %q: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// logged waits for a line of the access log that match accepts, and returns it.
func (w *weir) logged(what string, match func(entry) bool) entry {
	w.t.Helper()
	var found entry
	eventually(w.t, "the access log has "+what, func() error {
		all := w.accessLog()
		for _, e := range all {
			if match(e) {
				found = e
				return nil
			}
		}
		if len(all) > 5 {
			all = all[len(all)-5:]
		}
		return fmt.Errorf("the last lines are %v", all)
	})
	return found
}

// descriptors counts the open descriptors of the process.
func (w *weir) descriptors() int {
	w.t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(files)
}

var goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)

// stacks returns the stacks of all goroutines of the process.
func (w *weir) stacks() string {
	w.t.Helper()
	resp, err := trusted.Post("http://"+w.at("admin")+"/debug/pprof/goroutine?debug=1", "", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// runs returns nil if a goroutine of the process runs this function.
func (w *weir) runs(function string) error {
	w.t.Helper()
	if !strings.Contains(w.stacks(), function) {
		return errNotYet
	}
	return nil
}

// goroutines counts the goroutines of the process.
func (w *weir) goroutines() int {
	w.t.Helper()
	text := w.stacks()
	m := goroutineTotal.FindStringSubmatch(text)
	if m == nil {
		w.t.Fatalf("cannot count goroutines: %s", text)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// logBuffer collects the output of a process. Several goroutines may use it.
type logBuffer struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.text.String()
}

// awaits waits for a text. The output of a process arrives a moment after the process has written it.
func (b *logBuffer) awaits(t testing.TB, text string) {
	t.Helper()
	awaitText(t, b, text)
}

func (b *logBuffer) tail(n int) string { return tail(b.String(), n) }

// logFile is the file to which the processes of a weir write their log. It has each line as soon as weir has
// written it: a line that weir writes before it answers a request is there when the answer is.
type logFile struct {
	path    string
	skipped atomic.Int64 // bytes before the last reset
}

// open returns the file for a process. The caller closes it.
func (l *logFile) open(t testing.TB) *os.File {
	t.Helper()
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (l *logFile) String() string {
	text, _ := os.ReadFile(l.path) // without a file there is no log yet
	return string(text[min(int(l.skipped.Load()), len(text)):])
}

// reset empties the log: String returns only later lines.
func (l *logFile) reset() { l.skipped.Add(int64(len(l.String()))) }

// awaits waits for a text.
func (l *logFile) awaits(t testing.TB, text string) {
	t.Helper()
	awaitText(t, l, text)
}

func (l *logFile) tail(n int) string { return tail(l.String(), n) }

func awaitText(t testing.TB, log fmt.Stringer, text string) {
	t.Helper()
	eventually(t, "the log has "+text, func() error {
		if !strings.Contains(log.String(), text) {
			return fmt.Errorf("it is\n%s", log)
		}
		return nil
	})
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
