// Bench measures the cost of one request in weir, HAProxy and nginx: CPU microseconds of
// the proxy process, user and system. Each proxy runs alone on core 0 with one thread.
// The load and an nginx backend (for uploads and gRPC a backend of ours) run on core 1.
// Some rows measure memory: resident KiB of the proxy process per idle connection.
// The rows "paths" and "hosts" measure the cost of finding one route among 10,000. They
// divide the result by that of the same load on a single route, in the same round. So do
// "edited" and "guarded", which measure the cost of filters.
//
// The proxies take turns, round by round, so that a disturbance of the machine affects
// all of them. A round with one wrong answer fails the whole run: a result from a broken
// round is worse than none.
//
// "bench memory" measures how much memory the proxies need for an idle connection of each
// kind. "bench crowd" measures the latency of a few busy connections among many idle
// ones. "bench bulk" measures how many bytes a tunnel moves in a second of CPU time.
// "bench reload" measures the CPU time of a reload with 10,000 routes, and the latency
// of the requests meanwhile. "bench cluster" measures weir as an ingress controller with
// 10,000 Ingresses: the time until a changed one is served, and the memory. "bench gateways"
// does the same with 10,000 HTTPRoutes on 100 Gateways that change at a steady rate.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "handshakes" {
		os.Exit(handshakesMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "backend" {
		os.Exit(backendMain(os.Args[2:]))
	}
	run := run
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "memory":
			run = func() error { return memoryMain(os.Args[2:]) }
		case "bulk":
			run = func() error { return bulkMain(os.Args[2:]) }
		case "crowd":
			run = func() error { return crowdMain(os.Args[2:]) }
		case "cluster":
			run = func() error { return clusterMain(os.Args[2:]) }
		case "gateways":
			run = func() error { return gatewaysMain(os.Args[2:]) }
		case "reload":
			run = func() error { return reloadMain(os.Args[2:]) }
		case "hold":
			run = func() error { return holdMain(os.Args[2:]) }
		case "few":
			run = func() error { return fewMain(os.Args[2:]) }
		case "press":
			run = func() error { return pressMain(os.Args[2:]) }
		case "echo":
			run = func() error { return echoMain(os.Args[2:]) }
		case "stream":
			run = func() error { return streamMain(os.Args[2:]) }
		}
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the values of the command line.
type options struct {
	rows     []row
	peers    []string
	rounds   int
	duration time.Duration
	warmup   time.Duration
	idle     int    // connections of the rows that measure memory
	weir     string // path of the binary; empty: bench builds it
	haproxy3 string // path of the binary of HAProxy 3.x
	threads  int    // of the proxy; 0 means 1
	env      string // a variable for the environment of weir; empty: none
	fields   string
	out      string
	profile  string

	built string // folder of the binary that bench built; empty: none
}

// build makes the weir binary, if weir is measured and the command line names no binary.
func (o *options) build() (err error) {
	if o.weir != "" || !slices.Contains(o.peers, "weir") {
		return nil
	}
	if o.built, err = os.MkdirTemp("", "weir-bench"); err != nil {
		return err
	}
	o.weir = filepath.Join(o.built, "weir")
	cmd := exec.Command("go", "build", "-trimpath", "-o", o.weir, "github.com/weirproxy/weir/cmd/weir")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		o.cleanUp()
		return fmt.Errorf("cannot build weir: %w\n%s", err, out)
	}
	return nil
}

func (o *options) cleanUp() {
	if o.built != "" {
		os.RemoveAll(o.built)
	}
}

// weirAlone measures weir without peers: it builds weir, and calls measure on the core of the load, in a network
// namespace of its own (see runApart).
func (o *options) weirAlone(measure func() error) error {
	o.peers = []string{"weir"}
	if err := o.build(); err != nil {
		return err
	}
	defer o.cleanUp()
	if done, err := runApart(append(os.Args[1:], "-weir", o.weir)); done || err != nil {
		return err
	}
	if err := pinTo(loadCore); err != nil {
		return err
	}
	return measure()
}

// configOf is the path of weir's configuration in the folder of a measurement.
func configOf(dir string) string { return filepath.Join(dir, "weir.yaml") }

// startWeir starts weir on the core of proxies with the configuration in a folder.
func (o *options) startWeir(dir string) (*process, error) {
	return start(proxyCore, filepath.Join(dir, "weir.out"), []string{fmt.Sprintf("GOMAXPROCS=%d", o.threads)}, o.weir, "run", "-c", configOf(dir))
}

// haproxy3Flag defines the flag for the peer haproxy3.
func (o *options) haproxy3Flag(flags *flag.FlagSet) {
	flags.StringVar(&o.haproxy3, "haproxy3", "haproxy3", "binary of the peer haproxy3 (HAProxy 3.x: the package haproxy of Debian's backports, or of the repository of Debian's HAProxy maintainers)")
}

func parseOptions() (options, error) {
	var o options
	rows := flag.String("rows", "all", "rows to measure: their keys, or budgets, handshakes, http2, idle, logs, routes, all")
	peers := flag.String("peers", "weir,haproxy,nginx", "proxies to measure, haproxy3 is another; ratios need haproxy or haproxy3, and nginx")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds for each proxy and row; the median counts")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "measured part of a round")
	flag.DurationVar(&o.warmup, "warmup", time.Second, "load before the measured part of a round")
	flag.IntVar(&o.idle, "idle", 9000, "connections of the rows that measure memory: what is between a ninth of them and all")
	flag.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	o.haproxy3Flag(flag.CommandLine)
	flag.IntVar(&o.threads, "threads", 1, "threads of each proxy, 1 or 2; with 2 the load runs on the same cores")
	flag.StringVar(&o.fields, "fields", "all", "HTTP headers that the peers set: all those weir sets, few (X-Forwarded-For and -Proto), or lean (X-Forwarded-For)")
	flag.StringVar(&o.out, "out", "", "write the results as JSON to this file")
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of weir for each row to this folder; its rounds are not counted")
	flag.Parse()

	var err error
	if o.rows, err = chooseRows(*rows); err != nil {
		return o, err
	}
	for name := range strings.SplitSeq(*peers, ",") {
		if _, ok := proxies[name]; !ok {
			return o, fmt.Errorf("-peers: there is no proxy %q", name)
		}
		o.peers = append(o.peers, name)
	}
	if o.idle < 90 || o.idle > 9000 {
		return o, errors.New("-idle has to be 90 to 9000")
	}
	if o.rounds < 1 || o.duration < 100*time.Millisecond {
		return o, errors.New("-rounds has to be at least 1 and -duration at least 100ms")
	}
	if o.fields != "all" && o.fields != "few" && o.fields != "lean" {
		return o, errors.New("-fields is all, few or lean")
	}
	if o.threads < 1 || o.threads > 2 {
		return o, errors.New("-threads is 1 or 2")
	}
	return o, nil
}

func run() error {
	o, err := parseOptions()
	if err != nil {
		return err
	}
	if err := o.build(); err != nil { // before runApart, because only here a network may be available to download modules
		return err
	}
	defer o.cleanUp()
	if done, err := runApart(append(os.Args[1:], "-weir", o.weir)); done || err != nil {
		return err
	}
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	failed := make(chan error, 1)
	go func() { failed <- b.measure() }()
	select {
	case err = <-failed:
	case <-interrupted:
		return errors.New("interrupted")
	}
	if err != nil {
		return err
	}
	report := b.report()
	fmt.Print(report.table())
	if o.out != "" {
		return report.write(o.out)
	}
	return nil
}
