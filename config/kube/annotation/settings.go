package annotation

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// Settings are what the annotations of an Ingress set for the routes to its paths. The zero
// value sets nothing.
type Settings struct {
	MaxBody int64 // of a request, in bytes; 0: no limit
	// Allow and Deny are the networks of the clients that may use the routes, and of those that
	// may not. Deny goes before Allow. An empty Allow has every client.
	Allow, Deny []netip.Prefix
	// ByAddress: addresses of clients may decide about access. RealIP is the snippet that changes them; empty: none.
	ByAddress bool
	RealIP    string
	Rewrite   Rewrite
	Redirects Redirects
	Canary    Canary
	Affinity  Affinity
	Balance   Balance
	Forward   Forward
	Mirror    Mirror
	// Passthrough: the TLS connections of the hosts are forwarded without decrypting them.
	Passthrough bool
	Untraced    bool // weir does not trace the requests
	// DefaultBackend is the name of a Service, which gets requests while there is no other
	// endpoint; empty: none.
	DefaultBackend string
	Aliases        []string // further names of the hosts, in lower case

	Timeouts      Timeouts
	Retries       Retries
	BasicAuth     BasicAuth
	AuthURL       AuthURL
	AuthTLS       AuthTLS
	CORS          CORS
	Limits        Limits
	Snippets      Snippets
	Reverse       Reverse
	CustomHeaders CustomHeaders
	Errors        Errors
	ProxySSL      ProxySSL
	Unlogged      bool // the access log has no lines for the routes

	Any bool // clients in Allow need no authentication, and authenticated ones need not be in Allow
	// Everybody means that there is a list of the clients that may use the routes, and that it has
	// all of them. Allow is empty.
	Everybody bool

	allowed bool // allowlist-source-range has set Allow
}

// SettingsOf reads the annotations of an Ingress that set something for its routes.
func SettingsOf(i *networkingv1.Ingress) (s Settings) {
	c := contextOf(i)
	s.ByAddress = c.byAddress()
	for _, name := range []string{"configuration-snippet", "server-snippet"} {
		if realIP.MatchString(c.value(name)) {
			s.RealIP = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Annotations)) { // of two spellings of a name, the spelling in lower case comes last, and counts
		key, ok := strings.CutPrefix(name, Nginx)
		if !ok || IsUnset(name, i.Annotations[name]) {
			continue
		}
		if j := nginx[general(key)]; j.set != nil {
			j.set(strings.TrimSpace(i.Annotations[name]), c, &s)
		}
	}
	return s
}

// setter reads the value of an annotation into s, and rates it. A value that weir does not
// apply leaves s unchanged.
type setter func(value string, c context, s *Settings) (Rating, string)

// setting rates an annotation by the function that reads it: so weir does what the rating says.
func setting(set setter) judge {
	return judge{set: set, look: func(value string, c context) (Rating, string) { return set(value, c, &Settings{}) }}
}
