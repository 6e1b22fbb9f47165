package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
)

const (
	// statusPace is the time between two statuses.
	statusPace = 20 * time.Millisecond
	// lookAtStatuses is how often all are looked at: what others change in them is no change of ours.
	lookAtStatuses = 30 * time.Second
	// lookAtNodes is how often it is looked on which nodes replicas are, where those are published.
	lookAtNodes = 10 * time.Second
	// retryStatuses is when those are tried again that could not be written.
	retryStatuses = 10 * time.Second
	// settleStatus is for how long what was written may not be seen yet.
	settleStatus = 20 * time.Second
)

// published is what was written into a status.
type published struct {
	at        time.Time
	addresses []string
}

// publish writes statuses until ctx ends.
func (c *Control) publish(ctx context.Context) {
	wrote := make(map[types.UID]published)
	var from addresses
	defer from.stop()
	for again := time.Duration(0); pause(ctx, again, c.statuses); {
		again = lookAtStatuses
		w, known := c.want()
		if !known {
			continue
		}
		if w.Publish.Nodes != "" {
			again = lookAtNodes
		}
		wanted, known := from.look(ctx, c, w)
		if !known {
			continue
		}
		for uid, p := range wrote {
			if time.Since(p.at) > settleStatus {
				delete(wrote, uid)
			}
		}
		if err := c.writeStatuses(ctx, w, wanted, wrote); err != nil {
			again = retryStatuses
		}
	}
}

// writeStatuses writes those that are not as they have to be. It ends early when
// something else is wanted.
func (c *Control) writeStatuses(ctx context.Context, w Wanted, wanted []string, wrote map[types.UID]published) error {
	ours := setOf(w.Ingresses)
	for _, i := range c.opts.Ingresses() {
		var addresses []string
		version := ""
		if ours[nameOf(i)] {
			addresses = wanted
		} else if version = i.ResourceVersion; !wroteLast(i, c.manager) {
			continue
		}
		if p, ok := wrote[i.UID]; slices.Equal(shown(i), addresses) || ok && slices.Equal(p.addresses, addresses) || !c.mayTry("statuses", i.Namespace) {
			continue
		}
		if err := c.writeStatus(ctx, i, addresses, version); api.IsAway(err) {
			return err
		}
		wrote[i.UID] = published{time.Now(), addresses}
		if !pause(ctx, statusPace, nil) {
			return ctx.Err()
		}
		if len(c.statuses) > 0 {
			return nil // and begin again
		}
	}
	return nil
}

func nameOf(i *networkingv1.Ingress) config.ObjectName {
	return config.ObjectName{Namespace: i.Namespace, Name: i.Name}
}

func setOf(names []config.ObjectName) map[config.ObjectName]bool {
	set := make(map[config.ObjectName]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// wroteLast says whether one of these was the last to write an Ingress's status.
func wroteLast(i *networkingv1.Ingress, managers ...string) bool {
	return slices.ContainsFunc(i.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Subresource == "status" && slices.Contains(managers, m.Manager)
	})
}

// shown are the addresses in an Ingress's status.
func shown(i *networkingv1.Ingress) (all []string) {
	for _, a := range i.Status.LoadBalancer.Ingress {
		for _, s := range []string{a.IP, a.Hostname} {
			if s != "" {
				all = append(all, s)
			}
		}
	}
	slices.Sort(all)
	return all
}

// writeStatus gives an Ingress these addresses. It is a merge of one field, so
// it conflicts with nothing that others write; the object has to be the same one.
// With a version it has to be as it was then: somebody else may have the Ingress
// now, and have written addresses of its own before this.
func (c *Control) writeStatus(ctx context.Context, i *networkingv1.Ingress, addresses []string, version string) error {
	limited, cancel := whole(ctx)
	defer cancel()
	var balancers []networkingv1.IngressLoadBalancerIngress // nil takes the field out
	for _, a := range addresses {
		if ip, err := netip.ParseAddr(a); err == nil {
			balancers = append(balancers, networkingv1.IngressLoadBalancerIngress{IP: ip.String()})
		} else {
			balancers = append(balancers, networkingv1.IngressLoadBalancerIngress{Hostname: a})
		}
	}
	metadata := map[string]any{"uid": i.UID}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata,
		"status": map[string]any{"loadBalancer": map[string]any{"ingress": balancers}}})
	if err != nil {
		return err
	}
	err = c.opts.Client.Networking.Patch(types.MergePatchType).Namespace(i.Namespace).Resource("ingresses").Name(i.Name).SubResource("status").
		Param("fieldManager", c.manager).Body(patch).Do(limited).Error()
	if apierrors.IsNotFound(err) || version != "" && apierrors.IsConflict(err) {
		return nil // gone meanwhile, or another one; what is still there is seen the next time
	}
	c.opts.Metrics.statuses.WithLabelValues(result(err)).Inc()
	if err != nil {
		err = api.Failure("patch", "ingresses/status "+i.Name, i.Namespace, err)
	}
	c.outcome("publish", i.Namespace, err)
	c.deny("statuses", i.Namespace, err)
	return err
}

// atOnce is how many statuses are written at once by who ends, and has little time.
const atOnce = 8

// withdraw takes the addresses out of all Ingresses that have them from here, but those kept.
func (c *Control) withdraw(ctx context.Context, kept []config.ObjectName) error {
	left := make(chan *networkingv1.Ingress)
	errs := make([]error, atOnce)
	var running sync.WaitGroup
	for n := range atOnce {
		running.Go(func() {
			for i := range left {
				if ctx.Err() == nil && c.mayTry("statuses", i.Namespace) {
					errs[n] = cmp.Or(errs[n], c.writeStatus(ctx, i, nil, ""))
				}
			}
		})
	}
	for _, i := range c.toWithdraw(kept) {
		left <- i
	}
	close(left)
	running.Wait()
	if ctx.Err() != nil {
		return errors.New("there was no time to take the addresses out of the status of all Ingresses; the next weir will see to those that are left")
	}
	return cmp.Or(errs...)
}

// toWithdraw are the Ingresses whose addresses are from here. Of those that were
// written under another Lease only what is served still: the others may be of
// somebody who has that Lease by now.
func (c *Control) toWithdraw(kept []config.ObjectName) (all []*networkingv1.Ingress) {
	w, _ := c.want()
	ours, stay := setOf(w.Ingresses), setOf(kept)
	before := make([]string, 0, len(c.opts.Formerly))
	for _, lease := range c.opts.Formerly {
		before = append(before, managerOf(lease))
	}
	for _, i := range c.opts.Ingresses() {
		name := nameOf(i)
		if (wroteLast(i, c.manager) || ours[name] && wroteLast(i, before...)) && !stay[name] && len(shown(i)) > 0 {
			all = append(all, i)
		}
	}
	return all
}
