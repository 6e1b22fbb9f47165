package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// The addresses of a Gateway can be those of a Service of its own. The Service has no selector. weir
// writes its EndpointSlices: they have the Pods of weir, and for each port of the Gateway a port on
// which all these Pods listen. The EndpointSlices are also the record of these ports: the leader
// chooses a port and writes it there, and each replica, the leader too, listens on what it reads there.
// So ports stay when replicas or leaders change.

// Behind is the Service of a Gateway that has its addresses.
type Behind struct {
	Type config.ServiceType
	// Requested is the address that the Service asks for; empty: any.
	Requested string
	// Public are the addresses of the Service: of its load balancer, or its cluster IP.
	Public []string
	// Wants are the ports of the Pods that the EndpointSlices must have, by ports of the Gateway.
	Wants map[int32]int32
	// Listens are those of them that the EndpointSlices have already.
	Listens map[int32]int32
	full    bool // for some port there is no free one
}

func (b *Behind) equal(o *Behind) bool {
	if b == nil || o == nil {
		return b == o
	}
	return b.Type == o.Type && b.Requested == o.Requested && slices.Equal(b.Public, o.Public) && maps.Equal(b.Wants, o.Wants) && maps.Equal(b.Listens, o.Listens) && b.full == o.full
}

// pending is why weir does not listen on a port; nil: it does.
func (b *Behind) pending(port int32) *Problem {
	switch {
	case b.Listens[port] != 0:
		return nil
	case b.Wants[port] == 0 && b.full:
		return problem(gatewayv1.ListenerReasonPending, "All ports of kubernetes.gateways.addresses.service.ports in weir's configuration belong to other listeners; write a larger range there, or delete a listener.")
	}
	return problem(gatewayv1.ListenerReasonPending, "The EndpointSlices of the Gateway's Service do not have the port yet; the leader of weir writes them.")
}

// portName is the name of a port of the Service of a Gateway.
func portName(port int32) string { return fmt.Sprintf("port-%d", port) }

// SliceManager is the manager of the EndpointSlices of Gateways. The value of a label has no slash.
const SliceManager = "gateway.weirproxy.github.io"

// IsOwnSlice reports whether an EndpointSlice is one that weir keeps for a Gateway.
func IsOwnSlice(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == SliceManager
}

// FromBalancers gives each Gateway the addresses of its Service, and a port of the Pods for each of its
// ports. service returns a Service; nil: it does not exist. offline means that the objects come from manifests, so
// that no leader writes EndpointSlices: all ports count as written. before returns what a Gateway was assigned last;
// nil: nothing. It knows the ports that weir has chosen until the EndpointSlices have come back from the cluster.
func (x *Index) FromBalancers(o *Objects, settings *config.GatewayService, offline bool, service func(config.ObjectName) *corev1.Service, before func(*gatewayv1.Gateway) *Assigned) map[config.ObjectName]*Assigned {
	ports := map[config.ObjectName]map[int32]bool{}
	written := writtenPorts(o.Slices)
	taken := map[int32]bool{}
	all := make(map[config.ObjectName]*Assigned, len(x.gateways))
	for _, g := range x.gateways {
		b := &Behind{Type: settings.Type, Wants: map[int32]int32{}, Listens: map[int32]int32{}}
		a := &Assigned{Behind: b, Rejected: unsupportedAddress(g)}
		name := NameOf(g)
		all[name], ports[name] = a, x.portsOf(g)
		for port := range ports[name] {
			own := written[ownedPort{name, string(g.UID), port}]
			if own == 0 || !settings.Ports.Has(int(own)) || taken[own] {
				continue
			}
			taken[own] = true
			b.Wants[port], b.Listens[port] = own, own
		}
		b.ask(g, a)
		a.find(g, service(config.ObjectName{Namespace: g.Namespace, Name: serviceName(g)}))
		if a.Missing == nil && !offline && !haveEndpoints(o.Replicas) {
			a.Missing = problem(gatewayv1.GatewayReasonAddressNotUsable, "The Service of the Gateway leads to no Pod of weir, because the Service %s has no endpoints; create this Service with a selector for the Pods of weir, or correct kubernetes.gateways.addresses.service.replicas in weir's configuration.", settings.Replicas)
		}
	}
	for _, g := range x.gateways {
		was := before(g)
		if was == nil || was.Behind == nil {
			continue
		}
		b := all[NameOf(g)].Behind
		for port, own := range was.Behind.Wants {
			if ports[NameOf(g)][port] && b.Wants[port] == 0 && settings.Ports.Has(int(own)) && !taken[own] {
				taken[own], b.Wants[port] = true, own
			}
		}
	}
	free := freePorts(settings.Ports, written, taken)
	for _, g := range x.gateways {
		b := all[NameOf(g)].Behind
		for _, port := range slices.Sorted(maps.Keys(ports[NameOf(g)])) {
			if b.Wants[port] != 0 {
				continue
			}
			if b.full = len(free) == 0; b.full {
				break
			}
			b.Wants[port], free = free[0], free[1:]
		}
		if offline {
			b.Listens = maps.Clone(b.Wants)
		}
	}
	return all
}

func haveEndpoints(all []*discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(all, func(s *discoveryv1.EndpointSlice) bool { return len(s.Endpoints) > 0 })
}

// freePorts are the ports of a range that nobody has, in the order of their use: first those behind the last
// written port. So a port that was freed is not used again soon: load balancers may still send it
// connections of its former Gateway.
func freePorts(all config.PortRange, written map[ownedPort]int32, taken map[int32]bool) (free []int32) {
	last := int32(all.First) - 1
	for _, port := range written {
		if all.Has(int(port)) {
			last = max(last, port)
		}
	}
	add := func(from, to int32) {
		for port := from; port <= to; port++ {
			if !taken[port] {
				free = append(free, port)
			}
		}
	}
	add(last+1, int32(all.Last))
	add(int32(all.First), last)
	return free
}

// ownedPort is a port of one Gateway. A Gateway that is created again with the same name has another UID.
type ownedPort struct {
	gateway config.ObjectName
	uid     string
	port    int32
}

// writtenPorts are the ports in the EndpointSlices of Gateways.
func writtenPorts(all []*discoveryv1.EndpointSlice) map[ownedPort]int32 {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int { return older(a, b) })
	found := map[ownedPort]int32{}
	for _, s := range all {
		owner := gatewayOwner(s)
		if owner == nil || !IsOwnSlice(s) {
			continue
		}
		for i := range s.Ports {
			p := &s.Ports[i]
			var port int32
			if p.Name == nil || p.Port == nil {
				continue
			}
			if n, _ := fmt.Sscanf(*p.Name, "port-%d", &port); n != 1 || *p.Name != portName(port) {
				continue
			}
			key := ownedPort{config.ObjectName{Namespace: s.Namespace, Name: owner.Name}, string(owner.UID), port}
			found[key] = cmp.Or(found[key], *p.Port)
		}
	}
	return found
}

// gatewayOwner is the Gateway that owns an object; nil: none.
func gatewayOwner(o metav1.Object) *metav1.OwnerReference {
	for _, r := range o.GetOwnerReferences() {
		if IsGatewayOwner(&r) {
			return &r
		}
	}
	return nil
}

// IsGatewayOwner reports whether an owner is a Gateway.
func IsGatewayOwner(r *metav1.OwnerReference) bool {
	return r.Kind == KindGateway && r.APIVersion == gatewayv1.GroupVersion.String()
}

// portsOf are the ports of the listeners of a Gateway, and of the ListenerSets that it allows. A faulty
// listener keeps its port.
func (x *Index) portsOf(g *gatewayv1.Gateway) map[int32]bool {
	ports := map[int32]bool{}
	for i := range g.Spec.Listeners {
		if l := &g.Spec.Listeners[i]; protocolKinds[l.Protocol] != nil {
			ports[int32(l.Port)] = true
		}
	}
	v := NewView(x, nil)
	for _, s := range x.SetsOf(NameOf(g)) {
		if !v.allowsSet(g, s) {
			continue
		}
		for i := range s.Spec.Listeners {
			if l := &s.Spec.Listeners[i]; protocolKinds[l.Protocol] != nil {
				ports[int32(l.Port)] = true
			}
		}
	}
	return ports
}

// ask finds which address the Service can ask for. A Service asks for at most one.
func (b *Behind) ask(g *gatewayv1.Gateway, a *Assigned) {
	if a.Rejected != nil {
		return
	}
	for i := range g.Spec.Addresses {
		text := g.Spec.Addresses[i].Value
		addr, err := netip.ParseAddr(text)
		switch {
		case text == "" || text == b.Requested:
		case err != nil:
			a.Missing = cmp.Or(a.Missing, problem(gatewayv1.GatewayReasonAddressNotUsable, "The address %q is not an IP address.", text))
		case b.Type == config.ServiceNodePort:
			a.Missing = cmp.Or(a.Missing, problem(gatewayv1.GatewayReasonAddressNotUsable, "The address %s cannot be asked for, because kubernetes.gateways.addresses.service.type in weir's configuration is NodePort; remove it from spec.addresses.", addr))
		case b.Requested != "":
			a.Missing = cmp.Or(a.Missing, problem(gatewayv1.GatewayReasonAddressNotUsable, "The Service of the Gateway asks for the address %s, and cannot ask for %s as well; keep one of them in spec.addresses.", b.Requested, addr))
		default:
			b.Requested = addr.String()
		}
	}
}

// find finds the addresses of the Service.
func (a *Assigned) find(g *gatewayv1.Gateway, s *corev1.Service) {
	name := g.Namespace + "/" + serviceName(g)
	if s == nil || !ownedBy(s, g) {
		why := "does not exist yet; the leader of weir makes it, or writes into its log why it cannot"
		if s != nil {
			why = "exists already and does not belong to the Gateway; delete it, or rename the Gateway"
		}
		a.Missing = cmp.Or(a.Missing, problem(gatewayv1.GatewayReasonAddressNotAssigned, "The Service %s %s.", name, why))
		return
	}
	b := a.Behind
	b.Public = addressesOf(s)
	switch {
	case a.Missing != nil:
	case len(b.Public) == 0 && b.Type == config.ServiceLoadBalancer:
		a.Missing = problem(gatewayv1.GatewayReasonAddressNotAssigned, "The load balancer of the Service %s has no address yet; see the events of the Service.", name)
	case len(b.Public) == 0:
		a.Missing = problem(gatewayv1.GatewayReasonAddressNotAssigned, "The Service %s has no cluster IP yet.", name)
	case b.Requested != "" && !slices.ContainsFunc(b.Public, func(text string) bool { return sameAddress(text, b.Requested) }):
		a.Missing = problem(gatewayv1.GatewayReasonAddressNotUsable, "The Service %s asks for the address %s, but has %s; ask for another one, or remove spec.addresses.", name, b.Requested, b.Public[0])
	}
}

func sameAddress(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	return errX == nil && errY == nil && x.Unmap() == y.Unmap()
}

func ownedBy(o metav1.Object, g *gatewayv1.Gateway) bool {
	owner := gatewayOwner(o)
	return owner != nil && owner.UID == g.UID
}

// addressesOf are the addresses of the load balancer of a Service, or its cluster IP.
func addressesOf(s *corev1.Service) (all []string) {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
			all = append(all, s.Spec.ClusterIP)
		}
		return all
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		if text := cmp.Or(i.IP, i.Hostname); text != "" && len(all) < mostAddresses {
			all = append(all, text)
		}
	}
	return all
}

// mostAddresses is the maximum of the API for the addresses in the status of a Gateway.
const mostAddresses = 16
