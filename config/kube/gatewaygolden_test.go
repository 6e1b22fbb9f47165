package kube

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

const gatewayConfig = `
listeners:
  web: {address: "127.0.0.1:80", protocol: http}
proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}
tls_policies: {modern: {min_version: "1.3"}, partners: {client_auth: {mode: require, ca: ../testdata/ca.pem}}}
certificates:
  - acme:
      directory: https://127.0.0.1:14000/dir
      storage: /var/lib/weir
      issuer: {name: public, allow: [{namespaces: [default, infra], hosts: [shop.example, "*.shop.example"]}, {namespaces: ["*"], hosts: ["**.all.example"]}]}
  - self_signed: {hosts: [a.example]}
kubernetes: {class: weir, gateways: {addresses: {pool: [192.0.2.0/28]}}}
`

// sharedConfig is a configuration whose listeners serve Gateways, Ingresses and its own routes.
const sharedConfig = `
listeners:
  web: {address: "127.0.0.1:8080", public_port: 80, protocol: http, proxy_protocol: lb}
  websecure: {address: "127.0.0.1:443", protocol: tls}
proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}, other: {rules: [{from: [10.1.0.0/16], header: require}]}}
tls_policies: {modern: {min_version: "1.3"}, partners: {client_auth: {mode: require, ca: ../testdata/ca.pem}}}
certificates: [{self_signed: {hosts: [file.example]}}]
routes:
  - {name: file, hosts: [file.example, "*.wild.file.example", "**.deep.file.example"], listeners: [web, websecure], paths: [/only], backend: own}
  - {name: partners, hosts: [in.partners.example], listeners: [websecure], tls_policy: partners, backend: own}
  - {name: upgrade, hosts: [secure.example], listeners: [web], redirect: {scheme: https}}
backends: {own: {endpoints: ["127.0.0.1:9000"]}}
kubernetes: {class: weir, publish: {addresses: [192.0.2.1]}, gateways: {addresses: {shared: [web, websecure]}}}
`

// sharedHostsConfig is such a configuration without client certificates. With sharedOwnedConfig, each host belongs to
// one namespace.
const sharedHostsConfig = `
listeners:
  web: {address: "127.0.0.1:80", protocol: http}
  websecure: {address: "127.0.0.1:443", protocol: tls}
certificates: [{self_signed: {hosts: [file.example]}}]
routes: [{name: file, hosts: [z.other], listeners: [websecure], backend: own}]
backends: {own: {endpoints: ["127.0.0.1:9000"]}}
kubernetes: {class: weir, host_ownership: shared, publish: {addresses: [192.0.2.1]}, gateways: {addresses: {shared: [web, websecure]}}}
`

// sharedIssuersConfig has an issuer for all namespaces, too.
var sharedIssuersConfig = strings.Replace(sharedOwnedConfig, "certificates: [", `certificates: [{acme: {directory: "https://127.0.0.1:14000/dir", storage: /var/lib/weir, issuer: {name: public, allow: [{namespaces: ["*"], hosts: ["**.example"]}]}}}, `, 1)

var sharedOwnedConfig = strings.Replace(sharedHostsConfig, "host_ownership: shared", "host_ownership: namespace", 1)

// gatewayConfigs are the configurations of files in testdata/gateways with other addresses.
var gatewayConfigs = map[string]string{
	"service.txt":       strings.Replace(gatewayConfig, "pool: [192.0.2.0/28]", "service: {replicas: weir/weir, ports: 20000-20003}", 1),
	"shared.txt":        sharedConfig,
	"sharedhosts.txt":   sharedHostsConfig,
	"sharedowned.txt":   sharedOwnedConfig,
	"sharedissuers.txt": sharedIssuersConfig,
	"listed.txt":        strings.Replace(gatewayConfig, "class: weir,", "class: weir, host_ownership: listed, hosts: [{namespaces: [team-a], hosts: ['*.a.example']}],", 1),
	"sharedlisted.txt":  strings.Replace(sharedHostsConfig, "host_ownership: shared,", "hosts: [{namespaces: [team-a], hosts: ['*.a.example']}],", 1),
	"clusterip.txt":     strings.Replace(gatewayConfig, "pool: [192.0.2.0/28]", "service: {type: ClusterIP, replicas: weir/weir}", 1),
}

// gatewayBase are the objects that every case has.
const gatewayBase = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: weir, generation: 3}
spec: {controllerName: weirproxy.github.io/gateway}
---
`

// TestGatewayGolden compares the conversion of objects of the Gateway API with the files in
// testdata/gateways. Each case has a name, manifests, and the result.
func TestGatewayGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/gateways/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for _, text := range strings.Split("\n"+string(data), "\n=== ")[1:] {
			title, rest, _ := strings.Cut(strings.Trim(text, "\n")+"\n", "\n")
			in, want, ok := strings.Cut(rest, "--- want\n")
			if !ok && !*update {
				t.Fatalf("%s: case %q has no line of --- want", name, title)
			}
			t.Run(filepath.Base(name)+"/"+title, func(t *testing.T) {
				got := convertGateways(t, cmp.Or(gatewayConfigs[filepath.Base(name)], gatewayConfig), in)
				fmt.Fprintf(&out, "=== %s\n%s--- want\n%s\n", title, in, got)
				if !*update && strings.TrimSpace(got) != strings.TrimSpace(want) {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
		if *update {
			if err := os.WriteFile(name, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// convertGateways shows the result for manifests.
func convertGateways(t testing.TB, text, manifests string) string {
	t.Helper()
	m := mustRead(t, gatewayBase+manifests)
	m.Gateway.Bundles = m.ConfigMaps
	for _, s := range slimAll(t, m.Slices) {
		if gateway.IsOwnSlice(s) {
			m.Gateway.Slices = append(m.Gateway.Slices, s)
		} else {
			m.Gateway.Replicas = append(m.Gateway.Replicas, s)
		}
	}
	if len(m.Gateway.Replicas) == 0 {
		m.Gateway.Replicas = []*discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: "weir", Name: "weir"}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}}
	}
	m.Services = slimAll(t, m.Services)
	m.TCP = nil
	c := Converter{File: mustParse(t, text)}
	r := c.Convert(&m.Objects)
	checkGateways(t, c.File, r)
	if again := c.Convert(&m.Objects); again != r || c.convertedGateways != len(m.Gateway.Gateways) && c.convertedGateways != len(r.Gateways.Status)-1 {
		t.Errorf("without a change, the result is another one, or %d Gateways were converted", c.convertedGateways)
	}
	reversed := *m.Gateway
	v := reflect.ValueOf(&reversed).Elem()
	for i := range v.NumField() {
		all := v.Field(i)
		all.Set(reflect.AppendSlice(reflect.Zero(all.Type()), all)) // a copy
		swap := reflect.Swapper(all.Interface())
		for n := range all.Len() / 2 {
			swap(n, all.Len()-1-n)
		}
	}
	o := m.Objects
	o.Gateway = &reversed
	other := Converter{File: c.File}
	got := showGateways(r)
	if again := showGateways(other.Convert(&o)); again != got {
		t.Errorf("in another order the objects become\n%s\nnot\n%s", again, got)
	}
	return got
}

// checkGateways checks properties that every conversion must have.
func checkGateways(t testing.TB, file *config.Config, r *Routing) {
	t.Helper()
	merged := r.Merge(file, nil)
	listeners, backends, policies := map[string]bool{}, map[string]*config.Backend{}, map[string]bool{}
	for _, l := range merged.Listeners {
		if listeners[l.Name] {
			t.Errorf("two listeners are called %s", l.Name)
		}
		listeners[l.Name] = true
		for _, other := range merged.Listeners {
			if other.Name != l.Name && config.Collide(l.Network, l.Address, other.Network, other.Address) {
				t.Errorf("the listeners %s and %s have one address, %s", l.Name, other.Name, l.Address)
			}
		}
	}
	for _, b := range merged.Backends {
		if backends[b.Name] != nil {
			t.Errorf("two backends are called %s", b.Name)
		}
		backends[b.Name] = b
	}
	for _, p := range merged.TLSPolicies {
		if policies[p.Name] {
			t.Errorf("two TLS policies are called %s", p.Name)
		}
		policies[p.Name] = true
	}
	if !slices.IsSortedFunc(r.Routes, func(a, b *config.Route) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the routes are not in order")
	}
	for _, route := range r.Routes {
		for _, name := range append(route.BackendNames(), mirrorsOf(route)...) {
			if backends[name] == nil {
				t.Errorf("the route %s names the backend %s, which does not exist", route.Name, name)
			}
		}
		if len(route.BackendNames()) == 0 && !route.Answers() && route.Closure == nil {
			t.Errorf("the route %s leads nowhere", route.Name)
		}
		if !policies[route.TLSPolicy] {
			t.Errorf("the route %s names the TLS policy %s, which does not exist", route.Name, route.TLSPolicy)
		}
		for _, name := range route.Listeners {
			if !listeners[name] {
				t.Errorf("the route %s names the listener %s, which does not exist", route.Name, name)
			}
		}
	}
}

func mirrorsOf(r *config.Route) (names []string) {
	for _, m := range r.Mirror {
		names = append(names, m.Backend)
	}
	return names
}

// showGateways writes a conversion, one item per line.
func showGateways(r *Routing) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	g := r.Gateways
	for _, l := range g.Listeners {
		line("listener %s: %s %s%s%s", l.Name, l.Protocol, l.Address, ifSet(" unknown hosts: ", l.UnknownPolicy), ifSet(" PROXY headers: ", l.HeaderPolicy))
	}
	for _, p := range g.Policies {
		from := ""
		if p.MinVersion == tls.VersionTLS13 {
			from = "TLS 1.3"
		}
		line("policy %s%s%s%s", p.Name, ifSet(" from ", from), ifSet(" clients: ", string(p.ClientAuth)), ifSet(" by ", p.ClientAuthCA))
	}
	for _, c := range g.Certificates {
		if a := c.ACME; a != nil {
			line("certificate by %s of %s: %s", a.Issuer.Name, a.Owner, strings.Join(a.Hosts, " "))
			continue
		}
		line("certificate %s of %s: %s", c.Pair.Name, c.Pair.Owner, strings.Join(c.Pair.Hosts, " "))
	}
	for _, one := range r.Routes {
		line("%s", showGatewayRoute(one))
	}
	for i := range r.Auth {
		line("auth %s", setFields(reflect.ValueOf(&r.Auth[i])))
	}
	for _, backend := range r.Backends {
		what := string(backend.Protocol)
		if backend.Missing {
			what += " missing"
		}
		if backend.Closed {
			what += " closed"
		}
		if backend.SendProxy > 0 {
			what += fmt.Sprintf(" PROXY v%d", backend.SendProxy)
		}
		if backend.UsesTLS() {
			what += " TLS " + setFields(reflect.ValueOf(backend.TLS))
		}
		line("backend %s: %s", backend.Name, what)
	}
	for _, s := range g.Status {
		showStatus(line, s)
	}
	for _, e := range r.Events {
		line("event %s %s/%s %s: %s", e.Object.Kind, e.Object.Namespace, e.Object.Name, e.Reason, e.Message)
	}
	return b.String()
}

func ifSet(label, text string) string {
	if text == "" {
		return ""
	}
	return label + text
}

func showGatewayRoute(r *config.Route) string {
	one := *r
	where := fmt.Sprintf("%s %s on %s", strings.Join(hostsOf(r), " "), r.Paths, strings.Join(r.Listeners, "+"))
	if r.Match != nil {
		where += fmt.Sprintf(" match %v %v %v", r.Match.Methods, r.Match.Headers, r.Match.Query)
	}
	if r.TLSPolicy != config.DefaultTLSPolicy {
		where += " policy " + r.TLSPolicy
	}
	if r.TLS != config.TLSTerminate {
		where += " " + string(r.TLS)
	}
	to := r.Backend
	for _, w := range r.Backends {
		to += fmt.Sprintf(" %d×%s", w.Weight, w.Name)
		if w.Request != nil {
			to += setFields(reflect.ValueOf(w.Request))
		}
	}
	if r.Closure != nil {
		to += fmt.Sprintf("%d %s", r.Closure.Status, r.Closure.Reason)
	}
	var more []string
	v := reflect.ValueOf(one)
	for _, name := range []string{"Redirect", "Rewrite", "Request", "Response", "CORS", "Mirror", "Timeouts", "Retries", "Sticky", "Auth", "FirstBytes"} {
		if f := v.FieldByName(name); !f.IsZero() {
			more = append(more, name+" "+setFields(f))
		}
	}
	return strings.TrimSpace(fmt.Sprintf("route %s: %s -> %s %s", r.Name, where, strings.TrimSpace(to), strings.Join(more, " ")))
}

// setFields writes the fields of a value that are set.
func setFields(v reflect.Value) string {
	v = reflect.Indirect(v)
	var parts []string
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				parts = append(parts, v.Type().Field(i).Name+": "+setFields(f))
			}
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return "(bytes)"
		}
		for i := range v.Len() {
			parts = append(parts, setFields(v.Index(i)))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if strings.Contains(fmt.Sprint(v.Interface()), "PRIVATE KEY") {
		return "(key)"
	}
	return fmt.Sprint(v.Interface())
}

func showStatus(line func(string, ...any), s *gateway.Status) {
	for _, c := range s.Classes {
		line("class %s: %s, %d features", c.Name, showConditions(c.Conditions), len(c.SupportedFeatures))
	}
	for _, g := range s.Gateways {
		var addresses []string
		for _, a := range g.Addresses {
			addresses = append(addresses, a.Value)
		}
		line("gateway %s: %s %s", g.ObjectName, strings.Join(addresses, " "), showConditions(g.Conditions))
		for _, l := range g.Listeners {
			var kinds []string
			for _, k := range l.SupportedKinds {
				kinds = append(kinds, string(k.Kind))
			}
			line("  listener %s: %d routes %v %s", l.Name, l.AttachedRoutes, kinds, showConditions(l.Conditions))
		}
	}
	for _, set := range s.Sets {
		line("set %s: %s", set.ObjectName, showConditions(set.Conditions))
		for _, l := range set.Listeners {
			line("  listener %s: %d routes %s", l.Name, l.AttachedRoutes, showConditions(l.Conditions))
		}
	}
	if one := s.Service; one != nil && one.Behind != nil {
		text := ""
		for _, p := range one.Ports {
			text += fmt.Sprintf(" %d>%d", p.Port, p.Pod)
		}
		line("service %s/%s: %s%s%s %v", one.Namespace, one.Name, one.Behind.Type, ifSet(" asks for ", one.Behind.Requested), text, one.Annotations)
	}
	for _, p := range s.Parents {
		section := ""
		if p.ParentRef.SectionName != nil {
			section = "#" + string(*p.ParentRef.SectionName)
		}
		line("%s %s at %d %s%s: %s", p.Kind, p.ObjectName, p.Index, p.ParentRef.Name, section, showConditions(p.Conditions))
	}
	for _, a := range s.Ancestors {
		line("policy %s at %s/%s: %s", a.ObjectName, *a.AncestorRef.Namespace, a.AncestorRef.Name, showConditions(a.Conditions))
	}
}

// showConditions names each condition, with its reason unless it is the usual one. Messages are
// shown only for what is wrong.
func showConditions(all []metav1.Condition) string {
	var parts []string
	for _, c := range all {
		good := c.Status == metav1.ConditionTrue && c.Type != "Conflicted" && c.Type != "PartiallyInvalid" && c.Type != gateway.ConditionHostContested || c.Type == "Conflicted" && c.Status == metav1.ConditionFalse
		switch {
		case good && c.Reason == c.Type && strings.Count(c.Message, ".") > 1: // it says more than usual
			parts = append(parts, fmt.Sprintf("%s (%s)", c.Type, c.Message))
		case good && (c.Reason == c.Type || c.Type == "Conflicted"):
			if c.Type != "Conflicted" {
				parts = append(parts, c.Type)
			}
		default:
			parts = append(parts, fmt.Sprintf("%s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message))
		}
		if c.ObservedGeneration == 0 && c.Type != "" {
			continue
		}
	}
	return strings.Join(parts, ", ")
}
