package main

import (
	"fmt"
	"strings"
)

// convert converts random objects of a cluster, and returns what weir says about them.
func (s *side) convert(w *world) []string {
	objects, err := s.write("objects.yaml", w.objects())
	if err != nil {
		return []string{err.Error()}
	}
	file, err := s.write("cluster.yaml", w.clusterFile())
	if err != nil {
		return []string{err.Error()}
	}
	seen := titled("lint", s.run("lint", objects))
	seen = append(seen, titled("migrate", s.run("migrate", objects))...)
	seen = append(seen, titled("migrate to gateway", s.run("migrate", "--gateway-api", "infra/edge", objects))...)
	for range 12 {
		url := one(w, "http", "https") + "://" + one(w, "a.test", "b.test", "x.c.test", "www.a.test") + one(w, "/", "/api/x", "/v1/y", "/admin", "/exact")
		args := []string{"explain", "-c", file, "--objects", objects, "--client", "192.0.2.7", "--method", one(w, "GET", "POST")}
		for _, h := range some(w, 0.3, "X-Canary: always", "Cookie: canary=always", "Origin: https://app.test") {
			args = append(args, "--header", h)
		}
		seen = append(seen, titled("explain "+url, s.run(append(args, url)...))...)
	}
	return seen
}

// clusterFile is a random file of an ingress controller.
func (w *world) clusterFile() string {
	return fmt.Sprintf(`node: node-a
listeners:
  web: {address: ":80", protocol: http}
  websecure: {address: ":443", protocol: tls}
kubernetes: {class: nginx, publish: {addresses: [192.0.2.1]}, gateways: {addresses: {shared: [web, websecure]}}%s}
`, one(w, "", "", ", host_ownership: namespace", ", host_ownership: shared", ", timeouts: {connect: 3s, read: 5m}", ", ingress_nginx: {config_map: ingress-nginx/ingress-nginx-controller}"))
}

// values are the annotations of ingress-nginx with values that are usual, odd or wrong.
var values = [][]string{
	{"affinity", "cookie", "none"}, {"affinity-mode", "persistent", "balanced"}, {"app-root", "/home", "home"},
	{"auth-realm", "Staff", `a"b`}, {"auth-secret", "users", "other/users", "missing"}, {"auth-type", "basic", "digest"},
	{"auth-signin", "https://login.test/?rd=$escaped_request_uri", "x"}, {"auth-url", "http://auth.test/check", "http://a.default.svc.cluster.local/check?u=$request_uri", "junk"},
	{"auth-method", "POST", "junk"}, {"auth-response-headers", "X-User, X-Mail"}, {"auth-snippet", "proxy_set_header X-A b;"}, {"auth-tls-secret", "default/ca"},
	{"backend-protocol", "HTTPS", "GRPC", "FCGI", "AUTO_HTTP"}, {"canary", "true"}, {"canary-weight", "30", "x"}, {"canary-by-header", "X-Canary"}, {"canary-by-cookie", "canary"},
	{"configuration-snippet", `more_set_headers "X-A: b";`, "proxy_set_header X-B $remote_addr;", "deny 192.0.2.0/24;", "return 403;", "lua_code_cache on;", "expires 1h;"},
	{"connection-proxy-header", "keep-alive"}, {"cors-allow-credentials", "false"}, {"cors-allow-headers", "X-A,X-B"}, {"cors-allow-methods", "GET, PUT"}, {"cors-allow-origin", "https://app.test", "*", "https://*.app.test"}, {"cors-max-age", "60", "x"}, {"enable-cors", "true", "false"},
	{"custom-http-errors", "404,503", "x"}, {"default-backend", "pages", "missing"}, {"custom-headers", "default/headers"}, {"denylist-source-range", "192.0.2.0/24", "x"}, {"whitelist-source-range", "192.0.2.0/24", "10.0.0.0/8,192.0.2.7", "junk"},
	{"enable-access-log", "false"}, {"enable-opentelemetry", "true"}, {"force-ssl-redirect", "true"}, {"ssl-redirect", "false", "true"}, {"from-to-www-redirect", "true"},
	{"limit-connections", "5"}, {"limit-rps", "10", "x"}, {"limit-rpm", "60"}, {"limit-rate", "100"}, {"limit-whitelist", "10.0.0.0/8"}, {"load-balance", "ewma", "round_robin"},
	{"mirror-target", "https://copy.test$request_uri"}, {"permanent-redirect", "https://b.test/x", "junk"}, {"permanent-redirect-code", "308", "999"}, {"temporal-redirect", "https://b.test"},
	{"proxy-body-size", "8m", "0", "x"}, {"proxy-buffering", "on"}, {"proxy-connect-timeout", "5", "x"}, {"proxy-read-timeout", "3600", "60s"}, {"proxy-send-timeout", "10"}, {"proxy-cookie-path", "/ /api/"}, {"proxy-cookie-domain", "a b"},
	{"proxy-next-upstream", "error http_503", "off", "junk"}, {"proxy-next-upstream-tries", "2", "0"}, {"proxy-redirect-from", "http://a"}, {"proxy-redirect-to", "http://b"}, {"proxy-ssl-secret", "default/ca"}, {"proxy-ssl-verify", "on"},
	{"rewrite-target", "/$2", "/x", "/$1/y"}, {"use-regex", "true"}, {"satisfy", "any", "all"}, {"server-alias", "www.a.test", "b.test"}, {"server-snippet", "location /deny { deny all; }", "gzip on;", "return 404;"},
	{"service-upstream", "true"}, {"session-cookie-name", "s"}, {"session-cookie-expires", "60"}, {"session-cookie-samesite", "Lax", "junk"}, {"ssl-passthrough", "true"}, {"ssl-ciphers", "ALL"}, {"upstream-hash-by", "$remote_addr", "$request_uri", "$cookie_x"}, {"upstream-vhost", "b.test"}, {"x-forwarded-prefix", "/p"}, {"no-such-annotation", "1"},
}

// objects are random Ingresses, Gateways and routes, with what they refer to.
func (w *world) objects() string {
	all := []string{
		"{apiVersion: v1, kind: ServiceList, items: [{metadata: {name: a, namespace: default}, spec: {ports: [{name: http, port: 80}]}}, {metadata: {name: b, namespace: default}, spec: {ports: [{port: 80}]}}, {metadata: {name: pages, namespace: default}, spec: {ports: [{port: 80}]}}, {metadata: {name: a, namespace: other}, spec: {ports: [{port: 80}]}}]}",
		`{apiVersion: v1, kind: Secret, metadata: {name: users, namespace: default}, stringData: {auth: "ada:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"}}`,
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: headers, namespace: default}, data: {X-Custom: "1"}}`,
		"{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: nginx}, spec: {controllerName: weirproxy.github.io/gateway}}",
		"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, namespace: default}, spec: {gatewayClassName: nginx, listeners: [{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: " + one(w, "All", "Same") + "}}}]}}",
	}
	if w.Float64() < 0.5 {
		all = append(all, "{apiVersion: v1, kind: ConfigMap, metadata: {name: ingress-nginx-controller, namespace: ingress-nginx}, data: {"+strings.Join(some(w, 0.2,
			`use-forwarded-headers: "true"`, `proxy-body-size: 20m`, `proxy-read-timeout: "120"`, `server-snippet: "`+one(w, "gzip on;", "deny all;")+`"`, `ssl-protocols: "`+one(w, "TLSv1.2 TLSv1.3", "TLSv1 TLSv1.2")+`"`,
			`hsts: "false"`, `allow-snippet-annotations: "true"`, `custom-http-errors: "503"`, `log-format-upstream: '$remote_addr $status'`, `enable-brotli: "true"`, `keep-alive: "75"`, `no-such-key: x`, `global-auth-url: http://auth.test/`, `whitelist-source-range: 192.0.2.0/24`), ", ")+"}}")
	}
	for n := range 2 + w.IntN(5) {
		all = append(all, w.ingress(n))
	}
	for n := range w.IntN(4) {
		all = append(all, w.httpRoute(n))
	}
	return strings.Join(all, "\n---\n") + "\n"
}

func (w *world) ingress(n int) string {
	var annotations []string
	for _, v := range values {
		if w.Float64() < 0.05 {
			annotations = append(annotations, fmt.Sprintf("nginx.ingress.kubernetes.io/%s: %q", v[0], one(w, v[1:]...)))
		}
	}
	var rules []string
	for range 1 + w.IntN(2) {
		var paths []string
		for range 1 + w.IntN(2) {
			paths = append(paths, fmt.Sprintf("{path: %q, pathType: %s, backend: {service: {name: %s, port: {number: %s}}}}",
				one(w, "/", "/api", "/v[0-9]/(.*)", "/admin", "/exact", "/api(/|$)(.*)"), one(w, "Prefix", "Prefix", "Exact", "ImplementationSpecific"), one(w, "a", "a", "b", "missing"), one(w, "80", "80", "81")))
		}
		rules = append(rules, fmt.Sprintf("{%shttp: {paths: [%s]}}", one(w, "host: a.test, ", "host: a.test, ", "host: b.test, ", `host: "*.c.test", `, ""), strings.Join(paths, ", ")))
	}
	secure := one(w, "", "", "tls: [{hosts: [a.test, b.test]}], ")
	return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i%d, namespace: %s, creationTimestamp: "2026-01-0%dT00:00:00Z", annotations: {%s}}, spec: {ingressClassName: nginx, %srules: [%s]}}`,
		n, one(w, "default", "default", "other"), 1+w.IntN(9), strings.Join(annotations, ", "), secure, strings.Join(rules, ", "))
}

func (w *world) httpRoute(n int) string {
	filters := some(w, 0.25,
		"{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: A, value: b}], remove: [E]}}",
		"{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: C, value: d}]}}",
		"{type: URLRewrite, urlRewrite: {hostname: b.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: /x}}}",
		"{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 80}, percent: 10}}",
		`{type: CORS, cors: {allowOrigins: ["https://app.test"]}}`,
		"{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}")
	match := one(w, "{path: {type: PathPrefix, value: /api}}", "{path: {type: Exact, value: /exact}}", `{path: {type: RegularExpression, value: "/v[0-9]/.*"}}`, "{method: POST}", "{headers: [{name: X-Canary, value: always}]}", "{queryParams: [{name: q, value: x}]}")
	timeouts := one(w, "", "", "timeouts: {request: 10s}, ", "retry: {attempts: 2, codes: [503]}, ")
	return fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r%d, namespace: %s, creationTimestamp: "2026-01-0%dT00:00:00Z"}, spec: {parentRefs: [{name: edge, namespace: default}], hostnames: [%s], rules: [{matches: [%s], filters: [%s], %sbackendRefs: [{name: %s, port: 80, weight: %d}, {name: b, port: 80}]}]}}`,
		n, one(w, "default", "other"), 1+w.IntN(9), one(w, "a.test", "b.test", `"*.c.test"`, "a.test, www.a.test"), match, strings.Join(filters, ", "), timeouts, one(w, "a", "missing"), w.IntN(4))
}
