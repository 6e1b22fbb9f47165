package policy

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/fips140"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
)

// In TLS 1.2, crypto/tls neither makes nor accepts signatures with SHA-1 (RFC 9155), unless
// GODEBUG has tlssha1=1. This setting is for the whole process. weir sets it only while a
// policy or a backend has sha1_signatures. Each policy lists the signature algorithms of its
// certificates, so the setting does not affect the other policies. TLS 1.0 and 1.1 have only
// SHA-1, and TLS 1.3 never uses it.

// AdmitSHA1 turns signatures with SHA-1 in TLS 1.2 on or off, for the whole process. They are
// off at the start. Turn them on if a policy or a backend in use has them (WantsSHA1). The
// other policies do not change. All backends then accept such signatures, because crypto/tls
// has no setting for one connection. All policies accept them from clients, unless CheckSHA1
// refuses them.
func AdmitSHA1(on bool) {
	settings := strings.Split(os.Getenv("GODEBUG"), ",")
	settings = slices.DeleteFunc(settings, func(s string) bool { return s == "" || strings.HasPrefix(s, "tlssha1=") })
	if on {
		settings = append(settings, "tlssha1=1")
	}
	if next := strings.Join(settings, ","); next != os.Getenv("GODEBUG") {
		os.Setenv("GODEBUG", next) // crypto/tls uses the new value at once; Setenv fails only for a NUL byte
	}
}

// CheckSHA1 returns an error if these policies and backends cannot be used together. If
// one of them admits SHA-1, clients may sign their CertificateVerify in TLS 1.2 with
// SHA-1 under every policy: crypto/tls has no setting to refuse that for a single policy.
// So a policy with client_auth must admit SHA-1 itself, or exclude TLS 1.2.
func CheckSHA1(policies []config.TLSPolicy, backends []*config.Backend) error {
	wanted := "" // the policy or backend that admits SHA-1
	if i := slices.IndexFunc(policies, func(p config.TLSPolicy) bool { return p.SHA1 }); i >= 0 {
		wanted = "the policy " + policies[i].Name
	}
	if i := slices.IndexFunc(backends, backendSHA1); i >= 0 {
		if err := sha1Possible(); err != nil {
			return fmt.Errorf("backend %s: tls.%w", backends[i].Name, err)
		}
		wanted = cmp.Or(wanted, "the backend "+backends[i].Name)
	}
	if wanted == "" {
		return nil
	}
	for _, p := range policies {
		if p.ClientAuth != config.ClientAuthNone && !p.SHA1 && p.MinVersion <= tls.VersionTLS12 && p.MaxVersion >= tls.VersionTLS12 {
			err := fmt.Errorf("TLS policy %s: client_auth with TLS 1.2 cannot be combined with sha1_signatures of %s, "+
				"because weir would then accept SHA-1 signatures of client certificates here as well; "+
				"set min_version: \"1.3\", or sha1_signatures: true if that is acceptable", p.Name, wanted)
			if p.Position.Line > 0 {
				err = fmt.Errorf("%s: %w", p.Position, err)
			}
			return err
		}
	}
	return nil
}

// WantsSHA1 reports whether a policy or a backend admits SHA-1, see AdmitSHA1.
func WantsSHA1(policies []config.TLSPolicy, backends []*config.Backend) bool {
	return slices.ContainsFunc(policies, func(p config.TLSPolicy) bool { return p.SHA1 }) || slices.ContainsFunc(backends, backendSHA1)
}

func backendSHA1(b *config.Backend) bool { return b.UsesTLS() && b.TLS.SHA1 }

// sha1Possible returns an error if this Go cannot sign with SHA-1. The GODEBUG setting
// came with Go 1.25, and Go keeps such a setting for at least two years. FIPS 140 mode
// overrides it.
func sha1Possible() error {
	const counter = "/godebug/non-default-behavior/tlssha1:events"
	switch {
	case fips140.Enabled():
		return errors.New("sha1_signatures: SHA-1 signatures are not possible in FIPS 140 mode")
	case !slices.ContainsFunc(metrics.All(), func(d metrics.Description) bool { return d.Name == counter }):
		return errors.New("sha1_signatures: the Go version of this weir cannot sign with SHA-1 any more; use a weir built with an older Go version for these clients")
	}
	return nil
}

// signatures is a set of kinds of signatures.
type signatures uint8

const (
	rsaSHA1 signatures = 1 << iota
	ecdsaSHA1
	rsaBetter
	ecdsaBetter
	ed25519Better

	anySHA1   = rsaSHA1 | ecdsaSHA1
	anyBetter = rsaBetter | ecdsaBetter | ed25519Better
)

// better are the signature algorithms of TLS 1.2 and 1.3 with a better hash than SHA-1.
var better = []tls.SignatureScheme{
	tls.ECDSAWithP256AndSHA256, tls.ECDSAWithP384AndSHA384, tls.ECDSAWithP521AndSHA512, tls.Ed25519,
	tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512,
	tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512,
}

var onlySHA1 = []tls.SignatureScheme{tls.PKCS1WithSHA1, tls.ECDSAWithSHA1}

func isSHA1(s tls.SignatureScheme) bool { return slices.Contains(onlySHA1, s) }

// offered returns the signatures that a client can verify. A client that sends no list
// can verify only SHA-1 (RFC 5246, section 7.4.1.4.1).
func offered(schemes []tls.SignatureScheme) (s signatures) {
	if len(schemes) == 0 {
		return anySHA1
	}
	for _, scheme := range schemes {
		switch scheme {
		case tls.PKCS1WithSHA1:
			s |= rsaSHA1
		case tls.ECDSAWithSHA1:
			s |= ecdsaSHA1
		case tls.ECDSAWithP256AndSHA256, tls.ECDSAWithP384AndSHA384, tls.ECDSAWithP521AndSHA512:
			s |= ecdsaBetter
		case tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512, tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512:
			s |= rsaBetter
		case tls.Ed25519:
			s |= ed25519Better
		}
	}
	return s
}

// possible returns the kinds of signatures that the key of c can make.
func possible(c *tls.Certificate) signatures {
	key, ok := c.PrivateKey.(crypto.Signer)
	if !ok {
		return 0
	}
	switch key.Public().(type) {
	case *rsa.PublicKey:
		return rsaSHA1 | rsaBetter
	case *ecdsa.PublicKey:
		return ecdsaSHA1 | ecdsaBetter
	case ed25519.PublicKey:
		return ed25519Better
	}
	return 0
}

// signer returns certificates that sign only as the policy allows.
type signer struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	sha1        bool
	copies      copies
}

// get fits tls.Config.GetCertificate.
func (s *signer) get(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	o := offered(h.SignatureSchemes)
	if o&anySHA1 != 0 && o&anyBetter != 0 && (o&rsaSHA1 != 0 && o&rsaBetter == 0 || o&ecdsaSHA1 != 0 && o&ecdsaBetter == 0) {
		// crypto/tls then chooses a certificate that needs no SHA-1, if there are several.
		// Only this call uses h, but other code shares the list in it, so clone the list.
		h.SignatureSchemes = slices.DeleteFunc(slices.Clone(h.SignatureSchemes), isSHA1)
	}
	c, err := s.certificate(h)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCertificate, err)
	}
	if c == nil {
		return nil, nil
	}
	can := o & possible(c)
	switch {
	case can&anySHA1 == 0:
		return c, nil // the client does not ask for SHA-1
	case s.sha1 && can&anyBetter == 0:
		return s.copies.of(c, true), nil
	default:
		return s.copies.of(c, false), nil
	}
}

// limited returns a copy of c that signs only with SHA-1 if sha1, else never with SHA-1.
func limited(c *tls.Certificate, sha1 bool) *tls.Certificate {
	limited := *c
	switch {
	case sha1:
		limited.SupportedSignatureAlgorithms = onlySHA1
	case c.SupportedSignatureAlgorithms == nil:
		limited.SupportedSignatureAlgorithms = better
	default: // unlike nil, an empty list allows nothing
		limited.SupportedSignatureAlgorithms = slices.DeleteFunc(slices.Clone(c.SupportedSignatureAlgorithms), isSHA1)
	}
	return &limited
}

// copies caches limited copies of certificates, so that handshakes need not make them.
// Each certificate has one place, which another certificate may take over. So copies
// keeps only a few certificates that are no longer in use.
type copies [64]atomic.Pointer[copied]

type copied struct {
	from, to *tls.Certificate
	sha1     bool
}

var copySeed = maphash.MakeSeed()

func (cs *copies) of(c *tls.Certificate, sha1 bool) *tls.Certificate {
	place := &cs[maphash.Comparable(copySeed, c)%uint64(len(cs))]
	if known := place.Load(); known != nil && known.from == c && known.sha1 == sha1 {
		return known.to
	}
	made := &copied{from: c, to: limited(c, sha1), sha1: sha1}
	place.Store(made)
	return made.to
}
