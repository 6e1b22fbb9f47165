package main

import (
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/proxy/backend"
)

// What the parts tell of goes to the logs here, once, and never so often that
// a stranger could fill the disk with it.

func (s *server) logRecord(r *proxy.Record) {
	if a := s.access.Load(); a != nil {
		a.Info("", r.Fields()...)
	}
}

// refusedByListener logs a connection that ended before its header was through.
func (s *server) refusedByListener(r listener.Refusal) {
	if r.Silent {
		s.log.Debug("a connection came without a byte, as a load balancer's TCP check does",
			zap.String("listener", r.Listener), zap.Stringer("peer", r.Peer))
		return
	}
	a := s.access.Load()
	if a != nil && s.refusals.Allow(r.Listener+"\x00"+r.Reason.String()) {
		a.Info("", proxy.RefusedFields(r.Client, r.Peer, r.Listener, r.Reason.String(), r.Err)...)
	}
}

// refusedByProxy logs a connection that ended before there was a request or tunnel.
func (s *server) refusedByProxy(r *proxy.Record) {
	a := s.access.Load()
	if a != nil && s.refusals.Allow(r.Listener+"\x00"+r.Reason+"\x00"+r.Result) {
		a.Info("", r.Fields()...)
	}
}

func (s *server) moreRefusals(key string, held int) {
	l, reason, _ := strings.Cut(key, "\x00")
	reason, result, _ := strings.Cut(reason, "\x00")
	fields := []zap.Field{zap.String("kind", "refused"), zap.String("listener", l), zap.String("reason", reason), zap.Int("more", held)}
	if result != "" {
		fields = append(fields, zap.String("tls_result", result))
	}
	if a := s.access.Load(); a != nil {
		a.Info("", fields...)
	}
}

// panicked tells of a connection that a fault of weir's own ended.
func (s *server) panicked(listener string, value any, stack []byte) {
	s.metrics.panics.Inc()
	if s.limited.Allow(panicLine) {
		s.log.Error(panicLine, zap.String("listener", listener), zap.String("panic", fmt.Sprint(value)), zap.ByteString("stack", stack))
	}
}

const panicLine = "a connection was ended by a fault of weir's own; please report it"

func (s *server) acceptTrouble(err error) {
	s.log.Error("connections wait to be accepted", zap.Error(err))
}

// backendEvent logs what happens to endpoints.
func (s *server) backendEvent(e backend.Event) {
	key := string(e.Kind) + "\x00" + e.Backend
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
	case backend.EndpointReady, backend.EndpointReturned, backend.LookupRecovered:
		s.log.Info(string(e.Kind), fields...)
	default:
		s.log.Warn(string(e.Kind), fields...)
	}
}

func (s *server) moreLines(key string, held int) {
	kind, name, _ := strings.Cut(key, "\x00")
	s.log.Warn(kind+", more of them", zap.String("backend", name), zap.Int("more", held))
}
