package proxy

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"
)

// refuseGuardedRewrite: rewrite of a route must not lead around the guards of another route.
var refuseGuardedRewrite = &message.Refusal{Status: 400, Reason: "guarded_path", Detail: "this path leads to one that is restricted", Hint: "the route rewrites it into one that another route restricts"}

// refuseGuardedRedirect: a client that follows such a redirect would get refuseGuardedPath.
var refuseGuardedRedirect = &message.Refusal{Status: 400, Reason: "guarded_path", Detail: "this path leads to one that is restricted", Hint: "the route redirects to another spelling of a path that is restricted"}

// isLessGuarded reports whether r forwards requests that a guard of the other route refuses.
func (r *Route) isLessGuarded(than *Route) bool { return r.config.LessGuarded(than.config) }

// guardOf returns a route of the host that restricts the request more than r, to whose path the path
// leads in some spelling; nil: none. h may be nil.
func (h *host) guardOf(r *Route, path []byte, q *route.Request, counts func(*Route) bool) (guard *Route) {
	if h == nil || h.respelled == nil {
		return nil
	}
	h.respelled.AnyOf(path, q, func(other *Route) bool {
		if r.isLessGuarded(other) && counts(other) {
			guard = other
		}
		return guard != nil
	})
	return guard
}

// guardOfSpelling returns the route because of which h refuses a request with refuseGuardedPath.
func (h *host) guardOfSpelling(q *route.Request) *Route {
	return h.guardOfPath(q.Head.Bytes(q.Head.Path), q)
}

// guardOfPath is guardOfSpelling for another path than that of the request. h may be nil.
func (h *host) guardOfPath(path []byte, q *route.Request) *Route {
	if h == nil || h.respelled == nil {
		return nil
	}
	r, found := h.paths.FindOf(path, q)
	if !found {
		return nil
	}
	return h.guardOf(r, path, q, func(*Route) bool { return true })
}

// guardOfRewrite returns a more guarded route whose endpoints would treat the request, which r has
// rewritten, as one of that route's: with its path in any spelling. nil: there is none. The host is
// the client's or the new one, because endpoints may look at either or at none.
func (e *edge) guardOfRewrite(r *Route, q *route.Request) (guard *Route) {
	path, _, _ := bytes.Cut(q.Head.EndpointTarget(), []byte{'?'})
	shares := func(other *Route) bool { return other.sharesBackend(r) }
	if q.Head.Rewritten.Len() > 0 {
		guard = e.lookup(q.Head.Bytes(q.Head.Host)).guardOf(r, path, q, shares)
	}
	if host := r.config.Rewrite.Host; guard == nil && host != "" {
		if h, found := e.hosts.Find([]byte(host)); found {
			guard = h.guardOf(r, path, q, shares)
		}
	}
	return guard
}

// entersGuarded reports whether the route has rewritten the request into one that a more guarded route
// restricts.
func (x *exchange) entersGuarded(r *Route) bool {
	guard := x.edge.guardOfRewrite(r, &route.Request{Head: &x.req, Client: x.client.Addr()})
	x.err = errGuarded(guard)
	return guard != nil
}

// RefusePath returns why weir would refuse this request if it had another path; nil: it would not
// because of another route's guard.
func (x *exchange) RefusePath(path []byte) *message.Refusal {
	guard := x.guardOfPath(path)
	if guard == nil {
		return nil
	}
	x.err = errGuarded(guard)
	return refuseGuardedRedirect
}

// guardOfPath returns the route because of which weir would refuse this request if it had another path.
func (x *exchange) guardOfPath(path []byte) *Route {
	h := x.edge.lookup(x.req.Bytes(x.req.Host))
	return h.guardOfPath(path, &route.Request{Head: &x.req, Client: x.client.Addr()})
}

// whyGuarded returns the cause of refuseGuardedPath for the log.
func (x *exchange) whyGuarded() error {
	h := x.edge.lookup(x.req.Bytes(x.req.Host))
	return errGuarded(h.guardOfSpelling(&route.Request{Head: &x.req, Client: x.client.Addr()}))
}

// errGuarded is the cause of a refusal in the log. Clients do not learn the name of the route.
func errGuarded(guard *Route) error {
	if guard == nil {
		return nil
	}
	return fmt.Errorf("the route %s restricts this path", guard.name)
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
	return isSame(r.backend, b) || r.weighted != nil && slices.ContainsFunc(r.weighted.all, func(one *backend.Backend) bool { return isSame(one, b) }) ||
		r.fallback != nil && isSame(r.fallback.backend, b) ||
		slices.ContainsFunc(r.mirrors, func(m *mirror) bool { return isSame(m.backend, b) })
}

// isSame reports whether two backends have the same endpoints. a may be nil.
func isSame(a, b *backend.Backend) bool {
	if a == nil || a == b {
		return a != nil
	}
	group := b.Settings().Group
	return group != "" && group == a.Settings().Group
}
