package soak

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A state is the state of a connection.
type state int

const (
	nowhere state = iota
	connecting
	handshaking // the PROXY header and TLS
	exchanging
	held
	states
)

var stateNames = [states]string{"", "connecting", "handshaking", "exchanging", "held"}

// counts are the counters of a runner.
type counts struct {
	series    series // needs the lock
	due       atomic.Int64
	states    [states]atomic.Int64
	peak      atomic.Int64
	opened    atomic.Int64
	exchanges atomic.Int64
	endedIdle atomic.Int64
	received  atomic.Int64
	sent      atomic.Int64
	connect   histogram
	handshake histogram
	upgrade   histogram
	exchange  histogram
	waited    histogram
	behind    histogram
	givenUp   histogram
	lock      sync.Mutex
	statuses  map[int]int64
	grpc      map[int]int64
	outcomes  map[string]map[string]int64
	anomalies map[Kind]*Anomaly
}

// examplesKept is how many examples of each kind of anomaly a process keeps.
const examplesKept = 100

func newCounts(start time.Time, interval time.Duration) *counts {
	return &counts{
		series:   series{start: start, interval: interval},
		statuses: map[int]int64{}, grpc: map[int]int64{}, outcomes: map[string]map[string]int64{}, anomalies: map[Kind]*Anomaly{},
	}
}

// request counts a successful request. counts is false if the latency does not depend on
// the target, for example with a slow reader.
func (c *counts) request(latency time.Duration, counts bool) {
	c.exchanges.Add(1)
	c.lock.Lock()
	defer c.lock.Unlock()
	now := c.series.now()
	now.Requests++
	if counts {
		c.exchange.add(latency)
		now.Latency[bucket(latency)]++
	}
}

func (c *counts) connected() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.series.now().Connected++
}

func (c *counts) disconnected() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.series.now().Ended++
}

// move moves one connection from one state to another.
func (c *counts) move(from, to state) {
	if from != nowhere {
		c.states[from].Add(-1)
	}
	if to == nowhere {
		return
	}
	c.states[to].Add(1)
	for open := c.open(); ; {
		peak := c.peak.Load()
		if open <= peak || c.peak.CompareAndSwap(peak, open) {
			return
		}
	}
}

// open returns the number of established connections.
func (c *counts) open() (n int64) {
	for s := handshaking; s < states; s++ {
		n += c.states[s].Load()
	}
	return n
}

func (c *counts) status(code int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.statuses[code]++
}

func (c *counts) grpcStatus(code int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.grpc[code]++
}

func (c *counts) outcome(role, outcome string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.outcomes[role] == nil {
		c.outcomes[role] = map[string]int64{}
	}
	c.outcomes[role][outcome]++
}

func (c *counts) anomaly(kind Kind, e Example) {
	c.lock.Lock()
	defer c.lock.Unlock()
	a := c.anomalies[kind]
	if a == nil {
		a = &Anomaly{Kind: kind, What: kinds[kind]}
		c.anomalies[kind] = a
	}
	a.Count++
	c.series.now().Errors++
	if len(a.Examples) < examplesKept {
		a.Examples = append(a.Examples, e)
	}
}

// unsent counts requests for which no connection was free.
func (c *counts) unsent(n int, waited time.Duration) {
	after := time.Since(c.series.start).Seconds()
	for range n {
		c.anomaly(Unsent, Example{After: after, Connection: -1, Detail: fmt.Sprintf("no connection was free for %s", waited)})
	}
}

// Snapshot is the state of a run at one moment, or at its end.
type Snapshot struct {
	Elapsed   time.Duration
	Open      int64
	Peak      int64
	States    map[string]int64
	Opened    int64
	Exchanges int64
	EndedIdle int64 // connections that the other side closed between exchanges
	Received  int64
	Sent      int64
	Connect   Durations
	Handshake Durations
	Upgrade   Durations
	Exchange  Durations
	Due       int64     // requests of an open loop that are due
	Waited    Durations // how long they waited for a connection
	Behind    Durations // how late this machine was
	GivenUp   Durations // how long connections with faults lived until the other side closed them
	Statuses  map[int]int64
	GRPC      map[int]int64
	Outcomes  map[string]map[string]int64
	Anomalies map[Kind]*Anomaly
	Slots     []slot `json:",omitempty"` // only at the end of a run
}

func (c *counts) snapshot(elapsed time.Duration) *Snapshot {
	s := &Snapshot{
		Elapsed: elapsed, Open: c.open(), Peak: c.peak.Load(), States: map[string]int64{}, Opened: c.opened.Load(),
		Exchanges: c.exchanges.Load(), EndedIdle: c.endedIdle.Load(), Received: c.received.Load(), Sent: c.sent.Load(),
		Connect: c.connect.snapshot(), Handshake: c.handshake.snapshot(), Upgrade: c.upgrade.snapshot(), Exchange: c.exchange.snapshot(),
		Due: c.due.Load(), Waited: c.waited.snapshot(), Behind: c.behind.snapshot(), GivenUp: c.givenUp.snapshot(),
		Outcomes: map[string]map[string]int64{}, Anomalies: map[Kind]*Anomaly{},
	}
	for i := connecting; i < states; i++ {
		s.States[stateNames[i]] = c.states[i].Load()
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	s.Statuses, s.GRPC = maps.Clone(c.statuses), maps.Clone(c.grpc)
	for role, outcomes := range c.outcomes {
		s.Outcomes[role] = maps.Clone(outcomes)
	}
	for kind, a := range c.anomalies {
		copied := *a
		copied.Examples = slices.Clone(a.Examples)
		s.Anomalies[kind] = &copied
	}
	return s
}

// whole returns the snapshot at the end of a run, which also has the time series.
func (c *counts) whole(elapsed time.Duration) *Snapshot {
	s := c.snapshot(elapsed)
	c.lock.Lock()
	defer c.lock.Unlock()
	for time.Duration(len(c.series.slots))*c.series.interval < elapsed {
		c.series.slots = append(c.series.slots, slot{Latency: Durations{}})
	}
	s.Slots = c.series.slots
	return s
}

// emptySnapshot returns a snapshot to merge others into.
func emptySnapshot() *Snapshot { return newCounts(time.Now(), time.Second).snapshot(0) }

// merge adds the counters of another target or process from the same time. It adds peaks as
// if they had happened at the same moment.
func (s *Snapshot) merge(o *Snapshot) {
	s.Elapsed = max(s.Elapsed, o.Elapsed)
	s.Open += o.Open
	s.Peak += o.Peak
	s.Opened += o.Opened
	s.Exchanges += o.Exchanges
	s.EndedIdle += o.EndedIdle
	s.Received += o.Received
	s.Sent += o.Sent
	s.Connect.merge(o.Connect)
	s.Handshake.merge(o.Handshake)
	s.Upgrade.merge(o.Upgrade)
	s.Exchange.merge(o.Exchange)
	s.Due += o.Due
	s.Waited.merge(o.Waited)
	s.Behind.merge(o.Behind)
	s.GivenUp.merge(o.GivenUp)
	add(s.States, o.States)
	add(s.Statuses, o.Statuses)
	add(s.GRPC, o.GRPC)
	s.Slots = mergeSlots(s.Slots, o.Slots)
	for role, outcomes := range o.Outcomes {
		if s.Outcomes[role] == nil {
			s.Outcomes[role] = map[string]int64{}
		}
		add(s.Outcomes[role], outcomes)
	}
	for kind, a := range o.Anomalies {
		if s.Anomalies[kind] == nil {
			s.Anomalies[kind] = &Anomaly{Kind: kind, What: a.What}
		}
		s.Anomalies[kind].Count += a.Count
		s.Anomalies[kind].Examples = append(s.Anomalies[kind].Examples, a.Examples...)
	}
}

func add[K comparable](to, from map[K]int64) {
	for k, n := range from {
		to[k] += n
	}
}
