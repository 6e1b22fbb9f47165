package node

import (
	"math"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/listener/pressure"
)

// watchResources keeps the process within its limits for memory and descriptors until the
// process ends.
func (s *server) watchResources(m *pressure.Memory) {
	s.tellMemory("memory limit", m)
	s.budget = m
	m.Limited = s.limitMemory
	m.Changed = func(m *pressure.Memory) { s.tellMemory("the cgroup's memory limit has changed", m) }
	w := pressure.New(pressure.Options{
		Resources:   []pressure.Resource{m.Resource(), pressure.Descriptors(s.descriptors, s.inFlight)},
		Connections: s.tracker, Gate: s.limits, GoAway: s.proxy.GoAway, CutTunnels: s.proxy.CutTunnels,
		Exchanges: s.proxy.Exchanges, Waiting: s.limits.Waiting, Allow: s.memory.Allow, Explained: s.memory.Used,
		EndIdle: (*conn.Conn).EndIdle, Notify: s.resourceEvent, Metrics: pressure.NewMetrics(s.registry),
	})
	go w.Run(s.ctx)
}

// The share of the memory account, in percent of the runtime's memory limit or, without a
// limit, of the machine's memory. The rest is for idle connections, connections that are
// being opened, everything else, and garbage.
const (
	shareOfLimit   = 50
	shareOfMachine = 25
)

// limitMemory sets the limit of the memory account: the configured one, or a share of the
// available memory.
func (s *server) limitMemory() {
	limit := debug.SetMemoryLimit(-1) / 100 * shareOfLimit
	whole := limit > math.MaxInt64/200*shareOfLimit // the runtime's limit is divided already
	if whole {
		limit = machineMemory() / 100 * shareOfMachine
	}
	if cfg := s.configInEffect(); cfg != nil && cfg.Limits.Memory > 0 {
		limit, whole = cfg.Limits.Memory, true
	}
	if parts := s.beside.Load(); whole && parts > 0 { // connections keep the memory that they hold
		limit = min(limit, max(limit/parts, s.memory.Used()/8*9))
	}
	s.memory.SetLimit(limit)
}

// accountProblem is the key of the problem of a full memory account.
const accountProblem = "memory account"

// memoryEvent logs the beginning and the end of a shortage in the memory account.
func (s *server) memoryEvent(e memory.Event) {
	fields := []zap.Field{zap.Int64("used", e.Used), zap.Int64("limit", e.Limit)}
	if e.Begins {
		s.lasting.begins(accountProblem, "the memory account is full: weir refuses requests, and closes connections that hold most")
		s.log.Warn("the memory account is full: weir refuses requests of connections that hold more than their share, and closes the connections that hold most; raise the container's memory limit or GOMEMLIMIT, or set limits.memory",
			append(fields, zap.Stringer("largest_network", e.Network), zap.Int64("largest_network_bytes", e.Holds))...)
		return
	}
	s.lasting.ends(accountProblem)
	s.log.Info("the memory account has room again", append(fields, zap.Duration("lasted", e.Lasted),
		zap.Int64("refused", e.Refused), zap.Int64("ended", e.Ended))...)
}

// tellMemory logs the memory limit, and what sets it.
func (s *server) tellMemory(line string, m *pressure.Memory) {
	fields := []zap.Field{zap.String("limit_from", m.Source())}
	if now := debug.SetMemoryLimit(-1); now != math.MaxInt64 {
		fields = append(fields, zap.Int64("gomemlimit_bytes", now))
	}
	if limit := m.CgroupLimit(); limit > 0 {
		fields = append(fields, zap.Int64("cgroup_limit_bytes", limit))
	}
	if err := m.Err(); err != nil {
		s.log.Warn(line, append(fields, zap.Error(err))...)
		return
	}
	s.log.Info(line, fields...)
}

// descriptors estimates the number of open descriptors, if the kernel does not report it.
func (s *server) descriptors() int {
	const others = 64 // listeners, files, pipes and the reserve of the ports
	n := s.tracker.Open() + others
	for _, b := range s.backends.Status() {
		n += int(b.InFlight)
		for _, e := range b.Endpoints {
			n += e.Idle + e.Shared
		}
	}
	return n
}

// inFlight returns the number of exchanges and tunnels that have an endpoint, and a
// descriptor for it.
func (s *server) inFlight() (n int) {
	for _, b := range s.backends.Status() {
		n += int(b.InFlight)
	}
	return n - s.backends.WaitingDials()
}

// resourceLines are the log lines for the beginning and the end of a step. They include
// what would help.
var resourceLines = map[string]map[pressure.Step][2]string{
	"memory": {
		pressure.Shed: {"memory runs short: weir closes the connections that were idle for longest; raise the container's memory limit or GOMEMLIMIT, or set limits.max_connections",
			"memory no longer runs short"},
		pressure.Pause: {"memory is used up: new connections wait to be accepted; raise the container's memory limit or GOMEMLIMIT, or set limits.max_connections",
			"memory is no longer used up: weir accepts new connections again"},
		pressure.Share: {"memory is shared out: weir refuses new connections of the client networks that hold most, and closes some of their connections, to serve others; raise the container's memory limit or GOMEMLIMIT",
			"memory is no longer shared out"},
		pressure.Cut: {"memory runs out, and the memory accounts explain only a part of it: weir closes the connections with the most open requests; raise the container's memory limit or GOMEMLIMIT, and report this line",
			"memory no longer runs out"},
	},
	"descriptors": {
		pressure.Shed: {"descriptors run short: weir closes the connections that were idle for longest; raise the limit of open files (ulimit -n, or LimitNOFILE of the systemd unit), or set limits.max_connections",
			"descriptors no longer run short"},
		pressure.Pause: {"descriptors are used up: new connections wait to be accepted; raise the limit of open files (ulimit -n, or LimitNOFILE of the systemd unit), or set limits.max_connections",
			"descriptors are no longer used up: weir accepts new connections again"},
		pressure.Share: {"descriptors are shared out: weir refuses new connections of the client networks that hold most, and closes some of their connections, to serve others; raise the limit of open files (ulimit -n, or LimitNOFILE of the systemd unit)",
			"descriptors are no longer shared out"},
	},
}

// resourceEvent logs the beginning and the end of a step.
func (s *server) resourceEvent(e pressure.Event) {
	lines := resourceLines[e.Resource][e.Step]
	fields := []zap.Field{zap.Int64("used", e.Reading.Used), zap.Int64("full", e.Reading.Full)}
	if e.Begins && e.Step == pressure.Share {
		fields = append(fields, zap.Stringer("largest_network", e.Largest))
	}
	if e.Begins && e.Step == pressure.Cut {
		fields = append(fields, zap.Int64("explained", e.Explained))
	}
	what := [2]any{e.Resource, e.Step}
	if e.Begins {
		s.lasting.begins(what, lines[0])
		s.log.Warn(lines[0], append(fields, zap.Int("connections", s.tracker.Open()))...)
		return
	}
	s.lasting.ends(what)
	fields = append(fields, zap.Duration("lasted", e.Lasted))
	switch e.Step {
	case pressure.Share:
		fields = append(fields, zap.Int("refused", e.Refused), zap.Int("ended_busy", e.Ended.Busy))
	case pressure.Cut:
		fields = append(fields, zap.Int("ended_busy", e.Ended.Busy))
	case pressure.Shed:
		fields = append(fields, zap.Int("ended_http1", e.Ended.HTTP1), zap.Int("ended_http2", e.Ended.HTTP2), zap.Int("ended_tunnels", e.Ended.Tunnels))
	}
	s.log.Info(lines[1], fields...)
}
