package kube

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// A canary of ingress-nginx is an Ingress that has no requests of its own. Its Service gets a share
// of the requests of a main Ingress, for a path that both have.

// canaryAt is where a canary gets a share of the requests.
type canaryAt struct {
	namespace, host, path string
	kind                  networkingv1.PathType
	implicit              bool // of a default backend without rules
}

// canary is a path of a canary.
type canary struct {
	of      *networkingv1.Ingress
	backend *networkingv1.IngressBackend
	used    bool
}

// isCanary reports whether an Ingress is a canary. Without this check weir would treat it as an
// ordinary Ingress, and it would get all requests if it were the older.
func isCanary(i *networkingv1.Ingress) bool {
	return i.Annotations[annotation.Nginx+"canary"] != "" && annotation.SettingsOf(i).Canary.Is
}

// leaveCanariesOut returns all Ingresses but canaries, and remembers those. The oldest canary comes
// first.
func (v *conversion) leaveCanariesOut(all []*networkingv1.Ingress) (mains []*networkingv1.Ingress) {
	v.canaries = map[canaryAt][]*canary{}
	if !slices.ContainsFunc(all, isCanary) {
		return all
	}
	for _, i := range slices.SortedFunc(slices.Values(all), compareAges) {
		if !isCanary(i) {
			mains = append(mains, i)
			continue
		}
		for host, rule := range ruleHosts(i) {
			if rule.HTTP == nil {
				continue
			}
			for n := range rule.HTTP.Paths {
				p := &rule.HTTP.Paths[n]
				at := canaryAt{namespace: i.Namespace, host: host, path: p.Path, kind: typeOf(p)}
				v.canaries[at] = append(v.canaries[at], &canary{of: i, backend: &p.Backend})
			}
		}
		if b := i.Spec.DefaultBackend; b != nil && len(i.Spec.Rules) == 0 {
			at := canaryAt{namespace: i.Namespace, implicit: true}
			v.canaries[at] = append(v.canaries[at], &canary{of: i, backend: b})
		}
	}
	return mains
}

// addCanary gives the oldest canary of a claim a share of the requests of its route.
func (v *conversion) addCanary(r *config.Route, c *claim.Claim) {
	at := canaryAt{namespace: c.Owner.Name.Namespace, host: c.Host, path: c.Written, kind: networkingv1.PathType(c.Type)}
	if c.Implicit {
		at = canaryAt{namespace: c.Owner.Name.Namespace, implicit: c.Host == ""}
	}
	if len(v.canaries[at]) == 0 || r.Backend == "" || r.Closure != nil || !c.Backend.Supported {
		return
	}
	k := v.canaries[at][0]
	name := v.canaryBackend(k, c)
	k.used = true
	if name == "" {
		return
	}
	s := annotation.SettingsOf(k.of).Canary
	total := cmp.Or(s.Total, 100)
	weight := min(s.Weight, total)
	r.Backends = []config.WeightedBackend{{Name: r.Backend, Weight: total - weight}, {Name: name, Weight: weight}}
	r.Backend, r.Canary = "", &config.Canary{Header: s.Header, Value: s.Value, Pattern: s.Pattern, Cookie: s.Cookie}
}

// canaryBackend returns the name of the backend of a canary, which speaks the protocol of the main
// Ingress; empty: there is none, and the main Ingress gets all requests.
func (v *conversion) canaryBackend(k *canary, c *claim.Claim) string {
	tell := func(why string, args ...any) string {
		v.event(ingressReference(k.of), event.ReasonCanary, why, args...)
		return ""
	}
	if k.backend.Service == nil {
		return tell("The backend of this canary for %s is no Service, so the main Ingress gets all requests; name a Service.", c.Match)
	}
	source := config.ObjectName{Namespace: k.of.Namespace, Name: k.backend.Service.Name}
	if guards := v.serviceGuards(source); guards != nil {
		return tell("The Service %s of this canary has annotations that restrict access, or may, and that weir does not support, so the main Ingress gets all requests of %s; remove these annotations.", source, c.Match)
	}
	b, err := v.serving(source, portIn(v.service(source), k.backend.Service.Port))
	if err != nil {
		v.events.Put(event.Event{Object: ingressReference(k.of), Reason: event.ReasonCanary, Unread: errors.As(err, new(unread)),
			Message: fmt.Sprintf("The backend of this canary for %s is %v. Until then, the main Ingress gets all requests.", c.Match, err)})
		return ""
	}
	v.letSpeak(&b, &claim.Claim{Match: c.Match, Owner: c.Owner, Backend: claim.Backend{Supported: true, Name: source, Port: b.Port, Protocol: c.Backend.Protocol}})
	if b.Name == v.mainBackend(c) {
		return tell("This canary has the same Service for %s as its main Ingress; name another Service.", c.Match)
	}
	asked := v.asked[c.Owner]
	asked.Affinity.Cookie = asked.Affinity.Cookie && !annotation.SettingsOf(k.of).Affinity.Legacy
	v.secureAs(&b, c.Owner)
	v.choose(&b, asked)
	return v.keep(b)
}

// mainBackend is the name of the backend of a claim itself, without sticky sessions.
func (v *conversion) mainBackend(c *claim.Claim) string {
	b, _ := v.serving(c.Backend.Name, c.Backend.Port)
	v.letSpeak(&b, c)
	return b.Name
}

// tellCanaries reports canaries that get no requests.
func (v *conversion) tellCanaries() {
	for at, all := range v.canaries {
		for n, k := range all {
			switch {
			case n > 0:
				v.event(ingressReference(k.of), event.ReasonCanary, "The older canary Ingress %s has the same path, and a path has one canary, so this one gets no requests of %s; remove one of them.", all[0].of.Name, at)
			case !k.used:
				v.event(ingressReference(k.of), event.ReasonCanary, "No main Ingress of the namespace forwards requests of %s, so this canary gets none; give both the same host, path and pathType.", at)
			}
		}
	}
}

func (at canaryAt) String() string {
	if at.implicit {
		return "the default backend"
	}
	return "the path " + at.path + " (" + string(at.kind) + ") of " + claim.HostText(at.host)
}

// ingressReference is an Ingress in events.
func ingressReference(i *networkingv1.Ingress) corev1.ObjectReference {
	return reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta)
}

// canaryNames are the names of the canaries that get requests.
func (v *conversion) canaryNames() (names []config.ObjectName) {
	for _, all := range v.canaries {
		name := config.ObjectName{Namespace: all[0].of.Namespace, Name: all[0].of.Name}
		if all[0].used && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
