package gateway

import (
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

// Within reports whether a host name, or all names of a wildcard, belong to a listener.
func Within(listener, name string) bool {
	return listener == "" || listener == name || covers(listener, name)
}

// moreSpecific reports whether a goes before b: an exact name before a wildcard, and the
// wildcard with more labels before others.
func moreSpecific(a, b string) bool {
	wildA, wildB := a == "" || a[0] == '*', b == "" || b[0] == '*'
	if wildA != wildB {
		return wildB
	}
	return len(a) > len(b)
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
