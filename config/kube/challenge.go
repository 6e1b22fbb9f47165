package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// challengePath is the path of HTTP-01 challenges (RFC 8555, section 8.3).
const challengePath = "/.well-known/acme-challenge"

// isChallenge reports whether the path is the path of an ACME challenge, as solvers of
// cert-manager have it. weir does not redirect it to https, because the authority
// asks for it before there is a certificate.
func isChallenge(p config.Path) bool {
	return p.Value == challengePath || strings.HasPrefix(p.Value, challengePath+"/")
}

// maxUncovered is the maximum number of routes that hosts of one namespace inherit:
// each host may inherit all routes of a wildcard.
const maxUncovered = 10_000

// uncover gives the routes of a wildcard to hosts that have only challenges or
// refused paths. weir selects the most specific host first, so without these routes
// such a host would answer all other requests with 404.
func (v *conversion) uncover() {
	only := map[string]*want{} // by host, a challenge or refused path; nil: the host has other paths too
	for c, w := range v.claims {
		mine, known := only[c.host]
		switch {
		case known && mine == nil:
		case isChallenge(c.path) || w.refusal != nil && len(w.by.guards) == 0:
			if mine == nil || compareNames(w.by.name, mine.by.name) < 0 {
				only[c.host] = w
			}
		default:
			only[c.host] = nil
		}
	}
	var hidden map[hostOn][]covered
	wildcards, more := true, false // wildcards come first; whether they inherited routes
	room := map[string]int{}       // by namespace
	for _, host := range slices.SortedFunc(maps.Keys(only), wildcardsFirst) {
		by := only[host]
		if by == nil || host == "" {
			continue
		}
		if hidden == nil || more && wildcards && !strings.HasPrefix(host, "*.") { // all wildcards have their routes now
			hidden = v.above()
		}
		wildcards = strings.HasPrefix(host, "*.")
		above := ""
		if _, ok := only[wildcardOf(host)]; ok {
			above = wildcardOf(host)
		}
		before := len(v.routes)
		for _, l := range slices.Concat(v.plain, v.secure) {
			n := len(hidden[hostOn{l.Name, above}])
			if room[by.by.Namespace]+n > maxUncovered {
				v.on(by.by, event.ReasonTooMany, "Hosts of the namespace %s that have only ACME challenges or refused paths would inherit more than %d routes from wildcards, so %s does not inherit the routes of its wildcard; remove such hosts.", by.by.Namespace, maxUncovered, host)
				break
			}
			room[by.by.Namespace] += n
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
	namespace string // of its Ingress; empty: the file's
}

// above are the routes that a more specific host hides: those of wildcards and
// of every host.
func (v *conversion) above() map[hostOn][]covered {
	found := map[hostOn][]covered{}
	all := slices.Concat(v.file.Routes, v.routes)
	tcp := tcpBackends(v.file)
	for i := range all {
		r := covered{Route: &all[i]}
		if i >= len(v.file.Routes) {
			r.namespace, _, _ = strings.Cut(r.Name, "/")
		}
		if r.FirstBytes != "" || r.TLS == config.TLSPassthrough || tcp[r.Backend] {
			continue
		}
		for _, host := range hostsOf(r.Route) {
			if host != "" && !strings.HasPrefix(host, "*.") {
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
	if w := wildcardOf(host); v.seen.hosts[hostOn{listener, w}] {
		above = w
	}
	t, _ := v.tlsOn(listener, host)
	owner := v.ownerOf(host)
	for _, found := range hidden[hostOn{listener, above}] {
		if owner != nil && found.namespace != "" && found.namespace != owner.Namespace {
			continue // the host belongs to another namespace
		}
		r := *found.Route
		paths := slices.DeleteFunc(slices.Clone(pathsOf(&r)), func(p config.Path) bool { return v.claims[claim{host, p}] != nil || v.shut[claim{host, p}] })
		if len(paths) > 0 {
			r.Listeners, r.Hosts, r.Paths, r.TLSPolicy = []string{listener}, []string{host}, paths, t.policy
			v.routes = append(v.routes, r)
		}
	}
}
