package main

import (
	"math"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/pressure"
)

// watchResources keeps the process within its memory and descriptors for as
// long as it runs.
func (s *server) watchResources(m *pressure.Memory) {
	s.tellMemory("memory", m)
	m.Changed = func(m *pressure.Memory) { s.tellMemory("the cgroup's memory limit has changed", m) }
	w := pressure.New(pressure.Options{
		Resources:   []pressure.Resource{m.Resource(), pressure.Descriptors(s.descriptors, s.inFlight)},
		Connections: s.tracker, Gate: s.limits, Leave: s.proxy.Leave, CutTunnels: s.proxy.CutTunnels,
		EndIdle: (*conn.Conn).EndIdle, Notify: s.resourceEvent, Metrics: pressure.NewMetrics(s.registry),
	})
	go w.Run(s.ctx)
}

// tellMemory says what memory is limited to, and by whom.
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

// descriptors is about how many are open, where the kernel does not say it.
func (s *server) descriptors() int {
	const others = 64 // listeners, files, pipes and the health port's reserve
	n := s.tracker.Open() + others
	for _, b := range s.backends.Status() {
		n += int(b.InFlight)
		for _, e := range b.Endpoints {
			n += e.Idle + e.Shared
		}
	}
	return n
}

// inFlight is how many exchanges and tunnels have an endpoint.
func (s *server) inFlight() (n int) {
	for _, b := range s.backends.Status() {
		n += int(b.InFlight)
	}
	return n
}

// resourceLines say what begins, what ends, and what would help.
var resourceLines = map[string]map[pressure.Step][2]string{
	"memory": {
		pressure.Shed: {"memory runs short: connections that were idle for longest are ended; raise the container's memory limit or GOMEMLIMIT, or set limits.max_connections",
			"memory suffices again"},
		pressure.Pause: {"memory is used up: new connections wait to be accepted; raise the container's memory limit or GOMEMLIMIT, or set limits.max_connections",
			"new connections are accepted again, as memory suffices"},
	},
	"descriptors": {
		pressure.Shed: {"descriptors run short: connections that were idle for longest are ended; raise the limit of open files (ulimit -n, or LimitNOFILE of the systemd unit), or set limits.max_connections",
			"descriptors suffice again"},
		pressure.Pause: {"descriptors are used up: new connections wait to be accepted; raise the limit of open files (ulimit -n, or LimitNOFILE of the systemd unit), or set limits.max_connections",
			"new connections are accepted again, as descriptors suffice"},
	},
}

// resourceEvent logs the begin and the end of a step.
func (s *server) resourceEvent(e pressure.Event) {
	lines := resourceLines[e.Resource][e.Step]
	fields := []zap.Field{zap.Int64("used", e.Reading.Used), zap.Int64("full", e.Reading.Full)}
	if e.Begins {
		s.log.Warn(lines[0], append(fields, zap.Int("connections", s.tracker.Open()))...)
		return
	}
	fields = append(fields, zap.Duration("lasted", e.Lasted))
	if e.Step == pressure.Shed {
		fields = append(fields, zap.Int("ended_http1", e.Ended.HTTP1), zap.Int("ended_http2", e.Ended.HTTP2), zap.Int("ended_tunnels", e.Ended.Tunnels))
	}
	s.log.Info(lines[1], fields...)
}
