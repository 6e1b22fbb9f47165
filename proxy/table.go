package proxy

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/tls/policy"
)

// Table determines the handling of every connection and request. It is immutable: a reload
// builds a new table, and Proxy.Swap puts it in place.
type Table struct {
	edges  map[string]*edge
	routes map[routeOn]bool // the existing routes
	ech    []tls.EncryptedClientHelloKey
}

// Route is the compiled form of a route of the configuration.
type Route struct {
	name    string
	backend *backend.Backend // nil: the route only redirects
	config  *config.Route
	metrics *routeMetrics
	filters *filter.Chain // nil: none
	closed  *closed       // nil: weir forwards the requests
}

// edge is the part of the table that belongs to one listener.
type edge struct {
	name       string
	protocol   config.Protocol
	timeouts   config.ListenerTimeouts
	forwarding *filter.Forwarding

	http2          bool // the listener offers HTTP/2 to TLS clients
	priorKnowledge bool // clients without TLS may begin with HTTP/2
	streams        int  // limit of concurrent HTTP/2 streams on one connection

	raw         *Route // of a tcp listener
	ssh         *Route // for connections that begin with SSH
	passthrough bool   // some host has tls: passthrough, so weir must read the ClientHello first
	tunnels     bool   // weir terminates the TLS of some host for a tcp backend
	http        bool   // some host, or the route without hosts, serves requests

	hosts     map[string]*host
	wildcards map[string]*host // by the part after "*."
	any       *host            // of routes without hosts
	fallback  *policy.Policy   // of hosts without a policy
	nameless  *policy.Policy   // of clients without SNI, for the handshake and for requests to any
}

// host is the part of an edge that belongs to one host.
type host struct {
	name        string         // as in the routes; "*" for routes without hosts
	policy      *policy.Policy // nil: the fallback
	passthrough *Route
	tunnel      *Route // the route for the decrypted bytes, if the host is a tunnel; nil: it is not
	paths       []path // in the order of sort; the first match decides
}

type path struct {
	config.Path
	route *Route
}

// Parts are the objects, beside the configuration, from which a table is built.
type Parts struct {
	Backends map[string]*backend.Backend
	Policies map[string]*policy.Policy
	Metrics  *Metrics
	ECH      []tls.EncryptedClientHelloKey // policy.ParseECH makes them
}

// NewTable builds the table of a valid configuration.
func NewTable(cfg *config.Config, parts Parts) (*Table, error) {
	t := &Table{edges: make(map[string]*edge), routes: make(map[routeOn]bool), ech: parts.ECH}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		t.edges[l.Name] = &edge{
			name: l.Name, protocol: l.Protocol, timeouts: l.Timeouts, forwarding: filter.NewForwarding(l),
			http2: l.HTTP2.Offer, priorKnowledge: l.HTTP2.PriorKnowledge, streams: l.HTTP2.MaxStreams,
			hosts: make(map[string]*host), wildcards: make(map[string]*host),
			fallback: parts.Policies[config.DefaultTLSPolicy],
		}
	}
	for i := range cfg.Routes {
		r := &cfg.Routes[i]
		b := parts.Backends[r.Backend]
		if b == nil && !r.OnlyRedirects() {
			return nil, fmt.Errorf("building the table: route %s names the backend %s, which does not exist", r.Name, r.Backend)
		}
		route := &Route{name: r.Name, backend: b, config: r, metrics: parts.Metrics.route(r.Name, r.Backend, r.Namespace), filters: filter.Compile(r), closed: newClosed(r.Closure)}
		for _, name := range r.Listeners {
			e := t.edges[name]
			if e == nil {
				return nil, fmt.Errorf("building the table: route %s names the listener %s, which does not exist", r.Name, name)
			}
			if err := e.add(route, parts.Policies); err != nil {
				return nil, err
			}
			t.routes[routeOn{name, r.Name}] = true
		}
	}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		e := t.edges[l.Name]
		e.sort()
		if l.TLSPolicy != "" && parts.Policies[l.TLSPolicy] == nil {
			return nil, fmt.Errorf("building the table: listener %s names the TLS policy %s, which does not exist", l.Name, l.TLSPolicy)
		}
		if l.Protocol == config.ProtocolTLS {
			e.chooseNameless(parts.Policies[l.TLSPolicy])
		}
	}
	return t, nil
}

func (e *edge) add(r *Route, policies map[string]*policy.Policy) error {
	switch {
	case e.protocol == config.ProtocolTCP:
		e.raw = r
		return nil
	case r.config.FirstBytes != "":
		e.ssh = r
		return nil
	}
	p := policies[r.config.TLSPolicy]
	if p == nil && e.protocol == config.ProtocolTLS {
		return fmt.Errorf("building the table: route %s names the TLS policy %s, which does not exist", r.name, r.config.TLSPolicy)
	}
	for _, name := range r.config.Hosts {
		e.host(name).add(e, r, p)
	}
	if len(r.config.Hosts) == 0 {
		if e.any == nil {
			e.any = &host{name: "*"}
		}
		e.any.add(e, r, p)
	}
	return nil
}

func (e *edge) host(name string) *host {
	m, full := e.hosts, name
	if suffix, ok := strings.CutPrefix(name, "*."); ok {
		m, name = e.wildcards, suffix
	}
	if m[name] == nil {
		m[name] = &host{name: full}
	}
	return m[name]
}

func (h *host) add(e *edge, r *Route, p *policy.Policy) {
	h.policy = p
	if r.config.TLS == config.TLSPassthrough && e.protocol == config.ProtocolTLS {
		h.passthrough, e.passthrough = r, true
		return
	}
	if r.isTunnel() {
		h.tunnel, e.tunnels = r, true
		return
	}
	e.http = true
	if len(r.config.Paths) == 0 {
		h.paths = append(h.paths, path{config.Path{Value: "/"}, r})
	}
	for _, p := range r.config.Paths {
		h.paths = append(h.paths, path{p, r})
	}
}

// isRaw returns true if the host's connections are tunnels, so that it has no requests.
func (h *host) isRaw() bool { return h.passthrough != nil || h.tunnel != nil }

// chooseNameless finds the policy of clients without SNI. listeners is the policy that the
// listener names for such clients, or nil.
func (e *edge) chooseNameless(listeners *policy.Policy) {
	h := e.opened()
	switch {
	case h != nil && h.policy != e.fallback:
		e.nameless = h.policy
	case listeners == nil, h != nil && e.fallback.ClientAuth != config.ClientAuthNone:
		// A client cannot avoid the client_auth of the route without hosts by sending no SNI.
		e.nameless = e.fallback
	default:
		e.nameless = listeners
	}
}

// opened returns the host for clients without SNI; nil if the listener does not terminate
// their TLS.
func (e *edge) opened() *host {
	if e.any == nil || e.any.passthrough != nil {
		return nil
	}
	return e.any
}

// isTunnel returns true if the backend is for raw connections.
func (r *Route) isTunnel() bool {
	return r.backend != nil && r.backend.Settings().Protocol == config.ProtocolTCP
}

// sort puts the most specific path first: the longest, then an exact path before a prefix,
// and then an open path before a closed one.
func (e *edge) sort() {
	all := []*host{e.any}
	for _, h := range e.hosts {
		all = append(all, h)
	}
	for _, h := range e.wildcards {
		all = append(all, h)
	}
	for _, h := range all {
		if h != nil {
			slices.SortStableFunc(h.paths, func(a, b path) int {
				return cmp.Or(len(b.Value)-len(a.Value), b.rank()-a.rank())
			})
		}
	}
}

// rank orders paths of equal length: the path with the higher rank comes first.
func (p *path) rank() (r int) {
	if p.Exact {
		r += 2
	}
	if !p.Closed && !p.Begins {
		r++
	}
	return r
}
