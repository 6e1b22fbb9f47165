package annotation

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHAProxy(t *testing.T) {
	f := func(want string, annotations ...string) {
		t.Helper()
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: valuesOf(annotations...)}}
		got := ""
		for _, a := range Rate(i) {
			got += string(a.Rating)
			if a.Guard {
				got += ":503"
			}
			got += " "
			if a.Why == "" {
				t.Errorf("%s has no reason", a.Name)
			}
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%v is rated %s, want %s", annotations, got, want)
		}
		guards, others := Unsupported(i)
		if len(guards) != strings.Count(want, ":503") || len(others) != 0 {
			t.Errorf("%v closes %v, and tells %v", annotations, guards, others)
		}
	}
	f("no:503", "haproxy.org/allow-list", "10.0.0.0/8")
	f("no:503", "haproxy-ingress.github.io/whitelist-source-range", "10.0.0.0/8")
	f("no:503", "ingress.kubernetes.io/auth-secret", "users")
	f("no:503", "haproxy.org/backend-config-snippet", "http-request deny")
	f("no", "haproxy-ingress.github.io/proxy-body-size", "10m")
	f("no", "haproxy.org/timeout-server", "50s")
	f("", "haproxy.org/allow-list", "") // a template left it empty
	f("", "haproxy.org/unheard-of", "1")
	f("", "example.com/auth-type", "basic")
	if got := len(Rate(&networkingv1.Ingress{})); got != 0 {
		t.Errorf("nothing has %d ratings", got)
	}
	i := &networkingv1.Ingress{}
	i.Annotations = map[string]string{"ingress.kubernetes.io/proxy-body-size": "0", Nginx + "proxy-body-size": "0"}
	if all := Rate(i); len(all) != 1 || all[0].Name != Nginx+"proxy-body-size" {
		t.Errorf("both names are rated %v", all)
	}
}

// haproxyNames names only annotations that ingress-nginx has.
func TestHAProxyNames(t *testing.T) {
	for names, name := range haproxyNames {
		if _, known := nginx[strings.TrimPrefix(name, "+")]; !known {
			t.Errorf("%s names %s, which ingress-nginx does not have", names, name)
		}
	}
	if len(haproxy) < 150 {
		t.Errorf("only %d annotations", len(haproxy))
	}
}
