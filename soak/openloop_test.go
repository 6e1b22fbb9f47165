package soak

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// serveArrivals starts a worker, which stands for a connection. The worker takes arrivals from q. For each it
// waits as long as serve returns, and records the latency.
func serveArrivals(ctx context.Context, q *queue, serve func(n int) time.Duration) (latencies func() []time.Duration) {
	var all []time.Duration
	var lock sync.Mutex
	woken := make(chan struct{}, 1)
	s := &seat{wake: func() { woken <- struct{}{} }}
	go func() {
		for n := 0; ; n++ {
			a, ok := q.take(s)
			if !ok {
				select {
				case <-woken:
				case <-ctx.Done():
				}
				if a, ok = q.cancel(s); !ok {
					return
				}
			}
			time.Sleep(serve(n))
			lock.Lock()
			all = append(all, time.Since(a.due))
			lock.Unlock()
			q.ended(1)
		}
	}()
	return func() []time.Duration {
		lock.Lock()
		defer lock.Unlock()
		return all
	}
}

// TestNoCoordinatedOmission: one slow response delays all requests that become due during
// it. A closed loop would only record a single slow one.
func TestNoCoordinatedOmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := newQueue()
		got := serveArrivals(ctx, q, func(n int) time.Duration {
			if n == 0 {
				return 450 * time.Millisecond
			}
			return time.Millisecond
		})
		table := timetable{start: time.Now(), rate: 10, first: 0, step: 1, ends: 8}
		if !table.run(ctx, q.offer) {
			t.Error("the timetable did not come to its end")
		}
		q.empty(ctx)
		ms := time.Millisecond
		want := []time.Duration{450 * ms, 351 * ms, 252 * ms, 153 * ms, 54 * ms, 1 * ms, 1 * ms, 1 * ms}
		if !slices.Equal(got(), want) {
			t.Errorf("the latencies are %v, want %v", got(), want)
		}
		cancel()
		synctest.Wait()
	})
}

// TestTimetable: the times of requests do not depend on which runner makes them.
func TestTimetable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().Add(time.Second)
		var lock sync.Mutex
		var due []time.Duration
		var all sync.WaitGroup
		for unit := range int64(3) {
			table := timetable{start: start, rate: 4, first: unit, step: 3, ends: 7}
			all.Go(func() {
				table.run(t.Context(), func(a arrival) {
					lock.Lock()
					defer lock.Unlock()
					if time.Since(a.due) != 0 {
						t.Errorf("the request is %s late", time.Since(a.due))
					}
					due = append(due, a.due.Sub(start))
				})
			})
		}
		all.Wait()
		ms := time.Millisecond
		if want := []time.Duration{0, 250 * ms, 500 * ms, 750 * ms, 1000 * ms, 1250 * ms, 1500 * ms}; !slices.Equal(due, want) {
			t.Errorf("requests were due at %v, want %v", due, want)
		}
	})
}

// TestTimetableCatchesUp: if this machine is late, it makes the missed requests at once,
// and omits none.
func TestTimetableCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var latest time.Duration
		table := timetable{start: time.Now(), rate: 100, first: 0, step: 1, ends: 50}
		table.run(t.Context(), func(a arrival) {
			if n++; n == 10 {
				time.Sleep(200 * time.Millisecond) // this machine is busy
			}
			latest = max(latest, time.Since(a.due))
		})
		if n != 50 || latest != 200*time.Millisecond {
			t.Errorf("%d requests, at most %s late", n, latest)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if table.run(ctx, func(arrival) { t.Error("a request after the end") }) {
			t.Error("an interrupted timetable came to its end")
		}
	})
}

func TestQueue(t *testing.T) {
	q := newQueue()
	at := func(s int) arrival { return arrival{time.Unix(int64(s), 0)} }
	woken := 0
	seats := make([]seat, 3)
	for i := range seats {
		seats[i].wake = func() { woken++ }
		if _, ok := q.take(&seats[i]); ok {
			t.Error("there is an arrival in an empty queue")
		}
	}
	if _, ok := q.cancel(&seats[0]); ok { // this worker's connection was closed
		t.Error("an arrival was given that was not offered")
	}
	q.offer(at(1)) // for seat 1
	q.offer(at(2)) // for seat 2
	q.offer(at(3))
	q.offer(at(4))
	if a, ok := q.cancel(&seats[1]); !ok || a != at(1) || woken != 2 {
		t.Errorf("seat 1 got %v, %v; %d were woken", a, ok, woken)
	}
	q.back(at(1)) // the request was not processed, so it is the first one again
	for _, want := range []arrival{at(1), at(3)} {
		if a, ok := q.take(&seats[1]); !ok || a != want {
			t.Errorf("got %v, %v, want %v", a, ok, want)
		}
	}
	if n := q.expire(time.Unix(4, 0)); n != 0 {
		t.Errorf("%d are too old", n)
	}
	if n := q.expire(time.Unix(5, 0)); n != 1 {
		t.Errorf("%d are too old, want 1", n)
	}
	q.ended(4)
	q.empty(t.Context()) // hangs if an arrival has not ended
}

// TestOpenLoop: every protocol makes requests at the rate, and counts each once.
func TestOpenLoop(t *testing.T) {
	noLeaks(t)
	f := func(name, target string, change func(*Options)) {
		t.Run(name, func(t *testing.T) {
			r := soak(t, target, func(o *Options) {
				o.Rate, o.Duration, o.Connections = 200, 250*time.Millisecond, 5
				change(o)
			}, func(*Snapshot) bool { return false })
			wantKinds(t, r)
			if r.Requests != 50 || r.OpenLoop.Due != 50 || r.OpenLoop.Planned != 50 || r.OpenLoop.Unsent != 0 || r.Interrupted || r.Peak > 5 {
				t.Errorf("%d requests on %d connections, %+v", r.Requests, r.Peak, r.OpenLoop)
			}
			if n := r.Latency["request"].Count; n != 50 || r.OpenLoop.Behind.Count != 50 {
				t.Errorf("%d latencies, %+v", n, r.OpenLoop)
			}
		})
	}
	plain, secure := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("ok")) })
	none := func(*Options) {}
	f("HTTP/1.1", serve(t, always(ok)), none)
	f("HTTP/1.1 over TLS", "https://"+serve(t, overTLS(always(ok))), none)
	f("HTTP/2", plain, func(o *Options) { o.Protocol = HTTP2 })
	f("HTTP/2 over TLS", "https://"+secure, func(o *Options) { o.Protocol = HTTP2 })
	f("raw", "tcp://"+serve(t, func(c net.Conn) { io.Copy(c, c) }), func(o *Options) { o.Send, o.Reply = []byte("x"), "x" })
	f("a connection for each request", serve(t, always("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")), none)
	f("several processes", serve(t, always(ok)), func(o *Options) { o.Processes = 2 })
}

// TestOpenLoopCountsFromDue: while the only connection is busy, due requests wait, and
// their latency includes the wait.
func TestOpenLoopCountsFromDue(t *testing.T) {
	noLeaks(t)
	const held = 300 * time.Millisecond
	r := soak(t, serve(t, answering(func(n int, _ *http.Request) string {
		if n == 0 {
			time.Sleep(held)
		}
		return ok
	})), func(o *Options) { o.Rate, o.Duration, o.Connections = 100, 200*time.Millisecond, 1 }, func(*Snapshot) bool { return false })
	wantKinds(t, r)
	// Half of the requests were due within the first 100 ms, and waited for at least 200
	// ms.
	if p := r.Latency["request"]; r.Requests != 20 || p.P50 < 0.19 || p.Max < held.Seconds() || r.OpenLoop.Waited.P50 < 0.18 {
		t.Errorf("%d requests, latency %+v, waited %+v", r.Requests, p, r.OpenLoop.Waited)
	}
}

// TestUnsent: a request for which no connection is free is counted as an anomaly.
func TestUnsent(t *testing.T) {
	noLeaks(t)
	stays := serve(t, func(c net.Conn) {
		for r := bufio.NewReader(c); ; { // one request on each connection, and no response
			if _, err := r.ReadByte(); err != nil {
				return
			}
		}
	})
	r := soak(t, stays, func(o *Options) {
		o.Rate, o.Duration, o.Connections, o.Timeout = 100, 100*time.Millisecond, 1, 600*time.Millisecond
	}, func(*Snapshot) bool { return false })
	wantKinds(t, r, Timeout, Unsent)
	if r.AnomaliesInAll != 10 || r.Requests != 0 || r.OpenLoop.Unsent == 0 {
		t.Errorf("%d of 10 requests have an end: %+v", r.AnomaliesInAll, r.OpenLoop)
	}
}

// TestGoAwayInOpenLoop: a request that the target did not process is repeated.
func TestGoAwayInOpenLoop(t *testing.T) {
	noLeaks(t)
	var first sync.Once
	again := play(func(s *scene) {
		refused := false
		first.Do(func() { refused = true })
		if refused {
			s.WriteGoAway(0, 0, nil)
			return
		}
		for id := uint32(1); ; id += 2 {
			s.respond(id, true, ":status", "200")
			if !s.request() {
				return
			}
		}
	})
	r := soak(t, serve(t, again), func(o *Options) {
		o.Protocol, o.Rate, o.Duration, o.Connections = HTTP2, 100, 100*time.Millisecond, 1
	}, func(*Snapshot) bool { return false })
	wantKinds(t, r)
	if r.Requests != 10 || r.EndedIdle != 1 || r.Opened != 2 {
		t.Errorf("%d requests, %d connections ended idle of %d", r.Requests, r.EndedIdle, r.Opened)
	}
}

// TestFaultsInOpenLoop: connections with faults take no arrivals until their first request has ended.
func TestFaultsInOpenLoop(t *testing.T) {
	noLeaks(t)
	address := serve(t, always(ok))
	// If the machine is busy, a run may end before a connection with faults is served.
	for attempt, none := 1, true; none; attempt++ {
		if attempt == 20 {
			t.Fatal("no connection with faults was ever served")
		}
		r := soak(t, address, func(o *Options) {
			o.Rate, o.Duration, o.Connections, o.Faulty = 100, 200*time.Millisecond, 4, 0.5
			o.Faults = []Fault{{Part: Head, Offset: 5, Delay: time.Millisecond}}
		}, func(*Snapshot) bool { return false })
		wantKinds(t, r)
		n := r.Outcomes["faults"][served]
		if n > 2 || r.Requests != 20+n || r.Latency["request"].Count != 20 {
			t.Fatalf("%d requests, %v, %+v", r.Requests, r.Outcomes, r.Latency["request"])
		}
		none = n == 0
	}
}

// TestGenerator: the report shows whether this machine could keep up.
func TestGenerator(t *testing.T) {
	f := func(late time.Duration, want bool) {
		t.Helper()
		s := emptySnapshot()
		s.Behind[bucket(time.Millisecond)] = 950
		s.Behind[bucket(late)] = 50
		o := Defaults()
		o.Rate = 100
		l := newOpenLoop(&o, s, 3000)
		text := (&Numbers{OpenLoop: l}).String()
		if l.KeptUp != want || strings.Contains(text, "COULD NOT KEEP UP") == want {
			t.Errorf("%s late: kept up %v\n%s", late, l.KeptUp, text)
		}
	}
	f(9*time.Millisecond, true)
	f(11*time.Millisecond, false)
}

// TestSeries: each request counts in the interval in which it ended.
func TestSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, other := newCounts(time.Now(), time.Second), newCounts(time.Now(), time.Second)
		c.connected()
		c.connected()
		c.request(5*time.Millisecond, true)
		time.Sleep(time.Second)
		c.request(time.Second, false) // a slow reader: its latency does not count
		c.disconnected()
		time.Sleep(2 * time.Second)
		c.anomaly(Reset, Example{})
		other.connected()
		other.request(9*time.Millisecond, true)
		time.Sleep(500 * time.Millisecond)
		all := total([]*Snapshot{c.whole(3500 * time.Millisecond), other.whole(3500 * time.Millisecond)})
		got := points(all.Slots, time.Second, 3500*time.Millisecond)
		want := []Point{
			{From: 0, Requests: 1, P50: .005, P99: .005, Max: .005, Connections: 2, Opened: 2},
			{From: 1, Requests: 1, Connections: 1},
			{From: 2, Connections: 1},
			{From: 3, Requests: 1, Errors: 1, P50: .009, P99: .009, Max: .009, Connections: 2, Opened: 1},
		}
		for i := range got {
			for _, v := range []*float64{&got[i].P50, &got[i].P99, &got[i].Max} {
				*v = float64(int(*v*1000)) / 1000
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%+v\nwant\n%+v", got, want)
		}
	})
}

func TestInterval(t *testing.T) {
	f := func(d, given, want time.Duration) {
		t.Helper()
		o := Defaults()
		o.Duration, o.Interval = d, given
		if got := o.interval(); got != want {
			t.Errorf("the interval is %s for %s, want %s", got, d, want)
		}
	}
	f(time.Second, 0, time.Second)
	f(10*time.Minute, 0, time.Second)
	f(8*time.Hour, 0, 48*time.Second)
	f(8*time.Hour, time.Second, time.Second)
}

// TestWakeBeforeIdle: a connection that gets an arrival just before it becomes idle does not miss it.
func TestWakeBeforeIdle(t *testing.T) {
	o := Defaults()
	o.Targets, o.Rate = []string{serve(t, always(ok))}, 1
	if err := o.Prepare(); err != nil {
		t.Fatal(err)
	}
	if err := o.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := newRunner(o.plans[0], 0, 1, 0, 1, time.Now())
	l := newLink(r, 0)
	if err := l.dial(); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if _, ok := r.queue.take(&l.seat); ok {
		t.Error("there is an arrival in an empty queue")
	}
	r.queue.offer(arrival{time.Now()})
	if ready, err := l.await(time.Now().Add(patience)); ready || err != nil {
		t.Errorf("%v, %v", ready, err)
	}
	if time.Since(l.began) > patience {
		t.Error("the connection slept over its arrival")
	}
	if _, ok := r.queue.cancel(&l.seat); !ok {
		t.Error("the arrival is gone")
	}
}
