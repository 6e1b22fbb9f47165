package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With manifests, weir explain shows what Ingresses and Gateways do with a request, and the errors of the objects.
func TestExplainObjects(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	cfg := put("weir.yaml", `
listeners: {web: {address: "127.0.0.1:8080", protocol: http}}
proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}
kubernetes: {gateways: {addresses: {pool: [192.0.2.0/28]}}}
`)
	writeTestPair(t, dir)
	var data []string
	for key, name := range map[string]string{"tls.crt": "pair.crt", "tls.key": "pair.key"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, key+": "+base64.StdEncoding.EncodeToString(text))
	}
	own := "{apiVersion: v1, kind: Secret, metadata: {name: own}, type: kubernetes.io/tls, data: {" + strings.Join(data, ", ") + "}}"
	objects := put("shop.yaml", strings.Replace(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec: {gatewayClassName: any, listeners: [{name: web, port: 80, protocol: HTTP}, {name: tls, port: 443, protocol: HTTPS, hostname: "*.example", tls: {certificateRefs: [{name: own}]}}]}
---
SECRET
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec: {parentRefs: [{name: edge}], hostnames: [shop.example], rules: [{matches: [{path: {value: /cart}}], backendRefs: [{name: cart, port: 80}]}, {filters: [{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: cart}, spec: {ports: [{port: 80}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: old}, spec: {ingressClassName: nginx, rules: [{host: old.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: cart, port: {number: 80}}}}]}}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: closed, annotations: {nginx.ingress.kubernetes.io/enable-modsecurity: "true"}}, spec: {ingressClassName: nginx, rules: [{host: closed.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: cart, port: {number: 80}}}}]}}]}}
`, "SECRET", own, 1))
	twice := put("twice.yaml", strings.NewReplacer("SECRET", own, "TLS", `{name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: own}]}}`).Replace(`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {gatewayClassName: any, listeners: [TLS]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: other, creationTimestamp: "2026-01-02T00:00:00Z"}, spec: {gatewayClassName: any, listeners: [TLS]}}
---
SECRET
`))
	for _, test := range []struct {
		line string
		want []string
	}{
		{"--objects " + objects + " --header 'Host: shop.example' http://192.0.2.1/cart/1",
			[]string{"listener     gateway/default/edge/80", "route        httproute/default/shop/0", "backend      default/cart:80", "HTTPRoute default/shop: warning: Dropped Rule 1"}},
		{"--objects " + objects + " --header 'Host: shop.example:443' https://192.0.2.1/cart", []string{"TLS policy   gateway/default/edge/tls", "certificate  default/own, which is not valid for the name", "route        httproute/default/shop/0"}},
		{"--objects " + twice + " https://192.0.2.9/cart", []string{"no listener for https has this address and port; there are gateway/default/edge/443 (tls, 192.0.2.1:443), gateway/default/other/443 (tls, 192.0.2.2:443)"}},
		{"--objects " + objects + " https://192.0.2.1/cart", []string{"TLS policy   gateway/none", "certificate  none, so weir refuses the handshake", "route        none"}},
		{"--objects " + objects + " http://old.example:8080/", []string{"route        default/old/old.example/"}},
		{"--objects " + objects + " http://closed.example:8080/", []string{"503, reason closed_by_annotation: the path is closed because weir does not support nginx.ingress.kubernetes.io/enable-modsecurity of the Ingress default/closed"}},
		{"--objects " + put("none.yaml", "{apiVersion: v1, kind: Secret, metadata: {name: a}}") + " http://old.example:8080/", []string{"route        none"}},
		{"--objects " + put("bad.yaml", "{a: b}") + " http://old.example:8080/", []string{"bad.yaml: document 1 is not a Kubernetes object"}},
	} {
		out, _ := explained(t, test.line, "-c", cfg)
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s\nprints\n%s\nwithout %q", test.line, out, want)
			}
		}
	}
	behind := put("behind.yaml", "listeners: {web: {address: '127.0.0.1:8080', protocol: http}}\nproxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}\nkubernetes: {gateways: {addresses: {service: {replicas: weir/weir}}}}\n")
	if out, _ := explained(t, "--objects "+objects+" http://shop.example/cart/1", "-c", behind); !strings.Contains(out, "listener     gateway/default/edge/80 (http, :20000)") || !strings.Contains(out, "httproute/default/shop/0") {
		t.Errorf("with addresses of Services it prints %s", out)
	}
	shared := put("shared.yaml", "listeners: {web: {address: '127.0.0.1:8080', public_port: 80, protocol: http}}\nroutes: [{listeners: [web], hosts: [file.example], respond: {status: 204}}]\n"+
		"kubernetes: {publish: {addresses: [192.0.2.1]}, gateways: {addresses: {shared: [web]}}}\n")
	sharing := put("sharing.yaml", `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: any, listeners: [{name: web, port: 80, protocol: HTTP}, {name: far, port: 81, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: shop}, spec: {parentRefs: [{name: edge}], hostnames: [shop.example, file.example], rules: [{}]}}
`)
	for url, want := range map[string]string{"http://shop.example/": "httproute/default/shop/0", "http://file.example/": "web/file.example"} {
		out, _ := explained(t, "--objects "+sharing+" "+url, "-c", shared)
		for _, want := range []string{want, "Gateway default/edge: warning: Listener far: No listener under kubernetes.gateways.addresses.shared", "HTTPRoute default/shop: warning: weir's configuration has routes for file.example"} {
			if !strings.Contains(out, want) {
				t.Errorf("with shared listeners, %s gets\n%s\nwithout %q", url, out, want)
			}
		}
	}
	plain := put("plain.yaml", "listeners: {web: {address: '127.0.0.1:8080', protocol: http}}\nroutes: [{listeners: [web], backend: a}]\nbackends: {a: {endpoints: ['127.0.0.1:1']}}\n")
	if out, _ := explained(t, "--objects "+objects+" http://a:8080/", "-c", plain); !strings.Contains(out, "needs a configuration with a section kubernetes") {
		t.Errorf("without the section it prints %s", out)
	}
	if out, _ := explained(t, "--admin 127.0.0.1:1 --objects "+objects+" http://a:8080/"); !strings.Contains(out, "--objects and --admin exclude each other") {
		t.Errorf("with --admin it prints %s", out)
	}
	if out, _ := explained(t, "--objects "+objects+" http://a:8080/", "-c", put("no.yaml", "listeners: {web: {address: '127.0.0.1:8080', protocol: http}}\nkubernetes: {}\n")); !strings.Contains(out, "has no kubernetes.gateways") {
		t.Errorf("without Gateways it prints %s", out)
	}
}

// Explain runs the steps of snippets, and says why weir does not serve an object that has the host.
func TestExplainReasons(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ingress := func(name, host, class, annotations string) string {
		return "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: " + name + ", annotations: {" + annotations + "}}, spec: {" + class + "rules: [{host: " + host +
			", http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}\n---\n"
	}
	cfg := put("weir.yaml", "listeners: {web: {address: '127.0.0.1:8080', protocol: http}}\nproxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}\n"+
		"kubernetes: {ingress_nginx: {config_map: infra/settings}, gateways: {addresses: {pool: [192.0.2.0/28]}}}\n")
	const nginx = "nginx.ingress.kubernetes.io/"
	objects := put("all.yaml", ingress("shop", "shop.test", "ingressClassName: nginx, ", nginx+"server-snippet: \"location = /old { return 301 https://new.test/; }\\nlocation /priv { deny all; }\", "+nginx+"configuration-snippet: 'more_set_headers \"X-A: b\";'")+
		ingress("foreign", "foreign.test", "ingressClassName: traefik, ", "")+ingress("older", "older.test", "", "kubernetes.io/ingress.class: nginx")+ingress("bare", "bare.test", "", "")+
		ingress("users", "users.test", "ingressClassName: nginx, ", nginx+"auth-type: basic, "+nginx+"auth-secret: users")+`
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: traefik}, spec: {controller: traefik.io/ingress-controller}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: infra}, data: {allow-snippet-annotations: "true"}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: any, listeners: [{name: web, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: odd}, spec: {parentRefs: [{name: edge}], hostnames: [odd.test], rules: [{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 399}}]}]}}
`)
	for line, want := range map[string][]string{
		"http://shop.test:8080/": {"backend      default/app:80", `snippet: server { location = /old { return 301 https://new.test/; } location /priv { deny all; } } location { more_set_headers "X-A: b"; }`,
			"the Service default/app, which is not in the files."},
		"http://shop.test:8080/old":                   {"backend      none: weir answers", "redirect to  https://new.test/", "answer       301, reason snippet: a snippet answers the request"},
		"http://shop.test:8080/priv/a":                {"answer       403, reason snippet: a snippet answers the request"},
		"http://foreign.test:8080/":                   {"route        none", "Ingress default/foreign: warning: It has the class traefik; weir serves nginx."},
		"http://bare.test:8080/":                      {"Ingress default/bare: warning: It has no class, and no class of weir is the default; weir serves nginx."},
		"http://older.test:8080/":                     {"route        default/older/older.test/"},
		"http://users.test:8080/":                     {"answer       503, reason closed_by_annotation: the path is closed because the Secret default/users, which auth-secret names, is not in the files ("},
		"--header 'Host: odd.test' http://192.0.2.1/": {"HTTPRoute default/odd: warning: Dropped Rule 0", "500, reason no_backend: weir cannot apply a filter of the rule, or a backend of it is not in the files or"},
	} {
		out, _ := explained(t, "--objects "+objects+" "+line, "-c", cfg)
		for _, want := range want {
			if !strings.Contains(out, want) {
				t.Errorf("%s\nprints\n%s\nwithout %q", line, out, want)
			}
		}
		if strings.Contains(out, "foreign") != strings.Contains(line, "foreign") || strings.Contains(out, "does not exist") {
			t.Errorf("%s\nprints\n%s", line, out)
		}
	}
}
