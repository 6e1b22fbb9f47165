package config

import (
	"crypto/tls"
	"slices"
	"strings"
)

// tlsOffer has the keys that tls_policies.NAME and backends.NAME.tls share. The same code
// reads, checks and prints them.
type tlsOffer struct {
	min, max *uint16
	suites   *[]uint16
	sha1     *bool
}

func (t *TLSPolicy) offer() tlsOffer {
	return tlsOffer{&t.MinVersion, &t.MaxVersion, &t.CipherSuites, &t.SHA1}
}

func (t *BackendTLS) offer() tlsOffer {
	return tlsOffer{&t.MinVersion, &t.MaxVersion, &t.CipherSuites, &t.SHA1}
}

// keys returns the values of the keys.
func (o tlsOffer) keys() (min, max, suites, sha1 value) {
	some := list(o.suites, suite.at).byDefault("Go's secure suites")
	some.print = func(*shower) *Tree {
		names := o.suiteNames()
		return printList(names, text, nil).unlessEmpty()
	}
	return version(o.min), version(o.max), some, truth(o.sha1)
}

// checkOffer reports versions, suites and signatures that contradict each other. It
// returns false if min_version is above max_version.
func (v *draft) checkOffer(o tlsOffer) bool {
	switch {
	case *o.min <= *o.max:
		v.checkSuites(o)
		v.checkSHA1(o)
		return true
	case v.given(o.max):
		v.failAt(v.places[o.max], "is below min_version, which is %q%s; raise it or lower min_version", versionName(*o.min), v.byDefault(o.min))
	default:
		v.failAt(v.places[o.min], "is above max_version, which is %q by default; lower it or raise max_version", versionName(*o.max))
	}
	return false
}

func (v *draft) byDefault(dst any) string {
	if v.given(dst) {
		return ""
	}
	return " by default"
}

// checkSHA1 reports sha1_signatures without an effect: TLS 1.0 and 1.1 always sign with
// SHA-1, and TLS 1.3 never does.
func (v *draft) checkSHA1(o tlsOffer) {
	if *o.sha1 && (*o.min > tls.VersionTLS12 || *o.max < tls.VersionTLS12) {
		v.failAt(v.places[o.sha1], "applies only to TLS 1.2, which min_version and max_version do not allow; take it out, or let the versions include \"1.2\"")
	}
}

// checkSuites reports suites that no version can use, and versions that no suite works with.
func (v *draft) checkSuites(o tlsOffer) {
	suites := *o.suites
	if !v.given(o.suites) || slices.Contains(suites, 0) || len(suites) == 0 {
		return // Go's default suites are valid, and unknown names were reported
	}
	if *o.min == tls.VersionTLS13 {
		v.failAt(v.places[o.suites], `cipher suites can be chosen only up to TLS 1.2, and min_version is "1.3"; take them out, or lower min_version`)
		return
	}
	top := min(*o.max, tls.VersionTLS12)
	for i, id := range suites {
		if s := suiteByID(id); !worksWith(s, top) {
			v.failAt(v.places[&suites[i]], "%s works only with TLS 1.2, and max_version is %q; take it out, or raise max_version",
				v.quote(&suites[i], s.Name), versionName(*o.max))
			return
		}
	}
	for version := *o.min; version <= top; version++ {
		works := func(id uint16) bool { return worksWith(suiteByID(id), version) }
		if !slices.ContainsFunc(suites, works) {
			v.failAt(v.places[o.suites], "none of the suites works with TLS %s, which min_version allows; add one such as TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, or raise min_version", versionName(version))
			return
		}
	}
}

// suiteNames returns the names of the suites that have an effect.
func (o tlsOffer) suiteNames() (names []string) {
	if *o.min == tls.VersionTLS13 {
		return nil
	}
	for _, id := range *o.suites {
		if s := suiteByID(id); worksWith(s, min(*o.max, tls.VersionTLS12)) {
			names = append(names, s.Name)
		}
	}
	return names
}

// carriesHTTP2 returns true if HTTP/2 is possible: with TLS 1.3, or with TLS 1.2 and one of
// the suites that RFC 9113, section 9.2, allows.
func (o tlsOffer) carriesHTTP2() bool {
	if *o.max == tls.VersionTLS13 {
		return true
	}
	return *o.max == tls.VersionTLS12 && (len(*o.suites) == 0 || slices.ContainsFunc(*o.suites, func(id uint16) bool {
		name := tls.CipherSuiteName(id)
		return strings.Contains(name, "_ECDHE_") && (strings.Contains(name, "_GCM_") || strings.Contains(name, "_CHACHA20_POLY1305_"))
	}))
}

// checkBackendOffer is checkOffer for a backend that uses TLS, and checks that its HTTP/2
// is possible.
func (v *draft) checkBackendOffer(b *Backend) {
	o := b.TLS.offer()
	if !v.checkOffer(o) || o.carriesHTTP2() {
		return
	}
	const needs = "HTTP/2 needs TLS 1.3, or TLS 1.2 with an ECDHE suite with GCM or ChaCha20, and max_version and cipher_suites leave both out"
	switch {
	case b.Protocol == ProtocolGRPC:
		v.failAt(v.places[&b.TLS], "gRPC is HTTP/2, and %s; allow one of them, or use another protocol", needs)
	case b.HTTP2 && v.given(&b.HTTP2):
		v.failAt(v.places[&b.HTTP2], "%s; allow one of them, or take http2 out", needs)
	}
	b.HTTP2 = false
}
