package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/pause"
)

// ACME sets how weir gets certificates from a certificate authority (RFC 8555).
type ACME struct {
	// Hosts are the names for which weir gets a certificate at once; wildcards only with
	// DNS-01. An entry of the file that lists no hosts has the hosts of all routes for
	// which weir opens TLS, except hosts that another entry lists. Empty only with
	// OnDemand or Issuer.
	Hosts []string
	Email string
	// Directory is the URL of the authority's directory, never empty.
	Directory string
	// CAFile and CAPool are the CAs that weir trusts for the directory's own certificate:
	// the file, and its PEM bytes as loaded. Empty: the CAs of the system.
	CAFile string
	CAPool []byte
	// KeyType is p256, p384, rsa2048 or rsa4096.
	KeyType         string
	ExternalAccount *ExternalAccount // nil: none
	// Challenges are the challenges that weir may use; never empty. DNS is set if and
	// only if DNS-01 is in the list, and then DNS-01 is the only challenge.
	Challenges []Challenge
	DNS        *DNSChallenge
	OnDemand   *OnDemand // nil: only Hosts
	// Issuer lets Gateways request certificates from this entry; nil: they cannot.
	Issuer *ACMEIssuer
	// Owner is the name of the TLS policy whose clients get the certificates, as in Pair. Only entries
	// of Gateways have one; it is empty in a file.
	Owner string
	// Storage is where weir keeps keys, certificates and accounts, and where replicas
	// share them: an absolute directory, or a redis:// or rediss:// URL. Never empty.
	Storage Secret
}

// Challenge is a way to prove the control of a name.
type Challenge string

// The challenges of RFC 8555, section 8, and RFC 8737.
const (
	ChallengeHTTP01    Challenge = "http-01"
	ChallengeTLSALPN01 Challenge = "tls-alpn-01"
	ChallengeDNS01     Challenge = "dns-01"
)

// ExternalAccount binds the ACME account to an account that the authority knows (RFC
// 8555, section 7.3.4).
type ExternalAccount struct {
	KeyID  string
	MACKey Secret // base64url, as authorities hand it out
}

// DNSChallenge sets how weir writes TXT records for DNS-01.
type DNSChallenge struct {
	RFC2136 RFC2136
	// Resolvers are host:port of the name servers that weir asks whether a record exists;
	// empty: the system's.
	Resolvers []string
	// PropagationDelay is how long weir waits before the first look, 0 or more.
	// PropagationTimeout is how long weir looks for the record; negative: weir does not
	// look.
	PropagationDelay, PropagationTimeout time.Duration
}

// RFC2136 is a name server that accepts dynamic updates, signed by a TSIG key (RFC 8945).
type RFC2136 struct {
	Server       string // host:port
	KeyName      string
	KeyAlgorithm string // for example hmac-sha256
	Key          Secret // base64
}

// OnDemand: weir gets a certificate when a client first asks for its name. At least one
// of Ask and Hosts is set.
type OnDemand struct {
	// Ask is the URL that weir requests with ?domain=NAME; status 200 allows the name.
	Ask string
	// Hosts are patterns. If there are any, a name must match one of them.
	Hosts []string
	// Timeout limits how long a handshake waits. weir continues to get the certificate in
	// the background.
	Timeout time.Duration
	// Concurrent limits how many certificates weir gets at the same time, at least 1.
	Concurrent int
}

// ACMEIssuer lets Gateways and ListenerSets of a cluster request certificates from an ACME entry.
type ACMEIssuer struct {
	// Name is the value of the issuer annotation.
	Name string
	// Allow has at least one rule. A name is allowed if one of the rules allows it.
	Allow []IssuerAllow
	// MaxNames limits the names of each namespace, at least 1.
	MaxNames int
}

// IssuerAllow allows the Gateways and ListenerSets of namespaces to request certificates for hosts.
type IssuerAllow struct {
	// Namespaces has AllNamespaces for every namespace. Never empty.
	Namespaces []string
	// Hosts are patterns; empty: every host. **. stands for one label or more, and covers wildcards too.
	Hosts []string
}

// Refuses returns why a Gateway of the namespace may not request a certificate for the host from the entry,
// or nil. The text follows the host.
func (a *ACME) Refuses(namespace, host string) error {
	named := false
	for _, r := range a.Issuer.Allow {
		if !slices.Contains(r.Namespaces, namespace) && !slices.Contains(r.Namespaces, AllNamespaces) {
			continue
		}
		named = true
		if len(r.Hosts) == 0 || slices.ContainsFunc(r.Hosts, func(pattern string) bool { return covers(pattern, host) }) {
			return a.refuses(host)
		}
	}
	if named {
		return fmt.Errorf("is refused, because the rules under certificates[].acme.issuer.allow in weir's configuration give the namespace %s only other hosts", namespace)
	}
	return fmt.Errorf("is refused, because no rule under certificates[].acme.issuer.allow in weir's configuration names the namespace %s", namespace)
}

// covers reports whether a pattern of a rule covers a host, which may be a wildcard.
func covers(pattern, host string) bool {
	if parent, deep := strings.CutPrefix(pattern, "**."); deep {
		return strings.HasSuffix(host, "."+parent)
	}
	_, above, _ := strings.Cut(host, ".")
	return pattern == host || !strings.HasPrefix(host, "*") && pattern == "*."+above
}

// checkHosts reports names for which two entries make or get certificates. Two ACME
// entries may have the same name if they get keys of different kinds. Any name may also
// be in certificate files.
func (v *draft) checkHosts() {
	type key struct{ host, kind string }
	type first struct {
		*Certificate
		what string
	}
	taken := map[key]first{}
	claim := func(c *Certificate, host *string, what string, kinds ...string) {
		for _, kind := range kinds {
			other, twice := taken[key{*host, kind}]
			if twice && *host != "" {
				v.failAt(v.places[host], "%s already gets %s certificate from the entry on %s; keep one", v.quote(host, *host), other.what, v.line(other.Position))
				return
			}
		}
		for _, kind := range kinds {
			taken[key{*host, kind}] = first{c, what}
		}
	}
	for _, c := range v.certificates {
		for i := range c.SelfSigned {
			claim(c, &c.SelfSigned[i], "a self-signed", "ecdsa", "rsa")
		}
		if a := c.ACME; a != nil {
			for i := range a.Hosts {
				claim(c, &a.Hosts[i], "an ACME", a.KeyKind())
			}
		}
	}
}

// KeyKind is the kind of signature that clients must support: "ecdsa" or "rsa".
func (a *ACME) KeyKind() string {
	if strings.HasPrefix(a.KeyType, "rsa") {
		return "rsa"
	}
	return "ecdsa"
}

// checkACME reports hosts that the entry's authority never certifies, a second entry
// without hosts, because only one entry may take its hosts from the routes, and issuers that
// no Gateway can name.
func (v *draft) checkACME() {
	var open *Certificate
	issuers := map[string]*Certificate{}
	for _, c := range v.certificates {
		a := c.ACME
		if a == nil {
			continue
		}
		for i, host := range a.Hosts {
			if err := a.refuses(host); err != nil && host != "" {
				v.failAt(v.places[&a.Hosts[i]], "%s %v", v.quote(&a.Hosts[i], host), err)
			}
		}
		if i := a.Issuer; i != nil {
			other := issuers[i.Name]
			switch {
			case v.kubernetes == nil || v.kubernetes.Gateways == nil:
				v.failAt(v.places[i], "only Gateways request certificates from an issuer, and kubernetes.gateways is not set; set it, or take issuer out")
			case other != nil:
				v.failAt(v.places[i], "the entry on %s has an issuer with the same name; give one of them another name", v.line(other.Position))
			}
			issuers[i.Name] = c
		}
		switch {
		case v.given(&a.Hosts) || a.Issuer != nil:
		case open != nil:
			v.failAt(v.places[a], "the entry on %s already covers the hosts of all routes; set hosts in one of the two entries", v.line(open.Position))
		default:
			open = c
		}
	}
}

// local are the suffixes of names that no public authority certifies.
var local = []string{".localhost", ".local", ".internal", ".home.arpa"}

// refuses returns the reason why weir cannot get a certificate for host, or nil.
func (a *ACME) refuses(host string) error {
	name, wildcard := strings.CutPrefix(host, "*.")
	_, err := netip.ParseAddr(name)
	isIP := err == nil
	public := a.Directory == letsEncrypt || a.Directory == letsEncryptStaging
	switch {
	case wildcard && isIP:
		return errors.New("has a star before an IP address, which means nothing; take it out")
	case wildcard && a.DNS == nil:
		return errors.New("is a wildcard, which needs the challenge dns-01; give dns, or list the names")
	case isIP && a.DNS != nil:
		return errors.New("is an IP address, which dns-01 cannot validate; make an entry with other challenges for it")
	case !public:
		return nil
	case isIP:
		return errors.New("is an IP address, and Let's Encrypt requires a certificate profile for it that weir does not request; write names, or another directory")
	case wildcard && !strings.Contains(name, "."):
		return errors.New("covers a whole top-level domain, and Let's Encrypt issues no certificate for that; write a longer name")
	case !strings.Contains(name, ".") || slices.ContainsFunc(local, func(end string) bool { return strings.HasSuffix(name, end) }):
		return errors.New("is a name of a local network, which Let's Encrypt does not certify; write public names, or the directory of an authority of your own")
	case strings.Contains(name, "_"):
		return errors.New("has an underscore, which Let's Encrypt does not certify; write another name")
	}
	return nil
}

// routeHosts fills in the hosts of the ACME entry that lists none: the hosts for which
// routes open TLS and that no other entry covers. It needs the names in certificate
// files.
func (v *draft) routeHosts() {
	i := slices.IndexFunc(v.certificates, func(c *Certificate) bool { return c.ACME != nil && !v.given(&c.ACME.Hosts) && c.ACME.Issuer == nil })
	if i < 0 {
		return
	}
	a := v.certificates[i].ACME
	seen := map[string]bool{"": true}
	refused := false
	for _, r := range v.routes {
		pause.IfDue()
		if r.FirstBytes != "" {
			continue
		}
		for _, host := range v.hostsOf(r) {
			oneByOne := a.OnDemand != nil && strings.HasPrefix(host, "*.") // weir gets the certificates of the names below it on demand
			manyLabels := strings.HasPrefix(host, "**.")                   // no certificate covers them
			if seen[host] || oneByOne || manyLabels || !v.isOpened(r, host) || v.isCertified(host) {
				continue
			}
			seen[host] = true
			if err := a.refuses(host); err != nil {
				v.failAt(v.places[a], "%s of %s %v, or list under hosts the names to request", v.describeHost(r, host), v.lineOf(r), err)
				refused = true
				continue
			}
			a.Hosts = append(a.Hosts, host)
		}
	}
	if len(a.Hosts) == 0 && a.OnDemand == nil && !refused && len(v.errs) == 0 {
		v.failAt(v.places[a], "names no hosts, and neither does any route that opens TLS and has no other certificate; write hosts, such as [app.example.org]")
	}
	v.certified(a.Hosts)
}

// warnACME warns of challenges that weir cannot answer.
func (v *draft) warnACME(a *ACME) {
	speaks := func(p Protocol) bool {
		return slices.ContainsFunc(v.listeners, func(l *Listener) bool { return l.Protocol == p })
	}
	byHTTP := slices.Contains(a.Challenges, ChallengeHTTP01)
	byTLS := slices.Contains(a.Challenges, ChallengeTLSALPN01)
	answered := a.DNS != nil || byHTTP && speaks(ProtocolHTTP) || byTLS && speaks(ProtocolTLS)
	at := v.places[a]
	if v.given(&a.Challenges) {
		at = v.places[&a.Challenges]
	}
	switch {
	case answered || a.Issuer != nil: // the listeners of Gateways answer
	case byHTTP && !byTLS:
		v.warnAt(at, "the authority sends http-01 to port 80, and no listener has protocol http, so only another weir with the same storage could answer it")
	default:
		v.warnAt(at, "no listener has the protocol (http or tls) that the challenges need, so only another weir with the same storage could answer them")
	}
	if !byTLS {
		return
	}
	for i, host := range a.Hosts {
		for _, l := range v.listeners {
			if g := find(v.groups, l.Name, host); g != nil && g.mode == string(TLSPassthrough) {
				at := v.places[a]
				if v.given(&a.Hosts) {
					at = v.places[&a.Hosts[i]]
				}
				v.warnAt(at, "%s passes this host's TLS through on listener %q, so weir does not answer tls-alpn-01 for it there; use http-01 or dns-01", v.lineOf(g.modeBy), l.Name)
				break
			}
		}
	}
}
