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

	"go.yaml.in/yaml/v3"
)

// The directories of Let's Encrypt.
const (
	letsEncrypt        = "https://acme-v02.api.letsencrypt.org/directory"
	letsEncryptStaging = "https://acme-staging-v02.api.letsencrypt.org/directory"
)

func (v *draft) acme(c *Certificate) setter {
	return func(n *yaml.Node, p path) {
		a := &ACME{KeyType: "p256"}
		c.ACME = a
		v.mark(a, n, p)
		staging := new(bool)
		there := v.section(n, p, []field{
			{"hosts", list(v.decoder, &a.Hosts, v.host)},
			{"email", parsed(v.decoder, &a.Email, "an e-mail address", parseEmail)},
			{"directory", v.webURL(&a.Directory, "https://ca.example.org/directory", checkDirectory)},
			{"staging", v.truth(staging)},
			{"ca", v.text(&a.CAFile)},
			{"key_type", choice(v.decoder, &a.KeyType, "p256", "p384", "rsa2048", "rsa4096")},
			{"external_account", v.externalAccount(a)},
			{"challenges", list(v.decoder, &a.Challenges, v.challenge)},
			{"dns", v.dnsChallenge(a)},
			{"on_demand", v.onDemand(a)},
			{"storage", v.storage(&a.Storage)},
		}...)
		switch {
		case *staging && there["directory"]:
			v.failAt(v.places[staging], "stands for Let's Encrypt's staging directory, and directory names another; keep one")
		case *staging:
			a.Directory = letsEncryptStaging
		case !there["directory"]: // a wrong directory stays empty, so that weir does not check the hosts by the rules of Let's Encrypt
			a.Directory = letsEncrypt
		}
		v.settleChallenges(a)
	}
}

func (d *decoder) challenge(dst *Challenge) setter {
	return choice(d, dst, ChallengeHTTP01, ChallengeTLSALPN01, ChallengeDNS01)
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

func (v *draft) externalAccount(a *ACME) setter {
	return func(n *yaml.Node, p path) {
		e := &ExternalAccount{}
		a.ExternalAccount = e
		there := v.section(n, p, []field{
			{"key_id", v.text(&e.KeyID)},
			{"mac_key", v.secret(&e.MACKey, parseMACKey)},
		}...)
		v.require(there, n, p, "key_id", "the identifier that the authority gave out")
		v.require(there, n, p, "mac_key", `"${WEIR_MAC_KEY}"`)
	}
}

func (v *draft) dnsChallenge(a *ACME) setter {
	return func(n *yaml.Node, p path) {
		c := &DNSChallenge{PropagationTimeout: 2 * time.Minute}
		a.DNS = c
		v.mark(c, n, p)
		there := v.section(n, p, []field{
			{"rfc2136", v.rfc2136(&c.RFC2136)},
			{"resolvers", list(v.decoder, &c.Resolvers, v.nameServer)},
			{"propagation_delay", v.duration(&c.PropagationDelay, 0, time.Hour)},
			{"propagation_timeout", func(n *yaml.Node, p path) {
				if n.Value == "off" {
					c.PropagationTimeout = -1
					return
				}
				v.duration(&c.PropagationTimeout, time.Second, time.Hour)(n, p)
			}},
		}...)
		v.require(there, n, p, "rfc2136", `"rfc2136: {server: \"192.0.2.53:53\", key_name: weir, key: \"${WEIR_TSIG_KEY}\"}"`)
	}
}

func (v *draft) rfc2136(r *RFC2136) setter {
	return func(n *yaml.Node, p path) {
		r.KeyAlgorithm = "hmac-sha256"
		there := v.section(n, p, []field{
			{"server", v.nameServer(&r.Server)},
			{"key_name", parsed(v.decoder, &r.KeyName, "the name of a key", parseKeyName)},
			{"key_algorithm", choice(v.decoder, &r.KeyAlgorithm, "hmac-sha256", "hmac-sha512", "hmac-sha384", "hmac-sha224", "hmac-sha1")},
			{"key", v.secret(&r.Key, parseTSIGKey)},
		}...)
		v.require(there, n, p, "server", `"192.0.2.53:53"`)
		v.require(there, n, p, "key_name", "weir")
		v.require(there, n, p, "key", `"${WEIR_TSIG_KEY}"`)
	}
}

func (v *draft) onDemand(a *ACME) setter {
	return func(n *yaml.Node, p path) {
		o := &OnDemand{Timeout: 10 * time.Second, Concurrent: 4}
		a.OnDemand = o
		there := v.section(n, p, []field{
			{"ask", v.webURL(&o.Ask, "http://127.0.0.1:9100/allowed", checkAsk)},
			{"hosts", list(v.decoder, &o.Hosts, v.host)},
			{"timeout", v.duration(&o.Timeout, time.Second, time.Minute)},
			{"concurrent", v.number(&o.Concurrent, 1, 1000)},
		}...)
		if !there["ask"] && !there["hosts"] && n.Kind == yaml.MappingNode {
			v.fail(n, p, "anyone could request certificates for any name; limit the names with ask, with hosts, or with both")
		}
	}
}

func (d *decoder) nameServer(dst *string) setter {
	return parsed(d, dst, "a name server such as 192.0.2.53:53", parseNameServer)
}

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

// webURL decodes an http or https URL without a password, because errors and logs show
// the URL.
func (d *decoder) webURL(dst *string, example string, check func(*url.URL) error) setter {
	parse := func(s string) (string, error) {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			return "", fmt.Errorf("is not an http or https URL; write one such as %q", example)
		case u.Fragment != "" || strings.HasSuffix(s, "#"):
			return "", errors.New("has a fragment, which is never sent; take it out")
		}
		return s, check(u)
	}
	return func(n *yaml.Node, p path) {
		if u, err := url.Parse(n.Value); err == nil && u.User != nil || err != nil && strings.Contains(n.Value, "@") {
			d.mark(dst, n, p)
			d.fail(n, p, "contains a user name or password, which logs would show; take it out")
			return
		}
		parsed(d, dst, "a URL such as "+example, parse)(n, p)
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

// placeholder replaces a secret in output.
const placeholder = "(hidden)"

// secret decodes text that no error shows, wherever the text came from. The errors of
// parse must not quote the text.
func (d *decoder) secret(dst *Secret, parse func(string) (string, error)) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.str(dst, n, p)
		if !ok {
			return
		}
		if s == placeholder {
			d.fail(n, p, "%s is only shown in place of a secret; write the secret itself, such as ${NAME} for one from the environment", placeholder)
			return
		}
		text, err := parse(s)
		if err != nil {
			d.fail(n, p, "%v", err)
			return
		}
		*dst = Secret(text)
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
