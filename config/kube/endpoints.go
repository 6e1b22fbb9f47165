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

// Endpoints are the endpoints of b, in the order of their addresses. s is b's Service,
// or nil if it does not exist; slices are the EndpointSlices of the Service.
//
// A Pod with addresses of both families is one endpoint, with the address of the
// Service's first family. A terminating Pod is an endpoint as long as it serves, and
// is marked.
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
	if e, ok := serviceAddress(b, s, port); ok {
		return []config.Endpoint{e}
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

// portsOf are the numbers in the slice for the Service's port; Pods may have different ones.
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

// gathering collects endpoints from several slices. An endpoint may occur more than
// once: in two slices while it moves, and once for each family.
type gathering struct {
	family discoveryv1.AddressType
	found  map[string]candidate // by identity
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
	address, ok := addressOf(e.Addresses[0], port) // the meaning of further addresses is not defined
	if !ok {
		return
	}
	// The API server refuses loopback and link-local addresses, but a name may resolve to one.
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

// stateOf reads the conditions. With publishNotReadyAddresses a Pod always counts as
// ready, and may be terminating at the same time.
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

// addressOf is the address to connect to. Names end with a dot, so that no resolver
// tries the search domains of a Pod.
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
	if e.Hostname != nil && strings.HasPrefix(*e.Hostname, podMark) {
		return *e.Hostname + ":" + strconv.Itoa(int(port))
	}
	return address
}

// better prefers the Service's first family, then endpoints that are not terminating.
// If slices disagree about an address, one of them is late. An endpoint that does not
// answer costs a retry; a missing endpoint may be the only one.
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
	// Two Pods with one address are one endpoint: both use the host's network, or one
	// is gone. The first stays; it is not terminating unless all are.
	return slices.CompactFunc(all, func(a, b config.Endpoint) bool { return a.Address == b.Address })
}

// compareBools sorts false first.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
