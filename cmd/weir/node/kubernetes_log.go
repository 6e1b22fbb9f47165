package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file logs the events of a cluster, each once.

// troubles are the errors for which objects cannot be listed or watched. weir logs each
// error once, until all objects can be watched again.
type troubles struct {
	log *zap.Logger

	mu     sync.Mutex
	said   map[string]bool
	newest error
}

// begin records that a kind cannot be listed or watched.
func (t *troubles) begin(kind kube.Kind, err error, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.said == nil {
		t.said = map[string]bool{}
	}
	t.newest = err
	why := rootOf(err)
	if t.said[why] {
		return
	}
	t.said[why] = true
	if known {
		t.log.Warn("weir cannot watch the cluster; the known objects stay in effect", zap.String("kind", string(kind)), zap.Error(err))
		return
	}
	t.log.Error("weir cannot read the cluster's objects, and is not ready until it can", zap.String("kind", string(kind)), zap.Error(err))
}

// rootOf returns the error without the name of the requested kind, so that kinds can be
// compared.
func rootOf(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// over records that all kinds can be watched again.
func (t *troubles) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said, t.newest = nil, nil
	t.log.Info("weir can watch the cluster again")
}

// last returns the newest error; nil: there is none.
func (t *troubles) last() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.newest
}

// tellKnown logs once that all objects are known and in effect. They may have become
// known before the cluster was put into effect, or may take effect only after another
// try.
func (c *cluster) tellKnown() {
	if c.told || !c.objects.known() {
		return
	}
	c.told = true
	r := c.objects.routing
	c.s.log.Info("weir has read all objects of the cluster and serves them", zap.Int("ingresses", len(r.Ingresses)),
		zap.Int("routes", len(r.Routes)), zap.Int("backends", len(r.Backends)), zap.Int("faults", len(r.Events)))
	if file := c.s.fileInEffect(); file.NodeExplicit && c.lastNode().Name == "" {
		c.s.log.Warn("the cluster has no Node with this name, so weir notices no cordon and treats no Pod as local; set node from the downward API", zap.String("node", file.Node))
	}
}

// tellUnbound logs each port that weir cannot bind, once, and schedules another try.
func (c *cluster) tellUnbound(o *objects) {
	before := c.unbound
	c.unbound = map[string]string{}
	for name, err := range o.unbound {
		c.unbound[name] = err.Error()
		if before[name] != err.Error() {
			c.s.log.Error("weir cannot listen on "+o.portOf(name)+", and will try again", zap.String("listener", name), zap.Error(err))
		}
	}
	for name := range before {
		if o.has(name) && o.unbound[name] == nil {
			c.s.log.Info("weir listens on "+o.portOf(name)+" now", zap.String("listener", name))
		}
	}
	if len(o.unbound) > 0 {
		ports := slices.Clone(o.routing.AllListeners())
		ports = slices.DeleteFunc(ports, func(l config.Listener) bool { return o.unbound[l.Name] == nil })
		c.wanted.Store(&ports)
		c.tryLater()
	}
}

// portOf names in a log what gives weir a listener.
func (o *objects) portOf(listener string) string {
	if slices.ContainsFunc(o.routing.Listeners, func(l config.Listener) bool { return l.Name == listener }) {
		return "a port of the cluster's ConfigMap"
	}
	return "an address of a Gateway"
}

// tellFaults logs the errors of objects. It logs each error once while it lasts.
func (c *cluster) tellFaults(events []event.Event) {
	before := c.faulty
	c.faulty = make(map[event.Event]bool, len(events))
	for _, e := range events {
		c.faulty[e] = true
		if !before[e] && c.s.faults.Allow(e.Object.Kind+" "+string(e.Reason)) {
			c.s.log.Warn("an object of the cluster has an error", zap.String("kind", e.Object.Kind),
				zap.String("object", nameOf(e)), zap.String("reason", string(e.Reason)), zap.String("error", e.Message))
		}
	}
}

func (s *server) moreFaults(key string, held int) {
	kind, reason, _ := strings.Cut(key, " ")
	s.log.Warn("more objects of the cluster have errors", zap.String("kind", kind), zap.String("reason", reason), zap.Int("more", held))
}

func nameOf(e event.Event) string {
	return strings.TrimPrefix(e.Object.Namespace+"/"+e.Object.Name, "/")
}

// objectsPanicked reports a bug of weir in the conversion of objects to routes.
func (s *server) objectsPanicked(value any, stack []byte) {
	s.metrics.panics.Inc()
	if s.limited.Allow(objectsPanicLine) {
		s.log.Error(objectsPanicLine, zap.String("panic", fmt.Sprint(value)), zap.ByteString("stack", stack))
	}
}

const objectsPanicLine = "changes of the cluster's objects failed to take effect because of a bug in weir; please report it"
