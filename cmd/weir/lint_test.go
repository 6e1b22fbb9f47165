package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const lintable = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
  annotations:
    nginx.ingress.kubernetes.io/ssl-redirect: "true"
    nginx.ingress.kubernetes.io/client-body-buffer-size: 50m
    nginx.ingress.kubernetes.io/fastcgi-index: index.php
    cert-manager.io/cluster-issuer: letsencrypt
spec:
  ingressClassName: nginx
  tls: [{hosts: [a.example], secretName: a}]
  rules: [{host: a.example, http: {paths: [{path: "/api(/|$)(.*)", pathType: ImplementationSpecific, backend: {service: {name: a, port: {number: 80}}}}]}}]
---
{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop, annotations: {traefik.ingress.kubernetes.io/service.serverstransport: a}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}
`

const controllerManifests = `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: ingress-nginx-controller, namespace: ingress-nginx}, spec: {template: {spec: {containers: [{name: controller, image: "registry.k8s.io/ingress-nginx/controller:v1.15.1", args: [/nginx-ingress-controller, "--configmap=$(POD_NAMESPACE)/settings", --http-port=80]}]}}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: ingress-nginx}, data: {use-forwarded-headers: "true", hsts: "true"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: app-nginx, namespace: a}, data: {nginx.conf: "deny all;"}}
`

func TestLint(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	mixed := put("mixed.yaml", lintable)
	good := put("good.yaml", "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, annotations: {nginx.ingress.kubernetes.io/ssl-redirect: 'true'}}}")
	near := put("near.yaml", "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, annotations: {nginx.ingress.kubernetes.io/client-body-buffer-size: 50m}}}")
	ports := put("ports.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: tcp-services, namespace: a}, data: {'22': 'a/b:22', x: 'y'}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: udp-services, namespace: a}, data: {'53': 'a/b:53'}}")
	const one = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: NAME, annotations: {nginx.ingress.kubernetes.io/ssl-redirect: 'true'}}, spec: {ingressClassName: CLASS, rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}}\n---\n"
	both := func(classes ...string) (text string) {
		for i, class := range classes {
			text += strings.NewReplacer("NAME", string(rune('a'+i)), "CLASS", class).Replace(one)
		}
		return text
	}
	twice, classes := put("twice.yaml", both("inside", "inside")), put("classes.yaml", both("inside", "outside"))
	none := put("none.yaml", "a: b")

	f := func(args string, wantStatus int, wantOut, wantErr string) {
		t.Helper()
		out, err, status := weir(strings.Fields("lint " + args)...)
		if status != wantStatus || !strings.Contains(out, wantOut) || !strings.Contains(err, wantErr) || wantErr == "" && err != "" {
			t.Errorf("weir lint %s: status %d, printed\n%s\n%s\nwant %d,\n%s\n%s", args, status, out, err, wantStatus, wantOut, wantErr)
		}
	}
	f(mixed, statusError, `Ingress shop/web
  near   nginx.ingress.kubernetes.io/client-body-buffer-size: "50m"
         weir forwards bodies as they arrive and needs no such buffer
  no     nginx.ingress.kubernetes.io/fastcgi-index: "index.php"
         weir does not support FastCGI
  exact  nginx.ingress.kubernetes.io/ssl-redirect: "true"
  wrong  The path "/api(/|$)(.*)" of a.example looks like a regular expression, but no Ingress of this namespace has use-regex or rewrite-target`, "weir: 3 findings that weir does not support as written\n")
	f(mixed, statusError, "1 exact, 1 near, 2 no, 1 wrong\n", "weir: ")
	f(good, 0, "1 exact, 0 near, 0 no, 0 wrong\n", "")
	f(near, 0, "0 exact, 1 near, 0 no, 0 wrong\n", "")
	f("--strict "+near, statusError, "", "1 finding that")
	f(good+" "+near, 0, "1 exact, 1 near, 0 no, 0 wrong\n", "")
	f(ports, statusError, "ConfigMap a/tcp-services\n  wrong  The entry x has the key", "2 findings")
	f(ports, statusError, "UDP", "2 findings")
	f(twice, statusError, "wrong  Path / of a.example belongs to the older Ingress default/a,", "1 finding")
	f(classes, 0, "2 exact, 0 near, 0 no, 0 wrong", "")
	f(put("controller.yaml", controllerManifests), statusError, `ConfigMap ingress-nginx/settings
  exact  hsts: "true"
  no     use-forwarded-headers: "true"
         weir never takes from the ConfigMap whom to trust;`, "1 finding that")
	f(put("controller.yaml", controllerManifests), statusError, `Deployment ingress-nginx/ingress-nginx-controller
  near   --configmap: "ingress-nginx/settings"
         kubernetes.ingress_nginx has the ConfigMap
  exact  --http-port: "80"`, "1 finding that")
	f(none, statusError, "", "none.yaml: document 1 is not a Kubernetes object: it has no kind\n")
	// An empty file is an error: a template may have failed.
	empty := put("empty.yaml", "")
	f(empty, statusError, "", "nothing to check: the input has no Ingress")
	f("--strict -o json "+empty, statusError, "", "nothing to check: the input has no Ingress")
	f(filepath.Dir(empty), statusError, "", "it is a folder; write its files: "+filepath.Dir(empty)+"/*.yaml\n")
	f(put("plain.yaml", strings.NewReplacer("NAME", "a", "CLASS", "weir").Replace(one)), 0, "read: Ingresses 1, Services 0\n", "")
	f(put("gateway.yaml", "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g}, spec: {gatewayClassName: weir, listeners: [{name: a, port: 80, protocol: HTTP}]}}"),
		0, "read: Ingresses 0, Services 0, Gateways 1, ListenerSets 0, routes 0\n", "")
	f(put("class.yaml", "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: a}, spec: {controller: a/b, parameters: {kind: A, name: a}}}"),
		statusError, "weir does not read the parameters of a class", "1 finding that")
	f("--help", 0, "KUBECONFIG or ~/.kube/config", "")
	f("nothing.yaml", statusError, "", "no such file")
	f("", statusUsage, "", "no input")
	f("--cluster "+good, statusUsage, "", "remove the files")
	f("--cluster --kubeconfig nothing.yaml", statusError, "", "cannot use kubernetes.kubeconfig")

	out, _, status := weir("lint", "-o", "json", mixed)
	var reports []report
	if err := json.Unmarshal([]byte(out), &reports); err != nil || status != statusError || len(reports) != 2 || len(reports[0].Findings) != 3 || len(reports[0].Wrong) != 1 {
		t.Errorf("as JSON, status %d: %v\n%s", status, err, out)
	}
	if _, err, status := weir("lint", "-o", "xml", mixed); status == 0 || !strings.Contains(err, "text or json") {
		t.Errorf("as XML, status %d: %s", status, err)
	}
}

// Lint names the object and the key because of which weir closes or changes an Ingress. It does not report objects that
// may be elsewhere.
func TestLintOfOtherObjects(t *testing.T) {
	ingress := func(name, annotations string) string {
		return "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: " + name + ", namespace: shop, annotations: {" + annotations + "}}, spec: {ingressClassName: nginx, rules: [{host: " + name +
			".example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}}\n---\n"
	}
	object := func(kind, namespace, name, data string) string {
		return "{apiVersion: v1, kind: " + kind + ", metadata: {name: " + name + ", namespace: " + namespace + "}, " + data + "}\n---\n"
	}
	settings := func(data string) string {
		return object("ConfigMap", "ingress-nginx", "ingress-nginx-controller", "data: {proxy-body-size: 8m, "+data+"}")
	}
	const nginx = "nginx.ingress.kubernetes.io/"
	auth := nginx + "auth-url: http://auth.shop.svc/check, " + nginx + "auth-proxy-set-headers: shop/headers"
	f := func(text string, want ...string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "all.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err, _ := weir("lint", file)
		got := ""
		for line := range strings.Lines(out) {
			if rest, ok := strings.CutPrefix(line, "  wrong  "); ok {
				got += rest
			}
		}
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("of\n%s\nthere is\n%s%s\nand not %q", text, out, err, part)
			}
		}
		if len(want) == 0 && got != "" {
			t.Errorf("of\n%s\nthere is\n%s", text, got)
		}
	}
	f(settings("") + ingress("plain", ""))
	f(settings("enable-owasp-modsecurity-crs: 'true', block-user-agents: '~*(?=bot)'")+ingress("plain", ""),
		"All paths of this Ingress answer 503", "the ConfigMap ingress-nginx/ingress-nginx-controller of ingress-nginx has keys", "remove these keys: block-user-agents, enable-owasp-modsecurity-crs.")
	f(settings("global-auth-url: 'http://localhost/check'")+ingress("plain", ""), "in the ConfigMap ingress-nginx/ingress-nginx-controller of ingress-nginx, global-auth-url names localhost")
	f(settings("whitelist-source-range: 10.0.0.0/8")+strings.Replace(ingress("plain", ""), `path: /, pathType: Prefix`, `path: /a+b, pathType: ImplementationSpecific`, 1), "remove these keys: whitelist-source-range.")

	// ConfigMaps that annotations name.
	custom := ingress("custom", nginx+"custom-headers: shop/headers")
	f(settings("global-allowed-response-headers: X-A")+custom+object("ConfigMap", "shop", "headers", "data: {X-B: b}"), "503", "the ConfigMap shop/headers, which custom-headers names, has X-B, which global-allowed-response-headers")
	f(settings("global-allowed-response-headers: 'X-A,Connection'")+custom+object("ConfigMap", "shop", "headers", "data: {X-A: a, Connection: close}"), "weir does not set an HTTP header of custom-headers from the ConfigMap shop/headers: Connection")
	f(settings("global-allowed-response-headers: X-A") + custom + object("ConfigMap", "shop", "headers", "data: {X-A: a}"))
	f(ingress("auth", auth)+object("ConfigMap", "shop", "headers", "data: {Host: b}"), "503", "the ConfigMap shop/headers, which auth-proxy-set-headers names, has Host")

	// Secrets, as far as there are any.
	basic := ingress("basic", nginx+"auth-type: basic, "+nginx+"auth-secret: users")
	f(basic+object("Secret", "shop", "users", "stringData: {other: a}"), "503", "the Secret shop/users, which auth-secret names, has no key auth")
	f(basic + object("Secret", "shop", "users", "stringData: {auth: 'a:{SHA}Ys23Ag/5IOWqZCw9QGaVDdHwH00='}"))

	// An object that is not there hides no error of another one.
	f(ingress("several", nginx+"auth-tls-secret: shop/ca, "+nginx+"proxy-ssl-secret: shop/empty, "+nginx+"backend-protocol: HTTPS, "+nginx+"auth-type: basic, "+nginx+"auth-secret: users, "+nginx+"fastcgi-index: a, "+nginx+"custom-headers: shop/headers")+
		object("Secret", "shop", "users", "stringData: {other: a}")+object("Secret", "shop", "empty", "stringData: {other: a}")+object("ConfigMap", "shop", "headers", "data: {X-B: b}")+settings("global-allowed-response-headers: X-A"),
		"the Secret shop/users, which auth-secret names, has no key auth", "the Secret shop/empty, which proxy-ssl-secret names, has neither tls.crt", "the ConfigMap shop/headers, which custom-headers names, has X-B")
	f(settings("proxy-set-headers: shop/headers")+ingress("plain", "")+object("ConfigMap", "shop", "headers", "data: {X-A: $nothing}"), "503", "ConfigMap shop/headers, which proxy-set-headers of ingress-nginx's ConfigMap names, has a value of X-A with the variable $nothing")
	f(settings("add-headers: shop/headers")+ingress("plain", "")+object("ConfigMap", "shop", "headers", "data: {X-A: $nothing}"), "weir does not set an HTTP header of add-headers")

	// Nothing is known of these.
	f(ingress("main", "") + strings.Replace(ingress("main", nginx+"canary: 'true', "+nginx+"canary-weight: '10'"), "name: main", "name: canary", 1))
	f(settings("proxy-set-headers: shop/headers, add-headers: shop/others") + ingress("plain", ""))
	f(settings("global-allowed-response-headers: X-A") + custom + basic + ingress("auth", auth) + ingress("tls", nginx+"auth-tls-secret: shop/ca") +
		ingress("proxy", nginx+"proxy-ssl-secret: shop/ca, "+nginx+"backend-protocol: HTTPS"))
}

// Lint reports sources that it cannot read, and still rates all others.
func TestLintOfAllSorts(t *testing.T) {
	const ingress = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: NAME, annotations: {nginx.ingress.kubernetes.io/client-body-buffer-size: 50m}}}"
	one := func(name string) string { return strings.Replace(ingress, "NAME", name, 1) + "\n" }
	asJSON := func(name string) string {
		return `{"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "` + name + `", "annotations": {"nginx.ingress.kubernetes.io/client-body-buffer-size": "50m"}}}`
	}
	dir := t.TempDir()
	f := func(text string, wantStatus int, wantErr string, wantOut ...string) {
		t.Helper()
		file := filepath.Join(dir, "all.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err, status := weir("lint", file)
		if status != wantStatus || !strings.Contains(err, wantErr) || wantErr == "" && err != "" {
			t.Errorf("of\n%s\nthe status is %d, and there is %q, want %d and %q", text, status, err, wantStatus, wantErr)
		}
		for _, want := range wantOut {
			if !strings.Contains(out, want) {
				t.Errorf("of\n%s\nthere is\n%s\nand not %q", text, out, want)
			}
		}
	}
	f("\ufeff%YAML 1.2\n---\n"+one("a")+"---  # next\n"+one("b")+"...\n--- "+one("c"), 0, "", "default/a", "default/b", "default/c", "0 exact, 3 near,")
	f(strings.ReplaceAll("---\n"+one("a")+"---\n---\n"+one("b"), "\n", "\r\n"), 0, "", "default/a", "default/b")
	f(asJSON("a")+"\n"+asJSON("b"), 0, "", "default/a", "default/b")
	f("\xff\xfe"+strings.Join(strings.Split(one("a"), ""), "\x00")+"\x00", 0, "", "default/a") // UTF-16
	f(one("a")+"---\n{{- if .Values.on }}\nkind: Ingress\n{{- end }}\n---\na: [\n---\n"+one("b"), statusError,
		"document 2 is not a Kubernetes object: it is a template; render it first, for example with helm template\ndocument 3 is not a Kubernetes object: yaml: ", "default/a", "default/b")
	f("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: odd}, spec: {ports: all}}\n- "+one("b"), statusError, `all.yaml: document 1: Service "odd": spec.ports is text; write a list`, "default/b")
	f(one("a")+"---\n{apiVersion: extensions/v1beta1, kind: Ingress, metadata: {name: old, annotations: {nginx.ingress.kubernetes.io/fastcgi-index: /}}, spec: {rules: [{http: {paths: [{backend: {serviceName: a, servicePort: 80}}]}}]}}\n---\n"+one("b"), statusError, "2 findings",
		"default/a", "Ingress default/old\n  no     nginx.ingress.kubernetes.io/fastcgi-index", "wrong  Its API version is extensions/v1beta1, which", "default/b")
	f(one("a")+"---\n{apiVersion: traefik.io/v1alpha1, kind: IngressRoute, metadata: {name: r, namespace: shop}, spec: {routes: []}}\n---\n{apiVersion: gateway.networking.k8s.io/v1, kind: UDPRoute, metadata: {name: h}}\n---\n{apiVersion: apps/v1, kind: Deployment}", statusError, "2 findings",
		"default/a", "IngressRoute shop/r\n  wrong  weir does not read Traefik's own objects", "UDPRoute default/h\n  wrong  weir does not read this kind of the Gateway API")
	if out, err, status := weir("lint", filepath.Join(dir, "none.yaml"), filepath.Join(dir, "all.yaml")); status != statusError || !strings.Contains(err, "none.yaml") || !strings.Contains(out, "default/a") {
		t.Errorf("beside a file that is not there: status %d\n%s\n%s", status, out, err)
	}
}

// Lint reports the errors of objects of the Gateway API. What is not in the manifests is no error.
func TestLintGateways(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "all.yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "GROUP", "apiVersion: gateway.networking.k8s.io/v1")), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _, status := weir("lint", file)
		if wantStatus := min(1, len(want)); (status == 0) != (wantStatus == 0) {
			t.Errorf("of\n%s\nthe status is %d:\n%s", text, status, out)
		}
		if n := strings.Count(out, "  wrong  "); n != len(want) {
			t.Errorf("of\n%s\nthere are %d findings:\n%s", text, n, out)
		}
		for _, one := range want {
			if !strings.Contains(out, one) {
				t.Errorf("of\n%s\nthere is\n%s\nand not %q", text, out, one)
			}
		}
	}
	const route = "{GROUP, kind: HTTPRoute, metadata: {name: app}, spec: {parentRefs: [{name: edge, namespace: infra, sectionName: web}], rules: [RULE]}}\n"
	rule := func(text string) string { return strings.Replace(route, "RULE", text, 1) }
	f(rule("{backendRefs: [{name: elsewhere, port: 80}]}"))
	f(rule("{filters: [{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}], backendRefs: [{name: a, port: 80}]}"),
		"HTTPRoute default/app\n  wrong  Dropped Rule 0: the filter ExtensionRef is not supported by weir")
	f(rule("{backendRefs: [{name: a, namespace: other, port: 80}]}"), "No ReferenceGrant in the namespace other allows")
	f(rule("{backendRefs: [{name: a, namespace: other, port: 80}]}") + "---\n{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: g, namespace: other}, spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}], to: [{group: '', kind: Service}]}}\n")
	f("{GROUP, kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: theirs, addresses: [{value: 192.0.2.1}], listeners: [{name: a, port: 80, protocol: HTTP}, {name: b, port: 80, protocol: HTTP}, {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: c}]}}]}}\n",
		"Gateway default/edge\n  wrong  Listener a: ", "  wrong  Listener b: ")
	f("{GROUP, kind: GatewayClass, metadata: {name: theirs}, spec: {controllerName: a.example/b, parametersRef: {group: a, kind: B, name: c}}}\n", "weir has no parameters for classes")
	f("{GROUP, kind: TCPRoute, metadata: {name: db}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: a, port: 80}]}]}}\n---\n" +
		"{GROUP, kind: TLSRoute, metadata: {name: mail}, spec: {parentRefs: [{name: edge}], hostnames: [a.example], rules: [{backendRefs: [{name: a, port: 80}]}]}}\n")
}

// Lint reports annotations of weir's own that have no effect, or an invalid value. The names of policies are
// those of a configuration that it does not read.
func TestLintOwnAnnotations(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, annotations: {weirproxy.github.io/proxy-protocol: lb, weirproxy.github.io/ssh: 'git:22'}}, spec: {gatewayClassName: weir, listeners: [{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: c}], options: {weirproxy.github.io/tls-policy: modern}}}]}}", ""},
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, annotations: {weirproxy.github.io/proxy_protocol: lb}}, spec: {gatewayClassName: weir, listeners: [{name: a, port: 80, protocol: HTTP}]}}",
			"weir does not know the annotation weirproxy.github.io/proxy_protocol, so it has no effect; correct the name (weir knows weirproxy.github.io/proxy-protocol, weirproxy.github.io/issuer, weirproxy.github.io/ssh), or remove it."},
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, annotations: {weirproxy.github.io/issuer: public}}, spec: {gatewayClassName: weir, listeners: [{name: a, port: 443, protocol: HTTPS, hostname: a.example, tls: {options: {weirproxy.github.io/issuer: other}}}]}}", ""},
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: s, annotations: {weirproxy.github.io/issuer: public}}, spec: {parentRef: {name: g}, listeners: [{name: a, port: 443, protocol: HTTPS, hostname: a.example, tls: {options: {weirproxy.github.io/issuer: public}}}]}}", ""},
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: s, annotations: {weirproxy.github.io/ssh: 'git:22'}}, spec: {parentRef: {name: g}, listeners: [{name: a, port: 80, protocol: HTTP}]}}", "has an effect only on a Gateway; move it there"},
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, annotations: {weirproxy.github.io/ssh: git}}, spec: {gatewayClassName: weir, listeners: [{name: a, port: 80, protocol: HTTP}]}}",
			`is "git"; write the name of a Service`},
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g}, spec: {gatewayClassName: weir, listeners: [{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: c}], options: {weirproxy.github.io/tls: modern}}}]}}",
			"tls.options has weirproxy.github.io/tls, which weir does not know"},
		{"{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, annotations: {weirproxy.github.io/send-proxy-protocol: v2}}, spec: {parentRefs: [{name: g}]}}", "has an effect only on a Service; move it there"},
		{"{apiVersion: v1, kind: Service, metadata: {name: s, annotations: {weirproxy.github.io/send-proxy-protocol: v2}}, spec: {ports: [{port: 80}]}}", ""},
		{"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, annotations: {weirproxy.github.io/x: v2}}, spec: {ingressClassName: weir, defaultBackend: {service: {name: a, port: {number: 80}}}}}", "weir does not know the annotation weirproxy.github.io/x, so it has no effect; remove it."},
	} {
		file := filepath.Join(t.TempDir(), "all.yaml")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _, _ := weir("lint", file)
		if strings.Contains(out, "  wrong  ") != (test.want != "") || !strings.Contains(out, test.want) {
			t.Errorf("of %s\nlint says %q, want %q", test.text, out, test.want)
		}
	}
}

func TestOwnKubeconfig(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	put := func(name string) string {
		file := filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	f := func(variable, want string) {
		t.Helper()
		t.Setenv("KUBECONFIG", variable)
		if got := ownKubeconfig(); got != want {
			t.Errorf("with KUBECONFIG=%s it is %q, want %q", variable, got, want)
		}
	}
	f("", "")
	own, other := put(".kube/config"), put("other")
	f("", own)
	f(other, other)
	f(filepath.Join(home, "nothing")+string(filepath.ListSeparator)+other, other)
}

// Outside of a Pod and without a kubeconfig, the error names the places where weir looked
// for one.
func TestLintWithoutKubeconfig(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "nothing"))
	if _, err, status := weir("lint", "--cluster"); status != statusError || !strings.Contains(err, "no kubeconfig: neither KUBECONFIG nor ~/.kube/config") {
		t.Errorf("status %d, %q", status, err)
	}
}
