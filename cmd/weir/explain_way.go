package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// objectKey names an object. Without a kind it is of any kind.
type objectKey struct{ kind, namespace, name string }

func (k objectKey) String() string {
	return k.kind + " " + strings.TrimPrefix(k.namespace+"/"+k.name, "/")
}

// way has the objects on the way of one request: those that name its host and path, those of its route and listener, and
// those that they name.
type way struct {
	*objectsRead
	host, path string
	route      *config.Route               // nil: none has the request
	shares     bool                        // the listener may be that of any Gateway
	found      map[objectKey]metav1.Object // nil: its names do not matter
	faults     map[objectKey][]string      // of all objects
}

// warn prints the errors of the objects on the way of a request as warnings. x is nil if weir cannot explain the request.
func (o *objectsRead) warn(out io.Writer, cfg *config.Config, asked node.Asked, x *node.Explained) {
	w := &way{objectsRead: o, found: map[objectKey]metav1.Object{}, faults: map[objectKey][]string{}}
	w.shares = x == nil || cfg.Kubernetes.Gateways != nil && len(cfg.Kubernetes.Gateways.Addresses.Shared) > 0
	w.read(cfg, asked, x)
	w.findFaults(cfg.Kubernetes)
	w.findNamers()
	if x != nil {
		w.findListener(x.Listener)
	}
	for n := 0; n < 3; n++ { // a route names a ListenerSet, which names a Gateway, which names a Secret
		w.findNamed()
	}
	w.tellBothKinds(out)
	byName := func(a, b objectKey) int { return strings.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(w.found), byName) {
		for _, message := range w.faults[key] {
			fmt.Fprintf(out, "%s: warning: %s\n", key, inFiles(message))
		}
	}
}

// absent matches what messages say of objects that a cluster does not have.
var absent = regexp.MustCompile(`\bdoes not exist(; create it(, or [a-z ]+)?)?`)

// inFiles returns a message of weir about objects that come from files, which are rarely complete.
func inFiles(message string) string {
	message = strings.ReplaceAll(message, "does not exist. Until it does,", "is not in the files. Without it,")
	return absent.ReplaceAllString(message, "is not in the files")
}

// read takes the host, the path and the route of the request.
func (w *way) read(cfg *config.Config, asked node.Asked, x *node.Explained) {
	_, rest, _ := strings.Cut(asked.URL, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	w.host, w.path = rest[:end], rest[end:]
	for _, h := range asked.Headers {
		if name, value, _ := strings.Cut(h, ":"); strings.EqualFold(name, "Host") {
			w.host = strings.TrimSpace(value)
		}
	}
	if i := strings.LastIndexByte(w.host, ':'); i > strings.LastIndexByte(w.host, ']') {
		w.host = w.host[:i]
	}
	w.host = strings.ToLower(strings.TrimSuffix(w.host, "."))
	w.path, _, _ = strings.Cut(w.path, "?")
	if plain, err := url.PathUnescape(w.path); err == nil {
		w.path = plain
	}
	if !strings.HasPrefix(w.path, "/") {
		w.path = "/" + w.path
	}
	for _, r := range cfg.Routes {
		if x != nil && r.Name == x.Route && x.Route != "" && slices.Contains(r.Listeners, x.Listener) {
			w.route = r
		}
	}
}

func (w *way) findFaults(k *config.Kubernetes) {
	for _, e := range w.routing.Events {
		key := objectKey{e.Object.Kind, e.Object.Namespace, e.Object.Name}
		w.faults[key] = append(w.faults[key], e.Message)
	}
	for _, i := range w.Ingresses {
		key := objectKey{"Ingress", i.Namespace, i.Name}
		if len(w.faults[key]) == 0 && !slices.Contains(w.routing.Ingresses, config.ObjectName{Namespace: i.Namespace, Name: i.Name}) {
			if why := w.whyUnserved(i, k); why != "" {
				w.faults[key] = []string{why}
			}
		}
	}
	if w.routing.Gateways == nil {
		return
	}
	for _, s := range w.routing.Gateways.Status {
		tellStatus(s, func(k gateway.Key, message string) {
			key := objectKey{k.Kind, k.Namespace, k.ObjectName.Name}
			if !slices.Contains(w.faults[key], message) {
				w.faults[key] = append(w.faults[key], message)
			}
		})
	}
}

// whyUnserved is why weir does not serve an Ingress without errors; empty: not known.
func (w *way) whyUnserved(i *networkingv1.Ingress, k *config.Kubernetes) string {
	var own []string
	known := false
	for _, c := range w.Classes {
		known = known || c.Name == k.Class
		if c.Spec.Controller == k.Controller && (k.Class == "" || k.Class == c.Name) {
			own = append(own, c.Name)
		}
	}
	if k.Class != "" && !known {
		own = []string{k.Class}
	}
	serves := cmp.Or(strings.Join(own, ", "), "classes with the controller "+k.Controller)
	switch class := classOf(i); {
	case len(k.Namespaces) > 0 && !slices.Contains(k.Namespaces, i.Namespace):
		return "kubernetes.namespaces in weir's configuration does not have its namespace."
	case class == "":
		return "It has no class, and no class of weir is the default; weir serves " + serves + "."
	case !slices.Contains(own, class):
		return fmt.Sprintf("It has the class %s; weir serves %s.", class, serves)
	case len(k.NamespaceLabels) > 0:
		return "Its namespace does not have the labels in kubernetes.namespace_labels of weir's configuration."
	}
	return ""
}

func (w *way) add(kind string, o metav1.Object) {
	w.found[objectKey{kind, o.GetNamespace(), o.GetName()}] = o
}

// findNamers finds the Ingresses and routes that have the request, or that name its host and path. Wildcards, and objects
// for every host, count only if no route has the request.
func (w *way) findNamers() {
	for _, i := range w.Ingresses {
		if w.owns("Ingress", i) || w.namedByIngress(i) {
			w.add("Ingress", i)
		}
	}
	if w.Gateway == nil {
		return
	}
	for _, r := range w.Gateway.HTTP {
		paths := len(r.Spec.Rules) == 0
		for _, rule := range r.Spec.Rules {
			paths = paths || len(rule.Matches) == 0 || slices.ContainsFunc(rule.Matches, func(m gatewayv1.HTTPRouteMatch) bool {
				return m.Path == nil || m.Path.Value == nil || w.below(*m.Path.Value)
			})
		}
		w.findRoute(gateway.KindHTTPRoute, r, r.Spec.Hostnames, paths)
	}
	for _, r := range w.Gateway.GRPC {
		w.findRoute(gateway.KindGRPCRoute, r, r.Spec.Hostnames, true)
	}
	for _, r := range w.Gateway.TLS {
		w.findRoute(gateway.KindTLSRoute, r, r.Spec.Hostnames, true)
	}
	for _, r := range w.Gateway.TCP {
		w.findRoute(gateway.KindTCPRoute, r, nil, false)
	}
}

func (w *way) findRoute(kind string, o metav1.Object, hosts []gatewayv1.Hostname, paths bool) {
	named := len(hosts) == 0 && w.route == nil
	for _, h := range hosts {
		named = named || w.names(string(h))
	}
	if w.owns(kind, o) || named && paths {
		w.add(kind, o)
	}
}

// owns reports whether the route of the request was made of the object.
func (w *way) owns(kind string, o metav1.Object) bool {
	if w.route == nil || w.route.Namespace != o.GetNamespace() {
		return false
	}
	if kind == "Ingress" {
		return w.route.Ingress == o.GetName()
	}
	return strings.HasPrefix(w.route.Name, strings.ToLower(kind)+"/"+o.GetNamespace()+"/"+o.GetName()+"/")
}

// names reports whether a host of an object is that of the request.
func (w *way) names(written string) bool {
	host := strings.ToLower(written)
	if host == w.host {
		return true
	}
	suffix, wild := strings.CutPrefix(host, "*")
	return w.route == nil && (host == "" || wild && strings.HasSuffix(w.host, suffix))
}

// below reports whether a path of an object, which may be an expression, may match that of the request.
func (w *way) below(path string) bool {
	plain := strings.TrimRight(path, "/")
	return strings.ContainsAny(path, `^$*+?()[]{}|\`) || w.path == plain || strings.HasPrefix(w.path, plain+"/")
}

func (w *way) namedByIngress(i *networkingv1.Ingress) bool {
	const prefix = "nginx.ingress.kubernetes.io/"
	aliases := strings.FieldsFunc(i.Annotations[prefix+"server-alias"], func(r rune) bool { return r == ',' || r == ' ' })
	if slices.ContainsFunc(aliases, w.names) {
		return true
	}
	for _, rule := range i.Spec.Rules {
		other := i.Annotations[prefix+"from-to-www-redirect"] == "true" && (w.host == "www."+rule.Host || "www."+w.host == rule.Host)
		if !other && !w.names(rule.Host) {
			continue
		}
		if rule.HTTP == nil || slices.ContainsFunc(rule.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool { return w.below(p.Path) }) {
			return true
		}
	}
	return w.route == nil && len(i.Spec.Rules) == 0
}

// findListener finds the Gateway of a listener, or the ConfigMap for raw TCP.
func (w *way) findListener(name string) {
	if w.TCP != nil && strings.HasPrefix(name, w.TCP.Name+"/") {
		w.add("ConfigMap", w.TCP)
	}
	if w.Gateway == nil {
		return
	}
	for _, g := range w.Gateway.Gateways {
		if strings.HasPrefix(name, "gateway/"+g.Namespace+"/"+g.Name+"/") {
			w.add(gateway.KindGateway, g)
		}
	}
}

// findNamed finds the objects that those on the way name.
func (w *way) findNamed() {
	refs := map[objectKey]bool{}
	for key, o := range w.found {
		var all map[string]any
		if text, err := json.Marshal(o); o == nil || err != nil || json.Unmarshal(text, &all) != nil {
			continue
		}
		collectNames(all["spec"], key.namespace, refs)
		for _, value := range o.GetAnnotations() {
			if name, err := config.ParseObjectName(value); err == nil {
				refs[objectKey{"", name.Namespace, name.Name}] = true
			}
			refs[objectKey{"", key.namespace, strings.TrimSpace(value)}] = true
		}
		if c := w.Controller; c != nil && key.kind == "Ingress" {
			refs[objectKey{"ConfigMap", c.Namespace, c.Name}] = true
		}
	}
	has := func(kind, namespace, name string) bool {
		return refs[objectKey{kind, namespace, name}] || refs[objectKey{"", namespace, name}]
	}
	for key := range w.faults {
		_, known := w.found[key]
		own := slices.Contains([]string{"Ingress", gateway.KindGateway, gateway.KindListenerSet}, key.kind) || strings.HasSuffix(key.kind, "Route")
		if !known && !own && has(key.kind, key.namespace, key.name) {
			w.found[key] = nil
		}
	}
	if w.Gateway == nil {
		return
	}
	for _, o := range w.Gateway.Gateways {
		if w.shares && has(gateway.KindGateway, o.Namespace, o.Name) {
			w.add(gateway.KindGateway, o)
		}
	}
	for _, o := range w.Gateway.Sets {
		parent := objectKey{gateway.KindGateway, o.Namespace, string(o.Spec.ParentRef.Name)}
		if n := o.Spec.ParentRef.Namespace; n != nil {
			parent.namespace = string(*n)
		}
		if has(gateway.KindListenerSet, o.Namespace, o.Name) && (w.shares || w.found[parent] != nil) {
			w.add(gateway.KindListenerSet, o)
		}
	}
	for _, o := range w.Gateway.Policies { // they name the Services
		for _, t := range o.Spec.TargetRefs {
			if has(string(t.Kind), o.Namespace, string(t.Name)) {
				w.add(gateway.KindPolicy, o)
			}
		}
	}
}

// collectNames collects the names of objects in a part of an object of this namespace.
func collectNames(part any, namespace string, to map[objectKey]bool) {
	switch part := part.(type) {
	case []any:
		for _, one := range part {
			collectNames(one, namespace, to)
		}
	case map[string]any:
		text := func(field string) string { s, _ := part[field].(string); return s }
		key := objectKey{text("kind"), namespace, text("name")}
		if other := text("namespace"); other != "" {
			key.namespace = other
		}
		to[key] = true
		for _, field := range []string{"secretName", "ingressClassName", "gatewayClassName"} {
			if name := text(field); name != "" {
				to[objectKey{"", namespace, name}], to[objectKey{"", "", name}] = true, true // classes are of no namespace
			}
		}
		for _, one := range part {
			collectNames(one, namespace, to)
		}
	}
}

// tellBothKinds says what happens to a path that an Ingress and a route of a Gateway name, unless both serve it.
func (w *way) tellBothKinds(out io.Writer) {
	var ingresses, routes []string
	served := true
	for key := range w.found {
		var does string
		switch key.kind {
		case "Ingress":
			does = w.doneBy(key, func(r *config.Route) bool { return r.Namespace == key.namespace && r.Ingress == key.name })
			ingresses = append(ingresses, does+" by the "+key.String())
		case gateway.KindHTTPRoute:
			prefix := "httproute/" + key.namespace + "/" + key.name + "/"
			does = w.doneBy(key, func(r *config.Route) bool { return strings.HasPrefix(r.Name, prefix) })
			routes = append(routes, does+" by the "+key.String())
		default:
			continue
		}
		served = served && does == "served"
	}
	if len(ingresses) == 0 || len(routes) == 0 || served {
		return
	}
	slices.Sort(ingresses)
	slices.Sort(routes)
	fmt.Fprintf(out, "warning: both kinds of objects name this path of %s, and it is %s.\n", w.host, strings.Join(slices.Concat(ingresses, routes), ", and "))
}

// doneBy is what an object does with the path of the request.
func (w *way) doneBy(key objectKey, ofObject func(*config.Route) bool) string {
	var best *config.Route
	for _, r := range w.routing.Routes {
		toHTTPS := r.OnlyRedirects() && !r.Redirect.Moves()
		if !ofObject(r) || toHTTPS || len(r.Hosts) > 0 && !slices.ContainsFunc(r.Hosts, w.covers) {
			continue
		}
		if len(r.Paths) > 0 && !slices.ContainsFunc(r.Paths, w.matches) {
			continue
		}
		if best == nil || len(r.Paths) > 0 && (len(best.Paths) == 0 || len(r.Paths[0].Value) > len(best.Paths[0].Value)) {
			best = r
		}
	}
	dropped := slices.ContainsFunc(w.faults[key], func(m string) bool { return strings.Contains(m, "Dropped Rule ") })
	switch {
	case best == nil && dropped:
		return "dropped"
	case best == nil:
		return "not served"
	case best.Closure != nil:
		return "closed (503)"
	case key.kind == gateway.KindHTTPRoute && dropped && strings.HasSuffix(best.Backend, "/missing"):
		return "dropped (500)"
	}
	return "served"
}

// covers reports whether a host of a route has the host of the request.
func (w *way) covers(host string) bool {
	return host == w.host || strings.HasPrefix(host, "*") && strings.HasSuffix(w.host, strings.TrimLeft(host, "*"))
}

// matches reports whether a path of a route has the path of the request.
func (w *way) matches(p config.Path) bool {
	switch {
	case p.Expression:
		flags := ""
		if p.Decoded {
			flags = "(?i)"
		}
		e, err := regexp.Compile(flags + "^(?:" + p.Value + ")")
		return err == nil && e.MatchString(w.path)
	case p.Exact:
		return p.Value == w.path
	}
	plain := strings.TrimSuffix(p.Value, "/")
	return w.path == plain || strings.HasPrefix(w.path, plain+"/") || p.Begins && strings.HasPrefix(w.path, plain)
}
