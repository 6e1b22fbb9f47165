package kube

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// AsGateway has Ingresses as objects of the Gateway API. An Ingress with more than hosts, paths, Services,
// certificates and redirects to https stays an Ingress: a route must not be open where the Ingress was not.
type AsGateway struct {
	Objects []map[string]any // in the order in which to create them
	Stay    []string         // a sentence for each Ingress that stays, with the reason
	Notes   []string         // differences between the Ingresses and the routes
}

// maxListeners and maxRules are limits of the Gateway API: listeners of a ListenerSet, and rules of a HTTPRoute.
const (
	maxListeners = 64
	maxRules     = 16
)

// toGateway is one conversion of Ingresses.
type toGateway struct {
	AsGateway
	gateway  config.ObjectName
	services map[config.ObjectName]*corev1.Service
	tls      map[string]tlsListener // by host
	count    map[string]int         // of listeners, by namespace
	sets     []map[string]any
}

// tlsListener is the listener for the TLS of a host.
type tlsListener struct{ namespace, set, section, secret string }

// ToGateway converts Ingresses into a Gateway of this name and class, ListenerSets and HTTPRoutes. Services are
// those of the Ingresses; without them weir knows neither named ports nor annotations.
func ToGateway(all []*networkingv1.Ingress, services []*corev1.Service, name config.ObjectName, class string) *AsGateway {
	c := &toGateway{gateway: name, services: map[config.ObjectName]*corev1.Service{}, tls: map[string]tlsListener{}, count: map[string]int{}}
	for _, s := range services {
		c.services[config.ObjectName{Namespace: s.Namespace, Name: s.Name}] = s
	}
	var routes []map[string]any
	for _, i := range slices.SortedFunc(slices.Values(all), compareAges) {
		made, err := c.convert(i)
		if err != nil {
			c.Stay = append(c.Stay, fmt.Sprintf("Ingress %s/%s: %v.", i.Namespace, i.Name, err))
			continue
		}
		routes = append(routes, made...)
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

// convert converts one Ingress. The error follows its name.
func (c *toGateway) convert(i *networkingv1.Ingress) (routes []map[string]any, err error) {
	var asks []string
	redirects := true
	for _, a := range annotation.Rate(i) {
		if a.Name == annotation.Nginx+"ssl-redirect" {
			redirects = a.Value != "false"
		} else {
			asks = append(asks, a.Name)
		}
	}
	switch {
	case len(asks) > 0:
		return nil, fmt.Errorf("the Gateway API has nothing, or nothing equal, for %s", strings.Join(asks, ", "))
	case i.Spec.DefaultBackend != nil && len(i.Spec.Rules) > 0:
		return nil, errors.New("it has rules and spec.defaultBackend")
	}
	hosts, rules, err := c.rules(i)
	if err != nil {
		return nil, err
	}
	secrets, err := c.secrets(i, hosts)
	if err != nil {
		return nil, err
	}
	for n, host := range hosts {
		name := i.Name
		if len(hosts) > 1 {
			name += fmt.Sprintf("-%d", n+1)
		}
		if strings.HasPrefix(host, "*.") {
			c.Notes = append(c.Notes, fmt.Sprintf("%s of the Ingress %s/%s stands for one label; of a route it stands for one label or more.", host, i.Namespace, i.Name))
		}
		routes = append(routes, c.routes(i.Namespace, name, host, secrets[host], redirects, rules[host])...)
	}
	return routes, nil
}

// rules returns the rules of routes for each host of an Ingress.
func (c *toGateway) rules(i *networkingv1.Ingress) (hosts []string, rules map[string][]any, err error) {
	rules = map[string][]any{}
	add := func(host, kind, path string, b *networkingv1.IngressBackend) error {
		ref, err := c.backend(i.Namespace, b)
		if err != nil {
			return err
		}
		if rules[host] == nil {
			hosts = append(hosts, host)
		}
		rules[host] = append(rules[host], map[string]any{"matches": []any{map[string]any{"path": map[string]any{"type": kind, "value": path}}}, "backendRefs": []any{ref}})
		return nil
	}
	if i.Spec.DefaultBackend != nil {
		err = add("", "PathPrefix", "/", i.Spec.DefaultBackend)
	}
	for n := range i.Spec.Rules {
		rule := &i.Spec.Rules[n]
		host, problem := "", error(nil)
		if rule.Host != "" {
			host, problem = config.ParseHost(rule.Host)
		}
		if problem != nil || rule.HTTP == nil {
			return nil, nil, fmt.Errorf("its rule for %q has no valid host, or no paths", rule.Host)
		}
		for j := range rule.HTTP.Paths {
			p := &rule.HTTP.Paths[j]
			path := cmp.Or(p.Path, "/")
			if _, problem := config.ParsePath(path); problem != nil || strings.ContainsAny(path, `^$*+?()[]{}|\`) {
				return nil, nil, fmt.Errorf("its path %q may be a regular expression", p.Path)
			}
			kind := "PathPrefix"
			if typeOf(p) == networkingv1.PathTypeExact {
				kind = "Exact"
			}
			err = cmp.Or(err, add(host, kind, path, &p.Backend))
		}
	}
	return hosts, rules, err
}

// backend returns the reference to the Service of a backend.
func (c *toGateway) backend(namespace string, b *networkingv1.IngressBackend) (map[string]any, error) {
	if b.Service == nil {
		return nil, errors.New("a backend is not a Service")
	}
	name := config.ObjectName{Namespace: namespace, Name: b.Service.Name}
	s, port := c.services[name], b.Service.Port.Number
	if s != nil {
		if rated := annotation.Rate(s); len(rated) > 0 {
			return nil, fmt.Errorf("its Service %s has the annotation %s", name.Name, rated[0].Name)
		}
	}
	if b.Service.Port.Name != "" {
		found, err := portOf(s, portIn(s, b.Service.Port))
		if err != nil {
			return nil, fmt.Errorf("its Service %s %w", name.Name, err)
		}
		port = found.number
	}
	return map[string]any{"name": name.Name, "port": port}, nil
}

// secrets returns the listener of each host with TLS.
func (c *toGateway) secrets(i *networkingv1.Ingress, hosts []string) (of map[string]*tlsListener, err error) {
	wanted := map[string]string{}
	for n := range i.Spec.TLS {
		entry := &i.Spec.TLS[n]
		if entry.SecretName == "" || len(entry.Hosts) == 0 {
			return nil, errors.New("an entry of spec.tls has no hosts or no secretName")
		}
		for _, written := range entry.Hosts {
			if host, err := config.ParseHost(written); err == nil && slices.Contains(hosts, host) {
				wanted[host] = cmp.Or(wanted[host], entry.SecretName)
			}
		}
	}
	of = map[string]*tlsListener{}
	for _, host := range hosts { // first whether it is possible
		l, known := c.tls[host]
		switch secret := wanted[host]; {
		case known && l.namespace != i.Namespace:
			return nil, fmt.Errorf("an older Ingress of the namespace %s has the TLS of %s", l.namespace, host)
		case known && secret != "" && secret != l.secret:
			return nil, fmt.Errorf("an older Ingress has another Secret for %s", host)
		}
	}
	for _, host := range hosts {
		if _, known := c.tls[host]; !known && wanted[host] != "" {
			c.tls[host] = c.listen(i.Namespace, host, wanted[host])
		}
		if l, known := c.tls[host]; known {
			of[host] = &l
		}
	}
	return of, nil
}

// listen adds a listener for the TLS of a host to a ListenerSet of the namespace.
func (c *toGateway) listen(namespace, host, secret string) tlsListener {
	n := c.count[namespace]
	c.count[namespace]++
	l := tlsListener{namespace: namespace, set: c.gateway.Name, section: strings.Replace(host, "*", "any", 1), secret: secret}
	if n >= maxListeners {
		l.set += fmt.Sprintf("-%d", n/maxListeners+1)
	}
	if n%maxListeners == 0 {
		c.sets = append(c.sets, gatewayObject("ListenerSet", namespace, l.set, map[string]any{"parentRef": map[string]any{"name": c.gateway.Name, "namespace": c.gateway.Namespace}, "listeners": []any{}}))
	}
	for _, s := range c.sets {
		if m := s["metadata"].(map[string]any); m["namespace"] == namespace && m["name"] == l.set {
			spec := s["spec"].(map[string]any)
			spec["listeners"] = append(spec["listeners"].([]any), map[string]any{"name": l.section, "hostname": host, "port": 443, "protocol": "HTTPS",
				"tls": map[string]any{"certificateRefs": []any{map[string]any{"name": secret}}}})
		}
	}
	return l
}

// routes returns the HTTPRoutes for one host of an Ingress. over is the listener for its TLS, or nil.
func (c *toGateway) routes(namespace, name, host string, over *tlsListener, redirects bool, rules []any) (all []map[string]any) {
	plain := map[string]any{"name": c.gateway.Name, "namespace": c.gateway.Namespace, "sectionName": "http"}
	add := func(name string, parents, rules []any) {
		spec := map[string]any{"parentRefs": parents, "rules": rules}
		if host != "" {
			spec["hostnames"] = []any{host}
		}
		all = append(all, gatewayObject("HTTPRoute", namespace, name, spec))
	}
	parents := []any{plain}
	if over != nil {
		parents = []any{map[string]any{"group": gatewayv1.GroupName, "kind": "ListenerSet", "name": over.set, "sectionName": over.section}}
		if redirects {
			add(name+"-redirect", []any{plain}, []any{map[string]any{"filters": []any{map[string]any{"type": "RequestRedirect", "requestRedirect": map[string]any{"scheme": "https", "statusCode": 308}}}}})
		} else {
			parents = append(parents, plain)
		}
	}
	for n := 0; n*maxRules < len(rules); n++ {
		part := name
		if n > 0 {
			part += fmt.Sprintf("-more-%d", n)
		}
		add(part, parents, rules[n*maxRules:min(len(rules), (n+1)*maxRules)])
	}
	return all
}
