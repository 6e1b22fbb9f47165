package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Kubernetes selects the objects of a cluster that weir serves in addition to the file.
type Kubernetes struct {
	Position Position
	// Kubeconfig is a file with the settings for the API server; empty: the service
	// account of the Pod.
	Kubeconfig string
	// Class is the name of the only IngressClass that weir serves; empty: all that name
	// Controller.
	Class string
	// Controller is the value of spec.controller of the IngressClasses that weir serves.
	// Never empty.
	Controller string
	// Namespaces are the only namespaces that weir reads. NamespaceLabels are the labels
	// that a namespace must have. At most one of both is set. Empty: all namespaces.
	Namespaces      []string
	NamespaceLabels []Label
	// Listeners serve Ingresses; never empty after Load.
	Listeners []string
	// DefaultCertificate is the Secret for hosts without their own Secret; empty: the
	// file's first entry.
	DefaultCertificate ObjectName
	// HTTPSRedirect redirects requests without TLS to https if an Ingress has TLS for the
	// host.
	HTTPSRedirect bool
	// PreferLocal prefers endpoints on the same node, then endpoints in the same zone. It
	// applies to every backend whose object does not set the preference itself.
	PreferLocal bool
	// RequireLocal are the Services that need a ready endpoint on this node.
	RequireLocal []ObjectName
	// HostOwnership decides whether Ingresses of several namespaces may share a host.
	HostOwnership HostOwnership
	// OperatorNamespaces are the namespaces whose annotations may decide whether a node
	// is healthy; AllNamespaces in the list means all of them. Empty: the file has no
	// list, and all namespaces may.
	OperatorNamespaces []string
	TCP                *KubernetesTCP // nil: weir reads no ConfigMap
	Publish            Publish
	// Metrics limits the time series for the objects of one namespace.
	Metrics ObjectMetrics
	// Lease is the Lease by which replicas agree which of them writes to the cluster.
	// Empty: a Lease in weir's own namespace; its name depends on Class and the selection
	// of namespaces.
	Lease ObjectName
}

// HostOwnership decides who owns a host that Ingresses of several namespaces name.
type HostOwnership string

const (
	// OwnedByNamespace gives the whole host to the namespace of the oldest Ingress that
	// names it.
	OwnedByNamespace HostOwnership = "namespace"
	// SharedHosts gives each path of a host to the oldest Ingress that has both, in any
	// namespace.
	SharedHosts HostOwnership = "shared"
)

// AllNamespaces in a list means every namespace.
const AllNamespaces = "*"

// IsOperator returns true if annotations of the namespace may decide whether a node is
// healthy.
func (k *Kubernetes) IsOperator(namespace string) bool {
	return k.OperatorNamespaces == nil || slices.Contains(k.OperatorNamespaces, AllNamespaces) || slices.Contains(k.OperatorNamespaces, namespace)
}

// ObjectMetrics limits how many routes, backends, endpoints and certificate names of one namespace have time
// series of their own. The others share one, or are only counted. Each is at least 1.
type ObjectMetrics struct {
	Routes, Backends, Endpoints, CertificateNames int
}

// DefaultObjectMetrics are the limits if the file has none.
var DefaultObjectMetrics = ObjectMetrics{Routes: 200, Backends: 200, Endpoints: 2000, CertificateNames: 200}

// DefaultController is the spec.controller of IngressClasses that weir serves by default.
const DefaultController = "weirproxy.github.io/ingress"

// Label is a label and its value.
type Label struct{ Key, Value string }

func (l Label) String() string { return l.Key + "=" + l.Value }

// ObjectName names an object within its namespace.
type ObjectName struct{ Namespace, Name string }

func (o ObjectName) String() string {
	if o == (ObjectName{}) {
		return ""
	}
	return o.Namespace + "/" + o.Name
}

// KubernetesTCP is raw TCP in the format of ingress-nginx: a ConfigMap of ports.
type KubernetesTCP struct {
	ConfigMap ObjectName
	// HeaderPolicy names the policy for PROXY headers on ports with the suffix PROXY;
	// empty: the policy of the listeners that serve Ingresses.
	HeaderPolicy string
}

// Publish sets which addresses weir writes to the status of an Ingress. At most one is
// set; none: weir does not change the status.
type Publish struct {
	Balancer  ObjectName // the Service whose addresses weir publishes
	Addresses []string   // IP addresses and names
	Nodes     string     // "internal" or "external": the addresses of the nodes on which weir runs
	// Keep leaves the addresses in the statuses when the last replica ends.
	Keep bool
}

// Any reports whether weir publishes addresses.
func (p Publish) Any() bool {
	return p.Balancer != (ObjectName{}) || len(p.Addresses) > 0 || p.Nodes != ""
}

func (v *draft) kubernetesSource(n *yaml.Node, p path) {
	k := &Kubernetes{Position: v.at(n), Controller: DefaultController, HTTPSRedirect: true, HostOwnership: SharedHosts, Metrics: DefaultObjectMetrics}
	v.kubernetes = k
	v.mark(k, n, p)
	v.section(n, p, []field{
		{"kubeconfig", v.text(&k.Kubeconfig)},
		{"class", parsed(v.decoder, &k.Class, "the name of an IngressClass", parseSubdomain)},
		{"controller", parsed(v.decoder, &k.Controller, "the name of a controller", parseController)},
		{"namespaces", list(v.decoder, &k.Namespaces, v.namespace)},
		{"namespace_labels", list(v.decoder, &k.NamespaceLabels, v.label)},
		{"listeners", v.texts(&k.Listeners)},
		{"default_certificate", v.objectName(&k.DefaultCertificate)},
		{"https_redirect", v.truth(&k.HTTPSRedirect)},
		{"prefer_local", v.truth(&k.PreferLocal)},
		{"require_local", list(v.decoder, &k.RequireLocal, v.objectName)},
		{"host_ownership", choice(v.decoder, &k.HostOwnership, OwnedByNamespace, SharedHosts)},
		{"operator_namespaces", v.operatorNamespaces(&k.OperatorNamespaces)},
		{"tcp", func(n *yaml.Node, p path) {
			k.TCP = &KubernetesTCP{}
			v.mark(k.TCP, n, p)
			there := v.section(n, p, []field{
				{"config_map", v.objectName(&k.TCP.ConfigMap)},
				{"proxy_protocol", v.headerPolicyName(&k.TCP.HeaderPolicy)},
			}...)
			v.require(there, n, p, "config_map", "ingress-nginx/tcp-services")
		}},
		{"publish", v.publish(&k.Publish)},
		{"metrics", func(n *yaml.Node, p path) {
			v.section(n, p, []field{
				{"routes_per_namespace", v.number(&k.Metrics.Routes, 1, 100_000)},
				{"backends_per_namespace", v.number(&k.Metrics.Backends, 1, 100_000)},
				{"endpoints_per_namespace", v.number(&k.Metrics.Endpoints, 1, 100_000)},
				{"certificate_names_per_namespace", v.number(&k.Metrics.CertificateNames, 1, 100_000)},
			}...)
		}},
		{"lease", v.objectName(&k.Lease)},
	}...)
}

func (v *draft) publish(dst *Publish) setter {
	return func(n *yaml.Node, p path) {
		v.mark(dst, n, p)
		if n.Kind == yaml.ScalarNode && n.Value == "none" {
			return
		}
		if n.Kind == yaml.ScalarNode {
			v.fail(n, p, "%s is not a way to publish; write none, or one of service, addresses and nodes", v.quoteNode(n))
			return
		}
		there := v.section(n, p, []field{
			{"service", v.objectName(&dst.Balancer)},
			{"addresses", list(v.decoder, &dst.Addresses, v.publicAddress)},
			{"nodes", choice(v.decoder, &dst.Nodes, "internal", "external")},
			{"keep", v.truth(&dst.Keep)},
		}...)
		if delete(there, "keep"); n.Kind == yaml.MappingNode && len(there) != 1 {
			v.fail(n, p, "has to have exactly one of service, addresses and nodes; an Ingress has one place where clients find it")
		}
	}
}

func (v *draft) objectName(dst *ObjectName) setter {
	return parsed(v.decoder, dst, "namespace/name", ParseObjectName)
}

func (v *draft) namespace(dst *string) setter {
	return parsed(v.decoder, dst, "a namespace", func(s string) (string, error) {
		if !isDNSLabel(s) {
			return "", fmt.Errorf("is not a namespace; write lower case letters, digits and dashes, at most 63")
		}
		return s, nil
	})
}

func (v *draft) namespaceOrAll(dst *string) setter {
	return parsed(v.decoder, dst, "a namespace", func(s string) (string, error) {
		if s != AllNamespaces && !isDNSLabel(s) {
			return "", fmt.Errorf(`is not a namespace; write lower case letters, digits and dashes, at most 63, or "*" for every namespace`)
		}
		return s, nil
	})
}

func (v *draft) publicAddress(dst *string) setter {
	return parsed(v.decoder, dst, "an IP address or a name", func(s string) (string, error) {
		host, err := parseHost(s)
		if err == nil && strings.HasPrefix(host, "*") {
			err = fmt.Errorf("stands for many names; write one")
		}
		return host, err
	})
}

func (v *draft) label(dst *Label) setter {
	return parsed(v.decoder, dst, `a label such as "ingress=weir"`, func(s string) (Label, error) {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" || strings.ContainsAny(key, "!<> ,()") || strings.ContainsAny(value, "= ,()") {
			return Label{}, fmt.Errorf(`is not a label and its value; write one such as "ingress=weir"`)
		}
		return Label{key, value}, nil
	})
}

// ParseObjectName reads namespace/name.
func ParseObjectName(s string) (ObjectName, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || !isDNSLabel(namespace) || !isSubdomain(name) {
		return ObjectName{}, fmt.Errorf(`is not a namespace and a name; write them with a slash between, such as "ingress/web"`)
	}
	return ObjectName{namespace, name}, nil
}

func parseSubdomain(s string) (string, error) {
	if !isSubdomain(s) {
		return "", fmt.Errorf("is not a name that an object can have; write lower case letters, digits, dashes and dots")
	}
	return s, nil
}

// parseController accepts the values that the API server accepts: a domain and a path.
func parseController(s string) (string, error) {
	domain, rest, ok := strings.Cut(s, "/")
	if !ok || !isSubdomain(domain) || rest == "" || len(s) > 250 || strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r > 0x7e }) {
		return "", fmt.Errorf("is not the name of a controller; write a domain and a path, such as %q", DefaultController)
	}
	return s, nil
}

// isSubdomain reports whether s can be the name of an object (RFC 1123).
func isSubdomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if !isDNSLabel(label) {
			return false
		}
	}
	return len(s) <= 253
}

func isDNSLabel(s string) bool { return isLabel(s) && !strings.Contains(s, "_") }

// checkKubernetes checks the keys of the section that depend on each other or on other
// sections.
func (v *draft) checkKubernetes() {
	k := v.kubernetes
	if k == nil {
		return
	}
	for i := range k.Listeners {
		name := &k.Listeners[i]
		checkName(v, name, "listener", v.listeners, func(l *Listener) string { return l.Name })
		if l := v.listenerNamed(*name); l != nil && l.Protocol == ProtocolTCP {
			v.failAt(v.places[name], "%s is tcp, where no host and no path can be seen; name http and tls listeners", v.quote(name, *name))
		}
	}
	if !v.given(&k.Listeners) {
		for _, l := range v.listeners {
			if l.Protocol == ProtocolHTTP || l.Protocol == ProtocolTLS {
				k.Listeners = append(k.Listeners, l.Name)
			}
		}
		if len(k.Listeners) == 0 && len(v.errs) == 0 {
			v.failAt(v.places[k], "no http or tls listener can serve an Ingress; add one")
		}
	}
	if v.given(&k.Namespaces) && v.given(&k.NamespaceLabels) {
		v.failAt(v.places[&k.NamespaceLabels], "namespaces says already which ones; keep one of the two")
	}
	if k.TCP != nil {
		checkName(v, &k.TCP.HeaderPolicy, "proxy_protocol policy", v.headers, func(h *HeaderPolicy) string { return h.Name })
	}
}

// operatorNamespaces decodes a list that may be empty.
func (v *draft) operatorNamespaces(dst *[]string) setter {
	some := list(v.decoder, dst, v.namespaceOrAll)
	return func(n *yaml.Node, p path) {
		if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			v.mark(dst, n, p)
			*dst = []string{}
			return
		}
		some(n, p)
	}
}

// servesIngress reports whether l serves Ingresses, so that the file does not show all
// its routes.
func (v *draft) servesIngress(l *Listener) bool {
	return v.kubernetes != nil && slices.Contains(v.kubernetes.Listeners, l.Name)
}

// uses reports whether ports of the cluster use the policy.
func (k *Kubernetes) uses(h *HeaderPolicy) bool {
	return k != nil && k.TCP != nil && k.TCP.HeaderPolicy == h.Name
}

// warnKubernetes warns if tenants may make nodes unhealthy, and about settings that need
// the name of the node.
func (v *draft) warnKubernetes() {
	k := v.kubernetes
	if k == nil {
		return
	}
	if v.health != nil && !v.given(&k.OperatorNamespaces) {
		v.warnAt(v.places[k], `the annotation weirproxy.github.io/require-local on a Service of any namespace can make this node's health port answer 503; set operator_namespaces to the namespaces whose annotations count, such as [weir], to [] for none, or to ["*"] for every namespace`)
	}
	if v.node != "" {
		return
	}
	for _, dst := range []any{&k.RequireLocal, &k.PreferLocal} {
		if v.given(dst) {
			v.warnAt(v.places[dst], "Pods are local by the name of their node, and node is not set; set it from the downward API, such as node: ${NODE_NAME}")
			return
		}
	}
}

func (k *Kubernetes) fill(t *tree) {
	t.text("kubeconfig", k.Kubeconfig, k.Kubeconfig != "")
	t.text("class", k.Class, k.Class != "")
	t.text("controller", k.Controller, true)
	t.texts("namespaces", k.Namespaces)
	t.texts("namespace_labels", trees(k.NamespaceLabels, Label.String))
	t.texts("listeners", k.Listeners)
	t.text("default_certificate", k.DefaultCertificate.String(), k.DefaultCertificate != ObjectName{})
	t.truth("https_redirect", k.HTTPSRedirect)
	t.truth("prefer_local", k.PreferLocal)
	t.texts("require_local", trees(k.RequireLocal, ObjectName.String))
	t.text("host_ownership", string(k.HostOwnership), true)
	if k.OperatorNamespaces != nil { // an empty list means none; without a list, every namespace
		t.put("operator_namespaces", textsNode(k.OperatorNamespaces))
	}
	if k.TCP != nil {
		t.section("tcp", func(t *tree) {
			t.text("config_map", k.TCP.ConfigMap.String(), true)
			t.text("proxy_protocol", k.TCP.HeaderPolicy, k.TCP.HeaderPolicy != "")
		})
	}
	if p := k.Publish; p.Any() {
		t.section("publish", func(t *tree) {
			t.text("service", p.Balancer.String(), p.Balancer != ObjectName{})
			t.texts("addresses", p.Addresses)
			t.text("nodes", p.Nodes, p.Nodes != "")
			t.truth("keep", p.Keep)
		})
	}
	t.section("metrics", func(t *tree) {
		t.number("routes_per_namespace", k.Metrics.Routes)
		t.number("backends_per_namespace", k.Metrics.Backends)
		t.number("endpoints_per_namespace", k.Metrics.Endpoints)
		t.number("certificate_names_per_namespace", k.Metrics.CertificateNames)
	})
	t.text("lease", k.Lease.String(), k.Lease != ObjectName{})
}
