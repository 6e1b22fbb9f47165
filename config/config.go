// Package config holds weir's configuration as plain immutable values: types, the tables of
// keys, defaults, and a strict Build that reports every error at once with its position.
// Package config/file reads files. Of weir this package imports only pause, and the
// parsers of the data path for values. docs/configuration.md specifies the configuration and names every key.
package config

import (
	"crypto/sha256"
	"net/netip"
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
	// PIDFile is the absolute path of a file with the process id. Empty: none.
	PIDFile string
	// UpgradeTimeout is how long a new binary may take to become ready.
	UpgradeTimeout time.Duration
	// Reload says which changes of the file take effect without a signal.
	Reload Reload

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

// Reload says which changes of the file take effect without a signal.
type Reload string

// ReloadWatch: all changes do. ReloadCareful: those do by which nothing is Lost. ReloadSignal: none does.
const (
	ReloadWatch   Reload = "watch"
	ReloadCareful Reload = "careful"
	ReloadSignal  Reload = "signal"
)

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

// ECHKey is a file with an ECHConfig and its private key in PEM (Encrypted Client Hello, RFC 9849).
type ECHKey struct {
	Position Position
	File     string
	PEM      []byte // the content of the file when the configuration was loaded
}

// ClientAuthMode is whether weir requests or requires a client certificate.
type ClientAuthMode string

// The client authentication modes. In all of them, weir verifies a certificate that the client
// sends.
const (
	ClientAuthNone    ClientAuthMode = ""
	ClientAuthRequest ClientAuthMode = "request"
	ClientAuthRequire ClientAuthMode = "require"
	// ClientAuthReport requests a certificate, and accepts every client: the routes decide, see
	// ClientCert. Only objects of a cluster make such policies.
	ClientAuthReport ClientAuthMode = "report"
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
	// ClientAuthDepth and ClientAuthLists are only for ClientAuthReport: the maximum number of
	// intermediate CAs in a chain, and the content of a file of revocation lists; empty: none.
	ClientAuthDepth int
	ClientAuthLists []byte
	// SHA1 accepts clients that offer only SHA-1 signatures; all other clients get better
	// signatures.
	SHA1 bool
	// From limits the policy to these client networks; all other clients get the default
	// policy. Empty: all clients.
	From []netip.Prefix
	// Ask means that weir requests a client certificate although ClientAuth is empty. weir neither
	// verifies the certificate nor passes it to backends. Only objects of a cluster make such
	// policies.
	Ask bool
	// Owned means that clients get only certificates whose Owner is this policy. Only
	// objects of a cluster make such policies.
	Owned bool
}

// Health is the health port.
type Health struct {
	Position     Position
	Network      string
	Address      string
	RequireLocal []string // backends
	// NodeTaints are more taints of weir's Node object that take the node out of service, each as
	// KEY[=VALUE][:EFFECT].
	NodeTaints []string
	// From lists the networks whose peers may send a PROXY header to the port; nil: any
	// peer.
	From []netip.Prefix
}

// Drain sets how weir shuts down.
type Drain struct {
	LameDuck time.Duration // weir reports unhealthy, and still accepts connections
	// IfAsked skips LameDuck if the health port got no request within the last minute.
	IfAsked bool
	// UntilQuiet ends LameDuck early when no connection was accepted for that long; 0: never.
	UntilQuiet time.Duration
	Timeout    time.Duration // then open connections have this time to finish
}
