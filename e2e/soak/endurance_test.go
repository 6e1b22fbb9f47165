package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var endure = flag.Int("endure", 0, "how many upgrades TestEndurance makes, and as many drains, and ten times as many reloads; needs -timeout 0, too")

// lasting are the loads of TestEndurance. No endpoint dies, so no request may fail. Connections that an
// upgrade does not move, such as tunnels, end after some seconds: the next upgrade waits for them.
var lasting = []load{
	{"HTTP/1.1", "web", 16, []string{"--every", "200ms", "--churn", "8s"}, 200},
	{"HTTP/1.1, parked", "web", 40, []string{"--every", "4s"}, 40},
	{"plain HTTP/2, parked", "web", 10, []string{"--protocol", "http2", "--every", "3s"}, 10},
	{"TLS", "secure", 16, append([]string{"--every", "300ms", "--churn", "5s"}, byTLS...), 100},
	{"TLS, parked", "secure", 40, append([]string{"--every", "4s"}, byTLS1...), 40},
	{"HTTP/2", "secure", 16, append([]string{"--every", "300ms", "--churn", "5s"}, by2...), 100},
	{"HTTP/2, parked", "secure", 40, append([]string{"--every", "4s"}, by2...), 40},
	{"bodies", "secure", 6, append([]string{"--path", "/bytes/100000", "--body", "50000", "--every", "500ms", "--churn", "6s"}, byTLS...), 30},
	{"through a second weir", "secure", 10, append([]string{"--every", "300ms", "--churn", "4s", "--path", "/chain/"}, byTLS...), 50},
	{"tunnels", "raw", 16, append([]string{"--every", "100ms", "--churn", "3s"}, raw...), 200},
	{"tunnels, parked", "raw", 20, append([]string{"--every", "2s", "--churn", "6s"}, raw...), 20},
}

var lastingClients = []client{
	{"WebSockets", 6, webSockets("web", 4)},
	{"WebSockets over TLS", 6, webSockets("secure", 4)},
	{"WebSockets over HTTP/2", 4, webSockets2},
	{"half closes", 4, halfClose},
	{"idle until the limit", 6, idleRequest},
}

// endurance counts what has happened to the weir under test.
type endurance struct {
	*house
	reloaded, drained, upgraded int
	takeovers, leaves           []time.Duration // from SIGUSR2 until the new process served, and until the old one had ended
	begun                       time.Time       // the last SIGUSR2
	draining                    atomic.Int64    // odd during a drain
}

// TestEndurance reloads, upgrades and drains weir again and again under load. No request may fail, the health
// port answers 503 only during drains, and all resources return to their initial level.
func TestEndurance(t *testing.T) {
	times, more := *endure, *more
	switch inCI := os.Getenv("CI") == "true"; {
	case runtime.GOOS != "linux" && inCI:
		t.Fatal("needs Linux, and CI leaves nothing out")
	case runtime.GOOS != "linux":
		t.Skip("needs Linux: /proc, and loopback addresses beside 127.0.0.1")
	case !inCI && times == 0:
		t.Skip("takes long: runs with -endure (go test ./e2e/soak -run TestEndurance -endure 2), and where CI=true, as in .ci/run")
	case times == 0: // so that this test does not rot
		times, more = 1, 0.1
		t.Parallel()
	}
	if _, ok := t.Deadline(); ok && times > 10 {
		t.Fatalf("-endure %d needs -timeout 0 beside it", times)
	}
	e := &endurance{house: build(t, 5*time.Second)}
	fresh, err := look(e.front)
	e.must(err)
	e.useFor(time.Duration(min(times, 10))*time.Second, lasting, lastingClients, more)
	warm := e.rested(fresh, fresh.heap*4)
	if t.Failed() {
		t.FailNow()
	}
	begun := time.Now()
	check := func(what string, trouble func()) {
		t.Helper()
		ctx, stop := context.WithCancel(context.Background())
		var beside sync.WaitGroup
		beside.Go(func() { e.askHealth(ctx) })
		if times >= 10 { // each takes ten seconds
			beside.Go(func() { e.drains(ctx) })
		}
		done := make(chan int64, 1)
		go func() { done <- e.use(ctx, lasting, lastingClients, more) }()
		e.must(e.awaitLoad(more))
		trouble()
		stop()
		requests := <-done
		beside.Wait()
		t.Logf("%s: %d reloads, %d upgrades, %d drains; %d requests in this part; %s until now", what, e.reloaded, e.upgraded, e.drained, requests, time.Since(begun).Round(time.Second))
		e.must(e.front.reload(e.config(0), "success"))
		e.rested(fresh, warm.heap*5/4+2<<20)
	}
	// In the first part one process does all, so that nothing that it keeps is lost with it.
	check("one process", func() {
		for i := 0; i < (times+1)/2 && !t.Failed(); i++ {
			e.reloadTimes(10)
			e.drain()
		}
	})
	check("upgrades", func() {
		for i := 0; i < times && !t.Failed(); i++ {
			if i%2 == 0 {
				e.drain()
			}
			e.reloadTimes(2)
			e.upgrade(i%4 == 3)
			e.reloadTimes(3) // while the old process has connections
			e.awaitAlone()
		}
	})
	if e.reloaded < 10*times || e.upgraded < times || e.drained < times {
		t.Errorf("that was too little: %d reloads, %d upgrades, %d drains", e.reloaded, e.upgraded, e.drained)
	}
	for _, d := range [][]time.Duration{e.takeovers, e.leaves} {
		slices.Sort(d)
	}
	if n := len(e.takeovers); n > 0 {
		t.Logf("a new process served after %s (median; at most %s), the old one had ended after %s (at most %s)",
			e.takeovers[n/2].Round(time.Millisecond), e.takeovers[n-1].Round(time.Millisecond),
			e.leaves[n/2].Round(time.Millisecond), e.leaves[n-1].Round(time.Millisecond))
	}
	if t.Failed() {
		e.tellRefusals()
	}
	for _, n := range []*node{e.front, e.behind[0], e.behind[1]} {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}
}

// awaitLoad waits until nearly all connections of the loads are open.
func (e *endurance) awaitLoad(more float64) error {
	want := 0.0
	for _, l := range lasting {
		want += float64(l.n) * more * 0.9
	}
	return eventually("the clients connect", func() error {
		open, err := e.front.metric("weir_connections_open")
		if err == nil && open < want {
			err = fmt.Errorf("%v of %v connections are open", open, want)
		}
		return err
	})
}

// reloadTimes changes the configuration n times.
func (e *endurance) reloadTimes(n int) {
	for range n {
		e.form++
		e.trimAccessLog()
		err := e.front.reload(e.config(e.form), "success")
		e.report("a reload", err)
		if err != nil {
			return
		}
		e.reloaded++
		time.Sleep(20 * time.Millisecond) // the load goes on
	}
}

// drain drains weir for a moment, through the admin port. In the meantime the health port answers 503.
func (e *endurance) drain() {
	e.draining.Add(1)
	defer e.draining.Add(1)
	err := e.front.post("/drain")
	if err == nil {
		err = eventually("the health port reports the drain", func() error {
			if _, err := e.front.get("health", "/"); err == nil {
				return errNotYet
			}
			return nil
		})
	}
	time.Sleep(200 * time.Millisecond) // clients move
	err = errors.Join(err, e.front.post("/undrain"), eventually("the verdict is good", func() error {
		_, err := e.front.get("health", "/")
		return err
	}))
	e.report("a drain", err)
	if err == nil {
		e.drained++
	}
}

// upgrade starts an upgrade, and waits until the new process serves. changes means that the configuration
// changes in the middle.
func (e *endurance) upgrade(changes bool) {
	old, begun := e.front.pid(), time.Now()
	hash, err := e.front.hash()
	err = errors.Join(err, e.front.signal(syscall.SIGUSR2))
	if changes {
		e.form++
		err = errors.Join(err, e.front.write(e.config(e.form)), syscall.Kill(old, syscall.SIGHUP))
	}
	err = errors.Join(err, eventually("a new process takes over", func() error {
		if e.front.pid() == old {
			return errNotYet
		}
		return nil
	}))
	e.takeovers = append(e.takeovers, time.Since(begun))
	if changes {
		err = errors.Join(err, eventually("the new configuration is in effect", func() error {
			now, err := e.front.hash()
			if err == nil && now == hash {
				err = errNotYet
			}
			return err
		}))
	}
	e.report("an upgrade", err)
	if err == nil {
		e.upgraded++
	}
	e.begun = begun
}

// awaitAlone waits until the old process has ended, and the new one knows it.
func (e *endurance) awaitAlone() {
	err := eventuallyWithin(drainTimeout+patience, "the old process has ended", func() error {
		if gone := strings.Count(e.front.log(), "upgrade: the old process has ended"); gone < e.upgraded {
			return fmt.Errorf("%d processes have taken over, %d have ended", e.upgraded, gone)
		}
		return nil
	})
	e.report("the end of an old process", err)
	e.leaves = append(e.leaves, time.Since(e.begun))
}

// askHealth asks the health port all the time, and fails the test if it answers 503 outside of a drain.
func (e *endurance) askHealth(ctx context.Context) {
	asked := 0
	for ; ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		before := e.draining.Load()
		_, err := e.front.get("health", "/")
		if err != nil && before%2 == 0 && e.draining.Load() == before {
			e.t.Errorf("the health port, outside of a drain: %v", err)
			return
		}
		asked++
	}
	e.t.Logf("%-22s %6d", "health checks", asked)
}
