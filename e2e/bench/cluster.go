package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// The limits with manyRoutes Ingresses.
const (
	clusterDelay    = 200 * time.Millisecond // p99 of the time until a change of a route is served
	clusterResident = 200.0                  // MB
	scrapeSize      = 1e6                    // bytes of /metrics without requests
	scrapeMemory    = 10.0                   // MB more with scrapes than without
)

// clusterMain measures weir as an ingress controller. A part of an API server in this process has many
// Ingresses. One after the other gets another path, and a request finds out when weir serves it. The last
// steps read the configuration in effect.
func clusterMain(args []string) error {
	flags := flag.NewFlagSet("cluster", flag.ExitOnError)
	var o options
	c := manyIngresses{}
	flags.IntVar(&c.ingresses, "ingresses", manyRoutes, "Ingresses, each with a Service")
	flags.IntVar(&c.pods, "pods", 3, "Pods of each Service")
	flags.IntVar(&c.changes, "changes", 200, "changes of an Ingress")
	flags.DurationVar(&c.every, "every", 300*time.Millisecond, "time between two changes")
	flags.IntVar(&o.threads, "threads", 1, "threads of weir that run Go code (GOMAXPROCS)")
	flags.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flags.StringVar(&o.profile, "profile", "", "write profiles of weir to this folder: of the heap when all is read and at the end, and of the CPU during the changes")
	flags.Parse(args)
	c.options = &o
	return o.weirAlone(c.measure)
}

type manyIngresses struct {
	*options
	ingresses, pods, changes int
	every                    time.Duration

	setup setup
	api   *clusterAPI
	weir  *process
}

// measure runs all steps, and prints the result.
func (c *manyIngresses) measure() error {
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if c.setup, err = newSetup(dir, freeport.Benchmark); err != nil {
		return err
	}
	if err := c.fill(); err != nil {
		return err
	}
	begun := time.Now()
	c.weir, err = c.startWeir(dir)
	if err != nil {
		return err
	}
	defer c.weir.stop()
	// Until weir knows the objects, it answers each request with 503.
	if err := cmp.Or(c.weir.ready(c.setup.HTTPPort), c.until("unknown.example", "/", http.StatusNotFound, begun.Add(5*time.Minute))); err != nil {
		return err
	}
	fmt.Printf("%d Ingresses with %d Pods each, %d threads\nserved %.1f s after the start\n", c.ingresses, c.pods, c.threads, time.Since(begun).Seconds())
	return errors.Join(c.scrape(), c.change(), c.read())
}

// scrape reads the metrics of Ingresses without requests several times, and prints their size, and the memory that
// this takes.
func (c *manyIngresses) scrape() error {
	time.Sleep(5 * time.Second) // until weir has returned the memory of its start
	before, _, err := c.memory("before the scrapes")
	if err != nil {
		return err
	}
	var size, series int
	most := before
	for range 10 {
		text, err := c.metrics()
		if err != nil {
			return err
		}
		size, series = len(text), 0
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				series++
			}
		}
		now, _, err := c.memory("after a scrape")
		if err != nil {
			return err
		}
		most = max(most, now)
		time.Sleep(time.Second)
	}
	small := size < scrapeSize && most-before < scrapeMemory
	fmt.Printf("GET /metrics: %d series, %.2f MB, %.0f MB of memory; with 5,000 Ingresses it must stay below %.0f MB and %.0f MB: %s\n",
		series, float64(size)/1e6, most-before, scrapeSize/1e6, scrapeMemory, verdict(&small))
	return nil
}

func (c *manyIngresses) metrics() (string, error) {
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", c.setup.AdminPort))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// fill makes the objects, and writes the kubeconfig and the configuration.
func (c *manyIngresses) fill() (err error) {
	if c.api, err = newClusterAPI(); err != nil {
		return err
	}
	url, err := c.api.serve()
	if err != nil {
		return err
	}
	for i := range c.ingresses {
		c.api.put("/apis/networking.k8s.io/v1/ingresses", clusterIngress(i, "/"))
		c.api.put("/api/v1/services", clusterService(i))
		if i < c.ingresses-1 { // the last Service has no Pod, so weir itself answers its requests
			c.api.put("/apis/discovery.k8s.io/v1/endpointslices", clusterSlice(i, c.pods))
		}
	}
	return c.configure(url, "")
}

// configure writes the kubeconfig of an API server, and weir's configuration. more is added to the key kubernetes.
func (c *manyIngresses) configure(url, more string) error {
	kubeconfig := filepath.Join(c.setup.Dir, "kubeconfig")
	return errors.Join(
		os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \""+url+"\"}}]\nusers: [{name: u, user: {token: t}}]\n"+
			"contexts: [{name: x, context: {cluster: c, user: u, namespace: weir}}]\ncurrent-context: x\n"), 0o600),
		os.WriteFile(configOf(c.setup.Dir), fmt.Appendf(nil, `listeners: {web: {address: "127.0.0.1:%d", protocol: http}}
admin: {address: "127.0.0.1:%d"}
log: {level: error}
kubernetes: {kubeconfig: %s, class: weir%s}
`, c.setup.HTTPPort, c.setup.AdminPort, kubeconfig, more), 0o644))
}

// status requests a path, and returns the status of the answer.
func (c *manyIngresses) status(host, path string) (int, error) {
	r, err := http.NewRequest("GET", fmt.Sprintf("http://127.0.0.1:%d%s", c.setup.HTTPPort, path), nil)
	if err != nil {
		return 0, err
	}
	r.Host = host
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, fmt.Errorf("%w; weir %s: %s", err, c.weir.state(), c.weir.output())
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// until waits until weir answers requests of a host for a path with this status.
func (c *manyIngresses) until(host, path string, want int, deadline time.Time) error {
	for {
		got, err := c.status(host, path)
		switch {
		case err != nil || got == want:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("weir answers a request for %s%s with %d and not %d", host, path, got, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// change changes Ingresses, and prints how long weir needs for that.
func (c *manyIngresses) change() error {
	time.Sleep(5 * time.Second) // until weir has returned the memory of its start
	if err := c.heap("ready"); err != nil {
		return err
	}
	if _, _, err := c.memory("when all is read"); err != nil {
		return err
	}
	idle, err := c.cpuOf(5*time.Second, func() error { return nil })
	if err != nil {
		return err
	}
	profiled := make(chan error, 1)
	if c.profile != "" {
		url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/profile?seconds=%d", c.setup.AdminPort, max(1, int((time.Duration(c.changes)*c.every).Seconds())))
		go func() { profiled <- writeProfile(url, c.profile, "changes") }()
	}
	var took []time.Duration
	length := time.Duration(c.changes) * c.every
	busy, err := c.cpuOf(length, func() error {
		for n := range c.changes {
			begun, path := time.Now(), fmt.Sprintf("/v%d", n)
			// The Service of the last Ingress has no Pod: weir answers 503 for its path, and 404 for others. weir
			// converts both changes together.
			c.api.put("/apis/networking.k8s.io/v1/ingresses", clusterIngress(n*7919%(c.ingresses-1), path))
			c.api.put("/apis/networking.k8s.io/v1/ingresses", clusterIngress(c.ingresses-1, path))
			if err := c.until(clusterHost(c.ingresses-1), path, http.StatusServiceUnavailable, begun.Add(time.Minute)); err != nil {
				return err
			}
			took = append(took, time.Since(begun))
			time.Sleep(time.Until(begun.Add(c.every)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if c.profile != "" {
		if err := <-profiled; err != nil {
			return err
		}
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	fast := p99 <= clusterDelay
	fmt.Printf("%d changes: served after %s (median), %s (p99), %s (slowest); p99 must be at most %s: %s\n",
		len(took), ms(took[len(took)/2]), ms(p99), ms(took[len(took)-1]), clusterDelay, verdict(&fast))
	each := (busy.Seconds() - idle.Seconds()*length.Seconds()/5) / float64(len(took))
	fmt.Printf("CPU: %.1f ms for each change; %.1f ms a second without changes\n", 1000*each, idle.Seconds()*200)
	_, _, err = c.memory("after the changes")
	return err
}

func ms(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }

// cpuOf is the CPU time of weir during f, and at least this long.
func (c *manyIngresses) cpuOf(d time.Duration, f func() error) (time.Duration, error) {
	pid, begun := c.weir.cmd.Process.Pid, time.Now()
	before, err := cpuTime(pid)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	time.Sleep(time.Until(begun.Add(d)))
	after, err := cpuTime(pid)
	return after - before, err
}

// read reads the configuration in effect, and prints the memory before and after.
func (c *manyIngresses) read() error {
	begun := time.Now()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/config", c.setup.AdminPort))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		return err
	}
	fmt.Printf("GET /config: %.1f MB in %s\n", float64(n)/1e6, ms(time.Since(begun)))
	_, after, err := c.memory("after GET /config")
	if err != nil {
		return err
	}
	small := after < clusterResident
	fmt.Printf("the process must stay below %.0f MB: %s\n", clusterResident, verdict(&small))
	return c.heap("end")
}

// memory prints the resident memory of weir, and returns it and the highest so far.
func (c *manyIngresses) memory(when string) (now, highest float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.weir.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	of := func(key string) float64 {
		_, rest, _ := strings.Cut(string(text), key+":")
		kib, _ := strconv.Atoi(strings.Fields(rest)[0])
		return float64(kib) * 1024 / 1e6
	}
	fmt.Printf("resident %s: %.0f MB (%.0f MB without files), the highest so far %.0f MB\n", when, of("VmRSS"), of("RssAnon"), of("VmHWM"))
	return of("VmRSS"), of("VmHWM"), nil
}

// heap writes a heap profile, if one was asked for.
func (c *manyIngresses) heap(name string) error {
	if c.profile == "" {
		return nil
	}
	return writeProfile(fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/heap?gc=1", c.setup.AdminPort), c.profile, "heap-"+name)
}
