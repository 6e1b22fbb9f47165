package config

import (
	"errors"
	"strings"
	"time"
)

const (
	day         = 24 * time.Hour
	maxNumber   = 10_000_000
	defaultNode = "localhost" // if the machine has no name
)

// A root is the top level of a file. Its elements are pointers, because the map of their
// places uses the pointers as keys.
type root struct {
	node, zone     string
	user           string
	landlock       bool
	seccomp        bool
	pidFile        string
	upgradeTimeout time.Duration
	reload         Reload
	listeners      []*Listener
	headers        []*HeaderPolicy
	certificates   []*Certificate
	policies       []*TLSPolicy
	echKeys        []*ECHKey
	auth           []*Auth
	rateLimits     []*RateLimit
	routes         []*Route
	backends       []*Backend
	health         *Health
	admin          *Admin
	metrics        *Metrics
	drain          Drain
	log            Log
	accessLog      *AccessLog
	traces         *Traces
	limits         Limits
	shared         Secret // the storage of the top level
	kubernetes     *Kubernetes
}

// newRoot returns the defaults of the top level.
func newRoot() *root {
	return &root{
		landlock: true, seccomp: true, upgradeTimeout: time.Minute, reload: ReloadWatch,
		admin: &Admin{Network: "tcp", Address: "127.0.0.1:8087"},
		drain: Drain{LameDuck: 30 * time.Second, Timeout: 2 * time.Minute},
		log:   Log{Level: "info", Format: "auto"},
		limits: Limits{Pending: 16384, PendingPerSource: 1024, HeadBytes: 64 << 10, HeadFields: 256, Loop: 3,
			Clients: ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}},
	}
}

// A draft is a configuration during decoding and validation.
type draft struct {
	*decoder
	root
	env        func(string) (string, bool) // the environment; nil: none
	inUse      InUse
	adminToken bool // the file has admin.token or admin.token_file, valid or not

	backendsByName map[string]*Backend // see backendNamed

	groups map[hostOn]*group      // TLS settings of routes, by listener and host
	names  map[string]bool        // of all certificates
	inFile map[*Certificate]keyed // certificates that were read from files
	tried  map[string]error       // see tryPair
	unread bool                   // weir could not read a certificate file, so its names are unknown
	parts  []*Route               // see splitRoutes
}

// decode fills v from the document's root, and sets defaults first.
func (v *draft) decode(n *Tree) {
	v.root = *newRoot()
	v.root.section().read(v, n, n, path{})
	v.admin.Implied = !v.given(&v.admin.Address)
	if v.kubernetes == nil && !v.given(&v.drain.LameDuck) {
		v.drain.IfAsked = true // only a load balancer that asks the health port sees the drain
		if v.health == nil {
			v.drain.LameDuck = 0
		}
	}
}

func (r *root) section() section {
	return section{keys: []key{
		{"include", included(), "More files: paths, folders (their *.yaml files in alphabetical order, but no dot files) and patterns such as sites/*.yaml. Their mappings and lists are added to those of this file."},
		{"node", text(&r.node).byDefault("the host name"), "The name of the machine that weir runs on. If it is given, an endpoint is local if its own node is the same; otherwise endpoints on loopback and on this host's own addresses are local."},
		{"zone", text(&r.zone).byDefault("none; in a cluster, the label topology.kubernetes.io/zone of the Node"), "The zone of this machine, for backends with prefer_local."},
		{"user", user(&r.user).byDefault("weir keeps its user").byRestart(), "The user that weir becomes when root starts it: NAME, UID, NAME:GROUP or UID:GID."},
		{"landlock", truth(&r.landlock).byRestart(), "On Linux 6.2 or later, the kernel lets weir write only below the folders that the configuration names at the start, and a few others."},
		{"seccomp", truth(&r.seccomp).byRestart(), "On Linux, the kernel refuses weir the system calls that it never makes."},
		{"pid_file", pidFile(&r.pidFile).byDefault("none").byUpgrade(), "A file with the process id of the weir that accepts connections. After an upgrade the new process writes it."},
		{"upgrade_timeout", duration(&r.upgradeTimeout, time.Second, time.Hour), "How long the new binary of an upgrade (SIGUSR2) may take to become ready. Then weir ends it and continues."},
		{"reload", oneOf(ReloadWatch, ReloadCareful, ReloadSignal).at(&r.reload), "When a changed file takes effect. watch: at once. careful: at once, unless a listener, all routes of a host, all routes without hosts or the section kubernetes would be lost; such a file waits for weir reload. signal: only by weir reload or SIGHUP."},
		{"listeners", named(&r.listeners, newListener, (*Listener).name, (*Listener).section).required(`"listeners: {web: {address: \":8080\", protocol: http}}"`), "The addresses that weir listens on, by name."},
		{"proxy_protocol", named(&r.headers, newHeaderPolicy, (*HeaderPolicy).name, (*HeaderPolicy).section), "Policies, by name: which peers may or must send a PROXY header. A listener names one of them in its own proxy_protocol."},
		{"certificates", sections(&r.certificates, func() *Certificate { return &Certificate{} }, (*Certificate).section), "Certificates. Required if a tls listener terminates TLS. The first entry serves clients without SNI and names that no entry lists."},
		{"tls_policies", r.policiesKey(), "TLS versions, cipher suites and client certificates, by name. The policy default always exists and applies to hosts whose routes name no policy."},
		{"ech", mapping(r.ech).shownIf(len(r.echKeys) > 0), "Encrypted Client Hello (ECH), which hides the requested host name from the network."},
		{"auth", named(&r.auth, newAuth, (*Auth).name, (*Auth).section), "Ways to authenticate requests, by name. A route names one of them in its own auth."},
		{"rate_limits", named(&r.rateLimits, newRateLimit, (*RateLimit).name, (*RateLimit).section), "Rates of requests, by name. Routes name them in rate_limit; routes that name the same one share its counts."},
		{"routes", sections(&r.routes, func() *Route { return &Route{} }, (*Route).section), "Which requests and connections go to which backend. The most specific host wins, then the longest path of that host; the order of routes does not matter."},
		{"backends", named(&r.backends, newBackend, (*Backend).name, (*Backend).section), "Named sets of endpoints."},
		{"health", optional(&r.health, func() *Health { return &Health{} }, (*Health).section).byDefault("no health port"), "The port for health checks of load balancers. It answers 503 when this node should get no new connections."},
		{"admin", mapping(r.admin.section), "The port for status, metrics and operations. It is on without this section, on loopback; address: off turns it off."},
		{"metrics", optional(&r.metrics, NewMetrics, (*Metrics).section).byDefault("no metrics port"), "The port for Prometheus, and which metrics weir has."},
		{"drain", mapping(r.drain.section), "How weir shuts down."},
		{"log", mapping(r.log.section), "weir's own log, on standard error."},
		{"access_log", optional(&r.accessLog, NewAccessLog, (*AccessLog).section).byDefault("no access log, except on a terminal"), "The access log: a line for each request, tunnel and refused connection."},
		{"traces", optional(&r.traces, NewTraces, (*Traces).section).byDefault("no traces"), "Traces of requests, by the conventions of OpenTelemetry."},
		{"limits", mapping(r.limits.section), "Limits that protect the whole process."},
		{"storage", storage(&r.shared).byDefault("none: session ticket keys stay in the process"), "Where replicas share session ticket keys and the key of sticky sessions: a directory, or a redis://, rediss:// or secrets:// URL. ACME entries without a storage of their own use it too."},
		{"kubernetes", optional(&r.kubernetes, newKubernetes, (*Kubernetes).section).byDefault("none"), "A cluster whose Ingresses weir serves besides the routes of the file. An empty mapping is a complete section."},
	}}
}

// user also accepts a number without quotes: a UID.
func user(dst *string) value {
	name := kind[string]{what: "a user", parse: parseUser, format: same[string], pattern: `[^ \t/:]+(:[^ \t/:]+)?`}.at(dst)
	return orInteger(name, &schema{Type: "integer"})
}

// pidFile is an absolute path: weir writes the file also after an upgrade.
func pidFile(dst *string) value {
	return kind[string]{what: "an absolute path", parse: func(s string) (string, error) {
		if !strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") {
			return "", errors.New(`is not an absolute path of a file; write one such as "/run/weir/weir.pid"`)
		}
		return s, nil
	}, format: same[string], pattern: "/.*[^/]"}.at(dst)
}

// orInteger returns x, which then also accepts an integer without quotes, and reads it as text.
func orInteger(x value, integer *schema) value {
	read, describe := x.read, x.schema
	x.read = func(v *draft, n *Tree, p path) {
		if n.Shape == ShapeInteger {
			text := *n
			text.Shape = ShapeText
			n = &text
		}
		read(v, n, p)
	}
	x.schema = func() *schema { return anyOf(describe(), integer) }
	return x
}

// parseUser checks only the form: whether the user exists depends on the machine.
func parseUser(s string) (string, error) {
	name, group, withGroup := strings.Cut(s, ":")
	if name == "" || withGroup && group == "" || strings.ContainsAny(s, " \t/") || strings.Contains(group, ":") {
		return "", errors.New("is not a user; write a name such as weir, a name and a group such as weir:weir, or their numbers such as 65532:65532")
	}
	return s, nil
}

// NewListener returns a listener with the defaults of the file, and without an address.
func NewListener(name string) Listener { return *newListener(name) }

func newListener(name string) *Listener {
	return &Listener{Name: name, HTTP2: ListenerHTTP2{MaxStreams: 100}, Timeouts: ListenerTimeouts{
		Handshake:   10 * time.Second,
		RequestHead: 10 * time.Second,
		BodyIdle:    time.Minute,
		StreamIdle:  DefaultStreamIdle,
		BodyMinRate: 240,
		KeepAlive:   6 * time.Minute,
		TunnelIdle:  time.Hour,
	}}
}

// DefaultStreamIdle is the stream_idle of a listener or backend that sets neither it nor body_idle.
const DefaultStreamIdle = time.Hour

func (l *Listener) name() string { return l.Name }

func (l *Listener) section() section {
	return section{object: l, position: &l.Position, rules: listenerRules, keys: []key{
		{"address", listenAddress(&l.Network, &l.Address).required(`":443"`), "The address to listen on: an IP address and a port, a port alone such as \":443\" for all addresses of the machine, or \"unix:/run/weir.sock\"."},
		{"protocol", listenerProtocol(&l.Protocol).required("http, tls or tcp"), "http: plain HTTP. tls: TLS, which weir terminates or passes through by SNI. tcp: each connection is a tunnel to the backend of the only route."},
		{"public_port", number(&l.PublicPort, 1, 65535).shownIf(l.PublicPort != 0), "The port that clients use, if it is not the one in address. weir writes it to X-Forwarded-Port. Not on tcp listeners."},
		{"tls_policy", text(&l.TLSPolicy).byDefault("default"), "The policy under tls_policies for clients without SNI. Only on tls listeners."},
		{"proxy_protocol", headerPolicyName(&l.HeaderPolicy).byDefault("weir does not parse PROXY headers"), "The policy under proxy_protocol for this listener."},
		{"max_connections", number(&l.MaxConnections, 0, maxNumber), "Maximum number of open connections; 0 means no limit for this listener. weir closes further connections at once."},
		{"trust_forwarded", list(&l.TrustForwarded, prefix.at), "The networks (CIDR) of HTTP proxies before weir, such as a CDN, whose X-Forwarded-For names the client. Not on tcp listeners."},
		{"trust", list(&l.Trust, trust.at).byDefault("[for, proto]"), "Which HTTP headers weir keeps from the proxies in trust_forwarded. List only those that each of these proxies always sets itself."},
		{"drop_headers", list(&l.DropHeaders, droppedHeader.at), "Names of HTTP headers that weir drops from every request, whatever its sender, besides those that it drops anyway. Not on tcp listeners."},
		{"keep_headers", list(&l.KeepHeaders, keptHeader.at), "Names of HTTP headers that weir drops by default and that this listener keeps, from every sender. Not on tcp listeners."},
		{"lenient", list(&l.Lenient, requestLeniency.at), "Faults in requests that weir accepts from clients. Not on tcp listeners."},
		{"http2", mapping(l.http2).shownIf(l.Protocol != ProtocolTCP), "HTTP/2 for clients: a mapping, or true or false for offer. Not on tcp listeners."},
		{"timeouts", mapping(l.Timeouts.section), "How long weir waits for clients."},
	}}
}

// http2 accepts a boolean as a short form of "offer".
func (l *Listener) http2() section {
	h := &l.HTTP2
	overTLS := l.Protocol == ProtocolTLS
	return section{object: h, short: truth(&h.Offer), keys: []key{
		{"offer", truth(&h.Offer).shownIf(overTLS).byDefault("true on tls listeners"), "Whether weir offers HTTP/2 by ALPN, before HTTP/1.1. Only on tls listeners."},
		{"prior_knowledge", truth(&h.PriorKnowledge).shownIf(!overTLS), "Whether clients may begin with the HTTP/2 preface instead of an HTTP/1.1 request. Only on http listeners."},
		{"max_streams", number(&h.MaxStreams, 1, 1000), "Maximum number of concurrent streams (requests) per connection."},
	}}
}

// boundSilence makes a body_idle that the file has limit the silence of streams too, unless the file has
// stream_idle.
func boundSilence(streamIdle *time.Duration) func(*draft, keySet, *Tree, path) {
	return func(_ *draft, there keySet, _ *Tree, _ path) {
		if there.has("body_idle") && !there.has("stream_idle") {
			*streamIdle = 0
		}
	}
}

func (t *ListenerTimeouts) section() section {
	return section{object: t, check: boundSilence(&t.StreamIdle), keys: []key{
		{"handshake", duration(&t.Handshake, time.Second, 5*time.Minute), "From the end of the PROXY header to the end of the TLS handshake. Also how long weir waits for the first bytes, if they decide the route."},
		{"request_head", duration(&t.RequestHead, time.Second, 10*time.Minute), "From the first byte of a request head to its end. For the first request of a connection it starts at the end of the handshake."},
		{"body_idle", duration(&t.BodyIdle, time.Second, day), "How long weir waits for more of a request body, or for the client to read each write of a response."},
		{"stream_idle", duration(&t.StreamIdle, time.Second, 30*day).shownIf(t.StreamIdle != 0).byDefault("body_idle if it is set, else 1h"), "How long weir waits for more of a request body while the client need not send anything: during a gRPC call, and during any other request without a length after its response has begun. Bytes in either direction and HTTP/2 PINGs of a peer start it anew."},
		{"body_min_rate", size(&t.BodyMinRate, 0, 1<<20), "Minimum upload rate of a request body, in bytes per second, measured over body_idle. 0B means no minimum rate. Not for gRPC calls."},
		{"keep_alive", duration(&t.KeepAlive, time.Second, day), "How long an idle connection may wait for the next request. Set it longer than the idle timeout of the load balancer in front."},
		{"tunnel_idle", duration(&t.TunnelIdle, time.Second, 30*day), "weir ends a tunnel that carried no bytes in either direction for this long."},
	}}
}

// headerPolicyName is the name of a PROXY header policy. In nginx and HAProxy a single word
// turns PROXY headers on, so true and similar words get an error that explains it.
func headerPolicyName(dst *string) value {
	name := text(dst)
	read := name.read
	name.read = func(v *draft, n *Tree, p path) {
		if n.Hidden || n.Shape != ShapeBoolean {
			read(v, n, p)
			return
		}
		v.mark(dst, n, p)
		if n.Text == "false" {
			v.fail(n, p, "has to be the name of a policy; without one weir reads no PROXY headers, so take the key out")
			return
		}
		v.fail(n, p, `has to be the name of a policy, which says who sends PROXY headers; write "proxy_protocol: lb" here, and at the top level "proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}" with the networks of your load balancer`)
	}
	return name
}

func listenerProtocol(dst *Protocol) value {
	known := oneOf(ProtocolHTTP, ProtocolTLS, ProtocolTCP).at(dst)
	read := known.read
	known.read = func(v *draft, n *Tree, p path) {
		if n.Text == "https" && !n.Hidden {
			v.mark(dst, n, p)
			v.fail(n, p, `"https" is a protocol of backends; for a listener that terminates TLS, or passes it through, write "tls"`)
			return
		}
		read(v, n, p)
	}
	return known
}

func newHeaderPolicy(name string) *HeaderPolicy {
	return &HeaderPolicy{Name: name, HeaderTimeout: DefaultHeaderTimeout}
}

func (h *HeaderPolicy) name() string { return h.Name }

func (h *HeaderPolicy) section() section {
	return section{object: h, position: &h.Position, keys: []key{
		{"header_timeout", duration(&h.HeaderTimeout, time.Second, 5*time.Minute), "How long weir waits for the complete PROXY header, counted from accept. weir closes the connection if the PROXY header is late, truncated or malformed."},
		{"rules", inPlace(&h.Rules, func() HeaderRule { return HeaderRule{} }, (*HeaderRule).section).required(`"rules: [{from: [10.0.0.0/8], header: require}]"`), "Which peers send PROXY headers. The longest prefix that contains the peer decides, over all rules. If no rule contains the peer, weir closes the connection."},
	}}
}

func (r *HeaderRule) section() section {
	return section{object: r, keys: []key{
		{"from", list(&r.From, prefix.at).required("[10.0.0.0/8]"), "Peer networks (CIDR). A policy may name each network once."},
		{"header", oneOf(HeaderRequire, HeaderOptional, HeaderDiscard, HeaderNone, HeaderDeny).at(&r.Mode).required("require"), "require: weir closes the connection if no valid PROXY header arrives in time. optional: the peer may send one, and must send the first bytes. discard: weir reads it, but keeps the peer address. none: weir does not parse PROXY headers. deny: weir closes the connection at once."},
		{"mixed_families", truth(&r.MixedFamilies), "Accept v1 PROXY headers with one IPv4 and one IPv6 address, which nginx writes for clients that another proxy named. The specification has no such PROXY header, and weir refuses it by default."},
	}}
}

func (h *Health) section() section {
	return section{object: h, position: &h.Position, keys: []key{
		{"address", listenAddress(&h.Network, &h.Address).required(`":8086"`), "The address for health checks."},
		{"require_local", list(&h.RequireLocal, text), "Backends that need a ready endpoint on this node; without one, the health port answers 503. They need a health_check."},
		{"node_taints", list(&h.NodeTaints, taint.at).byDefault("none but those that weir knows"), "More taints of weir's Kubernetes node with which the health port answers 503, as KEY[=VALUE][:EFFECT]."},
		{"from", list(&h.From, prefix.at).byDefault("anyone"), "The networks (CIDR) that may send a PROXY header to this port. The PROXY header is optional; weir closes the connection if another network sends one."},
	}}
}

func (d *Drain) section() section {
	return section{object: d, keys: []key{
		{"lame_duck", duration(&d.LameDuck, 0, time.Hour).byDefault("30s; 0s without both health and kubernetes, and if nobody has asked the health port for a minute"), "How long after SIGTERM the health port answers 503 while weir still accepts connections. Then all ports close. 0s: the ports close at once."},
		{"until_quiet", duration(&d.UntilQuiet, 0, time.Hour), "End lame_duck early, when no connection has arrived for this long. Load balancers that ask the health port must first have seen two answers 503. 0s: never."},
		{"timeout", duration(&d.Timeout, time.Second, day), "How long active requests and tunnels may continue after lame_duck. Then weir aborts them."},
	}}
}

func (l *Log) section() section {
	return section{object: l, keys: []key{
		{"level", oneOf("debug", "info", "warn", "error").at(&l.Level), "The minimum severity of lines in the log."},
		{"format", oneOf("auto", "json", "console").at(&l.Format).byUpgrade(), "The format of the lines. console is text. auto is text if standard error is a terminal, and JSON otherwise."},
	}}
}

func (l *Limits) section() section {
	return section{object: l, keys: []key{
		{"max_connections", number(&l.MaxConnections, 0, maxNumber), "Maximum number of client connections over all listeners; 0 means as many as memory and descriptors allow. weir closes further connections at once."},
		{"pending", number(&l.Pending, 1, maxNumber), "Maximum number of connections whose PROXY header or handshake is not complete."},
		{"pending_per_source", number(&l.PendingPerSource, 1, maxNumber), "The same limit as pending, for one client network (see clients.prefix)."},
		{"clients", mapping(l.Clients.section), "Limits for each client."},
		{"memory", size(&l.Memory, 1<<20, 1<<50).shownIf(l.Memory != 0).byDefault("half of GOMEMLIMIT; without one, a quarter of the machine's memory"), "Maximum memory that weir holds for client connections: header lists, bodies, output and active requests."},
		{"head_size", size(&l.HeadBytes, 1<<10, 1<<20), "Maximum size of a request or response head (start line and HTTP headers). A larger request head gets 431."},
		{"head_fields", number(&l.HeadFields, 8, 10_000), "Maximum number of HTTP headers in a head."},
		{"loop", number(&l.Loop, 1, 100), "How often one request, or one connection of a tunnel, may pass this process. Beyond it, weir answers a request with 508 and resets a connection."},
	}}
}

func (l *ClientLimits) section() section {
	return section{object: l, keys: []key{
		{"connections", number(&l.Connections, 0, maxNumber), "Maximum number of open connections of one client network, over all listeners; 0 means no limit. weir closes further connections without a byte."},
		{"rate", rateKind.at(&l.Rate), "Maximum number of new connections of one client network per s, m or h, over all listeners. weir closes further connections without a byte."},
		{"burst", number(&l.Burst, 1, maxRate).shownIf(l.Burst != 0).byDefault("the number in rate"), "How many new connections the rate admits at once from rest."},
		{"prefix", mapping(l.prefix), "The size of a client network, whose addresses count as one client."},
		{"except", list(&l.Except, prefix.at), "Networks of clients whose connections are not counted, such as those of monitoring."},
	}, rules: clientLimitsRules}
}

func (l *ClientLimits) prefix() section {
	return section{keys: []key{
		{"ipv4", number(&l.PrefixIPv4, 0, 32), "How many leading bits of an IPv4 address identify the client network. 0: all IPv4 clients are one network."},
		{"ipv6", number(&l.PrefixIPv6, 0, 128), "How many leading bits of an IPv6 address identify the client network. 0: all IPv6 clients are one network."},
	}}
}
