package node

import (
	"cmp"
	"errors"
	"fmt"
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
		s.log.Debug("a connection closed without sending a byte, as a load balancer's TCP check does",
			zap.String("listener", r.Listener), zap.Stringer("peer", r.Peer))
		return
	}
	s.refused.Count(time.Now(), r.Listener, r.Reason.String(), func() (string, string) { return r.Client.String(), errorText(r.Err) })
	if errors.Is(r.Err, header.ErrMixedFamilies) && s.limited.Allow(mixedLine) { // such a sender loses all its IPv6 clients, always
		s.log.Warn(mixedLine, zap.String("listener", r.Listener), zap.Stringer("peer", r.Peer), zap.Error(r.Err))
	}
	if s.lines.Load() != nil && s.refusals.Allow(r.Listener+"\x00"+r.Reason.String()) {
		s.logRecord(&accesslog.Record{Kind: "refused", Listener: r.Listener, Origin: &conn.Origin{Client: r.Client, Peer: r.Peer},
			Reason: r.Reason.String(), Err: r.Err})
	}
}

const mixedLine = "a PROXY header has addresses of two families"

// refusedByProxy logs a connection that ended before its first request or tunnel.
func (s *server) refusedByProxy(r *accesslog.Record) {
	s.refused.Count(time.Now(), r.Listener, cmp.Or(r.Result, r.Reason), func() (string, string) { return clientOf(r), errorText(r.Err) })
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
