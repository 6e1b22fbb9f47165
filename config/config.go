// Package config holds weir's configuration as plain immutable values: types, the tables of
// keys, defaults, and a strict Build that reports every error at once with its position.
// Package config/file reads files. Of weir this package imports only proxy/message and
// proxy/expression. docs/configuration.md specifies the configuration and names every key.
package config

import (
	"cmp"
	"crypto/sha256"
	"net/netip"
	"strings"
	"time"
)

// Config is one whole, validated configuration. Nothing changes it after Build returns it,
// so goroutines may share it without a lock.
//
// Each Route and Backend exists once: configurations, tables and backends share it by its
// pointer. No code changes a Route or Backend, or anything that it refers to, after it was
// added to a Config. Code that needs other settings makes a copy, and changes the copy. Pointers
// of several configurations may differ although the routes are Equal.
type Config struct {
	// Node is the name of the machine weir runs on. It is never empty.
	Node string
	// NodeExplicit reports whether the configuration names the node. If true, only the
	// node name decides which endpoints are local; if false, loopback and interface
	// addresses do.
	NodeExplicit bool
	// Zone is the zone of the node. Empty: unknown, or the zone that the cluster reports
	// for the node.
	Zone string

	// User is the user that weir becomes if it was started as root: NAME, UID, NAME:GROUP
	// or UID:GID. Empty: weir does not change its user.
	User string
	// Landlock limits writing to the folders that the configuration names.
	Landlock bool
	// Seccomp refuses system calls that weir does not need.
	Seccomp bool

	Listeners      []Listener
	HeaderPolicies []HeaderPolicy // the section proxy_protocol
	Certificates   []Certificate
	TLSPolicies    []TLSPolicy // always contains DefaultTLSPolicy
	ECHKeys        []ECHKey    // the section ech
	RateLimits     []RateLimit
	Auth           []Auth
	Routes         []*Route   // see Config
	Backends       []*Backend // see Config
	derived        []*Backend // see Derive
	Health         *Health    // nil: no health port
	Admin          Admin
	Metrics        *Metrics // nil: no metrics port, and the default metrics
	Drain          Drain
	Log            Log
	AccessLog      *AccessLog // nil: no access log
	Traces         *Traces    // nil: no traces
	Limits         Limits
	// Storage is where replicas share session ticket keys: a directory, or a
	// redis:// or rediss:// URL. Empty: ticket keys stay in the process.
	Storage Secret
	// Kubernetes is the cluster whose objects weir serves in addition to this file; nil:
	// none.
	Kubernetes *Kubernetes

	// Hash identifies the effective configuration: the same text after environment
	// replacement has the same hash on every node. Secrets are not part of the hash, so
	// anybody may see it. 16 hex digits.
	Hash string

	// Warnings are settings that are allowed but probably not intended, sorted by
	// position.
	Warnings Errors

	// Source is the hash of the text that the configuration was read from; zero: from no text.
	Source [sha256.Size]byte
	// Included are the files that the text includes.
	Included Included
}

// DefaultTLSPolicy is the name of the policy that weir applies to a host if no route
// names another policy for the host. weir also applies it to clients without SNI, unless
// the route without hosts or the listener names another policy.
const DefaultTLSPolicy = "default"

// Protocol is the protocol of a listener or backend.
type Protocol string

// The protocols. http, tls and tcp are for listeners; http, https, h2c, grpc and tcp are
// for backends.
const (
	ProtocolHTTP  Protocol = "http"
	ProtocolHTTPS Protocol = "https"
	ProtocolH2C   Protocol = "h2c"
	ProtocolGRPC  Protocol = "grpc"
	ProtocolTLS   Protocol = "tls"
	ProtocolTCP   Protocol = "tcp"
)

// Position is a position in a file; Line and Column count from 1. The zero value means a
// default that is not in any file.
type Position struct {
	File         string
	Line, Column int
}

// Listener is one address that weir accepts connections on.
type Listener struct {
	Name     string
	Position Position
	// Network is "tcp" or "unix". A tcp address without a host is dual stack.
	Network string
	// Address is host:port, or the path of a Unix socket.
	Address  string
	Protocol Protocol
	// PublicPort is the port that clients connect to, if it differs from the port in
	// Address, for example the port of a Service; 0: unknown.
	PublicPort int
	// TLSPolicy is the policy for clients without SNI, unless the route without hosts has
	// a policy other than DefaultTLSPolicy; empty: DefaultTLSPolicy.
	TLSPolicy string
	// UnknownPolicy is the policy for hosts that no route names; empty: DefaultTLSPolicy.
	// Only listeners of objects have it.
	UnknownPolicy string
	// HeaderPolicy names an entry of HeaderPolicies; empty: weir does not look for PROXY
	// headers.
	HeaderPolicy string
	// MaxConnections limits the open connections of the listener; 0: only Limits applies.
	MaxConnections int
	// TrustForwarded lists the networks of trusted proxies in front of weir. weir
	// compares them with the address of the connection. weir accepts from these proxies
	// the information that Trust lists.
	TrustForwarded []netip.Prefix
	// Trust is nil if TrustForwarded is empty.
	Trust []Trust
	// DropHeaders are the HTTP headers that weir drops from the requests of every sender.
	// KeepHeaders are the HTTP headers that weir keeps although it would drop them by
	// default. They are spelled as in the file.
	DropHeaders, KeepHeaders []string
	// HTTP2 is the zero value on tcp listeners.
	HTTP2    ListenerHTTP2
	Timeouts ListenerTimeouts
}

// HearsOfHTTPS reports whether a proxy in front of the listener may report that a client
// used https: in a trusted X-Forwarded-Proto, or in a PROXY header.
func (l *Listener) HearsOfHTTPS() bool { return l.Trusts(TrustProto) || l.HeaderPolicy != "" }

// ListenerHTTP2 sets how clients may use HTTP/2.
type ListenerHTTP2 struct {
	// Offer: on tls listeners, weir offers HTTP/2 by ALPN, if the handshake will
	// negotiate TLS 1.2 or later and a suite that HTTP/2 allows.
	Offer bool
	// PriorKnowledge: on http listeners, a client may begin with the HTTP/2 preface.
	PriorKnowledge bool
	// MaxStreams limits the concurrent exchanges of one connection.
	MaxStreams int
}

// ListenerTimeouts limit how long weir waits for a client. None is ever zero.
type ListenerTimeouts struct {
	// Handshake limits ClientHello and TLS handshake together. It also limits the wait
	// for the first bytes if weir has to look at them. It counts from the end of the
	// PROXY header.
	Handshake time.Duration
	// RequestHead limits a request head. It counts from the first byte of the head, and
	// for the first request of a connection from the end of the handshake.
	RequestHead time.Duration
	// BodyIdle limits the wait for more bytes of a request body, or for the client to
	// read more of a response.
	BodyIdle time.Duration
	// BodyMinRate is the minimum rate of a request body in bytes per second, measured
	// over BodyIdle; 0: any rate.
	BodyMinRate int64
	// KeepAlive limits the wait for the next request on a connection.
	KeepAlive time.Duration
	// TunnelIdle ends a tunnel that carried no bytes in either direction for this time.
	TunnelIdle time.Duration
}

// HeaderMode is how a rule treats connections from its networks.
type HeaderMode string

// The header modes; DESIGN.md section 5 defines them.
const (
	HeaderRequire  HeaderMode = "require"
	HeaderOptional HeaderMode = "optional"
	HeaderDiscard  HeaderMode = "discard"
	HeaderNone     HeaderMode = "none"
	HeaderDeny     HeaderMode = "deny"
)

// DefaultHeaderTimeout is the HeaderTimeout of a policy that sets none.
const DefaultHeaderTimeout = 5 * time.Second

// HeaderPolicy is one entry of proxy_protocol: which peers may or must send a PROXY
// header, and within which time.
type HeaderPolicy struct {
	Name     string
	Position Position
	// HeaderTimeout counts from accept. At least one second.
	HeaderTimeout time.Duration
	Rules         []HeaderRule
}

// HeaderRule applies Mode to the peers in From. The longest matching prefix of all rules
// of a policy decides. weir denies a peer that no rule matches.
type HeaderRule struct {
	From []netip.Prefix
	Mode HeaderMode
}

// Certificate is one source of certificates: files, self-signed, ACME or a pair; exactly one is set.
type Certificate struct {
	Position   Position
	CertFile   string
	KeyFile    string
	SelfSigned []string // hosts
	ACME       *ACME
	Pair       *Pair
	// NoOCSP: weir does not request a staple from the OCSP responder that the certificate
	// names.
	NoOCSP bool
}

// Pair is a certificate and its key that come from an object of a cluster, not from
// files.
type Pair struct {
	Name string // namespace/name
	// Hosts are the hosts for which weir serves the certificate, whatever names it
	// contains.
	Hosts []string
	// Default: weir also serves the certificate to clients without SNI, and for names
	// that no entry lists.
	Default bool
	// Owner is the name of the TLS policy whose clients get the certificate. No client of
	// another policy gets it, whatever Hosts and Default say. Empty: any policy.
	Owner string
	// CertPEM and KeyPEM are empty if there is no usable certificate. weir then refuses
	// handshakes for Hosts.
	CertPEM []byte
	KeyPEM  Secret
}

// ACME sets how weir gets certificates from a certificate authority (RFC 8555).
type ACME struct {
	// Hosts are the names for which weir gets a certificate at once; wildcards only with
	// DNS-01. An entry of the file that lists no hosts has the hosts of all routes for
	// which weir opens TLS, except hosts that another entry lists. Empty only with
	// OnDemand.
	Hosts []string
	Email string
	// Directory is the URL of the authority's directory, never empty.
	Directory string
	// CAFile and CAPool are the CAs that weir trusts for the directory's own certificate:
	// the file, and its PEM bytes as loaded. Empty: the CAs of the system.
	CAFile string
	CAPool []byte
	// KeyType is p256, p384, rsa2048 or rsa4096.
	KeyType         string
	ExternalAccount *ExternalAccount // nil: none
	// Challenges are the challenges that weir may use; never empty. DNS is set if and
	// only if DNS-01 is in the list, and then DNS-01 is the only challenge.
	Challenges []Challenge
	DNS        *DNSChallenge
	OnDemand   *OnDemand // nil: only Hosts
	// Storage is where weir keeps keys, certificates and accounts, and where replicas
	// share them: an absolute directory, or a redis:// or rediss:// URL. Never empty.
	Storage Secret
}

// Challenge is a way to prove the control of a name.
type Challenge string

// The challenges of RFC 8555, section 8, and RFC 8737.
const (
	ChallengeHTTP01    Challenge = "http-01"
	ChallengeTLSALPN01 Challenge = "tls-alpn-01"
	ChallengeDNS01     Challenge = "dns-01"
)

// ExternalAccount binds the ACME account to an account that the authority knows (RFC
// 8555, section 7.3.4).
type ExternalAccount struct {
	KeyID  string
	MACKey Secret // base64url, as authorities hand it out
}

// DNSChallenge sets how weir writes TXT records for DNS-01.
type DNSChallenge struct {
	RFC2136 RFC2136
	// Resolvers are host:port of the name servers that weir asks whether a record exists;
	// empty: the system's.
	Resolvers []string
	// PropagationDelay is how long weir waits before the first look, 0 or more.
	// PropagationTimeout is how long weir looks for the record; negative: weir does not
	// look.
	PropagationDelay, PropagationTimeout time.Duration
}

// RFC2136 is a name server that accepts dynamic updates, signed by a TSIG key (RFC 8945).
type RFC2136 struct {
	Server       string // host:port
	KeyName      string
	KeyAlgorithm string // for example hmac-sha256
	Key          Secret // base64
}

// OnDemand: weir gets a certificate when a client first asks for its name. At least one
// of Ask and Hosts is set.
type OnDemand struct {
	// Ask is the URL that weir requests with ?domain=NAME; status 200 allows the name.
	Ask string
	// Hosts are patterns. If there are any, a name must match one of them.
	Hosts []string
	// Timeout limits how long a handshake waits. weir continues to get the certificate in
	// the background.
	Timeout time.Duration
	// Concurrent limits how many certificates weir gets at the same time, at least 1.
	Concurrent int
}

// ECHKey is a file with an ECHConfig and its private key in PEM (Encrypted Client Hello, RFC 9849).
type ECHKey struct {
	Position Position
	File     string
	PEM      []byte // the content of the file when the configuration was loaded
}

// ClientAuthMode is whether weir requests or requires a client certificate.
type ClientAuthMode string

// The client authentication modes. In both, weir verifies a certificate that the client
// sends.
const (
	ClientAuthNone    ClientAuthMode = ""
	ClientAuthRequest ClientAuthMode = "request"
	ClientAuthRequire ClientAuthMode = "require"
)

// ClientCertField is a part of a client certificate that weir can pass to backends.
type ClientCertField string

// The parts of a client certificate, and the HTTP headers that carry them.
const (
	ClientCertSubject     ClientCertField = "subject"     // X-Client-Cert-Subject, RFC 4514
	ClientCertSAN         ClientCertField = "san"         // X-Client-Cert-SAN
	ClientCertFingerprint ClientCertField = "fingerprint" // X-Client-Cert-SHA256, hexadecimal
	ClientCertCertificate ClientCertField = "certificate" // Client-Cert, RFC 9440
	ClientCertChain       ClientCertField = "chain"       // Client-Cert-Chain, RFC 9440
)

// TLSPolicy is the accepted versions, suites and client certificates, and the clients to
// which this applies.
type TLSPolicy struct {
	Name     string
	Position Position
	// MinVersion and MaxVersion are crypto/tls version numbers.
	MinVersion, MaxVersion uint16
	// CipherSuites are crypto/tls suite ids for TLS 1.0 to 1.2; never empty.
	CipherSuites []uint16
	// Curves are crypto/tls curve ids; empty: crypto/tls decides.
	Curves         []uint16
	ClientAuth     ClientAuthMode
	ClientAuthCA   string // file; set whenever ClientAuth is
	ClientAuthPool []byte // the PEM bytes of ClientAuthCA when the configuration was loaded
	// ClientAuthCRL are files of revocation lists. If there are any, weir refuses a client
	// certificate unless a list of each CA in its chain shows that it is not revoked.
	ClientAuthCRL []string
	// ClientAuthForward lists the HTTP headers in which weir passes a verified client
	// certificate to a backend.
	ClientAuthForward []ClientCertField
	// SHA1 accepts clients that offer only SHA-1 signatures; all other clients get better
	// signatures.
	SHA1 bool
	// From limits the policy to these client networks; all other clients get the default
	// policy. Empty: all clients.
	From []netip.Prefix
	// Ask means that weir asks clients for a certificate without ClientAuth. It neither checks it
	// nor passes it on. Only objects of a cluster make such policies.
	Ask bool
	// Owned means that clients get only certificates whose Owner is this policy. Only
	// objects of a cluster make such policies.
	Owned bool
}

// TLSMode is whether weir decrypts the TLS of a host.
type TLSMode string

// The TLS modes of a host on a tls listener.
const (
	TLSTerminate   TLSMode = "terminate"
	TLSPassthrough TLSMode = "passthrough"
)

// Path is a pattern of a route: an exact path, a prefix that ends at a segment border, or an
// expression.
type Path struct {
	Exact bool
	// Expression: Value is a regular expression (RE2), which has to match the beginning of
	// the path. Only paths of the file, and those with Decoded, have it.
	Expression bool
	// Decoded makes an Expression of an Ingress match as in ingress-nginx: in upper and lower case,
	// and the path with its escapes decoded and its slashes merged. Among puts another path of a
	// host with such expressions among them, in the order of their lengths.
	Decoded, Among bool
	// Closed marks a path that weir closes for all clients. It matches all paths that an
	// endpoint may treat as the same: with escapes, with doubled slashes, and in any
	// case. Begins matches every path that begins with the text, also within a segment.
	// Only paths from Kubernetes objects have Closed or Begins, never paths of the file.
	Closed, Begins bool
	Value          string // begins with a slash, unless it is an expression
}

// Match is the conditions of a route besides its hosts and paths. A request must fulfil all
// of them. An empty field is no condition.
type Match struct {
	Methods []string // the method of the request is one of them
	// Headers, Query and Cookies are in the order of their names. Of several HTTP headers,
	// query parameters or cookies of the name, the first one counts.
	Headers, Query, Cookies []Condition
	Clients                 []netip.Prefix // the client address is in one of them
}

// Condition is a condition for an HTTP header, a query parameter or a cookie.
type Condition struct {
	Name  string // of an HTTP header: as in the file
	Kind  ConditionKind
	Value string // empty with ConditionPresent
}

// ConditionKind is how the value of a condition is compared.
type ConditionKind uint8

// The kinds of conditions.
const (
	ConditionEqual   ConditionKind = iota // the whole value is equal; case matters
	ConditionLike                         // a regular expression (RE2) matches the whole value
	ConditionPresent                      // there is a value; it may be empty
)

// Route sends matching requests or connections to a backend.
type Route struct {
	// Name is never empty; the default is listener/host/path. If the hosts of a route of
	// the file inherit different values of TLSPolicy or TLS, the route becomes several
	// Routes with the same name.
	Name      string
	Position  Position
	Namespace string // namespace of the object from which the route was made; empty: none
	Ingress   string // name of that object if it is an Ingress; otherwise empty
	// IngressHost is the host in the Ingress, or "*" for every host; empty without an
	// Ingress. It differs from Hosts if a more specific host inherited the route.
	IngressHost string
	Listeners   []string
	// Hosts are lower case, without port and trailing dot; "*." stands for exactly one
	// leftmost label, "**." for one or more. Empty: every host.
	Hosts []string
	// Paths; empty: every path.
	Paths []Path
	Match *Match // nil: no further conditions
	// TLSPolicy and TLS are resolved: a route that sets none inherits the value that
	// other routes on the same listener set for its host, else the default.
	TLSPolicy string
	TLS       TLSMode
	// ALPN lists the protocols that weir offers clients if it decrypts the TLS of a
	// tunnel, the preferred protocol first. Empty: weir negotiates no protocol, whatever
	// a client offers.
	ALPN []string
	// FirstBytes is "ssh" or empty.
	FirstBytes string
	Backend    string // empty: Backends, or weir answers all requests, see Answers
	// Backends share the requests or connections by weight. Empty: Backend. At least one has a
	// weight above 0.
	Backends []WeightedBackend
	Sticky   *StickyCookie // the cookie of sticky sessions; nil: that of the backend
	// HashBy is the key by which backends with Balance Hash choose; empty: the client address. Only
	// routes made from Kubernetes objects have it.
	HashBy    []HashPart
	Fallback  *Fallback    // nil: without an endpoint weir answers 503
	Canary    *Canary      // chooses between two Backends; nil: weights decide
	Respond   *Respond     // nil: none; with it there is no Backend and no Redirect
	Redirect  *Redirect    // nil: none; with a Backend: for requests that did not reach a trusted sender by https
	HSTS      *HSTS        // nil: weir adds no HTTP header for it
	CORS      *CORS        // nil: weir leaves the CORS protocol to endpoints
	Request   *HeaderEdits // of requests, for the endpoint; nil: none
	Rewrite   *Rewrite     // nil: none
	Response  *HeaderEdits // of all final responses, weir's own included; nil: none
	Clients   *Clients     // nil: every client
	Auth      string       // the name of an Auth; empty: requests need no authentication
	Satisfy   Satisfy      // how Clients and Auth combine; empty: SatisfyAll
	Errors    []ErrorPage  // the first one with the status counts
	Mirror    []Mirror
	RateLimit string         // the name of a rate limit; empty: none
	InFlight  *InFlight      // nil: no limit
	Reverse   *Reverse       // nil: none; only of objects
	Script    *Script        // nil: none; only of objects
	Limits    *ObjectLimits  // nil: none; only of objects
	Timeouts  *RouteTimeouts // nil: none
	Retries   *RouteRetries  // nil: those of the backend
	// MaxBody limits a request body in bytes (413 beyond); 0: no limit.
	MaxBody int64
	// MaxLifetime ends a tunnel of this route after this time, even if it is busy; 0: no
	// limit.
	MaxLifetime time.Duration
	// TunnelIdle overrides the TunnelIdle of the listener; 0: no override.
	TunnelIdle time.Duration
	// Compress: weir compresses bodies of endpoints' responses.
	Compress bool
	// Unlogged: the access log has no lines for requests and tunnels of the route, whatever
	// their result.
	Unlogged bool
	// Untraced: weir traces no requests of the route.
	Untraced bool
	// Closure is the reason why the route answers every request with an error; nil: the route
	// is open. Only routes made from Kubernetes objects can be closed.
	Closure *Closure
	// Order decides between routes of a host whose matches are equal in every other respect; nil:
	// the order of the configuration decides. Only routes of the Gateway API have it.
	Order *RouteOrder
}

// RouteOrder is the place of a route among routes with equal matches: the rule of the oldest
// object goes first, then the object whose name comes first, then the first rule of an object.
type RouteOrder struct {
	Created int64  // of the object, in seconds since 1970
	Object  string // namespace/name
	Index   int    // of the match, within its object
}

// Compare compares the places of two routes; each may be nil, which goes first.
func (o *RouteOrder) Compare(p *RouteOrder) int {
	if o == nil || p == nil {
		switch {
		case o == p:
			return 0
		case o == nil:
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(o.Created, p.Created), strings.Compare(o.Object, p.Object), cmp.Compare(o.Index, p.Index))
}

// Satisfy is how Clients and Auth of a route combine.
type Satisfy string

// The combinations. With SatisfyAny a client in Clients.Allow needs no authentication, and an
// authenticated one need not be in it. Clients.Deny applies to all.
const (
	SatisfyAll Satisfy = "all"
	SatisfyAny Satisfy = "any"
)

// Closure is the reason why a route is closed.
type Closure struct {
	Status int    // of the response; 0: 503
	Reason string // for metrics and the access log, such as closed_by_annotation
	Why    string // for the access log: which annotation of which object
}

// OnlyRedirects reports whether no request of the route reaches a backend.
func (r *Route) OnlyRedirects() bool { return r.Redirect != nil && r.FirstBackend() == "" }

// Answers reports whether weir answers all requests of the route, without a backend.
func (r *Route) Answers() bool {
	return r.FirstBackend() == "" && (r.Redirect != nil || r.Respond != nil)
}

// Redirect answers a request with a redirect: to the same URL over https, or, if it Moves, to
// another URL.
type Redirect struct {
	To     Template // the whole new URL; empty: the fields below
	Scheme string   // http or https; empty: https if the redirect does not Move, otherwise the scheme of the request
	Host   string   // without port; empty: the request's
	Prefix string   // as Rewrite.Prefix; empty: the path stays
	Path   Template // as Rewrite.Path; empty: the path stays
	// Port is the port of the new URL. weir omits the default port of the scheme. 0: the
	// request's, or the default port of Scheme.
	Port   int
	Status int // 301, 302, 303, 307 or 308; 303 only from Kubernetes objects
	// Always means that Scheme, Host, Prefix, Path and Port describe the new URL even if only
	// Scheme or Port is set. Only redirects of the Gateway API have it.
	Always bool
	// DropQuery means that the new URL does not get the query of the request. Only redirects of
	// Kubernetes objects have it.
	DropQuery bool
}

// Moves reports whether the redirect leads to another URL than that of the request over https.
func (d *Redirect) Moves() bool {
	return d.To != "" || d.Host != "" || d.Prefix != "" || d.Path != "" || d.Always
}

// HSTS is the content of Strict-Transport-Security in responses over TLS (RFC 6797).
type HSTS struct {
	MaxAge            time.Duration // 0 ends an earlier promise
	IncludeSubdomains bool
	Preload           bool
}

// Health is the health port.
type Health struct {
	Position     Position
	Network      string
	Address      string
	RequireLocal []string // backends
	// From lists the networks whose peers may send a PROXY header to the port; nil: any
	// peer.
	From []netip.Prefix
}

// Drain sets how weir shuts down.
type Drain struct {
	LameDuck time.Duration // weir reports unhealthy, and still accepts connections
	// UntilQuiet ends LameDuck early when no connection was accepted for that long; 0: never.
	UntilQuiet time.Duration
	Timeout    time.Duration // then open connections have this time to finish
}

// ClientLimits define the client networks, and limit the connections of each.
type ClientLimits struct {
	// Connections limits the open connections of a client network; 0: no limit.
	Connections int
	// Rate limits the new connections of a client network; zero: no limit.
	Rate Rate
	// Burst is how many new connections Rate admits at once from rest; 0: as many as
	// Rate.Number.
	Burst int
	// Except are networks whose connections are not counted.
	Except []netip.Prefix
	// PrefixIPv4 (0 to 32) and PrefixIPv6 (0 to 128) are the prefix lengths of client
	// networks. 0: all clients of the family are one network.
	PrefixIPv4, PrefixIPv6 int
}

// Limits protect the process as a whole.
type Limits struct {
	// MaxConnections limits client connections over all listeners; 0: only descriptors
	// limit them.
	MaxConnections int
	// Pending limits connections whose PROXY header or handshake is not complete, in
	// total and per client network.
	Pending          int
	PendingPerSource int
	// Clients defines the client networks, and limits the connections of each.
	Clients ClientLimits
	// Memory limits the memory that client connections make weir hold, in bytes; 0: a share
	// of the available memory.
	Memory int64
	// HeadBytes and HeadFields limit a request or response head.
	HeadBytes  int
	HeadFields int
	// Loop is how often a request or a tunnel's connection may visit this process, at
	// least 1.
	Loop int
}
