package proxy

import (
	"math/rand/v2"
	"net/netip"
	"strconv"

	"github.com/weirproxy/weir/proxy/message"
)

// rewrite makes the client's request the one that the endpoint gets: the
// forwarding fields say what weir knows, and what the client said of itself in
// them is gone, unless the listener trusts it.
func (x *exchange) rewrite(hostOverride string) {
	req := &x.req
	if !x.trusted || x.certified {
		x.dropForwarding(req)
	}
	x.addForwarding(req)
	x.addCertFields(req)
	if hostOverride != "" {
		setHost(req, []byte(hostOverride))
	} else if req.Find(message.Host) < 0 {
		setHost(req, req.Bytes(req.Host)) // HTTP/1.0, or the target's own
	}
}

// dropForwarding drops what the client said of itself: all of it unless the
// listener trusts it, and what it says of a certificate also where weir has seen
// one itself, as two would speak for different clients.
func (x *exchange) dropForwarding(req *message.Request) {
	for i := range req.Fields {
		switch f := &req.Fields[i]; f.ID {
		case message.Forwarded, message.XForwardedFor, message.XForwardedProto, message.XForwardedHost,
			message.XForwardedPort, message.XForwardedOther, message.XRealIP, message.XRequestID:
			f.Dropped = f.Dropped || !x.trusted
		case message.ClientCert, message.ClientCertChain, message.XClientCertSubject, message.XClientCertSAN,
			message.XClientCertSHA256, message.ClientCertOther:
			f.Dropped = true
		}
	}
}

func setHost(req *message.Request, host []byte) {
	if i := req.Find(message.Host); i >= 0 {
		req.SetValue(i, host)
		return
	}
	req.Add(message.Host, host)
}

// addForwarding adds what weir knows of the connection. Of a trusted sender's
// fields, lists are added to and single values stay.
func (x *exchange) addForwarding(req *message.Request) {
	var buf [64]byte
	client := appendAddr(buf[:0], x.conn.Client.Addr())
	x.addToList(message.XForwardedFor, client)
	x.addIfAbsent(message.XForwardedProto, []byte(x.scheme()))
	if req.Host.Len() > 0 {
		x.addIfAbsent(message.XForwardedHost, req.Bytes(req.Host))
	}
	if x.conn.Client.IsValid() { // a Unix socket's client has neither address nor port
		x.addIfAbsent(message.XRealIP, client)
		x.addIfAbsent(message.XForwardedPort, strconv.AppendUint(buf[len(client):len(client)], uint64(x.conn.Local.Port()), 10))
	}
	x.addForwarded(req)
	if !x.trusted || req.Find(message.XRequestID) < 0 {
		id := requestID()
		req.Add(message.XRequestID, id[:])
	}
}

func (x *exchange) addIfAbsent(id message.ID, value []byte) {
	if !x.trusted || x.req.Find(id) < 0 {
		x.req.Add(id, value)
	}
}

// addToList adds a field with value, behind the values that a trusted sender gave.
func (x *exchange) addToList(id message.ID, value []byte) {
	if x.trusted {
		if i := x.req.Find(id); i >= 0 {
			var list []byte
			for ; i >= 0; i = x.req.Find(id) {
				list = append(append(list, x.req.Value(i)...), ", "...)
				x.req.Fields[i].Dropped = true
			}
			x.req.Add(id, append(list, value...))
			return
		}
	}
	x.req.Add(id, value)
}

// addForwarded adds the element of RFC 7239 that says the same as the X-Forwarded fields.
func (x *exchange) addForwarded(req *message.Request) {
	var buf [512]byte
	b := append(buf[:0], "for="...)
	if a := x.conn.Client.Addr(); a.Is6() {
		b = append(b, `"[`...)
		b = appendAddr(b, a)
		b = append(b, `]"`...)
	} else {
		b = appendAddr(b, a)
	}
	if host := req.Bytes(req.Host); len(host) > 0 {
		b = append(b, `;host="`...) // a port's colon needs the quotes (section 4)
		b = append(b, host...)
		b = append(b, '"')
	}
	b = append(b, ";proto="...)
	b = append(b, x.scheme()...)
	x.addToList(message.Forwarded, b)
}

// appendAddr appends an address; a Unix socket's client has none.
func appendAddr(b []byte, a netip.Addr) []byte {
	if !a.IsValid() {
		return append(b, "unknown"...) // RFC 7239, section 6.2
	}
	return a.WithZone("").AppendTo(b) // a zone means nothing on another machine
}

// scheme is how the client came: by our own TLS, or by that of the sender of the header.
func (x *exchange) scheme() string {
	if x.tls != nil || x.conn.Header.TLVs.SSL != nil && x.conn.Header.TLVs.SSL.TLS {
		return "https"
	}
	return "http"
}

// requestID is 128 random bits in hexadecimal.
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
