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
	// A connection is made for one TLS policy; a request that wants another
	// one's protection has to come over a connection of its own (RFC 9110, section 15.5.20).
	refuseMisdirected = &message.Refusal{Status: 421, Reason: "misdirected", Detail: "the host wants another connection than the one the request came over"}
)

// maxHost is the longest host name (RFC 1035), with a port.
const maxHost = 253 + 6

// lookup finds what the listener does for a host as a client wrote it: case, a
// trailing dot and the port do not matter. nil: nothing.
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

// normalHost appends name in lower case without port and trailing dot. A name
// that is too long to be one comes out empty.
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

// withoutPort cuts the port from an authority; an IPv6 address loses its brackets.
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

// match finds the route of a path: the longest of the host's that matches.
func (h *host) match(p []byte) *Route {
	for i := range h.paths {
		if matches(&h.paths[i].Path, p) {
			return h.paths[i].route
		}
	}
	return nil
}

// matches says whether p is the exact path, or lies at or under the prefix.
// "/" is everyone's prefix, the "*" of OPTIONS included.
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
		return len(p) == len(v) || v[len(v)-1] == '/' || p[len(v)] == '/'
	}
}

// mayMatch says whether an endpoint may take p for what c closes: escapes undone,
// slashes merged, in upper case or lower.
func mayMatch(c *config.Path, p []byte) bool {
	seen, last := 0, byte(0) // of c's value
	for i := 0; i < len(p); i++ {
		b := p[i]
		if b == '%' && i+2 < len(p) { // message.AmbiguousPath refused what is no escape
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

// unhex is the value of a hexadecimal digit.
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

// policyFor is the policy that holds for a host and a client, after `from`.
func (e *edge) policyFor(h *host, client netip.Addr) *policy.Policy {
	if h == nil || h.policy == nil || !h.policy.Allows(client) {
		return e.fallback
	}
	return h.policy
}

// routeOf finds the request's route, or why there is none.
func (x *exchange) routeOf(req *message.Request) (*Route, *message.Refusal) {
	h := x.edge.lookup(req.Bytes(req.Host))
	if h == nil {
		return nil, refuseNoRoute
	}
	if x.tls != nil {
		if h.passthrough != nil || h != x.sniHost && x.edge.policyFor(h, x.conn.Client.Addr()).Scope != x.policy.Scope {
			return nil, refuseMisdirected
		}
	}
	if r := h.match(req.Bytes(req.Path)); r != nil {
		return r, nil
	}
	return nil, refuseNoRoute
}
