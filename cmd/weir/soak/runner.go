package soak

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// The phases of a run.
const (
	running  = iota
	stopping // exchanges are finished, all else ends
	over     // everything ends
)

// grace is how long exchanges may take after the end of a run.
const grace = 5 * time.Second

// A runner holds the connections of one process.
type runner struct {
	*Options
	*counts
	part, parts int64 // this process takes every parts-th connection
	start       time.Time
	life        context.Context // until the phase is no longer running
	die         func()
	phase       atomic.Int32
	links       sync.WaitGroup

	lock sync.Mutex
	live map[*link]struct{}

	tls  *tls.Config // nil: none
	head []byte      // of an HTTP/1 request
	body []byte
}

func newRunner(o *Options, part, parts int) *runner {
	r := &runner{
		Options: o, counts: newCounts(), part: int64(part), parts: int64(parts),
		start: time.Now(), live: map[*link]struct{}{},
	}
	r.life, r.die = context.WithCancel(context.Background())
	if o.TLS {
		// Who answers is not in question here, how it answers is.
		r.tls = &tls.Config{ServerName: o.Host, InsecureSkipVerify: true, MinVersion: tls.VersionTLS10}
		switch o.Protocol {
		case HTTP1:
			r.tls.NextProtos = []string{"http/1.1"}
		case HTTP2:
			r.tls.NextProtos = []string{http2.NextProtoTLS}
		}
	}
	if o.Protocol == HTTP1 {
		r.head = r.requestHead()
	}
	r.body = make([]byte, o.Body)
	for i := range r.body {
		r.body[i] = 'a' + byte(i%26)
	}
	return r
}

func (r *runner) running() bool { return r.phase.Load() == running }

// run opens and holds connections until the time is up or ctx ends, and
// returns when the last one is gone.
func (r *runner) run(ctx context.Context, show func(*Snapshot)) *Snapshot {
	thrifty()
	ctx, cancel := context.WithTimeout(ctx, r.Duration)
	defer cancel()
	looks := time.NewTicker(tick)
	defer looks.Stop()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		for {
			select {
			case <-looks.C:
				show(r.snapshot(time.Since(r.start)))
			case <-ctx.Done():
				return
			}
		}
	}()
	r.open(ctx)
	elapsed := time.Since(r.start)
	<-shown
	r.finish()
	return r.snapshot(elapsed)
}

// open opens connections at the rate until ctx ends, as long as fewer live
// than are wanted. What could not be opened is not made up for in one go.
func (r *runner) open(ctx context.Context) {
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	due, number, last := 1.0, int64(0), time.Now()
	for {
		for ; due >= 1 && r.alive() < r.Connections; due-- {
			r.begin(r.part + number*r.parts)
			number++
		}
		due = min(due, 1+r.Rate/20)
		select {
		case <-ctx.Done():
			return
		case now := <-pace.C:
			due += now.Sub(last).Seconds() * r.Rate
			last = now
		}
	}
}

func (r *runner) alive() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.live)
}

func (r *runner) begin(number int64) {
	l := newLink(r, number)
	r.lock.Lock()
	r.live[l] = struct{}{}
	r.lock.Unlock()
	r.opened.Add(1)
	r.links.Go(func() {
		l.live()
		r.lock.Lock()
		delete(r.live, l)
		r.lock.Unlock()
	})
}

// finish ends all connections: idle ones at once, exchanges within the grace.
func (r *runner) finish() {
	gone := make(chan struct{})
	r.end(stopping)
	r.die()
	go func() {
		r.links.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return
	case <-time.After(min(grace, r.Timeout)):
	}
	r.end(over)
	<-gone
}

func (r *runner) end(phase int32) {
	r.phase.Store(phase)
	r.lock.Lock()
	all := make([]*link, 0, len(r.live))
	for l := range r.live {
		all = append(all, l)
	}
	r.lock.Unlock()
	for _, l := range all {
		l.hurry()
	}
}

// sleep waits for d, and says whether the run goes on.
func (r *runner) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return r.running()
	case <-r.life.Done():
		return false
	}
}
