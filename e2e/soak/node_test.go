package soak

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// patience is how long the test waits for what has to happen. It is generous:
// only a broken weir makes it wait so long.
const patience = 30 * time.Second

// eventually tries f until it succeeds.
func eventually(what string, f func() error) error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: not within %s: %w", what, patience, err)
}

var errNotYet = errors.New("not yet")

// built is a folder to be removed; empty: there is none.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// binary is the weir that is soaked, made once: in CI static, as it is shipped;
// elsewhere as "go test" compiles packages, which takes seconds.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WEIR_E2E_BINARY"); path != "" {
		return path, nil
	}
	// go test remembers which folders of the module a test has read, and runs it
	// again when something in them has changed; what a child reads it does not see.
	if err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	}); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "weir-soak")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "weir")
	cmd := exec.Command("go", "build", "-o", path, "github.com/weirproxy/weir/cmd/weir")
	if os.Getenv("CI") == "true" {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build weir: %w\n%s", err, out)
	}
	return path, nil
})

// freeAddress is one of host on which nothing listens.
func freeAddress(t *testing.T, host string) string {
	t.Helper()
	address, err := freeport.Soak.Take(host)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// node is a weir: its files, its addresses, and its process while it runs.
type node struct {
	t       *testing.T
	name    string
	dir     string
	host    string
	address map[string]string // by the name that the configuration has for it

	mu     sync.Mutex // naming
	cmd    *exec.Cmd
	exited chan struct{}
}

func newNode(t *testing.T, name, host string) *node {
	return &node{t: t, name: name, dir: t.TempDir(), host: host, address: map[string]string{}}
}

// at is the address called name; a free one unless it is known.
func (n *node) at(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.address[name] == "" {
		n.address[name] = freeAddress(n.t, n.host)
	}
	return n.address[name]
}

var addressName = regexp.MustCompile(`@[a-z][a-z0-9-]*`)

// file is a path in the node's folder.
func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// write replaces the configuration in one step. @name is the address called so, @dir/ the folder.
func (n *node) write(config string) error {
	config = strings.ReplaceAll(config, "@dir", n.dir)
	config = addressName.ReplaceAllStringFunc(config, func(m string) string { return n.at(m[1:]) })
	return errors.Join(os.WriteFile(n.file("new"), []byte(config), 0o644), os.Rename(n.file("new"), n.file("weir.yaml")))
}

// start runs the node until it is ready. Its log goes on in the same file each time.
func (n *node) start() error {
	path, err := binary()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(n.file("weir.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(path, "run", "-c", n.file("weir.yaml"))
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.exited = make(chan struct{})
	if err := n.cmd.Start(); err != nil {
		return err
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(n.cmd, n.exited)
	return eventually(n.name+" gets ready", func() error {
		select {
		case <-n.exited:
			return errors.New("it ended at once")
		default:
			_, err := n.get("health", "/readyz")
			return err
		}
	})
}

// stop drains the node, which has to end well.
func (n *node) stop() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.exited:
	case <-time.After(2 * patience):
		return fmt.Errorf("%s does not end", n.name)
	}
	if status := n.cmd.ProcessState.ExitCode(); status != 0 {
		return fmt.Errorf("%s ended with status %d", n.name, status)
	}
	return nil
}

// kill ends the node however it is, at the end of the test, and looks at what it said.
func (n *node) kill() {
	if n.cmd != nil && n.cmd.Process != nil {
		n.cmd.Process.Kill()
		<-n.exited
	}
	log := n.log()
	for _, bad := range []string{"panic:", "DATA RACE"} {
		if i := strings.Index(log, bad); i >= 0 {
			n.t.Errorf("%s: %s\n%s", n.name, bad, log[max(0, i-200):min(len(log), i+4000)])
		}
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"level":"error"`) && !strings.Contains(line, badConfig) {
			n.t.Errorf("%s: %s", n.name, line)
		}
	}
	if n.t.Failed() {
		n.t.Logf("%s's log ends with:\n%s", n.name, log[max(0, len(log)-6000):])
	}
}

func (n *node) log() string {
	text, _ := os.ReadFile(n.file("weir.log"))
	return string(text)
}

// reload gives the node another configuration, and waits until it is taken, or refused.
func (n *node) reload(config, result string) error {
	before, err := n.metric("weir_config_reloads_total", "result", result)
	if err != nil {
		return err
	}
	if err := errors.Join(n.write(config), n.cmd.Process.Signal(syscall.SIGHUP)); err != nil {
		return err
	}
	return eventually(n.name+": a reload ends with "+result, func() error {
		now, err := n.metric("weir_config_reloads_total", "result", result)
		if err == nil && now == before {
			err = errNotYet
		}
		return err
	})
}

// control talks to the nodes' own ports; every request has a connection of its own.
var control = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks the port called name.
func (n *node) get(name, path string) (body string, err error) {
	return answer(control.Get("http://" + n.at(name) + path))
}

// profile downloads a profile from the node.
func (n *node) profile(path string) (body string, err error) {
	return answer(control.Post("http://"+n.at("admin")+path, "", nil))
}

func (n *node) post(path string) error {
	_, err := answer(control.Post("http://"+n.at("admin")+path, "", nil))
	return err
}

// answer is the body of a response that has to be a success.
func answer(resp *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// metrics are series as they are exposed -> value.
func (n *node) metrics() (map[string]float64, error) {
	text, err := n.get("admin", "/metrics")
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err == nil {
			all[line[:i]] = v
		}
	}
	return all, nil
}

// metric is sum of what the node exposes now.
func (n *node) metric(name string, labels ...string) (float64, error) {
	all, err := n.metrics()
	return sum(all, name, labels...), err
}

// sum adds up the series of name that have the labels given as name, value, name, value.
func sum(metrics map[string]float64, name string, labels ...string) (v float64) {
	for series, value := range metrics {
		base, rest, _ := strings.Cut(series, "{")
		match := base == name
		for i := 0; i+1 < len(labels); i += 2 {
			match = match && strings.Contains(","+rest, ","+labels[i]+`="`+labels[i+1]+`"`)
		}
		if match {
			v += value
		}
	}
	return v
}

// refused is what weir says of connections that it has closed, for a look after a failure.
func refused(metrics map[string]float64) string {
	var text strings.Builder
	for _, series := range slices.Sorted(maps.Keys(metrics)) {
		for _, name := range []string{"weir_connections_rejected_total", "weir_proxy_headers_total", "weir_http_requests_total", "weir_backend_retries_total", "weir_http2_errors_total"} {
			if strings.HasPrefix(series, name+"{") && metrics[series] > 0 {
				fmt.Fprintln(&text, series, metrics[series])
			}
		}
	}
	return text.String()
}
