package node

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// applyBeside puts file into effect with the objects of the cluster that it names. It
// waits for a new cluster, or for other objects of the same cluster. At the start of
// the process it does not wait: weir then serves without these objects, and is not ready.
func (s *server) applyBeside(file *config.Config, a *ahead) error {
	c := s.current()
	if c != nil && c.source.Fits(file) {
		return c.try(file, a)
	}
	next, err := s.newCluster(file)
	if err != nil {
		return err
	}
	if s.fileInEffect() != nil {
		err = next.await()
	}
	if err == nil {
		err = next.try(file, a)
	}
	if err != nil {
		next.close()
		return err
	}
	if c != nil {
		c.close()
	}
	return nil
}

// await waits until all objects are known.
func (c *cluster) await() error {
	select {
	case <-c.known:
		return nil
	case <-c.s.waits.Done():
		return errEnded
	case <-time.After(c.s.patience):
		return fmt.Errorf("weir could not read the objects of the cluster within %v: %w",
			c.s.patience, cmp.Or(c.trouble.last(), errors.New("the API server does not answer; check that kubernetes.kubeconfig names the right one")))
	}
}

// plansAside is how often try plans without the Source's locks. If the objects change each
// time, it then plans under these locks.
const plansAside = 3

// try puts file into effect with the objects that the Source knows. It plans without the
// Source's locks, because changes of routes and of endpoints need them. Then it commits under
// them, with the newest endpoints, so that no change of the objects overtakes another.
func (c *cluster) try(file *config.Config, a *ahead) error {
	for range plansAside {
		if err := c.tryAside(file, a); err != errOvertaken {
			return err
		}
	}
	return c.source.Try(file, func(ch kube.Change) error {
		p := a.plan(file)
		p.objects = c.newObjects(ch)
		if err := c.s.put(p); err != nil {
			return err
		}
		c.took(p.objects)
		c.takeNode(ch.Node)
		c.tellKnown()
		return nil
	})
}

// tryAside is one attempt of try. It returns errOvertaken if other routes took effect, or
// the objects changed, after it began to plan.
func (c *cluster) tryAside(file *config.Config, a *ahead) error {
	p := a.plan(file)
	p.objects = c.newObjects(c.convert(file))
	if err := c.s.prepare(p); err != nil {
		return err
	}
	return c.source.Try(file, func(ch kube.Change) error {
		if !p.objects.are(ch) {
			c.s.abandon(p)
			return errOvertaken
		}
		p.renew(ch.Backends)
		if err := c.s.commit(p); err != nil {
			return err
		}
		c.took(p.objects)
		c.takeNode(ch.Node)
		c.tellKnown()
		return nil
	})
}

// errOnlyConverted ends a Try without an effect.
var errOnlyConverted = errors.New("only the objects were wanted")

// convert returns the objects that the Source knows, under another file.
func (c *cluster) convert(file *config.Config) (now kube.Change) {
	c.source.Try(file, func(ch kube.Change) error {
		now = ch
		return errOnlyConverted
	})
	return now
}

// are reports whether o is what the Source knows now, apart from the endpoints.
func (o *objects) are(now kube.Change) bool {
	return o.known() == (now.Backends != nil) && reflect.DeepEqual(o.routing, now.Routing)
}

// took records that objects have taken effect.
func (c *cluster) took(o *objects) {
	c.tellUnbound(o)
	c.tellFaults(o.routing.Events)
	c.objects = o
}
