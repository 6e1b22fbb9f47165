package kube

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
)

// A Lint names the annotations of an Ingress or a Service that ask other
// controllers for what weir does not do, in a fixed order: those that keep
// clients out, or may, and all others. Undone of config/kube/lint is one.
type Lint func(metav1.Object) (guards, others []string)

// alike says whether two states of an object have the same to be told of.
func (l Lint) alike(a, b metav1.Object) bool {
	guardsA, othersA := l(a)
	guardsB, othersB := l(b)
	return slices.Equal(guardsA, guardsB) && slices.Equal(othersA, othersB)
}

// nginxPrefix is what ingress-nginx's annotations begin with.
const nginxPrefix = "nginx.ingress.kubernetes.io/"

// traefikPrefix is what Traefik's begin with.
const traefikPrefix = "traefik.ingress.kubernetes.io/"

// annotationCanary is ingress-nginx's: the Ingress is for a share of what another one has.
const annotationCanary = nginxPrefix + "canary"

// isCanary says whether the Ingress is to have a share alone. To weir it would
// be one like any other, and have everything where it is the older.
func isCanary(i *networkingv1.Ingress) bool {
	is, err := strconv.ParseBool(strings.TrimSpace(i.Annotations[annotationCanary]))
	return err == nil && is
}

// leaveOut says whether the Ingress, one of ours, is not to be served at all.
func (v *conversion) leaveOut(i *networkingv1.Ingress) bool {
	if !isCanary(i) {
		return false
	}
	v.event(reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta), ReasonCanary,
		"The annotation %s makes this a canary, and weir gives no share of requests to one yet; it is left out, and the main Ingress has all of them.", annotationCanary)
	return true
}

// guarded tells which annotations of the object, an Ingress or a Service, ask
// for what weir does not do, and returns those that keep clients out. Where there
// are any it is refused: nobody may come in, or everybody could.
func (v *conversion) guarded(at corev1.ObjectReference, o metav1.Object) (guards []string) {
	guards, others := v.lint(o)
	if len(guards) > 0 {
		v.event(at, ReasonAccess, "weir does not do what is asked for by %s, which keeps clients out, or may; the paths answer 503, or everybody would get in. Have the application or weir's configuration do it, and take this out.",
			strings.Join(guards, ", "))
	}
	others = slices.DeleteFunc(others, func(name string) bool { return name == AnnotationProtocol }) // letSpeak tells of that
	if len(others) > 0 {
		v.event(at, ReasonUndone, "weir does not do what some annotations ask for, and goes on without it; weir lint says what to do instead. Take them out: %s.",
			strings.Join(others, ", "))
	}
	return guards
}

// maxPatterns is how many expressions of one host are held against its paths.
const maxPatterns = 100

// hostIn is a host as the Ingresses of one namespace have it.
type hostIn struct{ namespace, host string }

// closeHosts finds the hosts that an Ingress closes for others as well: at
// ingress-nginx some annotations hold for all paths of a host, whichever Ingress
// has them. Another namespace's Ingresses stay as they are: whoever may write
// one here could close anybody's host.
func (v *conversion) closeHosts() {
	v.closed = map[hostIn]*ingress{}
	for _, i := range v.ingresses {
		if !slices.ContainsFunc(i.guards, isOfHost) {
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
				v.closed[in] = i // each path would be held against each
			}
		}
	}
}

// shadows says whether ingress-nginx would ask the expression of p first for what
// w has: all paths of a host are expressions there where one is, the longest first.
func (p *want) shadows(w *want) bool {
	top, path := strings.ToLower(strings.TrimSuffix(p.path.Value, "/")), strings.ToLower(w.path.Value)
	under := path == top || strings.HasPrefix(path, top+"/") || p.loose && strings.HasPrefix(path, top)
	return p.by != w.by && under && len(w.written) <= len(p.written)
}

// served is the path that the route of w has. Of one that is refused nothing
// may be left that gets in by the route of a shorter path: what an application
// takes for it is refused as well, and what Traefik and ingress-nginx do.
func (w *want) served() config.Path {
	p := w.path
	if len(w.guards) > 0 {
		p.Closed = true
		text := slices.ContainsFunc(w.guards, func(name string) bool { return strings.HasPrefix(name, traefikPrefix) })
		if plain, err := url.PathUnescape(p.Value); err == nil {
			p.Value = plain
		}
		if !p.Exact { // /a%2f is no longer than /a, which somebody else may have
			p.Value = cmp.Or(strings.TrimRight(p.Value, "/"), "/")
		}
		p.Exact = p.Exact && !w.loose // an expression there
		p.Begins = !p.Exact && (w.loose || text && !strings.HasSuffix(w.written, "/"))
	}
	return p
}

// isOfHost says whether the annotation holds for all paths of a host at ingress-nginx.
func isOfHost(annotation string) bool {
	short, ok := strings.CutPrefix(annotation, nginxPrefix)
	return ok && (short == "server-snippet" || strings.HasPrefix(short, "auth-tls-"))
}

// refuses says by which annotations nobody may come in by w, if any.
func (v *conversion) refuses(w *want) (guards []string) {
	if len(w.by.guards) > 0 {
		return w.by.guards
	}
	in := hostIn{w.by.Namespace, w.host}
	if by := v.closed[in]; by != nil && !isChallenge(w.path) {
		v.on(w.by, ReasonAccess, "The Ingress %s of this namespace keeps clients out of all paths of %s, or may, by %s, which weir does not do; these paths answer 503 as well. Have the application or weir's configuration do it, and take that out there.",
			by.name, shown(w.host), strings.Join(by.guards, ", "))
		return by.guards
	}
	for _, p := range v.patterns[in] {
		if p.shadows(w) && !isChallenge(w.path) {
			v.on(w.by, ReasonAccess, "The Ingress %s of this namespace keeps clients out of %q of %s, or may, by %s, which weir does not do; it cannot match that expression, so %s answers 503 as well. Write prefixes there, or have the application or weir's configuration do it.",
				p.by.name, p.written, shown(w.host), strings.Join(p.by.guards, ", "), w.claim)
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
	return v.guarded(reference("v1", "Service", &s.ObjectMeta), s)
}
