package config

import (
	"cmp"
	"strings"
	"time"
)

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
	// and the path with its escapes decoded and its slashes merged. Among marks any other path of a
	// host with such expressions: weir orders it and the expressions together, by their lengths.
	Decoded, Among bool
	// Closed marks a path that weir closes for all clients. It matches all paths that an
	// endpoint may treat as the same: with escapes, with doubled slashes, and in any
	// case. Begins matches every path that begins with the text, also within a segment.
	// Only paths from Kubernetes objects have Closed or Begins, never paths of the file.
	Closed, Begins bool
	Value          string // begins with a slash, unless it is an expression
}

// Route sends matching requests or connections to a backend.
type Route struct {
	// Name is never empty; the default is listener/host/path, or host/path of several listeners. If the hosts of a route of
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
	// SilentAfter is for FirstBytes: after this time without a byte a connection goes to this route as
	// well; 0: never.
	SilentAfter time.Duration
	Backend     string // empty: Backends, or weir answers all requests, see Answers
	// Backends share the requests or connections by weight. Empty: Backend. At least one has a
	// weight above 0.
	Backends []WeightedBackend
	Sticky   *StickyCookie // the cookie of sticky sessions; nil: the cookie of the backend
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
	Errors    []ErrorPage  // the first entry with the status of a response applies
	Mirror    []Mirror
	RateLimit string        // the name of a rate limit; empty: none
	InFlight  *InFlight     // nil: no limit
	Reverse   *Reverse      // nil: none; only of objects
	Script    *Script       // nil: none; only of objects
	Limits    *ObjectLimits // nil: none; only of objects
	// ClientCert is nil if the route leaves client certificates to its TLS policy. Only objects have it.
	ClientCert *ClientCert
	Timeouts   *RouteTimeouts // nil: none
	Retries    *RouteRetries  // nil: the retries of the backend
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
	// the order of the configuration decides. Only routes of objects have it.
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

// The combinations. With SatisfyAny it is enough that the client is in Clients.Allow, or that the
// request is authenticated. Clients.Deny applies to all requests.
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
