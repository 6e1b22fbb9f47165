// Bench measures what one request costs weir, HAProxy and nginx: CPU
// microseconds of the proxy process, user and system, each proxy alone on core 0
// with one thread, the load and an nginx backend on core 1 (for uploads and gRPC
// a backend of ours). Some rows measure memory: resident KiB of the proxy
// process per idle connection.
//
// The proxies take turns, round by round, so that whatever the machine does
// meanwhile meets all of them. A round in which one answer was wrong fails the
// whole run: a figure from a broken round is worse than none.
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
	if len(os.Args) > 1 && os.Args[1] == "idle" {
		os.Exit(idleMain(os.Args[2:]))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	rows     []row
	peers    []string
	rounds   int
	duration time.Duration
	warmup   time.Duration
	settle   time.Duration
	idle     int    // connections of the rows that measure memory
	weir     string // path of the binary; empty: built
	fields   string
	out      string
	profile  string

	built string // folder of the binary that was built; empty: none was
}

// build makes the weir binary if weir is measured and none was given.
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

func parseOptions() (options, error) {
	var o options
	rows := flag.String("rows", "all", "rows to measure: their keys, or budgets, handshakes, http2, all")
	peers := flag.String("peers", "weir,haproxy,nginx", "proxies to measure; ratios need haproxy and nginx")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds for each proxy and row; the median counts")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "measured part of a round")
	flag.DurationVar(&o.warmup, "warmup", time.Second, "load before the measured part of a round")
	flag.DurationVar(&o.settle, "settle", 5*time.Second, "wait before memory is measured")
	flag.IntVar(&o.idle, "idle", 1000, "connections of the rows that measure memory")
	flag.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flag.StringVar(&o.fields, "fields", "all", "fields the peers set: all those weir sets, or few (X-Forwarded-For and -Proto)")
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
	if o.idle < 1 || o.idle > 4000 {
		return o, errors.New("-idle has to be 1 to 4000")
	}
	if o.rounds < 1 || o.duration < 100*time.Millisecond {
		return o, errors.New("-rounds has to be at least 1 and -duration at least 100ms")
	}
	if o.fields != "all" && o.fields != "few" {
		return o, errors.New("-fields is all or few")
	}
	return o, nil
}

func run() error {
	o, err := parseOptions()
	if err != nil {
		return err
	}
	if err := o.build(); err != nil { // here, where there may be a network to fetch modules by
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
