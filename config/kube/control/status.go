package control

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
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
	// lookAtStatuses is how often weir checks all statuses: others may change them without a change of ours.
	lookAtStatuses = 30 * time.Second
	// lookAtNodes is how often weir checks on which nodes replicas run, if their addresses are published.
	lookAtNodes = 10 * time.Second
	// retryStatuses is the time after which a failed write is repeated. No other answer of the API server shortens it: the
	// webhook of a tenant that fails looks like an API server that is away.
	retryStatuses = 5 * time.Second
	// statusLag is how long the informer may not show a status that was written.
	statusLag = 20 * time.Second
)

// published is the last write into a status.
type published struct {
	at        time.Time
	addresses []string
}

// publish writes statuses until ctx ends.
func (c *Control) publish(ctx context.Context) {
	wrote, resting := make(map[types.UID]published), make(map[string]time.Time)
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
		c.notePublished(wanted, known)
		if !known {
			continue
		}
		for uid, p := range wrote {
			if time.Since(p.at) > statusLag {
				delete(wrote, uid)
			}
		}
		if err := c.writeStatuses(ctx, w, wanted, wrote, resting); err != nil {
			again = retryStatuses
		}
	}
}

// writeStatuses writes the statuses that differ from the wanted ones. It ends early when the wanted state changes, or
// when the API server is away. If the API server fails in one namespace only, the others get their statuses: resting has
// the namespaces in which it has failed, and until when weir writes nothing there.
func (c *Control) writeStatuses(ctx context.Context, w Wanted, wanted []string, wrote map[types.UID]published, resting map[string]time.Time) error {
	ours := setOf(w.Ingresses)
	var failed error
	away := 0
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
		if time.Now().Before(resting[i.Namespace]) {
			continue
		}
		if err := c.writeStatus(ctx, i, addresses, version); api.IsAway(err) {
			failed, resting[i.Namespace] = err, time.Now().Add(restNamespace)
			if away++; away == mostAway {
				return err
			}
		} else {
			away, wrote[i.UID] = 0, published{time.Now(), addresses}
		}
		if !pause(ctx, statusPace, nil) {
			return ctx.Err()
		}
		if len(c.statuses) > 0 {
			return nil // and begin again
		}
	}
	return failed
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

// wroteLast reports whether one of these managers was the last to write the status.
func wroteLast(i *networkingv1.Ingress, managers ...string) bool {
	return slices.ContainsFunc(i.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Subresource == "status" && slices.Contains(managers, m.Manager)
	})
}

// shown are the addresses in the status of an Ingress.
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

// writeStatus writes these addresses into the status of an Ingress. It merges one
// field, so it does not conflict with other writers; the object must have the same
// UID. With a version the object must be unchanged: another controller may serve the
// Ingress by now, and may have written addresses of its own.
func (c *Control) writeStatus(ctx context.Context, i *networkingv1.Ingress, addresses []string, version string) error {
	limited, cancel := whole(ctx)
	defer cancel()
	err := c.patchStatus(limited, i, addresses, version)
	if apierrors.IsNotFound(err) || version != "" && apierrors.IsConflict(err) {
		return nil // the Ingress is gone or has changed; the next check sees the rest
	}
	c.opts.Metrics.statuses.WithLabelValues(result(err)).Inc()
	if err != nil {
		err = api.Failure("patch", "ingresses/status "+i.Name, i.Namespace, err)
	}
	c.outcome("write statuses", i.Namespace, err)
	c.deny("statuses", i.Namespace, err)
	return err
}

// patchStatus is the request of writeStatus. Its error is that of the API server.
func (c *Control) patchStatus(ctx context.Context, i *networkingv1.Ingress, addresses []string, version string) error {
	var balancers []networkingv1.IngressLoadBalancerIngress // nil removes the field
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
	return c.opts.Client.Networking.Patch(types.MergePatchType).Namespace(i.Namespace).Resource("ingresses").Name(i.Name).SubResource("status").
		Param("fieldManager", c.manager).Body(patch).Do(ctx).Error()
}
