package config

import (
	"slices"
	"time"
)

// Balance is a method of choosing an endpoint.
type Balance string

// The methods of choosing an endpoint.
const (
	LeastRequests Balance = "least_requests"
	RoundRobin    Balance = "round_robin"
	Hash          Balance = "hash"
)

// Backend is a named set of endpoints.
type Backend struct {
	Name            string
	Position        Position
	Namespace       string   // namespace of the object from which the backend was made; empty: none
	Closed          bool     // this is the backend of closed paths, which never has an endpoint; only objects create it
	Missing         bool     // an object names a destination that does not exist or is not permitted: requests get 500; only objects create it
	Protocol        Protocol // http, https, h2c, grpc or tcp
	Endpoints       []Endpoint
	ResolveInterval time.Duration
	Balance         Balance
	// SendProxy is 0 (none), 1 or 2.
	SendProxy int
	// Host is the Host header of requests to the endpoint; empty: the Host header of the
	// client.
	Host        string
	HealthCheck *HealthCheck // nil: all endpoints count as ready
	Ejection    Ejection
	// MaxConnections limits the exchanges and tunnels in flight over all endpoints; 0: no
	// limit.
	MaxConnections int
	Queue          Queue
	// MaxIdle limits the idle connections that weir keeps to each endpoint.
	MaxIdle int
	// PreferLocal prefers endpoints on this node, then endpoints in its zone, then all
	// others.
	PreferLocal bool
	// RampUp is the duration of slow start: how long a new endpoint, if there are others,
	// gets less than its share, from a tenth of it to all of it; 0: no slow start.
	RampUp time.Duration
	// HTTP2 offers HTTP/2 to https endpoints, in addition to HTTP/1.1.
	HTTP2 bool
	// MaxInterim limits the 1xx responses to a request.
	MaxInterim int
	// Lenient lists the faults of HTTP/1.1 responses that weir accepts.
	Lenient []Leniency
	// Secure means that a grpc or tcp backend has a tls section, and therefore uses TLS.
	Secure   bool
	TLS      BackendTLS
	Timeouts BackendTimeouts
	Retries  Retries
	// Group is equal for backends that share endpoints and differ in other settings; empty: the backend
	// shares its endpoints with no other backend. Only backends of Kubernetes objects have it.
	Group string
	// HashSubset is the number of endpoints among which Balance Hash chooses for each key; 0: one.
	// Only backends of Kubernetes objects have it.
	HashSubset int
	// Sticky keeps each client with one endpoint; nil: clients are balanced.
	Sticky *Sticky
}

// UsesTLS reports whether weir uses TLS on its connections to the endpoints.
func (b *Backend) UsesTLS() bool {
	return b.Protocol == ProtocolHTTPS || b.Secure && (b.Protocol == ProtocolGRPC || b.Protocol == ProtocolTCP)
}

// Endpoint is one address of a backend. A name resolves to any number of addresses; each
// address is an endpoint.
type Endpoint struct {
	Position Position
	Address  string // host:port, or unix:/path
	Node     string
	Zone     string
	Weight   int // 1 to 1000
	// Terminating: the endpoint still serves, but will end soon. weir uses it only if no
	// other endpoint is ready. It does not count for the verdict.
	Terminating bool
	// Foreign is set if a tenant of a cluster chose the address. weir then never connects
	// to a loopback, link-local, multicast or unspecified address, even if a DNS name
	// resolves to one.
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
	// Port overrides the port of the endpoint; 0: the port of the endpoint.
	Port int
	// SendProxy sends a PROXY header first: LOCAL (v2) or UNKNOWN (v1). The default is
	// the SendProxy of the backend.
	SendProxy int
}

// HTTPCheck is one GET; the endpoint is healthy if the status is in [StatusMin,
// StatusMax].
type HTTPCheck struct {
	Path                 string
	Host                 string // empty: the endpoint's address
	StatusMin, StatusMax int    // 200 to 399
}

// GRPCCheck asks grpc.health.v1.Health for a service; the endpoint is healthy if the
// answer is SERVING.
type GRPCCheck struct {
	Service string // empty: the server as a whole
}

// Ejection takes an endpoint out of use for a while, after consecutive failures or because of
// a share of failures: failed connections, timeouts, resets, and responses with one of Statuses.
type Ejection struct {
	Failures int // consecutive failures, after which weir ejects the endpoint; 0: none do
	For      time.Duration
	// Share is the share of failed requests at which weir ejects the endpoint, unless more
	// than half of the backend's endpoints would be out; 0: none does.
	Share   float64
	Minimum int           // requests within Within below which Share does not count; at least 1
	Within  time.Duration // the time in which Share counts requests
	// Statuses are the statuses of responses that count as failures. Because of them weir ejects no
	// endpoint if more than half of the backend's endpoints would be out.
	Statuses []StatusRange
}

// Counts reports whether a response with this status is a failure of its endpoint.
func (e *Ejection) Counts(status int) bool {
	for _, r := range e.Statuses {
		if r.Min <= status && status <= r.Max {
			return true
		}
	}
	return false
}

// Equal reports whether two backends eject their endpoints in the same way.
func (e *Ejection) Equal(o *Ejection) bool {
	return e.Failures == o.Failures && e.For == o.For && e.Share == o.Share && e.Minimum == o.Minimum && e.Within == o.Within &&
		slices.Equal(e.Statuses, o.Statuses)
}

// DefaultEjectionFailures is the default of ejection.failures.
const DefaultEjectionFailures = 5

// Queue limits the requests that wait while MaxConnections are in use.
type Queue struct {
	Size    int
	Timeout time.Duration
}

// BackendTLS has the settings of TLS to a backend: certificates and verification. Used by
// protocol https, and by grpc and tcp if Backend.Secure.
type BackendTLS struct {
	ServerName string // empty: the host of the endpoint's address
	CAFile     string // empty: the CAs of the system
	CertFile   string
	KeyFile    string
	// CAPEM, CertPEM and KeyPEM take the place of the files. Only objects of a cluster have them.
	CAPEM, CertPEM []byte
	KeyPEM         Secret
	// Names and URIs are subject alternative names. If there are any, the certificate must have at
	// least one of them, and weir uses ServerName only as SNI. Only objects of a cluster have them.
	Names, URIs []string
	// ALPN lists the protocols that weir offers endpoints of a tcp backend, the preferred
	// protocol first. Empty: none.
	ALPN               []string
	InsecureSkipVerify bool // accepts any certificate
	// MinVersion and MaxVersion are crypto/tls version numbers; 0: 1.2 and 1.3.
	MinVersion, MaxVersion uint16
	// CipherSuites are crypto/tls suite ids for TLS 1.0 to 1.2. Empty: the secure suites.
	CipherSuites []uint16
	// SHA1 accepts endpoints that have only SHA-1 signatures in TLS 1.2.
	SHA1 bool
}

// BackendTimeouts limit how long weir waits for an endpoint. None is ever zero, except StreamIdle.
type BackendTimeouts struct {
	Connect      time.Duration // connection, PROXY header and handshake
	ResponseHead time.Duration // from the end of the request to the end of the response head
	BodyIdle     time.Duration // wait for more bytes of a body, in either direction
	StreamIdle   time.Duration // wait for more of a response, if the endpoint owes nothing; 0: BodyIdle
	KeepAlive    time.Duration // how long weir keeps an idle connection
}

// Retries limits repeated attempts.
type Retries struct {
	// Attempts is the maximum number of endpoints that one exchange tries, at least 1.
	Attempts int
	// Share is the maximum share of a backend's exchanges that may be retries, 0 to 1.
	// weir always allows a few retries in addition.
	Share float64
}
