package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/mail"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The directories of Let's Encrypt.
const (
	letsEncrypt        = "https://acme-v02.api.letsencrypt.org/directory"
	letsEncryptStaging = "https://acme-staging-v02.api.letsencrypt.org/directory"
)

func newACME() *ACME { return &ACME{KeyType: "p256"} }

func (a *ACME) section() section {
	if a.Owner != "" {
		return a.ordered()
	}
	staging := new(bool)
	return section{object: a, rules: acmeRules, keys: []key{
		{"hosts", list(&a.Hosts, host.at).byDefault("the hosts of all routes that terminate TLS and that no other entry lists"), "The names in the certificates. Wildcards need dns."},
		{"email", email.at(&a.Email), "Contact address for messages from the authority."},
		{"directory", webURL(&a.Directory, "https://ca.example.org/directory", checkDirectory).byDefault("Let's Encrypt's"), "The URL of the authority's directory: https, or http on loopback."},
		{"staging", truth(staging).shownIf(false).byDefault("false"), "Uses Let's Encrypt's staging directory, which issues certificates that no client trusts. Not together with directory."},
		{"ca", text(&a.CAFile).byDefault("the system's CAs"), "PEM file of CA certificates that verify the TLS certificate of the ACME directory."},
		{"key_type", oneOf("p256", "p384", "rsa2048", "rsa4096").at(&a.KeyType), "The key type of the certificates: ECDSA (p256, p384) or RSA."},
		{"external_account", optional(&a.ExternalAccount, func() *ExternalAccount { return &ExternalAccount{} }, (*ExternalAccount).section).byDefault("none"), "External account binding (EAB), for authorities that require it."},
		{"challenges", list(&a.Challenges, oneOf(ChallengeHTTP01, ChallengeTLSALPN01, ChallengeDNS01).at).byDefault("[http-01, tls-alpn-01], or [dns-01] with dns"), "How weir proves control of names. http-01 arrives on port 80 and needs an http listener there; tls-alpn-01 arrives on port 443 and needs a tls listener; dns-01 cannot be combined with the others."},
		{"dns", optional(&a.DNS, newDNSChallenge, (*DNSChallenge).section).byDefault("none"), "The name server that accepts records for dns-01."},
		{"on_demand", optional(&a.OnDemand, newOnDemand, (*OnDemand).section).byDefault("none: only hosts"), "Issues a certificate when a client first asks for a name."},
		{"issuer", optional(&a.Issuer, func() *ACMEIssuer { return &ACMEIssuer{MaxNames: 100} }, (*ACMEIssuer).section).byDefault("none: Gateways request no certificates"), "Lets Gateways request certificates from this entry, by the annotation or option weirproxy.github.io/issuer. The entry then needs no hosts of its own."},
		{"storage", storage(&a.Storage).byDefault("the top level's storage; without one, $STATE_DIRECTORY, or weir/acme in $XDG_DATA_HOME or ~/.local/share"), "Where accounts, keys and certificates are stored: a directory, or a redis://, rediss:// or secrets:// URL. Replicas that share a storage share one certificate."},
	}, check: func(v *draft, there keySet, _ *Tree, _ path) {
		switch {
		case *staging && there.has("directory"):
			v.failAt(v.places[staging], "stands for Let's Encrypt's staging directory, and directory names another; keep one")
		case *staging:
			a.Directory = letsEncryptStaging
		case !there.has("directory"): // a wrong directory stays empty, so that weir does not check the hosts by the rules of Let's Encrypt
			a.Directory = letsEncrypt
		}
		v.settleChallenges(a)
	}}
}

// ordered prints the entry of a listener of a Gateway. No file has these keys.
func (a *ACME) ordered() section {
	return section{keys: []key{
		{"issuer", text(&a.Issuer.Name), ""},
		{"hosts", list(&a.Hosts, text), ""},
		{"tls_policy", text(&a.Owner), ""},
	}}
}

func (i *ACMEIssuer) section() section {
	return section{object: i, keys: []key{
		{"name", issuerName.at(&i.Name).required("public"), "The name that Gateways write."},
		{"allow", inPlace(&i.Allow, func() IssuerAllow { return IssuerAllow{} }, (*IssuerAllow).section).required(`"allow: [{namespaces: [shop], hosts: [\"*.shop.example.org\"]}]"`), "Who may request certificates for which hosts. One rule that allows a host is enough."},
		{"max_names", number(&i.MaxNames, 1, 100000), "Maximum number of names that the Gateways and ListenerSets of one namespace may request. The oldest objects keep theirs."},
	}}
}

func (r *IssuerAllow) section() section {
	return section{object: r, keys: []key{
		{"namespaces", list(&r.Namespaces, namespaceOrAll.at).required("[shop]"), "The namespaces of the Gateways and ListenerSets. \"*\" means every namespace."},
		{"hosts", list(&r.Hosts, routeHost.at).byDefault("every host"), "The hosts that they may request. *.example.org allows names with one more label, and the wildcard itself; **.example.org allows all names below example.org."},
	}}
}

// settleChallenges fills in the default, and reports challenges that cannot be combined:
// the ACME library uses only DNS-01 if DNS-01 is allowed.
func (v *draft) settleChallenges(a *ACME) {
	byDNS := slices.Contains(a.Challenges, ChallengeDNS01)
	at := v.places[&a.Challenges]
	switch {
	case !v.given(&a.Challenges) && a.DNS != nil:
		a.Challenges = []Challenge{ChallengeDNS01}
	case !v.given(&a.Challenges):
		a.Challenges = []Challenge{ChallengeHTTP01, ChallengeTLSALPN01}
	case len(a.Challenges) == 0 || slices.Contains(a.Challenges, ""): // already reported
	case byDNS && len(a.Challenges) > 1:
		v.failAt(at, "dns-01 cannot be combined with other challenges; take it out, or split this into two entries")
	case byDNS && a.DNS == nil:
		v.failAt(at, "dns-01 needs a DNS server that accepts the records; give it under dns")
	case !byDNS && a.DNS != nil:
		v.failAt(at, "dns-01 is not among the challenges, so nothing uses dns; take dns out, or challenges")
	}
}

func (e *ExternalAccount) section() section {
	return section{object: e, keys: []key{
		{"key_id", text(&e.KeyID).required("the identifier that the authority gave out"), "The key identifier (kid) from the authority."},
		{"mac_key", secret(&e.MACKey, parseMACKey, `[A-Za-z0-9_-]+=*`).required(`"${WEIR_MAC_KEY}"`), "The MAC key that belongs to key_id, in base64url. Take it from the environment."},
	}}
}

func newDNSChallenge() *DNSChallenge {
	return &DNSChallenge{PropagationTimeout: 2 * time.Minute, RFC2136: RFC2136{KeyAlgorithm: "hmac-sha256"}}
}

func (c *DNSChallenge) section() section {
	return section{object: c, keys: []key{
		{"rfc2136", mapping(c.RFC2136.section).required(`"rfc2136: {server: \"192.0.2.53:53\", key_name: weir, key: \"${WEIR_TSIG_KEY}\"}"`), "A name server that accepts dynamic updates (RFC 2136), such as BIND, Knot or PowerDNS."},
		{"resolvers", list(&c.Resolvers, nameServer.at).byDefault("the system's"), "Name servers (host:port) that weir queries for the zone, and for whether the record is visible."},
		{"propagation_delay", duration(&c.PropagationDelay, 0, time.Hour), "How long weir waits before it first queries the record."},
		{"propagation_timeout", durationOrOff(&c.PropagationTimeout, time.Second, time.Hour), "How long weir queries until the record is visible. off: weir does not query, and asks the authority to validate after propagation_delay."},
	}}
}

// durationOrOff is a duration, or the word off, which makes *dst negative.
func durationOrOff(dst *time.Duration, lo, hi time.Duration) value {
	some := duration(dst, lo, hi)
	return value{
		read: func(v *draft, n *Tree, p path) {
			if n.Text == "off" {
				*dst = -1
				return
			}
			some.read(v, n, p)
		},
		print: func(s *shower) *Tree {
			if *dst < 0 {
				return textTree("off")
			}
			return some.print(s)
		},
		schema: func() *schema { return anyOf(some.schema(), &schema{Const: "off"}) },
	}
}

func (r *RFC2136) section() section {
	return section{object: r, keys: []key{
		{"server", nameServer.at(&r.Server).required(`"192.0.2.53:53"`), "The zone's primary name server, as host:port."},
		{"key_name", keyName.at(&r.KeyName).required("weir"), "The name of the TSIG key that signs updates."},
		{"key_algorithm", oneOf("hmac-sha256", "hmac-sha512", "hmac-sha384", "hmac-sha224", "hmac-sha1").at(&r.KeyAlgorithm), "The algorithm of the TSIG key."},
		{"key", secret(&r.Key, parseTSIGKey, `[A-Za-z0-9+/]+=*`).required(`"${WEIR_TSIG_KEY}"`), "The TSIG key in base64. Take it from the environment."},
	}}
}

func newOnDemand() *OnDemand { return &OnDemand{Timeout: 10 * time.Second, Concurrent: 4} }

func (o *OnDemand) section() section {
	return section{object: o, rules: onDemandRules, keys: []key{
		{"ask", webURL(&o.Ask, "http://127.0.0.1:9100/allowed", checkAsk), "weir requests this URL with ?domain=NAME before it requests a certificate. Status 200 allows the name; everything else refuses it."},
		{"hosts", list(&o.Hosts, host.at).byDefault("every name that ask allows"), "Patterns. A name must match one of them; then weir requests ask, if it is set."},
		{"timeout", duration(&o.Timeout, time.Second, time.Minute), "How long a handshake waits for the certificate. Issuance continues in the background after that."},
		{"concurrent", number(&o.Concurrent, 1, 1000), "Maximum number of certificates that are issued at the same time."},
	}, check: func(v *draft, there keySet, n *Tree, p path) {
		if !there.has("ask") && !there.has("hosts") && n.Shape == ShapeMapping {
			v.fail(n, p, "anyone could request certificates for any name; limit the names with ask, with hosts, or with both")
		}
	}}
}

var (
	nameServer = kind[string]{what: "a name server such as 192.0.2.53:53", parse: parseNameServer, format: same[string], pattern: withPort}
	keyName    = kind[string]{what: "the name of a key", parse: parseKeyName, format: same[string], pattern: `[A-Za-z0-9_.-]+`}
	issuerName = kind[string]{what: "a name", parse: parseSubdomain, format: same[string], pattern: subdomainPattern}
	email      = kind[string]{what: "an e-mail address", parse: parseEmail, format: same[string], pattern: `[!-~]+@[!-~]+`}
)

func parseNameServer(s string) (string, error) {
	host, _, err := splitPort(s, "192.0.2.53:53")
	if err != nil {
		return "", err
	}
	if host == "" {
		return "", errors.New(`has no host; write one, such as "192.0.2.53:53"`)
	}
	return parseEndpoint(s)
}

// parseKeyName converts the name of a TSIG key, which has the form of a host name, to its
// canonical form (RFC 8945, section 4.3.3), without the dot at the end.
func parseKeyName(s string) (string, error) {
	name := strings.TrimSuffix(strings.ToLower(s), ".")
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(label) {
			return "", errors.New(`is not the name of a key; write it as the name server has it, such as "weir" or "weir.example.org"`)
		}
	}
	return name, nil
}

func parseEmail(s string) (string, error) {
	a, err := mail.ParseAddress(s)
	if err != nil || a.Address != s || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e }) {
		return "", errors.New(`is not an e-mail address; write one such as "ops@example.org"`)
	}
	return s, nil
}

// webURL is an http or https URL without a password, because errors and logs show the URL.
func webURL(dst *string, example string, check func(*url.URL) error) value {
	k := kind[string]{what: "a URL such as " + example, parse: func(s string) (string, error) {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			return "", fmt.Errorf("is not an http or https URL; write one such as %q", example)
		case u.Fragment != "" || strings.HasSuffix(s, "#"):
			return "", errors.New("has a fragment, which is never sent; take it out")
		}
		return s, check(u)
	}}
	return value{
		read: func(v *draft, n *Tree, p path) {
			if u, err := url.Parse(n.Text); err == nil && u.User != nil || err != nil && strings.Contains(n.Text, "@") {
				v.mark(dst, n, p)
				v.fail(n, p, "contains a user name or password, which logs would show; take it out")
				return
			}
			k.read(v, dst, n, p)
		},
		print:  func(s *shower) *Tree { return textUnlessEmpty(s.url(*dst)) },
		schema: func() *schema { return textLike("a URL such as "+example, `[Hh][Tt][Tt][Pp][Ss]?://[^#]+`, nil) },
	}
}

// checkDirectory requires https, except for tests on one machine.
func checkDirectory(u *url.URL) error {
	if u.Scheme == "http" && !isLoopbackHost(u.Hostname()) {
		return errors.New("is not encrypted, so an attacker in the network could impersonate the authority; write https://")
	}
	return nil
}

func checkAsk(u *url.URL) error {
	if u.Query().Has("domain") {
		return errors.New("has the parameter domain, which weir adds; take it out")
	}
	return nil
}

func isLoopbackHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// Placeholder replaces a secret in printed configurations.
const Placeholder = "(hidden)"

// secret is text that no error shows, wherever the text came from. The errors of parse must
// not quote the text. pattern matches every text that parse accepts; empty: any text.
func secret(dst *Secret, parse func(string) (string, error), pattern string) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			s, ok := v.str(dst, n, p)
			if !ok {
				return
			}
			if s == Placeholder {
				v.fail(n, p, "%s is only shown in place of a secret; write the secret itself, such as ${NAME} for one from the environment", Placeholder)
				return
			}
			text, err := parse(s)
			if err != nil {
				v.fail(n, p, "%v", err)
				return
			}
			*dst = Secret(text)
		},
		print: func(s *shower) *Tree {
			if *dst == "" {
				return nil
			}
			return textTree(s.key(*dst))
		},
		schema: func() *schema {
			s := textLike("a valid secret", pattern, nil)
			s.Not = &schema{Const: Placeholder}
			return s
		},
	}
}

// parseMACKey accepts base64url with or without padding, and returns it without padding.
func parseMACKey(s string) (string, error) {
	s = strings.TrimRight(s, "=")
	key, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(key) == 0 {
		return "", errors.New("is not base64url (its text is not shown); write the key as the authority gave it out, with - and _ where base64 has + and /")
	}
	return s, nil
}

func parseTSIGKey(s string) (string, error) {
	key, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(key) == 0 {
		return "", errors.New("is not base64 (its text is not shown); write the secret of the key as the name server's configuration has it")
	}
	return s, nil
}
