package proxy

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"strconv"

	"github.com/weirproxy/weir/proxy/message"
)

// rewrite changes the client's request into the request for the endpoint. The forwarding headers
// contain what weir knows. Weir removes what the client wrote into them, unless the listener
// trusts the client.
func (x *exchange) rewrite(hostOverride string) {
	req := &x.req
	x.dropClaims()
	x.addForwarding(req)
	x.addCertFields(req)
	addVisit(req)
	if hostOverride != "" {
		setHost(req, []byte(hostOverride))
	} else if req.Find(message.Host) < 0 {
		setHost(req, req.Bytes(req.Host)) // HTTP/1.0, or the host of the target
	}
}

func setHost(req *message.Request, host []byte) {
	if i := req.Find(message.Host); i >= 0 {
		req.SetValue(i, host)
		return
	}
	req.Add(message.Host, host)
}

// addForwarding adds the HTTP headers about the client. To a list of addresses from a
// trusted sender it appends; it keeps single values of a trusted sender.
func (x *exchange) addForwarding(req *message.Request) {
	var buf [64]byte
	x.addForwardedFor(appendAddr(buf[:0], x.origin.Client.Addr()))
	x.addSingle(message.XForwardedProto, []byte(x.scheme()))
	x.addSingle(message.XForwardedHost, req.Bytes(req.Host))
	if x.client.IsValid() { // the client of a Unix socket has no address
		req.Add(message.XRealIP, appendAddr(buf[:0], x.client.Addr()))
	}
	scheme := x.forwardedScheme()
	x.addSingle(message.XForwardedPort, x.appendPort(buf[:0], scheme))
	req.Add(message.XForwardedScheme, []byte(scheme))
	req.Add(message.XScheme, []byte(scheme))
	x.addForwarded(req)
	if x.single(message.XRequestID) < 0 {
		id := requestID()
		req.Add(message.XRequestID, id[:])
	}
}

// single returns the field of that id that a trusted sender wrote, or -1. If several
// differ, weir cannot know which one the sender wrote itself and which one its client
// wrote, so it drops all of them.
func (x *exchange) single(id message.ID) int {
	req := &x.req
	if x.trusts&needs[id] == 0 {
		return -1
	}
	first := req.Find(id)
	if first < 0 {
		return -1
	}
	for i := first + 1; i < len(req.Fields); i++ {
		f := &req.Fields[i]
		if f.ID != id || f.Dropped {
			continue
		}
		if !bytes.Equal(req.Value(i), req.Value(first)) {
			req.Drop(id)
			return -1
		}
		f.Dropped = true
	}
	return first
}

// addSingle adds a field with value, if value is not empty and no trusted sender wrote the
// field.
func (x *exchange) addSingle(id message.ID, value []byte) {
	if x.single(id) < 0 && len(value) > 0 {
		x.req.Add(id, value)
	}
}

// addForwardedFor appends the address of the other end of the connection to the addresses
// from a trusted sender, in one field.
func (x *exchange) addForwardedFor(sender []byte) {
	req := &x.req
	if x.trusts&trustFor == 0 || req.Find(message.XForwardedFor) < 0 {
		req.Add(message.XForwardedFor, sender)
		return
	}
	req.Append(message.XForwardedFor, func(b []byte) []byte {
		for i := range req.Fields {
			if f := &req.Fields[i]; f.ID == message.XForwardedFor && !f.Dropped {
				f.Dropped = true
				b = append(append(b, req.Value(i)...), ", "...)
			}
		}
		return append(b, sender...)
	})
}

// addForwarded adds an element of RFC 7239 with the same content as the X-Forwarded fields
// and X-Real-IP, which were added before.
func (x *exchange) addForwarded(req *message.Request) {
	var buf [512]byte
	b := append(buf[:0], "for="...)
	if a := x.client.Addr(); a.Is6() {
		b = append(b, `"[`...)
		b = appendAddr(b, a)
		b = append(b, `]"`...)
	} else {
		b = appendAddr(b, a)
	}
	if host := x.forwardedHost(); len(host) > 0 {
		b = append(b, `;host="`...) // the colon of a port needs the quotes (section 4)
		b = append(b, host...)
		b = append(b, '"')
	}
	b = append(b, ";proto="...)
	b = append(b, x.forwardedScheme()...)
	req.Add(message.Forwarded, b)
}

// appendPort appends the port that the client used. Behind a Service, a load balancer or a
// container's port mapping it rarely is the listener's own port. weir takes the listener's
// public_port, or else the destination port in the PROXY header, or else the port in the
// request's host, or else the default port of the scheme.
func (x *exchange) appendPort(b []byte, scheme string) []byte {
	if x.edge.publicPort != 0 {
		return strconv.AppendUint(b, uint64(x.edge.publicPort), 10)
	}
	if h := x.origin.Header; h.Version != 0 && !h.Local && x.origin.Local.Port() != 0 {
		return strconv.AppendUint(b, uint64(x.origin.Local.Port()), 10)
	}
	if port := portOf(x.forwardedHost()); len(port) > 0 {
		return append(b, port...)
	}
	if scheme == "https" {
		return append(b, "443"...)
	}
	return append(b, "80"...)
}

// portOf returns the port of an authority, as it was written. It is empty if there is none,
// or if it is not a port number.
func portOf(authority []byte) []byte {
	name := hostOf(authority)
	if len(name) == len(authority) || len(authority) > len(name)+len(":65535") {
		return nil
	}
	port, n := authority[len(name)+1:], 0
	for _, c := range port {
		if c < '0' || '9' < c {
			return nil
		}
		n = n*10 + int(c-'0')
	}
	if n == 0 || n > 65535 {
		return nil
	}
	return port
}

// forwardedHost returns the host that the client requested.
func (x *exchange) forwardedHost() []byte {
	if x.trusts&trustHost != 0 {
		if host := x.req.Get(message.XForwardedHost); message.ValidHost(host) {
			return host
		}
	}
	return x.req.Bytes(x.req.Host)
}

// forwardedScheme returns the scheme that the client used. A value from a trusted sender
// counts only if it is unambiguous.
func (x *exchange) forwardedScheme() string {
	if x.trusts&trustProto == 0 {
		return x.scheme()
	}
	switch proto := x.req.Get(message.XForwardedProto); {
	case message.EqualFold(proto, "https"), message.EqualFold(proto, "wss"):
		return "https"
	case message.EqualFold(proto, "http"), message.EqualFold(proto, "ws"):
		return "http"
	}
	return x.scheme()
}

// appendAddr appends an address, or "unknown" for the client of a Unix socket.
func appendAddr(b []byte, a netip.Addr) []byte {
	if !a.IsValid() {
		return append(b, "unknown"...) // RFC 7239, section 6.2
	}
	return a.WithZone("").AppendTo(b) // a zone means nothing on another machine
}

// scheme returns https if the client used TLS: to weir, or by the PROXY header to its sender.
func (x *exchange) scheme() string {
	if x.secure() {
		return "https"
	}
	return "http"
}

// requestID returns 128 random bits in hexadecimal.
func requestID() (id [32]byte) {
	const digits = "0123456789abcdef"
	hi, lo := rand.Uint64(), rand.Uint64()
	for i := range 16 {
		id[i] = digits[hi>>(60-4*i)&15]
		id[16+i] = digits[lo>>(60-4*i)&15]
	}
	return id
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	a = a.WithZone("")
	for _, n := range networks {
		if n.Contains(a) {
			return true
		}
	}
	return false
}
