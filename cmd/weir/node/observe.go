package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/tls/acme"
)

// observed is what weir remembers for the status page.
type observed struct {
	started time.Time
	history status.History
	refused status.Refusals
	events  status.Events
	issuing issuing
	rates   status.Watch
	overview
}

// begin returns log with a copy of its lines for the page.
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
			s.rates.Forget(now)
		case <-ctx.Done():
			return
		}
	}
}

// countRefusals notes the responses of weir that refused requests, or that had no endpoint.
func (s *server) countRefusals(now time.Time) {
	type sum struct {
		n, most uint64
		route   string // with the most of them
	}
	sums := make(map[string]*sum)
	s.proxy.Metrics.EachRefusal(func(route, reason string, n uint64) {
		of := sums[reason]
		if of == nil {
			of = new(sum)
			sums[reason] = of
		}
		if of.n += n; n > of.most || of.most == 0 {
			of.most, of.route = n, route
		}
	})
	for reason, of := range sums {
		s.refused.Requests(now, of.route, reason, of.n)
	}
}

func clientOf(r *accesslog.Record) string {
	if r.Origin == nil || !r.Origin.Client.IsValid() {
		return ""
	}
	return r.Origin.Client.String()
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return cut(err.Error())
}

// eventCore adds the lines of weir's own log to the events. They are few: their rate is limited.
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

// issuing remembers the last attempts to obtain certificates that did not succeed.
type issuing struct {
	mu    sync.Mutex
	names map[string]acme.Event
}

func (i *issuing) note(e acme.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
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
		i.names[e.Name] = e
	}
}

// list returns the attempts for names that certificates still have. cfg is the configuration in effect.
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
		onDemand = onDemand || len(c.ACME.Hosts) == 0
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

// residentMemory returns the resident memory of this process, in bytes; 0: unknown.
func residentMemory() uint64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(data)
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(string(fields[1]), 10, 64)
	return pages * uint64(os.Getpagesize())
}
