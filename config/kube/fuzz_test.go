package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/proxy/expression"
	"github.com/weirproxy/weir/proxy/message"
)

// good is a valid application that is older than all other objects. Other objects must
// not change its result.
const good = `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: good, creationTimestamp: "2000-01-01T00:00:00Z"}, spec: {ingressClassName: weir, tls: [{hosts: [good.example, "*.wild.example"], secretName: tls}], rules: [
  {host: good.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {name: http}}}}, {path: /api, pathType: Exact, backend: {service: {name: app, port: {number: 81}}}}, {path: "/v[0-9]+/.*", pathType: ImplementationSpecific, backend: {service: {name: app, port: {name: http}}}}]}},
  {host: "*.wild.example", http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: app, namespace: good}, spec: {ports: [{name: http, port: 80}, {name: other, port: 81}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: app-1, namespace: good, labels: {kubernetes.io/service-name: app}}, addressType: IPv4, ports: [{name: http, port: 8080}, {name: other, port: 8081}], endpoints: [{addresses: [10.9.9.1]}, {addresses: [10.9.9.2]}]}
---
{apiVersion: v1, kind: Secret, metadata: {name: tls, namespace: good}, stringData: {names: "good.example *.wild.example"}}
`

// fuzzConfigs are the configurations with which the objects are converted.
var fuzzConfigs = []string{plainConfig, `
listeners:
  web: {address: ":80", protocol: http}
  websecure: {address: ":443", protocol: tls}
  second: {address: ":444", protocol: tls}
  ssh: {address: ":22", protocol: tcp}
certificates: [{self_signed: {hosts: [a.example]}}]
tls_policies: {partners: {client_auth: {mode: require, ca: ../testdata/ca.pem}}}
proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}
routes:
  - {listeners: [web, websecure], hosts: [a.example], paths: [/, =/api], backend: app}
  - {listeners: [websecure], hosts: ["*.partners.example"], tls_policy: partners, backend: app}
  - {listeners: [websecure], hosts: [through.example, "*.through.example"], tls: passthrough, backend: raw}
  - {listeners: [websecure], hosts: [db.example, "*.db.example"], backend: raw}
  - {listeners: [ssh], backend: raw}
backends: {app: {endpoints: ["a:1"]}, raw: {protocol: tcp, endpoints: ["a:2"]}}
health: {address: ":8086"}
kubernetes: {class: weir, default_certificate: a/tls, require_local: [a/app], prefer_local: true, tcp: {config_map: a/ports}}
`, `
listeners: {web: {address: ":80", protocol: http}}
kubernetes: {namespaces: [good, a], tcp: {config_map: a/ports}, class: weir}
`, `
listeners:
  web: {address: ":80", protocol: http}
  websecure: {address: ":443", protocol: tls}
routes: [{listeners: [web], hosts: [a.example, "*.wild.example"], paths: [/file], backend: app}]
backends: {app: {endpoints: ["a:1"]}}
health: {address: ":8086"}
kubernetes: {class: weir, host_ownership: namespace, operator_namespaces: [good]}
`}

// sameBackend reports whether a backend is unchanged. It may have more users: other
// Ingresses of its namespace.
func sameBackend(now, then Backend) bool {
	for _, u := range then.Users {
		if !slices.Contains(now.Users, u) {
			return false
		}
	}
	now.Users = then.Users
	return reflect.DeepEqual(now, then)
}

// undisturbed compares two results for the good application: one together with the objects in m, and one
// alone.
func undisturbed(t *testing.T, m *Manifests, text string) {
	t.Helper()
	file := mustParse(t, text)
	alone := mustRead(t, good)
	c := Converter{File: file}
	want := c.Convert(&alone.Objects)

	all := *m
	all.Ingresses = append(slices.Clone(m.Ingresses), alone.Ingresses...)
	all.Services = append(slices.Clone(m.Services), alone.Services...)
	all.Secrets = append(slices.Clone(m.Secrets), alone.Secrets...)
	all.Slices = append(slices.Clone(m.Slices), alone.Slices...)
	got := c.Convert(&all.Objects)
	checkRouting(t, file, got)
	exclusive(t, file, got)

	for _, r := range want.Routes {
		if !slices.ContainsFunc(got.Routes, func(o *config.Route) bool { return reflect.DeepEqual(inPlace(o), inPlace(r)) }) {
			t.Errorf("the route\n%s is gone; there is\n%s", showRoute(r), show(got, &all))
		}
	}
	for _, r := range got.Routes { // a solver may uncover a new route, whose host then belongs to the wildcard
		mine := strings.HasPrefix(r.Name, "good/web/")
		if mine && !slices.ContainsFunc(want.Routes, func(o *config.Route) bool { return reflect.DeepEqual(inPlace(o), inPlace(r)) }) && (len(r.Hosts) != 1 || claim.WildcardOf(r.Hosts[0]) != "*.wild.example") {
			t.Errorf("there is a new route\n%s", showRoute(r))
		}
	}
	for i := range want.Backends {
		b := want.Backends[i]
		if b.Source.Namespace != "good" {
			continue // this backend comes from the configuration
		}
		at := slices.IndexFunc(got.Backends, func(o *Backend) bool { return o.Name == b.Name })
		if at < 0 || !sameBackend(*got.Backends[at], *b) {
			t.Errorf("the backend %s is gone or another:\n%s", b.Name, show(got, &all))
			continue
		}
		if then, now := endpointsOf(b, alone), endpointsOf(got.Backends[at], &all); !reflect.DeepEqual(then, now) {
			t.Errorf("backend %s has the endpoints %v, had %v", b.Name, now, then)
		}
	}
	for _, one := range want.Certificates {
		// Another Ingress of the namespace may have more hosts with the same certificate.
		if !slices.ContainsFunc(got.Certificates, func(o config.Certificate) bool {
			return string(o.Pair.CertPEM) == string(one.Pair.CertPEM) && !slices.ContainsFunc(one.Pair.Hosts, func(h string) bool { return !slices.Contains(o.Pair.Hosts, h) })
		}) {
			t.Errorf("the certificate of %v is gone:\n%s", one.Pair.Hosts, show(got, &all))
		}
	}
	for _, e := range got.Events {
		if e.Object.Kind == "Ingress" && e.Object.Namespace == "good" && e.Object.Name == "web" && !slices.Contains(want.Events, e) {
			t.Errorf("it is told %q", e.Message)
		}
	}
	for i := range got.Backends {
		checkEndpoints(t, got.Backends[i], endpointsOf(got.Backends[i], &all))
	}
	for _, n := range all.Nodes {
		nodeOf(n, nil)
	}
}

// exclusive checks two properties: if the namespace of the good application owns its
// hosts, no other namespace has a route for them; and no tenant changes the health of the
// node.
func exclusive(t *testing.T, file *config.Config, got *Routing) {
	t.Helper()
	for _, name := range got.RequireLocal {
		if namespace, _, _ := strings.Cut(name, "/"); !file.Kubernetes.IsOperator(namespace) && !slices.ContainsFunc(file.Kubernetes.RequireLocal, func(o config.ObjectName) bool { return strings.HasPrefix(name, o.String()) }) {
			t.Errorf("the node needs a ready endpoint of %s", name)
		}
	}
	if file.Kubernetes.HostOwnership != config.OwnedByNamespace {
		return
	}
	owned := func(host string) bool {
		return host == "good.example" || host == "*.wild.example" || claim.WildcardOf(host) == "*.wild.example"
	}
	for _, r := range got.Routes {
		if slices.ContainsFunc(r.Hosts, owned) && !strings.HasPrefix(r.Name, "good/") && !slices.ContainsFunc(file.Routes, func(o *config.Route) bool { return o.Name == r.Name }) {
			t.Errorf("another namespace has the route\n%s", showRoute(r))
		}
	}
	for _, c := range got.Certificates {
		if slices.ContainsFunc(c.Pair.Hosts, owned) && !strings.HasPrefix(c.Pair.Name, "good/") {
			t.Errorf("another namespace has the certificate %s of %v", c.Pair.Name, c.Pair.Hosts)
		}
	}
}

// closing checks two properties of refused paths: those of other Ingresses take no
// request from the good application, which is older; and requests for a refused path of
// the good application reach no other Ingress.
func closing(t *testing.T, m *Manifests, text string) {
	t.Helper()
	file := mustParse(t, text)
	alone := mustRead(t, good)
	with, without := *m, *m
	strangers := slices.DeleteFunc(slices.Clone(m.Ingresses), func(o *networkingv1.Ingress) bool { return o.Namespace == "good" })
	with.Ingresses = append(slices.Clone(strangers), alone.Ingresses...)
	without.Ingresses = slices.Clone(alone.Ingresses)
	patterns := patternsOf(with.Ingresses)
	for _, o := range strangers {
		o = o.DeepCopy()
		for n := range o.Spec.Rules {
			if rule := &o.Spec.Rules[n]; rule.HTTP != nil {
				host, _ := config.ParseHost(rule.Host)
				rule.HTTP.Paths = slices.DeleteFunc(rule.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool {
					path, beginnings, err := pathOf(&p, patterns.of[hostIn{o.Namespace, host}])
					return err != nil || path.Expression && patterns.taken(o, host, p.Path, beginnings) != nil
				})
			}
		}
		without.Ingresses = append(without.Ingresses, o)
	}
	c := Converter{File: file}
	before, after := c.Convert(&without.Objects), c.Convert(&with.Objects)
	const refused = "good/web/good.example/v"
	for _, l := range file.Kubernetes.Listeners {
		for _, host := range []string{"good.example", "x.wild.example", "z.wild.example"} {
			for _, path := range []string{"/", "/api", "/API/x", "/api/v1", "/a", "/a1", "/x", "/x/y", "/%61pi/", "/.well-known/acme-challenge/t", "/%C3%A9", "/v1/x", "/V2/x", "/b/c"} {
				then, now := winner(slices.Concat(file.Routes, before.Routes), l, host, path), winner(slices.Concat(file.Routes, after.Routes), l, host, path)
				if strings.HasPrefix(then, "good/") && now != then {
					t.Errorf("%s%s on %s goes to %q, and without refused paths of others to %q:\n%s", host, path, l, now, then, show(after, &with))
				}
				if host == "good.example" && strings.HasPrefix(strings.ToLower(path), "/v") && now != refused {
					t.Errorf("%s%s on %s goes to %q:\n%s", host, path, l, now, show(after, &with))
				}
			}
		}
	}
}

// winner returns the name of the route that the proxy's table selects for a request.
func winner(routes []*config.Route, listener, host, path string) (name string) {
	for _, h := range []string{host, claim.WildcardOf(host), ""} {
		known := false
		var best config.Path
		for _, r := range routes {
			if !slices.Contains(r.Listeners, listener) || !slices.Contains(hostsOf(r), h) || r.FirstBytes != "" {
				continue
			}
			known = true
			for _, p := range pathsOf(r) {
				if has(p, path) && (name == "" || goesBefore(p, best)) {
					name, best = r.Name, p
				}
			}
		}
		if known {
			return name
		}
	}
	return ""
}

// has returns true if a route with p matches the path.
func has(p config.Path, path string) bool {
	if p.Expression {
		re, _, err := expression.Compile(p.Value, expression.StartFolded)
		return err == nil && re.Match(message.Leveled([]byte(path)))
	}
	within := func(path, value string) bool {
		rest, ok := strings.CutPrefix(path, value)
		return ok && (rest == "" || !p.Exact && (p.Begins || strings.HasSuffix(value, "/") || rest[0] == '/'))
	}
	if within(path, p.Value) {
		return true
	}
	slash := ""
	if len(path) > 1 && strings.HasSuffix(path, "/") {
		slash = "/"
	}
	return p.Closed && within(strings.TrimSuffix(leveled(path), "/")+cmp.Or(slash, map[bool]string{true: "/"}[path == "/"]), strings.ToLower(p.Value))
}

// leveled is the form in which the proxy's table compares a request with closed paths.
func leveled(path string) string {
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	var b strings.Builder
	for n := range len(path) {
		if c := path[n]; c != '/' || n == 0 || path[n-1] != '/' {
			b.WriteByte(c)
		}
	}
	if path = strings.ToLower(b.String()); len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

// goesBefore is the order of paths in the proxy's table.
func goesBefore(a, b config.Path) bool {
	rank := func(p config.Path) (n int) {
		if p.Exact {
			n += 2
		}
		if !p.Closed && !p.Begins {
			n++
		}
		return n
	}
	class := func(p config.Path) int {
		switch {
		case p.Expression:
			return 1
		case !p.Exact && p.Value == "/":
			return 0
		case p.Among:
			return 1
		}
		return 2
	}
	return cmp.Or(class(a)-class(b), len(a.Value)-len(b.Value), rank(a)-rank(b), strings.Compare(a.Value, b.Value)) > 0
}

// certain checks that the good application has a certificate even if it is the youngest.
// Older Ingresses may take its hosts, but only with a certificate that is valid for them.
func certain(t *testing.T, m *Manifests, text string) {
	t.Helper()
	file := mustParse(t, text)
	young := mustRead(t, strings.Replace(good, "2000-01-01", "2100-01-01", 1))
	all := *m
	all.Ingresses = append(slices.Clone(m.Ingresses), young.Ingresses...)
	all.Services = append(slices.Clone(m.Services), young.Services...)
	all.Secrets = append(slices.Clone(m.Secrets), young.Secrets...)
	c := Converter{File: file}
	got := c.Convert(&all.Objects)
	checkRouting(t, file, got)
	if file.Kubernetes.HostOwnership == config.OwnedByNamespace || slices.ContainsFunc(m.Ingresses, func(o *networkingv1.Ingress) bool {
		return slices.ContainsFunc(o.Spec.TLS, func(entry networkingv1.IngressTLS) bool { return entry.SecretName == "" })
	}) {
		return // an older Ingress may own a host, and serve the file's certificate or none
	}
	served := slices.Clone(got.Certificates)
	if got.Default != nil {
		served = append(served, *got.Default)
	}
	for _, host := range []string{"good.example", "*.wild.example"} {
		if !slices.ContainsFunc(served, func(o config.Certificate) bool {
			leaf, err := config.CheckPair(o.Pair.CertPEM, []byte(o.Pair.KeyPEM))
			return err == nil && slices.Contains(o.Pair.Hosts, host) && covers(namesOf(leaf), host)
		}) {
			t.Errorf("%s has no certificate that is for it:\n%s", host, show(got, &all))
		}
	}
}

func checkEndpoints(t *testing.T, b *Backend, endpoints []config.Endpoint) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range endpoints {
		address, err := config.ParseEndpoint(e.Address)
		if err != nil || address != e.Address || e.Weight != 1 || seen[address] || strings.HasPrefix(address, "unix:") {
			t.Errorf("backend %s has the endpoint %+v: %v", b.Name, e, err)
		}
		for _, own := range []string{"127.", "[::1]", "localhost", "169.254.", "0.0.0.0"} {
			if strings.HasPrefix(address, own) {
				t.Errorf("backend %s leads to %s", b.Name, address)
			}
		}
		seen[address] = true
	}
}

// withoutGood removes from m the objects that would replace objects of the good
// application.
func (m *Manifests) withoutGood() {
	ofGood := func(o metav1.Object) bool { return o.GetNamespace() == "good" }
	m.Ingresses = slices.DeleteFunc(m.Ingresses, func(o *networkingv1.Ingress) bool {
		o.CreationTimestamp = metav1.NewTime(max2000(o.CreationTimestamp.Time))
		if ofGood(o) { // an author with rights in this namespace may close the application's own hosts
			maps.DeleteFunc(o.Annotations, func(name, _ string) bool { return annotation.IsOfHost(name) })
			for _, rule := range o.Spec.Rules { // an author may also close its paths, by an expression
				if guards, _ := annotation.Unsupported(o); rule.HTTP != nil && len(guards) > 0 {
					rule.HTTP.Paths = slices.DeleteFunc(rule.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool { return looksLikeRegexp(p.Path) })
				}
			}
		}
		return ofGood(o) && o.Name == "web"
	})
	m.Services = slices.DeleteFunc(m.Services, func(o *corev1.Service) bool { return ofGood(o) && o.Name == "app" })
	m.Secrets = slices.DeleteFunc(m.Secrets, func(o *corev1.Secret) bool { return ofGood(o) && o.Name == "tls" })
	m.Slices = slices.DeleteFunc(m.Slices, func(o *discoveryv1.EndpointSlice) bool { return ofGood(o) })
	m.Classes = slices.DeleteFunc(m.Classes, func(o *networkingv1.IngressClass) bool { return o.Name == "weir" })
	// An event needs an object with a name. All objects of an API server have names.
	m.Ingresses = slices.DeleteFunc(m.Ingresses, func(o *networkingv1.Ingress) bool { return o.Name == "" || strings.Contains(o.Namespace+o.Name, "/") })
	m.Services = slices.DeleteFunc(m.Services, func(o *corev1.Service) bool { return o.Name == "" })
	m.Classes = slices.DeleteFunc(m.Classes, func(o *networkingv1.IngressClass) bool { return o.Name == "" })
	m.ConfigMaps = slices.DeleteFunc(m.ConfigMaps, func(o *corev1.ConfigMap) bool { return o.Name == "" || ofGood(o) })
	if m.TCP = nil; len(m.ConfigMaps) > 0 {
		m.TCP = m.ConfigMaps[0]
	}
}

// fuzzPair returns a certificate and its key, made once.
var fuzzPair = sync.OnceValues(func() (cert, key []byte) {
	cert, key, err := newPair("good.example", "*.example")
	if err != nil {
		panic(err)
	}
	return cert, key
})

func max2000(at time.Time) time.Time {
	if first := time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC); at.Before(first) {
		return first
	}
	return at
}

// FuzzManifests: no set of objects makes the conversion fail, or affects another object.
// The objects are any that the YAML format can express.
func FuzzManifests(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, text := range strings.Split(string(data), "=== ")[1:] {
			_, text, _ = strings.Cut(text, "\n")
			text, _, _ = strings.Cut(text, "--- want")
			if _, objects, ok := strings.Cut(text, "--- objects\n"); ok {
				text = objects
			}
			for i := range fuzzConfigs {
				f.Add([]byte(text), uint8(i))
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, which uint8) {
		var m Manifests
		if len(text) > 1<<16 || m.Read(strings.NewReader(string(text))) != nil {
			return
		}
		m.withoutGood()
		undisturbed(t, &m, fuzzConfigs[int(which)%len(fuzzConfigs)])
		certain(t, &m, fuzzConfigs[int(which)%len(fuzzConfigs)])
		closing(t, &m, fuzzConfigs[int(which)%len(fuzzConfigs)])
	})
}

// FuzzObjects is the same with objects that are made to collide.
func FuzzObjects(f *testing.F) {
	for i := range 64 {
		seed := make([]byte, 400)
		for n := range seed {
			seed[n] = byte((n*n + 31*n*(i+1) + i*i) % 251)
		}
		f.Add(seed, uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed []byte, which uint8) {
		d := dice{seed}
		m := d.manifests(t)
		m.withoutGood()
		undisturbed(t, m, fuzzConfigs[int(which)%len(fuzzConfigs)])
		certain(t, m, fuzzConfigs[int(which)%len(fuzzConfigs)])
		closing(t, m, fuzzConfigs[int(which)%len(fuzzConfigs)])
	})
}

// dice makes objects from bytes. It uses few words, so that the objects collide.
type dice struct{ rest []byte }

func (d *dice) roll(n int) int {
	if len(d.rest) == 0 {
		return 0
	}
	v := int(d.rest[0])
	d.rest = d.rest[1:]
	return v % n
}

func (d *dice) pick(words ...string) string { return words[d.roll(len(words))] }

func (d *dice) host() string {
	return d.pick("good.example", "a.example", "*.wild.example", "x.wild.example", "", "GOOD.example.", "x.partners.example", "through.example", "x.db.example", "*.through.example", "*.example", "b..c", "127.0.0.1", "*", "a b", "y.db.example", "z.through.example", "q.example")
}

func (d *dice) path() string {
	return d.pick("/", "/api", "/api/", "", "/.well-known/acme-challenge/t", "/.well-known/acme-challenge", "=/api", "/a/../b", "/a(.*)", "/%5c", "x", "/é", "/api?x")
}

func (d *dice) meta(i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: d.pick("a", "good", "b", ""), Name: d.pick("app", "tls", "web", "ports", fmt.Sprint("n", i)),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(d.roll(3)), 0)), Annotations: map[string]string{
			d.pick("x", oldClass, AnnotationPreferLocal, AnnotationRequireLocal, networkingv1.AnnotationIsDefaultIngressClass, AnnotationProtocol, AnnotationRampUp, AnnotationSendProxy, annotation.Nginx+"canary", annotation.Nginx+"auth-url", annotation.Nginx+"rewrite-target", annotation.Nginx+"use-regex", annotation.Nginx+"server-snippet", "traefik.ingress.kubernetes.io/service.middlewares"): d.pick("true", "weir", "false", "", "nginx", "GRPCS", "30s")}}
}

func (d *dice) port() networkingv1.ServiceBackendPort {
	return networkingv1.ServiceBackendPort{Name: d.pick("", "http", "other", "x"), Number: int32(d.roll(4)*80 - d.roll(2))}
}

func (d *dice) backend() *networkingv1.IngressBackend {
	switch d.roll(5) {
	case 0:
		return &networkingv1.IngressBackend{}
	case 1:
		return &networkingv1.IngressBackend{Resource: &corev1.TypedLocalObjectReference{Kind: d.pick("K", ""), Name: "n"}}
	}
	return &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: d.pick("app", "tls", "gone", ""), Port: d.port()}}
}

func (d *dice) ingress(i int) *networkingv1.Ingress {
	o := &networkingv1.Ingress{ObjectMeta: d.meta(i)}
	if d.roll(4) > 0 {
		class := d.pick("weir", "weir", "nginx", "")
		o.Spec.IngressClassName = &class
	}
	if d.roll(2) > 0 {
		o.Spec.DefaultBackend = d.backend()
	}
	for range d.roll(4) {
		rule := networkingv1.IngressRule{Host: d.host()}
		if d.roll(5) > 0 {
			rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
			for range d.roll(4) {
				kind := networkingv1.PathType(d.pick("Prefix", "Exact", "ImplementationSpecific", "Odd"))
				p := networkingv1.HTTPIngressPath{Path: d.path(), PathType: &kind, Backend: *d.backend()}
				if d.roll(6) == 0 {
					p.PathType = nil
				}
				rule.HTTP.Paths = append(rule.HTTP.Paths, p)
			}
		}
		o.Spec.Rules = append(o.Spec.Rules, rule)
	}
	for range d.roll(3) {
		entry := networkingv1.IngressTLS{SecretName: d.pick("", "tls", "app", "gone")}
		for range d.roll(3) {
			entry.Hosts = append(entry.Hosts, d.host())
		}
		o.Spec.TLS = append(o.Spec.TLS, entry)
	}
	return o
}

func (d *dice) service(i int) *corev1.Service {
	o := &corev1.Service{ObjectMeta: d.meta(i)}
	o.Spec.Type = corev1.ServiceType(d.pick("", "ExternalName", "NodePort"))
	o.Spec.ExternalName = d.pick("api.example.net", "", "localhost", "127.0.0.1", "x.localhost.", "::1", "a b", "*.a")
	o.Spec.ClusterIP = d.pick("", "None")
	o.Spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(d.pick("IPv4", "IPv6", ""))}
	for range d.roll(3) {
		protocol := d.pick("https", "", "kubernetes.io/h2c")
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: d.pick("", "http", "other"), Port: int32(d.roll(4)*80 - d.roll(2)),
			Protocol: corev1.Protocol(d.pick("", "TCP", "UDP")), AppProtocol: &protocol})
	}
	return o
}

func (d *dice) slice(i int) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{ObjectMeta: d.meta(i), AddressType: discoveryv1.AddressType(d.pick("IPv4", "IPv6", "FQDN", ""))}
	o.Labels = map[string]string{discoveryv1.LabelServiceName: d.pick("app", "tls", "x")}
	for range d.roll(3) {
		name, port := d.pick("", "http"), int32(d.roll(3)*80-1)
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	for range d.roll(4) {
		e := discoveryv1.Endpoint{Addresses: []string{d.pick("10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1", "::ffff:127.0.0.1", "localhost", "169.254.1.1", "", "a.example", "*.a", "0.0.0.0", "10.0.0.1:80")}}
		for _, c := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			if is := d.roll(2) == 0; d.roll(3) > 0 {
				*c = &is
			}
		}
		if d.roll(2) == 0 {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: d.pick("p", "q")}
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	return o
}

func (d *dice) manifests(t *testing.T) *Manifests {
	m := &Manifests{}
	for i := range 1 + d.roll(4) {
		m.Ingresses = append(m.Ingresses, d.ingress(i))
	}
	for i := range d.roll(3) {
		m.Services = append(m.Services, d.service(i))
	}
	for i := range d.roll(3) {
		m.Slices = append(m.Slices, d.slice(i))
	}
	for i := range d.roll(3) {
		s := &corev1.Secret{ObjectMeta: d.meta(i)}
		if cert, key := fuzzPair(); d.roll(2) == 0 {
			s.Data = map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}
		}
		m.Secrets = append(m.Secrets, s)
	}
	for i := range d.roll(2) {
		m.Classes = append(m.Classes, &networkingv1.IngressClass{ObjectMeta: d.meta(i), Spec: networkingv1.IngressClassSpec{Controller: d.pick(config.DefaultController, "x/y")}})
	}
	o := &corev1.ConfigMap{ObjectMeta: d.meta(0), Data: map[string]string{}}
	for range d.roll(4) {
		o.Data[d.pick("22", "80", "2222", "0", "x", "8087", "02222")] = d.pick("a/app", "good/app", "a/gone", "x") + d.pick(":80", ":http", "", ":") + d.pick("", ":PROXY", "::PROXY", ":x", ":PROXY:PROXY")
	}
	m.ConfigMaps = append(m.ConfigMaps, o)
	return m
}

// inPlace is a route, whatever the place of its paths is beside the expressions of others.
func inPlace(r *config.Route) *config.Route {
	one := *r
	one.Paths = slices.Clone(r.Paths)
	for n := range one.Paths {
		one.Paths[n].Among = false
	}
	return &one
}
