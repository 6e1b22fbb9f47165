package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config"
)

// servedBy lists what each host and path of Ingresses, or of routes of Gateways, leads to.
func servedBy(r *Routing, gateways bool) (all []string) {
	for _, route := range r.Routes {
		if route.Closure != nil || strings.HasPrefix(route.Name, "httproute/") != gateways {
			continue
		}
		for _, l := range route.Listeners {
			kind := "http"
			if strings.HasSuffix(l, "/443") || l == "websecure" {
				kind = "https"
			}
			if kind == "https" && route.Hosts[0] == "b.example" {
				continue // it has no certificate
			}
			for _, path := range route.Paths {
				to := route.Backend
				if route.Redirect != nil {
					to, path = "redirect", config.Path{Value: "/"}
				}
				all = append(all, fmt.Sprintf("%s %s %s -> %s", kind, strings.Replace(strings.Join(route.Hosts, ""), "**.", "*.", 1), path, to))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// The Gateway API objects of Ingresses are accepted, and serve the same hosts and paths with the same certificates.
// Ingresses with anything else stay.
func TestToGateway(t *testing.T) {
	paths := ""
	for n := range 20 {
		paths += fmt.Sprintf("{path: /p%d, pathType: Exact, backend: {service: {name: app, port: {number: 80}}}}, ", n)
	}
	const head = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: shop, name: "
	m := mustRead(t, gatewayBase+strings.Join([]string{
		"{apiVersion: v1, kind: Service, metadata: {name: app, namespace: shop}, spec: {ports: [{name: web, port: 80}]}}",
		"{apiVersion: v1, kind: Service, metadata: {name: guarded, namespace: shop, annotations: {traefik.ingress.kubernetes.io/service.sticky.cookie: 'true'}}, spec: {ports: [{port: 80}]}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: c, namespace: shop}, stringData: {names: \"a.example *.w.example\"}}",
		head + "a}, spec: {ingressClassName: weir, tls: [{hosts: [a.example, '*.w.example'], secretName: c}], rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {name: web}}}}, {path: /x, pathType: Exact, backend: {service: {name: app, port: {number: 80}}}}]}}, {host: '*.w.example', http: {paths: [{path: /w, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}",
		head + "plain}, spec: {ingressClassName: weir, rules: [{host: b.example, http: {paths: [" + paths + "]}}]}}",
		head + "guarded, annotations: {nginx.ingress.kubernetes.io/auth-url: 'http://auth.shop.svc/'}}, spec: {ingressClassName: weir, rules: [{host: g.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}",
		head + "sticky}, spec: {ingressClassName: weir, rules: [{host: s.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: guarded, port: {number: 80}}}}]}}]}}",
		head + "regex}, spec: {ingressClassName: weir, rules: [{host: r.example, http: {paths: [{path: '/a.*', pathType: ImplementationSpecific, backend: {service: {name: app, port: {number: 80}}}}]}}]}}",
	}, "\n---\n"))
	c := Converter{File: mustParse(t, strings.Replace(gatewayConfig, "protocol: http}", "protocol: http}\n  websecure: {address: '127.0.0.1:443', protocol: tls}", 1))}
	made := ToGateway(c.File, &m.Objects, config.ObjectName{Namespace: "infra", Name: "edge"}, "weir", nil)
	if len(made.Stay) != 3 || !strings.Contains(made.Stay[0], "shop/guarded: the Gateway API has nothing, or nothing equal, for nginx.ingress.kubernetes.io/auth-url") ||
		!strings.Contains(made.Stay[1], `looks like a regular expression`) || !strings.Contains(made.Stay[2], "its Service guarded has the annotation") {
		t.Errorf("these stay: %q", made.Stay)
	}
	var text strings.Builder
	for _, o := range made.Objects {
		one, err := sigsyaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n" + string(one))
	}
	both := mustRead(t, gatewayBase+text.String())
	both.Services, both.Secrets = m.Services, m.Secrets
	both.Ingresses = slices.DeleteFunc(slices.Clone(m.Ingresses), func(o *networkingv1.Ingress) bool { return o.Name != "a" && o.Name != "plain" })
	r := c.Convert(&both.Objects)
	checkGateways(t, c.File, r)
	shown := showGateways(r)
	if strings.Contains(shown, "=False") || strings.Contains(shown, "PartiallyInvalid") {
		t.Errorf("not everything is accepted:\n%s", shown)
	}
	of, now := servedBy(r, false), servedBy(r, true)
	if len(of) < 24 || !slices.Equal(of, now) {
		t.Errorf("Ingresses serve\n%s\nand routes\n%s", strings.Join(of, "\n"), strings.Join(now, "\n"))
	}
}
