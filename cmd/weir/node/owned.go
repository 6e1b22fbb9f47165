package node

import (
	"maps"
	"reflect"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/policy"
)

// policies are the TLS policies of objects, by name. Those of Gateways have certificates of their own.
// They stay the same while their settings do, so that sessions can be resumed and hosts need
// not be compiled again.
type policies map[string]*ownedPolicy

type ownedPolicy struct {
	settings config.TLSPolicy
	*policy.Policy
}

// planPolicies makes the policies of the objects of a plan, or takes those in effect.
func (s *server) planPolicies(p *plan) error {
	before := p.owned
	p.owned = nil
	for _, c := range p.cfg.TLSPolicies {
		certificate := s.certs.Get
		switch {
		case c.Owned:
			certificate = s.certs.Of(c.Name)
		case c.ClientAuth != config.ClientAuthReport:
			continue // it is the file's
		}
		if p.owned == nil {
			p.owned = policies{}
		}
		if known := before[c.Name]; known != nil && p.again && reflect.DeepEqual(known.settings, c) {
			p.owned[c.Name] = known
			continue
		}
		made, err := policy.New(c, certificate, s.tickets.Attach)
		if err != nil {
			return err
		}
		made.RetryECH(p.ech)
		p.owned[c.Name] = &ownedPolicy{c, made}
	}
	return nil
}

// allPolicies returns the policies of the file and of objects.
func (p *plan) allPolicies() map[string]*policy.Policy {
	if len(p.owned) == 0 {
		return p.policies
	}
	all := maps.Clone(p.policies)
	for name, one := range p.owned {
		all[name] = one.Policy
	}
	return all
}
