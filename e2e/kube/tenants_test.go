//go:build linux

package kube

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
)

// In the tests of this file, one tenant of a cluster attacks the node, or the hosts of another tenant. Each
// test uses two namespaces: the one of the stage, and the attacker's. The Ingresses of the stage are older;
// if two Ingresses are from the same second, the name of the namespace decides.

// stranger returns the namespace of the attacker, which it creates. Its Ingresses have the class of the stage.
func (s *stage) stranger() *tenant {
	s.Helper()
	other := s.within(s.T)
	other.name += "-stranger"
	if _, err := s.cluster.kubectl("", "get", "namespace", other.name); err != nil { // a test may need it twice
		s.kubectl("create", "namespace", other.name)
		s.Cleanup(func() { s.cluster.kubectl("", "delete", "namespace", other.name, "--wait=false") })
	}
	return &tenant{other, s.name}
}

// tenant is a stage whose class belongs to another stage.
type tenant struct {
	*stage
	class string
}

func (o *tenant) apply(manifests ...string) {
	o.Helper()
	text := strings.ReplaceAll(strings.Join(manifests, "\n---\n"), "@stage", o.class)
	if _, err := o.cluster.kubectl(text, "apply", "--namespace="+o.name, "-f", "-"); err != nil {
		o.Fatalf("%v\n%s", err, text)
	}
}

// settings returns the section kubernetes with additional settings.
func settings(more string) string {
	return "kubernetes: {kubeconfig: '@kubeconfig', class: '@stage', lease: weir/@stage, " + more + "}\n"
}

// TestTenantTakesNodesOutOfService: the annotation that makes nodes answer 503 has no
// effect in a namespace that is not listed in operator_namespaces.
func TestTenantTakesNodesOutOfService(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	s.rolledOut("a")
	home := s.objects("pods")[0].Spec.NodeName
	away := map[string]string{"node-a": "node-b", "node-b": "node-c", "node-c": "node-a"}[home]
	closed := s.newWeir(away, settings("operator_namespaces: [weir]")).launch().ready()
	open := s.newWeir(away, settings("operator_namespaces: ['@stage']")).launch().ready()
	closed.wantVerdict(200, "")
	open.wantVerdict(200, "")
	s.kubectl("annotate", "--namespace="+s.name, "service/a", "weirproxy.github.io/require-local=true")
	open.wantVerdict(503, s.name+"/a")
	if message := s.wantEvent("Service", "a", "OperatorOnly"); !strings.Contains(message, "kubernetes.operator_namespaces") {
		t.Errorf("the event says %q", message)
	}
	closed.wantMetric(1, "weir_kubernetes_faults", "kind", "services", "reason", "OperatorOnly")
	closed.wantVerdict(200, "")
	closed.wantApp("http://web.example/", "a")
}

// leads returns an Ingress for NAME.example and a Service that leads to an address. The tenant writes the
// address into an EndpointSlice, or into an ExternalName.
func leads(name, address, externalName string, port int) string {
	if externalName != "" {
		return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {type: ExternalName, externalName: %s}}\n---\n", name, externalName) +
			strings.Replace(ingress(name, name+".example", "/", name, ""), "number: 80", fmt.Sprintf("number: %d", port), 1)
	}
	return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %[1]s}, spec: {ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}, addressType: IPv4,
  ports: [{port: %[3]d}], endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]}
---
`, name, address, port) + ingress(name, name+".example", "/", name, "")
}

// TestTenantReachesOwnPorts: a tenant writes an EndpointSlice or an ExternalName that leads to weir's host.
// weir does not connect to a port on which it listens itself, on any address of the host. It does connect to
// a port on which another process listens, until weir itself listens there.
func TestTenantReachesOwnPorts(t *testing.T) {
	s := newStage(t)
	w := s.newWeir("node-a", "metrics: {address: ':8088'}\n")
	beside, err := net.Listen("tcp", w.at(9000))
	if err != nil {
		t.Fatal(err)
	}
	other := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "beside") })}
	go other.Serve(beside)
	t.Cleanup(func() { other.Close() })
	name := "weir-" + w.address[strings.LastIndexByte(w.address, '.')+1:] + ".pods.test"
	var manifests, own []string
	for what, port := range map[string]int{"web": 80, "websecure": 443, "health": 8086, "admin": 8087, "metrics": 8088} {
		manifests = append(manifests, leads("slice-"+what, w.address, "", port), leads("name-"+what, "", name, port))
		own = append(own, "slice-"+what, "name-"+what)
	}
	// An ExternalName that is an IP address, and another address of the host on which the metrics port is
	// open, too.
	manifests = append(manifests, leads("literal", "", w.address, 8087), leads("host", "10.10.0.100", "", 8088),
		leads("slice-beside", w.address, "", 9000), leads("name-beside", "", name, 9000))
	own = append(own, "literal", "host")
	s.apply(manifests...)
	w.launch().ready()
	for _, name := range []string{"slice-beside", "name-beside"} {
		w.wantStatus("http://"+name+".example/", 200)
	}
	c := client(w.address, false)
	defer c.CloseIdleConnections()
	refused := func(name string) {
		t.Helper()
		for _, what := range []string{"POST /drain", "GET /status", "GET /debug/pprof/heap", "GET /metrics", "GET /readyz"} {
			method, path, _ := strings.Cut(what, " ")
			req, err := http.NewRequest(method, "http://"+name+".example"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+adminToken)
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 503 {
				t.Errorf("%s by %s is answered %s\n%.300s", what, name, resp.Status, text)
			}
		}
	}
	for _, name := range own {
		refused(name)
	}
	w.wantVerdict(200, "")
	for _, name := range own {
		if t.Failed() {
			return
		}
		if message := s.wantEvent("Service", name, "UnusableBackend"); !strings.Contains(message, "is weir itself, which listens there") {
			t.Errorf("the event on %s says %q", name, message)
		}
	}
	w.wantStatus("http://slice-beside.example/", 200)

	// The other process ends, and weir binds its port.
	other.Close()
	w.write("metrics: {address: '@ip:9000'}\n") // weir loads a changed file by itself
	w.wantMetric(1, "weir_config_reloads_total", "result", "success")
	for _, name := range []string{"slice-beside", "name-beside"} {
		refused(name)
		s.wantEvent("Service", name, "UnusableBackend")
	}
}

// TestTenantChoosesSizeOfMetrics: an Ingress with thousands of paths adds few time series, before its first
// request and after requests to many of its paths. So do thousands of hosts with a certificate.
func TestTenantChoosesSizeOfMetrics(t *testing.T) {
	const paths, hosts, asked, own = 6000, 1000, 1000, 200 // own: routes_per_namespace and so on of kubernetes.metrics
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""), s.secret("many", "many", "*.tls.example"))
	s.rolledOut("a")
	w := s.weir("log: {level: info}\n")
	w.wantApp("http://web.example/", "a")
	series := func() (n, size int) {
		t.Helper()
		_, text, err := w.page(8087, "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
		}
		return n, len(text)
	}
	base, _ := series()
	var names, rules, list strings.Builder
	for i := range hosts {
		fmt.Fprintf(&names, "%d.tls.example, ", i)
		fmt.Fprintf(&rules, "{host: %d.tls.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}, ", i)
	}
	for i := range paths {
		fmt.Fprintf(&list, "{path: /%d, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}, ", i)
	}
	many := s.fill(strings.NewReplacer("paths: [", "paths: ["+list.String(), "rules: [", "tls: [{hosts: ["+names.String()+"], secretName: many}], rules: ["+rules.String()).
		Replace(ingress("many", "many.example", "/last", "a", "")))
	if _, err := s.cluster.kubectl(many, "create", "--namespace="+s.name, "-f", "-"); err != nil { // kubectl apply would copy everything into an annotation
		t.Fatal(err)
	}
	w.wantMetric(2, "weir_kubernetes_objects", "kind", "ingresses", "state", "in_use")
	w.wantMetric(hosts-own, "weir_metrics_folded_certificate_names", "namespace", s.name)
	// Each name of a certificate has two series.
	if n, _ := series(); n > base+2*own+50 {
		t.Errorf("there are %d series before the first request, and were %d without the paths", n, base)
	}
	c := client(w.address, false)
	defer c.CloseIdleConnections()
	ends := "last"
	for i := range asked {
		if a, err := ask(c, fmt.Sprintf("http://many.example/%s", ends)); err != nil || a.Status != 200 {
			t.Fatalf("/%s: %v %v", ends, a, err)
		}
		ends = strconv.Itoa(i)
	}
	// Each route has 18 series for the duration, 2 for bytes, and one for requests.
	if n, size := series(); n > base+2*own+50+(own+1)*21 || size > 2<<20 {
		t.Errorf("there are %d series and %d bytes after %d requests, and were %d series without the paths", n, size, asked, base)
	}
	const shared = asked + 1 - own // web.example has its own route and its own series
	w.wantMetric(shared, "weir_http_requests_total", "route", s.name+"/other", "code", "200")
	w.wantMetric(shared, "weir_metrics_folded_routes", "namespace", s.name)
}

// TestTenantTakesPathOfHost: a younger Ingress in another namespace gets no path of a host,
// no challenge and no name below a wildcard, and weir does not serve its certificate.
func TestTenantTakesPathOfHost(t *testing.T) {
	s := newStage(t)
	o := s.stranger()
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""), ingress("wild", "*.wild.example", "/", "a", ""))
	s.rolledOut("a")
	owned, shared := s.weir(settings("host_ownership: namespace")), s.weir(settings("host_ownership: shared"))
	owned.wantApp("http://web.example/login", "a")
	shared.wantApp("http://web.example/login", "a")
	const challenge = "/.well-known/acme-challenge/HDWAqB6AbEgI7eZ7"
	o.apply(deployment("evil", 1), o.secret("evil", "evil", "web.example"), ingress("login", "web.example", "/login", "evil", "evil"), ingress("challenge", "web.example", challenge, "evil", ""),
		ingress("below", "x.wild.example", "/", "evil", ""), ingress("own", "own.example", "/", "evil", ""))
	shared.wantApp("http://web.example"+challenge, "evil")
	shared.wantApp("http://x.wild.example/", "evil")
	if a := shared.wantApp("https://web.example/login", "evil"); a.Certificate != "evil" {
		t.Errorf("there is %s", a)
	}
	owned.wantApp("http://own.example/", "evil") // all Ingresses are in effect when this request is answered
	for _, name := range []string{"login", "challenge", "below"} {
		if message := o.wantEvent("Ingress", name, "HostTaken"); !strings.Contains(message, "belongs to the namespace "+s.name+",") {
			t.Errorf("the event on %s says %q", name, message)
		}
	}
	for _, url := range []string{"http://web.example/login", "http://WEB.example./login", "http://web.example" + challenge, "http://x.wild.example/"} {
		owned.wantApp(url, "a")
	}
	if a, err := owned.get("https://web.example/login"); err == nil {
		t.Errorf("a client of web.example is shown %s", a)
	}
	// When the namespace has no Ingress for the host any more, another namespace can use the host.
	s.delete("ingress", "web")
	owned.wantApp("https://web.example/login", "evil")
}

// TestRefusedPathFallsThrough: a path that weir cannot match answers 503, even if another
// Ingress has a shorter path. It takes no paths from an older Ingress of another namespace.
func TestRefusedPathFallsThrough(t *testing.T) {
	s := newStage(t)
	o := s.stranger()
	expression := func(name, host, path, service string) string {
		return strings.Replace(ingress(name, host, path, service, ""), "Prefix", "ImplementationSpecific", 1)
	}
	s.apply(deployment("a", 1), expression("api", "api.example", "/api/v[0-9]+/.*", "a"), ingress("web", "web.example", "/", "a", ""))
	s.rolledOut("a")
	o.apply(deployment("evil", 1), ingress("all", "api.example", "/", "evil", ""), expression("login", "web.example", "/login/(in|out)", "evil"), ingress("own", "own.example", "/", "evil", ""))
	w := s.weir(settings("host_ownership: shared"))
	w.wantApp("http://own.example/", "evil")
	w.wantApp("http://api.example/", "evil")
	for _, path := range []string{"/api/v1/x", "/api/v", "/API/V1/x", "//api//v1", "/%61pi/v1", "/api%2fv1"} {
		w.wantStatus("http://api.example"+path, 503)
	}
	w.wantApp("http://api.example/api/w", "evil")
	for _, path := range []string{"/", "/login", "/login/in", "/LOGIN/out"} {
		w.wantApp("http://web.example"+path, "a")
	}
	if message := s.wantEvent("Ingress", "api", "InvalidPath"); !strings.Contains(message, "paths that begin with /api/v answer 503") {
		t.Errorf("the event says %q", message)
	}
	if message := o.wantEvent("Ingress", "login", "InvalidPath"); !strings.Contains(message, "go to the older Ingress "+s.name+"/web") {
		t.Errorf("the event says %q", message)
	}
	s.apply(ingress("api", "api.example", "/api", "a", ""))
	w.wantApp("http://api.example/api/v1/x", "a")
}

// fixHosts installs the policy of the manifests, for the namespace of the stage only: other tests change hosts.
func (s *stage) fixHosts() {
	s.Helper()
	text, err := os.ReadFile("../../deploy/kustomize/components/fixed-hosts/policy.yaml")
	if err != nil {
		s.Fatal(err)
	}
	policy := strings.ReplaceAll(string(text), "weir-fixed-hosts", "fixed-hosts-"+s.name) + "  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: " + s.name + "}}}\n"
	s.Cleanup(func() {
		s.cluster.kubectl("", "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "fixed-hosts-"+s.name)
	})
	if _, err := s.cluster.kubectl(policy, "apply", "-f", "-"); err != nil {
		s.Fatal(err)
	}
}

// patch changes an object of the stage.
func (s *stage) patch(object, what string) error {
	_, err := s.cluster.kubectl("", "patch", object, "--namespace="+s.name, "--type=merge", "--patch", s.fill(what))
	return err
}

// refuses checks that the policy refuses a change, with these words. Until it is in effect, undo takes the change back.
func (s *stage) refuses(object, what, undo, words string) {
	s.Helper()
	eventually(s, "the API server refuses "+what+" for "+object, func() error {
		err := s.patch(object, what)
		if err == nil {
			return errors.Join(errors.New("it takes it"), s.patch(object, undo))
		}
		if !strings.Contains(err.Error(), words) {
			s.Errorf("%s is refused for %s because of %v, want it to say %q", what, object, err, words)
		}
		return nil
	})
}

// TestOldIngressIsGivenAnothersHost: the policy in the manifests refuses to add another
// namespace's host to an existing Ingress.
func TestOldIngressIsGivenAnothersHost(t *testing.T) {
	s := newStage(t)
	s.fixHosts()
	two := strings.Replace(ingress("web", "web.example", "/", "a", ""), "rules: [", `rules: [{host: b.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}, `, 1)
	s.apply(deployment("a", 1), two)
	rule := func(hosts ...string) string {
		var all []string
		for _, host := range hosts {
			all = append(all, fmt.Sprintf(`{"host":%q,"http":{"paths":[{"path":"/x","pathType":"Prefix","backend":{"service":{"name":"a","port":{"number":80}}}}]}}`, host))
		}
		return `{"spec":{"rules":[` + strings.Join(all, ",") + `]}}`
	}
	refused := func(what, words string) {
		t.Helper()
		s.refuses("ingress/web", what, rule("web.example", "b.example"), words)
	}
	annotate := func(name, value string) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{"nginx.ingress.kubernetes.io/%s":%q}}}`, name, value)
	}
	refused(rule("web.example", "b.example", "victim.example"), "keeps the hosts")
	refused(rule("victim.example"), "keeps the hosts")
	refused(rule("web.example", ""), "keeps the hosts")
	refused(`{"spec":{"rules":null,"defaultBackend":{"service":{"name":"a","port":{"number":80}}}}}`, "keeps the hosts")
	refused(`{"spec":{"ingressClassName":"another"}}`, "keeps its class")
	refused(`{"metadata":{"annotations":{"kubernetes.io/ingress.class":"another"}}}`, "keeps its class")
	refused(`{"metadata":{"annotations":{"nginx.ingress.kubernetes.io/canary":"true"}}}`, "canary")
	refused(annotate("server-alias", "b.example, victim.example"), "server-alias")
	refused(annotate("server-alias", "*.VICTIM.example"), "server-alias")
	refused(annotate("from-to-www-redirect", "true"), "from-to-www-redirect")
	refused(`{"spec":{"tls":[{"hosts":["web.example"]},{"hosts":["victim.example"],"secretName":"web"}]}}`, "spec.tls")
	for _, allowed := range []string{rule("b.example", "web.example"), annotate("server-alias", "B.example"), annotate("from-to-www-redirect", "false"), `{"metadata":{"annotations":{"a.example/x":"y"},"labels":{"a":"b"}}}`, rule("web.example"),
		`{"spec":{"tls":[{"hosts":["web.example"],"secretName":"web"}]}}`, `{"spec":{"defaultBackend":{"service":{"name":"a","port":{"number":80}}}}}`} {
		if err := s.patch("ingress/web", allowed); err != nil {
			t.Errorf("%s: %v", allowed, err)
		}
	}
	refused(rule("web.example", "b.example"), "keeps the hosts") // the Ingress gave this host up
	s.delete("ingress", "web")
	s.apply(two)
	w := s.weir(settings("publish: {addresses: [203.0.113.9]}, host_ownership: namespace"))
	w.wantApp("http://b.example/", "a")
	s.wantAddresses("web", "203.0.113.9") // weir may write the status
}

// TestOldRouteIsGivenAnothersHost: the policy refuses to add hosts to routes, Gateways and ListenerSets, and to give them
// other parents or another class. weir may still write their statuses.
func TestOldRouteIsGivenAnothersHost(t *testing.T) {
	s := newStage(t)
	s.applyGatewayAPI()
	s.fixHosts()
	const parents = `parentRefs: [{name: g, sectionName: web}], `
	s.apply(deployment("a", 1), `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g}, spec: {gatewayClassName: '@stage', allowedListeners: {namespaces: {from: Same}}, listeners: [{name: web, port: 80, protocol: HTTP}, {name: own, port: 80, protocol: HTTP, hostname: own.example}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: named}, spec: {gatewayClassName: '@stage', listeners: [{name: web, port: 80, protocol: HTTP, hostname: own.example}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: set}, spec: {parentRef: {name: g}, listeners: [{name: set, port: 80, protocol: HTTP, hostname: set.example}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: web}, spec: {`+parents+`hostnames: [web.example], rules: [{backendRefs: [{name: a, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: every}, spec: {parentRefs: [{name: g, sectionName: own}], rules: [{backendRefs: [{name: a, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {name: grpc}, spec: {`+parents+`hostnames: [grpc.example], rules: [{backendRefs: [{name: a, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: TLSRoute, metadata: {name: tls}, spec: {`+parents+`hostnames: [tls.example], rules: [{backendRefs: [{name: a, port: 80}]}]}}
`)
	s.rolledOut("a")
	const keeps = "keeps the hosts"
	listeners := func(hosts ...string) string {
		var all []string
		for n, host := range hosts {
			all = append(all, fmt.Sprintf(`{"name":"l%d","port":%d,"protocol":"HTTP","hostname":%q}`, n, 80+n, host))
		}
		return `{"spec":{"listeners":[` + strings.Join(all, ",") + `]}}`
	}
	for _, c := range []struct{ object, what, undo, words string }{
		{"httproute/web", `{"spec":{"hostnames":["web.example","victim.example"]}}`, `{"spec":{"hostnames":["web.example"]}}`, keeps},
		{"httproute/web", `{"spec":{"hostnames":["*.example"]}}`, "{}", keeps},
		{"httproute/web", `{"spec":{"hostnames":null}}`, "{}", keeps},
		{"httproute/web", `{"spec":{"hostnames":[]}}`, "{}", keeps},
		{"httproute/web", `{"spec":{"parentRefs":[{"name":"named"}]}}`, "{}", "keeps its parents"},
		{"httproute/every", `{"spec":{"hostnames":["victim.example"]}}`, "{}", keeps},
		{"httproute/every", `{"spec":{"parentRefs":[{"name":"g","sectionName":"web"}]}}`, "{}", "keeps its parents"},
		{"grpcroute/grpc", `{"spec":{"hostnames":["victim.example"]}}`, "{}", keeps},
		{"tlsroute/tls", `{"spec":{"hostnames":["victim.example"]}}`, "{}", keeps},
		{"gateway/named", listeners("own.example", "victim.example"), "{}", keeps},
		{"gateway/named", `{"spec":{"listeners":[{"name":"l","port":80,"protocol":"HTTP"}]}}`, "{}", keeps},
		{"gateway/named", `{"spec":{"gatewayClassName":"another"}}`, "{}", "keeps its class"},
		{"listenerset/set", listeners("victim.example"), "{}", keeps},
		{"listenerset/set", `{"spec":{"parentRef":{"name":"named"}}}`, "{}", "keeps its parents"},
	} {
		s.refuses(c.object, c.what, c.undo, c.words)
	}
	for _, c := range [][2]string{
		{"httproute/web", `{"spec":{"rules":[{"matches":[{"path":{"value":"/x"}}],"backendRefs":[{"name":"a","port":80}]}]}}`},
		{"httproute/web", `{"metadata":{"labels":{"a":"b"}},"spec":{"parentRefs":[{"name":"g"}]}}`},
		{"gateway/named", listeners("own.example", "own.example")},
		{"gateway/named", `{"spec":{"listeners":[{"name":"web","port":80,"protocol":"HTTP","hostname":"own.example"},{"name":"raw","port":81,"protocol":"TCP"}]}}`},
		{"listenerset/set", listeners("set.example", "set.example")},
	} {
		if err := s.patch(c[0], c[1]); err != nil {
			t.Errorf("%s for %s: %v", c[1], c[0], err)
		}
	}
	s.weir(besideGateways)
	s.wantCondition("web", "Accepted", "True")
	s.gatewayAddress("named")
}
