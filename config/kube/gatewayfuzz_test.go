package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// gatewayDice makes objects of the Gateway API from bytes. All names come from small sets, so that objects
// often refer to each other, collide, or refer to nothing.
type gatewayDice struct{ rest []byte }

func (d *gatewayDice) roll(n int) int {
	if len(d.rest) == 0 {
		return 0
	}
	v := int(d.rest[0])
	d.rest = d.rest[1:]
	return v % n
}

func (d *gatewayDice) one(all ...string) string { return all[d.roll(len(all))] }

func (d *gatewayDice) meta(names ...string) string {
	return fmt.Sprintf("metadata: {name: %s, namespace: %s, creationTimestamp: '2026-01-0%dT00:00:00Z'}", d.one(names...), d.one("a", "b"), 1+d.roll(4))
}

func (d *gatewayDice) namespace() string {
	return d.one("", "", ", namespace: a", ", namespace: b", ", namespace: none")
}

func (d *gatewayDice) hostname() string {
	return d.one("", "hostname: x.example, ", "hostname: '*.example', ", "hostname: y.x.example, ")
}

func (d *gatewayDice) listener(name string) string {
	text := fmt.Sprintf("{name: %s, port: %s, %s", name, d.one("80", "443", "81"), d.hostname())
	text += d.one("protocol: HTTP", "protocol: HTTPS, tls: {certificateRefs: [{name: c"+d.namespace()+"}]}", "protocol: TLS, tls: {mode: Passthrough}",
		"protocol: TLS, tls: {certificateRefs: [{name: c}, {name: d"+d.namespace()+"}]}", "protocol: TCP", "protocol: UDP", "protocol: HTTPS, tls: {options: {weirproxy.github.io/issuer: public}}")
	return text + d.one("", ", allowedRoutes: {namespaces: {from: All}}", ", allowedRoutes: {namespaces: {from: None}}", ", allowedRoutes: {kinds: [{kind: GRPCRoute}]}") + "}"
}

func (d *gatewayDice) parents() string {
	text := "parentRefs: [{name: " + d.one("g", "h", "h") + d.namespace() + d.one("", ", sectionName: l1", ", port: 80", ", sectionName: l1, port: 443") + "}"
	return text + d.one("", ", {kind: ListenerSet, name: s}", ", {name: h}") + "]"
}

func (d *gatewayDice) backends() string {
	ref := func() string {
		return "{name: " + d.one("svc", "gone") + d.namespace() + ", port: " + d.one("80", "99") + "}"
	}
	return d.one("", "backendRefs: ["+ref()+"]", "backendRefs: ["+ref()+", "+ref()+"]")
}

func (d *gatewayDice) object() string {
	const head = "{apiVersion: gateway.networking.k8s.io/v1, kind: "
	hostnames := d.one("", "hostnames: [x.example], ", "hostnames: ['*.example', y.x.example], ", "hostnames: [z.other], ")
	switch d.roll(12) {
	case 0:
		addresses := d.one("", "addresses: [{value: 192.0.2.3}], ", "addresses: [{value: 192.0.2.3}, {value: 192.0.2.4}], ", "addresses: [{type: Hostname, value: a.example}], ", "addresses: [{value: '::1'}], ")
		return head + "Gateway, " + d.meta("g", "i") + ", spec: {gatewayClassName: " + d.one("weir", "weir", "weir", "else") + ", " + addresses +
			d.one("", "allowedListeners: {namespaces: {from: All}}, ", "tls: {frontend: {default: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}}}, ") +
			"listeners: [" + d.listener("l1") + ", " + d.listener(d.one("l2", "l1")) + "]}}"
	case 1:
		return head + "ListenerSet, " + d.meta("s") + ", spec: {parentRef: {name: " + d.one("g", "h") + d.namespace() + "}, listeners: [" + d.listener("l1") + "]}}"
	case 2, 3:
		matches := d.one("", "matches: [{path: {value: /p}}], ", "matches: [{path: {type: Exact, value: /p}}, {method: GET}], ", "matches: [{headers: [{name: a, value: b}]}, {path: {type: RegularExpression, value: '['}}], ")
		filters := d.one("", "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: svc"+d.namespace()+", port: 80}}}], ", "filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}], ", "filters: [{type: ExtensionRef}], ",
			"filters: [{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: svc"+d.namespace()+", port: 80}}}], ")
		return head + "HTTPRoute, " + d.meta("r", "q") + ", spec: {" + d.parents() + ", " + hostnames + "rules: [{" + matches + filters + d.backends() + "}]}}"
	case 4:
		return head + "GRPCRoute, " + d.meta("r") + ", spec: {" + d.parents() + ", " + hostnames + "rules: [{" + d.one("", "matches: [{method: {service: s}}], ") + d.backends() + "}]}}"
	case 5:
		return head + "TLSRoute, " + d.meta("r") + ", spec: {" + d.parents() + ", " + hostnames + "rules: [{" + d.backends() + "}]}}"
	case 6:
		return head + "TCPRoute, " + d.meta("r", "q") + ", spec: {" + d.parents() + ", rules: [{" + d.backends() + "}]}}"
	case 7:
		return head + "ReferenceGrant, " + d.meta("g") + ", spec: {from: [{group: gateway.networking.k8s.io, kind: " + d.one("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "Gateway", "Gateway", "ListenerSet") + ", namespace: " + d.one("a", "b") +
			"}], to: [{group: '', kind: " + d.one("Service", "Secret") + d.one("", ", name: svc", ", name: c") + "}]}}"
	case 10, 11:
		return "{apiVersion: v1, kind: Secret, " + d.meta("c", "d") + ", " + d.one("stringData: {names: 'x.example *.example'}", "stringData: {names: y.x.example}", "stringData: {tls.crt: none}") + "}"
	case 8:
		return "{apiVersion: networking.k8s.io/v1, kind: Ingress, " + strings.Replace(d.meta("i", "j"), "}", d.one("", "", ", annotations: {nginx.ingress.kubernetes.io/server-alias: 'x.example, *.example, z.other'}", ", annotations: {nginx.ingress.kubernetes.io/server-alias: 'a.example, y.x.example', nginx.ingress.kubernetes.io/from-to-www-redirect: 'true'}")+"}", 1) + ", spec: {ingressClassName: weir, rules: [{host: " + d.one("x.example", "'*.example'", "y.x.example") +
			", http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: svc, port: {number: 80}}}}]}}]}}"
	}
	return head + "BackendTLSPolicy, " + d.meta("p", "o") + ", spec: {targetRefs: [{group: '', kind: Service, name: svc}], validation: {hostname: x.example, " +
		d.one("wellKnownCACertificates: System", "caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]") + "}}}"
}

// openGateway is a Gateway that every case has, once in each namespace.
const openGateway = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: h, namespace: NAMESPACE}
spec:
  gatewayClassName: weir
  listeners:
  - {name: l1, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - {name: l2, port: 443, protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}}
  - {name: l3, port: 81, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}`

// FuzzGateways: no set of objects breaks the conversion. The result does not depend on their order. No route
// leads to another namespace without a grant, and no listener has a Secret of another namespace without one. No
// Gateway gets the address of an older one, no object gets the host of an older one of another kind and
// namespace, no listener orders the certificate of such a host, and no route takes requests or connections from an
// older one. No annotation of an Ingress moves a host to another namespace. On shared listeners, each host belongs to the file, to Ingresses or to one Gateway. In the mode service,
// no port of the Pods belongs to two Gateways.
func FuzzGateways(f *testing.F) {
	for i := range 100 {
		seed := make([]byte, 300)
		for n := range seed {
			seed[n] = byte((n*n*7 + 31*n*(i+1) + i*i*3) % 251)
		}
		f.Add(seed)
	}
	text := strings.Replace(gatewayConfig, `"**.all.example"`, `"**.example"`, 1)
	f.Fuzz(func(t *testing.T, seed []byte) {
		d := gatewayDice{seed}
		var all []string
		known := map[string]bool{}
		for range 12 {
			if len(d.rest) == 0 {
				break
			}
			text := d.object()
			kind, rest, _ := strings.Cut(strings.SplitN(text, "kind: ", 2)[1], ",")
			name, _, _ := strings.Cut(rest, ", creationTimestamp")
			if !known[kind+name] { // an API server has only one of them
				known[kind+name] = true
				all = append(all, text)
			}
		}
		for _, namespace := range []string{"a", "b"} {
			all = append(all, strings.ReplaceAll(openGateway, "NAMESPACE", namespace))
			all = append(all, "{apiVersion: v1, kind: Service, metadata: {name: svc, namespace: "+namespace+"}, spec: {ports: [{port: 80}]}}")
		}
		manifests := strings.Join(all, "\n---\n")
		convertGateways(t, text, manifests)
		m := mustRead(t, gatewayBase+manifests)
		c := Converter{File: mustParse(t, text)}
		r := c.Convert(&m.Objects)
		checkGrants(t, m, r)
		checkAddresses(t, m, r)
		checkHosts(t, m, r)
		checkSecrets(t, m, r)
		checkOrders(t, m, r)
		checkAges(t, m, r)
		checkAliases(t, c.File, &m.Objects)
		for _, text := range []string{sharedHostsConfig, sharedConfig, sharedOwnedConfig} {
			convertGateways(t, text, manifests)
			c := Converter{File: mustParse(t, text)}
			r := c.Convert(&m.Objects)
			checkGrants(t, m, r)
			checkSecrets(t, m, r)
			checkShared(t, m, &c, r)
			checkAliases(t, c.File, &m.Objects)
		}
		checkService(t, manifests+d.slices())
		if t.Failed() {
			t.Log(manifests)
		}
	})
}

// slices returns EndpointSlices of Gateways, and of former ones of the same names, with ports of Pods.
func (d *gatewayDice) slices() (text string) {
	for i := range d.roll(4) {
		text += fmt.Sprintf("\n---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s%d, namespace: %s, labels: {endpointslice.kubernetes.io/managed-by: gateway.weirproxy.github.io}, "+
			"ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: %s, uid: %s}]}, addressType: IPv4, endpoints: [], ports: [{name: port-%s, port: %s}, {name: port-%s, port: %s}]}",
			i, d.one("a", "b"), d.one("g", "h", "h"), d.one("''", "''", "former"), d.one("80", "81"), d.one("20000", "20001", "20009"), d.one("443", "80"), d.one("20001", "20002"))
	}
	return text
}

// checkService converts objects in the mode service. No port of the Pods belongs to two ports of Gateways, and weir
// listens only on ports that EndpointSlices have. A second conversion keeps all ports, also if no leader has written
// them.
func checkService(t *testing.T, manifests string) {
	t.Helper()
	text := gatewayConfigs["service.txt"]
	convertGateways(t, text, manifests)
	m := mustRead(t, gatewayBase+manifests)
	m.Gateway.Slices = slimAll(t, m.Slices)
	written := map[string]bool{}
	for _, s := range m.Gateway.Slices {
		for i := range s.Ports {
			written[fmt.Sprintf("%s/%s/%s :%d", s.Namespace, s.OwnerReferences[0].Name, strings.TrimPrefix(*s.Ports[i].Name, "port-"), *s.Ports[i].Port)] = s.OwnerReferences[0].UID == ""
		}
	}
	c := Converter{File: mustParse(t, text)}
	r := c.Convert(&m.Objects)
	checkGrants(t, m, r)
	checkSecrets(t, m, r)
	wants := c.wantedPorts(t)
	for _, l := range r.AllListeners() {
		if at := strings.TrimPrefix(l.Name, "gateway/") + " " + l.Address; !written[at] {
			t.Errorf("weir listens on %s, which no EndpointSlice has", at)
		}
	}
	c.File = mustParse(t, text)
	c.Convert(&m.Objects)
	if now := c.wantedPorts(t); !maps.Equal(now, wants) {
		t.Errorf("the ports were %v, and are %v", wants, now)
	}
}

// wantedPorts returns the port of the Pods of each port of the Gateways.
func (c *Converter) wantedPorts(t *testing.T) map[string]int32 {
	t.Helper()
	all, owner := map[string]int32{}, map[int32]string{}
	for name, p := range c.known.gateways.parts {
		for port, own := range p.gateway.assigned.Behind.Wants {
			at := fmt.Sprint(name, "/", port)
			if other := owner[own]; other != "" || own < 20000 || own > 20003 {
				t.Errorf("%s and %s have the port %d", other, at, own)
			}
			all[at], owner[own] = own, at
		}
	}
	return all
}

// checkGrants checks that each route to another namespace has a grant.
func checkGrants(t *testing.T, m *Manifests, r *Routing) {
	t.Helper()
	for _, route := range r.Routes {
		kind, _, _ := strings.Cut(route.Name, "/")
		for _, name := range slices.Concat(route.BackendNames(), mirrorsOf(route), serverOf(r, route)) {
			namespace, _, _ := strings.Cut(name, "/")
			if namespace != route.Namespace && !granted(m.Gateway.Grants, kind, route.Namespace, "Service", namespace+"/svc") {
				t.Errorf("the route %s leads to %s without a grant", route.Name, name)
			}
		}
	}
}

// serverOf is the backend that decides about the requests of a route, if there is one.
func serverOf(r *Routing, route *config.Route) (names []string) {
	for i := range r.Auth {
		if r.Auth[i].Name == route.Auth {
			names = append(names, r.Auth[i].External.Backend)
		}
	}
	return names
}

// granted reports whether objects of a kind and namespace may refer to an object.
func granted(all []*gatewayv1.ReferenceGrant, kind, from, toKind, to string) bool {
	namespace, name, _ := strings.Cut(to, "/")
	for _, g := range all {
		f, t := &g.Spec.From[0], &g.Spec.To[0]
		if g.Namespace == namespace && strings.EqualFold(string(f.Kind), kind) && string(f.Namespace) == from && string(t.Kind) == toKind && (t.Name == nil || string(*t.Name) == name) {
			return true
		}
	}
	return false
}

// checkSecrets checks that each listener has only Secrets of its own namespace, or with a grant; and that a
// grant is enough.
func checkSecrets(t *testing.T, m *Manifests, r *Routing) {
	t.Helper()
	for i := range r.Gateways.Certificates {
		p := r.Gateways.Certificates[i].Pair
		if p == nil {
			continue
		}
		kind, owner := "Gateway", strings.Split(strings.TrimPrefix(p.Owner, "gateway/"), "/")
		if len(owner) == 5 {
			kind, owner = "ListenerSet", owner[2:]
		}
		if namespace, _, _ := strings.Cut(p.Name, "/"); namespace != owner[0] && !granted(m.Gateway.Grants, kind, owner[0], "Secret", p.Name) {
			t.Errorf("a listener of the %s %s/%s has the Secret %s without a grant", kind, owner[0], owner[1], p.Name)
		}
	}
	specs := map[config.ObjectName][]gatewayv1.Listener{}
	for _, g := range m.Gateway.Gateways {
		specs[gateway.NameOf(g)] = g.Spec.Listeners
	}
	for _, s := range r.Gateways.Status {
		for i := range s.Gateways {
			g := &s.Gateways[i]
			for n := range g.Listeners {
				refused := slices.ContainsFunc(g.Listeners[n].Conditions, func(c metav1.Condition) bool { return c.Reason == string(gatewayv1.ListenerReasonRefNotPermitted) })
				spec := specs[g.ObjectName][n]
				if refused && spec.TLS != nil && !slices.ContainsFunc(spec.TLS.CertificateRefs, func(ref gatewayv1.SecretObjectReference) bool {
					return ref.Namespace != nil && string(*ref.Namespace) != g.Namespace && !granted(m.Gateway.Grants, "Gateway", g.Namespace, "Secret", string(*ref.Namespace)+"/"+string(ref.Name))
				}) {
					t.Errorf("the listener %s of %s may not use its Secrets, though there is a grant", spec.Name, g.ObjectName)
				}
			}
		}
	}
}

// checkOrders checks that the listeners that order the certificate of a host have one namespace, and that no Ingress of
// another namespace with the host is older than all of them.
func checkOrders(t *testing.T, m *Manifests, r *Routing) {
	t.Helper()
	created := map[string]int64{}
	for _, o := range m.Gateway.Gateways {
		created["Gateway "+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	for _, o := range m.Gateway.Sets {
		created["ListenerSet "+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	oldest := map[string]namer{}
	for i := range r.Gateways.Certificates {
		a := r.Gateways.Certificates[i].ACME
		if a == nil {
			continue
		}
		by, owner := namer{kind: gateway.KindGateway}, strings.Split(strings.TrimPrefix(a.Owner, "gateway/"), "/")
		if len(owner) == 5 {
			by.kind, owner = gateway.KindListenerSet, owner[2:]
		}
		by.name = config.ObjectName{Namespace: owner[0], Name: owner[1]}
		by.created = created[by.String()]
		other, some := oldest[a.Hosts[0]]
		if some && other.name.Namespace != by.name.Namespace {
			t.Errorf("the %v and the %v both order the certificate of %s", other, by, a.Hosts[0])
		}
		if !some || by.compare(other) < 0 {
			oldest[a.Hosts[0]] = by
		}
	}
	for _, o := range m.Ingresses {
		n := namer{kind: ingressKind.Name, name: gateway.NameOf(o), created: o.CreationTimestamp.Unix()}
		if by, some := oldest[o.Spec.Rules[0].Host]; some && by.name.Namespace != n.name.Namespace && n.compare(by) < 0 {
			t.Errorf("the %v orders the certificate of %s, which the older %v has", by, o.Spec.Rules[0].Host, n)
		}
	}
}

// checkAges checks that among routes the older one is first: HTTPRoutes and GRPCRoutes by their order for equal
// matches, and TCPRoutes because only the oldest has a port.
func checkAges(t *testing.T, m *Manifests, r *Routing) {
	t.Helper()
	created := map[string]int64{}
	for _, o := range m.Gateway.HTTP {
		created["httproute/"+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	for _, o := range m.Gateway.GRPC {
		created["grpcroute/"+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	for _, o := range m.Gateway.TCP {
		created["tcproute/"+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	served := map[string]string{} // by listener: the TCPRoute that has its connections
	for _, route := range r.Routes {
		parts := strings.SplitN(route.Name, "/", 4)
		if len(parts) < 4 {
			continue
		}
		kind, object := parts[0], parts[1]+"/"+parts[2]
		age, known := created[kind+"/"+object]
		switch {
		case !known:
		case kind == "tcproute":
			for _, l := range route.Listeners {
				if served[l] != "" {
					t.Errorf("%s and %s both have the connections of %s", served[l], object, l)
				}
				served[l] = object
			}
		case route.Order == nil || route.Order.Created != age || route.Order.Object != object:
			t.Errorf("the order of the route %s of %d is %+v", route.Name, age, route.Order)
		}
	}
	for _, s := range r.Gateways.Status {
		for i := range s.Parents {
			p := &s.Parents[i]
			if p.Kind != gateway.KindTCPRoute || p.ParentRef.Name != "h" || p.ParentRef.Kind != nil && *p.ParentRef.Kind != gateway.KindGateway ||
				!slices.ContainsFunc(p.Conditions, func(c metav1.Condition) bool { return c.Type == "Accepted" && c.Status == metav1.ConditionTrue }) {
				continue
			}
			namespace := p.Namespace
			if p.ParentRef.Namespace != nil {
				namespace = string(*p.ParentRef.Namespace)
			}
			mine, has := p.ObjectName.String(), ""
			for l, object := range served {
				if strings.HasPrefix(l, "gateway/"+namespace+"/h/81") {
					has = object
				}
			}
			if a, b := created["tcproute/"+mine], created["tcproute/"+has]; has != mine && (has == "" || a < b || a == b && mine < has) {
				t.Errorf("the TCPRoute %s has no connections of the Gateway %s/h, and the younger %q has them", mine, namespace, has)
			}
		}
	}
}

// checkAddresses checks that no address belongs to two Gateways, and that the oldest one that asks for an
// address has it.
func checkAddresses(t *testing.T, m *Manifests, r *Routing) {
	t.Helper()
	owner := map[string]config.ObjectName{}
	for _, s := range r.Gateways.Status {
		for i := range s.Gateways {
			for _, a := range s.Gateways[i].Addresses {
				if other, taken := owner[a.Value]; taken {
					t.Errorf("%s and %s have the address %s", other, s.Gateways[i].ObjectName, a.Value)
				}
				owner[a.Value] = s.Gateways[i].ObjectName
			}
		}
	}
	byName := map[config.ObjectName]*gatewayv1.Gateway{}
	for _, g := range m.Gateway.Gateways {
		byName[gateway.NameOf(g)] = g
	}
	for _, g := range m.Gateway.Gateways {
		for i := range g.Spec.Addresses {
			asked := g.Spec.Addresses[i]
			holder := byName[owner[asked.Value]]
			if asked.Type == nil && g.Spec.GatewayClassName == "weir" && holder != nil && holder != g && g.CreationTimestamp.Before(&holder.CreationTimestamp) {
				t.Errorf("%s has the address %s, for which the older Gateway %s asks", gateway.NameOf(holder), asked.Value, gateway.NameOf(g))
			}
		}
	}
}

// checkHosts checks that the oldest object with a host owns it, and that all objects of the other kind
// with this host are in its namespace.
func checkHosts(t *testing.T, m *Manifests, r *Routing) {
	t.Helper()
	created := map[string]int64{}
	for _, o := range m.Gateway.HTTP {
		created[namerOf(&gateway.Route{Kind: gateway.KindHTTPRoute, Name: gateway.NameOf(o), Meta: &o.ObjectMeta}).String()] = o.CreationTimestamp.Unix()
	}
	for _, o := range m.Gateway.GRPC {
		created["GRPCRoute "+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	for _, o := range m.Gateway.TLS {
		created["TLSRoute "+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	for _, o := range m.Ingresses {
		created["Ingress "+gateway.NameOf(o).String()] = o.CreationTimestamp.Unix()
	}
	served := map[string][]namer{}
	for _, route := range r.Routes {
		parts := strings.Split(route.Name, "/")
		n := namer{kind: "Ingress", name: config.ObjectName{Namespace: parts[0], Name: parts[1]}}
		for _, kind := range []string{gateway.KindHTTPRoute, gateway.KindGRPCRoute, gateway.KindTLSRoute} {
			if strings.EqualFold(parts[0], kind) {
				n = namer{kind: kind, name: config.ObjectName{Namespace: parts[1], Name: parts[2]}}
			}
		}
		age, known := created[n.String()]
		if n.created = age; !known {
			continue // an answer for hosts that no route has
		}
		for _, host := range route.Hosts {
			host = strings.Replace(host, "**.", "*.", 1)
			served[host] = append(served[host], n)
		}
	}
	for host, all := range served {
		owner := slices.MinFunc(all, namer.compare)
		for _, n := range all {
			if n.isIngress() != owner.isIngress() && n.name.Namespace != owner.name.Namespace {
				t.Errorf("the %v has the host %s of the older %v", n, host, owner)
			}
		}
	}
	for _, o := range m.Ingresses { // the oldest object is served
		host, mine := o.Spec.Rules[0].Host, namer{kind: ingressKind.Name, name: gateway.NameOf(o), created: o.CreationTimestamp.Unix()}
		if !slices.ContainsFunc(served[host], func(n namer) bool { return n.compare(mine) <= 0 }) {
			t.Errorf("the %v, the oldest object with the host %s, does not have it", mine, host)
		}
	}
}

// checkShared checks that Gateways open no listener, that each host of a shared listener belongs to the file, to
// Ingresses or to one Gateway, and that nothing is taken from the file, from Ingresses without a host, or from an
// Ingress that is older than all routes.
func checkShared(t *testing.T, m *Manifests, c *Converter, r *Routing) {
	t.Helper()
	if len(r.AllListeners()) > 0 {
		t.Errorf("the objects have the listeners %v", r.AllListeners())
	}
	unit := map[*config.Route]string{} // the Gateway of each route
	for name, p := range c.known.gateways.parts {
		for _, route := range p.routes {
			unit[route] = "the Gateway " + name.String()
		}
	}
	owners := map[hostOn]string{}
	for _, route := range r.Routes {
		of := unit[route]
		if of == "" {
			of = "Ingresses"
		}
		for _, l := range route.Listeners {
			for _, host := range hostsOf(route) {
				on := hostOn{l, host}
				if owner := owners[on]; owner != "" && owner != of {
					t.Errorf("%s and %s both have %q on %s", owner, of, host, l)
				}
				owners[on] = of
				if of != "Ingresses" && (c.known.seen.hosts[on] || host == "" && l == "websecure" || c.known.fileProtection(host).below) {
					t.Errorf("%s has %q on %s, which belongs to the file", of, host, l)
				}
			}
		}
	}
	oldest := int64(1<<63 - 1)
	for _, o := range m.Gateway.HTTP {
		oldest = min(oldest, o.CreationTimestamp.Unix())
	}
	for _, o := range m.Gateway.GRPC {
		oldest = min(oldest, o.CreationTimestamp.Unix())
	}
	for _, o := range m.Gateway.TLS {
		oldest = min(oldest, o.CreationTimestamp.Unix())
	}
	for _, o := range m.Ingresses {
		host := o.Spec.Rules[0].Host
		if o.CreationTimestamp.Unix() < oldest && owners[hostOn{"web", host}] != "Ingresses" {
			t.Errorf("%q has the host %s of the older Ingress %s", owners[hostOn{"web", host}], host, o.Name)
		}
	}
}
