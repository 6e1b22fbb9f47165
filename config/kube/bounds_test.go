package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// wide returns an Ingress with n rules, each with the path.
func wide(namespace, name string, n int, host func(int) string, path func(int) string) *networkingv1.Ingress {
	class, kind := "weir", networkingv1.PathTypeImplementationSpecific
	o := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.IngressSpec{IngressClassName: &class}}
	for i := range n {
		p := networkingv1.HTTPIngressPath{Path: path(i), PathType: &kind, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "app", Port: networkingv1.ServiceBackendPort{Number: 80}}}}
		o.Spec.Rules = append(o.Spec.Rules, networkingv1.IngressRule{Host: host(i), IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{p}}}})
	}
	return o
}

// Hosts that have only a challenge get the routes of their wildcard. Two Ingresses of one
// tenant must not create millions of routes in this way.
func TestUncoveredRoutesAreBounded(t *testing.T) {
	every := wide("evil", "every", 2000, func(int) string { return "" }, func(i int) string { return fmt.Sprint("/p", i) })
	solvers := wide("evil", "solvers", 2000, func(i int) string { return fmt.Sprintf("h%d.example", i) }, func(int) string { return claim.ChallengePath + "/t" })
	mine := wide("good", "solver", 1, func(int) string { return "good.example" }, func(int) string { return claim.ChallengePath + "/t" })
	c := Converter{File: mustParse(t, plainConfig)}
	r := c.Convert(&Objects{Ingresses: []*networkingv1.Ingress{every, solvers, mine}})
	uncovered, ofGood := 0, 0
	for _, route := range r.Routes {
		if len(route.Hosts) == 1 && strings.HasPrefix(route.Name, "evil/every/") {
			uncovered++
			if route.Hosts[0] == "good.example" {
				ofGood++
			}
		}
	}
	if uncovered > 2*maxUncovered || uncovered < maxUncovered/2 {
		t.Errorf("there are %d routes by uncovering, want at most %d for each of two namespaces", uncovered, maxUncovered)
	}
	if ofGood != 2*2000 { // on two listeners
		t.Errorf("good.example has %d routes of what it hides, want all 4000: the other namespace's hosts took them", ofGood)
	}
	if !slices.ContainsFunc(r.Events, func(e event.Event) bool { return e.Reason == event.ReasonTooMany && e.Object.Name == "solvers" }) {
		t.Error("no event says that there are too many")
	}
}

// An expression with many choices closes a path for each choice: one Ingress must not
// close a million paths.
func TestClosedPathsAreBounded(t *testing.T) {
	o := wide("evil", "web", 1000, func(i int) string { return fmt.Sprintf("h%d.example", i) }, func(i int) string {
		var all []string
		for n := range 50 {
			all = append(all, fmt.Sprintf("%dx%d", i, n))
		}
		return "/(" + strings.Join(all, "|") + ")[x]"
	})
	c := Converter{File: mustParse(t, plainConfig)}
	r := c.Convert(&Objects{Ingresses: []*networkingv1.Ingress{o}})
	if n := len(r.Routes); n > 2*maxClosed+1000 {
		t.Errorf("%d expressions of 50 choices close %d paths", len(o.Spec.Rules), n)
	}
}

// A tenant decides how many faults an object has, so weir limits their number.
func TestEventsAreBounded(t *testing.T) {
	var all []*networkingv1.Ingress
	for n := range 3 {
		all = append(all, wide("a-evil", fmt.Sprint("web-", n), 1000, func(int) string { return "a.example" }, func(i int) string { return fmt.Sprintf("/%d-%d/[x]", n, i) }))
	}
	all = append(all, wide("shop", "web", 2, func(int) string { return "b.example" }, func(i int) string { return fmt.Sprintf("/%d/[x]", i) }))
	c := Converter{File: mustParse(t, plainConfig)}
	r := c.Convert(&Objects{Ingresses: all})
	count := map[corev1.ObjectReference]int{}
	for _, e := range r.Events {
		count[e.Object]++
		if e.Reason == event.ReasonTooMany && !strings.Contains(e.Message, "981 more") {
			t.Errorf("it is told %q", e.Message)
		}
	}
	for object, n := range count {
		if want := map[string]int{"a-evil": event.MaxOfObject, "shop": 2}[object.Namespace]; n != want {
			t.Errorf("%s/%s has %d events, want %d", object.Namespace, object.Name, n, want)
		}
	}
	spread := event.Spread(r.Events)
	if len(spread) != len(r.Events) || spread[1].Object.Namespace != "shop" || spread[3].Object.Namespace != "shop" {
		t.Errorf("of %d events the first four are on %v, %v, %v, %v; want each namespace to have its turn", len(spread), spread[0].Object, spread[1].Object, spread[2].Object, spread[3].Object)
	}
}
