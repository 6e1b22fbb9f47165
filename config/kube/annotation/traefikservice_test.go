package annotation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

func TestTraefikOf(t *testing.T) {
	f := func(want TraefikSettings, annotations ...string) {
		t.Helper()
		s := &corev1.Service{}
		s.Annotations = map[string]string{}
		for name, value := range valuesOf(annotations...) {
			s.Annotations[Traefik+name] = value
		}
		if got := TraefikOf(s); got != want {
			t.Errorf("%q are %+v, want %+v", annotations, got, want)
		}
	}
	f(TraefikSettings{})
	f(TraefikSettings{Scheme: "https"}, "service.serversscheme", "HTTPS")
	f(TraefikSettings{}, "service.serversscheme", "ftp")
	f(TraefikSettings{OwnHost: true}, "service.passhostheader", "false")
	f(TraefikSettings{}, "service.passhostheader", "nonsense")
	f(TraefikSettings{}, "service.sticky.cookie.name", "a") // not switched on
	f(TraefikSettings{Affinity: Affinity{Cookie: true, Name: "weir", Path: "/"}}, "Service.Sticky.Cookie", "true")
	f(TraefikSettings{Affinity: Affinity{Cookie: true, Name: "weir", Path: "/"}}, "service.sticky.cookie", "true", "service.sticky.cookie.name", "a b", "service.sticky.cookie.path", "x", "service.sticky.cookie.domain", "a;b",
		"service.sticky.cookie.samesite", "x", "service.sticky.cookie.maxage", "-1")
	f(TraefikSettings{Affinity: Affinity{Cookie: true, Name: "a", Path: "/b%20c", Domain: "d.example", SameSite: "Lax", Secure: true, MaxAge: Lifetime{Given: true, Seconds: 7}}},
		"service.sticky.cookie", "true", "service.sticky.cookie.name", "a", "service.sticky.cookie.path", "/b%20c", "service.sticky.cookie.domain", "d.example",
		"service.sticky.cookie.samesite", "LAX", "service.sticky.cookie.secure", "true", "service.sticky.cookie.maxage", "7", "service.sticky.cookie.httponly", "true")
}

func TestPriority(t *testing.T) {
	for value, want := range map[string]int{"": 0, "7": 7, " 8 ": 8, "-1": 0, "0": 0, "x": 0} {
		i := &networkingv1.Ingress{}
		i.Annotations = map[string]string{Traefik + "router.priority": value}
		if got := Priority(i); got != want {
			t.Errorf("%q is %d, want %d", value, got, want)
		}
	}
}
