package control

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/informer"
)

// addresses finds the addresses to publish. Only one goroutine may use it.
type addresses struct {
	balancer *balancer // nil: no Service is watched
}

// look returns the addresses that every Ingress must have, in order. If they are not
// known, no status may change.
func (a *addresses) look(ctx context.Context, c *Control, w Wanted) (all []string, known bool) {
	p := w.Publish
	if !p.Any() {
		a.stop()
		return nil, false
	}
	// This happens whatever is published, because it also deletes the Leases of dead replicas.
	replicas, err := c.leases.Alive(ctx, c.replicas())
	if ctx.Err() == nil {
		c.outcome("list the replicas", "", err)
	}
	if a.balancer != nil && a.balancer.name != p.Balancer {
		a.stop()
	}
	switch {
	case len(p.Addresses) > 0:
		all, known = slices.Clone(p.Addresses), true
	case p.Nodes != "":
		all = nodeAddresses(replicas, p.Nodes)
		known = err == nil && len(all) > 0 // without an address it is not known yet, or a right is missing
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
		a.balancer.background.stop()
		a.balancer = nil
	}
}

// balancer is the Service whose addresses are published.
type balancer struct {
	name       config.ObjectName
	informer   *informer.Informer
	background background
}

func watchBalancer(c *Control, name config.ObjectName) *balancer {
	b := &balancer{name: name}
	b.informer = informer.New(informer.Options{
		List:    informer.Requests(c.opts.Client.Core, "services", name.Namespace, fields.OneTermEqualSelector("metadata.name", name.Name).String()),
		Example: &corev1.Service{}, Retry: c.opts.Retry, Changed: func(_, _ any) { wake(c.statuses) }, Works: func(bool) {},
		Trouble: func(err error) {
			if !b.informer.IsKnown() {
				c.outcome("read the published Service", "", api.Failure("list", "services", name.Namespace, err))
			}
		}})
	b.background.start(context.Background(), func(ctx context.Context) {
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() { // there is no event for an object that does not exist
			select {
			case <-ctx.Done():
			case <-b.informer.Known():
				wake(c.statuses)
			}
		})
		b.informer.Run(ctx)
	})
	return b
}

// addresses are the addresses of the Service, once it is known.
func (b *balancer) addresses(c *Control) (all []string, known bool) {
	if !b.informer.IsKnown() {
		return nil, false
	}
	c.outcome("read the published Service", "", nil)
	o, there, _ := b.informer.Items.GetByKey(b.name.String())
	if !there {
		c.outcome("find the published Service", "", fmt.Errorf("kubernetes.publish names the Service %s, which does not exist; weir leaves the statuses unchanged", b.name))
		return nil, false
	}
	c.outcome("find the published Service", "", nil)
	return addressesOfService(o.(*corev1.Service)), true
}

// addressesOfService are the external addresses of a Service, or its cluster IP if
// there are none.
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
