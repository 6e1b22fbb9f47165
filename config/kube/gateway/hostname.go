package gateway

import (
	"iter"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Intersect returns the host names that both a listener and a route have: the more specific one
// of the two. A wildcard stands for one label or more. The empty name is every name.
func Intersect(listener, route string) (both string, ok bool) {
	switch {
	case listener == route, route == "":
		return listener, true
	case listener == "", covers(listener, route):
		return route, true
	case covers(route, listener):
		return listener, true
	}
	return "", false
}

// covers reports whether a wildcard stands for all names of another name.
func covers(wildcard, name string) bool {
	suffix, wild := strings.CutPrefix(wildcard, "*")
	if !wild {
		return false
	}
	rest, ok := strings.CutSuffix(name, suffix)
	return ok && rest != ""
}

// hostKey is a host name, or all names below one. It shares the memory of the text from which it comes.
type hostKey struct {
	name  string
	below bool // all names below; of the empty name: every name
}

func keyOf(name string) hostKey {
	if name == "" {
		return hostKey{"", true}
	}
	rest, wild := strings.CutPrefix(name, "*.")
	return hostKey{rest, wild}
}

// wider yields a host name, and then each name that has all its names, the most specific one first: wildcards, and
// the empty name, which is every name.
func wider(name string) iter.Seq[hostKey] {
	return func(yield func(hostKey) bool) {
		for k := keyOf(name); yield(k) && k.name != ""; {
			_, rest, _ := strings.Cut(k.name, ".")
			k = hostKey{rest, true}
		}
	}
}

// hostIndex finds host names that have names in common with another one. It knows the first owner of each.
type hostIndex struct {
	of    map[hostKey]int  // by a known name
	below map[hostKey]int  // by a wildcard of wild: the first owner of a known name below it
	wild  map[hostKey]bool // the wildcards that find will look for
}

// add adds a name, unless it is known. Owners come in order.
func (x *hostIndex) add(name string, owner int) {
	if _, known := x.of[keyOf(name)]; known {
		return
	}
	x.of[keyOf(name)] = owner
	for above := range wider(name) {
		if _, known := x.below[above]; !known && x.wild[above] {
			x.below[above] = owner
		}
	}
}

// find returns the first owner of a name that has names in common with this one; -1: there is none. x may be nil.
func (x *hostIndex) find(name string) int {
	if x == nil {
		return -1
	}
	first := -1
	take := func(owner int, known bool) {
		if known && (first < 0 || owner < first) {
			first = owner
		}
	}
	owner, known := x.below[keyOf(name)]
	take(owner, known)
	for above := range wider(name) {
		owner, known = x.of[above]
		take(owner, known)
	}
	return first
}

// hostnamesFor returns the host names of a route on a listener. The empty name is every name.
func hostnamesFor(listener string, route []gatewayv1.Hostname) (names []string) {
	if len(route) == 0 {
		return []string{listener}
	}
	known := map[string]bool{}
	for _, h := range route {
		if both, ok := Intersect(listener, strings.ToLower(string(h))); ok && !known[both] {
			known[both] = true
			names = append(names, both)
		}
	}
	return names
}

// HostOf returns a host name as weir's routes have it.
func HostOf(name string) string {
	if strings.HasPrefix(name, "*.") {
		return "*" + name
	}
	return name
}
