package kube

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/proxy/script"
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
	byPath      bool // each path has constants or a location of its own
	moves       bool // see script.Program
	ofAll       bool // the server-snippet may answer requests for any path
}

// scriptFor selects the paths of an Ingress on one host.
type scriptFor struct {
	owner *claim.Owner
	host  string
}

// readScripts reads the snippets for all Ingresses of the group. It closes an Ingress for which the
// snippet of its host does not fit.
func (v *conversion) readScripts(owners []*claim.Owner) {
	v.closeRealIP(owners)
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
			one, err := newScripted(v.keyScript, o, host, s, v.asked[o].Any)
			switch {
			case err != nil:
				v.closeFor(o, "configuration-snippet", fmt.Errorf("the server-snippet of another Ingress for %s and the configuration-snippet do not fit: %w", claim.HostText(host), err))
			case one.moves && hasPaths(owners, hostIn{o.Name.Namespace, host}, v.moves):
				v.closeFor(o, "server-snippet", fmt.Errorf("the server-snippet for %s has %s; %s", claim.HostText(host), script.ErrMoves.What, script.ErrMoves.Instead))
			}
			v.scripts[scriptFor{o, host}] = one
		}
	}
	v.bare = restsOfScripts(owners, ofHosts, v.scripts)
}

// closeRealIP closes Ingresses whose snippets change the addresses of clients, if another Ingress of a host has a list of
// addresses or the like.
func (v *conversion) closeRealIP(owners []*claim.Owner) {
	if !slices.ContainsFunc(owners, func(o *claim.Owner) bool { return v.asked[o].RealIP != "" }) {
		return
	}
	lists := map[hostIn]bool{}
	for _, o := range owners {
		for _, host := range o.Hosts {
			in := hostIn{o.Name.Namespace, host}
			lists[in] = lists[in] || v.asked[o].ByAddress
		}
	}
	for _, o := range owners {
		s := v.asked[o]
		if s.RealIP != "" && !s.ByAddress && slices.ContainsFunc(o.Hosts, func(host string) bool { return lists[hostIn{o.Name.Namespace, host}] }) {
			v.closeFor(o, s.RealIP, fmt.Errorf("the %s %w", s.RealIP, annotation.ErrRealIP))
		}
	}
}

// hasPaths reports whether Ingresses of a namespace have other paths than / for a host. moves has the claims that are only
// redirected.
func hasPaths(owners []*claim.Owner, in hostIn, moves map[*claim.Claim]*config.Redirect) bool {
	return slices.ContainsFunc(owners, func(o *claim.Owner) bool {
		return o.Name.Namespace == in.namespace && slices.ContainsFunc(o.Claims, func(c *claim.Claim) bool {
			return c.Host == in.host && c.Path != everyPath && moves[c] == nil && !claim.IsChallenge(c.Path)
		})
	})
}

// restsOfScripts adds claims for the paths of hosts that no Ingress has, and returns them: ingress-nginx applies the
// server-snippet to these paths as well, before it answers 404. ofHosts are the Ingresses with the server-snippets.
func restsOfScripts(owners []*claim.Owner, ofHosts map[hostIn]*claim.Owner, scripts map[scriptFor]*scripted) map[*claim.Claim]bool {
	taken, rests := map[string]bool{"": true}, map[*claim.Claim]bool{}
	for _, o := range owners {
		for _, c := range o.Claims {
			taken[c.Host] = taken[c.Host] || c.Path == everyPath
		}
	}
	byAge := func(a, b hostIn) int {
		return cmp.Or(compareOwners(ofHosts[a], ofHosts[b]), strings.Compare(a.host, b.host))
	}
	for _, in := range slices.SortedFunc(maps.Keys(ofHosts), byAge) {
		o := ofHosts[in]
		if one := scripts[scriptFor{o, in.host}]; one == nil || one.script == nil || !one.ofAll || taken[in.host] {
			continue
		}
		c := &claim.Claim{Match: claim.Match{Host: in.host, Path: everyPath}, Owner: o, Route: o.Name.String() + "/" + in.host, Written: "/", Implicit: true}
		o.Claims = append(o.Claims, c)
		taken[in.host], rests[c] = true, true
	}
	return rests
}

// newScripted joins the directives of keys, which may be nil, and of snippets. What keys refuse, they refuse on all paths,
// so it needs no protection of its own.
func newScripted(k *keyScript, o *claim.Owner, host string, s annotation.Snippets, satisfyAny bool) (*scripted, error) {
	one := &scripted{script: &config.Script{Host: s.Host, Location: s.Location, Namespace: o.Name.Namespace, Object: o.Name.Name, Server: host}}
	p, err := one.script.Parse()
	if err != nil {
		return nil, err
	}
	one.ofHost, one.script.Refuses, one.moves = p.OfHost, p.MayRefuse(), p.Moves
	one.ofAll = len(p.Host)+len(p.Locations) > 0
	one.byPath = len(p.Locations) > 0 || constant.MatchString(s.Host+s.Location)
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
	if r.Script = one.script; one.byPath && one.script != nil {
		r.Script = new(*one.script)
		r.Script.Service, r.Script.Port, r.Script.Path, r.Script.At = c.Backend.Name.Name, portText(c), cmp.Or(c.Written, "/"), c.Path
		if !c.Path.Exact && !c.Path.Expression {
			r.Script.At.Value = r.Script.Path // with a slash at its end, if the Ingress has one
		}
	}
	s := v.asked[c.Owner]
	if len(s.Allow) > 0 || s.Everybody || len(s.Deny) > 0 && one.ofHost || len(one.allow)+len(one.deny) == 0 {
		return
	}
	r.Clients = &config.Clients{Allow: one.allow, Deny: slices.Concat(s.Deny, one.deny)}
}

// constant matches the variables of ingress-nginx that differ by path.
var constant = regexp.MustCompile(`(?i)\$\{?(service_name|service_port|location_path|proxy_upstream_name|proxy_host)`)

// compareOwners orders by age, and then by name.
func compareOwners(a, b *claim.Owner) int {
	if n := a.Created.Compare(b.Created); n != 0 {
		return n
	}
	return compareNames(a.Name, b.Name)
}
