package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pause"
)

// keyed is a certificate of the configuration with its names and the kinds of its private
// keys ("ecdsa", "rsa").
type keyed struct {
	names, kinds []string
}

// keyed returns the certificates with their names. Certificates in files that could not be
// read are left out.
func (v *draft) keyed() (all []keyed) {
	for _, c := range v.certificates {
		switch {
		case c.ACME != nil:
			all = append(all, keyed{c.ACME.Hosts, []string{c.ACME.KeyKind()}})
		case len(c.SelfSigned) > 0:
			all = append(all, keyed{c.SelfSigned, []string{"ecdsa", "rsa"}}) // weir makes the kind of key that a client needs
		default:
			if k, ok := v.inFile[c]; ok {
				all = append(all, k)
			}
		}
	}
	return all
}

// kindOf returns the kind of the certificate's key, as cipher suites name it. Ed25519 keys use the suites for
// ECDSA.
func kindOf(leaf *x509.Certificate) string {
	if leaf.PublicKeyAlgorithm == x509.RSA {
		return "rsa"
	}
	return "ecdsa"
}

// suiteKind returns the kind of key that the server needs for a cipher suite.
func suiteKind(id uint16) string {
	if strings.Contains(tls.CipherSuiteName(id), "_ECDSA_") {
		return "ecdsa"
	}
	return "rsa"
}

// checkKeys reports TLS policies whose cipher suites fit no certificate of a host with that
// policy: every handshake up to TLS 1.2 would fail.
func (v *draft) checkKeys() {
	for _, t := range v.policies {
		if !v.given(&t.CipherSuites) || len(t.CipherSuites) == 0 || t.MinVersion == tls.VersionTLS13 {
			continue
		}
		var fits []string
		for _, id := range t.CipherSuites {
			if kind := suiteKind(id); id != 0 && !slices.Contains(fits, kind) {
				fits = append(fits, kind)
			}
		}
		if len(fits) == 1 {
			v.checkKeysOf(t, fits[0])
		}
	}
}

// checkKeysOf checks a policy whose suites all need the same kind of key.
func (v *draft) checkKeysOf(t *TLSPolicy, kind string) {
	for _, r := range v.routes {
		pause.IfDue()
		for _, host := range v.hostsOf(r) {
			if !v.hasPolicy(r, host, t.Name) || slices.Contains(v.kindsFor(host), kind) {
				continue
			}
			at, where := v.places[&t.CipherSuites], "the hosts of "+v.lineOf(r)
			if i := slices.Index(r.Hosts, host); i >= 0 {
				where = "the host " + v.quote(&r.Hosts[i], host)
			}
			has, other, example := "ECDSA", "an RSA", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
			if kind == "ecdsa" {
				has, other, example = "RSA", "an ECDSA", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
			}
			says := fmt.Sprintf("every suite of the list needs %s key, and the certificates for %s have %s keys only; add a suite such as %s, or give a certificate with %s key",
				other, where, has, example, other)
			if t.MaxVersion < tls.VersionTLS13 {
				v.failAt(at, "no client can connect: %s", says)
			} else {
				v.warnAt(at, "only clients with TLS 1.3 can connect: %s", says)
			}
			return
		}
	}
}

// hasPolicy returns true if weir terminates TLS for host with the policy of this name.
func (v *draft) hasPolicy(r *Route, host, name string) bool {
	return r.FirstBytes == "" && slices.ContainsFunc(v.listenersOf(r), func(l *Listener) bool {
		policy, mode := v.groups[hostOn{l.Name, host}].effective()
		return l.Protocol == ProtocolTLS && mode == TLSTerminate && policy == name
	})
}

// kindsFor returns the kinds of keys of the certificates for host; both kinds if the
// configuration alone cannot tell.
func (v *draft) kindsFor(host string) (kinds []string) {
	both := []string{"ecdsa", "rsa"}
	all := v.keyed()
	_, parent, _ := strings.Cut(host, ".")
	for _, c := range all {
		if host == "" || slices.Contains(c.names, host) || slices.Contains(c.names, "*."+parent) {
			kinds = append(kinds, c.kinds...)
		}
	}
	switch {
	case len(kinds) > 0 && (host != "" || v.kubernetes == nil):
		return kinds
	case v.kubernetes != nil || len(all) == 0 || len(all) < len(v.certificates) || v.isOnDemand(host):
		return both
	}
	return v.firstKinds() // weir shows the first certificate
}
