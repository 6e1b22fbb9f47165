//go:build !race

package proxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

const (
	churnRoutes = 10_000 // each route has its own backend
	churnEach   = 4      // endpoints of each backend
)

// churned returns the endpoints of a backend after this many changes. Each change replaces one endpoint.
func churned(change, port int) (all []config.Endpoint) {
	for i := range churnEach {
		all = append(all, config.Endpoint{Address: fmt.Sprintf("127.0.%d.%d:%d", i, 1+(change+i)/churnEach%200, port), Weight: 1})
	}
	return all
}

// manyRoutes returns a rig with routes by host, and sets the configuration of their backends.
func manyRoutes(b *testing.B, port int) *rig {
	r := newRig(b, plain, func(c *config.Config) {
		for i := range churnRoutes {
			name := fmt.Sprintf("shop/app-%d:80", i)
			route, to := *c.Routes[0], config.NewBackend(name)
			route.Name, route.Hosts, route.Backend = name, []string{fmt.Sprintf("app-%d.example", i)}, name
			to.PreferLocal, to.RampUp, to.Endpoints = true, 10*time.Second, churned(0, port)
			c.Routes, c.Backends = append(c.Routes, &route), append(c.Backends, &to)
		}
	}, "@app", "127.0.0.1:1")
	r.proxy.SetLog(nil)
	return r
}

// cpuTime returns the CPU time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkChurn measures exchanges over 10,000 routes while the endpoints of as many backends
// change each minute: the time, and the CPU time of the whole process, with client and endpoint.
// Windows with changes and windows without changes take turns, so that other load on the machine
// affects both. Their figures must be similar.
func BenchmarkChurn(b *testing.B) {
	port := int(netip.MustParseAddrPort(loop(b, "0.0.0.0:0", []byte(small))).Port()) // the port is the same on all addresses in 127.0.0.0/8
	r := manyRoutes(b, port)
	one := hosts(b, r)
	for i := range 20_000 {
		one(i)
	}
	for _, perMinute := range []int{1000, 60_000} {
		b.Run(fmt.Sprintf("%d-changes-a-minute", perMinute), func(b *testing.B) {
			c := newChurn(b, r, port, perMinute)
			var steady, busy window
			b.ReportAllocs()
			for i, left, w := 0, 0, &steady; b.Loop(); i, left = i+1, left-1 {
				if left == 0 {
					left = 10_000
					w.close()
					if w == &steady {
						w = &busy
					} else {
						w = &steady
					}
					c.on.Store(w == &busy)
					w.used -= cpuTime()
				}
				began := time.Now()
				one(i)
				w.took = append(w.took, time.Since(began))
			}
			busy.report(b, "churn")
			steady.report(b, "steady")
			b.ReportMetric(float64(c.end()), "changes")
		})
	}
}

// window is the measured cost of exchanges.
type window struct {
	took []time.Duration
	used time.Duration // CPU time; negative while the window runs
}

func (w *window) close() {
	if w.used < 0 {
		w.used += cpuTime()
	}
}

func (w *window) report(b *testing.B, name string) {
	if w.close(); len(w.took) == 0 {
		return
	}
	slices.Sort(w.took)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	b.ReportMetric(us(w.took[len(w.took)/2]), name+"-p50-µs")
	b.ReportMetric(us(w.took[len(w.took)*99/100]), name+"-p99-µs")
	b.ReportMetric(us(w.used)/float64(len(w.took)), name+"-cpu-µs/op")
}

// hosts returns a function that runs the i-th exchange over a kept connection. Only a thousand of
// the routes have traffic; otherwise the benchmark would mostly measure dials.
func hosts(b *testing.B, r *rig) func(i int) {
	c, err := net.Dial("tcp", r.addrs["web"])
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	requests := make([][]byte, 1000)
	for i := range requests {
		requests[i] = fmt.Appendf(nil, "GET /a/path?with=query HTTP/1.1\r\nHost: app-%d.example\r\n\r\n", i*churnRoutes/1000)
	}
	in := make([]byte, len(small))
	return func(i int) {
		if _, err := c.Write(requests[i%1000]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, in); err != nil {
			b.Fatal(err)
		}
	}
}

// churner changes the endpoints of one backend after the other while it is on.
type churner struct {
	on   atomic.Bool
	stop chan struct{}
	done chan int
}

func newChurn(b *testing.B, r *rig, port, perMinute int) *churner {
	c := &churner{stop: make(chan struct{}), done: make(chan int)}
	go func() { c.done <- c.run(b, r, port, time.Minute/time.Duration(perMinute)) }()
	return c
}

func (c *churner) end() (changes int) {
	close(c.stop)
	return <-c.done
}

func (c *churner) run(b *testing.B, r *rig, port int, every time.Duration) (changes int) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-c.stop:
			return changes
		case <-t.C:
		}
		if !c.on.Load() {
			continue
		}
		i := changes * 7 % 1000 * (churnRoutes / 1000) // one of the routes that have traffic
		changes++
		if err := r.set.UpdateEndpoints(fmt.Sprintf("shop/app-%d:80", i), churned(1+changes/1000, port)); err != nil {
			b.Error(err)
			return changes
		}
	}
}
