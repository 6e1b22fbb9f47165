package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/annotation"
)

// A change of an annotation of Traefik is a change, on Services and on Ingresses; any other annotation is none.
func TestTraefikChanges(t *testing.T) {
	for name, change := range map[string]bool{"service.sticky.cookie.name": true, "service.passhostheader": true, "router.priority": true} {
		with := func(value string) metav1.ObjectMeta {
			return metav1.ObjectMeta{Name: "a", Annotations: map[string]string{annotation.Traefik + name: value, "example.com/x": value}}
		}
		s := &Source{}
		if got := s.alike(&corev1.Service{ObjectMeta: with("1")}, &corev1.Service{ObjectMeta: with("2")}); got == change {
			t.Errorf("two Services with another %s are alike: %v", name, got)
		}
		if got := s.alike(&networkingv1.Ingress{ObjectMeta: with("1")}, &networkingv1.Ingress{ObjectMeta: with("2")}); got == change {
			t.Errorf("two Ingresses with another %s are alike: %v", name, got)
		}
	}
	other := func(value string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"example.com/x": value}}}
	}
	if !new(Source).alike(other("1"), other("2")) {
		t.Error("an annotation of others is a change")
	}
}

func TestSameAnnotationsWithPrefix(t *testing.T) {
	type m = map[string]string
	f := func(a, b m, want bool) {
		t.Helper()
		if sameOf("x/", a, b) != want || sameOf("x/", b, a) != want {
			t.Errorf("%v and %v are the same: %v", a, b, !want)
		}
	}
	f(nil, m{"y/a": "1"}, true)
	f(m{"x/a": "1", "y/a": "1"}, m{"x/a": "1", "y/a": "2"}, true)
	f(m{"x/a": "1"}, m{"x/a": "2"}, false)
	f(m{"x/a": ""}, m{"x/b": ""}, false)
	f(m{"x/a": "1"}, m{"x/a": "1", "x/b": "1"}, false)
	f(m{"x/a": ""}, nil, false)
}
