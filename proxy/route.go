package proxy

import (
	"net/netip"

	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"
	"github.com/weirproxy/weir/tls/policy"
)

var (
	refuseNoRoute = &message.Refusal{Status: 404, Reason: "no_route", Detail: "no route matches the host and path"}
	// Endpoints treat paths of different spelling as the same. Such a path must not avoid the
	// guards of the route that has it in another spelling.
	refuseGuardedPath = &message.Refusal{Status: 400, Reason: "guarded_path", Detail: "another spelling of this path is restricted; write the path as it is in links"}
	// A connection is made for one TLS policy. A request for a host with another policy needs
	// another connection (RFC 9110, section 15.5.20).
	refuseMisdirected = &message.Refusal{Status: 421, Reason: "misdirected", Detail: "this host needs a connection of its own", Hint: "its TLS settings differ from those of this connection"}
)

// The route of the preflight itself has cors, but must not answer for another route.
var refusePreflight = &message.Refusal{Status: 403, Reason: "cors_other_route", Detail: "requests from other origins are not allowed here", Hint: "the route of the request that this preflight asks for has no cors"}

// refuseRevoked asks the client for a new connection, whose handshake will fail.
var refuseRevoked = &message.Refusal{Status: 421, Reason: "revoked", Detail: "the client certificate was revoked after the connection was opened"}

// lookup finds the listener's host for a host as a client wrote it. Case, a trailing dot and
// the port do not matter. nil: none.
func (e *edge) lookup(name []byte) *host {
	if h, found := e.hosts.Find(name); found {
		return h
	}
	return e.any
}

// policyFor returns the policy for a host and a client, with regard to `from`. sni is the name
// that the client sent as SNI, or empty.
func (e *edge) policyFor(h *host, sni string, client netip.Addr) *policy.Policy {
	p := e.policyOf(h, sni)
	if p == nil || !p.Allows(client) {
		return e.fallback
	}
	return p
}

// policyOf returns the policy for a host and the clients in its `from`; nil: the fallback.
func (e *edge) policyOf(h *host, sni string) *policy.Policy {
	switch {
	case sni == "" && (h == nil || h == e.any):
		return e.nameless
	case h != nil:
		return h.policy
	}
	return nil
}

// carries returns true if requests for the host may come over the connection.
func (x *exchange) carries(h *host) bool {
	return x.edge.carries(h, x.sniHost, x.security.SNI, x.security.Policy, x.origin.Client.Addr())
}

// carries returns true if requests for the host may come over a connection with this policy,
// which was opened for another host.
func (e *edge) carries(h, opened *host, sni string, under *policy.Policy, client netip.Addr) bool {
	return !h.isRaw() && (h == opened || e.policyFor(h, sni, client).Scope == under.Scope)
}

// misdirected ends the connection with this exchange if the connection was opened for the same
// host, and a reload has changed the host since. A connection without SNI was opened for the
// route without hosts. Many clients do not open another connection after a 421; they would get
// 421 for every request.
func (x *exchange) misdirected(h *host) {
	if h == x.edge.lookup([]byte(x.security.SNI)) {
		x.ended, x.outlived = true, true
	}
}

// routeOf returns the request's route, or the refusal if there is none.
func (x *exchange) routeOf(req *message.Request) (*Route, *message.Refusal) {
	h := x.edge.lookup(req.Bytes(req.Host))
	if h == nil {
		return nil, refuseNoRoute
	}
	if x.security.Terminated() && !x.carries(h) {
		x.misdirected(h)
		return nil, refuseMisdirected
	}
	if x.security.cert != nil && x.security.cert.standing.Refused() {
		x.ended, x.outlived = true, true // each further request would be refused
		return nil, refuseRevoked
	}
	return h.routeOf(&route.Request{Head: req, Client: x.client.Addr()})
}

// routeOf returns the route of a request for the host, or the refusal if there is none.
func (h *host) routeOf(q *route.Request) (*Route, *message.Refusal) {
	if h.cors {
		if r := h.preflightRoute(*q); r != nil {
			return r, nil
		}
	}
	r, found := h.paths.Find(q)
	switch {
	case !found:
		return nil, refuseNoRoute
	case h.respelled != nil && h.respelled.Any(q, r.isLessGuarded):
		return nil, refuseGuardedPath
	case h.cors && r.config.CORS != nil && len(filter.Preflight(q.Head)) > 0:
		return nil, refusePreflight
	}
	return r, nil
}

// preflightRoute returns the route that the request after a preflight would have, if that route
// answers preflights; otherwise nil. No endpoint gets the preflight, so it needs no look at other
// spellings of its path.
func (h *host) preflightRoute(q route.Request) *Route {
	if q.Preflight = filter.Preflight(q.Head); len(q.Preflight) == 0 {
		return nil
	}
	if r, found := h.paths.Find(&q); found && r.config.CORS != nil {
		return r
	}
	return nil
}
