package control

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
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

// statusWork is what a leader knows about the statuses of Ingresses.
type statusWork struct {
	wrote   map[types.UID]published
	resting map[string]time.Time // the namespaces in which the API server has failed, and until when weir writes nothing there
	last    string               // the namespace of the last write
}

func newStatusWork() *statusWork {
	return &statusWork{wrote: make(map[types.UID]published), resting: make(map[string]time.Time)}
}

// publish writes statuses until ctx ends.
func (c *Control) publish(ctx context.Context) {
	work := newStatusWork()
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
		if err := c.writeStatuses(ctx, w, wanted, work); err != nil {
			again = retryStatuses
		}
	}
}

// statusWrite is a status to write: these addresses, if the Ingress has the version. An empty version is any.
type statusWrite struct {
	*networkingv1.Ingress
	addresses []string
	version   string
}

// due returns the statuses that differ from the wanted ones, for each namespace in turn: one with many Ingresses does not
// delay the first addresses of another.
func (w *statusWork) due(c *Control, ours map[config.ObjectName]bool, wanted []string) (all []*statusWrite) {
	maps.DeleteFunc(w.wrote, func(_ types.UID, p published) bool { return time.Since(p.at) > statusLag })
	for _, i := range c.opts.Ingresses() {
		s := &statusWrite{Ingress: i}
		if ours[nameOf(i)] {
			s.addresses = wanted
		} else if s.version = i.ResourceVersion; !wroteLast(i, c.manager) {
			continue
		}
		if p, ok := w.wrote[i.UID]; slices.Equal(shown(i), s.addresses) || ok && slices.Equal(p.addresses, s.addresses) {
			continue
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *statusWrite) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	inTurn(all, func(s *statusWrite) string { return s.Namespace }, w.last)
	return all
}

// writeStatuses writes the statuses that are due. It ends early when the wanted state changes, or when the API server is
// away. If the API server fails in one namespace only, the others get their statuses.
func (c *Control) writeStatuses(ctx context.Context, w Wanted, wanted []string, work *statusWork) error {
	var failed error
	away := 0
	for _, s := range work.due(c, setOf(w.Ingresses), wanted) {
		if time.Now().Before(work.resting[s.Namespace]) || !c.mayTry("statuses", s.Namespace) {
			continue
		}
		work.last = s.Namespace
		if err := c.writeStatus(ctx, s.Ingress, s.addresses, s.version); api.IsAway(err) {
			failed, work.resting[s.Namespace] = err, time.Now().Add(restNamespace)
			if away++; away == mostAway {
				return err
			}
		} else {
			away, work.wrote[s.UID] = 0, published{time.Now(), s.addresses}
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
