package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// This file has the choice of an endpoint by annotations of ingress-nginx. An Ingress that asks for
// another choice than the usual one has a backend of its own for its Service.

// balance sets how an endpoint of b is chosen for the requests of an Ingress.
func (b *Backend) balance(a annotation.Balance) {
	switch {
	case a.OneAddress:
		b.Name += "/service"
		b.OneAddress = true
	case len(a.HashBy) > 0 && a.Subset:
		b.Balance, b.HashSubset = config.Hash, cmp.Or(a.SubsetSize, 3)
		b.Name += "/hash" + strconv.Itoa(b.HashSubset)
	case len(a.HashBy) > 0:
		b.Balance = config.Hash
		b.Name += "/hash"
	case a.RoundRobin:
		b.Balance = config.RoundRobin
		b.Name += "/round_robin"
	}
}

// choose gives b what an Ingress asks for: sticky sessions, or else another choice of endpoints.
func (v *conversion) choose(b *Backend, s annotation.Settings) {
	if s.Balance.OneAddress {
		v.keepLocal(*b)
	}
	if s.Affinity.Cookie && !s.Balance.OneAddress {
		b.stick(s.Affinity)
		return
	}
	b.balance(s.Balance)
}

// keepLocal keeps the backend with the endpoints of a Service that may be required on this node: the
// address of the Service is on no node.
func (v *conversion) keepLocal(b Backend) {
	s := v.service(b.Source)
	if s == nil {
		return
	}
	if _, annotated := s.Annotations[AnnotationRequireLocal]; annotated || slices.Contains(v.settings.RequireLocal, b.Source) {
		v.keep(b)
	}
}

// hashOf is the key by which an endpoint is chosen.
func hashOf(parts []annotation.HashPart) (key []config.HashPart) {
	for _, p := range parts {
		key = append(key, config.HashPart{Text: p.Text, Variable: config.Variable(p.Variable), Header: p.Header, Cookie: p.Cookie, Query: p.Query})
	}
	return key
}

// serviceAddress is the endpoint of b if requests go to the address of its Service; ok is false if
// they go to its endpoints, or if the Service has no address.
func serviceAddress(b *Backend, s *corev1.Service, port servicePort) (e config.Endpoint, ok bool) {
	if !b.OneAddress {
		return e, false
	}
	a, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		return e, false
	}
	address, ok := addressOf(a.String(), port.number)
	return config.Endpoint{Address: address, Weight: 1, Foreign: true}, ok
}
