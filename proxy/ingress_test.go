package proxy

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/policy"
)

// TestIngressPaths checks the tables of paths and of hosts in the documentation of Ingress. The
// Ingress goes through the conversion and through the table that routes requests.
func TestIngressPaths(t *testing.T) {
	// f checks which path gets a request, or that none does. Each path has the form "Kind /path".
	f := func(paths, request, want string) {
		t.Helper()
		if got := routed(t, "a.example", paths, "a.example", request); got != want {
			t.Errorf("%s: the request for %s goes to %q, want %q", paths, request, got, want)
		}
	}
	f("Prefix /", "/", "Prefix /")
	f("Prefix /", "/anything/below", "Prefix /")
	f("Exact /foo", "/foo", "Exact /foo")
	f("Exact /foo", "/bar", "")
	f("Exact /foo", "/foo/", "")
	f("Exact /foo/", "/foo", "")
	f("Prefix /foo", "/foo", "Prefix /foo")
	f("Prefix /foo", "/foo/", "Prefix /foo")
	f("Prefix /foo/", "/foo", "Prefix /foo/")
	f("Prefix /foo/", "/foo/", "Prefix /foo/")
	f("Prefix /aaa/bb", "/aaa/bbb", "")
	f("Prefix /aaa/bbb", "/aaa/bbb", "Prefix /aaa/bbb")
	f("Prefix /aaa/bbb/", "/aaa/bbb", "Prefix /aaa/bbb/")
	f("Prefix /aaa/bbb", "/aaa/bbb/", "Prefix /aaa/bbb")
	f("Prefix /aaa/bbb", "/aaa/bbb/ccc", "Prefix /aaa/bbb")
	f("Prefix /aaa/bbb", "/aaa/bbbxyz", "")
	f("Prefix /, Prefix /aaa", "/aaa/ccc", "Prefix /aaa")
	f("Prefix /, Prefix /aaa, Prefix /aaa/bbb", "/aaa/bbb", "Prefix /aaa/bbb")
	f("Prefix /, Prefix /aaa, Prefix /aaa/bbb", "/ccc", "Prefix /")
	f("Prefix /aaa", "/ccc", "")
	f("Prefix /foo, Exact /foo", "/foo", "Exact /foo")

	// These cases follow from comments in the API: the longest path, upper and lower case, path elements.
	f("Prefix /foo, Prefix /foo/", "/foo", "Prefix /foo/")
	f("Prefix /foo, Prefix /foo/", "/foo/x", "Prefix /foo/")
	f("Prefix /foo, Exact /foo/", "/foo/", "Exact /foo/")
	f("Prefix /foo, Exact /foo/", "/foo", "Prefix /foo")
	f("Prefix /foo", "/Foo", "")
	f("Exact /foo", "/FOO", "")
	f("ImplementationSpecific /foo", "/foo/bar", "ImplementationSpecific /foo")
	f("ImplementationSpecific /foo", "/foobar", "")
	f("ImplementationSpecific ", "/foo", "ImplementationSpecific ")

	// A path that weir cannot match answers 503 for all paths below its literal prefix, and none of these requests
	// goes to a shorter path.
	const refused, expression = "default/refused", "Prefix /, ImplementationSpecific /api/v[0-9]+/.*"
	for _, request := range []string{"/api/v", "/api/v1/x", "/api/vendor", "/API/V1/x", "//api//v1", "/%61pi/v1", "/api%2Fv1", "/api/%76"} {
		f(expression, request, refused)
	}
	for _, request := range []string{"/", "/api", "/api/", "/api/w", "/apiv", "/x/api/v1"} {
		f(expression, request, "Prefix /")
	}
	f(expression+", Prefix /api/v1", "/api/v1/x", "Prefix /api/v1")
	f("Prefix /, Prefix /caf\u00e9", "/caf%c3%A9/menu", refused)
	f("Prefix /, Prefix /api?x=1", "/api", refused)
	f("ImplementationSpecific /(.*)", "/anything", refused)

	hosts := func(rule, request string, want bool) {
		t.Helper()
		if got := routed(t, rule, "Prefix /", request, "/") != ""; got != want {
			t.Errorf("a rule for %q has requests for %q: %v, want %v", rule, request, got, want)
		}
	}
	hosts("*.foo.com", "bar.foo.com", true)
	hosts("*.foo.com", "baz.bar.foo.com", false)
	hosts("*.foo.com", "foo.com", false)
	hosts("foo.bar.com", "foo.bar.com", true)
	hosts("foo.bar.com", "bar.foo.com", false)
	hosts("", "anything.at.all", true)
}

// routed returns the path, of an Ingress with these paths, that gets a request.
func routed(t *testing.T, rule, paths, host, request string) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web}, spec: {ingressClassName: weir, rules: [{host: %q, http: {paths: [", rule)
	byBackend := map[string]string{}
	for i, p := range strings.Split(paths, ", ") {
		kind, path, _ := strings.Cut(p, " ")
		fmt.Fprintf(&b, "{path: %q, pathType: %s, backend: {service: {name: s%d, port: {number: 80}}}},", path, kind, i)
		byBackend[fmt.Sprintf("default/s%d:80", i)] = p
	}
	b.WriteString("]}}]}}")
	file, err := file.Parse("weir.yaml", []byte("listeners: {web: {address: ':80', protocol: http}}\nkubernetes: {class: weir}\n"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	var m kube.Manifests
	if err := m.Read(strings.NewReader(b.String())); err != nil {
		t.Fatal(err)
	}
	c := kube.Converter{File: file}
	merged := c.Convert(&m.Objects).Merge(file, nil)
	set := backend.NewSet(backend.Options{})
	defer set.Close()
	backends, err := set.Update(merged.Backends, backend.NodeInfo{})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(merged, Parts{Backends: backends, Policies: map[string]*policy.Policy{}, Metrics: NewMetrics(prometheus.NewRegistry())})
	if err != nil {
		t.Fatal(err)
	}
	s := &exchange{clientSide: clientSide{edge: table.edges["web"]}}
	req := new(message.Request)
	req.Host, req.Path = req.StoreString(host), req.StoreString(request)
	if r, _ := s.routeOf(req); r != nil {
		return cmp.Or(byBackend[r.config.Backend], r.config.Backend)
	}
	return ""
}
