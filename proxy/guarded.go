package proxy

import (
	"bytes"
	"slices"

	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"
)

// refuseGuardedRewrite: rewrite of a route must not lead around the guards of another route.
var refuseGuardedRewrite = &message.Refusal{Status: 400, Reason: "guarded_path", Detail: "the route rewrites this path into one that another route restricts"}

// isLessGuarded reports whether r forwards requests that a guard of the other route refuses.
func (r *Route) isLessGuarded(than *Route) bool { return r.config.LessGuarded(than.config) }

// entersGuarded reports whether the route, which rewrites requests, makes of this one a request that
// endpoints of a more guarded route would treat as that route's: with its path in any spelling. The
// host is the client's or the new one, because endpoints may look at either or at none.
func (x *exchange) entersGuarded(r *Route) bool {
	host := []byte(r.config.Rewrite.Host)
	if x.req.Rewritten.Len() > 0 && x.edge.lookup(x.req.Bytes(x.req.Host)).guards(x, r) {
		return true
	}
	h, found := x.edge.hosts.Find(host)
	return found && len(host) > 0 && h.guards(x, r)
}

// guards reports whether a route of the host has the request with its new path, restricts it more
// than r, and leads to a backend of r.
func (h *host) guards(x *exchange, r *Route) bool {
	if h == nil || h.respelled == nil {
		return false
	}
	path, _, _ := bytes.Cut(x.req.EndpointTarget(), []byte{'?'})
	return h.respelled.AnyOf(path, &route.Request{Head: &x.req, Client: x.client.Addr()}, func(other *Route) bool {
		return r.isLessGuarded(other) && other.sharesBackend(r)
	})
}

// sharesBackend reports whether requests of r may reach a backend that requests of other, or their
// copies, may reach as well.
func (r *Route) sharesBackend(other *Route) bool {
	if r.weighted != nil {
		return slices.ContainsFunc(r.weighted.all, other.reaches)
	}
	return r.backend != nil && other.reaches(r.backend)
}

// reaches reports whether requests of r, or their copies, may reach the backend.
func (r *Route) reaches(b *backend.Backend) bool {
	return r.backend == b || r.weighted != nil && slices.Contains(r.weighted.all, b) ||
		slices.ContainsFunc(r.mirrors, func(m *mirror) bool { return m.backend == b })
}
