package lint

import (
	"os"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// Every annotation that there is has a rating, and what is not exact a reason.
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
					if !ok || strings.Contains(why, "does not know this annotation") {
						t.Errorf("%s has no rating", name)
					}
					if (rating != Exact) != (why != "") || rating != Exact && rating != Near && rating != No {
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
	f(nginxPrefix+"force-ssl-redirect", "true", false, No, "under tls")
	f(nginxPrefix+"force-ssl-redirect", "true", true, Near, "")
	f(nginxPrefix+"force-ssl-redirect", "false", false, Exact, "")
	f(nginxPrefix+"backend-protocol", "HTTP", false, Exact, "")
	f(nginxPrefix+"backend-protocol", "https", false, Near, "HTTP/2")
	f(nginxPrefix+"backend-protocol", " grpcs ", false, Exact, "")
	f(nginxPrefix+"backend-protocol", "AUTO_HTTP", false, No, "write HTTP or HTTPS")
	f(nginxPrefix+"backend-protocol", "FCGI", false, No, "FastCGI")
	f(nginxPrefix+"backend-protocol", "SPDY", false, No, "ingress-nginx knows")
	f(nginxPrefix+"whitelist-source-range", "0.0.0.0/0, ::/0", false, Exact, "")
	f(nginxPrefix+"whitelist-source-range", "10.0.0.0/8", false, No, "503")
	f(nginxPrefix+"proxy-body-size", "0", false, Exact, "")
	f(nginxPrefix+"proxy-body-size", "50m", false, Near, "any size")
	f(nginxPrefix+"proxy-buffer-size", "16k", false, Exact, "")
	f(nginxPrefix+"proxy-buffer-size", "128k", false, Near, "head_size")
	f(nginxPrefix+"proxy-buffer-size", "9999999999999999999m", false, Near, "head_size")
	f(nginxPrefix+"proxy-read-timeout", " 60 ", false, Exact, "")
	f(nginxPrefix+"proxy-read-timeout", "3600", false, Near, "60 seconds")
	f(nginxPrefix+"rewrite-target", "/$2", false, No, "rewrite")
	f(nginxPrefix+"rewrite-targt", "/", false, No, "misspelling")
	f(traefikPrefix+"router.tls.domains.3.main", "a", false, No, "certificates")
	f(traefikPrefix+"router.pathmatcher", "Path", false, No, "Exact")
	f(traefikPrefix+"service.serversscheme", "http", false, Exact, "")
	f(traefikPrefix+"service.serversscheme", "h2c", false, No, "kubernetes.io/h2c")
	f(traefikPrefix+"router.observability.traceVerbosity", "minimal", false, No, "traces")
}

// What is said of annotations that keep clients out is what weir does with an Ingress that has one.
func TestRefused(t *testing.T) {
	file, err := config.Parse("weir.yaml", []byte("listeners: {web: {address: ':80', protocol: http}}\nkubernetes: {class: weir}\n"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/ingress-nginx.txt")
	if err != nil {
		t.Fatal(err)
	}
	converter, refused := kube.Converter{File: file}, 0
	for _, name := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		for _, value := range []string{"", "true", "false", "off", "10.0.0.0/8", "0.0.0.0/0, ::/0"} {
			class := "weir"
			i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{nginxPrefix + name: value}}}
			i.Spec.IngressClassName = &class
			does, says := false, strings.Contains(Object(i)[0].Why, "answers 503 for an Ingress")
			for _, e := range converter.Convert(&kube.Objects{Ingresses: []*networkingv1.Ingress{i}}).Events {
				does = does || e.Reason == kube.ReasonAccess && strings.Contains(e.Message, nginxPrefix+name)
			}
			if does != says {
				t.Errorf("%s: %q is refused: %t, and the reason says %t", name, value, does, says)
			}
			if does {
				refused++
			}
		}
	}
	if refused < 150 {
		t.Errorf("only %d were refused", refused)
	}
}
