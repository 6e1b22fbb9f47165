package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// The limits for a reload with manyRoutes.
const (
	reloadCPU   = time.Second
	reloadDelay = 5 * time.Millisecond
)

// reloadMain measures what a reload costs. The configuration has many routes, half of them with filters. Each
// reload changes one route, and weir notices it by its watch of the file. Meanwhile a few connections send
// requests at fixed times. Windows with one reload and windows without alternate. The difference of their CPU
// times is the CPU time of a reload.
func reloadMain(args []string) error {
	flags := flag.NewFlagSet("reload", flag.ExitOnError)
	var o options
	r := reloads{}
	flags.IntVar(&r.routes, "routes", manyRoutes, "routes in the configuration")
	flags.IntVar(&o.threads, "threads", 1, "threads of weir that run Go code (GOMAXPROCS)")
	flags.IntVar(&r.load.busy, "busy", 8, "busy connections, half of them over TLS")
	flags.DurationVar(&r.load.every, "every", 5*time.Millisecond, "how often each of them makes a request")
	flags.DurationVar(&o.duration, "duration", 2*time.Second, "length of a window")
	flags.IntVar(&o.rounds, "rounds", 8, "reloads; the median of the CPU times counts")
	flags.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flags.StringVar(&o.profile, "profile", "", "write a CPU profile of weir during the reloads to this folder")
	flags.Parse(args)
	r.options, r.load.anew = &o, 20*time.Millisecond
	return o.weirAlone(r.measure)
}

type reloads struct {
	*options
	routes int
	load   crowd

	setup  setup
	weir   *process
	number int // of the configuration, which weir's response to reloadedPath shows
}

// reloadedPath is the path at which weir responds with the number of the configuration in effect.
const reloadedPath = "/reloaded"

// measure runs the windows, and prints the result.
func (r *reloads) measure() error {
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if r.setup, err = newSetup(dir, freeport.Benchmark); err != nil {
		return err
	}
	if err := errors.Join(writeCertificates(dir), r.writeConfig()); err != nil {
		return err
	}
	backend, err := startEcho(loadCore, r.setup)
	if err != nil {
		return err
	}
	defer backend.stop()
	r.weir, err = r.startWeir(dir)
	if err != nil {
		return err
	}
	defer r.weir.stop()
	if err := errors.Join(backend.ready(r.setup.BackendPort), r.weir.ready(r.setup.TLSPort)); err != nil {
		return err
	}
	return r.windows()
}

// windows alternates windows without and with a reload.
func (r *reloads) windows() error {
	if _, err := r.window(true); err != nil { // warm-up
		return err
	}
	profiled := make(chan error, 1)
	if r.profile != "" {
		url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/profile?seconds=%d", r.setup.AdminPort, int((2 * time.Duration(r.rounds) * r.duration).Seconds()))
		go func() { profiled <- writeProfile(url, r.profile, "reload") }()
	}
	var quiet, reloading latency
	var cpu []float64
	for n := range r.rounds {
		without, err := r.window(false)
		if err != nil {
			return err
		}
		with, err := r.window(true)
		if err != nil {
			return err
		}
		cpu = append(cpu, (with.cpu - without.cpu).Seconds())
		fmt.Fprintf(os.Stderr, "reload %2d/%d  %.3f s of CPU, in effect after %s\n", n+1, r.rounds, cpu[n], with.took.Round(time.Millisecond))
		quiet.all, reloading.all = append(quiet.all, without.all...), append(reloading.all, with.all...)
	}
	if r.profile != "" {
		if err := <-profiled; err != nil {
			return err
		}
	}
	r.print(spreadOf(cpu), quiet, reloading)
	return nil
}

// print prints the result beside the limits.
func (r *reloads) print(cpu spread, quiet, reloading latency) {
	slices.Sort(quiet.all)
	slices.Sort(reloading.all)
	quiet.cycles, reloading.cycles = -1, -1
	added := time.Duration((reloading.of(0.99) - quiet.of(0.99)) * float64(time.Millisecond))
	cheap, fast := cpu.Median < reloadCPU.Seconds(), added <= reloadDelay
	fmt.Printf("reload of %d routes with one changed, %d threads: %.3f s of CPU (%.3f to %.3f); must be less than %s: %s\n",
		r.routes, r.threads, cpu.Median, cpu.Min, cpu.Max, reloadCPU, verdict(&cheap))
	fmt.Printf("windows of %s without a reload: %s\nwindows of %s with one:         %s\n", r.duration, quiet, r.duration, reloading)
	fmt.Printf("added to p99: %s; must be at most %s: %s\n", added.Round(10*time.Microsecond), reloadDelay, verdict(&fast))
}

// reloadWindow is one measured window.
type reloadWindow struct {
	latency
	cpu  time.Duration
	took time.Duration // until the changed configuration was in effect; 0: there was no reload
}

// window loads weir for a window. With reload, it changes the configuration at the beginning, and
// fails if the change does not take effect within the window.
func (r *reloads) window(reload bool) (w reloadWindow, err error) {
	before, err := cpuTime(r.weir.cmd.Process.Pid)
	if err != nil {
		return w, err
	}
	changed := make(chan error, 1)
	go func() {
		if !reload {
			changed <- nil
			return
		}
		begun := time.Now()
		r.number++
		err := cmp.Or(r.writeConfig(), r.awaitNumber(begun.Add(r.duration)))
		w.took = time.Since(begun)
		changed <- err
	}()
	l, err := r.load.busyFew(r.setup, r.duration)
	w.latency = l
	after, err2 := cpuTime(r.weir.cmd.Process.Pid)
	w.cpu = after - before
	if err := errors.Join(err, err2, <-changed); err != nil {
		return w, fmt.Errorf("%w; weir %s", err, r.weir.state())
	}
	return w, nil
}

// awaitNumber waits until the configuration with r.number is in effect. It asks rarely, because its requests
// cost CPU time as well.
func (r *reloads) awaitNumber(until time.Time) error {
	for {
		got, err := askNumber(r.setup.HTTPPort)
		switch {
		case err != nil:
			return err
		case got == r.number:
			return nil
		case time.Now().After(until):
			return fmt.Errorf("the changed configuration was not in effect after %s; raise -duration", r.duration)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// askNumber returns the number of the configuration in effect.
func askNumber(port int) (number int, err error) {
	resp, err := http.Get(fmt.Sprintf("http://%s%s", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), reloadedPath))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(text), &number)
	return number, err
}

// writeConfig writes the configuration to a new file, which then replaces the old one.
func (r *reloads) writeConfig() error {
	next := filepath.Join(r.setup.Dir, "next.yaml")
	if err := os.WriteFile(next, []byte(r.config()), 0o644); err != nil {
		return err
	}
	return os.Rename(next, configOf(r.setup.Dir))
}

// config returns a configuration with many routes. Half of the routes have filters.
func (r *reloads) config() string {
	var t strings.Builder
	s := r.setup
	fmt.Fprintf(&t, `node: bench
listeners:
  plain: {address: "127.0.0.1:%d", protocol: http}
  behind: {address: "127.0.0.1:%d", protocol: http, proxy_protocol: required}
  secure: {address: "127.0.0.1:%d", protocol: tls}
proxy_protocol:
  required: {rules: [{from: [127.0.0.0/8], header: require}]}
certificates: [{cert: ecdsa.crt, key: ecdsa.key}]
admin: {address: "127.0.0.1:%d"}
log: {level: error}
rate_limits:
  plenty: {rate: 1000000/s, burst: 1000000, per: client}
backends:
  app: {endpoints: ["127.0.0.1:%d"]}
routes:
  - {listeners: [behind, secure], backend: app}
  - {listeners: [plain], paths: [=%s], respond: {status: 200, body: "%d"}}
`, s.HTTPPort, s.ProxyPort, s.TLSPort, s.AdminPort, s.BackendPort, reloadedPath, r.number)
	for i := range r.routes {
		fmt.Fprintf(&t, "  - listeners: [plain]\n    hosts: [%s]\n    paths: [/api/v%d]\n    backend: app\n", routeName(amongHosts, i), i%3)
		if i%2 == 0 {
			t.WriteString("    rate_limit: plenty\n    max_body: 1MiB\n    request: {set: {X-Tenant: blue, X-Client: \"{client}\"}}\n    response: {set: {X-Frame-Options: DENY}}\n")
		}
	}
	return t.String()
}
