package kube

import (
	"maps"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
)

// challengePath is where certificate authorities look for HTTP-01 (RFC 8555, section 8.3).
const challengePath = "/.well-known/acme-challenge"

// isChallenge says whether the path is that of a challenge, such as a solver of
// cert-manager has. It is served without TLS whatever is redirected: authorities
// begin there, before there is a certificate.
func isChallenge(p config.Path) bool {
	return p.Value == challengePath || strings.HasPrefix(p.Value, challengePath+"/")
}

// uncover keeps Ingresses that solve challenges from hiding what a wildcard has:
// the most specific host decides first, so a host that has nothing but
// challenges would answer everything else with 404 while they last. It gets
// what it had without them.
func (v *conversion) uncover() {
	only := map[string]bool{} // whether a host has challenges alone
	for c := range v.claims {
		mine, known := only[c.host]
		only[c.host] = isChallenge(c.path) && (mine || !known)
	}
	var hidden map[hostOn][]*config.Route
	for _, host := range slices.Sorted(maps.Keys(only)) {
		if !only[host] || host == "" || strings.HasPrefix(host, "*.") {
			continue
		}
		if hidden == nil { // solvers are there for a moment
			hidden = v.above()
		}
		above := ""
		if _, ok := only[wildcardOf(host)]; ok {
			above = wildcardOf(host)
		}
		for _, l := range slices.Concat(v.plain, v.secure) {
			v.uncoverOn(l.Name, host, above, hidden)
		}
	}
}

// above are the routes that a more specific host hides: those of wildcards and
// of every host. What is uncovered adds none to them.
func (v *conversion) above() map[hostOn][]*config.Route {
	found := map[hostOn][]*config.Route{}
	all := slices.Concat(v.file.Routes, v.routes)
	for i := range all {
		r := &all[i]
		if r.FirstBytes != "" || r.TLS == config.TLSPassthrough {
			continue
		}
		for _, host := range hostsOf(r) {
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

// uncoverOn does it for one listener, where the file may have routes as well.
func (v *conversion) uncoverOn(listener, host, above string, hidden map[hostOn][]*config.Route) {
	if v.seen.hosts[hostOn{listener, host}] {
		return // the file has the host, and hides the wildcard by itself
	}
	if w := wildcardOf(host); v.seen.hosts[hostOn{listener, w}] {
		above = w
	}
	t, _ := v.tlsOn(listener, host)
	for _, found := range hidden[hostOn{listener, above}] {
		r := *found
		paths := slices.DeleteFunc(slices.Clone(pathsOf(&r)), func(p config.Path) bool { return v.claims[claim{host, p}] != nil })
		if len(paths) > 0 {
			r.Listeners, r.Hosts, r.Paths, r.TLSPolicy = []string{listener}, []string{host}, paths, t.policy
			v.routes = append(v.routes, r)
		}
	}
}
