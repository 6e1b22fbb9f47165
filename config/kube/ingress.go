package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// ingressKind is the kind of Ingresses.
var ingressKind = &claim.Kind{APIVersion: "networking.k8s.io/v1", Name: "Ingress", TLS: "spec.tls"}

// ingress is one Ingress that is being read.
type ingress struct {
	*networkingv1.Ingress
	owner    *claim.Owner
	route    string  // the prefix of the names of its routes: namespace/ingress/
	protocol *string // the value of AnnotationProtocol; nil: it has none
}

// read reads the wishes of an Ingress, without regard to others.
func (v *conversion) read(o *networkingv1.Ingress) *claim.Owner {
	owner := &claim.Owner{Kind: ingressKind, Name: config.ObjectName{Namespace: o.Namespace, Name: o.Name}, UID: o.UID,
		Created: o.CreationTimestamp.Time, Further: v.further[o], TLS: tlsHosts(o), Certificates: certificatesOf(o)}
	owner.Guards = v.ingressGuards(owner, o)
	v.asked[owner] = annotation.SettingsOf(o)
	v.readGuards(owner, hostsOfRules(o))
	v.readCustomHeaders(owner)
	v.closeForKeys(owner)
	if n := annotation.Priority(o); n > 0 {
		v.priorities[owner] = n
	}
	i := &ingress{Ingress: o, owner: owner, route: o.Namespace + "/" + o.Name + "/"}
	if _, given := o.Annotations[AnnotationProtocol]; given {
		i.protocol = new(o.Annotations[AnnotationProtocol])
	}
	v.readRules(i)
	// A prefix means the same with and without a slash at its end; the longer one wins.
	slices.SortStableFunc(owner.Claims, func(a, b *claim.Claim) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(len(b.Written), len(a.Written)))
	})
	for _, host := range rulesOf(owner).unlisted {
		if !owner.HasTLS(host) && slices.ContainsFunc(owner.Certificates, func(c claim.Certificate) bool {
			s := v.secret(c.Secret)
			return s != nil && v.look(s).covers.has(host)
		}) {
			owner.TLS[host] = true
		}
	}
	v.readMoves(i)
	v.readDefault(i)
	return owner
}

// hostsOfRules are the hosts of the claims of an Ingress; empty: every host.
func hostsOfRules(o *networkingv1.Ingress) (hosts []string) {
	for _, r := range o.Spec.Rules {
		if r.Host == "" {
			hosts = append(hosts, "")
		} else if host, err := config.ParseHost(r.Host); err == nil {
			hosts = append(hosts, host)
		}
	}
	if len(o.Spec.Rules) == 0 {
		hosts = []string{""}
	}
	return hosts
}

// ingressGuards reports the unsupported annotations of an Ingress, and returns its guards;
// nil: it has none.
func (v *conversion) ingressGuards(owner *claim.Owner, o *networkingv1.Ingress) *claim.Guards {
	guards, others := annotation.Unsupported(o)
	v.tellUnsupported(owner.Reference(), guards, others)
	v.tellUnknown(ingressKind.APIVersion, ingressKind.Name, &o.ObjectMeta)
	for _, why := range annotation.RefusedSnippets(o) {
		v.events.Put(event.Event{Object: owner.Reference(), Reason: event.ReasonAccess, Rated: true, Message: why + "."})
	}
	return guardsOf(owner.Kind.Name, owner.Name, guards)
}

func (v *conversion) readRules(i *ingress) {
	known := map[string]bool{}
	for n := range i.Spec.Rules {
		rule := &i.Spec.Rules[n]
		host, err := "", error(nil)
		if rule.Host != "" {
			host, err = config.ParseHost(rule.Host)
		}
		if err != nil {
			v.on(i.owner, event.ReasonHost, "The host %q %v.", rule.Host, err)
			continue
		}
		if !known[host] {
			known[host] = true
			i.owner.Hosts = append(i.owner.Hosts, host)
		}
		if rule.HTTP == nil && i.Spec.DefaultBackend == nil && !slices.Contains(v.rests[i.Ingress], host) {
			v.on(i.owner, event.ReasonPath, "The rule for %s has no paths, and there is no default backend; add paths, or spec.defaultBackend.", claim.HostText(host))
		}
		if rule.HTTP != nil {
			v.readPaths(i, host, typedPaths(i.Ingress, rule.HTTP.Paths))
		}
	}
}

// on records an event on the object.
func (v *conversion) on(o *claim.Owner, reason event.Reason, format string, args ...any) {
	v.event(o.Reference(), reason, format, args...)
}

func (v *conversion) readPaths(i *ingress, host string, paths []networkingv1.HTTPIngressPath) {
	for n := range paths {
		p := &paths[n]
		path, beginnings, err := pathOf(p, v.patterns.of[hostIn{i.Namespace, host}])
		if err == nil && path.Expression {
			if older := v.patterns.taken(i.Ingress, host, p.Path, beginnings); older != nil {
				err = pattern{fmt.Sprintf("is a regular expression that would take the requests of the older Ingress %s/%s of another namespace; begin it with a longer path of its own", older.Namespace, older.Name)}
			}
		}
		if err != nil {
			v.refusePath(i, host, p, err)
			continue
		}
		c := v.claim(i, host, separated(path), path, &p.Backend)
		c.Written, c.Type, c.Beginnings = p.Path, string(typeOf(p)), beginnings
		c.Among = c.Among && !v.patterns.goesBefore(i.Ingress, host, p.Path)
	}
}

// readDefault adds the default backend. Without rules, it gets all requests that no
// other Ingress matches. With rules, it gets the requests for their hosts that match no path.
func (v *conversion) readDefault(i *ingress) {
	b := i.Spec.DefaultBackend
	if b == nil {
		return
	}
	if len(i.Spec.Rules) == 0 {
		i.owner.Hosts = []string{""}
	}
	for _, host := range i.owner.Hosts {
		v.claim(i, host, "", everyPath, b).Implicit = true
	}
}

// claim adds a claim to the Ingress. suffix ends the name of its route.
func (v *conversion) claim(i *ingress, host, suffix string, path config.Path, b *networkingv1.IngressBackend) *claim.Claim {
	c := &claim.Claim{Match: claim.Match{Host: host, Path: path}, Owner: i.owner, Route: i.route + cmp.Or(host, "*") + suffix, Backend: v.destination(i, b)}
	c.Among = v.patterns.any[host] && !path.Expression && path != everyPath && !claim.IsChallenge(path)
	i.owner.Claims = append(i.owner.Claims, c)
	return c
}

// destination is the backend of a claim.
func (v *conversion) destination(i *ingress, b *networkingv1.IngressBackend) claim.Backend {
	switch {
	case b.Resource != nil:
		return claim.Backend{Kind: b.Resource.Kind, Name: config.ObjectName{Namespace: i.Namespace, Name: b.Resource.Name}}
	case b.Service == nil:
		return claim.Backend{}
	}
	name := config.ObjectName{Namespace: i.Namespace, Name: b.Service.Name}
	return claim.Backend{Supported: true, Name: name, Port: portIn(v.service(name), b.Service.Port), Protocol: i.protocol, Guards: v.serviceGuards(name)}
}

// separated is the path in names of routes.
func separated(p config.Path) string {
	if p.Exact || p.Expression {
		return "/" + p.String()
	}
	return p.String()
}
