package config

import (
	"time"
)

// Balance names a way to choose an endpoint.
type Balance string

// The ways to choose an endpoint.
const (
	LeastRequests Balance = "least_requests"
	RoundRobin    Balance = "round_robin"
	Hash          Balance = "hash"
)

// Backend is a named set of endpoints.
type Backend struct {
	Name            string
	Position        Position
	Namespace       string   // of the object that the backend was made from; empty: none
	Closed          bool     // the backend of closed paths, which never has an endpoint; only objects make one
	Protocol        Protocol // http, https, h2c, grpc or tcp
	Endpoints       []Endpoint
	ResolveInterval time.Duration
	Balance         Balance
	// SendProxy is 0 (none), 1 or 2.
	SendProxy int
	// Host is what Host says to the endpoint; empty: what the client said.
	Host        string
	HealthCheck *HealthCheck // nil: endpoints are ready
	Ejection    Ejection
	// MaxConnections bounds exchanges and tunnels in flight over all endpoints; 0: no bound.
	MaxConnections int
	Queue          Queue
	// MaxIdle bounds the idle connections kept per endpoint.
	MaxIdle int
	// PreferLocal makes endpoints on this node go first, then those of its
	// zone, then all others.
	PreferLocal bool
	// RampUp is how long an endpoint that comes to others gets less than its
	// share, from a tenth of it to all; 0: none of that.
	RampUp time.Duration
	// HTTP2 offers HTTP/2 to https endpoints, beside HTTP/1.1.
	HTTP2 bool
	// Lenient lists the faults of HTTP/1.1 responses that are accepted.
	Lenient []Leniency
	// Secure means that a grpc or tcp backend has a tls section, and so uses TLS.
	Secure   bool
	TLS      BackendTLS
	Timeouts BackendTimeouts
	Retries  Retries
}

// UsesTLS reports whether connections to the endpoints are TLS of weir's.
func (b *Backend) UsesTLS() bool {
	return b.Protocol == ProtocolHTTPS || b.Secure && (b.Protocol == ProtocolGRPC || b.Protocol == ProtocolTCP)
}

// Endpoint is one address of a backend. A name resolves to any number of addresses, each one an endpoint.
type Endpoint struct {
	Position Position
	Address  string // host:port, or unix:/path
	Node     string
	Zone     string
	Weight   int // 1 to 1000
	// Terminating says that the endpoint serves, and is about to go away: it is
	// used where no other is ready, and counts for no verdict.
	Terminating bool
	// Foreign is set if a tenant of a cluster chose the address. weir then never
	// connects to a loopback, link-local, multicast or unspecified address, also if a
	// DNS name resolves to one.
	Foreign bool
}

// HealthCheck probes every endpoint of a backend. Exactly one of HTTP, GRPC and TCP is set.
type HealthCheck struct {
	HTTP       *HTTPCheck
	GRPC       *GRPCCheck
	TCP        bool
	Interval   time.Duration
	Timeout    time.Duration
	Rise, Fall int
	// Port overrides the endpoint's; 0: the endpoint's.
	Port int
	// SendProxy sends a LOCAL header (v2) or UNKNOWN (v1) first; the backend's SendProxy by default.
	SendProxy int
}

// HTTPCheck is one GET; the endpoint is well when the status is in [StatusMin, StatusMax].
type HTTPCheck struct {
	Path                 string
	Host                 string // empty: the endpoint's address
	StatusMin, StatusMax int    // 200 to 399
}

// GRPCCheck asks grpc.health.v1.Health for a service; the endpoint is well when it is SERVING.
type GRPCCheck struct {
	Service string // empty: the server as a whole
}

// Ejection takes an endpoint out for a while after consecutive failures (connect failures, resets, 502 to 504
// are not counted when the endpoint itself answered them). Failures 0 turns it off.
type Ejection struct {
	Failures int
	For      time.Duration
}

// DefaultEjectionFailures is the default of ejection.failures.
const DefaultEjectionFailures = 5

// Queue limits the requests that wait while MaxConnections are in use.
type Queue struct {
	Size    int
	Timeout time.Duration
}

// BackendTLS has the settings of TLS to a backend: certificates and verification. Used by protocol https, and by
// grpc and tcp if Backend.Secure.
type BackendTLS struct {
	ServerName string // empty: the host of the endpoint's address
	CAFile     string // empty: the system's
	CertFile   string
	KeyFile    string
	// ALPN has the protocols that weir offers endpoints of a tcp backend, the preferred one
	// first. Empty: none.
	ALPN               []string
	InsecureSkipVerify bool // accepts any certificate
	// MinVersion and MaxVersion are crypto/tls version numbers; 0: 1.2 and 1.3.
	MinVersion, MaxVersion uint16
	// CipherSuites are crypto/tls suite ids for TLS 1.0 to 1.2. Empty: the secure ones.
	CipherSuites []uint16
	// SHA1 admits endpoints that have only SHA-1 signatures in TLS 1.2.
	SHA1 bool
}

// BackendTimeouts are the waits for an endpoint. None is ever zero.
type BackendTimeouts struct {
	Connect      time.Duration // connection, header and handshake
	ResponseHead time.Duration // from the end of the request to the end of the response head
	BodyIdle     time.Duration // for more of a body, either way
	KeepAlive    time.Duration // how long an idle connection is kept
}

// Retries bounds repeated attempts.
type Retries struct {
	// Attempts is how many endpoints one exchange may try in all, at least 1.
	Attempts int
	// Share is the largest part of a backend's exchanges that may be retries, 0 to 1, beside a few that are always allowed.
	Share float64
}
