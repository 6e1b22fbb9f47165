package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// This file has the snippets of Ingresses. ingress-nginx applies the server-snippet of the oldest
// Ingress that has one to all paths of a host; weir does so within a namespace.

// scripted is what snippets do for the paths of an Ingress on one host.
type scripted struct {
	script *config.Script
	// allow and deny are the clients of the directives allow and deny. ofHost: they come from the
	// server-snippet.
	allow, deny []netip.Prefix
	ofHost      bool
}

// scriptFor selects the paths of an Ingress on one host.
type scriptFor struct {
	owner *claim.Owner
	host  string
}

// readScripts reads the snippets for all Ingresses of the group. It closes an Ingress for which the
// snippet of its host does not fit.
func (v *conversion) readScripts(owners []*claim.Owner) {
	snippets := func(o *claim.Owner) annotation.Snippets { return v.asked[o].Snippets }
	if v.keyScript.isEmpty() && !slices.ContainsFunc(owners, func(o *claim.Owner) bool { return snippets(o) != annotation.Snippets{} }) {
		return
	}
	ofHosts := map[hostIn]*claim.Owner{}
	for _, o := range owners {
		for _, host := range o.Hosts {
			in := hostIn{o.Name.Namespace, host}
			if snippets(o).Host != "" && (ofHosts[in] == nil || compareOwners(o, ofHosts[in]) < 0) {
				ofHosts[in] = o
			}
		}
	}
	v.scripts = map[scriptFor]*scripted{}
	for _, o := range owners {
		for _, host := range o.Hosts {
			s := annotation.Snippets{Location: snippets(o).Location}
			if of := ofHosts[hostIn{o.Name.Namespace, host}]; of != nil {
				s.Host = snippets(of).Host
			}
			if o.Guards != nil || s == (annotation.Snippets{}) && v.keyScript.isEmpty() {
				continue
			}
			one, err := newScripted(v.keyScript, o, s, v.asked[o].Any)
			if err != nil {
				v.closeFor(o, "configuration-snippet", fmt.Errorf("the server-snippet of another Ingress for %s and the configuration-snippet do not fit: %w", claim.HostText(host), err))
			}
			v.scripts[scriptFor{o, host}] = one
		}
	}
}

// newScripted joins the directives of keys, which may be nil, and of snippets. What keys refuse, they refuse on all paths,
// so it needs no protection of its own.
func newScripted(k *keyScript, o *claim.Owner, s annotation.Snippets, satisfyAny bool) (*scripted, error) {
	one := &scripted{script: &config.Script{Host: s.Host, Location: s.Location, Namespace: o.Name.Namespace, Object: o.Name.Name}}
	p, err := one.script.Parse()
	if err != nil {
		return nil, err
	}
	one.ofHost, one.script.Refuses = p.OfHost, p.MayRefuse()
	if k != nil {
		one.script.Host, one.script.Location = k.blocks+k.responses+s.Host, k.requests+s.Location
		if p, err = one.script.Parse(); err != nil {
			return nil, err
		}
	}
	if one.allow, one.deny, err = annotation.Clients(p.Access); err == nil && len(p.Access) > 0 && satisfyAny {
		err = errors.New("weir does not combine allow and deny with satisfy: any")
	}
	if !p.Does() {
		one.script = nil
	}
	return one, err
}

// applyScript gives a route what the snippets do. ingress-nginx writes the lists of annotations before
// the snippet of a location, and all of them replace the list of the host.
func (v *conversion) applyScript(r *config.Route, c *claim.Claim) {
	one := v.scripts[scriptFor{c.Owner, c.Host}]
	if one == nil || v.moves[c] != nil || claim.IsChallenge(c.Path) {
		r.Script = v.scriptOfKeys(c.Owner)
		return
	}
	r.Script = one.script
	s := v.asked[c.Owner]
	if len(s.Allow) > 0 || s.Everybody || len(s.Deny) > 0 && one.ofHost || len(one.allow)+len(one.deny) == 0 {
		return
	}
	r.Clients = &config.Clients{Allow: one.allow, Deny: slices.Concat(s.Deny, one.deny)}
}

// compareOwners orders by age, and then by name.
func compareOwners(a, b *claim.Owner) int {
	if n := a.Created.Compare(b.Created); n != 0 {
		return n
	}
	return compareNames(a.Name, b.Name)
}
