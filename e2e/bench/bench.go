package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// proxyCore runs the proxy under test. loadCore runs everything else. A proxy with two threads has both, and so
// has everything else then.
var proxyCore, loadCore, bothCores = cores{0}, cores{1}, cores{0, 1}

// cores are the numbers of processor cores.
type cores []int

// String returns the list as taskset reads it.
func (c cores) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(c)), " ", ","), "[]")
}

// proxyCores returns the cores of the proxy.
func (o *options) proxyCores() cores {
	if o.threads > 1 {
		return bothCores
	}
	return proxyCore
}

// loadCores returns the cores of everything else.
func (o *options) loadCores() cores {
	if o.threads > 1 {
		return bothCores
	}
	return loadCore
}

// bench is one run: a working folder, the backend, and the results so far.
type bench struct {
	options
	setup   setup
	backend *process                       // nginx
	reading *process                       // our own backend, for uploads and gRPC
	samples map[string]map[string][]sample // by row, then by proxy
}

// sample is the result of one round of one proxy.
type sample struct {
	Micros    float64 `json:"cpu_microseconds_per_request"`
	PerSecond float64 `json:"requests_per_second"`
	Busy      float64 `json:"cpu_share"` // share of one core
	KiB       float64 `json:"resident_kib_per_connection,omitempty"`
}

func newBench(o options) (*bench, error) {
	if runtime.NumCPU() < 2 {
		return nil, errors.New("bench needs two cores: one for the proxy, one for the load")
	}
	for _, tool := range append([]string{"taskset", "wrk", "h2load", "nginx"}, o.peers...) {
		if _, err := exec.LookPath(o.program(tool)); err != nil {
			return nil, fmt.Errorf("bench needs %s (Debian: apt-get install haproxy nginx wrk nghttp2-client util-linux): %w", tool, err)
		}
	}
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return nil, err
	}
	b := &bench{options: o, samples: map[string]map[string][]sample{}}
	if err := b.prepare(dir); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) prepare(dir string) error {
	var err error
	if b.setup, err = newSetup(dir, freeport.Benchmark); err != nil {
		return err
	}
	b.setup.Body, b.setup.Fields, b.setup.Threads, b.setup.Connections = strings.Repeat("weir", 32), b.fields, b.threads, 9000
	// nginx changes from root to another user, who needs access.
	if err := errors.Join(os.Chmod(dir, 0o755), writeCertificates(dir), writeBodies(dir)); err != nil {
		return err
	}
	config, err := b.setup.render("backend.conf")
	if err != nil {
		return err
	}
	b.backend, err = start(b.loadCores(), filepath.Join(dir, "backend.out"), nil, "nginx", "-p", dir, "-c", config)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.reading, err = start(b.loadCores(), filepath.Join(dir, "reading.out"), []string{"GOMAXPROCS=1"}, self, "backend",
		"-uploads", fmt.Sprint(b.setup.UploadPort), "-calls", fmt.Sprint(b.setup.CallPort), "-body", b.setup.Body)
	if err != nil {
		return err
	}
	return errors.Join(b.backend.ready(b.setup.BackendPort), b.reading.ready(b.setup.UploadPort), b.reading.ready(b.setup.CallPort))
}

func (b *bench) close() {
	for _, p := range []*process{b.backend, b.reading} {
		if p != nil {
			p.stop()
		}
	}
	if b.setup.Dir != "" {
		os.RemoveAll(b.setup.Dir)
	}
}

// measure runs all rounds of all rows. In each round the proxies run one after another,
// in changing order.
func (b *bench) measure() error {
	for _, r := range b.rows {
		b.samples[r.Key] = map[string][]sample{}
		for n := range b.rounds {
			for i := range b.peers {
				name := b.peers[(i+n)%len(b.peers)]
				if slices.Contains(proxies[name].not, r.Key) {
					continue
				}
				for _, v := range variants(r, n) {
					s, err := b.persist(v, name)
					if err != nil {
						return fmt.Errorf("%s, round %d of %s: %w", v.Name, n+1, name, err)
					}
					fmt.Fprintf(os.Stderr, "%-50s %2d/%d  %-8s %s\n", v.Name, n+1, b.rounds, name, s.say(r))
					b.samples[r.Key][name+v.suffix] = append(b.samples[r.Key][name+v.suffix], s)
				}
			}
		}
		if b.profile != "" && !r.idle && slices.Contains(b.peers, "weir") {
			if _, err := b.round(r, "weir", true); err != nil {
				return fmt.Errorf("%s, profile: %w", r.Name, err)
			}
		}
	}
	return nil
}

// persist repeats a round that was disturbed, up to five times.
func (b *bench) persist(r row, name string) (s sample, err error) {
	for range 5 {
		if s, err = b.round(r, name, false); !errors.Is(err, errDisturbed) {
			return s, err
		}
		fmt.Fprintf(os.Stderr, "%s, %s, once more: %v\n", r.Name, name, err)
	}
	return s, err
}

// round starts one proxy, loads it, and divides its CPU time by the number of requests
// that the backend answered meanwhile.
func (b *bench) round(r row, name string, profile bool) (sample, error) {
	if r.idle {
		return b.idleRound(r, name)
	}
	p, err := b.startProxy(r, name)
	if err != nil {
		return sample{}, err
	}
	defer p.stop()
	if err := p.ready(r.port(b.setup)); err != nil {
		return sample{}, err
	}
	if err := b.probe(r); err != nil {
		return sample{}, fmt.Errorf("%w: %s", err, p.output())
	}
	whole := b.warmup + b.duration + 500*time.Millisecond
	load, err := start(b.loadCores(), filepath.Join(b.setup.Dir, "load.out"), []string{"GOMAXPROCS=1"}, r.load(b.setup, r, whole)...)
	if err != nil {
		return sample{}, err
	}
	defer load.stop()
	time.Sleep(b.warmup)
	before, err := b.look(r, p)
	if err != nil {
		return sample{}, err
	}
	if profile {
		err = b.takeProfile(r)
	} else {
		time.Sleep(b.duration)
	}
	after, err2 := b.look(r, p)
	if err := errors.Join(err, err2); err != nil {
		return sample{}, err
	}
	select {
	case <-load.done:
	case <-time.After(whole + 30*time.Second):
		return sample{}, errors.New("the load generator does not end")
	}
	if err := errors.Join(checkLoad(load.output()), after.check(before, r), b.checkLog(r, name, after.requests-before.requests)); err != nil {
		return sample{}, err
	}
	return after.since(before), nil
}

func (b *bench) startProxy(r row, name string) (*process, error) {
	s := b.setup
	s.Logged = r.logged
	os.Remove(filepath.Join(s.Dir, proxies[name].log)) // of the round before
	s.Certificate, s.Gzip = filepath.Join(s.Dir, "ecdsa"), r.file == pathJSON
	if r.shake.RSA {
		s.Certificate = filepath.Join(s.Dir, "rsa")
	}
	if err := s.addRoutes(r); err != nil {
		return nil, err
	}
	config, err := s.render(proxies[name].config)
	if err != nil {
		return nil, err
	}
	args := proxies[name].command(config)
	args[0] = b.program(name)
	env := []string{fmt.Sprintf("GOMAXPROCS=%d", s.Threads)}
	if b.env != "" {
		env = append(env, b.env)
	}
	return start(b.proxyCores(), filepath.Join(b.setup.Dir, name+".out"), env, args...)
}

// probe sends one request of the row's kind, and checks the answer and the TLS
// parameters, which must be the same for all proxies.
func (b *bench) probe(r row) error {
	if r.path != "" {
		if err := b.probeH2(r); err != nil {
			return err
		}
	}
	if r.file == pathJSON {
		if err := b.probePacked(r); err != nil {
			return err
		}
	}
	address := fmt.Sprintf("127.0.0.1:%d", r.port(b.setup))
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer func() { c.Close() }()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if r.secure {
		t := tls.Client(c, r.shake.client())
		if err := t.Handshake(); err != nil {
			return err
		}
		if err := r.shake.check(t.ConnectionState(), false); err != nil {
			return err
		}
		c = t
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n"+credentials+"\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	return checkResponse(bufio.NewReader(c), b.setup.Body)
}

// probePacked checks that the proxy compresses the response of the row.
func (b *bench) probePacked(r row) error {
	q, err := http.NewRequest("GET", fmt.Sprintf("http://127.0.0.1:%d%s", r.port(b.setup), r.file), nil)
	if err != nil {
		return err
	}
	q.Host, q.Close = "localhost", true
	q.Header.Set("Accept-Encoding", "gzip")
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	packed, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != "gzip" {
		return fmt.Errorf("%s is not compressed: %s, %v", r.file, resp.Status, resp.Header)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(z)
	if err != nil {
		return fmt.Errorf("decompressing %s: %w", r.file, err)
	}
	if len(body) < 10<<10 || len(packed) > len(body)/2 {
		return fmt.Errorf("%s has %d bytes, compressed %d", r.file, len(body), len(packed))
	}
	return nil
}

// glance has the values of the counters at one point in time.
type glance struct {
	at       time.Time
	cpu      time.Duration
	requests int // requests that the backend answered
	opens    int // connections accepted on this machine
}

// look reads the proxy's CPU time before and after its request to the backend, and uses the mean, because
// that request waits behind the load.
func (b *bench) look(r row, p *process) (glance, error) {
	first, err := cpuTime(p.cmd.Process.Pid)
	if err != nil {
		return glance{}, err
	}
	began := time.Now()
	requests, err := b.requests(r)
	if err != nil {
		return glance{}, err
	}
	second, err := cpuTime(p.cmd.Process.Pid)
	if err != nil {
		return glance{}, err
	}
	opens, err := passiveOpens()
	return glance{at: began.Add(time.Since(began) / 2), cpu: (first + second) / 2, requests: requests, opens: opens}, err
}

// say returns a sample as text.
func (s sample) say(r row) string {
	if r.idle {
		return fmt.Sprintf("%7.2f KiB", s.KiB)
	}
	return fmt.Sprintf("%7.2f us  %8.0f/s  %3.0f %% of a core", s.Micros, s.PerSecond, 100*s.Busy)
}

// value returns the compared value of a sample.
func (s sample) value() float64 {
	if s.KiB != 0 {
		return s.KiB
	}
	return s.Micros
}

func (after glance) since(before glance) sample {
	n := float64(after.requests - before.requests)
	cpu, d := after.cpu-before.cpu, after.at.Sub(before.at)
	return sample{Micros: float64(cpu.Nanoseconds()) / 1e3 / n, PerSecond: n / d.Seconds(), Busy: cpu.Seconds() / d.Seconds()}
}

// check returns an error if the load was not as intended: either all connections on both
// sides of the proxy stay open, or the client opens one for each request.
func (after glance) check(before glance, r row) error {
	n := after.requests - before.requests
	if n < 20 {
		return fmt.Errorf("only %d requests reached the backend", n)
	}
	// Without a network namespace of its own, the count includes the whole machine.
	opens, want := float64(after.opens-before.opens), r.opens*float64(n)
	others := 0.02*float64(n) + 1000*after.at.Sub(before.at).Seconds()
	if opens < 0.98*want || opens > want+others {
		return fmt.Errorf("a request opened %.3f connections instead of %.0f%w", opens/float64(n), r.opens, errDisturbed)
	}
	return nil
}

// checkLog returns an error if the proxy wrote fewer lines than it served requests.
func (b *bench) checkLog(r row, name string, requests int) error {
	if !r.logged {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(b.setup.Dir, proxies[name].log))
	if lines := bytes.Count(text, []byte("\n")); lines < requests {
		return errors.Join(fmt.Errorf("%s served %d requests, and its access log has %d lines", name, requests, lines), err)
	}
	return nil
}

// errDisturbed means that the load was not as intended, or that another program on the machine opened
// connections. The bench repeats such a round.
var errDisturbed = errors.New(" (or something else on this machine opens connections)")

var stubRequests = regexp.MustCompile(`(?m)^ \d+ \d+ (\d+)`)

// requests returns how many requests the backend of a row has answered.
func (b *bench) requests(r row) (int, error) {
	port := b.setup.BackendPort
	switch r.path {
	case pathUpload:
		port = b.setup.UploadPort
	case pathCall:
		port = b.setup.CallPort
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/requests", port))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	found := stubRequests.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("the backend does not say how many requests it answered: %q", text)
	}
	return strconv.Atoi(string(found[1]))
}

// passiveOpens counts the connections accepted on this machine since it started.
func passiveOpens() (int, error) {
	text, err := os.ReadFile("/proc/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if i := slices.Index(names, "PassiveOpens"); i >= 0 {
			return strconv.Atoi(fields[i])
		}
	}
	return 0, errors.New("/proc/net/snmp does not count PassiveOpens")
}

var wrkTotal = regexp.MustCompile(`(\d+) requests in `)

// checkLoad parses the output of a generator. It returns an error if the generator
// counted any error.
func checkLoad(output string) error {
	var own loadResult
	if json.Unmarshal([]byte(output), &own) == nil {
		if own.Errors > 0 || own.Requests == 0 {
			return fmt.Errorf("%d of %d handshakes or requests failed, the first with: %s", own.Errors, own.Requests, own.First)
		}
		return nil
	}
	if h2, err := checkH2load(output); h2 {
		return err
	}
	if !wrkTotal.MatchString(output) || strings.Contains(output, "Socket errors") || strings.Contains(output, "Non-2xx") {
		return fmt.Errorf("the load did not go through: %s", output)
	}
	return nil
}

func (b *bench) takeProfile(r row) error {
	url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/profile?seconds=%d", b.setup.AdminPort, max(1, int(b.duration.Seconds())))
	return writeProfile(url, b.profile, r.Key)
}

// fetch sends a request to weir's admin port.
func fetch(method, url string, within time.Duration) ([]byte, error) {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return nil, err
	}
	// Profiles need the Unix socket beside the port; an older weir has none.
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", "@weir/"+address); err == nil {
			return c, nil
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	resp, err := (&http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// writeProfile gets a profile from weir's admin port, and writes it to name.pprof in a
// folder.
func writeProfile(url, folder, name string) error {
	text, err := fetch("POST", url, time.Hour) // a CPU profile takes as long as a round
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name+".pprof"), text, 0o644)
}
