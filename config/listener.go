package config

import (
	"net/netip"
	"time"
)

// Listener is one address that weir accepts connections on.
type Listener struct {
	Name     string
	Position Position
	// Network is "tcp" or "unix". A tcp address without a host is dual stack.
	Network string
	// Address is host:port, or the path of a Unix socket.
	Address  string
	Protocol Protocol
	// PublicPort is the port that clients connect to, if it differs from the port in
	// Address, for example the port of a Service; 0: unknown.
	PublicPort int
	// TLSPolicy is the policy for clients without SNI, unless the route without hosts has
	// a policy other than DefaultTLSPolicy; empty: DefaultTLSPolicy.
	TLSPolicy string
	// UnknownPolicy is the policy for hosts that no route names; empty: DefaultTLSPolicy.
	// Only listeners of objects have it.
	UnknownPolicy string
	// HeaderPolicy names an entry of HeaderPolicies; empty: weir does not look for PROXY
	// headers.
	HeaderPolicy string
	// MaxConnections limits the open connections of the listener; 0: only Limits applies.
	MaxConnections int
	// TrustForwarded lists the networks of trusted proxies in front of weir. weir
	// compares them with the address of the connection. weir accepts from these proxies
	// the information that Trust lists.
	TrustForwarded []netip.Prefix
	// Trust is nil if TrustForwarded is empty.
	Trust []Trust
	// DropHeaders are the HTTP headers that weir drops from the requests of every sender.
	// KeepHeaders are the HTTP headers that weir keeps although it would drop them by
	// default. They are spelled as in the file.
	DropHeaders, KeepHeaders []string
	// Lenient lists the faults of requests that weir accepts.
	Lenient []Leniency
	// HTTP2 is the zero value on tcp listeners.
	HTTP2    ListenerHTTP2
	Timeouts ListenerTimeouts
}

// HearsOfHTTPS reports whether a proxy in front of the listener may report that a client
// used https: in a trusted X-Forwarded-Proto, or in a PROXY header.
func (l *Listener) HearsOfHTTPS() bool { return l.Trusts(TrustProto) || l.HeaderPolicy != "" }

// ClientPort returns the port that clients connect to; 0: unknown.
func (l *Listener) ClientPort() int {
	if l.PublicPort != 0 || l.Network != "tcp" {
		return l.PublicPort
	}
	return portOfAddress(l.Address)
}

// ListenerHTTP2 sets how clients may use HTTP/2.
type ListenerHTTP2 struct {
	// Offer: on tls listeners, weir offers HTTP/2 by ALPN, if the handshake will
	// negotiate TLS 1.2 or later and a suite that HTTP/2 allows.
	Offer bool
	// PriorKnowledge: on http listeners, a client may begin with the HTTP/2 preface.
	PriorKnowledge bool
	// MaxStreams limits the concurrent exchanges of one connection.
	MaxStreams int
}

// ListenerTimeouts limit how long weir waits for a client. None is ever zero, except StreamIdle.
type ListenerTimeouts struct {
	// Handshake limits ClientHello and TLS handshake together. It also limits the wait
	// for the first bytes if weir has to look at them. It counts from the end of the
	// PROXY header.
	Handshake time.Duration
	// RequestHead limits a request head. It counts from the first byte of the head, and
	// for the first request of a connection from the end of the handshake.
	RequestHead time.Duration
	// BodyIdle limits the wait for more bytes of a request body, or for the client to
	// read more of a response.
	BodyIdle time.Duration
	// StreamIdle limits the wait for more bytes of a request body that the client does not owe:
	// of a gRPC call, or once the response has begun. 0: BodyIdle limits it.
	StreamIdle time.Duration
	// BodyMinRate is the minimum rate of a request body in bytes per second, measured
	// over BodyIdle; 0: any rate.
	BodyMinRate int64
	// KeepAlive limits the wait for the next request on a connection.
	KeepAlive time.Duration
	// TunnelIdle ends a tunnel that carried no bytes in either direction for this time.
	TunnelIdle time.Duration
}

// HeaderMode is how a rule treats connections from its networks.
type HeaderMode string

// The header modes, as docs/configuration.md describes them.
const (
	HeaderRequire  HeaderMode = "require"
	HeaderOptional HeaderMode = "optional"
	HeaderDiscard  HeaderMode = "discard"
	HeaderNone     HeaderMode = "none"
	HeaderDeny     HeaderMode = "deny"
)

// DefaultHeaderTimeout is the HeaderTimeout of a policy that sets none.
const DefaultHeaderTimeout = 5 * time.Second

// HeaderPolicy is one entry of proxy_protocol: which peers may or must send a PROXY
// header, and within which time.
type HeaderPolicy struct {
	Name     string
	Position Position
	// HeaderTimeout counts from accept. At least one second.
	HeaderTimeout time.Duration
	Rules         []HeaderRule
}

// HeaderRule applies Mode to the peers in From. The longest matching prefix of all rules
// of a policy decides. weir denies a peer that no rule matches.
type HeaderRule struct {
	From []netip.Prefix
	Mode HeaderMode
	// MixedFamilies accepts v1 headers with one IPv4 and one IPv6 address.
	MixedFamilies bool
}
