package main

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// memoryMain measures resident memory per idle connection. It uses the slope between two
// numbers of connections, so that the constant memory of a process does not count.
func memoryMain(args []string) error {
	flags := flag.NewFlagSet("memory", flag.ExitOnError)
	var o options
	peers := flags.String("peers", "weir,haproxy,nginx", "proxies to measure")
	which := flags.String("kinds", "plain,tls,h2,tunnel,ws", "kinds of connections: "+kindKeys())
	from := flags.Int("from", 1000, "connections at the first look")
	to := flags.Int("to", 9000, "connections at the second")
	rate := flags.Int("rate", 1000, "new connections a second")
	rounds := flags.Int("rounds", 1, "rounds")
	processes := flags.Int("processes", 1, "proxies at the same time, each with so many connections and with clients and a backend of its own")
	one := flags.Int("one", -1, "")
	flags.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flags.StringVar(&o.profile, "profile", "", "write a profile of weir's heap for each kind to this folder, with all connections open")
	flags.Parse(args)
	o.peers = strings.Split(*peers, ",")
	if err := o.build(); err != nil {
		return err
	}
	defer o.cleanUp()
	if *one >= 0 {
		return o.oneOfMany(*which, *one, *from, *to, *rate)
	}
	if done, err := runApart(append(os.Args[1:], "-weir", o.weir)); done || err != nil {
		return err
	}
	for key := range strings.SplitSeq(*which, ",") {
		k, err := kindOf(key)
		if err != nil {
			return err
		}
		for range *rounds {
			for _, peer := range o.peers {
				if slices.Contains(proxies[peer].not, k.key) {
					continue
				}
				if *processes > 1 {
					err = o.many(k, peer, *processes, *from, *to, *rate)
				} else {
					var f footprint
					if f, err = o.slope(k, peer, *from, *to, *rate, freeport.Benchmark, nothing); err == nil {
						fmt.Printf("%-47s %-8s %s\n", k.name, peer, f)
					}
				}
				if err != nil {
					return fmt.Errorf("%s, %s: %w", k.name, peer, err)
				}
			}
		}
	}
	return nil
}

// footprint is the memory of one connection.
type footprint struct {
	resident float64 // KiB of the process
	kernel   kernelMemory
	sockets  float64 // descriptors of the process for each connection
}

func (f footprint) String() string {
	return fmt.Sprintf("%6.2f KiB per connection; %.2f descriptors; kernel: %s", f.resident, f.sockets, f.kernel)
}

func nothing(string) {}

// slope starts a proxy and measures one kind of connection. It calls pause between its steps. pause may wait
// for other processes that measure at the same time.
func (o *options) slope(k kind, peer string, from, to, rate int, ports *freeport.Range, pause func(step string)) (f footprint, err error) {
	p, s, err := o.startAlone(peer, to, k.mutual, ports)
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(s.Dir)
	defer p.stop()
	stop, err := serveEcho(s.BackendPort)
	if err != nil {
		return f, err
	}
	defer stop()
	if err := p.ready(s.TLSPort); err != nil {
		return f, err
	}
	var open []held
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	var looks [2]look
	for i, n := range [...]int{from, to} {
		pause("ready")
		if open, err = k.openUntil(n, rate, s, open); err != nil {
			return f, fmt.Errorf("with %d connections: %w; %s", len(open), err, p.output())
		}
		pause("open")
		if looks[i], err = settled(p.cmd.Process.Pid); err != nil {
			return f, err
		}
	}
	pause("measured")
	if o.profile != "" && peer == "weir" {
		if err := writeProfile(fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/heap?gc=1", s.AdminPort), o.profile, k.key); err != nil {
			return f, err
		}
	}
	if err := exchangeAll(open); err != nil { // all connections must still be open
		return f, fmt.Errorf("an idle connection did not last: %w; the proxy %s; %s", err, p.state(), p.output())
	}
	n := float64(to - from)
	f.resident = (looks[1].resident - looks[0].resident) / n
	f.sockets = float64(looks[1].descriptors-looks[0].descriptors) / n
	f.kernel = looks[1].kernel.since(looks[0].kernel)
	return f, nil
}

// exchangeAll makes another exchange on each connection.
func exchangeAll(open []held) error {
	var all sync.WaitGroup
	failed := make(chan error, openers)
	for i := range openers {
		all.Go(func() {
			for j := i; j < len(open); j += openers {
				if err := open[j].exchange(1); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	if len(failed) > 0 {
		return <-failed
	}
	return nil
}

// startAlone starts a proxy with our own backend.
func (o *options) startAlone(peer string, connections int, mutual bool, ports *freeport.Range) (*process, setup, error) {
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return nil, setup{}, err
	}
	s, err := newSetup(dir, ports)
	s.Fields, s.Threads, s.Mutual, s.Connections = "all", max(1, o.threads), mutual, connections+100
	b := &bench{options: *o, setup: s}
	if err = errors.Join(err, os.Chmod(dir, 0o755), writeCertificates(dir)); err == nil {
		var p *process
		if p, err = b.startProxy(row{}, peer); err == nil {
			return p, b.setup, nil
		}
	}
	os.RemoveAll(dir)
	return nil, setup{}, err
}

// openers is how many connections are opened and used at the same time.
const openers = 16

// openUntil opens connections until there are n, and uses each as its kind requires.
func (k kind) openUntil(n, rate int, s setup, open []held) ([]held, error) {
	turns, missing := make(chan struct{}), n-len(open)
	go func() {
		defer close(turns)
		begun := time.Now()
		for i := range missing {
			time.Sleep(time.Duration(i)*time.Second/time.Duration(rate) - time.Since(begun))
			turns <- struct{}{}
		}
	}()
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed error
	for range openers {
		all.Go(func() {
			for range turns {
				mu.Lock()
				stop := failed != nil
				mu.Unlock()
				if stop {
					continue
				}
				h, err := k.dial(s)
				if err == nil {
					err = k.use(h)
				}
				mu.Lock()
				if h != nil {
					open = append(open, h)
				}
				if failed == nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return open, failed
}

// look is the memory of a process and of the kernel at one moment.
type look struct {
	resident    float64 // KiB
	descriptors int
	kernel      kernelMemory
}

// settled returns a look when the resident memory of a process does not change any more.
func settled(pid int) (look, error) {
	last := math.Inf(1)
	for begun := time.Now(); ; {
		time.Sleep(4 * time.Second)
		kib, err := resident(pid)
		if err != nil {
			return look{}, err
		}
		if now := float64(kib); math.Abs(now-last) < last/500 || time.Since(begun) > time.Minute {
			l := look{resident: now, descriptors: descriptors(pid)}
			l.kernel, err = lookAtKernel()
			return l, err
		}
		last = float64(kib)
	}
}

// resident returns the resident memory of pid and its children, in KiB. Pages that they
// share count for each process, in both looks.
func resident(pid int) (int, error) {
	sum := 0
	for _, p := range family(pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
		if err != nil {
			return 0, err
		}
		_, rest, found := strings.Cut(string(text), "VmRSS:")
		if fields := strings.Fields(rest); found && len(fields) > 0 {
			n, err := strconv.Atoi(fields[0])
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// descriptors counts the descriptors of pid and its children.
func descriptors(pid int) (n int) {
	for _, p := range family(pid) {
		files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p))
		n += len(files)
	}
	return n
}
