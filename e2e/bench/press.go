package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// loadNames are the loads of the crowd beside which latency is measured.
var loadNames = []string{"connections", "bodies", "mix"}

const (
	presses  = 64       // operations at the same time, at most
	bodySize = 64 << 10 // bytes of a request body
)

// startPress starts a load in a separate process: rate operations a second, or as many as possible if rate is 0.
// done waits for its end and returns the number of operations.
func (c *crowd) startPress(load string, rate float64, d time.Duration, s setup) (done func() (int, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := start(c.loadCores(), filepath.Join(s.Dir, "press.out"), nil,
		last(self, "press", "-load", load, "-rate", fmt.Sprint(rate), "-for", d.String(), "-ports", s.ports())...)
	if err != nil {
		return nil, err
	}
	return func() (int, error) {
		defer p.stop()
		select {
		case <-p.done:
		case <-time.After(d + time.Minute):
			return 0, errors.New("the load does not end")
		}
		var n int
		if err := json.Unmarshal([]byte(p.output()), &n); err != nil {
			return 0, fmt.Errorf("the load failed: %s", p.output())
		}
		return n, nil
	}, nil
}

// pressMain is the process of startPress. It prints the number of operations.
func pressMain(args []string) error {
	flags := flag.NewFlagSet("press", flag.ExitOnError)
	load := flags.String("load", "", "one of the loads")
	rate := flags.Float64("rate", 0, "operations a second; 0: as many as possible")
	d := flags.Duration("for", time.Second, "how long")
	ports := flags.String("ports", "", portsHelp)
	flags.Parse(args)
	s, err := setupOf(*ports)
	if err != nil {
		return err
	}
	if !slices.Contains(loadNames, *load) {
		return fmt.Errorf("there is no load %q", *load)
	}
	debug.SetGCPercent(400)
	var turn, done atomic.Int64
	var mu sync.Mutex
	var all sync.WaitGroup
	begun := time.Now()
	for range presses {
		all.Go(func() {
			for time.Since(begun) < *d {
				n := turn.Add(1)
				if *rate > 0 {
					time.Sleep(time.Until(begun.Add(time.Duration(float64(n) / *rate * 1e9))))
				}
				failed := operate(*load, n, s)
				if failed != nil {
					mu.Lock()
					err = failed
					mu.Unlock()
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(done.Load())
}

// operate makes the operation with number n of a load: a request on a new connection, over TLS and small, or plain
// behind a PROXY header and with a large body.
func operate(load string, n int64, s setup) error {
	if load == "connections" || load == "mix" && n%2 == 0 {
		c, err := dialSecure(s, "http/1.1")
		if err != nil {
			return err
		}
		defer c.Close()
		return (&httpHeld{Conn: c}).exchange(128)
	}
	h, err := dialPlain(s)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.exchange(bodySize)
}
