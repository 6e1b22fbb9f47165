package main

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// crowdMain measures the latency of a few busy connections, first alone and then among many idle ones.
// Neither the idle connections nor the garbage collection of their memory should increase the latency. Each
// busy connection sends its requests at fixed times, even if the previous request was slow, and the latency
// counts from the planned time. Meanwhile, clients open and close TLS connections, because these make garbage
// in weir.
func crowdMain(args []string) error {
	flags := flag.NewFlagSet("crowd", flag.ExitOnError)
	var o options
	c := crowd{}
	peers := flags.String("peers", "weir,haproxy,nginx", "proxies to measure")
	key := flags.String("kind", "tls", "kind of the quiet connections: "+kindKeys())
	flags.IntVar(&c.quiet, "quiet", 9000, "quiet connections")
	flags.IntVar(&c.busy, "busy", 8, "busy connections, half of them over TLS")
	flags.DurationVar(&c.every, "every", 5*time.Millisecond, "how often each of them makes a request")
	flags.DurationVar(&c.anew, "anew", 20*time.Millisecond, "how often a new connection over TLS is made, for one request")
	flags.DurationVar(&o.duration, "duration", 10*time.Second, "measured part of a round")
	flags.IntVar(&o.rounds, "rounds", 3, "rounds")
	flags.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flags.Parse(args)
	o.peers = strings.Split(*peers, ",")
	k, err := kindOf(*key)
	if err != nil {
		return err
	}
	c.options, c.kind = &o, k
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
	fmt.Printf("%d busy connections, a request every %s on each; a new one every %s; %d quiet: %s\n", c.busy, c.every, c.anew, c.quiet, k.name)
	for range o.rounds {
		for _, peer := range o.peers {
			if slices.Contains(proxies[peer].not, k.key) {
				continue
			}
			if err := c.round(peer); err != nil {
				return fmt.Errorf("crowd, %s: %w", peer, err)
			}
		}
	}
	return nil
}

type crowd struct {
	*options
	kind        kind
	quiet, busy int
	every, anew time.Duration
}

// round measures one proxy, without the idle connections and with them.
func (c *crowd) round(peer string) error {
	p, s, err := c.startAlone(peer, c.quiet+200, c.kind.mutual, freeport.Benchmark)
	if err != nil {
		return err
	}
	defer os.RemoveAll(s.Dir)
	defer p.stop()
	backend, err := startEcho(s)
	if err != nil {
		return err
	}
	defer backend.stop()
	if err := errors.Join(p.ready(s.TLSPort), backend.ready(s.BackendPort)); err != nil {
		return err
	}
	if _, err := c.busyFew(s, time.Second); err != nil { // warm-up
		return err
	}
	alone, err := c.look(peer, s)
	if err != nil {
		return err
	}
	hold, err := c.startHold(s)
	if err != nil {
		return err
	}
	defer hold.stop()
	among, err := c.look(peer, s)
	if err != nil {
		return err
	}
	fmt.Printf("%-8s %5d quiet: %s\n%-8s %5d quiet: %s\n", peer, 0, alone, peer, c.quiet, among)
	select {
	case <-hold.done:
		return fmt.Errorf("the quiet connections did not last: %s", hold.output())
	default:
		return nil
	}
}

// startHold opens the idle connections in a separate process, on the core of the load.
func (c *crowd) startHold(s setup) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	hold, err := start(loadCore, filepath.Join(s.Dir, "hold.out"), nil, self, "hold", "-kind", c.kind.key, "-connections", strconv.Itoa(c.quiet),
		"-ports", fmt.Sprintf("%d,%d,%d,%d", s.HTTPPort, s.TLSPort, s.TCPPort, s.ProxyPort), "-dir", s.Dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(3 * time.Minute); !strings.Contains(hold.output(), holdReady); time.Sleep(50 * time.Millisecond) {
		select {
		case <-hold.done:
			return nil, fmt.Errorf("the quiet connections are not there: %s", hold.output())
		default:
		}
		if time.Now().After(deadline) {
			hold.stop()
			return nil, fmt.Errorf("the quiet connections are not there in time: %s", hold.output())
		}
	}
	time.Sleep(3 * time.Second) // after that time all are parked
	return hold, nil
}

const holdReady = "all connections are idle"

// holdMain opens connections of a kind and uses each once. It reports that, and keeps the connections open
// until the bench ends the process.
func holdMain(args []string) error {
	flags := flag.NewFlagSet("hold", flag.ExitOnError)
	key := flags.String("kind", "", "kind of connections")
	n := flags.Int("connections", 1, "how many")
	ports := flags.String("ports", "", "of HTTP, TLS, TCP and HTTP behind a header")
	var s setup
	flags.StringVar(&s.Dir, "dir", "", "folder with certificates")
	flags.Parse(args)
	k, err := kindOf(*key)
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(*ports, "%d,%d,%d,%d", &s.HTTPPort, &s.TLSPort, &s.TCPPort, &s.ProxyPort); err != nil {
		return err
	}
	s.Mutual = k.mutual
	open, err := k.openUntil(*n, 1000, s, nil)
	if err != nil {
		return err
	}
	fmt.Println(holdReady)
	defer runtime.KeepAlive(open)
	select {} // until the bench ends this process
}

// startEcho runs serveEcho in a separate process, on the core of the load.
func startEcho(s setup) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(loadCore, filepath.Join(s.Dir, "echo.out"), nil, self, "echo", "-port", strconv.Itoa(s.BackendPort))
}

func echoMain(args []string) error {
	flags := flag.NewFlagSet("echo", flag.ExitOnError)
	port := flags.Int("port", 0, "where to listen")
	flags.Parse(args)
	if _, err := serveEcho(*port); err != nil {
		return err
	}
	select {}
}

// latency is the latency of the busy connections.
type latency struct {
	all    []time.Duration
	cycles int // garbage collections of weir during the measurement; -1 for the other proxies
}

func (l latency) of(share float64) float64 {
	return float64(l.all[int(math.Ceil(share*float64(len(l.all)-1)))].Microseconds()) / 1e3
}

func (l latency) String() string {
	text := fmt.Sprintf("p50 %6.2f  p90 %6.2f  p99 %6.2f  p99.9 %6.2f  max %6.2f ms of %d requests", l.of(0.5), l.of(0.9), l.of(0.99), l.of(0.999), l.of(1), len(l.all))
	if l.cycles >= 0 {
		text += fmt.Sprintf("; %d garbage collections", l.cycles)
	}
	return text
}

var gcCycles = regexp.MustCompile(`(?m)^go_gc_duration_seconds_count (\d+)`)

// collections returns how often weir has collected garbage.
func collections(peer string, s setup) (int, error) {
	if peer != "weir" {
		return -1, nil
	}
	text, err := fetch("GET", fmt.Sprintf("http://127.0.0.1:%d/metrics", s.AdminPort), time.Minute)
	if err != nil {
		return 0, err
	}
	m := gcCycles.FindSubmatch(text)
	if m == nil {
		return 0, errors.New("weir does not say how often it collects garbage")
	}
	return strconv.Atoi(string(m[1]))
}

// look measures the latency of the busy connections in one round.
func (c *crowd) look(peer string, s setup) (latency, error) {
	before, err := collections(peer, s)
	if err != nil {
		return latency{}, err
	}
	l, err := c.busyFew(s, c.duration)
	if err != nil {
		return l, err
	}
	after, err := collections(peer, s)
	if l.cycles = after - before; peer != "weir" {
		l.cycles = -1
	}
	return l, err
}

// busyFew makes requests on the busy connections for d.
func (c *crowd) busyFew(s setup, d time.Duration) (l latency, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(d)
	add := func(took []time.Duration, failed error) {
		mu.Lock()
		defer mu.Unlock()
		l.all = append(l.all, took...)
		if err == nil {
			err = failed
		}
	}
	for i := range c.busy {
		all.Go(func() {
			dial := dialPlain
			if i%2 == 1 {
				dial = dialTLS
			}
			add(c.busyOne(s, dial, end, time.Duration(i)*c.every/time.Duration(c.busy)))
		})
	}
	all.Go(func() { // these connections make garbage, and are not measured
		for time.Now().Before(end) {
			time.Sleep(c.anew)
			h, err := dialTLS(s)
			if err == nil {
				err = h.exchange(128)
				h.Close()
			}
			if err != nil {
				add(nil, err)
				return
			}
		}
	})
	all.Wait()
	if err == nil && len(l.all) == 0 {
		err = errors.New("there was no request")
	}
	slices.Sort(l.all)
	return l, err
}

// busyOne runs one connection, with a request at each tick.
func (c *crowd) busyOne(s setup, dial func(setup) (held, error), end time.Time, phase time.Duration) (took []time.Duration, err error) {
	h, err := dial(s)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if err := h.exchange(128); err != nil {
		return nil, err
	}
	for due := time.Now().Add(phase); due.Before(end); due = due.Add(c.every) {
		from := due
		if time.Now().Before(due) {
			time.Sleep(time.Until(due))
			from = time.Now() // a late timer of this process does not count as latency of the proxy
		}
		if err := h.exchange(128); err != nil {
			return took, err
		}
		took = append(took, time.Since(from))
	}
	return took, nil
}
