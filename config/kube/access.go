package kube

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/event"
)

// sameUnsupported reports whether two states of an object have the same unsupported
// annotations.
func sameUnsupported(a, b metav1.Object) bool {
	guardsA, othersA := annotation.Unsupported(a)
	guardsB, othersB := annotation.Unsupported(b)
	return slices.Equal(guardsA, guardsB) && slices.Equal(othersA, othersB)
}

// annotationCanary is an annotation of ingress-nginx: the Ingress gets a share of another one's requests.
const annotationCanary = annotation.Nginx + "canary"

// isCanary reports whether the Ingress is a canary. Without this check weir would treat
// it as an ordinary Ingress, and it would get all requests if it were the older.
func isCanary(i *networkingv1.Ingress) bool {
	is, err := strconv.ParseBool(strings.TrimSpace(i.Annotations[annotationCanary]))
	return err == nil && is
}

// leaveOut reports whether weir ignores the Ingress although weir serves its class.
func (v *conversion) leaveOut(i *networkingv1.Ingress) bool {
	if !isCanary(i) {
		return false
	}
	v.event(reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta), event.ReasonCanary,
		"The annotation %s makes this Ingress a canary. weir does not support canaries yet and ignores this Ingress, so the main Ingress gets all requests.", annotationCanary)
	return true
}

// guarded reports the unsupported annotations of an Ingress or a Service, and
// returns its guards. If there are guards, the paths of the object answer 503:
// otherwise everybody would have access.
func (v *conversion) guarded(at corev1.ObjectReference, o metav1.Object) (guards []string) {
	guards, others := annotation.Unsupported(o)
	if len(guards) > 0 {
		v.event(at, event.ReasonAccess, "All paths of this %s answer 503, because otherwise everybody would have access: it has annotations that restrict access, or may, and that weir does not support. Restrict access in the application or in weir's configuration, then remove these annotations: %s.",
			at.Kind, strings.Join(guards, ", "))
	}
	others = slices.DeleteFunc(others, func(name string) bool { return name == AnnotationProtocol }) // letSpeak reports it
	if len(others) > 0 {
		v.event(at, event.ReasonUndone, "weir serves this %s without the annotations that it does not support. Run weir lint to see what to do instead, then remove them: %s.",
			at.Kind, strings.Join(others, ", "))
	}
	return guards
}

// maxPatterns is the maximum number of regular expressions of one host that weir compares with its paths.
const maxPatterns = 100

// hostIn is a host as the Ingresses of one namespace have it.
type hostIn struct{ namespace, host string }

// closeHosts finds the hosts that an Ingress also closes for other Ingresses:
// ingress-nginx applies some annotations to all paths of a host, whichever Ingress
// has them. Ingresses of other namespaces stay open: otherwise the author of one
// Ingress could close the host of any tenant.
func (v *conversion) closeHosts() {
	v.closed = map[hostIn]*ingress{}
	for _, i := range v.ingresses {
		if !slices.ContainsFunc(i.guards, annotation.IsOfHost) {
			continue
		}
		for _, w := range i.wants {
			if in := (hostIn{i.Namespace, w.host}); v.closed[in] == nil {
				v.closed[in] = i
			}
		}
	}
	v.patterns = map[hostIn][]*want{}
	for _, i := range v.ingresses {
		for _, w := range i.wants {
			in := hostIn{i.Namespace, w.host}
			switch {
			case !w.pattern:
			case len(v.patterns[in]) < maxPatterns:
				v.patterns[in] = append(v.patterns[in], w)
			case v.closed[in] == nil:
				v.closed[in] = i // comparing each path with each expression takes too long
			}
		}
	}
}

// shadows reports whether ingress-nginx would try the regular expression of p before
// the path of w. If one path of a host is a regular expression there, all paths
// are, and the longest is tried first.
func (p *want) shadows(w *want) bool {
	top, path := strings.ToLower(strings.TrimSuffix(p.path.Value, "/")), strings.ToLower(w.path.Value)
	under := path == top || strings.HasPrefix(path, top+"/") || p.loose && strings.HasPrefix(path, top)
	return p.by != w.by && under && len(w.written) <= len(p.written)
}

// served is the path of w's route. A closed path must not be reachable by the route
// of a shorter path: so it also matches the spellings that an application, Traefik
// or ingress-nginx treats as the same path.
func (w *want) served() config.Path {
	p := w.path
	switch {
	case w.plainly:
		p.Begins = w.loose && !w.defeats
		return p
	case len(w.guards) == 0 && w.refusal == nil:
		return p
	}
	p.Closed = true
	text := slices.ContainsFunc(w.guards, func(name string) bool { return strings.HasPrefix(name, annotation.Traefik) })
	if plain, err := url.PathUnescape(p.Value); err == nil {
		p.Value = plain
	}
	if !p.Exact && len(w.guards) > 0 { // the closed path /a%2f must cover /a too: another Ingress may serve /a
		p.Value = cmp.Or(strings.TrimRight(p.Value, "/"), "/")
	}
	p.Exact = p.Exact && !w.loose // an expression there
	p.Begins = !p.Exact && (w.loose || text && !strings.HasSuffix(w.written, "/"))
	return p
}

// closure is why the path of w is closed; nil: w is served.
func (w *want) closure() *config.Closure {
	switch {
	case len(w.guards) > 0:
		return &config.Closure{Reason: "closed_by_annotation", Why: fmt.Sprintf(
			"the path is closed because weir does not support %s of the %s, which may restrict access", strings.Join(w.guards, ", "), w.guardian)}
	case w.refusal != nil:
		return &config.Closure{Reason: "closed_path", Why: fmt.Sprintf(
			"the path is closed because the path %.300q of the Ingress %s %v", w.refusal.written, w.by.name, w.refusal.why)}
	}
	return nil
}

// refuses returns the guards that close w, if there are any.
func (v *conversion) refuses(w *want) (guards []string) {
	w.guardian = "Ingress " + w.by.name.String()
	if len(w.by.guards) > 0 {
		return w.by.guards
	}
	in := hostIn{w.by.Namespace, w.host}
	if by := v.closed[in]; by != nil && !isChallenge(w.path) {
		v.on(w.by, event.ReasonAccess, "Paths of %s answer 503: the Ingress %s of this namespace restricts access to the whole host, or may, by annotations that weir does not support. Restrict access in the application or in weir's configuration, then remove these annotations there: %s.",
			shown(w.host), by.name, strings.Join(by.guards, ", "))
		w.guardian = "Ingress " + by.name.String()
		return by.guards
	}
	for _, p := range v.patterns[in] {
		if p.shadows(w) && !isChallenge(w.path) {
			v.on(w.by, event.ReasonAccess, "%s answers 503: the Ingress %s of this namespace restricts access to %q, or may, by annotations that weir does not support. weir cannot match this regular expression, so it may include this path. Replace it with prefixes, or restrict access in the application or in weir's configuration and remove these annotations there: %s.",
				sentence(w.claim), p.by.name, p.written, strings.Join(p.by.guards, ", "))
			w.guardian = "Ingress " + p.by.name.String()
			return p.by.guards
		}
	}
	if w.backend.Service == nil {
		return nil
	}
	s := v.services[config.ObjectName{Namespace: w.by.Namespace, Name: w.backend.Service.Name}]
	if s == nil {
		return nil
	}
	w.guardian = "Service " + s.Namespace + "/" + s.Name
	return v.guarded(reference("v1", "Service", &s.ObjectMeta), s)
}
