package kube

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// checkAliases checks that server-alias and from-to-www-redirect move no name from one namespace to another: the
// namespaces that serve a name because they name it, or a wildcard above it, are those without such annotations.
func checkAliases(t *testing.T, file *config.Config, o *Objects) {
	t.Helper()
	plain, asking := *o, map[string]bool{}
	plain.Ingresses = nil
	for _, i := range o.Ingresses {
		asking[i.Namespace] = asking[i.Namespace] || hasAliases(i) || wantsTwins(i)
		i = i.DeepCopy()
		delete(i.Annotations, annotation.Nginx+"server-alias")
		delete(i.Annotations, annotation.Nginx+"from-to-www-redirect")
		plain.Ingresses = append(plain.Ingresses, i)
	}
	before, after := (&Converter{File: file}).Convert(&plain), (&Converter{File: file}).Convert(o)
	listeners := map[string]bool{}
	for _, r := range before.Routes {
		for _, l := range r.Listeners {
			listeners[l] = true
		}
	}
	for l := range listeners {
		for _, host := range []string{"x.example", "y.x.example", "z.other", "a.example", "www.a.example", "alias.example", "b.example", "x.wild.example", "deep.x.wild.example", "www.x.example"} {
			then, now := namespacesOf(before, l, host), namespacesOf(after, l, host)
			then = slices.DeleteFunc(then, func(n string) bool { return asking[n] && !slices.Contains(now, n) }) // it took the name from itself
			if len(then) > 0 && !slices.Equal(then, now) {
				t.Errorf("%s on %s belongs to %v, and with names by annotations to %v", host, l, then, now)
			}
		}
	}
}

// namespacesOf are the namespaces with routes for a name, or else for the longest wildcard above it.
func namespacesOf(r *Routing, listener, host string) []string {
	_, parent, _ := strings.Cut(host, ".")
	names := []string{host, "*." + parent}
	for wildcard := aboveOf(host); wildcard != ""; wildcard = aboveOf(wildcard) {
		names = append(names, "*"+wildcard)
	}
	for _, name := range names {
		found := map[string]bool{}
		for _, route := range r.Routes {
			isolates := route.Closure != nil && route.Closure.Reason == "no_route"
			if !isolates && slices.Contains(route.Listeners, listener) && slices.Contains(route.Hosts, name) {
				found[route.Namespace] = true
			}
		}
		if len(found) > 0 {
			return slices.Sorted(maps.Keys(found))
		}
	}
	return nil
}
