package kube

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file has the annotations of Traefik that have an equivalent. Those on a Service apply to all requests to it.

// traefikSpeech are the values of Traefik's annotation for the protocol of a Service.
var traefikSpeech = map[string]speech{
	"http": {protocol: config.ProtocolHTTP}, "https": {protocol: config.ProtocolHTTPS}, "h2c": {protocol: config.ProtocolH2C},
}

// traefikOf reads the annotations of the Service of this name.
func (v *conversion) traefikOf(name config.ObjectName) annotation.TraefikSettings {
	s := v.service(name)
	if s == nil || !hasTraefik(s.Annotations) {
		return annotation.TraefikSettings{}
	}
	return annotation.TraefikOf(s)
}

func hasTraefik(annotations map[string]string) bool {
	for name := range annotations {
		if strings.HasPrefix(name, annotation.Traefik) {
			return true
		}
	}
	return false
}

// hostOf is the Host header for a Service with passhostheader: false.
func (v *conversion) hostOf(name config.ObjectName) string {
	if s := v.service(name); s != nil && isExternal(s) {
		return s.Spec.ExternalName
	}
	return name.Name + "." + name.Namespace + ".svc"
}

// asks returns the settings of a claim: the settings of its object, and the sticky sessions of its Service if the object
// has none.
func (v *conversion) asks(c *claim.Claim) annotation.Settings {
	s := v.asked[c.Owner]
	if !s.Affinity.Cookie && c.Backend.Supported {
		s.Affinity = v.traefikOf(c.Backend.Name).Affinity
	}
	return s
}

// typedPaths returns the paths of an Ingress, with the type that Traefik gives them.
func typedPaths(i *networkingv1.Ingress, paths []networkingv1.HTTPIngressPath) []networkingv1.HTTPIngressPath {
	if !annotation.ExactPaths(i) {
		return paths
	}
	exact := networkingv1.PathTypeExact
	typed := slices.Clone(paths)
	for n := range typed {
		if typeOf(&typed[n]) == networkingv1.PathTypeImplementationSpecific {
			typed[n].PathType = &exact
		}
	}
	return typed
}

// prioritise removes the claims whose requests another claim of a higher priority takes, as Traefik does it: there a
// priority goes before the length of a path. It concerns only hosts for which an Ingress has the annotation, and only
// claims of one namespace: otherwise the author of an Ingress could take the paths of others.
func (v *conversion) prioritise(owners []*claim.Owner) {
	if len(v.priorities) == 0 {
		return
	}
	type place struct{ namespace, host string }
	at := map[place][]*claim.Claim{}
	for _, o := range owners {
		for _, c := range o.Claims {
			if !c.Implicit {
				p := place{o.Name.Namespace, c.Host}
				at[p] = append(at[p], c)
			}
		}
	}
	shadowed := map[*claim.Claim]bool{}
	shadow := func(above, c *claim.Claim) {
		if !shadowed[c] && v.shadows(above, c) {
			shadowed[c] = true
			v.on(c.Owner, event.ReasonTaken, "%s gets no requests: the %s %s has the path %q for the host and a higher priority (router.priority); change one of the priorities, or remove the path.", c.Sentence(), above.Owner.Kind.Name, above.Owner.Name, above.Path)
		}
	}
	for _, all := range at {
		for _, one := range v.withPriority(all) {
			for _, other := range all {
				shadow(one, other)
				shadow(other, one)
			}
		}
	}
	for _, o := range owners {
		o.Claims = slices.DeleteFunc(o.Claims, func(c *claim.Claim) bool { return shadowed[c] })
	}
}

// withPriority returns the first claims, at most maxPriorities, whose Ingress has the annotation.
func (v *conversion) withPriority(all []*claim.Claim) (some []*claim.Claim) {
	for _, c := range all {
		if v.priorities[c.Owner] > 0 && len(some) < maxPriorities {
			some = append(some, c)
		}
	}
	return some
}

// shadows reports whether above takes the requests of c by its priority. A path that is closed stays so.
func (v *conversion) shadows(above, c *claim.Claim) bool {
	return c.Owner.Guards == nil && c.Backend.Guards == nil && c.Refusal == nil && above.Refusal == nil && v.priority(above) > v.priority(c) && takesAll(above.Path, c.Path)
}

// maxPriorities is the maximum number of claims of a host whose priority counts.
const maxPriorities = 100

// priority is the priority that Traefik gives to a claim: that of the annotation, or the length of its rule.
func (v *conversion) priority(c *claim.Claim) int {
	if n := v.priorities[c.Owner]; n > 0 {
		return n
	}
	matcher := "PathPrefix(``)"
	if c.Path.Exact {
		matcher = "Path(``)"
	}
	if c.Host == "" {
		return len(matcher) + len(c.Path.Value)
	}
	return len("Host(``) && ") + len(c.Host) + len(matcher) + len(c.Path.Value)
}

// takesAll reports whether a matches every request that b matches, and they are not the same.
func takesAll(a, b config.Path) bool {
	if a.Exact || a.Expression || b.Expression || a == b {
		return false
	}
	return a.Value == "/" || a.Value == b.Value || strings.HasPrefix(b.Value, a.Value+"/")
}

// ofService applies the annotations of Traefik on a Service to its backend.
func (v *conversion) ofService(b *Backend) {
	if v.traefikOf(b.Source).OwnHost {
		b.Host = v.hostOf(b.Source)
	}
}
