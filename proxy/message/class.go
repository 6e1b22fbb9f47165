package message

// Class is how weir treats an HTTP header of a client's request, by its name.
type Class uint8

// The classes.
const (
	// Passed headers are forwarded unchanged.
	Passed Class = iota
	// Framing headers describe the connection or the framing of the message: weir evaluates
	// them, and writes new ones if the endpoint needs them.
	Framing
	// Written headers are written by weir and replace those of the client.
	Written
	// Asserted headers contain information about the client that weir does not send. weir
	// keeps them only from trusted senders.
	Asserted
	// Refused headers are never forwarded, not even from trusted senders.
	Refused
)

var classes = [numIDs]Class{
	Host: Framing, Connection: Framing, ContentLength: Framing, TransferEncoding: Framing, Expect: Framing,
	CDNLoop: Framing, Upgrade: Framing, TE: Framing, Trailer: Framing, KeepAlive: Framing, ProxyConnection: Framing,
	ProxyAuthenticate: Framing, ProxyAuthorization: Framing, HTTP2Settings: Framing,
	Forwarded: Written, XForwardedFor: Written, XForwardedProto: Written, XForwardedHost: Written,
	XForwardedPort: Written, XForwardedScheme: Written, XScheme: Written, XRealIP: Written, XRequestID: Written,
	ClientCert: Written, ClientCertChain: Written, XClientCertSubject: Written, XClientCertSAN: Written, XClientCertSHA256: Written,
	XForwardedOther: Asserted, ClientAddress: Asserted, ClientCertOther: Asserted,
	Proxy: Refused, OtherURL: Refused, Misspelt: Refused,
}

// Class returns how weir treats a request header with this id.
func (id ID) Class() Class { return classes[id] }

// Names is a set of header names. A nil set is empty.
type Names struct {
	byLength [][]string // in lower case
}

// NewNames makes a set. Each name is a token (RFC 9110, section 5.6.2).
func NewNames(names []string) *Names {
	if len(names) == 0 {
		return nil
	}
	n := new(Names)
	for _, name := range names {
		for len(n.byLength) <= len(name) {
			n.byLength = append(n.byLength, nil)
		}
		b := []byte(name)
		for i, c := range b {
			b[i] = lower(c)
		}
		n.byLength[len(name)] = append(n.byLength[len(name)], string(b))
	}
	return n
}

// Has returns true if the set has the name. Case does not matter.
func (n *Names) Has(name []byte) bool {
	return n.find(name, func(b []byte, known string) bool { return EqualFold(b, known) })
}

// HasAlike returns true if the set has name, or a name that looks the same to a program
// behind a server. A server passes headers to programs as variables. Then two names are
// the same if they differ only in case, and in bytes that are neither letters nor digits.
// See Lookup.
func (n *Names) HasAlike(name []byte) bool { return n.find(name, alike) }

// BeginsAlike returns true if name begins with prefix, a text in lower case, or with a text that
// looks the same to a program behind a server. See HasAlike.
func BeginsAlike(name []byte, prefix string) bool {
	return len(name) >= len(prefix) && alike(name[:len(prefix)], prefix)
}

func (n *Names) find(name []byte, same func([]byte, string) bool) bool {
	if n == nil || len(name) >= len(n.byLength) {
		return false
	}
	for _, known := range n.byLength[len(name)] {
		if same(name, known) {
			return true
		}
	}
	return false
}

// alike compares names of the same length. Unlike in sameName, any separator in known
// matches any other: an operator may list X_User.
func alike(name []byte, known string) bool {
	for i := range len(known) {
		if c, k := name[i], known[i]; lower(c) != k && !(separates[c] && separates[k]) {
			return false
		}
	}
	return true
}
