package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// maxUncovered is the maximum number of routes that hosts of one namespace inherit:
// each host may inherit all routes of a wildcard.
const maxUncovered = 10_000

// uncover gives the routes of a wildcard to hosts that have only challenges or
// refused paths. weir selects the most specific host first, so without these routes
// such a host would answer all other requests with 404.
func (v *conversion) uncover() {
	only := map[string]*claim.Claim{} // by host, a challenge or refused path; nil: the host has other paths too
	for m, c := range v.decision.Winners {
		mine, known := only[m.Host]
		switch {
		case known && mine == nil:
		case claim.IsChallenge(m.Path) || c.Refusal != nil && c.Owner.Guards == nil:
			if mine == nil || claim.ByName(c.Owner, mine.Owner) < 0 {
				only[m.Host] = c
			}
		default:
			only[m.Host] = nil
		}
	}
	var hidden map[hostOn][]covered
	wildcards, more := true, false // wildcards come first; whether they inherited routes
	room := map[string]int{}       // by namespace
	for _, host := range slices.SortedFunc(maps.Keys(only), wildcardsFirst) {
		c := only[host]
		if c == nil || host == "" {
			continue
		}
		if hidden == nil || more && wildcards && !strings.HasPrefix(host, "*.") { // all wildcards have their routes now
			hidden = v.above()
		}
		wildcards = strings.HasPrefix(host, "*.")
		above := ""
		if _, ok := only[claim.WildcardOf(host)]; ok {
			above = claim.WildcardOf(host)
		}
		namespace, before := c.Owner.Name.Namespace, len(v.routes)
		for _, l := range slices.Concat(v.plain, v.secure) {
			n := len(hidden[hostOn{l.Name, above}])
			if room[namespace]+n > maxUncovered {
				v.on(c.Owner, event.ReasonTooMany, "Hosts of the namespace %s that have only ACME challenges or refused paths would inherit more than %d routes from wildcards, so %s does not inherit the routes of its wildcard; remove such hosts.", namespace, maxUncovered, host)
				break
			}
			room[namespace] += n
			v.uncoverOn(l.Name, host, above, hidden)
		}
		more = more || len(v.routes) > before
	}
}

// wildcardsFirst compares hosts so that wildcards come before other hosts.
func wildcardsFirst(a, b string) int {
	isOne := func(host string) int { return min(1, len(host)-len(strings.TrimPrefix(host, "*."))) }
	return cmp.Or(isOne(b)-isOne(a), strings.Compare(a, b))
}

// covered is a route that a more specific host hides.
type covered struct {
	*config.Route
	namespace string // of its object; empty: the file's
}

// above are the routes that a more specific host hides: those of wildcards and
// of every host.
func (v *conversion) above() map[hostOn][]covered {
	found := map[hostOn][]covered{}
	all := slices.Concat(v.file.Routes, v.routes)
	tcp := tcpBackends(v.file)
	for i := range all {
		r := covered{Route: all[i]}
		if i >= len(v.file.Routes) {
			r.namespace, _, _ = strings.Cut(r.Name, "/")
		}
		if r.FirstBytes != "" || r.TLS == config.TLSPassthrough || tcp[r.FirstBackend()] {
			continue
		}
		for _, host := range hostsOf(r.Route) {
			if host != "" && !strings.HasPrefix(host, "*") {
				continue
			}
			for _, l := range r.Listeners {
				found[hostOn{l, host}] = append(found[hostOn{l, host}], r)
			}
		}
	}
	return found
}

// uncoverOn is uncover for one host and listener, where the file may have routes as well.
func (v *conversion) uncoverOn(listener, host, above string, hidden map[hostOn][]covered) {
	if v.seen.hosts[hostOn{listener, host}] {
		return // the file itself has routes for the host
	}
	for _, w := range config.LessSpecific(host) {
		if w == above || v.seen.hosts[hostOn{listener, w}] {
			above = w
			break
		}
	}
	t, _ := v.tlsOn(listener, host)
	owner := v.decision.HostOwner(host)
	for _, found := range hidden[hostOn{listener, above}] {
		if owner != nil && found.namespace != "" && found.namespace != owner.Name.Namespace {
			continue // the host belongs to another namespace
		}
		r := *found.Route
		paths := slices.DeleteFunc(slices.Clone(pathsOf(&r)), func(p config.Path) bool {
			p.Among = false // it depends on the host
			m := claim.Match{Host: host, Path: p}
			return v.decision.Winners[m] != nil || v.shut[m]
		})
		if len(paths) > 0 {
			r.Listeners, r.Hosts, r.Paths, r.TLSPolicy = []string{listener}, []string{host}, paths, t.policy
			v.routes = append(v.routes, &r)
		}
	}
}
