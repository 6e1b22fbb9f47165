package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/backend"
)

// This file logs the events of all parts, each once, and with a limited rate, so that a
// stranger cannot fill the disk.

// logRecord writes a line of the access log. If a reload replaces the log at this moment, the
// line goes to the new one.
func (s *server) logRecord(r *accesslog.Record) {
	for a := s.lines.Load(); a != nil && !a.Put(a.format, r); {
		next := s.lines.Load()
		if next == a {
			return // weir has ended
		}
		a = next
	}
}

// refusedByListener logs a connection that ended before its PROXY header was complete.
func (s *server) refusedByListener(r listener.Refusal) {
	if r.Silent {
		if s.often.Allow(silentLine + "\x00" + r.Listener + "\x00" + r.Reason.String()) {
			s.log.Info(silentLine, zap.String("listener", r.Listener), zap.Stringer("peer", r.Peer), zap.Stringer("reason", r.Reason))
		}
		return
	}
	s.tellRefused(r.Listener, r.Reason.String(), r.Peer, r.Client, r.Err)
	s.refused.Count(time.Now(), r.Listener, r.Reason.String(), func() (string, string) { return r.Client.String(), errorText(r.Err) })
	if errors.Is(r.Err, header.ErrMixedFamilies) && s.limited.Allow(mixedLine) { // such a sender loses all its IPv6 clients, always
		s.log.Warn(mixedLine, zap.String("listener", r.Listener), zap.Stringer("peer", r.Peer), zap.Error(r.Err))
	}
	if s.lines.Load() != nil && s.refusals.Allow(r.Listener+"\x00"+r.Reason.String()) {
		s.logRecord(&accesslog.Record{Kind: "refused", Listener: r.Listener, Origin: &conn.Origin{Client: r.Client, Peer: r.Peer},
			Reason: r.Reason.String(), Err: r.Err})
	}
}

const (
	silentLine  = "a connection closed without sending a byte, as a load balancer's TCP check does"
	refusedLine = "a connection was refused"
)

// tellRefused writes the first refused connection of each listener and reason to weir's own log.
func (s *server) tellRefused(listener, reason string, peer, client netip.AddrPort, err error) {
	if !s.often.Allow(refusedLine + "\x00" + listener + "\x00" + reason) {
		return
	}
	fields := []zap.Field{zap.String("listener", listener), zap.String("reason", reason), zap.Stringer("peer", peer)}
	if client != peer {
		fields = append(fields, zap.Stringer("client", client))
	}
	s.log.Info(refusedLine, append(fields, zap.Error(err))...)
}

// endpointFailed logs the first request, or tunnel, of each backend and reason that failed because of an
// endpoint.
func (s *server) endpointFailed(r *accesslog.Record) {
	if !s.often.Allow(failedLine + "\x00" + r.Backend + "\x00" + r.Reason) {
		return
	}
	fields := []zap.Field{zap.String("backend", r.Backend), zap.String("reason", r.Reason), zap.String("route", r.Route), zap.String("endpoint", r.Endpoint)}
	if r.Request != nil {
		host, _ := r.HostAndPort()
		fields = append(fields, zap.ByteString("host", host), zap.Int("status", r.Status))
	}
	s.log.Warn(failedLine, append(fields, zap.Error(r.Err))...)
}

const failedLine = "an endpoint failed a request"

// moreOften writes how many more events of a kind there were in the last minute.
func (s *server) moreOften(key string, held int) {
	all := strings.Split(key, "\x00")
	if len(all) < 3 {
		s.log.Warn("connections were refused, or requests failed, for many other reasons", zap.Int("more", held))
		return
	}
	line, where, fields := all[0], "listener", []zap.Field{zap.String("reason", all[2]), zap.Int("more", held)}
	level := zap.InfoLevel
	switch line {
	case silentLine:
		level = zap.DebugLevel // checks go on for ever
	case failedLine:
		level, where = zap.WarnLevel, "backend"
	}
	s.log.Log(level, line+", more of these", append([]zap.Field{zap.String(where, all[1])}, fields...)...)
}

const mixedLine = "a PROXY header has addresses of two families"

// refusedByProxy logs a connection that ended before its first request or tunnel.
func (s *server) refusedByProxy(r *accesslog.Record) {
	reason := cmp.Or(r.Result, r.Reason)
	s.refused.Count(time.Now(), r.Listener, reason, func() (string, string) { return clientOf(r), errorText(r.Err) })
	if r.Origin != nil {
		s.tellRefused(r.Listener, reason, r.Origin.Peer, r.Origin.Client, r.Err)
	}
	if s.lines.Load() != nil && s.refusals.Allow(r.Listener+"\x00"+r.Reason+"\x00"+r.Result) {
		s.logRecord(r)
	}
}

func (s *server) moreRefusals(key string, held int) {
	l, reason, _ := strings.Cut(key, "\x00")
	reason, result, _ := strings.Cut(reason, "\x00")
	s.logRecord(&accesslog.Record{Kind: "refused", Listener: l, Reason: reason, Result: result, More: held})
}

// panicked reports a connection that ended because of a bug of weir.
func (s *server) panicked(listener string, value any, stack []byte) {
	s.metrics.panics.Inc()
	if s.limited.Allow(panicLine) {
		s.log.Error(panicLine, zap.String("listener", listener), zap.String("panic", fmt.Sprint(value)), zap.ByteString("stack", stack))
	}
}

const panicLine = "a bug in weir ended a connection; please report it"

// looped logs a request or a connection that came back to weir too often.
func (s *server) looped(r *accesslog.Record) {
	if s.limited.Allow(loopLine + "\x00" + r.Backend) {
		s.log.Warn(loopLine, zap.String("listener", r.Listener), zap.String("route", r.Route), zap.String("backend", r.Backend), zap.Error(r.Err))
	}
}

const loopLine = "a route leads back to weir"

// guardFailed logs that a guard of a route could not decide on a request.
func (s *server) guardFailed(guard string, r *accesslog.Record) {
	if s.guarded.Allow(r.Route + "\x00" + guard) {
		s.log.Error(guardLine, zap.String("route", r.Route), zap.String("guard", guard), zap.String("reason", r.Reason), zap.Error(r.Err))
	}
}

func (s *server) moreGuardFailures(key string, held int) {
	route, guard, _ := strings.Cut(key, "\x00")
	s.log.Error(guardLine+", more of these", zap.String("route", route), zap.String("guard", guard), zap.Int("more", held))
}

const guardLine = "a request was refused because a guard could not decide"

func (s *server) acceptTrouble(err error) {
	s.log.Error("connections wait because weir cannot accept them", zap.Error(err))
}

// backendEvent logs events of endpoints.
func (s *server) backendEvent(e backend.Event) {
	key := string(e.Kind) + "\x00" + e.Backend
	if e.Namespace != "" && (e.Kind == backend.BackendDown || e.Kind == backend.BackendRecovered) {
		key = string(e.Kind) + "\x00" + e.Namespace + "/" // a tenant can have any number of backends
	}
	if !s.limited.Allow(key) {
		return
	}
	fields := []zap.Field{zap.String("backend", e.Backend)}
	for k, v := range map[string]string{"endpoint": e.Endpoint, "host": e.Host, "reason": e.Reason} {
		if v != "" {
			fields = append(fields, zap.String(k, v))
		}
	}
	if e.Err != nil {
		fields = append(fields, zap.Error(e.Err))
	}
	switch e.Kind {
	case backend.EndpointReady, backend.EndpointReturned, backend.LookupRecovered, backend.BackendRecovered:
		s.log.Info(string(e.Kind), fields...)
	default:
		s.log.Warn(string(e.Kind), fields...)
	}
}

func (s *server) moreLines(key string, held int) {
	kind, name, _ := strings.Cut(key, "\x00")
	s.log.Warn(kind+", more of these", zap.String("backend", name), zap.Int("more", held))
}
