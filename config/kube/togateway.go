package kube

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/controller"
)

// AsGateway has Ingresses as objects of the Gateway API. An Ingress with anything for which the API has nothing equal stays
// an Ingress, and so do all others of its hosts: a route must not be open where the Ingress was not.
type AsGateway struct {
	Objects []map[string]any // in the order in which to create them
	Stay    []string         // a sentence for each Ingress that stays, with the reason
	Notes   []string         // differences between the Ingresses and the routes
	// Of has the Ingress of each HTTPRoute.
	Of map[config.ObjectName]config.ObjectName
}

// maxListeners and maxRules are limits of the Gateway API: listeners of a ListenerSet, and rules of a HTTPRoute.
const (
	maxListeners = 64
	maxRules     = 16
)

// toGateway is one conversion of Ingresses.
type toGateway struct {
	AsGateway
	gateway    config.ObjectName
	file       *config.Config
	controller *controller.Settings
	services   map[config.ObjectName]*corev1.Service
	served     map[config.ObjectName]bool            // the Ingresses that weir serves
	routes     map[config.ObjectName][]*config.Route // of Ingresses
	backends   map[string]*Backend
	secrets    map[string]tlsListener // by host: of the oldest Ingress with TLS for it
	tls        map[string]tlsListener // by host: the listeners so far
	count      map[string]int         // of listeners, by namespace
	sets       []map[string]any
}

// tlsListener is the listener for the TLS of a host.
type tlsListener struct{ namespace, set, section, secret string }

// ingressDraft is the conversion of one Ingress.
type ingressDraft struct {
	*networkingv1.Ingress
	hosts []string
	rules map[string][]any // by host
	plain map[string]bool  // hosts that are also served without TLS
	notes []string
	stays error // nil: it does not stay
}

func (d *ingressDraft) String() string { return "Ingress " + d.Namespace + "/" + d.Name }

// ToGateway converts Ingresses into a Gateway of this name and class, ListenerSets and HTTPRoutes. It writes what weir does
// for the Ingresses by the configuration, except for those in stay, for which it has the reasons. Without the Services weir
// knows neither named ports nor annotations.
func ToGateway(file *config.Config, o *Objects, name config.ObjectName, class string, stay map[config.ObjectName]string) *AsGateway {
	c := &toGateway{gateway: name, file: file, services: map[config.ObjectName]*corev1.Service{}, secrets: map[string]tlsListener{}, tls: map[string]tlsListener{}, count: map[string]int{}}
	c.Of = map[config.ObjectName]config.ObjectName{}
	for _, s := range o.Services {
		c.services[objectName(s)] = s
	}
	if file.Kubernetes.IngressNginx != nil {
		c.controller = readController(file, o.Controller)
		c.Notes = append(c.Notes, "The ConfigMap of ingress-nginx does not apply to routes. Routes have its headers, timeouts and CORS, but not its limits of bodies, its retries and its compression.")
	}
	c.serve(o)
	inOrder := slices.SortedFunc(slices.Values(o.Ingresses), compareAges)
	for _, i := range inOrder {
		wanted, _ := wantedSecrets(i)
		for host, secret := range wanted {
			if _, known := c.secrets[host]; !known {
				c.secrets[host] = tlsListener{namespace: i.Namespace, secret: secret}
			}
		}
	}
	var all []*ingressDraft
	for _, i := range inOrder {
		d := c.draft(i)
		if why := stay[objectName(i)]; why != "" {
			d.stays = errors.New(why)
		}
		all = append(all, d)
	}
	stayTogether(all)
	var routes []map[string]any
	for _, d := range all {
		if d.stays != nil {
			c.Stay = append(c.Stay, fmt.Sprintf("%s: %s.", d, strings.TrimSuffix(d.stays.Error(), ".")))
			continue
		}
		routes = append(routes, c.routesOf(d)...)
	}
	from := map[string]any{"namespaces": map[string]any{"from": "All"}}
	gateway := gatewayObject("Gateway", name.Namespace, name.Name, map[string]any{"gatewayClassName": class, "allowedListeners": from,
		"listeners": []any{map[string]any{"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": from}}})
	c.Objects = slices.Concat([]map[string]any{gateway}, c.sets, routes)
	return &c.AsGateway
}

func gatewayObject(kind, namespace, name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": gatewayv1.GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec}
}

// serve finds what weir does for the Ingresses.
func (c *toGateway) serve(o *Objects) {
	c.served, c.routes, c.backends = map[config.ObjectName]bool{}, map[config.ObjectName][]*config.Route{}, map[string]*Backend{}
	converter := Converter{File: c.file, Offline: true}
	r := converter.Convert(c.withServices(o))
	for _, name := range r.Ingresses {
		c.served[name] = true
	}
	for _, b := range r.Backends {
		c.backends[b.Name] = b
	}
	for _, route := range r.Routes {
		if name := (config.ObjectName{Namespace: route.Namespace, Name: route.Ingress}); route.Ingress != "" {
			c.routes[name] = append(c.routes[name], route)
		}
	}
}

// withServices returns the objects with the Services that Ingresses name by the numbers of ports: manifests are rarely complete.
func (c *toGateway) withServices(o *Objects) *Objects {
	all, made := *o, map[config.ObjectName]*corev1.Service{}
	for _, i := range o.Ingresses {
		for b := range backendsOf(i) {
			if b.Service == nil || b.Service.Port.Number == 0 {
				continue
			}
			name := config.ObjectName{Namespace: i.Namespace, Name: b.Service.Name}
			if c.services[name] != nil {
				continue
			}
			s := made[name]
			if s == nil {
				s = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Spec: corev1.ServiceSpec{ClusterIP: "192.0.2.1"}}
				made[name], all.Services = s, append(slices.Clip(all.Services), s)
			}
			if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == b.Service.Port.Number }) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: b.Service.Port.Number})
			}
		}
	}
	return &all
}

// converted are the annotations that rules can have, and left those without which routes go.
var (
	converted = strings.Fields("ssl-redirect force-ssl-redirect use-regex rewrite-target permanent-redirect permanent-redirect-code temporal-redirect temporal-redirect-code from-to-www-redirect app-root " +
		"server-alias upstream-vhost x-forwarded-prefix custom-headers configuration-snippet server-snippet enable-cors cors-allow-origin cors-allow-methods cors-allow-headers cors-expose-headers cors-allow-credentials cors-max-age " +
		"proxy-read-timeout proxy-connect-timeout proxy-send-timeout canary canary-by-header canary-by-header-value canary-by-header-pattern canary-by-cookie canary-weight canary-weight-total")
	left = strings.Fields("proxy-body-size client-body-buffer-size proxy-buffering proxy-request-buffering proxy-buffer-size proxy-buffers-number proxy-busy-buffers-size proxy-max-temp-file-size proxy-http-version " +
		"proxy-next-upstream proxy-next-upstream-tries proxy-next-upstream-timeout load-balance enable-access-log enable-opentelemetry opentelemetry-trust-incoming-span opentelemetry-operation-name " +
		"preserve-trailing-slash use-port-in-redirects http2-push-preload connection-proxy-header ssl-prefer-server-ciphers")
)

// asks returns the annotations of an Ingress for which the Gateway API has nothing equal, and those without which routes go.
func (c *toGateway) asks(i *networkingv1.Ingress) (asks, without []string) {
	read := i
	if c.controller != nil {
		read = c.controller.Keyed(i)
	}
	for _, a := range annotation.Rate(read) {
		short, _ := strings.CutPrefix(a.Name, annotation.Nginx)
		switch {
		case !a.Guard && slices.Contains(left, short):
			without = append(without, a.Name)
		case a.Rating == annotation.No, !slices.Contains(converted, short) && !hasNoEffect(read, a):
			asks = append(asks, a.Name)
		}
	}
	return asks, without
}

// ofOthers are the annotations of an Ingress that programs for certificates and DNS read.
func ofOthers(i *networkingv1.Ingress) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(i.Annotations)) {
		for _, prefix := range []string{"cert-manager.io/", "acme.cert-manager.io/", "kubernetes.io/tls-acme", "external-dns.alpha.kubernetes.io/"} {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
	}
	return names
}

// hasNoEffect reports whether an annotation asks for what weir does anyway.
func hasNoEffect(i *networkingv1.Ingress, a annotation.Rated) bool {
	if a.Rating != annotation.Exact || !strings.HasPrefix(a.Name, annotation.Nginx) {
		return false
	}
	if a.Name == AnnotationProtocol {
		return strings.EqualFold(strings.TrimSpace(a.Value), "HTTP")
	}
	without := *i
	without.Annotations = maps.Clone(i.Annotations)
	delete(without.Annotations, a.Name)
	return reflect.DeepEqual(annotation.SettingsOf(i), annotation.SettingsOf(&without))
}

// draft converts one Ingress.
func (c *toGateway) draft(i *networkingv1.Ingress) *ingressDraft {
	d := &ingressDraft{Ingress: i, rules: map[string][]any{}, plain: map[string]bool{}}
	for host := range ruleHosts(i) {
		if !slices.Contains(d.hosts, host) {
			d.hosts = append(d.hosts, host)
		}
	}
	asks, without := c.asks(i)
	switch {
	case len(asks) > 0:
		d.stays = fmt.Errorf("the Gateway API has nothing, or nothing equal, for %s", strings.Join(asks, ", "))
	case i.Spec.DefaultBackend != nil && len(i.Spec.Rules) > 0:
		d.stays = errors.New("it has rules and spec.defaultBackend")
	case isCanary(i):
		if !c.served[objectName(i)] {
			d.stays = errors.New("it is a canary, and no Ingress has its host, path and pathType")
		}
		return d
	default:
		if len(without) > 0 {
			d.notes = append(d.notes, "its routes go without "+strings.Join(without, ", ")+", for which the Gateway API has nothing equal")
		}
		if others := ofOthers(i); len(others) > 0 {
			d.notes = append(d.notes, "other programs read "+strings.Join(others, ", ")+", and renew no certificate and keep no DNS record without it; write what they need into the Gateway, the ListenerSet or the HTTPRoute before you delete the Ingress")
		}
		d.stays = cmp.Or(c.checkPaths(i), c.checkServices(i), c.readRoutes(d), c.checkSecrets(d))
	}
	return d
}

// checkPaths returns an error if weir does not serve a path of an Ingress.
func (c *toGateway) checkPaths(i *networkingv1.Ingress) error {
	for n := range i.Spec.Rules {
		rule := &i.Spec.Rules[n]
		host, err := "", error(nil)
		if rule.Host != "" {
			host, err = config.ParseHost(rule.Host)
		}
		if err != nil || rule.HTTP == nil {
			return fmt.Errorf("its rule for %q has no valid host, or no paths", rule.Host)
		}
		for j := range rule.HTTP.Paths {
			p := &rule.HTTP.Paths[j]
			path, err := textOf(p)
			has := func(r *config.Route) bool {
				if r.IngressHost != cmp.Or(host, "*") || len(r.Paths) == 0 {
					return false
				}
				return r.Closure != nil || r.Paths[0].Value == p.Path || err == nil && r.Paths[0].Value == path.Value
			}
			if !slices.ContainsFunc(c.routes[objectName(i)], has) {
				return fmt.Errorf("weir does not serve its path %q of %s; weir lint or an older Ingress with the path says why", p.Path, claim.HostText(host))
			}
			if err == nil && claim.IsChallenge(path) {
				return errors.New("it answers a challenge of an authority, which takes a moment")
			}
		}
	}
	return nil
}

// checkServices returns an error if a backend is no Service, or if annotations of its Service ask for something.
func (c *toGateway) checkServices(i *networkingv1.Ingress) error {
	for n := range backendsOf(i) {
		if n.Service == nil {
			return errors.New("a backend is not a Service")
		}
		if s := c.services[config.ObjectName{Namespace: i.Namespace, Name: n.Service.Name}]; s != nil {
			if rated := annotation.Rate(s); len(rated) > 0 {
				return fmt.Errorf("its Service %s has the annotation %s", s.Name, rated[0].Name)
			}
		}
	}
	return nil
}

// backendsOf are the backends of an Ingress.
func backendsOf(i *networkingv1.Ingress) func(yield func(*networkingv1.IngressBackend) bool) {
	return func(yield func(*networkingv1.IngressBackend) bool) {
		if b := i.Spec.DefaultBackend; b != nil && !yield(b) {
			return
		}
		for _, rule := range ruleHosts(i) {
			for n := 0; rule.HTTP != nil && n < len(rule.HTTP.Paths); n++ {
				if !yield(&rule.HTTP.Paths[n].Backend) {
					return
				}
			}
		}
	}
}

// readRoutes makes the rules of an Ingress. Those of a host without redirects to https are the same with and without TLS.
func (c *toGateway) readRoutes(d *ingressDraft) error {
	over := func(r *config.Route) bool { // it is served over TLS
		return slices.ContainsFunc(c.file.Listeners, func(l config.Listener) bool {
			return l.Protocol == config.ProtocolTLS && slices.Contains(r.Listeners, l.Name)
		})
	}
	all := c.routes[objectName(d.Ingress)]
	hostOf := func(r *config.Route) string {
		if len(r.Hosts) == 0 {
			return ""
		}
		return r.Hosts[0]
	}
	redirected := map[string]bool{}
	for _, r := range all {
		host := hostOf(r)
		redirected[host] = redirected[host] || r.OnlyRedirects() && !r.Redirect.Moves()
	}
	for _, r := range all {
		if !over(r) {
			continue
		}
		host := hostOf(r)
		a := &asRules{of: c, route: r, overTLS: redirected[host]}
		rules, err := a.convert()
		if err != nil {
			return err
		}
		if !slices.Contains(d.hosts, host) {
			d.hosts = append(d.hosts, host)
		}
		d.rules[host], d.plain[host] = append(d.rules[host], rules...), !redirected[host]
		for _, note := range a.notes {
			if !slices.Contains(d.notes, note) {
				d.notes = append(d.notes, note)
			}
		}
	}
	return nil
}

// reference returns the reference to the Service of a backend.
func (c *toGateway) reference(backend string) (map[string]any, error) {
	b := c.backends[backend]
	switch {
	case b == nil || b.Source.Name == "":
		return nil, errors.New("a backend is not a Service")
	case b.Port.Number == 0:
		_, err := portOf(c.services[b.Source], b.Port)
		return nil, fmt.Errorf("its Service %s %w", b.Source.Name, err)
	}
	return map[string]any{"name": b.Source.Name, "port": b.Port.Number}, nil
}

// wantedSecrets are the Secrets of the hosts of an Ingress. An alias has the TLS of its host.
func wantedSecrets(i *networkingv1.Ingress) (wanted map[string]string, err error) {
	wanted = map[string]string{}
	t := traitsOf(i)
	named := t.hosts[:t.ruled]
	for n := range i.Spec.TLS {
		entry := &i.Spec.TLS[n]
		if entry.SecretName == "" || len(entry.Hosts) == 0 {
			return wanted, errors.New("an entry of spec.tls has no hosts or no secretName")
		}
		for _, written := range entry.Hosts {
			host, err := config.ParseHost(written)
			if err != nil || !slices.Contains(named, host) {
				continue
			}
			for _, name := range append(aliasHosts(i), host) {
				wanted[name] = cmp.Or(wanted[name], entry.SecretName)
			}
		}
	}
	return wanted, nil
}

// checkSecrets returns an error if the listeners for the TLS of hosts, which the oldest Ingresses have, do not fit an Ingress.
func (c *toGateway) checkSecrets(d *ingressDraft) error {
	wanted, err := wantedSecrets(d.Ingress)
	if err != nil {
		return err
	}
	for _, host := range d.hosts {
		l, known := c.secrets[host]
		switch secret := wanted[host]; {
		case known && l.namespace != d.Namespace:
			return fmt.Errorf("an older Ingress of the namespace %s has the TLS of %s", l.namespace, host)
		case known && secret != "" && secret != l.secret:
			return fmt.Errorf("an older Ingress has another Secret for %s", host)
		case !known && !d.plain[host] && !redirectsOnly(d.rules[host]):
			return fmt.Errorf("it redirects %s to https, for which no Ingress has a Secret: a load balancer may terminate TLS, and the Gateway API does not redirect by X-Forwarded-Proto", claim.HostText(host))
		}
	}
	return nil
}

// redirectsOnly reports whether no rule leads to a Service.
func redirectsOnly(rules []any) bool {
	return !slices.ContainsFunc(rules, func(r any) bool { return r.(map[string]any)["backendRefs"] != nil })
}

// stayTogether lets all Ingresses of a host stay if one of them does.
func stayTogether(all []*ingressDraft) {
	for again := true; again; {
		again = false
		staying := map[string]*ingressDraft{}
		for _, d := range all {
			for _, host := range d.hosts {
				if d.stays != nil && staying[host] == nil {
					staying[host] = d
				}
			}
		}
		for _, d := range all {
			for _, host := range d.hosts {
				if other := staying[host]; d.stays == nil && other != nil {
					d.stays, again = fmt.Errorf("the %s has %s too, and stays", other, claim.HostText(host)), true
				}
			}
		}
	}
}

// listener returns the listener for the TLS of a host, in a ListenerSet of its namespace; nil: the host has no TLS.
func (c *toGateway) listener(host string) *tlsListener {
	l, known := c.secrets[host]
	if !known {
		return nil
	}
	if made, is := c.tls[host]; is {
		return &made
	}
	n := c.count[l.namespace]
	c.count[l.namespace]++
	l.set, l.section = c.gateway.Name, strings.Replace(host, "*", "any", 1)
	if n >= maxListeners {
		l.set += fmt.Sprintf("-%d", n/maxListeners+1)
	}
	if n%maxListeners == 0 {
		c.sets = append(c.sets, gatewayObject("ListenerSet", l.namespace, l.set, map[string]any{"parentRef": map[string]any{"name": c.gateway.Name, "namespace": c.gateway.Namespace}, "listeners": []any{}}))
	}
	for _, s := range c.sets {
		if m := s["metadata"].(map[string]any); m["namespace"] == l.namespace && m["name"] == l.set {
			spec := s["spec"].(map[string]any)
			spec["listeners"] = append(spec["listeners"].([]any), map[string]any{"name": l.section, "hostname": host, "port": 443, "protocol": "HTTPS",
				"tls": map[string]any{"certificateRefs": []any{map[string]any{"name": l.secret}}}})
		}
	}
	c.tls[host] = l
	return &l
}

// routesOf returns the HTTPRoutes of an Ingress, and tells the differences.
func (c *toGateway) routesOf(d *ingressDraft) (all []map[string]any) {
	for _, note := range d.notes {
		c.Notes = append(c.Notes, fmt.Sprintf("%s: %s.", d, note))
	}
	for n, host := range d.hosts {
		if len(d.rules[host]) == 0 {
			continue // of a canary
		}
		name := d.Name
		if len(d.hosts) > 1 {
			name += fmt.Sprintf("-%d", n+1)
		}
		if strings.HasPrefix(host, "*.") {
			c.Notes = append(c.Notes, fmt.Sprintf("%s of the %s stands for one label; of a route it stands for one label or more.", host, d))
		}
		all = append(all, c.httpRoutes(d, name, host)...)
	}
	return all
}

// httpRoutes returns the HTTPRoutes for one host of an Ingress.
func (c *toGateway) httpRoutes(d *ingressDraft, name, host string) (all []map[string]any) {
	plain := map[string]any{"name": c.gateway.Name, "namespace": c.gateway.Namespace, "sectionName": "http"}
	add := func(name string, parents, rules []any) {
		made := config.ObjectName{Namespace: d.Namespace, Name: name}
		for c.Of[made] != (config.ObjectName{}) { // of an Ingress with such a name
			made.Name += "-2"
		}
		c.Of[made] = objectName(d.Ingress)
		spec := map[string]any{"parentRefs": parents, "rules": rules}
		if host != "" {
			spec["hostnames"] = []any{host}
		}
		all = append(all, gatewayObject("HTTPRoute", made.Namespace, made.Name, spec))
	}
	parents := []any{plain}
	if over := c.listener(host); over != nil {
		parents = []any{map[string]any{"group": gatewayv1.GroupName, "kind": "ListenerSet", "name": over.set, "sectionName": over.section}}
		if !d.plain[host] {
			add(name+"-redirect", []any{plain}, []any{map[string]any{"filters": []any{map[string]any{"type": "RequestRedirect", "requestRedirect": map[string]any{"scheme": "https", "statusCode": 308}}}}})
		} else {
			parents = append(parents, plain)
		}
	}
	rules := d.rules[host]
	for n := 0; n*maxRules < len(rules); n++ {
		part := name
		if n > 0 {
			part += fmt.Sprintf("-more-%d", n)
		}
		add(part, parents, rules[n*maxRules:min(len(rules), (n+1)*maxRules)])
	}
	return all
}
