package message

// ID names a field that weir itself reads, writes or refuses to pass on. Zero
// is every other field.
type ID uint8

// The fields weir knows.
const (
	Other ID = iota
	Host
	Connection
	ContentLength
	TransferEncoding
	Expect
	Upgrade
	TE
	Trailer
	KeepAlive
	ProxyConnection
	ProxyAuthenticate
	ProxyAuthorization
	HTTP2Settings
	Forwarded
	XForwardedFor
	XForwardedProto
	XForwardedHost
	XForwardedPort
	XForwardedOther // any other X-Forwarded-*: Server, Prefix, Scheme, Ssl ...
	XRealIP
	XRequestID
	ClientCert
	ClientCertChain
	XClientCertSubject
	XClientCertSAN
	XClientCertSHA256
	ClientCertOther // any other field that backends take for a word on the client's certificate, see families
	StrictTransportSecurity
	Misspelt // a name above but for "_" or "." where "-" belongs
	numIDs
)

var names = [numIDs]string{
	Host: "Host", Connection: "Connection", ContentLength: "Content-Length",
	TransferEncoding: "Transfer-Encoding", Expect: "Expect", Upgrade: "Upgrade", TE: "TE", Trailer: "Trailer",
	KeepAlive: "Keep-Alive", ProxyConnection: "Proxy-Connection", ProxyAuthenticate: "Proxy-Authenticate",
	ProxyAuthorization: "Proxy-Authorization", HTTP2Settings: "HTTP2-Settings", Forwarded: "Forwarded",
	XForwardedFor: "X-Forwarded-For", XForwardedProto: "X-Forwarded-Proto", XForwardedHost: "X-Forwarded-Host",
	XForwardedPort: "X-Forwarded-Port", XRealIP: "X-Real-IP", XRequestID: "X-Request-Id",
	ClientCert: "Client-Cert", ClientCertChain: "Client-Cert-Chain", XClientCertSubject: "X-Client-Cert-Subject",
	XClientCertSAN: "X-Client-Cert-SAN", XClientCertSHA256: "X-Client-Cert-SHA256",
	StrictTransportSecurity: "Strict-Transport-Security",
}

// families are beginnings of names, in lower case, that stand for an id unless
// the whole name has one. A beginning that ends in "-" is not a name by itself.
// Those of ClientCertOther are what proxies are known to tell backends of a
// client's certificate by, so there are backends that believe them.
var families = [...]struct {
	begins string
	id     ID
}{
	{"x-forwarded-client-cert", ClientCertOther},     // Envoy
	{"x-forwarded-tls-client-cert", ClientCertOther}, // Traefik
	{"x-forwarded-", XForwardedOther},
	{"x-client-cert", ClientCertOther},   // ASP.NET Core, Google's load balancers, Puppet
	{"x-client-verify", ClientCertOther}, // Puppet
	{"x-client-dn", ClientCertOther},
	{"x-ssl-client", ClientCertOther},     // HAProxy and nginx as they are mostly set up
	{"x-ssl-cert", ClientCertOther},       // the same
	{"ssl-client-", ClientCertOther},      // ingress-nginx; SSL_CLIENT_... of Apache httpd
	{"x-amzn-mtls-", ClientCertOther},     // Amazon's load balancers
	{"x-arr-clientcert", ClientCertOther}, // Azure App Service and IIS
	{"cf-client-cert-", ClientCertOther},  // Cloudflare
}

// beginsFamily are the first letters in families.
var beginsFamily = [256]bool{'x': true, 's': true, 'c': true}

// String is the name as weir writes it.
func (id ID) String() string { return names[id] }

// byLength holds the ids whose name has that many bytes.
var byLength = func() (t [32][]ID) {
	for id, name := range names {
		if name != "" {
			t[len(name)] = append(t[len(name)], ID(id))
		}
	}
	return t
}()

// Lookup finds the id of a field name. Frameworks that hand fields over as
// variables read "_" and "." as "-" (CVE-2026-39858), so such spellings of a
// name that weir vouches for are found too, as Misspelt.
func Lookup(name []byte) ID {
	if len(name) < len(byLength) {
		for _, id := range byLength[len(name)] {
			if same, exact := sameName(name, names[id]); same {
				if exact {
					return id
				}
				return Misspelt
			}
		}
	}
	if len(name) > 0 && beginsFamily[name[0]|0x20] {
		return lookupFamily(name)
	}
	return Other
}

// lookupFamily is Lookup for a name that is not in names.
func lookupFamily(name []byte) ID {
	for i := range families {
		f := &families[i]
		if len(name) < len(f.begins) || lower(name[0]) != f.begins[0] || len(name) == len(f.begins) && f.begins[len(f.begins)-1] == '-' {
			continue
		}
		if same, exact := sameName(name[:len(f.begins)], f.begins); same {
			if exact {
				return f.id
			}
			return Misspelt
		}
	}
	return Other
}

// sameName compares a sent name with a known one of the same length. exact is
// false where a separator differs.
func sameName(name []byte, known string) (same, exact bool) {
	exact = true
	for i := range len(known) {
		c, k := name[i], known[i]
		if lower(c) == lower(k) {
			continue
		}
		if k == '-' && (c == '_' || c == '.') {
			exact = false
			continue
		}
		return false, false
	}
	return true, exact
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// EqualFold compares b with a lower-case ASCII string.
func EqualFold(b []byte, lowered string) bool {
	if len(b) != len(lowered) {
		return false
	}
	for i := range len(lowered) {
		if lower(b[i]) != lowered[i] {
			return false
		}
	}
	return true
}

// EachToken calls f with the elements of a comma-separated list, trimmed and without empty ones.
func EachToken(list []byte, f func(token []byte)) {
	for len(list) > 0 {
		end := len(list)
		next := end
		for i, c := range list {
			if c == ',' {
				end, next = i, i+1
				break
			}
		}
		if token := TrimSpace(list[:end]); len(token) > 0 {
			f(token)
		}
		list = list[next:]
	}
}

// HasToken says whether a comma-separated list contains a lower-case token.
func HasToken(list []byte, lowered string) bool {
	found := false
	EachToken(list, func(t []byte) { found = found || EqualFold(t, lowered) })
	return found
}

// TrimSpace cuts spaces and tabs from both ends (RFC 9110, section 5.6.3).
func TrimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}
