package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
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
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// patience is the timeout of each wait. It is generous: only a broken weir makes the test wait so long, or a
// machine with very much other work.
var patience = 30 * time.Second

func init() {
	flag.DurationVar(&patience, "patience", patience, "the timeout of each wait; longer on a machine with much other work")
}

// eventually repeats f until it returns nil.
func eventually(what string, f func() error) error { return eventuallyWithin(patience, what, f) }

func eventuallyWithin(d time.Duration, what string, f func() error) error {
	var err error
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: not within %s: %w", what, d, err)
}

var errNotYet = errors.New("not yet")

// built is a folder to remove at the end; empty: there is none.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// binary returns the path of the weir under test.
func binary() (string, error) {
	if path := os.Getenv("WEIR_E2E_BINARY"); path != "" {
		return path, nil
	}
	return compiled()
}

// tool returns the path of the weir that runs "weir soak". It never has the race detector, which would make the
// clients busier than the weir under test.
func tool() (string, error) {
	if path := os.Getenv(apart); path != "" {
		return path, nil
	}
	return compiled()
}

// apart is set to the path of the tool in the process that runs TestMillion in a network namespace of its own.
const apart = "WEIR_SOAK_APART"

// compiled builds weir once. In CI the binary is static, as in a release. Elsewhere it uses the same settings as
// "go test", which takes only seconds.
var compiled = sync.OnceValues(func() (string, error) {
	// go test caches a result until a file or folder changes that the test has read. It does not see what
	// child processes read, so the test itself reads all folders of the module.
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

// freeAddress returns an address with the IP address host on which nothing listens.
func freeAddress(t *testing.T, host string) string {
	t.Helper()
	address, err := freeport.Soak.Take(host)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// node is a weir: its files, its addresses, and, while it runs, its process. With pid_file in its
// configuration, other processes may take over from the first one (SIGUSR2).
type node struct {
	t       *testing.T
	name    string
	dir     string
	host    string
	address map[string]string // the key is the name in the configuration
	sockets []*os.File        // the listening socket of the listener secure; none: weir opens its own
	changes int               // configurations of TestMillion

	mu     sync.Mutex // protects address
	cmd    *exec.Cmd
	exited chan struct{}
}

func newNode(t *testing.T, name, host string) *node {
	return &node{t: t, name: name, dir: t.TempDir(), host: host, address: map[string]string{}}
}

// at returns the address with this name. If there is none yet, it chooses a free one.
func (n *node) at(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.address[name] == "" {
		n.address[name] = freeAddress(n.t, n.host)
	}
	return n.address[name]
}

var addressName = regexp.MustCompile(`@[a-z][a-z0-9-]*`)

// file returns the path of a file in the node's folder.
func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// write replaces the configuration in one step. It replaces @name by the address with that name, and @dir/ by
// the folder.
func (n *node) write(config string) error {
	config = strings.ReplaceAll(config, "@dir", n.dir)
	config = addressName.ReplaceAllStringFunc(config, func(m string) string { return n.at(m[1:]) })
	return errors.Join(os.WriteFile(n.file("new"), []byte(config), 0o644), os.Rename(n.file("new"), n.file("weir.yaml")))
}

// start starts the node and waits until it is ready. All starts append to the same log file.
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
	if len(n.sockets) > 0 {
		n.cmd = exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", path, "run", "-c", n.file("weir.yaml"))
		n.cmd.Env, n.cmd.ExtraFiles = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=secure"), n.sockets
	}
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

// stop drains the node, and returns an error unless it ends successfully.
func (n *node) stop() error {
	if err := n.signal(syscall.SIGTERM); err != nil {
		return err
	}
	for deadline := time.Now().Add(2 * patience); len(n.processes()) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not end", n.name)
		}
	}
	<-n.exited
	if status := n.cmd.ProcessState.ExitCode(); status != 0 {
		return fmt.Errorf("%s ended with status %d", n.name, status)
	}
	return nil
}

// pid returns the process that accepts connections: the one that start started, or one that has taken over
// from it.
func (n *node) pid() int {
	text, _ := os.ReadFile(n.file("weir.pid"))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		return pid
	}
	return n.cmd.Process.Pid
}

// signal sends a signal to the process that accepts connections.
func (n *node) signal(s syscall.Signal) error { return syscall.Kill(n.pid(), s) }

// processes returns all running processes of the node: those with its configuration on their command line.
// A process that has ended has no command line.
func (n *node) processes() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && strings.Contains(string(text), n.file("weir.yaml")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill ends the node in any state at the end of the test, and searches its log for errors.
func (n *node) kill() {
	if n.cmd != nil && n.cmd.Process != nil {
		for all := n.processes(); len(all) > 0; all = n.processes() { // an upgrade may start another one
			for _, pid := range all {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			time.Sleep(time.Millisecond)
		}
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

// reload gives the node another configuration, and waits until the reload has this result: "success" or
// "failure".
func (n *node) reload(config, result string) error {
	before, err := n.metric("weir_config_reloads_total", "result", result)
	if err != nil {
		return err
	}
	if err := errors.Join(n.write(config), n.signal(syscall.SIGHUP)); err != nil {
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

// control is the client for the nodes' own ports. Every request uses a new connection.
var control = &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}

// trusted is the client for requests that change weir, or make profiles. It uses the Unix socket beside the admin port.
var trusted = &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
	DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "@weir/"+address)
	}}}

// get sends a GET request to the port with this name.
func (n *node) get(name, path string) (body string, err error) {
	return answer(control.Get("http://" + n.at(name) + path))
}

// profile downloads a profile from the node.
func (n *node) profile(path string) (body string, err error) {
	return answer(trusted.Post("http://"+n.at("admin")+path, "", nil))
}

func (n *node) post(path string) error {
	_, err := answer(trusted.Post("http://"+n.at("admin")+path, "", nil))
	return err
}

// answer returns the body of a response, and an error unless its status is a success.
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

// metrics returns all series with their values. The key is a series with its labels.
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

// metric returns sum for the current metrics of the node.
func (n *node) metric(name string, labels ...string) (float64, error) {
	all, err := n.metrics()
	return sum(all, name, labels...), err
}

// hash returns the series weir_config_hash, whose label is the hash of the configuration in effect.
func (n *node) hash() (string, error) {
	all, err := n.metrics()
	for series := range all {
		if strings.HasPrefix(series, "weir_config_hash") {
			return series, err
		}
	}
	return "", errors.Join(err, errNotYet)
}

// sum returns the sum of all series of a metric that have these labels. labels alternates names and values.
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

// refused returns the metrics about refused and failed connections and requests, for the message of a failed
// test.
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
