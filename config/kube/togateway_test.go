package kube

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
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

// What the Gateway API cannot say stays an Ingress, with the reason, and so do all Ingresses of its host.
func TestToGatewayStays(t *testing.T) {
	const file = "listeners: {web: {address: '127.0.0.1:80', protocol: http}, websecure: {address: '127.0.0.1:443', protocol: tls}}\n" +
		"certificates: [{self_signed: {hosts: [a.example]}}]\nkubernetes: {class: weir, ingress_nginx: {config_map: a/nginx}}\n"
	for _, test := range []struct{ path, annotations, want string }{
		{"/", "auth-url: 'http://a.b.svc/'", "nothing equal, for nginx.ingress.kubernetes.io/auth-url"},
		{"/", "whitelist-source-range: 10.0.0.0/8", "whitelist-source-range"},
		{"/", "affinity: cookie", "affinity"},
		{"/", "limit-rps: '5'", "limit-rps"},
		{"/", "backend-protocol: HTTPS", "backend-protocol"},
		{"/", "mirror-target: 'http://a.b.svc/'", "mirror-target"},
		{"/", "no-such-annotation: a", "no-such-annotation"},
		{"/", "force-ssl-redirect: 'true'", "no Ingress has a Secret"},
		{"/", "temporal-redirect: 'https://b.example/x?y=$request_uri'", "a redirect to https://b.example/x?y={uri}"},
		{"/", "upstream-vhost: 'b.example:8080'", `no new Host "b.example:8080"`},
		{"/", "enable-cors: 'true', cors-allow-origin: 'null'", `no origin "null"`},
		{"/", "configuration-snippet: 'return 403;'", "does more than change HTTP headers"},
		{"/", "configuration-snippet: 'deny 10.0.0.0/8;'", "set: Clients"},
		{"/", "configuration-snippet: 'proxy_set_header X-A $remote_addr;'", "no variables"},
		{"/", "configuration-snippet: 'add_header X-A b; add_header X-A c;'", "twice"},
		{"/", "configuration-snippet: 'more_clear_headers X-*;'", "whole names"},
		{"/", "configuration-snippet: 'expires 1h;'", "has expires"},
		{"/a(/|$)(.*)", "rewrite-target: /b/$1", "rewrite-target /b/$1 with the path /a(/|$)(.*)"},
		{"/a(.*)", "rewrite-target: /$1", "without one slash"},
		{"/a/(.*)/b/(.*)", "rewrite-target: /$2/$1", "rewrite-target"},
		{"/a|/b", "use-regex: 'true'", "alternatives"},
		{"/a'b\"", "use-regex: 'false'", "does not accept the path"},
		{"/a", "canary: 'true', canary-weight: '5'", "it is a canary, and no Ingress has its host"},
	} {
		pathType := "Prefix"
		if strings.ContainsAny(test.path, "(|") {
			pathType = "ImplementationSpecific"
		}
		text := ""
		for _, pair := range strings.Split(test.annotations, ", ") {
			text += "nginx.ingress.kubernetes.io/" + pair + ", "
		}
		m := mustRead(t, fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: a, annotations: {%s}}, spec: {ingressClassName: weir, rules: [{host: a.example, http: {paths: [{path: %q, pathType: %s, backend: {service: {name: app, port: {number: 80}}}}]}}]}}\n---\n"+
			"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: other, namespace: a}, spec: {ingressClassName: weir, rules: [{host: a.example, http: {paths: [{path: /other, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}\n---\n"+
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: nginx, namespace: a}, data: {allow-snippet-annotations: 'true'}}", text, test.path, pathType))
		m.Controller = m.ConfigMaps[0]
		made := ToGateway(mustParse(t, file), &m.Objects, config.ObjectName{Namespace: "infra", Name: "edge"}, "weir", nil)
		if len(made.Stay) != 2 || !strings.Contains(made.Stay[1], test.want) || !strings.Contains(made.Stay[0], "Ingress a/other: the Ingress a/web has a.example too, and stays.") || len(made.Objects) != 1 {
			t.Errorf("%s of %s: these stay: %q, and it makes %v", test.annotations, test.path, made.Stay, made.Objects)
		}
	}
}

// What the routes of a converted Ingress do not have is said.
func TestToGatewayNotes(t *testing.T) {
	m := mustRead(t, "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: a, annotations: {cert-manager.io/cluster-issuer: x, nginx.ingress.kubernetes.io/proxy-body-size: 8m, nginx.ingress.kubernetes.io/enable-cors: 'false', nginx.ingress.kubernetes.io/proxy-connect-timeout: '3'}}, "+
		"spec: {ingressClassName: weir, rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}")
	made := ToGateway(mustParse(t, strings.Replace(gatewayConfig, "protocol: http}", "protocol: http}\n  websecure: {address: '127.0.0.1:443', protocol: tls}", 1)), &m.Objects, config.ObjectName{Namespace: "infra", Name: "edge"}, "weir", nil)
	for n, want := range []string{"go without nginx.ingress.kubernetes.io/proxy-body-size,", "other programs read cert-manager.io/cluster-issuer,", "no proxy-connect-timeout"} {
		if len(made.Stay) > 0 || len(made.Notes) != 3 || !strings.Contains(made.Notes[n], want) {
			t.Errorf("it says %q, and these stay: %q; want %s", made.Notes, made.Stay, want)
		}
	}
}

func TestToGatewayNotesOfSnippets(t *testing.T) {
	m := mustRead(t, "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: a, annotations: {nginx.ingress.kubernetes.io/configuration-snippet: 'gzip on; more_set_headers \"A: b\";'}}, "+
		"spec: {ingressClassName: weir, rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}\n---\n"+
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: nginx, namespace: a}, data: {allow-snippet-annotations: 'true', hsts: 'false'}}")
	m.Controller = m.ConfigMaps[0]
	made := ToGateway(mustParse(t, "listeners: {web: {address: '127.0.0.1:80', protocol: http}, websecure: {address: '127.0.0.1:443', protocol: tls}}\ncertificates: [{self_signed: {hosts: [a.example]}}]\nkubernetes: {class: weir, ingress_nginx: {config_map: a/nginx}}\n"), &m.Objects, config.ObjectName{Namespace: "infra", Name: "edge"}, "weir", nil)
	if notes := strings.Join(made.Notes, "\n"); len(made.Stay) > 0 || !strings.Contains(notes, "for gzip of the snippet") {
		t.Errorf("it says %q, and these stay: %q", notes, made.Stay)
	}
}

// Each HTTPRoute has a name of its own, also if Ingresses have the names of others with a number.
func TestToGatewayNames(t *testing.T) {
	const format = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %s, namespace: a}, spec: {ingressClassName: weir, rules: [{host: %s, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}%s]}}\n---\n"
	m := mustRead(t, fmt.Sprintf(format, "web", "a.example", ", {host: b.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}")+fmt.Sprintf(format, "web-1", "c.example", ""))
	made := ToGateway(mustParse(t, strings.Replace(gatewayConfig, "protocol: http}", "protocol: http}\n  websecure: {address: '127.0.0.1:443', protocol: tls}", 1)), &m.Objects, config.ObjectName{Namespace: "infra", Name: "edge"}, "weir", nil)
	if len(made.Of) != 3 || len(made.Objects) != 4 {
		t.Errorf("the routes are %v, and the objects %v", made.Of, made.Objects)
	}
}

// Whatever the path and the target of a rewrite are: requests that a converted rule matches are those of the Ingress, and get the
// path that nginx makes of them.
func FuzzRewriteAsRule(f *testing.F) {
	for _, path := range []string{"/api(/|$)(.*)", "/api/(.*)", "/api/?(.*)", "/api(.*)", "/api(/.*)?", "/(.*)", "/api", "/api/", "/api$", "/a.b/.*", "/(a|b)/(.*)", "/[a-c]+", "/api(?:/|$)(.*)", "/api(/.*|$)"} {
		for _, target := range []string{"/", "/new", "/new/$1", "/new/$2", "/$1", "/$2", "$1", "/new$1", "/$1/$2"} {
			f.Add(path, target, "/api/x/y")
			f.Add(path, target, "/api")
		}
	}
	f.Fuzz(func(t *testing.T, path, target, request string) {
		plain := regexp.MustCompile(`^(/[a-z]*)+$`)
		e, err := regexp.Compile("(?i)^" + path)
		if err != nil || !plain.MatchString(request) || strings.Contains(request, "//") || strings.ContainsAny(target, "{}") || !strings.HasPrefix(path, "/") || annotation.HasChoice(path) {
			return
		}
		at, err := matchOf(&config.Route{Paths: []config.Path{{Expression: true, Decoded: true, Value: path}}})
		if err != nil {
			return
		}
		change, bare, err := at.replace(config.Template(target))
		if err != nil {
			return
		}
		prefix := strings.TrimSuffix(at.value, "/")
		switch at.kind {
		case "PathPrefix":
			if request != prefix && !strings.HasPrefix(request, prefix+"/") {
				return
			}
		case "Exact":
			if request != at.value {
				return
			}
		default:
			if !regexp.MustCompile("^(?:" + at.value + ")$").MatchString(request) {
				return
			}
		}
		groups := e.FindStringSubmatch(request)
		if groups == nil {
			if request == prefix { // /api/(.*) does not match /api; a note says so
				return
			}
			t.Fatalf("the rule %s %s of %q matches %q, and the Ingress does not", at.kind, at.value, path, request)
		}
		want := ""
		for _, p := range config.Template(target).PathParts() {
			want += p.Text
			if p.Group > 0 && p.Group < len(groups) {
				want += groups[p.Group]
			}
		}
		got, _ := change["replaceFullPath"].(string)
		if to, is := change["replacePrefixMatch"].(string); is {
			got = strings.TrimSuffix(to, "/") + strings.TrimPrefix(request, prefix)
		}
		if bare != "" && request == at.value {
			got = bare
		}
		if cmp.Or(got, "/") != cmp.Or(want, "/") {
			t.Fatalf("%q with %q: %q becomes %q at nginx, and %q by the rule %v", path, target, request, want, got, change)
		}
	})
}
