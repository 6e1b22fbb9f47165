package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// A change converts the Ingresses of one group, however many others there are.
func TestOnlyTheGroupIsConverted(t *testing.T) {
	m := large(t, 500)
	c := Converter{File: mustParse(t, plainConfig)}
	var last *Routing
	f := func(what string, want int, change func()) {
		t.Helper()
		change()
		r := c.Convert(&m.Objects)
		if c.converted != want {
			t.Errorf("%s: %d Ingresses were converted, not %d", what, c.converted, want)
		}
		if same := r == last; same != (what == "nothing") {
			t.Errorf("%s: it is the same Routing: %t", what, same)
		}
		if fresh := (&Converter{File: c.File}).Convert(&m.Objects); !reflect.DeepEqual(r, fresh) {
			t.Errorf("%s: got\n%s\nwant\n%s", what, show(r, m), show(fresh, m))
		}
		last = r
	}
	f("the start", 500, func() {})
	f("nothing", 0, func() {})
	f("a path", 1, func() {
		m.Ingresses[7] = m.Ingresses[7].DeepCopy()
		m.Ingresses[7].Spec.Rules[0].HTTP.Paths[0].Path = "/new"
	})
	f("a port of a Service", 1, func() {
		m.Services[8] = m.Services[8].DeepCopy()
		m.Services[8].Spec.Ports[0].Port = 81
	})
	f("the certificate in a Secret", 1, func() {
		m.Secrets[9] = m.Secrets[9].DeepCopy()
		m.Secrets[9].Data[corev1.TLSCertKey], m.Secrets[9].Data[corev1.TLSPrivateKeyKey] = certify(t, "app9.example")
	})
	f("a removed Ingress", 0, func() { m.Ingresses = m.Ingresses[1:] })
	f("an Ingress that shares a host", 2, func() {
		more := m.Ingresses[20].DeepCopy()
		more.Name = "more"
		m.Ingresses = append(m.Ingresses, more)
	})
	f("another class", 0, func() {
		m.Ingresses[30] = m.Ingresses[30].DeepCopy()
		m.Ingresses[30].Spec.IngressClassName = new("other")
	})
}

// A Converter keeps the last result, and none before it.
func TestOldResultsAreFreed(t *testing.T) {
	m := large(t, 20)
	c := Converter{File: mustParse(t, plainConfig)}
	change := func() weak.Pointer[Routing] {
		m.Ingresses[7] = m.Ingresses[7].DeepCopy()
		m.Ingresses[7].Spec.Rules[0].HTTP.Paths[0].Path += "x"
		return weak.Make(c.Convert(&m.Objects))
	}
	old := []weak.Pointer[Routing]{change(), change(), change()}
	last := change()
	runtime.GC()
	for i, r := range old {
		if r.Value() != nil {
			t.Errorf("result %d is still in memory", i)
		}
	}
	if last.Value() == nil {
		t.Error("the last result is not kept")
	}
	runtime.KeepAlive(&c)
}

// After each of many random changes, the result is that of a conversion from scratch, and
// that of a conversion of all Ingresses as one group.
func TestIncrementalConversion(t *testing.T) {
	for n, text := range slices.Concat(fuzzConfigs, []string{strings.Replace(plainConfig, "{class: weir}", "{class: weir, namespace_labels: [team=a], tcp: {config_map: a/ports}}", 1)}) {
		file := mustParse(t, text)
		for _, ingresses := range []int{3, 24} { // few Ingresses are in groups of their own, many affect each other
			w := newWorld(t, uint64(n), ingresses)
			c := Converter{File: file}
			for step := range 250 {
				what := w.change()
				got := c.Convert(w.objects())
				if step%10 == 0 {
					checkAliases(t, file, w.objects())
				}
				for name, from := range map[string]*Converter{"from scratch": {File: file}, "as one group": {File: file, together: true}} {
					if want := from.Convert(w.objects()); !reflect.DeepEqual(got, want) {
						m := &Manifests{Objects: *w.objects()}
						t.Fatalf("after change %d (%s), %s: got\n%s\nwant\n%s", step, what, name, show(got, m), show(want, m))
					}
				}
			}
		}
	}
}

// After a change of one of the Gateways of a route, the order of its routes is that of a conversion
// from scratch.
func TestOrderOfRoutesOfSeveralGateways(t *testing.T) {
	m := mustRead(t, gatewayBase+`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: one}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: two}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: app}, spec: {parentRefs: [{name: two}, {name: one}], rules: [{}]}}
`)
	c := Converter{File: mustParse(t, gatewayConfig)}
	c.Convert(&m.Objects)
	for i, g := range m.Gateway.Gateways {
		m.Gateway.Gateways[i] = g.DeepCopy()
		m.Gateway.Gateways[i].Spec.Listeners[0].Port = 81
		got, want := c.Convert(&m.Objects), (&Converter{File: c.File}).Convert(&m.Objects)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("after a change of the Gateway %s: got\n%s\nwant\n%s", g.Name, showGateways(got), showGateways(want))
		}
	}
}

// TestGroups checks which Ingresses are converted together.
func TestGroups(t *testing.T) {
	const challenge = claim.ChallengePath + "/token"
	type one struct{ namespace, host, path string }
	for name, f := range map[string]struct {
		all           []one
		shared, owned string // the group of each Ingress, with shared and with owned hosts
	}{
		"other hosts":              {[]one{{"a", "a.example", "/"}, {"a", "b.example", "/"}}, "01", "01"},
		"one host":                 {[]one{{"a", "a.example", "/"}, {"b", "b.example", "/"}, {"b", "a.example", "/b"}}, "010", "010"},
		"a host and its wildcard":  {[]one{{"a", "a.example", "/"}, {"b", "*.example", "/"}}, "01", "00"},
		"a wildcard of the parent": {[]one{{"a", "a.b.example", "/"}, {"b", "*.example", "/"}}, "01", "01"},
		"a host and every host":    {[]one{{"a", "a.example", "/"}, {"b", "", "/"}}, "01", "00"},
		"a challenge":              {[]one{{"a", "a.example", challenge}, {"b", "*.example", "/"}, {"b", "b.example", "/"}}, "001", "000"},
		"an expression":            {[]one{{"a", "a.example", "/v[0-9]+"}, {"b", "", "/"}, {"b", "b.example", "/"}}, "001", "000"},
		"the limit of a namespace": {[]one{{"a", "a.example", challenge}, {"a", "b.example", challenge}, {"b", "c.example", challenge}}, "001", "001"},
	} {
		var all []*networkingv1.Ingress
		for _, o := range f.all {
			path := networkingv1.HTTPIngressPath{Path: o.path}
			all = append(all, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace}, Spec: networkingv1.IngressSpec{
				Rules: []networkingv1.IngressRule{{Host: o.host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{path}}}}}}})
		}
		for owned, want := range map[bool]string{false: f.shared, true: f.owned} {
			got, g := "", newJoints(owned)
			var members []*member
			for _, o := range all {
				members = append(members, &member{Ingress: o})
				g.add(members[len(members)-1])
			}
			number := map[*member]int{} // of the group
			for _, m := range members {
				if _, known := number[m]; !known {
					next := 0
					for _, n := range number {
						next = max(next, n+1)
					}
					for _, other := range g.groupOf(m) {
						number[other] = next
					}
				}
				got += fmt.Sprint(number[m])
			}
			for _, m := range members {
				g.remove(m)
			}
			if len(g.hosts)+len(g.closed) > 0 {
				t.Errorf("%s: after all Ingresses were removed, %v and %v are left", name, g.hosts, g.closed)
			}
			if got != want {
				t.Errorf("%s, hosts are owned: %t: the groups are %s, not %s", name, owned, got, want)
			}
		}
	}
	tls := &networkingv1.Ingress{Spec: networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{Hosts: []string{"A.example"}}}, DefaultBackend: &networkingv1.IngressBackend{}}}
	if got := traitsOf(tls).hosts; !slices.Equal(got, []string{"", "a.example"}) {
		t.Errorf("the hosts are %q", got)
	}
}

// world is a small cluster, whose objects often affect each other.
type world struct {
	*rand.Rand
	certs [][2][]byte
	most  int // Ingresses

	ingresses  map[int]*networkingv1.Ingress
	services   map[int]*corev1.Service
	secrets    map[int]*corev1.Secret
	classes    map[int]*networkingv1.IngressClass
	namespaces map[int]*corev1.Namespace
	ports      *corev1.ConfigMap
}

func newWorld(t *testing.T, seed uint64, most int) *world {
	w := &world{most: most, Rand: rand.New(rand.NewPCG(seed, 1)), ingresses: map[int]*networkingv1.Ingress{}, services: map[int]*corev1.Service{},
		secrets: map[int]*corev1.Secret{}, classes: map[int]*networkingv1.IngressClass{}, namespaces: map[int]*corev1.Namespace{}}
	for _, names := range [][]string{{"a.example"}, {"*.example"}, {"b.example", "*.wild.example"}} {
		cert, key := certify(t, names...)
		w.certs = append(w.certs, [2][]byte{cert, key})
	}
	return w
}

// of returns a random element.
func of[T any](w *world, all ...T) T { return all[w.IntN(len(all))] }

// change adds, replaces or removes one object.
func (w *world) change() string {
	switch kind := w.IntN(20); {
	case kind < 10:
		replace(w, w.ingresses, w.most, w.ingress)
		return "an Ingress"
	case kind < 14:
		replace(w, w.services, 6, w.service)
		return "a Service"
	case kind < 17:
		replace(w, w.secrets, 6, w.secret)
		return "a Secret"
	case kind < 18:
		replace(w, w.classes, 3, w.class)
		return "a class"
	case kind < 19:
		replace(w, w.namespaces, 3, func(n int) *corev1.Namespace {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace(n), Labels: map[string]string{"team": of(w, "a", "b")}}}
		})
		return "a Namespace"
	}
	w.ports = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "ports"},
		Data: map[string]string{of(w, "5432", "6379", "x"): of(w, "a/app:80", "good/app:http", "a/tls:1")}}
	return "the ConfigMap"
}

// replace replaces a random object by a new one, or removes it.
func replace[T any](w *world, all map[int]T, limit int, make func(n int) T) {
	n := w.IntN(limit)
	if w.IntN(4) == 0 {
		delete(all, n)
		return
	}
	all[n] = make(n)
}

func (w *world) namespace(n int) string { return []string{"a", "b", "good"}[n%3] }

func (w *world) meta(n int, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace(n), Name: name, UID: types.UID(fmt.Sprint(w.IntN(3))),
		CreationTimestamp: metav1.NewTime(time.Date(2020, 1, 1+w.IntN(4), 0, 0, 0, 0, time.UTC))}
}

func (w *world) host() string {
	return of(w, "a.example", "b.example", "c.example", "*.example", "www.a.example", "alias.example", "x.wild.example", "y.wild.example", "*.wild.example", "", "bad host", "through.example", "deep.x.wild.example")
}

func (w *world) ingress(n int) *networkingv1.Ingress {
	o := &networkingv1.Ingress{ObjectMeta: w.meta(n, fmt.Sprint("i", n))}
	o.Spec.IngressClassName = of(w, new("weir"), new("weir"), new("weir"), new("other"), nil)
	o.Annotations = of(w, nil, nil, nil, nil, map[string]string{annotation.Nginx + "use-regex": "true"}, map[string]string{annotation.Nginx + "auth-url": "https://auth.example/"},
		map[string]string{annotation.Nginx + "whitelist-source-range": "10.0.0.0/8", annotation.Nginx + "use-regex": "true"}, map[string]string{oldClass: "weir"},
		map[string]string{annotation.Nginx + "canary": "true", annotation.Nginx + "canary-weight": "10"}, map[string]string{AnnotationProtocol: "HTTPS"}, map[string]string{annotation.Nginx + "proxy-body-size": "1m"}, map[string]string{annotation.Nginx + "rewrite-target": "/$1"},
		map[string]string{annotation.Nginx + "server-alias": "x.wild.example, alias.example, b.example"}, map[string]string{annotation.Nginx + "from-to-www-redirect": "true", annotation.Nginx + "app-root": "/x"},
		map[string]string{annotation.Nginx + "affinity": "cookie"})
	for range 1 + w.IntN(2) {
		rule := networkingv1.IngressRule{Host: w.host()}
		if w.IntN(8) > 0 {
			rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
			for range 1 + w.IntN(3) {
				kind := of(w, networkingv1.PathTypePrefix, networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific)
				rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{PathType: &kind, Backend: *w.backend(),
					Path: of(w, "/", "/", "/api", "/api/v1", "/API", "/v[0-9]+/.*", "/a|/b", "no", claim.ChallengePath+"/token", "/api%2f")})
			}
		}
		o.Spec.Rules = append(o.Spec.Rules, rule)
	}
	if w.IntN(8) == 0 {
		o.Spec.Rules = nil
	}
	if w.IntN(5) == 0 || o.Spec.Rules == nil {
		o.Spec.DefaultBackend = w.backend()
	}
	for range w.IntN(3) {
		tls := networkingv1.IngressTLS{SecretName: of(w, "", "s0", "s1", "tls")}
		for range w.IntN(3) {
			tls.Hosts = append(tls.Hosts, w.host())
		}
		o.Spec.TLS = append(o.Spec.TLS, tls)
	}
	return o
}

func (w *world) backend() *networkingv1.IngressBackend {
	if w.IntN(12) == 0 {
		return of(w, &networkingv1.IngressBackend{}, &networkingv1.IngressBackend{Resource: &corev1.TypedLocalObjectReference{Kind: "Bucket", Name: "b"}})
	}
	return &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: of(w, "app", "other"),
		Port: of(w, networkingv1.ServiceBackendPort{Number: 80}, networkingv1.ServiceBackendPort{Name: "http"}, networkingv1.ServiceBackendPort{Number: 81})}}
}

func (w *world) service(n int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: w.meta(n, []string{"app", "other"}[n/3])}
	s.Annotations = of(w, nil, nil, map[string]string{AnnotationRequireLocal: "true"}, map[string]string{AnnotationPreferLocal: "no", AnnotationRampUp: "never"},
		map[string]string{annotation.Traefik + "service.middlewares": "auth"})
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, AppProtocol: of(w, nil, nil, new("https"), new("odd"))}}
	if w.IntN(2) == 0 {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81})
	}
	if w.IntN(8) == 0 {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, of(w, "out.example", "localhost")
	}
	return s
}

func (w *world) secret(n int) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: w.meta(n, []string{"s0", "tls"}[n/3]), Data: map[string][]byte{}}
	if pair := of(w, w.certs...); w.IntN(5) > 0 {
		s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey] = pair[0], pair[1]
	}
	return s
}

func (w *world) class(n int) *networkingv1.IngressClass {
	c := &networkingv1.IngressClass{ObjectMeta: w.meta(n, []string{"weir", "other", "third"}[n])}
	c.Namespace = ""
	c.Spec.Controller = of(w, config.DefaultController, config.DefaultController, "example.com/other")
	if w.IntN(2) == 0 {
		c.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
	}
	return c
}

// objects are all objects, in a random order.
func (w *world) objects() *Objects {
	return &Objects{Ingresses: shuffled(w, w.ingresses), Services: shuffled(w, w.services), Secrets: shuffled(w, w.secrets),
		Classes: shuffled(w, w.classes), Namespaces: shuffled(w, w.namespaces), TCP: w.ports}
}

func shuffled[T any](w *world, all map[int]T) []T {
	list := slices.Collect(maps.Values(all))
	w.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
