package node

import (
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/listener/sockets"
	"github.com/weirproxy/weir/pause"
)

// retryObjects is the time until weir tries again to put objects into effect.
const retryObjects = 10 * time.Second

// changed is called by the Source for each change. While weir serves the objects of
// another cluster, changed only records the change; try later uses it. Changes of endpoints may come
// while a change of routes takes effect.
func (c *cluster) changed(ch kube.Change) {
	first := !c.source.HasSynced()
	if first {
		defer close(c.known)
	}
	defer c.tidy()
	if c.s.current() != c {
		return
	}
	c.takeNode(ch.Node)
	switch {
	case ch.Routing != nil:
		c.objects = c.newObjects(ch)
		if err := c.put(c.objects); err != nil {
			c.failed(err)
			return
		}
		c.tellKnown()
		if first {
			return // the time since the first object was seen has no meaning
		}
	case ch.Endpoints != nil:
		c.putEndpoints(ch.Endpoints)
	}
	c.s.objects.Applied(&ch)
	c.s.log.Debug("changes of the cluster's objects are in effect", zap.Bool("routes", ch.Routing != nil),
		zap.Int("backends", len(ch.Endpoints)), zap.Duration("after", time.Since(ch.Since)))
}

// put puts objects into effect together with the file that is already in effect. It prepares the plan, which may wait for
// name servers and sockets, without the Source's lock for endpoints: they change meanwhile.
func (c *cluster) put(o *objects) error {
	p := &plan{file: c.s.fileInEffect(), again: true, objects: o}
	err := c.s.putBy(p, func() error {
		return c.source.WithNewest(func(backends []*config.Backend) error {
			p.renew(backends)
			return c.s.commit(p)
		})
	})
	if err != nil {
		return err
	}
	c.took(o)
	return nil
}

// failed logs that objects are not in effect, and schedules another try.
func (c *cluster) failed(err error) {
	if errors.Is(err, errEnded) {
		return
	}
	c.s.log.Error("changes of the cluster's objects failed to take effect; the previous ones stay in effect", zap.Error(err))
	c.wanted.Store(nil) // the failure is not limited to ports
	c.tryLater()
}

// putEndpoints sets the endpoints of backends, and changes nothing else.
func (c *cluster) putEndpoints(changed map[string][]config.Endpoint) {
	c.s.change.Lock() // otherwise weir could serve another cluster by now
	defer c.s.change.Unlock()
	if c.s.cluster != c {
		return
	}
	for name, endpoints := range changed {
		if c.s.backends.Backend(name) == nil {
			continue // its routes are not in effect; the backend comes with them
		}
		if err := c.s.backends.UpdateEndpoints(name, endpoints); err != nil {
			c.s.log.Error("changes of the cluster's endpoints failed to take effect; the previous ones stay in effect", zap.Error(err))
		}
		c.noticeEmpty(name)
	}
}

// takeNode applies what the cluster reports about this node; nil: no change.
func (c *cluster) takeNode(n *kube.Node) {
	if n == nil {
		return
	}
	c.s.change.Lock() // otherwise weir could serve another cluster by now, which has told of its node
	defer c.s.change.Unlock()
	if c.s.cluster != c {
		return
	}
	c.s.node.SetLeaving(n.Leaving)
	c.s.backends.SetZone(n.Zone)
	switch {
	case slices.Equal(n.Leaving, c.lastNode().Leaving):
	case len(n.Leaving) > 0:
		c.s.log.Warn("the cluster takes this node out of service", zap.Strings("reasons", n.Leaving))
	default:
		c.s.log.Info("the cluster puts this node into service again")
	}
	c.node.Store(n)
}

// lastNode is what the cluster reported last about this node.
func (c *cluster) lastNode() kube.Node {
	if n := c.node.Load(); n != nil {
		return *n
	}
	return kube.Node{}
}

// tryLater schedules one more try. If only ports are missing, the try waits until one of
// them is free.
func (c *cluster) tryLater() {
	if !c.retrying {
		c.retrying = true
		c.waitToTry()
	}
}

func (c *cluster) waitToTry() {
	time.AfterFunc(c.s.retryAfter, func() {
		switch ports := c.wanted.Load(); {
		case c.s.current() != c:
		case ports != nil && !slices.ContainsFunc(*ports, canBind):
			c.waitToTry()
		default:
			c.tryAgain()
		}
	})
}

func canBind(l config.Listener) bool { return sockets.Available(l.Network, l.Address) }

// tryAgain tries again to put the known objects into effect.
func (c *cluster) tryAgain() {
	c.s.loading.Lock() // otherwise an older file could take effect again
	defer c.s.loading.Unlock()
	if c.s.current() != c {
		return
	}
	c.source.Again(func(ch kube.Change) {
		c.retrying = false
		if err := c.put(c.newObjects(ch)); err != nil {
			c.failed(err)
			return
		}
		c.tellKnown()
	})
}

// tidyEvery is the time between two collections of the garbage that changes of objects leave.
const tidyEvery = 2 * time.Second

// tidy collects the garbage of a change of objects. The next change does not wait for it.
func (c *cluster) tidy() {
	now, last := time.Now().UnixNano(), c.tidied.Load()
	if time.Duration(now-last) >= tidyEvery && c.tidied.CompareAndSwap(last, now) {
		go pause.Tidy(pause.LeftGarbage)
	}
}
