//go:build linux

package kube

import (
	"context"
	"crypto/tls"
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
	"sync/atomic"
	"syscall"
	"time"
)

// weir is one running process of the binary, with its own address.
type weir struct {
	*stage
	*process
	dir, config string
	address     string // without a port
	node        string
}

var weirs atomic.Int32

// adminToken is the token of the admin port of every weir, because the port is on the
// address of the node.
const adminToken = "of-every-weir-in-these-tests"

// defaults are the sections that a configuration gets if it lacks them. @ip is weir's address, @node its
// node, @dir its folder, and @stage the namespace of the test, which is also the class of its Ingresses.
var defaults = map[string]string{
	"node":       "node: @node\n",
	"listeners":  "listeners: {web: {address: '@ip:80', protocol: http}, websecure: {address: '@ip:443', protocol: tls}}\n",
	"kubernetes": "kubernetes: {kubeconfig: '@kubeconfig', class: '@stage', lease: weir/@stage}\n",
	"health":     "health: {address: '@ip:8086'}\n",
	"admin":      "admin: {address: '@ip:8087', token: " + adminToken + "}\n",
	"drain":      "drain: {lame_duck: 1s, timeout: 20s}\n",
	"log":        "log: {level: debug}\n",
	"access_log": "access_log: {path: '@dir/access.log'}\n",
}

// refusal matches lines of the log about missing rights. API servers also refuse events in a namespace that
// is being deleted.
var refusal = regexp.MustCompile(`is forbidden: User`)

var topLevel = regexp.MustCompile(`(?m)^([a-z_]+):`)

// newWeir returns a weir that is not started yet.
func (s *stage) newWeir(node, config string) *weir {
	s.Helper()
	n := weirs.Add(1)
	w := &weir{stage: s, dir: s.TempDir(), address: fmt.Sprintf("10.10.1.%d", n), node: node}
	w.config = filepath.Join(w.dir, "weir.yaml")
	w.write(config)
	return w
}

// weir starts a weir on node-a, waits until it is ready, and ends it after the test.
func (s *stage) weir(config string) *weir {
	s.Helper()
	return s.newWeir("node-a", config).launch().ready()
}

// write replaces the configuration in one step.
func (w *weir) write(config string) {
	w.Helper()
	given := map[string]bool{}
	for _, m := range topLevel.FindAllStringSubmatch(config, -1) {
		given[m[1]] = true
	}
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		if !given[name] {
			config += defaults[name]
		}
	}
	config = strings.NewReplacer("@ip", w.address, "@node", w.node, "@dir", w.dir, "@stage", w.name(), "@kubeconfig", w.rights).Replace(config)
	if err := errors.Join(os.WriteFile(w.config+".new", []byte(config), 0o600), os.Rename(w.config+".new", w.config)); err != nil {
		w.Fatal(err)
	}
}

func (w *weir) name() string { return w.stage.name }

func (w *weir) launch(env ...string) *weir {
	w.Helper()
	cmd := exec.Command(weirFile, "run", "-c", w.config)
	cmd.Env = append(os.Environ(), "POD_NAMESPACE=weir", "POD_NAME=weir-"+w.address)
	cmd.Env = append(cmd.Env, env...)
	return w.exec(cmd)
}

func (w *weir) exec(cmd *exec.Cmd) *weir {
	w.Helper()
	var err error
	if w.process, err = start("weir", filepath.Join(w.dir, "log"), cmd); err != nil {
		w.Fatal(err)
	}
	p := w.process
	w.Cleanup(func() {
		p.kill()
		text := p.said(1 << 20)
		if strings.Contains(text, "panic:") || strings.Contains(text, "DATA RACE") {
			w.Errorf("weir panicked or raced:\n%s", text)
		} else if refusal.MatchString(text) && !w.refused {
			w.Errorf("the manifests in deploy do not give weir the rights that it wants:\n%s", text)
		} else if w.Failed() {
			w.Logf("weir on %s said\n%s", w.address, text[max(0, len(text)-8<<10):])
		}
	})
	return w
}

// ready waits until /readyz reports that weir is ready.
func (w *weir) ready() *weir {
	w.Helper()
	eventually(w, "weir gets ready", func() error {
		if !w.running() {
			w.Fatalf("weir ended at once:\n%s", w.said(4<<10))
		}
		return answers(control, "http://"+w.address+":8086/readyz")
	})
	return w
}

const terminate = syscall.SIGTERM

// terminate sends SIGTERM and returns the exit status.
func (w *weir) terminate() int {
	w.Helper()
	w.cmd.Process.Signal(syscall.SIGTERM)
	return w.wait()
}

// wait waits until the process has ended, and returns its exit status.
func (w *weir) wait() int {
	w.Helper()
	select {
	case <-w.exited:
	case <-time.After(patience + 20*time.Second):
		w.Fatal("weir does not end")
	}
	return w.cmd.ProcessState.ExitCode()
}

// control is the client for weir's own ports. Every request uses a new connection.
var control = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// page sends a GET request to one of weir's own ports, and returns the response.
func (w *weir) page(port int, path string) (status int, body string, err error) {
	req, err := http.NewRequest("GET", fmt.Sprintf("http://%s:%d%s", w.address, port, path), nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := control.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// metric returns the sum of all series of a metric that have these labels. labels alternates names and
// values.
func (w *weir) metric(name string, labels ...string) (sum float64) {
	w.Helper()
	_, text, err := w.page(8087, "/metrics")
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		base, rest, labelled := strings.Cut(series, "{")
		if !labelled {
			base, value, _ = strings.Cut(series, " ")
		}
		match := base == name
		for i := 0; i+1 < len(labels); i += 2 {
			match = match && strings.Contains(","+rest+",", ","+labels[i]+`="`+labels[i+1]+`",`)
		}
		if v, err := strconv.ParseFloat(value, 64); match && err == nil {
			sum += v
		}
	}
	return sum
}

// wantMetric waits until the sum is want.
func (w *weir) wantMetric(want float64, name string, labels ...string) {
	w.Helper()
	eventually(w, fmt.Sprint(name, labels, " becomes ", want), func() error {
		if got := w.metric(name, labels...); got != want {
			return fmt.Errorf("it is %v", got)
		}
		return nil
	})
}

// wantVerdict waits until the health port answers with this status, and with words among its reasons.
func (w *weir) wantVerdict(status int, words string) {
	w.Helper()
	eventually(w, fmt.Sprintf("the verdict becomes %d, for %q", status, words), func() error {
		got, text, err := w.page(8086, "/")
		if err == nil && (got != status || !strings.Contains(text, words)) {
			err = fmt.Errorf("it is %d: %s", got, text)
		}
		return err
	})
}

// answer is the response to a request.
type answer struct {
	Status                            int
	Location                          string
	Certificate                       string // the common name of the certificate's subject
	Pod, Namespace, Node, Version     string
	Client, Path, Host, Method, Proto string
	TLS                               bool
	Headers                           http.Header
}

func (a answer) String() string {
	return fmt.Sprintf("%d from pod %q on %q (certificate %q, location %q, path %q, proto %s)", a.Status, a.Pod, a.Node, a.Certificate, a.Location, a.Path, a.Proto)
}

// client returns a client that connects to address for every URL, and follows no redirects.
func client(address string, h2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	return &http.Client{
		Timeout: 20 * time.Second,
		Transport: &http.Transport{
			Protocols:       protocols,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
				_, port, _ := net.SplitHostPort(to)
				return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(address, port))
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func ask(c *http.Client, url string) (a answer, err error) {
	resp, err := c.Get(url)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	err = a.take(resp)
	return a, err
}

// take reads the whole response.
func (a *answer) take(resp *http.Response) error {
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode == 200 && err == nil && resp.Header.Get("Content-Type") == "application/json" {
		err = json.Unmarshal(text, a)
	}
	a.Status, a.Location = resp.StatusCode, resp.Header.Get("Location")
	if resp.TLS != nil {
		a.Certificate = resp.TLS.PeerCertificates[0].Subject.CommonName
	}
	return err
}

// get requests a URL on a new connection.
func (w *weir) get(url string) (answer, error) {
	c := client(w.address, false)
	defer c.CloseIdleConnections()
	return ask(c, url)
}

// want repeats a request until right accepts the response.
func (w *weir) want(url, what string, right func(answer) bool) (a answer) {
	w.Helper()
	eventually(w, fmt.Sprintf("%s is answered with %s", url, what), func() (err error) {
		if a, err = w.get(url); err == nil && !right(a) {
			err = errors.New(a.String())
		}
		return err
	})
	return a
}

func (w *weir) wantStatus(url string, status int) answer {
	w.Helper()
	return w.want(url, strconv.Itoa(status), func(a answer) bool { return a.Status == status })
}

// wantApp waits until a Pod of the Deployment app answers.
func (w *weir) wantApp(url, app string) answer {
	w.Helper()
	return w.want(url, "a Pod of "+app, func(a answer) bool { return a.Status == 200 && strings.HasPrefix(a.Pod, app+"-") })
}

// at returns weir's address with this port.
func (w *weir) at(port int) string { return net.JoinHostPort(w.address, strconv.Itoa(port)) }
