package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/tls/acme"
)

// observed has the memory of weir for the status page.
type observed struct {
	started time.Time
	history status.History
	refused status.Refusals
	events  status.Events
	issuing issuing
	lasting lasting
	overview
}

// begin returns a logger that writes to log and also adds an event for each line.
func (o *observed) begin(log *zap.Logger) *zap.Logger {
	o.started = time.Now()
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, &eventCore{events: &o.events}) }))
}

// observe takes samples for the last hour until ctx ends.
func (s *server) observe(ctx context.Context) {
	s.history.Add(s.started, s.proxy.Metrics.Total(), s.tracker.Open())
	tick := time.NewTicker(status.Every)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.history.Add(now, s.proxy.Metrics.Total(), s.tracker.Open())
			s.countRefusals(now)
			s.overview.forget(now)
		case <-ctx.Done():
			return
		}
	}
}

// countRefusals counts the requests that weir refused, or for which it had no endpoint.
func (s *server) countRefusals(now time.Time) {
	all, most := make(map[string]status.RefusedRequests), make(map[string]uint64)
	s.proxy.Metrics.EachRefusal(func(route, reason string, n uint64) {
		of := all[reason]
		if of.Count += n; n > most[reason] {
			of.Route, most[reason] = route, n
		}
		all[reason] = of
	})
	s.refused.CountRequests(now, all)
}

// clientOf returns the client address of a record; empty: it is not known.
func clientOf(r *accesslog.Record) string {
	if client := r.ClientAddress(); client.IsValid() {
		return client.String()
	}
	return ""
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return cut(err.Error())
}

// eventCore adds an event for each line of weir's own log. The rate of such lines is limited.
type eventCore struct {
	events *status.Events
	with   []zapcore.Field
}

// mostEventText limits the text of an event, in bytes.
const mostEventText = 500

func (c *eventCore) Enabled(l zapcore.Level) bool { return l >= zapcore.InfoLevel }
func (c *eventCore) Sync() error                  { return nil }

func (c *eventCore) With(f []zapcore.Field) zapcore.Core {
	return &eventCore{c.events, append(c.with[:len(c.with):len(c.with)], f...)}
}

func (c *eventCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *eventCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	b := bytes.NewBufferString(e.Message)
	values := zapcore.NewMapObjectEncoder()
	between := ": "
	for _, f := range append(c.with[:len(c.with):len(c.with)], fields...) {
		f.AddTo(values)
		if v, ok := values.Fields[f.Key]; ok && f.Key != "stack" {
			fmt.Fprintf(b, "%s%s %v", between, f.Key, v)
			between = ", "
		}
	}
	text := b.String()
	c.events.Add(e.Time, e.Level >= zapcore.WarnLevel, text[:min(len(text), mostEventText)])
	return nil
}

// issuing remembers the last failed attempt to obtain a certificate, for each name.
type issuing struct {
	changed atomic.Bool // since the status page last read it
	mu      sync.Mutex
	names   map[string]acme.Event
}

// of returns the failed attempt for a name at an authority; the zero Event: none is known.
func (i *issuing) of(name, directory string) acme.Event {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e := i.names[name]; e.Directory == directory {
		return e
	}
	return acme.Event{}
}

// errEarlier takes the place of the error if the storage has no error of the last attempt, because the process
// ended during its attempt.
var errEarlier = errors.New("an earlier attempt failed, or another process requests the certificate")

func (i *issuing) note(e acme.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.changed.Store(true)
	switch e.Kind {
	case acme.Obtained, acme.Renewed, acme.Found:
		delete(i.names, e.Name)
	case acme.Failed, acme.Waiting, acme.StorageError:
		if _, known := i.names[e.Name]; !known && len(i.names) >= maxRecentlyLogged {
			return
		}
		if i.names == nil {
			i.names = make(map[string]acme.Event)
		}
		if e.Err == nil {
			e.Err = errEarlier
		}
		i.names[e.Name] = e
	}
}

// list returns the failed attempts by name. It forgets the names that cfg, the configuration in effect, no
// longer has.
func (i *issuing) list(cfg *config.Config) map[string]acme.Event {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := make(map[string]acme.Event, len(i.names))
	if len(i.names) == 0 {
		return all
	}
	onDemand := false
	for _, c := range cfg.Certificates {
		if c.ACME == nil {
			continue
		}
		onDemand = onDemand || c.ACME.OnDemand != nil
		for _, h := range c.ACME.Hosts {
			if e, ok := i.names[h]; ok {
				all[h] = e
			}
		}
	}
	for name, e := range i.names {
		if onDemand && e.OnDemand {
			all[name] = e
		} else if _, used := all[name]; !used {
			delete(i.names, name)
		}
	}
	return all
}
