package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
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
	// Listeners serve Ingresses; never empty after Build.
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
	Timeouts    KubernetesTimeouts
	// IngressNginx reads Ingresses as ingress-nginx with its ConfigMap reads them; nil: weir reads no
	// ConfigMap, and its own defaults count.
	IngressNginx *IngressNginx
	// RequireLocal are the Services that need a ready endpoint on this node.
	RequireLocal []ObjectName
	// HostOwnership decides whether Ingresses of several namespaces may share a host.
	HostOwnership HostOwnership
	// Hosts are those that belong to certain namespaces alone; see RefusesHost.
	Hosts []ListedHosts
	// OperatorNamespaces are the namespaces whose annotations may decide whether a node
	// is healthy; AllNamespaces in the list means all of them. Empty: the file has no
	// list, and all namespaces may.
	OperatorNamespaces []string
	TCP                *KubernetesTCP // nil: weir reads no ConfigMap
	Gateways           *Gateways      // nil: weir serves no objects of the Gateway API
	Publish            Publish
	// Metrics limits the time series for the objects of one namespace.
	Metrics ObjectMetrics
	// Lease is the Lease by which replicas agree which of them writes to the cluster.
	// Empty: a Lease in weir's own namespace; its name depends on Class and the selection
	// of namespaces.
	Lease ObjectName
}

// IngressNginx is ingress-nginx's controller, whose settings weir applies to Ingresses.
type IngressNginx struct {
	ConfigMap ObjectName
	// DefaultBackend is the Service that shows the errors of custom-http-errors for Ingresses without a default-backend of
	// their own; empty: none. In ingress-nginx it is a flag, --default-backend-service.
	DefaultBackend ObjectName
}

// KubernetesTimeouts are the timeouts of routes whose object sets none. 0: those of weir.
type KubernetesTimeouts struct {
	Connect time.Duration // until there is a connection to an endpoint
	// Read limits the wait for the response of an endpoint, for the next part of it, and between two
	// parts of a tunnel.
	Read time.Duration
	Send time.Duration // until the endpoint reads more of the request
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
	// OwnedByList is like SharedHosts, and refuses all hosts that Kubernetes.Hosts does not list.
	OwnedByList HostOwnership = "listed"
)

// ListedHosts are hosts that only objects of certain namespaces may name.
type ListedHosts struct {
	Namespaces []string // never empty
	// Hosts are never empty. A wildcard stands for one label or more, and for the wildcards below it.
	Hosts []string
}

// RefusesHost returns why objects of the namespace do not get the host, or an empty text. The text follows the host. Of
// the listed hosts that are the host, or wildcards above it, the longest one decides. A wildcard (** for one label or
// more) that is in none of them must not include hosts of other namespaces.
func (k *Kubernetes) RefusesHost(namespace, host string) string {
	best, has := "", false
	for _, r := range k.Hosts {
		for _, listed := range r.Hosts {
			if within(listed, host) && (best == "" || len(strings.TrimPrefix(listed, "*.")) >= len(strings.TrimPrefix(best, "*."))) {
				has = has && listed == best || slices.Contains(r.Namespaces, namespace)
				best = listed
			}
		}
	}
	switch {
	case has:
		return ""
	case best != "":
		return fmt.Sprintf("belongs to the namespaces %s (kubernetes.hosts in weir's configuration lists %s for them)", strings.Join(k.listedFor(best), ", "), best)
	case k.HostOwnership == OwnedByList:
		return "is not in the list kubernetes.hosts in weir's configuration, and others are refused (host_ownership: listed)"
	}
	for _, r := range k.Hosts {
		for _, listed := range r.Hosts {
			if includes(host, listed) && !slices.Contains(k.listedFor(listed), namespace) {
				return fmt.Sprintf("includes %s, which belongs to the namespaces %s (kubernetes.hosts in weir's configuration)", listed, strings.Join(k.listedFor(listed), ", "))
			}
		}
	}
	return ""
}

// listedFor are the namespaces of a listed host.
func (k *Kubernetes) listedFor(host string) (all []string) {
	for _, r := range k.Hosts {
		if slices.Contains(r.Hosts, host) {
			all = append(all, r.Namespaces...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// within reports whether a host is a listed one, or below a listed wildcard.
func within(listed, host string) bool {
	return listed == host || strings.HasPrefix(listed, "*.") && strings.HasSuffix(host, listed[1:])
}

// includes reports whether a wildcard stands for names of a listed host.
func includes(wildcard, listed string) bool {
	if strings.HasPrefix(wildcard, "**.") {
		return strings.HasSuffix(listed, wildcard[2:])
	}
	parent, wild := strings.CutPrefix(wildcard, "*.")
	_, above, _ := strings.Cut(listed, ".")
	return wild && !strings.HasPrefix(listed, "*") && parent == above
}

// AllNamespaces in a list means every namespace.
const AllNamespaces = "*"

// IsOperator returns true if annotations of the namespace may decide whether a node is
// healthy.
func (k *Kubernetes) IsOperator(namespace string) bool {
	return k.OperatorNamespaces == nil || slices.Contains(k.OperatorNamespaces, AllNamespaces) || slices.Contains(k.OperatorNamespaces, namespace)
}

// ObjectMetrics limits the time series of objects. The others share some, or are only counted. Each is at
// least 1.
type ObjectMetrics struct {
	Series                                        int // of all namespaces together
	Routes, Backends, Endpoints, CertificateNames int // of one namespace that have series of their own
}

// DefaultObjectMetrics are the limits if the file has none.
var DefaultObjectMetrics = ObjectMetrics{Series: 100_000, Routes: 200, Backends: 200, Endpoints: 2000, CertificateNames: 200}

// RouteSeries is the number of series that routes of objects may have. This share and the next two leave
// some for the series that routes and backends of a namespace share.
func (m ObjectMetrics) RouteSeries() int { return m.Series * 3 / 4 }

// BackendSeries is the number of series that backends of objects may have, with their endpoints.
func (m ObjectMetrics) BackendSeries() int { return m.Series / 5 }

// CertificateSeries is the number of series that certificate names of objects may have. It is small, because
// only the names that expire first are of interest.
func (m ObjectMetrics) CertificateSeries() int { return m.Series / 50 }

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

func newKubernetes() *Kubernetes {
	return &Kubernetes{Controller: DefaultController, HTTPSRedirect: true, HostOwnership: SharedHosts, Metrics: DefaultObjectMetrics}
}

func (k *Kubernetes) section() section {
	return section{object: k, position: &k.Position, rules: kubernetesRules, keys: []key{
		{"kubeconfig", text(&k.Kubeconfig).byDefault("the service account of the Pod"), "File by which weir connects to the API server."},
		{"class", className.at(&k.Class).byDefault("every class of controller"), "The only IngressClass that weir serves."},
		{"controller", controller.at(&k.Controller), "The value of spec.controller in the IngressClasses that weir serves."},
		{"namespaces", list(&k.Namespaces, namespace.at).byDefault("all"), "weir reads only these namespaces. Not together with namespace_labels."},
		{"namespace_labels", list(&k.NamespaceLabels, label.at).byDefault("all namespaces"), "weir reads only namespaces with all these labels, written as label=value."},
		{"listeners", list(&k.Listeners, text).byDefault("all http and tls listeners"), "The listeners that serve Ingresses."},
		{"default_certificate", objectName.at(&k.DefaultCertificate).byDefault("the first entry of certificates"), "A Secret, as namespace/name, with the certificate for clients without SNI, and for hosts whose own certificate is missing or unusable."},
		{"https_redirect", truth(&k.HTTPSRedirect), "If an Ingress configures TLS for a host, weir redirects (308) requests without TLS for that host to https."},
		{"prefer_local", truth(&k.PreferLocal), "weir prefers endpoints on this node, then those in its zone, then all others. A Service can override this."},
		{"ingress_nginx", optional(&k.IngressNginx, func() *IngressNginx { return &IngressNginx{} }, (*IngressNginx).section).byDefault("none"), "Settings of ingress-nginx's controller that weir applies to Ingresses."},
		{"timeouts", mapping(k.Timeouts.section).shownIf(k.Timeouts != KubernetesTimeouts{}).byDefault("those of weir"), "Timeouts for Ingresses without annotations for them."},
		{"require_local", list(&k.RequireLocal, objectName.at), "Services, as namespace/name, that need a ready endpoint on this node; without one, the health port answers 503."},
		{"host_ownership", oneOf(OwnedByNamespace, SharedHosts, OwnedByList).at(&k.HostOwnership), "Which namespace owns a host that Ingresses of several namespaces name. namespace: the namespace of the oldest of these Ingresses owns all of the host. shared: the oldest Ingress for a path owns that path, whatever its namespace. listed: as shared, and hosts that are not in hosts are refused."},
		{"hosts", inPlace(&k.Hosts, func() ListedHosts { return ListedHosts{} }, (*ListedHosts).section).byDefault("none"), "Hosts that belong to certain namespaces alone: objects of other namespaces do not get them."},
		{"operator_namespaces", listOrNone(&k.OperatorNamespaces, namespaceOrAll.at).byDefault("every namespace"), "The namespaces whose annotations may affect the health of nodes. \"*\" means every namespace; the empty list means none."},
		{"tcp", optional(&k.TCP, func() *KubernetesTCP { return &KubernetesTCP{} }, (*KubernetesTCP).section).byDefault("none"), "Raw TCP ports, configured by a ConfigMap as for ingress-nginx."},
		{"gateways", optional(&k.Gateways, newGateways, (*Gateways).section).byDefault("none"), "weir serves objects of the Gateway API."},
		{"publish", mapping(k.Publish.section).shownIf(k.Publish.Any()).byDefault("none"), "The addresses that weir writes into the status of Ingresses: exactly one of service, addresses and nodes; or none, with which weir writes no status."},
		{"metrics", mapping(k.Metrics.section), "How many time series the objects may have."},
		{"lease", objectName.at(&k.Lease).byDefault("weir, the class and a hash of the selection of namespaces, in weir's own namespace"), "The Lease, as namespace/name, for leader election: only the leader writes statuses and events."},
	}}
}

func (i *IngressNginx) section() section {
	return section{object: i, keys: []key{
		{"config_map", objectName.at(&i.ConfigMap).required("ingress-nginx/ingress-nginx-controller"), "The ConfigMap, as namespace/name, that configures ingress-nginx. weir applies its keys to Ingresses, with ingress-nginx's defaults, except for those that decide whom to trust. This file takes precedence."},
		{"default_backend", objectName.at(&i.DefaultBackend).byDefault("none"), "The Service, as namespace/name, that shows the errors of custom-http-errors for Ingresses without the annotation default-backend (ingress-nginx's --default-backend-service). weir uses its first TCP port."},
	}}
}

func (l *ListedHosts) section() section {
	return section{object: l, keys: []key{
		{"namespaces", list(&l.Namespaces, namespace.at).required("[team-a]"), "The namespaces to which the hosts belong."},
		{"hosts", list(&l.Hosts, host.at).required(`"[\"*.a.example.org\"]"`), "The hosts. *.a.example.org is all names below a.example.org. If several entries have a host, the most specific one decides."},
	}}
}

func (t *KubernetesTCP) section() section {
	return section{object: t, keys: []key{
		{"config_map", objectName.at(&t.ConfigMap).required("ingress-nginx/tcp-services"), "The ConfigMap, as namespace/name. Its keys are ports, and its values namespace/service:port, as ingress-nginx reads them."},
		{"proxy_protocol", headerPolicyName(&t.HeaderPolicy).byDefault("the policy of the listeners that serve Ingresses"), "A policy under proxy_protocol for ports with PROXY. Without a policy every peer must send a PROXY header on these ports, and anyone who can connect can claim any address."},
	}}
}

func (t *KubernetesTimeouts) section() section {
	limit := func(dst *time.Duration, weirs string) value {
		return duration(dst, time.Second, day).shownIf(*dst != 0).byDefault(weirs)
	}
	return section{object: t, keys: []key{
		{"connect", limit(&t.Connect, "5s"), "Until there is a connection to an endpoint, as the annotation proxy-connect-timeout."},
		{"read", limit(&t.Read, "60s; tunnels: tunnel_idle of the listener"), "The wait for the head of the response, for each next part of its body, and for any bytes of a tunnel such as a WebSocket, as the annotation proxy-read-timeout."},
		{"send", limit(&t.Send, "60s"), "Until the endpoint reads more of the request, as the annotation proxy-send-timeout."},
	}}
}

func (m *ObjectMetrics) section() section {
	return section{object: m, keys: []key{
		{"series", number(&m.Series, 1000, 10_000_000), "Maximum number of time series of the objects of all namespaces together, about."},
		{"routes_per_namespace", number(&m.Routes, 1, 100_000), "Maximum number of routes from one namespace's Ingresses that have time series of their own."},
		{"backends_per_namespace", number(&m.Backends, 1, 100_000), "Maximum number of backends of one namespace that have time series of their own; there is one for each port of a Service."},
		{"endpoints_per_namespace", number(&m.Endpoints, 1, 100_000), "Maximum number of endpoints of these backends that have time series of their own."},
		{"certificate_names_per_namespace", number(&m.CertificateNames, 1, 100_000), "Maximum number of names from one namespace's Secrets that have time series of their own."},
	}}
}

// section accepts "none" as a short form of a mapping without addresses.
func (b *Publish) section() section {
	none := value{
		read: func(v *draft, n *Tree, p path) {
			if n.Text != "none" {
				v.fail(n, p, "%s is not a way to publish; write none, or one of service, addresses and nodes", v.quoteNode(n))
			}
		},
		schema: func() *schema { return textLike("", "", []string{"none"}) },
	}
	return section{object: b, short: none, check: checkPublish, rules: publishRules, keys: []key{
		{"service", objectName.at(&b.Balancer), "The addresses of this Service (namespace/name): those of its load balancer and its externalIPs."},
		{"addresses", list(&b.Addresses, publicAddress.at), "These IP addresses and names."},
		{"nodes", oneOf("internal", "external").at(&b.Nodes), "The internal or external addresses of the nodes that run weir."},
		{"keep", truth(&b.Keep), "weir leaves the addresses in the status when the last replica ends."},
	}}
}

func checkPublish(v *draft, there keySet, n *Tree, p path) {
	others := slices.DeleteFunc(there, func(key string) bool { return key == "keep" })
	if n.Shape == ShapeMapping && len(others) != 1 {
		v.fail(n, p, "has to have exactly one of service, addresses and nodes; an Ingress has one place where clients find it")
	}
}

// Patterns of names in a cluster.
const (
	labelPattern     = `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`
	subdomainPattern = labelPattern + `(\.` + labelPattern + `)*`
)

var (
	objectName = kind[ObjectName]{what: "namespace/name", parse: ParseObjectName, format: ObjectName.String, pattern: labelPattern + "/" + subdomainPattern}
	className  = kind[string]{what: "the name of an IngressClass", parse: parseSubdomain, format: same[string], pattern: subdomainPattern}
	controller = kind[string]{what: "the name of a controller", parse: parseController, format: same[string], pattern: subdomainPattern + "/[!-~]+"}
)

var namespace = kind[string]{what: "a namespace", format: same[string], pattern: labelPattern,
	parse: func(s string) (string, error) {
		if !isDNSLabel(s) {
			return "", fmt.Errorf("is not a namespace; write lower case letters, digits and dashes, at most 63")
		}
		return s, nil
	},
}

var namespaceOrAll = kind[string]{what: "a namespace", format: same[string], pattern: labelPattern + `|\*`,
	parse: func(s string) (string, error) {
		if s != AllNamespaces && !isDNSLabel(s) {
			return "", fmt.Errorf(`is not a namespace; write lower case letters, digits and dashes, at most 63, or "*" for every namespace`)
		}
		return s, nil
	},
}

var publicAddress = kind[string]{what: "an IP address or a name", format: same[string], pattern: namePattern,
	parse: func(s string) (string, error) {
		host, err := parseHost(s)
		if err == nil && strings.HasPrefix(host, "*") {
			err = fmt.Errorf("stands for many names; write one")
		}
		return host, err
	},
}

var label = kind[Label]{what: `a label such as "ingress=weir"`, format: Label.String, pattern: `[^!<> ,()=]+=[^= ,()]*`,
	parse: func(s string) (Label, error) {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" || strings.ContainsAny(key, "!<> ,()") || strings.ContainsAny(value, "= ,()") {
			return Label{}, fmt.Errorf(`is not a label and its value; write one such as "ingress=weir"`)
		}
		return Label{key, value}, nil
	},
}

const taintPattern = `[0-9A-Za-z][-./0-9A-Z_a-z]*(=[0-9A-Za-z][-.0-9A-Z_a-z]*)?(:(NoSchedule|PreferNoSchedule|NoExecute))?`

var taint = kind[string]{what: "a taint such as example.com/drain", format: same[string], pattern: taintPattern,
	parse: func(s string) (string, error) {
		if !isTaint(s) {
			return "", fmt.Errorf(`is not a taint; write its key, such as example.com/drain, or with its value and effect, such as "example.com/drain=yes:NoSchedule"`)
		}
		return s, nil
	},
}

var isTaint = regexp.MustCompile("^(" + taintPattern + ")$").MatchString

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
	if n := k.IngressNginx; n != nil && len(k.Namespaces) > 0 && n.DefaultBackend.Name != "" && !slices.Contains(k.Namespaces, n.DefaultBackend.Namespace) {
		v.failAt(v.places[&n.DefaultBackend], "weir does not read the namespace %s of this Service; add it to namespaces, or remove default_backend", n.DefaultBackend.Namespace)
	}
	if k.Gateways != nil {
		v.checkGateways(k.Gateways)
	}
	if k.TCP != nil {
		checkName(v, &k.TCP.HeaderPolicy, "proxy_protocol policy", v.headers, func(h *HeaderPolicy) string { return h.Name })
	}
}

// servesObjects reports whether l serves Ingresses or Gateways, so that the file does not show all
// its routes.
func (v *draft) servesObjects(l *Listener) bool {
	k := v.kubernetes
	return k != nil && (slices.Contains(k.Listeners, l.Name) || k.Gateways != nil && slices.Contains(k.Gateways.Addresses.Shared, l.Name))
}

// uses reports whether ports of the cluster use the policy.
func (k *Kubernetes) uses(h *HeaderPolicy) bool {
	return k != nil && k.TCP != nil && k.TCP.HeaderPolicy == h.Name
}

// servesGateways reports whether Gateways may choose policies of the file, whose names only the cluster knows.
func (k *Kubernetes) servesGateways() bool { return k != nil && k.Gateways != nil }

// offersHeaderPolicies reports whether Gateways may choose policies for PROXY headers. Gateways on listeners of the file
// have the policies of these listeners.
func (k *Kubernetes) offersHeaderPolicies() bool {
	return k.servesGateways() && len(k.Gateways.Addresses.Shared) == 0
}

// warnKubernetes warns if tenants may make nodes unhealthy, and about settings that need
// the name of the node.
func (v *draft) warnKubernetes() {
	k := v.kubernetes
	if h := v.health; h != nil && len(h.NodeTaints) > 0 && (k == nil || v.node == "") {
		v.warnAt(v.places[&h.NodeTaints], "weir reads the taints of the node that node names, in the cluster of kubernetes, and one of the two is not set, so node_taints has no effect; set both, such as node: ${NODE_NAME} from the downward API")
	}
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
