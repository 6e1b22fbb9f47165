package kube

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// hostOf is the Host for a Service that does not get that of the client.
func (v *conversion) hostOf(name config.ObjectName) string {
	if s := v.service(name); s != nil && isExternal(s) {
		return s.Spec.ExternalName
	}
	return name.Name + "." + name.Namespace + ".svc"
}

// sameTraefik reports whether two objects have the same annotations of Traefik.
func sameTraefik(a, b map[string]string) bool {
	if !hasTraefik(a) && !hasTraefik(b) {
		return true
	}
	only := func(all map[string]string) map[string]string {
		kept := maps.Clone(all)
		maps.DeleteFunc(kept, func(name, _ string) bool { return !strings.HasPrefix(name, annotation.Traefik) })
		return kept
	}
	return maps.Equal(only(a), only(b))
}

// asks are the settings of a claim: those of its object, and without sticky sessions there, those of its Service.
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
	for _, all := range at {
		var first []*claim.Claim // with a priority of their own
		for _, c := range all {
			if v.priorities[c.Owner] > 0 && len(first) < maxPriorities {
				first = append(first, c)
			}
		}
		for _, one := range first {
			for _, other := range all {
				for _, pair := range [][2]*claim.Claim{{one, other}, {other, one}} {
					if above, c := pair[0], pair[1]; !shadowed[c] && v.shadows(above, c) {
						shadowed[c] = true
						v.on(c.Owner, event.ReasonTaken, "%s gets no requests: the %s %s has the path %q for the host and a higher priority (router.priority); change one of the priorities, or remove the path.", c.Sentence(), above.Owner.Kind.Name, above.Owner.Name, above.Path)
					}
				}
			}
		}
	}
	for _, o := range owners {
		o.Claims = slices.DeleteFunc(o.Claims, func(c *claim.Claim) bool { return shadowed[c] })
	}
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

// ofService applies what the annotations of Traefik on a Service set for its backend.
func (v *conversion) ofService(b *Backend, s *corev1.Service) {
	if s == nil || !hasTraefik(s.Annotations) {
		return
	}
	if annotation.TraefikOf(s).OwnHost {
		b.Host = v.hostOf(b.Source)
	}
}
