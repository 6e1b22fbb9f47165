package proxy

import (
	"slices"

	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
)

// NTLM and Negotiate authenticate a connection instead of a request: an endpoint assigns every
// later request on the connection to the same user. From then on weir makes such a connection
// to an endpoint private: only one client connection uses it, for all its exchanges with that
// backend, and it ends with that client connection.

// mostPrivate limits the private connections of one client connection. Each of them goes to
// another backend.
const mostPrivate = 4

// privates are the private connections of one HTTP/1.1 client connection that no exchange uses
// now. The most recently used one is at the end. A nil *privates: the client can have none.
type privates []*backend.Link

// take removes the connection to a backend from the list and returns it; nil: there is
// none.
func (p *privates) take(b *backend.Backend) *backend.Link {
	for i, s := range *p {
		if s.Endpoint().Backend() == b {
			*p = slices.Delete(*p, i, i+1)
			return s
		}
	}
	return nil
}

// has reports whether there is a connection to a backend.
func (p *privates) has(b *backend.Backend) bool {
	return slices.ContainsFunc(*p, func(s *backend.Link) bool { return s.Endpoint().Backend() == b })
}

// keep holds s for the client's next exchange.
func (p *privates) keep(s *backend.Link) {
	if len(*p) == mostPrivate {
		(*p)[0].Drop()
		*p = slices.Delete(*p, 0, 1)
	}
	if s.Endpoint().Hold(s) {
		*p = append(*p, s)
	}
}

// drop closes all private connections.
func (p *privates) drop() {
	for _, s := range *p {
		s.Drop()
	}
	*p = nil
}

var (
	refuseSharedAuth = &message.Refusal{Status: 403, Reason: "connection_auth_shared",
		Detail: "NTLM and Negotiate authenticate a connection, but this connection may carry the requests of many users",
		Hint:   "its sender is in trust_forwarded"}
	refuseHTTP2Auth = &message.Refusal{Status: 421, Reason: "connection_auth_http2",
		Detail: "NTLM and Negotiate authenticate a connection, which HTTP/2 does not support; weir reset the stream with HTTP_1_1_REQUIRED, so that the client uses HTTP/1.1"}
)

// shared returns true if the client's connection carries the requests of many users.
func (x *exchange) shared() bool { return x.trusts&filter.TrustSender != 0 }

// authenticates records whether the request authenticates its connection. It returns false
// if it refused the request: because several users share the client's connection, or
// because it is an HTTP/2 connection.
func (x *exchange) authenticates() bool {
	if x.privates != nil && x.shared() {
		x.privates.drop() // since then, a reload may have added the sender to trust_forwarded
	}
	if !x.req.AuthenticatesConnection() {
		return true
	}
	switch two, ok := x.wire.(downgrader); {
	case x.shared():
		x.reply(refuseSharedAuth)
	case ok:
		two.RequireHTTP1()
		x.status, x.reason, x.err = refuseHTTP2Auth.Status, refuseHTTP2Auth.Reason, refuseHTTP2Auth
	default:
		x.attempts.private = true
		return true
	}
	x.proxy.Metrics.refused(x.edge.name, x.reason)
	return false
}

// acquireFrom is Backend.Acquire, but chooses the endpoint to which the client has a private
// connection, and returns that connection as well.
func (x *exchange) acquireFrom(b *backend.Backend, tried []*backend.Endpoint) (*backend.Endpoint, *backend.Link, error) {
	if x.privates != nil && len(*x.privates) > 0 {
		if e, own, err := x.acquireOwn(b); e != nil || err != nil {
			return e, own, err
		}
	}
	if b.Settings().Sticky == nil {
		e, err := b.Acquire(x.key, tried, x.attempts.deadline(), x)
		return e, nil, err
	}
	e, kept, err := b.AcquireSticky(x.cookie, x.key, tried, x.attempts.deadline(), x)
	x.kept = kept
	return e, nil, err
}

// acquireOwn returns nil if there is no private connection to b, or if it has ended.
func (x *exchange) acquireOwn(b *backend.Backend) (*backend.Endpoint, *backend.Link, error) {
	own := x.privates.take(b)
	if own == nil {
		return nil, nil, nil
	}
	e := own.Endpoint()
	err := b.AcquireAt(e, x)
	switch {
	case err != nil:
		own.Drop()
		if err == backend.ErrNoReady { // another endpoint may be ready
			err = nil
		}
		return nil, nil, err
	case !own.Reclaim():
		own = nil
	}
	return e, own, nil
}

// keep gives back a connection that another exchange may use: a private connection to the
// client connection, if that can have one, and any other connection to the endpoint's pool.
func (x *exchange) keep(link *backend.Link) {
	switch {
	case !link.Private():
		link.Endpoint().Keep(link)
	case x.privates != nil && !x.shared():
		x.privates.keep(link)
	default:
		link.Close()
	}
}
