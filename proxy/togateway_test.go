package proxy

import (
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
)

// gatewayFile serves Ingresses and Gateways on the same listeners.
const gatewayFile = `
listeners:
  web: {address: "@1", public_port: 80, protocol: http}
  websecure: {address: "@2", public_port: 443, protocol: tls}
certificates: [{self_signed: {hosts: [none.example]}}]
kubernetes:
  class: weir
  publish: {addresses: [192.0.2.1]}
  ingress_nginx: {config_map: a/nginx}
  gateways: {addresses: {shared: [web, websecure]}}
`

// what describes a response and the request behind it, without what differs each time.
func (a reaction) what() string {
	var lines []string
	for line := range strings.Lines(a.body) {
		if !strings.HasPrefix(line, "X-Request-Id") && a.StatusCode < 300 {
			lines = append(lines, line)
		}
	}
	hidden := []string{"Date", "Content-Length", "X-Request-Id"}
	if a.StatusCode == 200 { // ingress-nginx also sends what only the answer to a preflight needs
		hidden = append(hidden, "Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Max-Age")
	}
	if a.Header.Get("Access-Control-Allow-Origin") == "*" { // browsers then ignore it
		hidden = append(hidden, "Access-Control-Allow-Credentials")
	}
	for _, name := range slices.Sorted(maps.Keys(a.Header)) {
		if !slices.Contains(hidden, name) {
			lines = append(lines, fmt.Sprintf("< %s: %s\n", name, strings.Join(a.Header[name], ", ")))
		}
	}
	return fmt.Sprintf("%d\n%s", a.StatusCode, strings.Join(lines, ""))
}

// The Gateway API objects that weir migrate makes of Ingresses do the same with requests, for everything that the Gateway API
// can say: the test serves first the Ingresses, and then the objects.
func TestIngressesAsGateway(t *testing.T) {
	ca := writeCA(t)
	pair := ca.leaf(&x509.Certificate{DNSNames: []string{"*.g.example"}})
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	manifests := secretManifest("a/pair", "tls.crt", pemText("CERTIFICATE", pair.Certificate[0]), "tls.key", pemText("PRIVATE KEY", key)) +
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: nginx, namespace: a}, data: {allow-snippet-annotations: \"true\", global-allowed-response-headers: \"X-Mapped\"}}\n---\n" +
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: headers, namespace: a}, data: {X-Mapped: from a map}}\n---\n"
	var requests []string
	add := func(host, rules string, annotations []string, asked ...string) {
		host += ".g.example"
		manifests += strings.ReplaceAll(strings.ReplaceAll(ingress("a/"+host, 2, rules, annotations...), "HOST", host), "]}], rules", "], secretName: pair}], rules")
		for _, one := range asked {
			requests = append(requests, strings.ReplaceAll(one, "HOST", host))
		}
	}
	add("rewrite", "HOST ImplementationSpecific /api(/|$)(.*) app", []string{"rewrite-target: /new/$2", "x-forwarded-prefix: /api", "upstream-vhost: inner.example"},
		"GET http://HOST/api", "GET http://HOST/api/", "GET http://HOST/api/a/b?c=d", "GET http://HOST/other")
	add("strip", "HOST ImplementationSpecific /api(/|$)(.*) app, HOST ImplementationSpecific /rest/(.*) rest", []string{"rewrite-target: /$2"}, "GET http://HOST/api", "GET http://HOST/api/a%20b?c")
	add("whole", "HOST Prefix /old app", []string{"rewrite-target: /new"}, "GET http://HOST/old", "GET http://HOST/old/a?b", "GET http://HOST/")
	add("after", "HOST ImplementationSpecific /a(/.*)? app", []string{"rewrite-target: /b$1", "use-regex: true"}, "GET http://HOST/a", "GET http://HOST/a/c/", "GET http://HOST/a/c?d")
	add("letters", "HOST ImplementationSpecific /[a-c]+/x app, HOST Prefix / rest", []string{"use-regex: true"}, "GET http://HOST/abc/x", "GET http://HOST/ABC/xy", "GET http://HOST/d/x")
	add("moved", "HOST Prefix / app", []string{"permanent-redirect: https://www.example.org/new", "permanent-redirect-code: 308"}, "GET http://HOST/a", "POST http://HOST/")
	add("moving", "HOST Prefix / app", []string{"temporal-redirect: https://www.example.org$request_uri"}, "GET http://HOST/a/b?c=d")
	add("below", "HOST Prefix /x app", []string{"permanent-redirect: http://www.example.org:81/y$request_uri"}, "GET http://HOST/x/b?c=d", "GET http://HOST/x")
	add("root", "HOST Prefix / app", []string{"app-root: /app"}, "GET http://HOST/", "GET http://HOST/app", "GET http://HOST/x")
	add("www", "HOST Prefix / app", []string{"from-to-www-redirect: true", "server-alias: other.g.example"}, "GET http://www.HOST/a?b", "GET http://HOST/a", "GET http://other.g.example/")
	add("cors", "HOST Prefix / app", []string{"enable-cors: true", "cors-allow-origin: https://a.example, https://b.example:8443", "cors-allow-methods: GET, PUT", "cors-allow-headers: X-A, X-B", "cors-expose-headers: X-C", "cors-max-age: 600"},
		"OPTIONS http://HOST/\nOrigin: https://a.example\nAccess-Control-Request-Method: PUT\nAccess-Control-Request-Headers: x-a", "GET http://HOST/\nOrigin: https://b.example:8443", "GET http://HOST/\nOrigin: https://c.example", "GET http://HOST/")
	add("every", "HOST Prefix / app", []string{"enable-cors: true"}, "GET http://HOST/\nOrigin: https://a.example")
	add("headers", "HOST Prefix / app", []string{"custom-headers: a/headers", "configuration-snippet: more_set_headers \"X-Frame-Options: DENY\"; more_clear_headers Pod; add_header X-More m always; proxy_set_header X-Team a; proxy_set_header Accept \"\";"},
		"GET http://HOST/\nAccept: all")
	add("tls", "HOST Prefix / app, HOST Exact /exact rest", []string{"tls: HOST", "proxy-read-timeout: 30", "proxy-body-size: 0"}, "GET http://HOST/a?b", "GET https://HOST/a", "GET https://HOST/exact", "GET https://HOST/exact/a")
	add("plain", "HOST Prefix /p app", []string{"tls: HOST", "ssl-redirect: false"}, "GET http://HOST/p", "GET https://HOST/p/q", "GET https://HOST/")
	for name, annotations := range map[string][]string{"header": {"canary-by-header: X-Canary", "canary-by-cookie: can", "canary-weight: 0"}, "value": {"canary-by-header: X-Canary", "canary-by-header-value: me", "canary-weight: 100"},
		"pattern": {"canary-by-header: X-Canary", "canary-by-header-pattern: ^me|you"}} {
		add(name, "HOST Prefix /c app", nil, "GET http://HOST/c", "GET http://HOST/c\nX-Canary: always", "GET http://HOST/c/d\nX-Canary: never\nCookie: can=always", "GET http://HOST/c\nX-Canary: me", "GET http://HOST/c\nX-Canary: to you all",
			"GET http://HOST/c\nCookie: a=b; can=always", "GET http://HOST/c\nCookie: can=never; d=e", "GET http://HOST/c\nCookie: xcan=always")
		manifests += ingress("a/of-"+name, 1, name+".g.example Prefix /c alt", append(annotations, "canary: true")...)
	}
	i := newIngressRig(t, gatewayFile, manifests)
	before := map[string]string{}
	for _, request := range requests {
		before[request] = i.ask(request).what()
	}

	var m kube.Manifests
	if err := m.Read(strings.NewReader(manifests)); err != nil {
		t.Fatal(err)
	}
	m.UseMaps()
	m.Controller = m.ConfigMaps[0]
	cfg, err := file.Parse("weir.yaml", []byte(strings.NewReplacer("@1", "127.0.0.1:1", "@2", "127.0.0.1:2").Replace(gatewayFile)), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	made := kube.ToGateway(cfg, &m.Objects, config.ObjectName{Namespace: "a", Name: "edge"}, "weir", nil)
	if len(made.Stay) > 0 {
		t.Errorf("these stay: %q", made.Stay)
	}
	text := "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: weir}, spec: {controllerName: weirproxy.github.io/gateway}}\n---\n"
	for _, o := range made.Objects {
		one, err := sigsyaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text += string(one) + "---\n"
		if o["kind"] == "HTTPRoute" {
			if err := sigsyaml.UnmarshalStrict(one, &gatewayv1.HTTPRoute{}); err != nil {
				t.Errorf("%v\n%s", err, one)
			}
		}
	}
	for document := range strings.SplitSeq(manifests, "---\n") {
		if !strings.Contains(document, "kind: Ingress,") {
			text += document + "---\n"
		}
	}
	i.change(text)
	for _, request := range requests {
		want := before[request]
		if strings.Contains(request, "https://plain.") { // its route is also that of requests without TLS, as a note says
			want = strings.Replace(want, "< Strict-Transport-Security: max-age=31536000; includeSubDomains\n", "", 1)
		}
		if got := i.ask(request).what(); got != want {
			t.Errorf("%q gets from the Ingress\n%s\nand from the route\n%s", request, want, got)
		}
	}
}
