package filter

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strconv"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Forwarding writes the HTTP headers about the client into the requests of a listener. They
// contain what weir knows. What the client wrote into them is removed, unless the listener
// trusts the client.
type Forwarding struct {
	trusted    []netip.Prefix // the networks of proxies in trust_forwarded
	trust      Trust          // what weir accepts from them
	lists      *headerLists   // nil: weir drops only its default list
	publicPort int            // the port that clients connect to; 0: unknown
	asserted   *message.Names // headers in which only weir tells who sent a request; nil: none
}

// NewForwarding makes the filter of a listener. asserted are the headers that entries of auth
// set.
func NewForwarding(l *config.Listener, asserted ...string) *Forwarding {
	return &Forwarding{trusted: l.TrustForwarded, trust: trustIn(l), lists: newHeaderLists(l), publicPort: l.PublicPort,
		asserted: message.NewNames(asserted)}
}

// DropAsserted drops the headers that entries of auth set, from every sender and in any spelling. It
// comes before all conditions and filters of routes.
func (f *Forwarding) DropAsserted(h *message.Head) {
	if f.asserted == nil {
		return
	}
	for i := range h.Fields {
		if f.asserted.HasAlike(h.Name(i)) {
			h.Fields[i].Dropped = true
		}
	}
}

// EditRequest removes untrusted headers about the client, and adds the headers about it. It appends to a
// list of addresses from a trusted sender; it keeps single values of a trusted sender.
func (f *Forwarding) EditRequest(x Exchange) {
	r := forwarded{req: x.Request(), origin: x.Origin(), client: x.Client(), trusts: x.Trusts(), publicPort: f.publicPort, scheme: "http"}
	if x.Secure() {
		r.scheme = "https"
	}
	f.dropUntrusted(r.req, r.trusts)
	r.add()
}

// Identify gives the request exactly one X-Request-Id: the id of a trusted sender, or a new one.
func (f *Forwarding) Identify(x Exchange) {
	r := forwarded{req: x.Request(), trusts: x.Trusts()}
	if r.single(message.XRequestID) >= 0 {
		return
	}
	r.req.Drop(message.XRequestID)
	id := RequestID()
	r.req.Add(message.XRequestID, id[:])
}

// forwarded is a request that gets the headers about its client.
type forwarded struct {
	req        *message.Request
	origin     *conn.Origin
	client     netip.AddrPort
	trusts     Trust
	publicPort int
	scheme     string // https if the client used TLS: to weir, or by the PROXY header to its sender
}

func (r *forwarded) add() {
	var buf, other [64]byte
	req := r.req
	sender := appendAddr(buf[:0], r.origin.Client.Addr())
	client := sender
	if a := r.client.Addr(); a != r.origin.Client.Addr() {
		client = appendAddr(other[:0], a)
	}
	r.addForwardedFor(sender)
	r.addSingle(message.XForwardedProto, []byte(r.scheme))
	r.addSingle(message.XForwardedHost, req.Bytes(req.Host))
	if r.client.IsValid() { // the client of a Unix socket has no address
		req.Add(message.XRealIP, client)
	}
	scheme := r.forwardedScheme()
	var port [len("65535")]byte
	r.addSingle(message.XForwardedPort, r.appendPort(port[:0], scheme))
	req.Add(message.XForwardedScheme, []byte(scheme))
	req.Add(message.XScheme, []byte(scheme))
	r.addForwarded(client)
}

// single returns the field of that id that a trusted sender wrote, or -1. If several
// differ, weir cannot know which one the sender wrote itself and which one its client
// wrote, so it drops all of them.
func (r *forwarded) single(id message.ID) int {
	req := r.req
	if r.trusts&needs[id] == 0 {
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
func (r *forwarded) addSingle(id message.ID, value []byte) {
	if r.single(id) < 0 && len(value) > 0 {
		r.req.Add(id, value)
	}
}

// addForwardedFor appends the address of the other end of the connection to the addresses
// from a trusted sender, in one field.
func (r *forwarded) addForwardedFor(sender []byte) {
	req := r.req
	if r.trusts&TrustFor == 0 || req.Find(message.XForwardedFor) < 0 {
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
// and X-Real-IP, which were added before. client is the text of the client's address.
func (r *forwarded) addForwarded(client []byte) {
	host, scheme := r.forwardedHost(), r.forwardedScheme()
	r.req.Append(message.Forwarded, func(b []byte) []byte {
		b = append(b, "for="...)
		if r.client.Addr().Is6() {
			b = append(b, `"[`...)
			b = append(b, client...)
			b = append(b, `]"`...)
		} else {
			b = append(b, client...)
		}
		if len(host) > 0 {
			b = append(b, `;host="`...) // the colon of a port needs the quotes (section 4)
			b = append(b, host...)
			b = append(b, '"')
		}
		b = append(b, ";proto="...)
		return append(b, scheme...)
	})
}

// appendPort appends the port that the client used. This is rarely the listener's own
// port: a Service, a load balancer or the port mapping of a container may translate it.
// weir takes the listener's public_port, or else the destination port in the PROXY header,
// or else the port in the request's host, or else the default port of the scheme.
func (r *forwarded) appendPort(b []byte, scheme string) []byte {
	if r.publicPort != 0 {
		return strconv.AppendUint(b, uint64(r.publicPort), 10)
	}
	if h := r.origin.Header; h.Version != 0 && !h.Local && r.origin.Local.Port() != 0 {
		return strconv.AppendUint(b, uint64(r.origin.Local.Port()), 10)
	}
	if port := portOf(r.forwardedHost()); len(port) > 0 {
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
func (r *forwarded) forwardedHost() []byte {
	if r.trusts&TrustHost != 0 {
		if host := r.req.Get(message.XForwardedHost); message.ValidHost(host) {
			return host
		}
	}
	return r.req.Bytes(r.req.Host)
}

// forwardedScheme returns the scheme that the client used. A value from a trusted sender
// counts only if it is unambiguous.
func (r *forwarded) forwardedScheme() string {
	if r.trusts&TrustProto == 0 {
		return r.scheme
	}
	switch proto := r.req.Get(message.XForwardedProto); {
	case message.EqualFold(proto, "https"), message.EqualFold(proto, "wss"):
		return "https"
	case message.EqualFold(proto, "http"), message.EqualFold(proto, "ws"):
		return "http"
	}
	return r.scheme
}

// appendAddr appends an address, or "unknown" for the client of a Unix socket.
func appendAddr(b []byte, a netip.Addr) []byte {
	if !a.IsValid() {
		return append(b, "unknown"...) // RFC 7239, section 6.2
	}
	return a.WithZone("").AppendTo(b) // a zone means nothing on another machine
}

// RequestID returns 128 random bits in hexadecimal.
func RequestID() (id [32]byte) {
	var bits [16]byte
	binary.BigEndian.PutUint64(bits[:8], rand.Uint64())
	binary.BigEndian.PutUint64(bits[8:], rand.Uint64())
	hex.Encode(id[:], bits[:])
	return id
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, n := range networks {
		if n.Contains(a) {
			return true
		}
	}
	return false
}
