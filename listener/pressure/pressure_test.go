package pressure

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/listener/conn"
)

// house is a process with connections and one resource. Each connection takes one unit.
type house struct {
	t       *testing.T
	reg     *prometheus.Registry
	crowded chan struct{}

	mu      sync.Mutex
	base    int64 // used by other things
	full    int64
	stale   bool
	slow    bool // notified connections do not close
	conns   []*conn.Conn
	told    []*conn.Conn // notified by GoAway
	bereft  []*conn.Conn // notified by CutTunnels
	http2   map[*conn.Conn]bool
	most    int64
	left    int64 // the result of Gate.Left
	places  int64
	each    int64 // the resource that a connection takes; 0 means two units
	reserve int64
	waits   []conn.Network     // in the kernel's queue
	running map[*conn.Conn]int // running exchanges of HTTP/2 connections
	may     func(conn.Network) bool
	events  []string
	looks   int
	ends    bool // see Resource.Ends
	peak    float64
	known   int64                // in the memory accounts
	allowed time.Duration        // by the last look
	got     map[*conn.Conn]int64 // received by the exchanges of HTTP/2 connections
	late    int                  // connections that arrive between the first reading and the reaction
}

func (h *house) read() Reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	r := Reading{Used: h.base + int64(h.open()), Full: h.full, Reserve: h.reserve, Each: max(1, h.each), Stale: h.stale}
	if h.each == 0 {
		r.Each = 2
	}
	r.Peak = h.peak
	for c, n := range h.running {
		if h.ends && !c.WasCut() {
			r.Used += int64(n)
		}
	}
	for ; h.late > 0; h.late-- {
		h.conns = append(h.conns, new(conn.Conn))
	}
	return r
}

// open counts the connections that were not ended. Connections that were told to go away
// may still be open.
func (h *house) open() int { return len(h.those()) }

func (h *house) those() (open []*conn.Conn) {
	for _, c := range h.conns {
		if !c.WasCut() && (h.slow || !slices.Contains(h.told, c)) {
			open = append(open, c)
		}
	}
	return open
}

func (h *house) Open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open()
}

func (h *house) Each(f func(*conn.Conn)) {
	h.mu.Lock()
	all := h.those()
	h.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}

// over2 records the HTTP/2 connections that were chosen.
func (h *house) over2(noted *[]*conn.Conn) func(func(*conn.Conn) bool) {
	return func(f func(*conn.Conn) bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, c := range h.conns {
			if h.http2[c] && f(c) {
				*noted = append(*noted, c)
			}
		}
	}
}

func (h *house) Admit(most int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.most = most
}

func (h *house) Left() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.left
}

func (h *house) Share(most int64, may func(conn.Network) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.places, h.may = most, may
}

// lets reports whether weir lets a new connection of n in although there is no room. The
// Watch, which the answer wakes, replaces the function.
func (h *house) lets(n conn.Network) bool {
	h.mu.Lock()
	may := h.may
	h.mu.Unlock()
	return may(n)
}

// admitted returns how many more connections weir would accept.
func (h *house) admitted() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most
}

func (h *house) allowance() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.allowed
}

func (h *house) Crowded() <-chan struct{} { return h.crowded }

// sharing returns how many connections weir would accept although there is no room.
func (h *house) sharing() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.places
}

func (h *house) waiting(entitled func(conn.Network) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.waits, entitled)
}

func (h *house) exchanges(f func(*conn.Conn, int, int64)) {
	h.mu.Lock()
	running, got := maps.Clone(h.running), maps.Clone(h.got)
	h.mu.Unlock()
	for c, n := range running {
		if !h.ends || !c.WasCut() {
			f(c, n, got[c])
		}
	}
}

func (h *house) notify(e Event) {
	what := "ends"
	if e.Begins {
		what = "begins"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprint(e.Step, " ", what))
}

// add makes a connection in a state. It has been idle for age; negative: not recorded.
func (h *house) add(s conn.State, age time.Duration) *conn.Conn {
	ours, theirs := net.Pipe()
	h.t.Cleanup(func() { ours.Close(); theirs.Close() })
	c := conn.New(ours)
	c.SetState(s)
	if age >= 0 {
		c.Quiet(time.Now().Add(-age))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return c
}

func (h *house) set(f func()) {
	h.mu.Lock()
	f()
	h.mu.Unlock()
}

// start starts the Watch.
func (h *house) start(shed, calm float64) {
	h.reg, h.crowded, h.http2 = prometheus.NewRegistry(), make(chan struct{}), map[*conn.Conn]bool{}
	w := New(Options{Resources: []Resource{{Name: "things", Read: h.read, Shed: shed, Calm: calm, Bounds: !h.ends, Ends: h.ends}},
		Allow:     func(d time.Duration) { h.set(func() { h.allowed = d }) },
		Explained: func() int64 { h.mu.Lock(); defer h.mu.Unlock(); return h.known },
		Waiting:   h.waiting, Exchanges: h.exchanges,
		Connections: h, Gate: h, GoAway: h.over2(&h.told), CutTunnels: h.over2(&h.bereft),
		EndIdle: func(c *conn.Conn) bool { c.Cut(); return true }, Notify: h.notify, Metrics: NewMetrics(h.reg)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
}

// after waits for d.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *house) want(what string, events ...string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.events, events) {
		h.t.Errorf("%s: the events are %q, want %q", what, h.events, events)
	}
}

func (h *house) metric(name string) float64 {
	h.t.Helper()
	families, err := h.reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func TestEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100}
		for range 89 {
			h.add(conn.Idle, time.Hour)
		}
		h.start(0.9, 0.8)
		after(time.Minute)
		h.want("below the first step")
		if h.Open() != 89 {
			t.Errorf("%d are open", h.Open())
		}
		h.set(func() {
			if h.looks > 62 {
				t.Errorf("it looked %d times in a minute", h.looks)
			}
		})
		if h.admitted() != (100-89)/2 {
			t.Errorf("%d may come", h.admitted())
		}
		h.set(func() { h.full = 0 })
		after(time.Second)
		if h.admitted() < 1<<30 || h.metric("weir_overload_usage_ratio") != 0 {
			t.Errorf("without a limit %d may come", h.admitted())
		}
	})
}

// weir first closes the connections that have been idle for longest, clients before
// tunnels. Busy connections, and those that have just become idle, stay open.
func TestShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100}
		var busy, young, old, tunnels []*conn.Conn
		for range 30 {
			busy = append(busy, h.add(conn.Active, time.Hour))
		}
		for range 10 {
			busy = append(busy, h.add(conn.Pending, -1))
		}
		for range 20 {
			tunnels = append(tunnels, h.add(conn.Tunnel, 2*time.Hour))
		}
		for range 20 {
			young = append(young, h.add(conn.Idle, 5*time.Second))
		}
		for range 15 {
			old = append(old, h.add(conn.Idle, time.Minute))
		}
		h.start(0.9, 0.8)
		h.want("at 95 of 100", "shed begins")
		count := func(all []*conn.Conn) (cut int) {
			for _, c := range all {
				if c.WasCut() {
					cut++
				}
			}
			return cut
		}
		if n := count(old); n != 15 || count(busy)+count(young)+count(tunnels) != 0 {
			t.Errorf("%d of the oldest were cut, and %d young, %d tunnels, %d busy", n, count(young), count(tunnels), count(busy))
		}
		if n := h.metric("weir_overload_connections_ended_total"); n != 15 {
			t.Errorf("%v were counted", n)
		}
		h.set(func() { h.base = 40 }) // now closing the old ones is not enough
		after(2 * time.Second)
		h.want("at 120 of 100", "shed begins", "pause begins")
		if count(young) != 20 || count(tunnels) == 0 || count(busy) != 0 {
			t.Errorf("%d young ones were cut, %d tunnels, %d busy", count(young), count(tunnels), count(busy))
		}
		if h.admitted() > 10 {
			t.Errorf("%d may come", h.admitted())
		}
		h.set(func() { h.base = 0 })
		after(9 * time.Second)
		h.want("calm for less than 10 s", "shed begins", "pause begins")
		if h.metric("weir_overload_step") != 2 {
			t.Errorf("the step is %v", h.metric("weir_overload_step"))
		}
		after(3 * time.Second)
		h.want("calm", "shed begins", "pause begins", "pause ends", "shed ends")
		if h.metric("weir_overload_step") != 0 || h.metric("weir_overload_steps_total") != 2 {
			t.Errorf("the step is %v, %v began", h.metric("weir_overload_step"), h.metric("weir_overload_steps_total"))
		}
	})
}

// weir tells HTTP/2 connections once to go away, and does not cut them. While they close, weir closes no
// other connections in their place.
func TestShedTellsHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 1000, slow: true}
		h.start(0.9, 0.8)
		two, one := h.add(conn.Idle, time.Hour), h.add(conn.Idle, time.Minute)
		h.set(func() { h.http2[two] = true; h.base = 990 })
		f := func(what string, cut bool) {
			t.Helper()
			after(5 * time.Second)
			h.mu.Lock()
			defer h.mu.Unlock()
			if !slices.Equal(h.told, []*conn.Conn{two}) || two.WasCut() || one.WasCut() != cut {
				t.Errorf("%s: %d were told, cut are %t and %t", what, len(h.told), two.WasCut(), one.WasCut())
			}
		}
		f("it takes its time", false)
		h.set(func() { h.slow = false })
		f("it is gone, and that did not do", true)
	})
}

// Tunnels stay open if enough clients have just become idle.
func TestShedAwaitsClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100}
		quiet := h.add(conn.Tunnel, time.Hour)
		for range 99 {
			h.add(conn.Idle, 0)
		}
		h.start(0.9, 0.8)
		h.want("full", "shed begins", "pause begins")
		after(500 * time.Millisecond)
		if h.Open() != 100 {
			t.Errorf("%d are open half a second later", h.Open())
		}
		after(2 * time.Second)
		if h.Open() != 80 || quiet.WasCut() {
			t.Errorf("%d are open, the tunnel was cut is %t", h.Open(), quiet.WasCut())
		}
	})
}

// No reading includes connections that arrive during the reading. They count towards the number that Admit
// allows.
func TestAdmitCountsThoseWhoCameMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100, late: 10}
		for range 20 {
			h.add(conn.Active, 0)
		}
		h.start(0.9, 0.8)
		synctest.Wait()
		if n := h.admitted(); n != 30 {
			t.Errorf("%d more may come, want half of the 80 that are free, less 10 that have come", n)
		}
	})
}

// weir cannot end active connections. New connections wait, and weir accepts them as soon as
// some of the active ones have ended.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100}
		for range 100 {
			h.add(conn.Active, -1)
		}
		h.start(0.9, 0.8)
		h.want("full", "shed begins", "pause begins")
		if h.admitted() != 0 {
			t.Errorf("%d may come, and there is no room", h.admitted())
		}
		h.set(func() { h.conns = h.conns[:50] })
		began := time.Now()
		h.crowded <- struct{}{} // a listener waits
		after(soonest)
		if took := time.Since(began); h.admitted() != 25 {
			t.Errorf("%d may come %v after there was room", h.admitted(), took)
		}
		after(calmTime + 2*time.Second)
		h.want("half of it has ended", "shed begins", "pause begins", "pause ends", "shed ends")
	})
}

// A stale reading still includes the memory of connections that have ended, so weir closes no
// more connections because of it.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100, stale: true}
		for range 95 {
			h.add(conn.Idle, time.Minute)
		}
		h.start(0.9, 0.8)
		after(5 * time.Second)
		if h.Open() != 95 {
			t.Errorf("%d of 95 are open", h.Open())
		}
		h.want("short", "shed begins")
		h.set(func() { h.stale = false })
		after(time.Second)
		if h.Open() != 80 {
			t.Errorf("%d are open, want 80", h.Open())
		}
	})
}

// The room excludes the amount that busy connections will still take. The Watch counts those by a walk over
// all connections, and does that only when it matters.
func TestRoomBesideTheBusy(t *testing.T) {
	h := &house{t: t}
	for range 3 {
		h.add(conn.Idle, 0)
		h.add(conn.Active, -1)
	}
	h.add(conn.Pending, -1)
	h.add(conn.Tunnel, 0)
	w := &Watch{o: Options{Connections: h}}
	f := func(used int64, inFlight int, want int64) {
		t.Helper()
		r := Descriptors(nil, func() int { return inFlight })
		g := &gauge{Resource: r, last: Reading{Used: used, Full: 100, Each: 2}}
		if got := w.room(g); got != want {
			t.Errorf("with %d used and %d in flight there is room for %d, want %d", used, inFlight, got, want)
		}
	}
	f(60, 5, 20) // all have the descriptors that they need
	f(60, 500, 20)
	f(60, 0, 17)
	f(60, 2, 18)
	f(98, 0, 0)
	f(50, 0, 25)
}

// Some clients are always about to become idle. In an urgent shortage they prevent weir from closing tunnels,
// but only for a moment.
func TestShedsTunnelsBesideTheChatty(t *testing.T) {
	h := &house{t: t, http2: map[*conn.Conn]bool{}}
	for range 20 {
		h.add(conn.Idle, 0)
	}
	for range 40 {
		h.add(conn.Tunnel, time.Hour)
	}
	full := &gauge{last: Reading{Used: 1, Full: 1, Each: 1}}
	w := &Watch{o: Options{Connections: h, GoAway: h.over2(&h.told), CutTunnels: h.over2(&h.bereft), EndIdle: func(*conn.Conn) bool { return false }}}
	now := time.Now()
	for _, after := range []time.Duration{0, goAwayTime / 2} {
		if ended := w.shed(full, 10, now.Add(after)); ended.Tunnels != 0 {
			t.Errorf("after %v %d tunnels are ended", after, ended.Tunnels)
		}
	}
	for _, c := range h.conns[:20] { // they get requests all the time
		c.Quiet(now.Add(goAwayTime))
	}
	if ended := w.shed(full, 10, now.Add(goAwayTime)); ended.Tunnels != 5 {
		t.Errorf("after that %d are", ended.Tunnels)
	}
	if ended := w.shed(full, 10, now.Add(goAwayTime+interval)); ended.Tunnels != 0 {
		t.Errorf("and %d more at once", ended.Tunnels)
	}
}

// weir cuts only the tunnels of an HTTP/2 connection, and only once. It compares their age with that of other
// tunnels.
func TestShedsTunnelsOverHTTP2(t *testing.T) {
	h := &house{t: t, http2: map[*conn.Conn]bool{}}
	young, old, oldest := h.add(conn.Tunnel, time.Minute), h.add(conn.Tunnel, time.Hour), h.add(conn.Tunnel, 2*time.Hour)
	h.http2[young], h.http2[oldest] = true, true
	full := &gauge{last: Reading{Used: 1, Full: 1, Each: 1}}
	w := &Watch{o: Options{Connections: h, GoAway: h.over2(&h.told), CutTunnels: h.over2(&h.bereft), EndIdle: func(*conn.Conn) bool { return false }}}
	if ended := w.shed(full, 4, time.Now()); ended.Tunnels != 2 {
		t.Errorf("%d are ended", ended.Tunnels)
	}
	if !slices.Equal(h.bereft, []*conn.Conn{oldest}) || oldest.WasCut() || !old.WasCut() || young.WasCut() {
		t.Errorf("%d lost their tunnels, cut are %t, %t, %t", len(h.bereft), young.WasCut(), old.WasCut(), oldest.WasCut())
	}
	if ended := w.shed(full, 1, time.Now()); ended.Tunnels != 0 { // it is already closing
		t.Errorf("%d more are ended", ended.Tunnels)
	}
}
