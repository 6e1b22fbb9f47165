package kube

import (
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// GatewayRouting is what the objects of the Gateway API add to a configuration besides routes and
// backends.
type GatewayRouting struct {
	Listeners    []config.Listener
	Policies     []config.TLSPolicy
	Certificates []config.Certificate
	// Replicas are the EndpointSlices of the Pods of weir, if the Services of Gateways lead to these.
	// They are in the order of their names.
	Replicas []*discoveryv1.EndpointSlice
	// Status has the status of the classes first, then one for each Gateway. weir writes them when the
	// routes are in effect. A Status never changes.
	Status []*gateway.Status
}

// joinGateways joins what the Gateways add to a configuration, unless it is what the last Routing
// has. It is nil if weir serves none.
func (u *updating) joinGateways(out *Routing) {
	k := &u.gateways
	if k.status == nil {
		return
	}
	var last *GatewayRouting
	if before := u.results.routing; before != nil {
		last = before.Gateways
	}
	replicas := ordered(u.o.Gateway.Replicas)
	if last != nil && slices.Equal(last.Replicas, replicas) && last.Status[0] == k.status && !u.touched(func(p *part) bool { return p.gateway != nil }) {
		out.Gateways = last
		return
	}
	before, now := k.joined, gatewayParts(maps.Values(k.parts))
	k.joined = now
	if last == nil {
		last, before = &GatewayRouting{}, nil
	}
	r := &GatewayRouting{Status: []*gateway.Status{k.status}, Replicas: replicas}
	r.Listeners = joinedAgain(before, now, last.Listeners, func(p *gatewayPart) []config.Listener { return p.listeners })
	r.Certificates = joinedAgain(before, now, last.Certificates, func(p *gatewayPart) []config.Certificate { return p.certificates })
	r.Policies = withoutCopies(joinedAgain(before, now, last.Policies, func(p *gatewayPart) []config.TLSPolicy { return p.policies }))
	for _, p := range now {
		r.Status = append(r.Status, p.status)
	}
	if out.Gateways = r; sameList(r.Listeners, last.Listeners) && sameList(r.Certificates, last.Certificates) && sameList(r.Policies, last.Policies) && slices.Equal(r.Status, last.Status) && slices.Equal(r.Replicas, last.Replicas) {
		out.Gateways = last
	}
}

// joinedAgain joins a list of each part. It returns the last result if the same parts have the same lists.
func joinedAgain[T any](before, now []*gatewayPart, last []T, of func(*gatewayPart) []T) (all []T) {
	if slices.EqualFunc(before, now, func(a, b *gatewayPart) bool { return sameList(of(a), of(b)) }) {
		return last
	}
	for _, p := range now {
		all = append(all, of(p)...)
	}
	return all
}

// withoutCopies returns the first policy of each name, or all itself if no name occurs twice.
func withoutCopies(all []config.TLSPolicy) []config.TLSPolicy {
	known := make(map[string]bool, len(all))
	for _, policy := range all {
		known[policy.Name] = true
	}
	if len(known) == len(all) {
		return all
	}
	kept := make([]config.TLSPolicy, 0, len(known))
	for _, policy := range all {
		if known[policy.Name] {
			kept = append(kept, policy)
			delete(known, policy.Name)
		}
	}
	return kept
}

// gatewayParts returns the parts of Gateways, in a fixed order.
func gatewayParts(parts iter.Seq[*part]) (all []*gatewayPart) {
	for p := range parts {
		if p.gateway != nil {
			all = append(all, p.gateway)
		}
	}
	slices.SortFunc(all, func(a, b *gatewayPart) int { return compareNames(gateway.NameOf(a.object), gateway.NameOf(b.object)) })
	return all
}

// ownerOf is the Gateway that has one of weir's listeners.
func (r *GatewayRouting) ownerOf(listener string) corev1.ObjectReference {
	for _, s := range r.Status {
		for _, g := range s.Gateways {
			if g.Kind == gateway.KindGateway && strings.HasPrefix(listener, "gateway/"+g.ObjectName.String()+"/") {
				return corev1.ObjectReference{APIVersion: gatewayv1.GroupVersion.String(), Kind: g.Kind, Namespace: g.Namespace, Name: g.Name, UID: g.UID}
			}
		}
	}
	return corev1.ObjectReference{}
}

// WithUnbound returns r while weir cannot listen on some addresses of Gateways: their status says so.
// unbound has a sentence for each of weir's listeners without a socket. r, which may be nil, does not
// change.
func (r *GatewayRouting) WithUnbound(unbound map[string]string) *GatewayRouting {
	if r == nil {
		return nil
	}
	next := *r
	next.Status = make([]*gateway.Status, len(r.Status))
	for i, s := range r.Status {
		next.Status[i] = s.WithUnbound(unbound)
	}
	return &next
}

// WithOrders returns r while some certificates that listeners order are missing, or cannot be renewed: their status says
// so. orders has them by the TLS policies that own them. told has the statuses that earlier calls returned, by the
// statuses of r; it is replaced. r does not change. The result is r if there is nothing to tell.
func (r *GatewayRouting) WithOrders(orders map[string]gateway.Order, told *map[*gateway.Status]*gateway.Status) *GatewayRouting {
	before := *told
	*told = nil
	if r == nil || len(orders) == 0 {
		return r
	}
	next := *r
	next.Status = slices.Clone(r.Status)
	for i, s := range r.Status {
		if now := s.WithOrders(orders, before[s]); now != s {
			if *told == nil {
				*told = map[*gateway.Status]*gateway.Status{}
			}
			next.Status[i], (*told)[s] = now, now
		}
	}
	return &next
}

// mergeInto adds r, which may be nil, to a configuration.
func (r *GatewayRouting) mergeInto(c *config.Config) {
	if r == nil {
		return
	}
	c.Listeners = joined(c.Listeners, r.Listeners)
	c.TLSPolicies = joined(c.TLSPolicies, r.Policies)
	c.Certificates = joined(c.Certificates, r.Certificates)
}

// certificates are those of r, which may be nil.
func (r *GatewayRouting) certificates() []config.Certificate {
	if r == nil {
		return nil
	}
	return r.Certificates
}

// AllListeners are the listeners of r that no file has.
func (r *Routing) AllListeners() []config.Listener {
	if r.Gateways == nil {
		return r.Listeners
	}
	return slices.Concat(r.Listeners, r.Gateways.Listeners)
}
