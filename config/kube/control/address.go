package control

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
)

// addresses finds out what to publish. It is for one goroutine.
type addresses struct {
	balancer *balancer // nil: no object of kind Service is watched
}

// look returns the addresses that every Ingress has to have, in order. Not
// known: nothing is to be changed at the moment.
func (a *addresses) look(ctx context.Context, c *Control, w Wanted) (all []string, known bool) {
	p := w.Publish
	if !p.Any() {
		a.stop()
		return nil, false
	}
	// Looked at whatever is published: so those of the dead are known for it, and go away.
	replicas, err := c.leases.Alive(ctx, c.replicas())
	if ctx.Err() == nil {
		c.outcome("know the replicas", "", err)
	}
	if a.balancer != nil && a.balancer.name != p.Balancer {
		a.stop()
	}
	switch {
	case len(p.Addresses) > 0:
		all, known = slices.Clone(p.Addresses), true
	case p.Nodes != "":
		all = nodeAddresses(replicas, p.Nodes)
		known = err == nil && len(all) > 0 // none is what is not known yet, or may not be looked at
	case p.Balancer != (config.ObjectName{}):
		if a.balancer == nil {
			a.balancer = watchBalancer(c, p.Balancer)
		}
		all, known = a.balancer.addresses(c)
	}
	slices.Sort(all)
	return slices.Compact(all), known
}

func (a *addresses) stop() {
	if a.balancer != nil {
		a.balancer.worker.stop()
		a.balancer = nil
	}
}

// balancer is the object of kind Service whose addresses are published.
type balancer struct {
	name     config.ObjectName
	informer cache.SharedIndexInformer
	worker   worker
}

func watchBalancer(c *Control, name config.ObjectName) *balancer {
	list := cache.NewListWatchFromClient(c.opts.Client.Core, "services", name.Namespace, fields.OneTermEqualSelector("metadata.name", name.Name))
	b := &balancer{name: name, informer: cache.NewSharedIndexInformer(list, &corev1.Service{}, 0, cache.Indexers{})}
	b.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil && !b.informer.HasSynced() {
			c.outcome("know the Service", "", api.Failure("list", "services", name.Namespace, err))
		}
	})
	b.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake(c.statuses) }, UpdateFunc: func(_, _ any) { wake(c.statuses) }, DeleteFunc: func(any) { wake(c.statuses) }})
	b.worker.start(context.Background(), func(ctx context.Context) {
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() { // nobody tells of an object that is not there
			if cache.WaitForCacheSync(ctx.Done(), b.informer.HasSynced) {
				wake(c.statuses)
			}
		})
		b.informer.RunWithContext(ctx)
	})
	return b
}

// addresses are those of the object, once it is known.
func (b *balancer) addresses(c *Control) (all []string, known bool) {
	if !b.informer.HasSynced() {
		return nil, false
	}
	o, there, _ := b.informer.GetStore().GetByKey(b.name.String())
	if !there {
		c.outcome("know the Service", "", fmt.Errorf("there is no Service %s, which kubernetes.publish names; statuses stay as they are", b.name))
		return nil, false
	}
	c.outcome("know the Service", "", nil)
	return addressesOfService(o.(*corev1.Service)), true
}

// addressesOfService are where clients reach a Service from outside; from inside
// where there is no other way.
func addressesOfService(s *corev1.Service) (all []string) {
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return []string{s.Spec.ExternalName}
	case corev1.ServiceTypeLoadBalancer:
		for _, i := range s.Status.LoadBalancer.Ingress {
			if i.Hostname != "" {
				all = append(all, i.Hostname)
			}
			if i.IP != "" {
				all = append(all, i.IP)
			}
		}
		return append(all, s.Spec.ExternalIPs...)
	}
	if len(s.Spec.ExternalIPs) > 0 {
		return slices.Clone(s.Spec.ExternalIPs)
	}
	if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
		return []string{s.Spec.ClusterIP}
	}
	return nil
}
