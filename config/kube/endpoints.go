package kube

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirproxy/weir/config"
)

// Endpoints are those of b, in the order of their addresses. s is b's Service,
// nil where there is none, and slices are those of that Service.
//
// A Pod with addresses of both families is one endpoint, with that of the
// Service's first family. A Pod that is terminating is there as long as it
// serves, and marked.
func Endpoints(b *Backend, s *corev1.Service, slices []*discoveryv1.EndpointSlice) []config.Endpoint {
	port, err := portOf(s, b.Port)
	if err != nil {
		return nil
	}
	if isExternal(s) {
		address, ok := addressOf(s.Spec.ExternalName, port.number)
		if !ok {
			return nil
		}
		return []config.Endpoint{{Address: address, Weight: 1, Foreign: true}}
	}
	g := gathering{family: firstFamily(s), found: map[string]candidate{}}
	for _, slice := range slices {
		for _, number := range portsOf(slice, port) {
			for i := range slice.Endpoints {
				g.add(slice.AddressType, &slice.Endpoints[i], number)
			}
		}
	}
	return g.endpoints()
}

func firstFamily(s *corev1.Service) discoveryv1.AddressType {
	if len(s.Spec.IPFamilies) > 0 && s.Spec.IPFamilies[0] == corev1.IPv6Protocol {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// portsOf are the numbers that the slice has for the Service's port; Pods may have different ones.
func portsOf(slice *discoveryv1.EndpointSlice, port servicePort) (numbers []int32) {
	if port.direct {
		return []int32{port.number}
	}
	for _, p := range slice.Ports {
		var name string
		if p.Name != nil {
			name = *p.Name
		}
		if name == port.name && p.Port != nil && isPort(*p.Port) && (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) {
			numbers = append(numbers, *p.Port)
		}
	}
	return numbers
}

// gathering collects endpoints out of several slices, where one may be more
// than once: in two slices while it moves, and once for each family.
type gathering struct {
	family discoveryv1.AddressType
	found  map[string]candidate // by what they are
}

type candidate struct {
	config.Endpoint
	family discoveryv1.AddressType
}

func (g *gathering) add(family discoveryv1.AddressType, e *discoveryv1.Endpoint, port int32) {
	serves, terminating := stateOf(&e.Conditions)
	if !serves || len(e.Addresses) == 0 {
		return
	}
	address, ok := addressOf(e.Addresses[0], port) // nobody has defined what further ones mean
	if !ok {
		return
	}
	// The API server refuses addresses of this machine and its link, but a name may lead to one.
	c := candidate{config.Endpoint{Address: address, Weight: 1, Terminating: terminating, Foreign: true}, family}
	if e.NodeName != nil {
		c.Node = *e.NodeName
	}
	if e.Zone != nil {
		c.Zone = *e.Zone
	}
	key := identity(e, address, port)
	if old, known := g.found[key]; !known || g.better(c, old) {
		g.found[key] = c
	}
}

// stateOf reads the conditions. With publishNotReadyAddresses a Pod is ready
// whatever it is, and terminating all the same.
func stateOf(c *discoveryv1.EndpointConditions) (serves, terminating bool) {
	is := func(v *bool, otherwise bool) bool {
		if v == nil {
			return otherwise
		}
		return *v
	}
	ready, terminating := is(c.Ready, true), is(c.Terminating, false)
	if terminating {
		return is(c.Serving, true) || c.Ready != nil && ready, true
	}
	return ready, false
}

// addressOf is where to connect to. Names end with a dot: they are whole ones,
// for which no resolver needs to try the domains of a Pod.
func addressOf(host string, port int32) (address string, ok bool) {
	number := strconv.Itoa(int(port))
	name, err := config.ParseHost(host)
	if err != nil || isOwn(name) {
		return "", false
	}
	if a, err := netip.ParseAddr(name); err == nil {
		return net.JoinHostPort(a.String(), number), true
	}
	return name + ".:" + number, !strings.HasPrefix(name, "*.")
}

// identity is the same for all addresses of a Pod.
func identity(e *discoveryv1.Endpoint, address string, port int32) string {
	if r := e.TargetRef; r != nil && r.Kind == "Pod" && (r.UID != "" || r.Name != "") {
		return r.Namespace + "/" + r.Name + "/" + string(r.UID) + ":" + strconv.Itoa(int(port))
	}
	return address
}

// better prefers the Service's first family, then who is not going away. Where
// slices say different things of one address, one of them is late; whoever is
// tried in vain costs a retry, and whoever is missing may be the last.
func (g *gathering) better(a, b candidate) bool {
	if (a.family == g.family) != (b.family == g.family) {
		return a.family == g.family
	}
	if a.Terminating != b.Terminating {
		return b.Terminating
	}
	return a.Address < b.Address
}

func (g *gathering) endpoints() (all []config.Endpoint) {
	for _, c := range g.found {
		all = append(all, c.Endpoint)
	}
	slices.SortFunc(all, func(a, b config.Endpoint) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), compareBools(a.Terminating, b.Terminating),
			strings.Compare(a.Node, b.Node), strings.Compare(a.Zone, b.Zone))
	})
	// Two Pods with one address are one endpoint: the host's network, or one that
	// has gone. The first stays, which is not going away if another one is.
	return slices.CompactFunc(all, func(a, b config.Endpoint) bool { return a.Address == b.Address })
}

// compareBools has false first.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
