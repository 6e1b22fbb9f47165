// Package pressure keeps weir serving while memory or descriptors run short. It checks
// them once a second, and memory more often, which costs nothing per connection. When a
// resource nears its limit, weir closes the connections that have been idle for longest. When no idle
// connection is left that it may close, weir accepts no connection for a moment. Running
// exchanges and tunnels continue, unless others need their room (share.go) or the process
// would end (cut.go). When the process has become idle, it returns unused memory to the
// system.
package pressure

import (
	"context"
	"math"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// Reading is the usage of a resource at one moment.
type Reading struct {
	// Used and Full are in the unit of the resource. Full is the most that weir uses, a
	// little less than the limit; 0: there is no limit.
	Used, Full int64
	// Reserve is the amount beyond Full.
	Reserve int64
	// Each is the amount that one further connection may take.
	Each int64
	// Stale means that Used still includes connections that ended after the previous reading.
	Stale bool
	// Peak is the usage with garbage, of this moment, as a share of what ends the process. Used may be known late; Peak is
	// known at once. 0: the resource has no such end.
	Peak float64
	// Small means that the process itself takes a large part of Full, so that unexplained memory means little: there is no Cut.
	Small bool
}

// The values of Peak from which weir looks more often and allows more only from look to look (soon), lets nothing
// more in (beyond), and does not wait for
// Used before it closes connections (urgent). In a container, the runtime's limit is at 0.85 with all other memory.
const (
	peakSoon   = 0.30
	peakBeyond = 0.88
	peakUrgent = 0.93
)

// ratio returns Used divided by Full.
func (r Reading) ratio() float64 {
	if r.Full <= 0 {
		return 0
	}
	return float64(r.Used) / float64(r.Full)
}

// room returns the number of further connections that have room.
func (r Reading) room() int64 {
	if r.Full <= 0 || r.Each <= 0 {
		return math.MaxInt32
	}
	return max(0, r.Full-r.Used) / r.Each
}

// Resource is a resource that may run short.
type Resource struct {
	// Name is the label in metrics: memory or descriptors.
	Name string
	Read func() Reading
	// Expect, if set, returns how much more this number of busy connections will still
	// take. Busy connections are not idle, and may be new.
	Expect func(busy int64) int64
	// Holds, if set, returns how much of the resource a connection holds, in the unit of
	// Reading.Each. nil: one for an idle connection, one more for each exchange or
	// tunnel. Any goroutine may call it.
	Holds func(*conn.Conn) int64
	// Bounds means that connections of the largest networks are also closed if the work of others uses up the
	// reserve.
	Bounds bool
	// Ends means that the process ends if the resource is used up, and that something else than connections may use it. See Cut.
	Ends bool
	// Shed is the share of Full from which weir closes idle connections. It stops at the
	// share Calm.
	Shed, Calm float64
}

// Step is what weir does about a resource that is short.
type Step int

// The steps. Each step includes the steps before it.
const (
	None  Step = iota
	Shed       // weir closes idle connections
	Pause      // weir accepts no connection
	Share      // Pause, except for client networks that hold little: connections of the largest networks make room for them
	Cut        // weir closes the connections with the most exchanges, and then those of the largest networks, whatever their accounts say
	numSteps
)

// String is the label in metrics.
func (s Step) String() string { return [...]string{"none", "shed", "pause", "share", "cut"}[s] }

// Connections are all open connections: listener.Tracker.
type Connections interface {
	Open() int
	Each(func(*conn.Conn))
}

// Gate holds back listeners: listener.Limits.
type Gate interface {
	// Admit makes the listeners wait after they have accepted this many further
	// connections.
	Admit(most int64)
	// Left returns how many of these were not accepted yet. Below 0: a listener has
	// waited since Admit.
	Left() int64
	// Share lets up to most further connections in at a time. may decides by their client
	// network whether they stay.
	Share(most int64, may func(conn.Network) bool)
	// Crowded receives a value when a listener begins to wait.
	Crowded() <-chan struct{}
}

// Options make a Watch. All but Notify are required.
type Options struct {
	Resources   []Resource
	Connections Connections
	Gate        Gate
	// GoAway begins to end the HTTP/2 connections for which its argument returns true, so
	// that no exchange is lost.
	GoAway func(func(*conn.Conn) bool)
	// CutTunnels cuts the idle tunnels within the HTTP/2 connections for which its
	// argument returns true. It cuts nothing else of these connections.
	CutTunnels func(func(*conn.Conn) bool)
	// EndIdle ends the connection of an idle client, unless it is no longer idle:
	// (*conn.Conn).EndIdle.
	EndIdle func(*conn.Conn) bool
	// Exchanges calls its argument for each HTTP/2 connection, with the number of its
	// running exchanges, and the bytes that these have received.
	Exchanges func(func(c *conn.Conn, running int, received int64))
	// Allow lets connections with many exchanges go on for some time: memory.Process.Allow.
	Allow func(time.Duration)
	// Explained returns how much memory is in the accounts, in bytes.
	Explained func() int64
	// Waiting returns true if a connection waits to be accepted whose client network is,
	// or may be, one for which its argument returns true. nil: such a connection may
	// always wait.
	Waiting func(func(conn.Network) bool) bool
	// Notify, if set, is called for every step that begins or ends.
	Notify  func(Event)
	Metrics *Metrics
}

// Event is the beginning or the end of a step.
type Event struct {
	Resource string
	Step     Step
	Begins   bool
	Reading  Reading
	// Lasted and Ended are set at the end of a step: its duration, and the number of
	// connections that weir closed meanwhile because of the resource.
	Lasted time.Duration
	Ended  Ended
	// Refused is, at the end of Share, the number of refused new connections.
	Refused int
	// Largest is the client network that holds most. It is set at the beginning of Share.
	Largest conn.Network
	// Explained is the part of Reading.Used that the memory accounts know. It is set at the beginning of Cut.
	Explained int64
}

// Ended counts closed connections by their kind.
type Ended struct{ HTTP1, HTTP2, Tunnels, Busy int }

func (e *Ended) add(more Ended) {
	e.HTTP1 += more.HTTP1
	e.HTTP2 += more.HTTP2
	e.Tunnels += more.Tunnels
	e.Busy += more.Busy
}

// The times of a Watch.
const (
	// interval is the time between two checks.
	interval = time.Second
	// memoryInterval is the time between two checks of what ends the process.
	memoryInterval = 200 * time.Millisecond
	// risingInterval is the time between two checks while memory may soon run out.
	risingInterval = 25 * time.Millisecond
	// soonest is the shortest time until the next check if listeners wait.
	soonest = 20 * time.Millisecond
	// shedInterval is the shortest time between two walks over all connections.
	shedInterval = 250 * time.Millisecond
	// calmTime is how long there must be enough of a resource until a step ends. It
	// prevents steps, and their log lines, from changing all the time.
	calmTime = 10 * time.Second
)

// Watch checks resources and acts.
type Watch struct {
	o       Options
	gauges  []*gauge
	shedAt  time.Time
	urgent  time.Time     // since when shed has waited for connections that are about to end
	walk    time.Duration // how long the last walk over all connections took
	survey  survey        // reused, because memory may be short
	busiest []busiest     // reused
	held    holdings      // reused
	trim    trim

	shares       shares
	sharing      *gauge    // the resource that weir shares out; nil: none
	crowdedSince time.Time // since when new connections have waited; zero: none waits
	others       bool      // the last result of othersWait
	askAgain     time.Time
}

// New makes a Watch.
func New(o Options) *Watch {
	w := &Watch{o: o, shares: shares{news: make(chan struct{}, 1)}}
	for _, r := range o.Resources {
		w.gauges = append(w.gauges, &gauge{Resource: r, metrics: o.Metrics.resource(r.Name)})
	}
	return w
}

// Run checks the resources until ctx is done.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		began := time.Now()
		w.look(began)
		w.trim.look(began)
		tick.Reset(w.next(began))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.shares.news:
		case <-w.o.Gate.Crowded():
			select {
			case <-time.After(time.Until(began.Add(max(soonest, w.gap())))):
			case <-ctx.Done():
				return
			}
		}
	}
}

// next returns the time until the next check, unless a caller asks for an earlier one.
func (w *Watch) next(began time.Time) time.Duration {
	d := interval
	for _, g := range w.gauges {
		if g.step() >= Pause {
			d = min(d, shedInterval)
		}
		switch {
		case g.last.Peak >= peakSoon:
			d = risingInterval
		case g.last.Peak > 0:
			d = min(d, memoryInterval)
		}
	}
	return max(time.Millisecond, d-time.Since(began), w.gap())
}

// gap returns the time after a walk over all connections, so that walks use a tenth of
// the time. On a busy machine a walk may take long; the pause is limited for that case.
func (w *Watch) gap() time.Duration { return min(10*w.walk, interval/2) }

// look reads every resource once, and acts. Each closed connection frees every
// resource. So if several resources are short, look closes the largest number of connections
// that one of them needs.
func (w *Watch) look(now time.Time) {
	open := int64(w.o.Connections.Open())
	room, surplus := int64(math.MaxInt32), int64(0)
	var short, full *gauge
	w.walk = 0
	for _, g := range w.gauges {
		g.last = g.Read()
		if g.Ends {
			w.allow(g) // at once: what follows may wait for the garbage collector
			g.explained = w.o.Explained()
			g.unexplained = g.last.Used - g.explained - open*g.last.Each
		}
		w.judge(g, now)
		more := w.room(g)
		if g.tight() {
			more = 0
		}
		if room = min(room, more); more == 0 && full == nil {
			full = g
		}
		if n := g.surplus(open); n > surplus {
			surplus, short = n, g
		}
	}
	came := int64(w.o.Connections.Open()) - open // since the readings, which do not include these
	w.crowd(now)
	w.o.Gate.Admit(max(0, room-max(0, came)))
	w.curb(now)
	w.cutBusiest(now)
	w.share(full, now)
	if short != nil && now.Sub(w.shedAt) >= shedInterval {
		w.shedAt = now
		ended := w.shed(short, int(surplus), now)
		short.ended.add(ended)
		w.o.Metrics.count(ended)
	}
}

// room returns the number of further connections for which a resource has room, after the
// amount that the open connections will still take.
func (w *Watch) room(g *gauge) int64 {
	r := g.last
	g.expected = 0
	if g.Expect != nil && r.Used > r.Full/2 {
		began := time.Now()
		g.expected = max(0, g.Expect(w.busy()))
		w.walk = max(w.walk, time.Since(began))
	}
	r.Used += g.expected
	if !g.began[Cut].IsZero() { // until then Each was too small
		r.Each = max(r.Each, g.each)
	}
	return r.room()
}

// busy counts the connections that are not idle; an HTTP/2 connection counts once for each
// running exchange.
func (w *Watch) busy() (n int64) {
	w.o.Connections.Each(func(c *conn.Conn) {
		if c.State() != conn.Idle {
			n++
		}
	})
	if w.o.Exchanges != nil {
		w.o.Exchanges(func(_ *conn.Conn, running int, _ int64) { n += int64(max(0, running-1)) })
	}
	return n
}

// gauge is a resource and its current steps.
type gauge struct {
	Resource
	metrics *resourceMetrics
	last    Reading
	began   [numSteps]time.Time // of a step; zero: the step is not active
	needed  [numSteps]time.Time // when the step was last necessary
	ended   Ended               // since Shed began

	expected int64 // at the last check: the amount that busy connections will still take

	refused, endedBusy int // since Share began

	explained, unexplained int64 // parts of last.Used: in the memory accounts; neither there nor in what each connection takes
	endedMost              int   // since Cut began
	toEnd                  int64 // exchanges that Cut still has to end
	cutAt                  time.Time
	decidedAt              time.Time // when toEnd was decided
	decidedUsed            int64     // Used at that time
	each                   int64     // Used at that time, divided by the open connections
	vain                   int       // consecutive decisions after which Used was hardly less
}

// begins reports whether a step has to begin now.
func (g *gauge) begins(s Step) bool {
	switch s {
	case Share:
		return false // see share
	case Cut:
		return g.Ends && (g.beyond() || g.runsOut())
	case Pause:
		return g.last.room() == 0
	}
	return g.last.ratio() >= g.Shed
}

// ends returns the ratio below which a step ends.
func (g *gauge) ends(s Step) float64 {
	switch s {
	case Share:
		return math.Inf(1)
	case Pause:
		return g.Shed
	}
	return g.Calm
}

// judge begins and ends the steps of a resource. Pause lies within Shed: it begins later
// and ends earlier. The method share decides when Share begins.
func (w *Watch) judge(g *gauge, now time.Time) {
	ratio := g.last.ratio()
	for s := Shed; s < numSteps; s++ {
		if g.began[s].IsZero() && g.begins(s) {
			g.began[s], g.needed[s] = now, now
			e := Event{Step: s, Begins: true}
			if s == Cut {
				g.endedMost, e.Explained = 0, g.explained
			}
			w.tell(g, e)
		}
	}
	for s := numSteps - 1; s > None; s-- {
		switch {
		case g.began[s].IsZero():
		case ratio >= g.ends(s), s == Cut && g.beyond():
			g.needed[s] = now
		case now.Sub(g.needed[s]) >= calmTime:
			e := Event{Step: s, Lasted: now.Sub(g.began[s]), Ended: g.ended, Refused: g.refused}
			switch s {
			case Share:
				e.Ended = Ended{Busy: g.endedBusy}
			case Cut:
				e.Ended = Ended{Busy: g.endedMost}
			}
			w.tell(g, e)
			g.began[s] = time.Time{}
			if s == Shed {
				g.ended = Ended{}
			}
		}
	}
	g.metrics.update(ratio, g.step())
}

// step returns the last active step.
func (g *gauge) step() Step {
	for s := numSteps - 1; s > None; s-- {
		if !g.began[s].IsZero() {
			return s
		}
	}
	return None
}

func (w *Watch) tell(g *gauge, e Event) {
	e.Resource, e.Reading = g.Name, g.last
	if e.Begins {
		g.metrics.begin(e.Step)
	}
	if w.o.Notify != nil {
		w.o.Notify(e)
	}
}

// surplus returns how many of the open connections have to end until the resource is at
// Calm, if all connections take the same amount.
func (g *gauge) surplus(open int64) int64 {
	calm := g.Calm * float64(g.last.Full)
	if g.began[Shed].IsZero() || g.last.Stale || float64(g.last.Used) <= calm {
		return 0
	}
	return int64(math.Ceil(float64(open) * (float64(g.last.Used) - calm) / float64(g.last.Used)))
}
