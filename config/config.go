// Package config holds weir's configuration as plain immutable values: types,
// defaults, a strict loader that reports every error at once with its position,
// and a watcher. Of weir it imports proxy/message alone; docs/configuration.md is its
// contract and names every key.
package config

import (
	"crypto/sha256"
	"net/netip"
	"time"
)

// Config is one whole, validated configuration. Nothing in it changes after
// Load returned it, so it may be shared without a lock.
type Config struct {
	// Node is the name of the machine weir runs on. It is never empty.
	Node string
	// NodeExplicit says that the configuration named the node. Then endpoints
	// are local by their node name alone; else by loopback and interface address.
	NodeExplicit bool
	// Zone is where the node is; empty: not known, or what the cluster says of it.
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
	Routes         []Route
	Backends       []Backend
	Health         *Health // nil: no health port
	Admin          Admin
	Metrics        *Metrics // nil: no metrics port
	Drain          Drain
	Log            Log
	AccessLog      *AccessLog // nil: no access log
	Limits         Limits
	// Storage is where replicas share session ticket keys: a directory, or a
	// redis:// or rediss:// URL. Empty: ticket keys stay in the process.
	Storage Secret
	// Kubernetes is the cluster whose objects are served beside this; nil: none.
	Kubernetes *Kubernetes

	// Hash identifies the effective configuration: the same text after
	// environment replacement has the same hash on every node. Secrets have no
	// part in it, so it may be shown to everybody. 16 hex digits.
	Hash string

	// Warnings is what is allowed and probably not meant, sorted by position.
	Warnings Errors

	source [sha256.Size]byte // of the text that it was loaded from
}

// DefaultTLSPolicy is the name of the policy that a host gets when no route
// names another one for it, and that clients without SNI get when neither the route
// without hosts nor the listener names another one.
const DefaultTLSPolicy = "default"

// Protocol says what a listener or backend speaks.
type Protocol string

// The protocols. A listener speaks http, tls or tcp; a backend http, https, h2c,
// grpc or tcp.
const (
	ProtocolHTTP  Protocol = "http"
	ProtocolHTTPS Protocol = "https"
	ProtocolH2C   Protocol = "h2c"
	ProtocolGRPC  Protocol = "grpc"
	ProtocolTLS   Protocol = "tls"
	ProtocolTCP   Protocol = "tcp"
)

// Position is where in a file something was written; Line and Column count from 1.
// The zero value means a default that nobody wrote.
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
	// TLSPolicy is that of clients without SNI, unless the route without hosts has
	// another one than DefaultTLSPolicy; empty: DefaultTLSPolicy.
	TLSPolicy string
	// HeaderPolicy names an entry of HeaderPolicies; empty: headers are not looked for.
	HeaderPolicy string
	// MaxConnections bounds the connections open at once; 0: only by Limits.
	MaxConnections int
	// TrustForwarded lists the networks of proxies before weir, by the address of the
	// connection. weir accepts from them what Trust lists.
	TrustForwarded []netip.Prefix
	// Trust is nil if TrustForwarded is empty.
	Trust []Trust
	// DropHeaders are HTTP headers of requests that weir drops from every sender, and
	// KeepHeaders are those that it keeps although it would drop them by default. They are
	// spelled as in the file.
	DropHeaders, KeepHeaders []string
	// HTTP2 is the zero value on tcp listeners.
	HTTP2    ListenerHTTP2
	Timeouts ListenerTimeouts
}

// HearsOfHTTPS reports whether the listener may hear that a client came by https to
// whoever is before it: in a trusted X-Forwarded-Proto, or in a PROXY header.
func (l *Listener) HearsOfHTTPS() bool { return l.Trusts(TrustProto) || l.HeaderPolicy != "" }

// ListenerHTTP2 says how clients may speak HTTP/2.
type ListenerHTTP2 struct {
	// Offer: on tls listeners, by ALPN, where TLS 1.2 or later and a suite that
	// HTTP/2 allows will be negotiated.
	Offer bool
	// PriorKnowledge: on http listeners, a client may begin with HTTP/2's preface.
	PriorKnowledge bool
	// MaxStreams bounds the exchanges of one connection at once.
	MaxStreams int
}

// ListenerTimeouts are the waits for a client. None is ever zero.
type ListenerTimeouts struct {
	// Handshake bounds ClientHello and TLS handshake together, and the wait
	// for the first bytes where they have to be looked at. Counted from the end of the header.
	Handshake time.Duration
	// RequestHead bounds a request head, counted from its first byte
	// (from the end of the handshake for a connection's first request).
	RequestHead time.Duration
	// BodyIdle bounds the wait for more of a request body, or for the client to take more of a response.
	BodyIdle time.Duration
	// BodyMinRate is how many bytes a second of a request body have to come, over
	// a time of BodyIdle; 0: any.
	BodyMinRate int64
	// KeepAlive bounds the wait for the next request on a connection.
	KeepAlive time.Duration
	// TunnelIdle ends a tunnel over which nothing went either way for this long.
	TunnelIdle time.Duration
}

// HeaderMode says what a rule demands of connections from its networks.
type HeaderMode string

// The header modes; DESIGN.md section 5 defines them.
const (
	HeaderRequire  HeaderMode = "require"
	HeaderOptional HeaderMode = "optional"
	HeaderDiscard  HeaderMode = "discard"
	HeaderNone     HeaderMode = "none"
	HeaderDeny     HeaderMode = "deny"
)

// DefaultHeaderTimeout is by when a header has to be there unless a policy says otherwise.
const DefaultHeaderTimeout = 5 * time.Second

// HeaderPolicy is one entry of proxy_protocol: who may or must send a PROXY header, and by when.
type HeaderPolicy struct {
	Name     string
	Position Position
	// HeaderTimeout is counted from accept. At least one second.
	HeaderTimeout time.Duration
	Rules         []HeaderRule
}

// HeaderRule applies Mode to the peers in From. Over all rules of a policy the
// longest matching prefix decides; a peer that none matches is denied.
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
	// NoOCSP keeps weir from asking the responder that the certificate names for a staple.
	NoOCSP bool
}

// Pair is a certificate and its key that did not come from files, but from an object of a cluster.
type Pair struct {
	Name string // namespace/name
	// Hosts are those that it is served for, whatever names are in it.
	Hosts []string
	// Default makes it that of clients without SNI, and of names that no entry lists.
	Default bool
	// CertPEM and KeyPEM are empty where there is no certificate that could be
	// served: then handshakes for Hosts are refused.
	CertPEM []byte
	KeyPEM  Secret
}

// ACME says how certificates are got from a certificate authority (RFC 8555).
type ACME struct {
	// Hosts are the names that are got at once, wildcards only with DNS-01. An
	// entry that wrote none has those of all routes that open TLS and that no
	// other entry lists. Empty only with OnDemand.
	Hosts []string
	Email string
	// Directory is the URL of the authority's directory, never empty.
	Directory string
	// CAFile and CAPool are what the directory's own certificate has to descend
	// from, the file and its PEM bytes as loaded; empty: the system's.
	CAFile string
	CAPool []byte
	// KeyType is p256, p384, rsa2048 or rsa4096.
	KeyType         string
	ExternalAccount *ExternalAccount // nil: none
	// Challenges are those that may be used; never empty. DNS is set if and only
	// if DNS-01 is among them, and then it is the only one.
	Challenges []Challenge
	DNS        *DNSChallenge
	OnDemand   *OnDemand // nil: only Hosts
	// Storage is where keys, certificates and accounts are kept, and shared by
	// replicas: an absolute directory, or a redis:// or rediss:// URL. Never empty.
	Storage Secret
}

// Challenge is a way to prove that one has a name.
type Challenge string

// The challenges of RFC 8555, section 8, and RFC 8737.
const (
	ChallengeHTTP01    Challenge = "http-01"
	ChallengeTLSALPN01 Challenge = "tls-alpn-01"
	ChallengeDNS01     Challenge = "dns-01"
)

// ExternalAccount binds the ACME account to one that the authority knows (RFC 8555, section 7.3.4).
type ExternalAccount struct {
	KeyID  string
	MACKey Secret // base64url, as authorities hand it out
}

// DNSChallenge says how TXT records are set for DNS-01.
type DNSChallenge struct {
	RFC2136 RFC2136
	// Resolvers are host:port of name servers that are asked whether a record is there; empty: the system's.
	Resolvers []string
	// PropagationDelay is waited before the first look, 0 or more;
	// PropagationTimeout is how long to look, and negative where nobody looks.
	PropagationDelay, PropagationTimeout time.Duration
}

// RFC2136 is a name server that takes dynamic updates, signed by a TSIG key (RFC 8945).
type RFC2136 struct {
	Server       string // host:port
	KeyName      string
	KeyAlgorithm string // hmac-sha256 and the like
	Key          Secret // base64
}

// OnDemand lets certificates be got when a client first asks for a name. At least one of Ask and Hosts is set.
type OnDemand struct {
	// Ask is a URL that is asked with ?domain=NAME; 200 allows the name.
	Ask string
	// Hosts are patterns; a name has to match one if there are any.
	Hosts []string
	// Timeout bounds how long a handshake waits; the certificate is got on in the background.
	Timeout time.Duration
	// Concurrent bounds how many certificates are being got at once, at least 1.
	Concurrent int
}

// ECHKey is a file with an ECHConfig and its private key in PEM (Encrypted Client Hello, RFC 9849).
type ECHKey struct {
	Position Position
	File     string
	PEM      []byte // the file's content as it was when the configuration was loaded
}

// ClientAuthMode reports whether a client certificate is asked for or demanded.
type ClientAuthMode string

// The client authentication modes. A certificate that is given is verified in both.
const (
	ClientAuthNone    ClientAuthMode = ""
	ClientAuthRequest ClientAuthMode = "request"
	ClientAuthRequire ClientAuthMode = "require"
)

// ClientCertField is a part of a client certificate that can be passed on.
type ClientCertField string

// The parts of a client certificate, and the fields that carry them.
const (
	ClientCertSubject     ClientCertField = "subject"     // X-Client-Cert-Subject, RFC 4514
	ClientCertSAN         ClientCertField = "san"         // X-Client-Cert-SAN
	ClientCertFingerprint ClientCertField = "fingerprint" // X-Client-Cert-SHA256, hexadecimal
	ClientCertCertificate ClientCertField = "certificate" // Client-Cert, RFC 9440
	ClientCertChain       ClientCertField = "chain"       // Client-Cert-Chain, RFC 9440
)

// TLSPolicy says which versions, suites and client certificates are accepted, and from whom.
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
	ClientAuthPool []byte // the PEM bytes of ClientAuthCA as they were when the configuration was loaded
	// ClientAuthCRL are files of revocation lists. If there are any, weir refuses a client
	// certificate unless a list of each CA in its chain shows that it is not revoked.
	ClientAuthCRL []string
	// ClientAuthForward says which fields tell a backend of a verified client certificate.
	ClientAuthForward []ClientCertField
	// SHA1 admits clients that offer only SHA-1 signatures; all others get better ones.
	SHA1 bool
	// From limits the policy to these client networks; all others get the default policy. Empty: everyone.
	From []netip.Prefix
}

// TLSMode reports whether weir opens a host's TLS.
type TLSMode string

// The TLS modes of a host on a tls listener.
const (
	TLSTerminate   TLSMode = "terminate"
	TLSPassthrough TLSMode = "passthrough"
)

// Path is a pattern of a route: an exact path, or a prefix that ends at a segment border.
type Path struct {
	Exact bool
	// Closed marks a path that weir closes for everybody. It matches all paths that an
	// endpoint may treat as the same: with escapes, with doubled slashes, and in any case.
	// Begins matches every path that begins with the text, also within a segment. Only
	// paths of objects have these two, never paths of the file.
	Closed, Begins bool
	Value          string // begins with a slash
}

// Route sends what matches to a backend.
type Route struct {
	// Name is never empty; the default is listener/host/path. A route of the file
	// whose hosts inherit different TLSPolicy or TLS values is several Routes of one name.
	Name      string
	Position  Position
	Namespace string // of the object that the route was made from; empty: none
	Listeners []string
	// Hosts are lower case, without port and trailing dot; "*." is exactly one
	// leftmost label. Empty: every host.
	Hosts []string
	// Paths is empty for every path.
	Paths []Path
	// TLSPolicy and TLS are resolved: a route that names none has what its
	// host has through other routes on the same listener, else the defaults.
	TLSPolicy string
	TLS       TLSMode
	// ALPN has the protocols that weir offers clients if it opens the TLS of a tunnel, the
	// preferred one first. Empty: no protocol is negotiated, whatever a client offers.
	ALPN []string
	// FirstBytes is "ssh" or empty.
	FirstBytes string
	Backend    string    // empty: all is redirected
	Redirect   *Redirect // nil: nothing is; with a Backend, what did not come by https to a trusted sender
	HSTS       *HSTS     // nil: responses say nothing of it
	// MaxBody bounds a request body in bytes (413 beyond); 0: no bound.
	MaxBody int64
	// MaxLifetime ends a tunnel of this route however busy it is; 0: no bound.
	MaxLifetime time.Duration
	// TunnelIdle overrides the listener's; 0: the listener's.
	TunnelIdle time.Duration
	// Closure is the reason why the route answers every request with 503; nil: the route is
	// open. Only routes made from Kubernetes objects can be closed.
	Closure *Closure
}

// Closure is why a route is closed. weir answers its requests with 503.
type Closure struct {
	Reason string // for metrics and the access log, such as closed_by_annotation
	Why    string // for the access log: which annotation of which object
}

// OnlyRedirects reports whether no request of the route reaches a backend.
func (r *Route) OnlyRedirects() bool { return r.Redirect != nil && r.Backend == "" }

// Redirect answers requests with the same URL over https.
type Redirect struct {
	Port   int // 443 is left out of the URL
	Status int // 301, 302, 307 or 308
}

// HSTS is what Strict-Transport-Security says in responses over TLS (RFC 6797).
type HSTS struct {
	MaxAge            time.Duration // 0 ends what was promised before
	IncludeSubdomains bool
	Preload           bool
}

// Health is the health port.
type Health struct {
	Position     Position
	Network      string
	Address      string
	RequireLocal []string // backends
	// From lists who may send a PROXY header to the port; nil: anyone.
	From []netip.Prefix
}

// Drain says how weir ends.
type Drain struct {
	LameDuck time.Duration // unhealthy, still taking connections
	Timeout  time.Duration // then running work may take this long
}

// ClientLimits define the client networks.
type ClientLimits struct {
	// PrefixIPv4 (0 to 32) and PrefixIPv6 (0 to 128) are the prefix lengths of client
	// networks. 0: all clients of the family are one network.
	PrefixIPv4, PrefixIPv6 int
}

// Limits protect the process as a whole.
type Limits struct {
	// MaxConnections bounds client connections over all listeners; 0: by descriptors alone.
	MaxConnections int
	// Pending limits connections whose PROXY header or handshake is not complete, in total and per client network.
	Pending          int
	PendingPerSource int
	// Clients defines the client networks.
	Clients ClientLimits
	// Memory limits the memory that client connections make weir hold, in bytes; 0: a share
	// of the available memory.
	Memory int64
	// HeadBytes and HeadFields bound a request or response head.
	HeadBytes  int
	HeadFields int
	// Loop is how often a request or a tunnel's connection may pass this process, at least
	// 1.
	Loop int
}
