// Package policy turns a TLS policy of the configuration into what crypto/tls
// does: versions, cipher suites, curves and client certificates. Policies never
// leak into each other: each has session ticket keys of its own, and a session
// that is resumed gets nothing that a full handshake would not give.
package policy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/weirproxy/weir/config"
)

// Policy is one TLS policy, ready for handshakes. It does not change.
type Policy struct {
	// Name is the policy's name in the configuration.
	Name string
	// Config is complete: it may be handed to tls.Server or returned by
	// GetConfigForClient. Its ticket keys are changed while it is in use; nothing else is.
	Config *tls.Config
	// From lists the client networks that get the policy; empty: everyone.
	From []netip.Prefix
	// ClientAuth reports whether client certificates are asked for.
	ClientAuth config.ClientAuthMode
	// SHA1 reports whether weir signs with SHA-1 for clients that accept nothing else.
	SHA1 bool
	// Forward says what backends are told of a verified client certificate.
	Forward []config.ClientCertField
	// Scope names all that a connection under this policy was asked to prove: a
	// session resumes, and a connection carries a host's requests, only where it is the same.
	Scope string

	revoked *revocation // nil: client certificates cannot be revoked

	http2  *Policy // the variant with HTTP/2; nil: there is none
	others *offers // the variants with other protocols
}

// New makes the policy p. certificate chooses the server certificate
// (certs.Store.Get fits). attach gives a configuration the session ticket keys
// of a scope, before New returns and whenever they change, for as long as the
// configuration is in use (certs.Tickets.Attach fits).
func New(p config.TLSPolicy, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), attach func(scope string, c *tls.Config)) (*Policy, error) {
	if err := check(p); err != nil {
		return nil, fmt.Errorf("TLS policy %s: %w", p.Name, err)
	}
	c := &tls.Config{
		GetCertificate: (&signer{certificate: certificate, sha1: p.SHA1}).get,
		MinVersion:     p.MinVersion,
		MaxVersion:     p.MaxVersion,
		// Go drops suites from its defaults one by one, never from explicit lists.
		CipherSuites: slices.Clone(p.CipherSuites),
		// The last one is for clients that offer nothing else; they are spoken to all the same.
		NextProtos: []string{"http/1.1", "http/1.0"},
		// Small first records help browsers on slow links and cost everyone system calls.
		DynamicRecordSizingDisabled: true,
	}
	for _, id := range p.Curves {
		c.CurvePreferences = append(c.CurvePreferences, tls.CurveID(id))
	}
	revoked, err := newRevocation(p)
	if err == nil && p.ClientAuth != config.ClientAuthNone {
		err = authenticate(c, p, revoked)
	}
	if err != nil {
		return nil, fmt.Errorf("TLS policy %s: %w", p.Name, err)
	}
	made := &Policy{Name: p.Name, Config: c, From: slices.Clone(p.From), ClientAuth: p.ClientAuth, SHA1: p.SHA1,
		Forward: slices.Clone(p.ClientAuthForward), Scope: scope(p), revoked: revoked}
	made.others = &offers{attach: func(c *tls.Config) { attach(made.Scope, c) }, made: make(map[string]*Policy)}
	made.prepareHTTP2()
	made.others.attach(c)
	if made.http2 != nil {
		made.others.attach(made.http2.Config)
	}
	return made, nil
}

// check refuses what crypto/tls would take for "as you like".
func check(p config.TLSPolicy) error {
	switch {
	case p.MinVersion < tls.VersionTLS10 || p.MaxVersion > tls.VersionTLS13 || p.MinVersion > p.MaxVersion:
		return fmt.Errorf("no TLS version that weir supports is between min_version %s and max_version %s",
			tls.VersionName(p.MinVersion), tls.VersionName(p.MaxVersion))
	case len(p.CipherSuites) == 0:
		return errors.New("cipher_suites is empty; remove it to use the secure ones")
	}
	for _, id := range p.CipherSuites {
		if !implemented(id) {
			return fmt.Errorf("cipher_suites: %s is none of the suites for TLS 1.0 to 1.2 that Go implements", tls.CipherSuiteName(id))
		}
	}
	if p.SHA1 {
		return sha1Possible()
	}
	return nil
}

func implemented(id uint16) bool {
	is := func(s *tls.CipherSuite) bool { return s.ID == id && s.SupportedVersions[0] < tls.VersionTLS13 }
	return slices.ContainsFunc(tls.CipherSuites(), is) || slices.ContainsFunc(tls.InsecureCipherSuites(), is)
}

// authenticate makes c ask for client certificates.
func authenticate(c *tls.Config, p config.TLSPolicy, revoked *revocation) error {
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(p.ClientAuthPool) {
		return fmt.Errorf("client_auth: the file %s named by ca contains no PEM certificate; without a CA weir cannot verify client certificates", p.ClientAuthCA)
	}
	switch p.ClientAuth {
	case config.ClientAuthRequest:
		c.ClientAuth = tls.VerifyClientCertIfGiven
	case config.ClientAuthRequire:
		c.ClientAuth = tls.RequireAndVerifyClientCert
	default:
		return fmt.Errorf("client_auth: mode %q is neither request nor require", p.ClientAuth)
	}
	required := p.ClientAuth == config.ClientAuthRequire
	roots := c.ClientCAs
	c.VerifyConnection = func(s tls.ConnectionState) error { return verify(s, roots, required, revoked) }
	return nil
}

// ErrClientCertificate is in the error of a handshake that failed because a
// resumed session's client certificate would not be accepted any more.
var ErrClientCertificate = errors.New("the client certificate is not acceptable")

// verify looks at the client certificate of a session that is resumed as a full
// handshake would have: expired since, or from a CA that is trusted no more,
// it is refused (CVE-2025-68121 was about resumption that skipped this). Revoked
// certificates are refused in both.
func verify(s tls.ConnectionState, roots *x509.CertPool, required bool, revoked *revocation) error {
	if len(s.PeerCertificates) == 0 {
		if required {
			return fmt.Errorf("%w: the client sent none, and client_auth requires one", ErrClientCertificate)
		}
		return nil
	}
	if !s.DidResume {
		return revoked.check(s.VerifiedChains, time.Now()) // crypto/tls has just verified it
	}
	options := x509.VerifyOptions{
		Roots:         roots,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   time.Now(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range s.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	chains, err := s.PeerCertificates[0].Verify(options)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrClientCertificate, err)
	}
	return revoked.check(chains, options.CurrentTime)
}

// scope names all that a resumed session takes over from the handshake it was
// made in: sessions resume only where it is the same.
func scope(p config.TLSPolicy) string {
	// The content of revocation lists is not part of it: when a list changes, clients that
	// are not revoked keep connection and session, see Standing.
	return fmt.Sprintf("%q %q %x %q", p.Name, p.ClientAuth, sha256.Sum256(p.ClientAuthPool), p.ClientAuthCRL)
}

// Allows reports whether a client may have the policy. A client address that is
// not known (a Unix socket's) is in no network.
func (p *Policy) Allows(client netip.Addr) bool {
	if len(p.From) == 0 {
		return true
	}
	client = client.Unmap().WithZone("") // prefixes contain no address with a zone
	for _, n := range p.From {
		if n.Contains(client) {
			return true
		}
	}
	return false
}

// RetryECH makes p tell clients whose ECH could not be opened, or who only
// pretend to use it, which configurations to try again with. It is called
// before p is used; crypto/tls takes them from here and not from Server's keys.
func (p *Policy) RetryECH(keys []tls.EncryptedClientHelloKey) {
	p.Config.EncryptedClientHelloKeys = keys
	if p.http2 != nil {
		p.http2.RetryECH(keys)
	}
}

// Server returns the configuration for a listener's handshakes. choose is
// called with each ClientHello; the connection it came over is in Conn. An
// error from choose, or no policy, ends the handshake. The configuration
// itself holds nothing to fall back on: no certificate, no ticket keys.
//
// With the keys ech (ParseECH makes them; nil: none) an encrypted ClientHello is
// opened first: choose then sees what is inside, and never the name outside.
// One that no key opens is as if it were not encrypted, for the name outside.
func Server(choose func(*tls.ClientHelloInfo) (*Policy, error), ech []tls.EncryptedClientHelloKey) *tls.Config {
	return &tls.Config{
		MinVersion:               tls.VersionTLS10, // SupportsCertificate asks for it, within choose
		SessionTicketsDisabled:   true,
		EncryptedClientHelloKeys: ech,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			p, err := choose(h)
			if err != nil {
				return nil, err
			}
			if p == nil {
				return nil, errors.New("no TLS policy was chosen for the client")
			}
			return p.Config, nil
		},
	}
}
