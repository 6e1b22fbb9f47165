package annotation

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Every existing annotation has a rating, and a reason if the rating is not exact.
func TestEveryAnnotation(t *testing.T) {
	for file, prefix := range map[string]string{"ingress-nginx": Nginx, "traefik": Traefik} {
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

func TestRate(t *testing.T) {
	f := func(name, value string, hasTLS bool, want Rating, why string) {
		t.Helper()
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{name: value, "cert-manager.io/cluster-issuer": "x"}}}
		if hasTLS {
			i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.example"}}}
		}
		all := Rate(i)
		if len(all) != 1 || all[0].Name != name || all[0].Value != value || all[0].Rating != want || !strings.Contains(all[0].Why, why) {
			t.Errorf("%s: %s is %+v, want %s because of %q", name, value, all, want, why)
		}
	}
	f(Nginx+"ssl-redirect", "true", false, Exact, "")
	f(Nginx+"ssl-redirect", "false", false, Exact, "")
	f(Nginx+"ssl-redirect", "false", true, Exact, "")
	f(Nginx+"force-ssl-redirect", "True", false, Exact, "") // as strconv.ParseBool reads it
	f(Nginx+"force-ssl-redirect", "false", false, Exact, "")
	f(Nginx+"backend-protocol", "HTTP", false, Exact, "")
	f(Nginx+"backend-protocol", "https", false, Near, "HTTP/2")
	f(Nginx+"backend-protocol", " grpcs ", false, Exact, "")
	f(Nginx+"backend-protocol", "AUTO_HTTP", false, Exact, "")
	f(Nginx+"backend-protocol", "FCGI", false, No, "FastCGI")
	f(Nginx+"backend-protocol", "SPDY", false, No, "ingress-nginx does not support")
	f(Nginx+"whitelist-source-range", "0.0.0.0/0, ::/0", false, Exact, "")
	f(Nginx+"whitelist-source-range", "10.0.0.0/8", false, Exact, "")
	f(Nginx+"whitelist-source-range", "0.0.0.0/0", false, Exact, "")
	f(Nginx+"denylist-source-range", "office", false, No, "503")
	f(Traefik+"whitelist-source-range", "0.0.0.0/0", false, No, "write 0.0.0.0/0,::/0 if everybody")
	f(Nginx+"whitelist-source-range", "", false, Exact, "") // ingress-nginx ignores it
	f(Nginx+"auth-url", " ", false, Exact, "")              // a template left the value empty
	f(Nginx+"auth-tls-secret", "", false, Exact, "")
	f(Nginx+"proxy-body-size", "0", false, Exact, "")
	f(Nginx+"proxy-body-size", "50m", false, Exact, "")
	f(Nginx+"proxy-body-size", "50mb", false, No, "any size")
	f(Nginx+"proxy-buffer-size", "16k", false, Exact, "")
	f(Nginx+"proxy-buffer-size", "128k", false, Near, "head_size")
	f(Nginx+"proxy-buffer-size", "9999999999999999999m", false, Near, "head_size")
	f(Nginx+"proxy-read-timeout", " 60 ", false, Exact, "")
	f(Nginx+"proxy-read-timeout", "3600", false, Exact, "")
	f(Nginx+"proxy-read-timeout", "60s", false, Near, "a number of seconds")
	f(Nginx+"rewrite-target", "/$2", false, Exact, "")
	f(Nginx+"rewrite-targt", "/", false, No, "spelling")
	f(Traefik+"frontend-entry-points", "http", false, Near, "")
	f(Nginx+"use-regex", "true", false, Exact, "") // the Ingress has no path but "/"
	f(Traefik+"router.entrypoints", "web, websecure", false, Near, "listeners")
	f(Traefik+"router.entrypoints", "websecure,internal", false, No, "503")
	f(Traefik+"router.entrypoints", "websecure,", false, Near, "redirects")
	f(Traefik+"router.middlewares", " ", false, Exact, "") // a template left the value empty
	f(Traefik+"router.middlewares", "default-auth@kubernetescrd", false, No, "503")
	f(Nginx+"configuration-snippet", "", false, Exact, "")
	f(Traefik+"whitelist-source-range", "10.0.0.0/8", false, No, "503")
	f(Traefik+"auth-type", "basic", false, No, "503")
	f(Nginx+"auth-by-nobody-knows", "x", false, No, "503")
	f(Traefik+"router.tls.domains.3.main", "a", false, No, "certificates")
	f(Traefik+"router.pathmatcher", "Path", false, Exact, "")
	f(Traefik+"service.serversscheme", "http", false, Exact, "")
	f(Traefik+"service.serversscheme", "h2c", false, Exact, "")
	f(Traefik+"router.observability.traceVerbosity", "minimal", false, Near, "span")
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
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Nginx + "auth-type": "basic", Nginx + "rewrite-target": "/", Traefik + "service.middlewares": "a", Traefik + "service.serverstransport": "a"}}}
	guards, others := Unsupported(s)
	if !slices.Equal(guards, []string{Traefik + "service.middlewares"}) || !slices.Equal(others, []string{Traefik + "service.serverstransport"}) {
		t.Errorf("guards are %q, others %q", guards, others)
	}
}

// Annotations that ingress-nginx no longer has are no obstacle to a move.
func TestGone(t *testing.T) {
	checkRating(t, ingressWith(map[string]string{"session-cookie-hash": "sha1"}), Near)
	checkRating(t, ingressWith(map[string]string{"session-cookie-hashes": "sha1"}), No)
}
