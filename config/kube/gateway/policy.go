package gateway

import (
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// BackendTLS is how weir uses TLS to a port of a Service, as a BackendTLSPolicy demands it.
type BackendTLS struct {
	Policy   *gatewayv1.BackendTLSPolicy
	Hostname string // for SNI, and for the check of the certificate unless there are Names or URIs
	CAs      []byte // certificates of authorities in PEM; empty: those of the system
	// Names and URIs are alternative names; the certificate has to have one of them.
	Names, URIs []string
	// Broken means that no connection is possible.
	Broken bool
}

// addPolicies indexes the policies by their Services, the oldest first.
func (x *Index) addPolicies(all []*gatewayv1.BackendTLSPolicy) {
	for _, p := range all {
		if !x.serves(p.Namespace) {
			continue
		}
		for i := range p.Spec.TargetRefs {
			t := &p.Spec.TargetRefs[i]
			name := config.ObjectName{Namespace: p.Namespace, Name: string(t.Name)}
			if of := x.policies[name]; t.Group == "" && t.Kind == "Service" && (len(of) == 0 || of[len(of)-1] != p) {
				x.policies[name] = append(of, p)
			}
		}
	}
	for _, of := range x.policies {
		slices.SortFunc(of, func(a, b *gatewayv1.BackendTLSPolicy) int { return older(a, b) })
	}
}

// securedPort is a port of a Service.
type securedPort struct {
	service config.ObjectName
	port    string
}

// TLSTo returns how weir uses TLS to a port of a Service; nil: no policy demands it. g uses the
// Service. A policy for the port goes before one for all ports, and then the older one. hasPort reports whether the
// Service has a port of this name.
func (v *View) TLSTo(g *Gateway, service config.ObjectName, port string, hasPort func(string) bool) *BackendTLS {
	of := securedPort{service, port}
	t, known := g.secured[of]
	if !known {
		if g.secured == nil {
			g.secured, g.told = map[securedPort]*BackendTLS{}, map[*gatewayv1.BackendTLSPolicy]int{}
		}
		t = v.findTLS(g, service, port, hasPort)
		g.secured[of] = t
	}
	return t
}

func (v *View) findTLS(g *Gateway, service config.ObjectName, port string, hasPort func(string) bool) *BackendTLS {
	policies := v.policies[service]
	v.policiesSeen[service] = policies
	var winner *gatewayv1.BackendTLSPolicy
	for _, exact := range []bool{true, false} {
		for _, p := range policies {
			if winner == nil && targets(p, service.Name, port, exact) {
				winner = p
			}
		}
	}
	for _, p := range policies {
		if p == winner || !targets(p, service.Name, port, true) && !targets(p, service.Name, port, false) {
			continue
		}
		g.tellPolicy(p, problem(gatewayv1.PolicyReasonConflicted, "The BackendTLSPolicy %s goes before this one for the Service %s: it names the port, or is older, or has the first name in the alphabet.", winner.Name, service), nil)
	}
	for _, p := range policies {
		if name := unknownPort(p, service.Name, hasPort); name != "" {
			g.tellPolicy(p, problem(gatewayv1.PolicyReasonTargetNotFound, "The Service %s has no port called %q, so the policy has no effect; correct sectionName in targetRefs, or remove it to mean all ports.", service, name), nil)
		}
	}
	if winner == nil {
		return nil
	}
	return v.backendTLS(g, winner)
}

// unknownPort returns the first port that a policy names for a Service, if the Service has none of the ports that the
// policy names.
func unknownPort(p *gatewayv1.BackendTLSPolicy, service string, hasPort func(string) bool) (first string) {
	for i := range p.Spec.TargetRefs {
		t := &p.Spec.TargetRefs[i]
		if t.Group != "" || t.Kind != "Service" || string(t.Name) != service {
			continue
		}
		if t.SectionName == nil || hasPort(string(*t.SectionName)) {
			return ""
		}
		if first == "" {
			first = string(*t.SectionName)
		}
	}
	return first
}

// targets reports whether a policy names the port of a Service, or the Service without a port.
func targets(p *gatewayv1.BackendTLSPolicy, service, port string, exact bool) bool {
	return slices.ContainsFunc(p.Spec.TargetRefs, func(t gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
		if t.Group != "" || t.Kind != "Service" || string(t.Name) != service {
			return false
		}
		if t.SectionName == nil {
			return !exact
		}
		return exact && string(*t.SectionName) == port && port != ""
	})
}

// backendTLS reads a policy.
func (v *View) backendTLS(g *Gateway, p *gatewayv1.BackendTLSPolicy) *BackendTLS {
	c := &p.Spec.Validation
	t := &BackendTLS{Policy: p, Hostname: string(c.Hostname)}
	for i := range c.SubjectAltNames {
		switch n := &c.SubjectAltNames[i]; n.Type {
		case gatewayv1.HostnameSubjectAltNameType:
			t.Names = append(t.Names, string(n.Hostname))
		case gatewayv1.URISubjectAltNameType:
			t.URIs = append(t.URIs, string(n.URI))
		}
	}
	var refs, accept *Problem
	for i := range c.CACertificateRefs {
		ref := &c.CACertificateRefs[i]
		ca, fault := v.bundleOf(KindPolicy, p.Namespace, &gatewayv1.ObjectReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name})
		if fault != nil && fault.Reason == string(gatewayv1.ListenerReasonInvalidCACertificateKind) {
			fault.Reason = string(gatewayv1.BackendTLSPolicyReasonInvalidKind)
		}
		refs = orElse(refs, fault)
		t.CAs = append(t.CAs, ca...)
	}
	switch {
	case refs != nil && len(t.CAs) == 0:
		accept = &Problem{string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), refs.Message}
	case len(c.CACertificateRefs) == 0 && value(c.WellKnownCACertificates, "") != gatewayv1.WellKnownCACertificatesSystem:
		accept = problem(gatewayv1.PolicyReasonInvalid, "wellKnownCACertificates is %q, but weir supports only System; or name a ConfigMap in caCertificateRefs.", value(c.WellKnownCACertificates, ""))
	}
	t.Broken = accept != nil || refs != nil
	g.tellPolicy(p, accept, refs)
	return t
}

// policyState has the problems of a policy for the Services of one Gateway.
type policyState struct {
	policy       *gatewayv1.BackendTLSPolicy
	accept, refs *Problem
}

// tellPolicy records the state of a policy. A policy that has an effect for one target is neither conflicted nor without
// a target.
func (g *Gateway) tellPolicy(p *gatewayv1.BackendTLSPolicy, accept, refs *Problem) {
	isIdle := func(p *Problem) bool {
		return p != nil && (p.Reason == string(gatewayv1.PolicyReasonConflicted) || p.Reason == string(gatewayv1.PolicyReasonTargetNotFound))
	}
	if i, known := g.told[p]; known {
		if s := &g.policies[i]; isIdle(s.accept) && !isIdle(accept) {
			s.accept, s.refs = accept, refs
		}
		return
	}
	g.told[p] = len(g.policies)
	g.policies = append(g.policies, policyState{p, accept, refs})
}
