package message

import "strings"

// ID identifies a field that weir itself reads, writes or refuses to pass on. Zero stands
// for all other fields.
type ID uint8

// The fields that weir knows.
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
	XForwardedScheme // ingress-nginx writes it, and XScheme
	XScheme
	XForwardedOther // all other X-Forwarded-*: Server, Prefix, Ssl ..., and other headers with a scheme or host
	ClientAddress   // all other headers with the client's address, see others
	XRealIP
	XRequestID
	ClientCert
	ClientCertChain
	XClientCertSubject
	XClientCertSAN
	XClientCertSHA256
	ClientCertOther // any other field that backends may use as the client's certificate, see families
	Proxy           // a CGI program gets it as HTTP_PROXY, which HTTP clients use as their proxy (CVE-2016-5385, "httpoxy")
	OtherURL        // a URL that some frameworks use instead of the request's
	StrictTransportSecurity
	CDNLoop
	Authorization
	WWWAuthenticate
	PersistentAuth
	Date
	Misspelt // a name above with another separator instead of "-"
	numIDs
)

// IDs is a set of ids.
type IDs uint64

const _ = uint(64 - numIDs) // every id has a bit

// SetOf returns the set of these ids.
func SetOf(ids ...ID) (s IDs) {
	for _, id := range ids {
		s |= 1 << id
	}
	return s
}

var names = [numIDs]string{
	Host: "Host", Connection: "Connection", ContentLength: "Content-Length",
	TransferEncoding: "Transfer-Encoding", Expect: "Expect", Upgrade: "Upgrade", TE: "TE", Trailer: "Trailer",
	KeepAlive: "Keep-Alive", ProxyConnection: "Proxy-Connection", ProxyAuthenticate: "Proxy-Authenticate",
	ProxyAuthorization: "Proxy-Authorization", HTTP2Settings: "HTTP2-Settings", Forwarded: "Forwarded",
	XForwardedFor: "X-Forwarded-For", XForwardedProto: "X-Forwarded-Proto", XForwardedHost: "X-Forwarded-Host",
	XForwardedPort: "X-Forwarded-Port", XForwardedScheme: "X-Forwarded-Scheme", XScheme: "X-Scheme", XRealIP: "X-Real-IP", XRequestID: "X-Request-Id",
	ClientCert: "Client-Cert", ClientCertChain: "Client-Cert-Chain", XClientCertSubject: "X-Client-Cert-Subject",
	XClientCertSAN: "X-Client-Cert-SAN", XClientCertSHA256: "X-Client-Cert-SHA256",
	Proxy: "Proxy", StrictTransportSecurity: "Strict-Transport-Security", CDNLoop: "CDN-Loop",
	Authorization: "Authorization", WWWAuthenticate: "WWW-Authenticate", PersistentAuth: "Persistent-Auth",
	Date: "Date",
}

// others are further names of ids that weir never writes, in lower case. Content delivery
// networks and other proxies write the names of ClientAddress, and backends are often
// configured to trust them.
var others = [...]struct {
	name string
	id   ID
}{
	{"true-client-ip", ClientAddress},      // Akamai, Cloudflare
	{"cf-connecting-ip", ClientAddress},    // Cloudflare
	{"cf-connecting-ipv6", ClientAddress},  // Cloudflare
	{"cf-pseudo-ipv4", ClientAddress},      // Cloudflare
	{"fastly-client-ip", ClientAddress},    // Fastly
	{"fly-client-ip", ClientAddress},       // Fly.io
	{"do-connecting-ip", ClientAddress},    // DigitalOcean
	{"incap-client-ip", ClientAddress},     // Imperva
	{"x-sucuri-clientip", ClientAddress},   // Sucuri
	{"ali-cdn-real-ip", ClientAddress},     // Alibaba Cloud
	{"cdn-src-ip", ClientAddress},          // Alibaba Cloud, Wangsu
	{"x-azure-clientip", ClientAddress},    // Azure Front Door
	{"x-azure-socketip", ClientAddress},    // Azure Front Door
	{"x-appengine-user-ip", ClientAddress}, // Google App Engine
	{"x-appengine-remote-addr", ClientAddress},
	{"cloudfront-viewer-address", ClientAddress}, // Amazon CloudFront
	{"x-vercel-forwarded-for", ClientAddress},
	{"x-nf-client-connection-ip", ClientAddress}, // Netlify
	{"x-envoy-external-address", ClientAddress},
	{"x-original-forwarded-for", ClientAddress}, // ingress-nginx
	{"x-original-for", ClientAddress},           // ASP.NET Core
	{"x-cluster-client-ip", ClientAddress},      // Rackspace, Zeus, Google
	{"x-proxyuser-ip", ClientAddress},           // Google services
	{"wl-proxy-client-ip", ClientAddress},       // WebLogic
	{"proxy-client-ip", ClientAddress},          // WebLogic
	{"x-client-ip", ClientAddress},
	{"client-ip", ClientAddress},
	{"x-originating-ip", ClientAddress},
	{"x-remote-ip", ClientAddress},
	{"x-remote-addr", ClientAddress},
	{"x-forwarded", ClientAddress},
	{"x-forward-for", ClientAddress},
	{"forwarded-for", ClientAddress},
	{"forwarded-for-ip", ClientAddress},
	{"front-end-https", XForwardedOther}, // Microsoft
	{"x-url-scheme", XForwardedOther},
	{"x-original-proto", XForwardedOther}, // ASP.NET Core
	{"x-original-host", XForwardedOther},  // ASP.NET Core
	{"x-original-url", OtherURL},          // IIS, Symfony
	{"x-rewrite-url", OtherURL},           // IIS, Zend
}

// families are prefixes of names, in lower case. A name with such a prefix has this id,
// unless the whole name has an id. A prefix that ends in "-" is not a name by itself.
// Proxies use the names of ClientCertOther to send a client's certificate to backends, so
// some backends trust them.
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
	{"x-ssl-client", ClientCertOther},     // usual with HAProxy and nginx
	{"x-ssl-cert", ClientCertOther},       // the same
	{"ssl-client-", ClientCertOther},      // ingress-nginx; SSL_CLIENT_... of Apache httpd
	{"x-amzn-mtls-", ClientCertOther},     // Amazon's load balancers
	{"x-arr-clientcert", ClientCertOther}, // Azure App Service and IIS
	{"cf-client-cert-", ClientCertOther},  // Cloudflare
}

// beginsFamily are the first letters in families.
var beginsFamily = [256]bool{'x': true, 's': true, 'c': true}

// String returns the name as weir writes it.
func (id ID) String() string { return names[id] }

// known is a name in lower case and its id.
type known struct {
	name string
	id   ID
}

// longest is the length of the longest name in groups.
const longest = 31

// groups are the known names, grouped by length and first letter. groupOf is the index. So
// Lookup compares most other names with no known name. Group 0 is empty.
var groups, groupOf = func() (groups [][]known, of [longest + 1][32]uint8) {
	groups = [][]known{nil}
	add := func(k known) {
		at := &of[len(k.name)][k.name[0]&31]
		if *at == 0 {
			*at = uint8(len(groups))
			groups = append(groups, nil)
		}
		groups[*at] = append(groups[*at], k)
	}
	for id, name := range names {
		if name != "" {
			add(known{strings.ToLower(name), ID(id)})
		}
	}
	for _, o := range others {
		add(known{o.name, o.id})
	}
	return groups, of
}()

// Lookup returns the id of a field name. CGI (RFC 3875, section 4.1.18) and frameworks pass
// fields to programs as variables. Some servers replace every byte that is neither a letter
// nor a digit by "_" in their names (lighttpd), others only some bytes (CVE-2026-39858). So
// Lookup also finds a known name with such bytes instead of "-", and returns Misspelt. It
// compares byte by byte: with one separator more or less, the variable differs.
func Lookup(name []byte) ID {
	if len(name) == 0 {
		return Other
	}
	if len(name) <= longest {
		if group := groupOf[len(name)][name[0]&31]; group != 0 {
			for i := range groups[group] {
				k := &groups[group][i]
				if same, exact := sameName(name, k.name); same {
					if exact {
						return k.id
					}
					return Misspelt
				}
			}
		}
	}
	if beginsFamily[name[0]|0x20] {
		return lookupFamily(name)
	}
	return Other
}

// lookupFamily is Lookup for a name that is not in groups.
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

// sameName compares a received name with a known one of the same length in lower case.
// exact is false if a separator differs.
func sameName(name []byte, known string) (same, exact bool) {
	exact = true
	for i := range len(known) {
		c, k := name[i], known[i]
		if lower(c) == k {
			continue
		}
		if k != '-' || !separates[c] {
			return false, false
		}
		exact = false
	}
	return true, exact
}

// separates contains true for the bytes that are neither letters nor digits of ASCII.
var separates = func() (t [256]bool) {
	for c := range t {
		l := lower(byte(c))
		t[c] = (l < 'a' || 'z' < l) && (l < '0' || '9' < l)
	}
	return t
}()

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

// EachToken calls f with each element of a comma-separated list, trimmed. It skips empty
// elements.
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

// HasToken reports whether a comma-separated list contains a lower-case token.
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
