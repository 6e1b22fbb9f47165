package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// crowdMain measures the latency of a few busy connections among many idle ones, while other clients make weir
// collect garbage: they open TLS connections, send request bodies, or both, at a share of the rate at which a proxy
// is saturated. Each busy connection sends its requests at fixed times, even if the previous request was slow, and
// the latency counts from the planned time. All proxies get the same load.
func crowdMain(args []string) error {
	flags := flag.NewFlagSet("crowd", flag.ExitOnError)
	var o options
	c := crowd{}
	peers := flags.String("peers", "weir,haproxy", "proxies to measure; haproxy3 and nginx are others")
	key := flags.String("kind", "tls", "kind of the idle connections: "+kindKeys())
	loads := flags.String("loads", strings.Join(loadNames, ","), "what the other clients do")
	shares := flags.String("shares", "33,67", "how often, in percent of the rate at which the slowest proxy is saturated")
	saturated := flags.String("saturated", "", "rates that saturate a proxy, as printed by another run: connections=2900,mix=3400 (default: measured)")
	flags.IntVar(&c.quiet, "quiet", 9000, "idle connections")
	flags.IntVar(&c.busy, "busy", 8, "busy connections, half of them over TLS")
	flags.DurationVar(&c.every, "every", 5*time.Millisecond, "how often each of them makes a request")
	flags.DurationVar(&o.duration, "duration", 10*time.Second, "length of a measurement")
	flags.IntVar(&o.rounds, "rounds", 3, "rounds; the median counts")
	flags.IntVar(&o.threads, "threads", 1, "threads of each proxy, 1 or 2; with 2 the load runs on the same cores")
	flags.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flags.StringVar(&o.env, "env", "", "a variable for the environment of weir, such as GODEBUG=gctrace=1; its output is printed")
	o.haproxy3Flag(flags)
	flags.Parse(args)
	o.peers = strings.Split(*peers, ",")
	c.loads = strings.Split(*loads, ",")
	k, err := kindOf(*key)
	if err != nil {
		return err
	}
	for share := range strings.SplitSeq(*shares, ",") {
		n, err := strconv.Atoi(share)
		if err != nil || n < 1 || n > 100 {
			return fmt.Errorf("-shares: %q is not a share in percent", share)
		}
		c.shares = append(c.shares, n)
	}
	c.rates = map[string]float64{}
	for pair := range strings.SplitSeq(*saturated, ",") {
		load, rate, _ := strings.Cut(pair, "=")
		if n, err := strconv.ParseFloat(rate, 64); err == nil && n > 0 {
			c.rates[load] = n
		} else if pair != "" {
			return fmt.Errorf("-saturated: %q is not a load and a rate", pair)
		}
	}
	c.options, c.kind = &o, k
	if err := o.build(); err != nil {
		return err
	}
	defer o.cleanUp()
	if done, err := runApart(append(os.Args[1:], "-weir", o.weir)); done || err != nil {
		return err
	}
	if err := pinTo(o.loadCores()); err != nil {
		return err
	}
	return c.measure()
}

type crowd struct {
	*options
	kind        kind
	quiet, busy int
	every, anew time.Duration // anew: how often busyFew makes a new connection over TLS, for one request; 0: never
	loads       []string
	shares      []int
	rates       map[string]float64 // by load: how many operations a second saturate a proxy
	found       map[string][]latency
}

// measure finds out what saturates the proxies, and runs all rounds.
func (c *crowd) measure() error {
	c.found = map[string][]latency{}
	if len(c.rates) == 0 {
		for _, peer := range c.peers {
			if err := c.apart(peer, func(p *process, s setup) error { return c.saturate(peer, p, s) }); err != nil {
				return fmt.Errorf("crowd, %s: %w", peer, err)
			}
		}
	}
	for _, load := range c.loads {
		fmt.Printf("%s: the slowest proxy is saturated by %.0f a second\n", load, c.rates[load])
	}
	fmt.Printf("%d busy connections, a request every %s on each; %d idle connections: %s; %d threads\n", c.busy, c.every, c.quiet, c.kind.name, c.threads)
	for n := range c.rounds {
		for i := range c.peers {
			peer := c.peers[(i+n)%len(c.peers)]
			if slices.Contains(proxies[peer].not, c.kind.key) {
				continue
			}
			if err := c.apart(peer, func(p *process, s setup) error { return c.round(peer, p, s) }); err != nil {
				return fmt.Errorf("crowd, round %d of %s: %w", n+1, peer, err)
			}
		}
	}
	c.table()
	return nil
}

// apart calls do with a new proxy and its backends.
func (c *crowd) apart(peer string, do func(p *process, s setup) error) error {
	p, s, err := c.startAlone(peer, c.quiet+500, c.kind.mutual, freeport.Benchmark)
	if err != nil {
		return err
	}
	defer os.RemoveAll(s.Dir)
	defer p.stop()
	echo, err := startEcho(c.loadCores(), s)
	if err != nil {
		return err
	}
	defer echo.stop()
	if err := errors.Join(p.ready(s.TLSPort), echo.ready(s.BackendPort)); err != nil {
		return err
	}
	return do(p, s)
}

// saturate finds out how many operations of each load a second saturate the proxy, and keeps the number if no other
// proxy is slower. If the load has a core of its own, it may be saturated before the proxy, so the CPU time of an
// operation counts.
func (c *crowd) saturate(peer string, p *process, s setup) error {
	for _, load := range c.loads {
		before, err := cpuTime(p.cmd.Process.Pid)
		if err != nil {
			return err
		}
		begun := time.Now()
		done, err := c.startPress(load, 0, 2*time.Second, s)
		if err != nil {
			return err
		}
		n, err := done()
		if err != nil {
			return err
		}
		took := time.Since(begun).Seconds()
		after, err := cpuTime(p.cmd.Process.Pid)
		if err != nil {
			return err
		}
		rate := float64(n) / took
		if c.threads == 1 {
			rate = float64(n) / (after - before).Seconds()
		}
		fmt.Printf("%-8s %s: %.0f a second at most, %.0f us of CPU time for each\n", peer, load, float64(n)/took, float64((after-before).Microseconds())/float64(n))
		if least := c.rates[load]; least == 0 || rate < least {
			c.rates[load] = rate
		}
	}
	return nil
}

// round measures one proxy, with each load.
func (c *crowd) round(peer string, p *process, s setup) error {
	hold, err := c.startHold(s)
	if err != nil {
		return err
	}
	defer hold.stop()
	for _, load := range c.loads {
		for _, share := range c.shares {
			l, err := c.look(peer, load, share, p, s)
			if err != nil {
				return err
			}
			fmt.Printf("%-8s %-11s %2d %%: %s\n", peer, load, share, l)
			at := fmt.Sprint(load, share, peer)
			c.found[at] = append(c.found[at], l)
		}
	}
	if c.env != "" && peer == "weir" {
		fmt.Println(p.output())
	}
	select {
	case <-hold.done:
		return fmt.Errorf("the idle connections did not last: %s", hold.output())
	default:
		return nil
	}
}

// table prints the medians of all rounds.
func (c *crowd) table() {
	fmt.Printf("\nLatency in ms, median of %d rounds of %s (least to most):\n\n| | share | proxy | p50 | p99 | p99.9 | cores busy | collections | weir's p99.9 / this |\n|---|---|---|---|---|---|---|---|---|\n", c.rounds, c.duration)
	for _, load := range c.loads {
		for _, share := range c.shares {
			ours := c.found[fmt.Sprint(load, share, "weir")]
			for _, peer := range c.peers {
				all := c.found[fmt.Sprint(load, share, peer)]
				if len(all) == 0 {
					continue
				}
				cell := func(digits int, all []latency, of func(latency) float64) string {
					var v []float64
					for _, l := range all {
						v = append(v, of(l))
					}
					m := spreadOf(v)
					return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, m.Median, digits, m.Min, digits, m.Max)
				}
				collections, ratio := "", ""
				if peer == "weir" {
					collections = cell(0, all, func(l latency) float64 { return float64(l.cycles) })
				} else if len(ours) == len(all) {
					ratio = fmt.Sprintf("%.2f", median(ours)/median(all))
				}
				fmt.Printf("| %s | %d %% | %s | %s | %s | %s | %s | %s | %s |\n", load, share, labels[peer], cell(2, all, func(l latency) float64 { return l.of(0.5) }),
					cell(2, all, func(l latency) float64 { return l.of(0.99) }), cell(2, all, func(l latency) float64 { return l.of(0.999) }),
					cell(2, all, func(l latency) float64 { return l.cores }), collections, ratio)
			}
		}
	}
}

// median returns the median of the p99.9 of some rounds.
func median(all []latency) float64 {
	var v []float64
	for _, l := range all {
		v = append(v, l.of(0.999))
	}
	return spreadOf(v).Median
}

// startHold opens the idle connections in a separate process, on the core of the load.
func (c *crowd) startHold(s setup) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	hold, err := start(c.loadCores(), filepath.Join(s.Dir, "hold.out"), nil, last(self, "hold", "-kind", c.kind.key, "-connections", strconv.Itoa(c.quiet),
		"-ports", s.ports(), "-dir", s.Dir)...)
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
	ports := flags.String("ports", "", portsHelp)
	dir := flags.String("dir", "", "folder with certificates")
	flags.Parse(args)
	k, err := kindOf(*key)
	if err != nil {
		return err
	}
	s, err := setupOf(*ports)
	if err != nil {
		return err
	}
	s.Dir, s.Mutual = *dir, k.mutual
	open, err := k.openUntil(*n, 1000, s, nil)
	if err != nil {
		return err
	}
	fmt.Println(holdReady)
	defer runtime.KeepAlive(open)
	select {} // until the bench ends this process
}

// startEcho runs serveEcho in a separate process, on the cores of the load.
func startEcho(on cores, s setup) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(on, filepath.Join(s.Dir, "echo.out"), nil, first(self, "echo", "-port", strconv.Itoa(s.BackendPort))...)
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
	cycles int     // garbage collections of weir during the measurement; -1 for the other proxies
	rate   float64 // operations of the load in a second
	cores  float64 // how many cores the proxy used
}

func (l latency) of(share float64) float64 {
	return float64(l.all[int(math.Ceil(share*float64(len(l.all)-1)))].Microseconds()) / 1e3
}

func (l latency) String() string {
	text := fmt.Sprintf("p50 %6.2f  p90 %6.2f  p99 %6.2f  p99.9 %6.2f  max %6.2f ms of %d requests; load %.0f a second, %.2f cores", l.of(0.5), l.of(0.9), l.of(0.99), l.of(0.999), l.of(1), len(l.all), l.rate, l.cores)
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

// look measures the latency of the busy connections beside a load.
func (c *crowd) look(peer, load string, share int, p *process, s setup) (l latency, err error) {
	done, err := c.startPress(load, c.rates[load]*float64(share)/100, c.duration+500*time.Millisecond, s)
	if err != nil {
		return l, err
	}
	time.Sleep(500 * time.Millisecond)
	before, err := c.counters(peer, p, s)
	if err != nil {
		return l, err
	}
	begun := time.Now()
	if l.all, err = c.fewApart(s); err != nil {
		return l, err
	}
	took := time.Since(begun)
	after, err := c.counters(peer, p, s)
	if err != nil {
		return l, err
	}
	n, err := done()
	if l.cycles, l.cores = after.cycles-before.cycles, (after.cpu-before.cpu).Seconds()/took.Seconds(); peer != "weir" {
		l.cycles = -1
	}
	l.rate = float64(n) / (c.duration.Seconds() + 0.5)
	return l, err
}

// counted is what a proxy has used so far.
type counted struct {
	cycles int
	cpu    time.Duration
}

func (c *crowd) counters(peer string, p *process, s setup) (n counted, err error) {
	if n.cycles, err = collections(peer, s); err != nil {
		return n, err
	}
	n.cpu, err = cpuTime(p.cmd.Process.Pid)
	return n, err
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
		for c.anew > 0 && time.Now().Before(end) {
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

// fewApart runs busyFew in a separate process, whose own work delays it as little as possible.
func (c *crowd) fewApart(s setup) (took []time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	few, err := start(c.loadCores(), filepath.Join(s.Dir, "few.out"), nil, first(self, "few", "-busy", fmt.Sprint(c.busy), "-every", c.every.String(),
		"-for", c.duration.String(), "-ports", s.ports())...)
	if err != nil {
		return nil, err
	}
	defer few.stop()
	<-few.done
	if err := json.Unmarshal([]byte(few.output()), &took); err != nil {
		return nil, fmt.Errorf("the busy connections failed: %s", few.output())
	}
	return took, nil
}

// fewMain is the process of fewApart. It prints the latencies.
func fewMain(args []string) error {
	flags := flag.NewFlagSet("few", flag.ExitOnError)
	var c crowd
	flags.IntVar(&c.busy, "busy", 8, "connections")
	flags.DurationVar(&c.every, "every", 5*time.Millisecond, "time between two requests")
	d := flags.Duration("for", time.Second, "how long")
	ports := flags.String("ports", "", portsHelp)
	flags.Parse(args)
	s, err := setupOf(*ports)
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	l, err := c.busyFew(s, *d)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(l.all)
}

const portsHelp = "of HTTP, TLS, TCP and HTTP behind a header"

// ports returns what setupOf reads.
func (s setup) ports() string {
	return fmt.Sprintf("%d,%d,%d,%d", s.HTTPPort, s.TLSPort, s.TCPPort, s.ProxyPort)
}

// setupOf returns a setup with the ports of a proxy.
func setupOf(ports string) (s setup, err error) {
	_, err = fmt.Sscanf(ports, "%d,%d,%d,%d", &s.HTTPPort, &s.TLSPort, &s.TCPPort, &s.ProxyPort)
	return s, err
}
