package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Of manifests of several teams, weir explain prints the errors of the objects on the way of the request, and no others.
func TestExplainWarnsOfTheWay(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ingress := func(name, host, path, annotations string) string {
		namespace, name, _ := strings.Cut(name, "/")
		return "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: " + name + ", namespace: " + namespace + ", annotations: {" + annotations + "}}, spec: {ingressClassName: nginx, tls: [{hosts: [" + host + "], secretName: cert-" + name +
			"}], rules: [{host: " + host + ", http: {paths: [{path: " + path + ", pathType: Prefix, backend: {service: {name: app-" + name + ", port: {number: 80}}}}]}}]}}\n---\n"
	}
	const shut = "nginx.ingress.kubernetes.io/enable-modsecurity: 'true'"
	cfg := put("weir.yaml", "listeners: {web: {address: '127.0.0.1:8080', public_port: 80, protocol: http}, websecure: {address: '127.0.0.1:8443', public_port: 443, protocol: tls}}\ncertificates: [{self_signed: {hosts: [none.example]}}]\n"+
		"kubernetes: {gateways: {addresses: {pool: [192.0.2.0/28]}}}\n")
	objects := put("all.yaml", ingress("a/one", "one.example", "/x", "")+ingress("a/two", "two.example", "/", shut)+ingress("b/three", "three.example", "/", shut)+
		ingress("b/lost", "one.example", "/x", "")+ingress("b/beside", "one.example", "/y", shut)+ingress("c/wild", "'*.example'", "/", shut)+ingress("c/old", "both.example", "/p", shut)+ingress("c/open", "half.example", "/p", "")+`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, namespace: c}, spec: {gatewayClassName: any, listeners: [{name: web, port: 80, protocol: HTTP}, {name: odd, port: 81, protocol: UDP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: new, namespace: c}, spec: {parentRefs: [{name: edge}], hostnames: [both.example], rules: [{matches: [{path: {type: RegularExpression, value: "/p(?!b)"}}]}, {matches: [{path: {value: /q}}], backendRefs: [{name: app, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: half, namespace: c}, spec: {parentRefs: [{name: edge}], hostnames: [half.example], rules: [{filters: [{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: other, namespace: a}, spec: {parentRefs: [{name: edge, namespace: c}], hostnames: [other.example], rules: [{filters: [{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}]}]}}
`)
	for _, test := range []struct {
		url  string
		want []string // the objects of the warnings
	}{
		{"http://one.example:8080/x/1", []string{"Ingress a/one", "Ingress b/lost"}},
		{"http://two.example:8080/", []string{"Ingress a/two"}},
		{"http://sub.example:8080/", []string{"Ingress c/wild"}},
		{"http://both.example:8080/p", []string{"Ingress c/old", "HTTPRoute c/new"}},
		{"http://half.example:8080/p", []string{"Ingress c/open", "HTTPRoute c/half"}},
		{"http://192.0.2.1/ --header Host:half.example", []string{"HTTPRoute c/half", "Gateway c/edge"}},
		{"http://nobody.test:8080/", nil},
	} {
		out, errs, _ := weir(append([]string{"explain", "-c", cfg, "--objects", objects}, strings.Fields(test.url)...)...)
		for line := range strings.Lines(errs) {
			object, _, warning := strings.Cut(line, ": warning: ")
			on := false
			for _, want := range test.want {
				on = on || object == want || strings.HasPrefix(object, "Secret") || strings.HasPrefix(object, "Service")
			}
			if warning && !on {
				t.Errorf("%s: of an object that is not on the way:\n%s", test.url, line)
			}
		}
		for _, want := range test.want {
			if !strings.Contains(errs, want+": warning: ") {
				t.Errorf("%s: there is no warning about %s:\n%s%s", test.url, want, out, errs)
			}
		}
	}
	for url, want := range map[string]string{
		"http://both.example:8080/p": "warning: both kinds of objects name this path of both.example, and it is closed (503) by the Ingress c/old, and dropped by the HTTPRoute c/new.",
		"http://half.example:8080/p": "served by the Ingress c/open, and dropped (500) by the HTTPRoute c/half.",
	} {
		if _, errs, _ := weir("explain", "-c", cfg, "--objects", objects, url); !strings.Contains(errs, want) {
			t.Errorf("%s: %s\nwant %q", url, errs, want)
		}
	}
}
