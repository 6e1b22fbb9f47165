package lint

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// Every existing annotation has a rating, and a reason if the rating is not exact.
func TestEveryAnnotation(t *testing.T) {
	for file, prefix := range map[string]string{"ingress-nginx": nginxPrefix, "traefik": traefikPrefix} {
		text, err := os.ReadFile("testdata/" + file + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		names := strings.Split(strings.TrimSpace(string(text)), "\n")[1:]
		if len(names) < 25 {
			t.Errorf("%s has %d names", file, len(names))
		}
		for _, name := range names {
			for _, value := range []string{"", "true", "false", "off", "1", "anything at all\nof it"} {
				for _, c := range []context{{}, {hasTLS: true}} {
					rating, why, ok := rate(prefix+name, value, c)
					if !ok || why == unknown {
						t.Errorf("%s has no rating", name)
					}
					if (rating != Exact) != (why != "") || rating != Exact && rating != Near && rating != No && rating != guard {
						t.Errorf("%s: %q is %s because of %q", name, value, rating, why)
					}
				}
			}
		}
	}
}

func TestObject(t *testing.T) {
	f := func(name, value string, hasTLS bool, want Rating, why string) {
		t.Helper()
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{name: value, "cert-manager.io/cluster-issuer": "x"}}}
		if hasTLS {
			i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.example"}}}
		}
		all := Object(i)
		if len(all) != 1 || all[0].Annotation != name || all[0].Value != value || all[0].Rating != want || !strings.Contains(all[0].Why, why) {
			t.Errorf("%s: %s is %+v, want %s because of %q", name, value, all, want, why)
		}
	}
	f(nginxPrefix+"ssl-redirect", "true", false, Exact, "")
	f(nginxPrefix+"ssl-redirect", "false", false, Exact, "")
	f(nginxPrefix+"ssl-redirect", "false", true, No, "https_redirect")
	f(nginxPrefix+"force-ssl-redirect", "true", false, No, "under spec.tls")
	f(nginxPrefix+"force-ssl-redirect", "true", true, Near, "")
	f(nginxPrefix+"force-ssl-redirect", "True", false, No, "under spec.tls") // as strconv.ParseBool reads it
	f(nginxPrefix+"ssl-redirect", "1", true, Exact, "")
	f(nginxPrefix+"force-ssl-redirect", "false", false, Exact, "")
	f(nginxPrefix+"backend-protocol", "HTTP", false, Exact, "")
	f(nginxPrefix+"backend-protocol", "https", false, Near, "HTTP/2")
	f(nginxPrefix+"backend-protocol", " grpcs ", false, Exact, "")
	f(nginxPrefix+"backend-protocol", "AUTO_HTTP", false, No, "write HTTP or HTTPS")
	f(nginxPrefix+"backend-protocol", "FCGI", false, No, "FastCGI")
	f(nginxPrefix+"backend-protocol", "SPDY", false, No, "ingress-nginx does not support")
	f(nginxPrefix+"whitelist-source-range", "0.0.0.0/0, ::/0", false, Exact, "")
	f(nginxPrefix+"whitelist-source-range", "10.0.0.0/8", false, No, "503")
	f(nginxPrefix+"whitelist-source-range", "0.0.0.0/0", false, No, "write 0.0.0.0/0,::/0 if everybody")
	f(nginxPrefix+"whitelist-source-range", "", false, No, "503") // ingress-nginx admits no client
	f(nginxPrefix+"auth-url", " ", false, Exact, "")              // a template left the value empty
	f(nginxPrefix+"auth-tls-secret", "", false, Exact, "")
	f(nginxPrefix+"proxy-body-size", "0", false, Exact, "")
	f(nginxPrefix+"proxy-body-size", "50m", false, Near, "any size")
	f(nginxPrefix+"proxy-buffer-size", "16k", false, Exact, "")
	f(nginxPrefix+"proxy-buffer-size", "128k", false, Near, "head_size")
	f(nginxPrefix+"proxy-buffer-size", "9999999999999999999m", false, Near, "head_size")
	f(nginxPrefix+"proxy-read-timeout", " 60 ", false, Exact, "")
	f(nginxPrefix+"proxy-read-timeout", "3600", false, Near, "60 seconds")
	f(nginxPrefix+"rewrite-target", "/$2", false, No, "rewrite")
	f(nginxPrefix+"rewrite-targt", "/", false, No, "spelling")
	f(traefikPrefix+"frontend-entry-points", "http", false, Near, "")
	f(nginxPrefix+"use-regex", "true", false, Exact, "") // the Ingress has no path but "/"
	f(traefikPrefix+"router.entrypoints", "web, websecure", false, Near, "listeners")
	f(traefikPrefix+"router.entrypoints", "websecure,internal", false, No, "503")
	f(traefikPrefix+"router.entrypoints", "websecure,", false, Near, "redirects")
	f(traefikPrefix+"router.middlewares", " ", false, Exact, "") // a template left the value empty
	f(traefikPrefix+"router.middlewares", "default-auth@kubernetescrd", false, No, "503")
	f(nginxPrefix+"configuration-snippet", "", false, Exact, "")
	f(traefikPrefix+"whitelist-source-range", "10.0.0.0/8", false, No, "503")
	f(traefikPrefix+"auth-type", "basic", false, No, "503")
	f(nginxPrefix+"auth-by-nobody-knows", "x", false, No, "503")
	f(traefikPrefix+"router.tls.domains.3.main", "a", false, No, "certificates")
	f(traefikPrefix+"router.pathmatcher", "Path", false, No, "Exact")
	f(traefikPrefix+"service.serversscheme", "http", false, Exact, "")
	f(traefikPrefix+"service.serversscheme", "h2c", false, No, "kubernetes.io/h2c")
	f(traefikPrefix+"router.observability.traceVerbosity", "minimal", false, No, "traces")
}

// A snippet is a guard unless weir knows that each of its lines restricts no client.
func TestSnippets(t *testing.T) {
	f := func(lines string, want Rating) {
		t.Helper()
		if got, _ := snippet(lines, context{}); got != want {
			t.Errorf("%q is %s, want %s", lines, got, want)
		}
	}
	f("", Exact)
	f("# deny all;", No)
	f("client_max_body_size 8m; proxy_read_timeout 1h;", No)
	f("add_header A b;", No)
	f("add_header A b", No)
	f("# comment\n\tadd_header\n  A b;;\r\n # another {\n more_set_headers \"Content-Security-Policy: default-src 'self'; img-src {}\";\n", No)
	f(`add_header A "b\"; c"; gzip on;`, No)
	f(`add_header A 'b"; deny all; "c';`, No)
	f("proxy_set_header Upgrade $http_upgrade;\n  proxy_set_header Connection \"upgrade\";\nproxy_http_version 1.1;\n", No)
	f("proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto 'https'", No)
	f("proxy_set_header Connection \"\";", No)
	f("proxy_set_header Host inside.example;", guard)
	f("proxy_set_header X-Real-IP $http_x_real_ip;", guard)
	f("proxy_set_header Upgrade $http_upgrade", No)
	f("proxy_set_header Upgrade $http_upgrade deny;", guard)
	f("proxy_set_header Upgrade $http_upgrade; deny all;", guard)
	f("proxy_set_header Upgrade;", guard)
	f("# Upgrade\nproxy_set_header Upgrade $http_upgrade;", guard) // weir rates only simple snippets, without comments
	f("allow 10.0.0.0/8; deny all;", guard)
	f("add_header A b; deny all;", guard)
	f("add_header A b;deny all", guard)
	f(`add_header A b"; deny all; add_header C d";`, guard)
	f(`add_header A \"; deny all; add_header C \";`, guard)
	f("add_header A it's; deny all; # '", guard)
	f("add_header A # '\nb; deny all; add_header C ';", guard)
	f("location /admin { deny all; }", guard)
	f("add_header A b { deny all; }", guard)
	f("}", guard)
	f("proxy_set_header X-User $remote_user;", guard)
	f("more_clear_input_headers X-User;", guard)
	f(`"deny" all;`, guard)
	f("return 403;", guard)
	f(strings.Repeat(";", 250_000)+"deny all;", guard) // no value may take a long time
	f(strings.Repeat("gzip on;", 30_000), No)
}

// ingress-nginx reads no annotations of Services, so these restrict no client.
func TestServices(t *testing.T) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{nginxPrefix + "auth-type": "basic", nginxPrefix + "rewrite-target": "/", traefikPrefix + "service.middlewares": "a", traefikPrefix + "service.sticky.cookie": "true"}}}
	guards, others := Undone(s)
	if !slices.Equal(guards, []string{traefikPrefix + "service.middlewares"}) || !slices.Equal(others, []string{traefikPrefix + "service.sticky.cookie"}) {
		t.Errorf("guards are %q, others %q", guards, others)
	}
}

// For annotations that restrict access, the rating matches how weir treats an Ingress
// that has one.
func TestRefused(t *testing.T) {
	file, err := config.Parse("weir.yaml", []byte("listeners: {web: {address: ':80', protocol: http}}\nkubernetes: {class: weir}\n"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	converter, refused := kube.Converter{File: file, Lint: Undone}, 0
	for file, prefix := range map[string]string{"ingress-nginx": nginxPrefix, "traefik": traefikPrefix} {
		text, err := os.ReadFile("testdata/" + file + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
			for _, value := range []string{"", "true", "false", "off", "10.0.0.0/8", "0.0.0.0/0, ::/0"} {
				class := "weir"
				i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{prefix + name: value}}}
				i.Spec.IngressClassName = &class
				finding, does, tells := Object(i)[0], false, false
				for _, e := range converter.Convert(&kube.Objects{Ingresses: []*networkingv1.Ingress{i}}).Events {
					named := strings.Contains(e.Message, prefix+name)
					does = does || e.Reason == kube.ReasonAccess && named
					tells = tells || named
				}
				if says := strings.Contains(finding.Why, "answers 503 for an Ingress"); does != says || does != finding.Refused {
					t.Errorf("%s: %q is refused: %t, the finding says %t, and its reason %t", name, value, does, finding.Refused, says)
				}
				if want := finding.Rating == No && name != "backend-protocol"; tells != want { // which weir reports with its Service
					t.Errorf("%s: %q is %s, and there is an event: %t", name, value, finding.Rating, tells)
				}
				if does {
					refused++
				}
			}
		}
	}
	if refused < 170 {
		t.Errorf("only %d were refused", refused)
	}
}
