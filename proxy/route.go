package proxy

import (
	"bytes"
	"net/netip"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/policy"
)

var (
	refuseNoRoute = &message.Refusal{Status: 404, Reason: "no_route", Detail: "no route matches the host and path"}
	// A connection is made for one TLS policy. A request for a host with another policy needs
	// another connection (RFC 9110, section 15.5.20).
	refuseMisdirected = &message.Refusal{Status: 421, Reason: "misdirected", Detail: "this host needs a connection of its own, because its TLS settings differ from those of this connection"}
)

// refuseRevoked asks the client for a new connection, whose handshake will fail.
var refuseRevoked = &message.Refusal{Status: 421, Reason: "revoked", Detail: "the client certificate was revoked after the connection was opened"}

// maxHost is the longest host name (RFC 1035), with a port.
const maxHost = 253 + 6

// lookup finds the listener's host for a host as a client wrote it. Case, a trailing dot and
// the port do not matter. nil: none.
func (e *edge) lookup(name []byte) *host {
	var buf [maxHost]byte
	key := normalHost(buf[:0], name)
	if h := e.hosts[string(key)]; h != nil {
		return h
	}
	if len(e.wildcards) > 0 {
		if dot := bytes.IndexByte(key, '.'); dot > 0 {
			if h := e.wildcards[string(key[dot+1:])]; h != nil {
				return h
			}
		}
	}
	return e.any
}

// normalHost appends name in lower case, without port and trailing dot. If name is too long
// for a host name, it appends nothing.
func normalHost(buf, name []byte) []byte {
	if len(name) > maxHost {
		return buf
	}
	name = withoutPort(name)
	if n := len(name); n > 1 && name[n-1] == '.' {
		name = name[:n-1]
	}
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		buf = append(buf, c)
	}
	return buf
}

// withoutPort removes the port from an authority, and the brackets from an IPv6 address.
func withoutPort(name []byte) []byte {
	if len(name) > 0 && name[0] == '[' {
		if end := bytes.IndexByte(name, ']'); end > 0 {
			return name[1:end]
		}
	}
	if colon := bytes.IndexByte(name, ':'); colon >= 0 {
		return name[:colon]
	}
	return name
}

// match finds the route of a path: the first path of the host that matches, in the order of sort.
func (h *host) match(p []byte) *Route {
	for i := range h.paths {
		if matches(&h.paths[i].Path, p) {
			return h.paths[i].route
		}
	}
	return nil
}

// matches reports whether p is the exact path, or equals the prefix or lies under it. The
// prefix "/" matches every path, and also the "*" of OPTIONS.
func matches(c *config.Path, p []byte) bool {
	return matchesText(c, p) || c.Closed && mayMatch(c, p)
}

func matchesText(c *config.Path, p []byte) bool {
	switch v := c.Value; {
	case c.Exact:
		return string(p) == v
	case v == "/":
		return true
	case len(p) < len(v) || string(p[:len(v)]) != v:
		return false
	default:
		return len(p) == len(v) || v[len(v)-1] == '/' || p[len(v)] == '/' || c.Begins
	}
}

// mayMatch reports whether an endpoint may treat p as a path that c closes: with escapes
// decoded, slashes merged, and letters in another case.
func mayMatch(c *config.Path, p []byte) bool {
	seen, last := 0, byte(0) // bytes of c's value that matched; the last byte of p
	for i := 0; i < len(p); i++ {
		b := p[i]
		if b == '%' && i+2 < len(p) { // message.AmbiguousPath has refused invalid escapes
			b = unhex(p[i+1])<<4 | unhex(p[i+2])
			i += 2
		}
		if b == '/' && last == '/' {
			continue
		}
		last = b
		if seen == len(c.Value) {
			return !c.Exact && (c.Begins || b == '/' || c.Value[seen-1] == '/')
		}
		if lower(b) != lower(c.Value[seen]) {
			return false
		}
		seen++
	}
	return seen == len(c.Value)
}

// unhex returns the value of a hexadecimal digit.
func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
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
	return !h.isRaw() && (h == x.sniHost || x.edge.policyFor(h, x.security.SNI, x.origin.Client.Addr()).Scope == x.security.Policy.Scope)
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
	if x.standing.Refused() {
		x.ended, x.outlived = true, true // each further request would be refused
		return nil, refuseRevoked
	}
	if r := h.match(req.Bytes(req.Path)); r != nil {
		return r, nil
	}
	return nil, refuseNoRoute
}
