//go:build !race

package proxy

import (
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

const (
	churnRoutes = 10_000 // each with a backend of its own
	churnEach   = 4      // endpoints
)

// everywhere serves all of 127.0.0.0/8 on one port.
func everywhere(b *testing.B) (port int) {
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 16<<10)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					io.WriteString(c, small)
				}
			}()
		}
	}()
	return ln.Addr().(*net.TCPAddr).Port
}

// churned are the endpoints of a backend after so many changes of it: each
// change takes one away and brings another.
func churned(change, port int) (all []config.Endpoint) {
	for i := range churnEach {
		all = append(all, config.Endpoint{Address: fmt.Sprintf("127.0.%d.%d:%d", i, 1+(change+i)/churnEach%200, port), Weight: 1})
	}
	return all
}

// manyRoutes is a rig with routes by host, and the configuration of their backends.
func manyRoutes(b *testing.B, port int) *rig {
	r := newRig(b, plain, func(c *config.Config) {
		for i := range churnRoutes {
			name := fmt.Sprintf("shop/app-%d:80", i)
			route, to := c.Routes[0], config.NewBackend(name)
			route.Name, route.Hosts, route.Backend = name, []string{fmt.Sprintf("app-%d.example", i)}, name
			to.PreferLocal, to.RampUp, to.Endpoints = true, 10*time.Second, churned(0, port)
			c.Routes, c.Backends = append(c.Routes, route), append(c.Backends, to)
		}
	}, "@app", "127.0.0.1:1")
	r.proxy.SetLog(nil)
	return r
}

// cpuTime is what the process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkChurn is what exchanges over 10,000 routes take while so many
// backends' endpoints change each minute: time, and CPU of the whole process,
// client and endpoint included. p99-µs without and with changes have to be alike,
// as have cpu-µs/op.
func BenchmarkChurn(b *testing.B) {
	for _, perMinute := range []int{0, 1000, 60_000} {
		b.Run(fmt.Sprintf("%d-changes-a-minute", perMinute), func(b *testing.B) {
			port := everywhere(b)
			r := manyRoutes(b, port)
			stop, done := make(chan struct{}), make(chan int)
			go func() { done <- churn(b, r, port, perMinute, stop) }()

			c, err := net.Dial("tcp", r.addrs["web"])
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			requests := make([][]byte, churnRoutes)
			for i := range requests {
				requests[i] = fmt.Appendf(nil, "GET /a/path?with=query HTTP/1.1\r\nHost: app-%d.example\r\n\r\n", i)
			}
			in, took := make([]byte, len(small)), make([]time.Duration, 0, 1<<20)
			one := func(i int) {
				// A thousand of the routes have the traffic, or dialling would be all that is measured.
				if _, err := c.Write(requests[i%1000*(churnRoutes/1000)]); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, in); err != nil {
					b.Fatal(err)
				}
			}
			for i := range 20_000 {
				one(i)
			}
			used := cpuTime()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				one(i)
				took = append(took, time.Since(began))
			}
			used = cpuTime() - used
			close(stop)
			changes := <-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
			b.ReportMetric(float64(used.Nanoseconds())/1000/float64(len(took)), "cpu-µs/op")
			b.ReportMetric(float64(changes), "changes")
		})
	}
}

// churn changes one backend's endpoints after the other's, until stop is closed.
func churn(b *testing.B, r *rig, port, perMinute int, stop chan struct{}) (changes int) {
	if perMinute == 0 {
		<-stop
		return 0
	}
	t := time.NewTicker(time.Minute / time.Duration(perMinute))
	defer t.Stop()
	for {
		select {
		case <-stop:
			return changes
		case <-t.C:
		}
		i := changes * 7 * (churnRoutes / 1000) % churnRoutes // of those that have the traffic
		changes++
		if err := r.set.UpdateEndpoints(fmt.Sprintf("shop/app-%d:80", i), churned(1+changes/1000, port)); err != nil {
			b.Error(err)
			return changes
		}
	}
}
