// Package policy converts a TLS policy of the configuration into settings of crypto/tls:
// versions, cipher suites, curves and client certificates. Policies are separate from
// each other: each has its own session ticket keys, and a resumed session gets nothing
// that a full handshake would not give.
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
	// Config is complete: callers may pass it to tls.Server, or return it from
	// GetConfigForClient. While it is in use, weir changes its ticket keys and nothing
	// else.
	Config *tls.Config
	// From lists the client networks that may use the policy; empty: all clients.
	From []netip.Prefix
	// ClientAuth is the mode in which weir requests client certificates.
	ClientAuth config.ClientAuthMode
	// SHA1 reports whether weir signs with SHA-1 for clients that accept nothing else.
	SHA1 bool
	// Forward lists what weir sends to backends about a verified client certificate.
	Forward []config.ClientCertField
	// Scope names everything that a client had to prove under this policy. A session
	// resumes only in the same scope, and a connection serves a host only in the same
	// scope.
	Scope string

	revoked *revocation // nil: client certificates cannot be revoked
	clients *clientVerifier
	exam    *exam // of client certificates about which routes decide; nil: this package decides

	http2  *Policy // the variant with HTTP/2; nil: there is none
	others *offers // the variants with other protocols
}

// New makes the policy p. certificate chooses the server certificate (certs.Store.Get
// fits). attach gives a configuration the session ticket keys of a scope: before New
// returns, and then at each change, as long as the configuration is in use
// (certs.Tickets.Attach fits).
func New(p config.TLSPolicy, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), attach func(scope string, c *tls.Config)) (*Policy, error) {
	if err := check(p); err != nil {
		return nil, fmt.Errorf("TLS policy %s: %w", p.Name, err)
	}
	c := &tls.Config{
		GetCertificate: (&signer{certificate: certificate, sha1: p.SHA1}).get,
		MinVersion:     p.MinVersion,
		MaxVersion:     p.MaxVersion,
		// Go removes single suites from its defaults, but never from explicit lists.
		CipherSuites: slices.Clone(p.CipherSuites),
		// http/1.0 is for clients that offer nothing else. weir serves them, too.
		NextProtos: []string{"http/1.1", "http/1.0"},
		// Small first records help browsers on slow links, but cost system calls for all
		// clients.
		DynamicRecordSizingDisabled: true,
	}
	for _, id := range p.Curves {
		c.CurvePreferences = append(c.CurvePreferences, tls.CurveID(id))
	}
	revoked, err := newRevocation(p)
	var exam *exam
	var clients *clientVerifier
	switch {
	case err != nil || p.ClientAuth == config.ClientAuthNone:
	case p.ClientAuth == config.ClientAuthReport:
		exam, err = request(c, p)
	default:
		clients, err = authenticate(c, p, revoked)
	}
	if err != nil {
		return nil, fmt.Errorf("TLS policy %s: %w", p.Name, err)
	}
	if p.Ask && p.ClientAuth == config.ClientAuthNone {
		c.ClientAuth = tls.RequestClientCert
	}
	made := &Policy{Name: p.Name, Config: c, From: slices.Clone(p.From), ClientAuth: p.ClientAuth, SHA1: p.SHA1,
		Forward: slices.Clone(p.ClientAuthForward), Scope: scope(p), revoked: revoked, exam: exam, clients: clients}
	made.others = &offers{attach: func(c *tls.Config) { attach(made.Scope, c) }, made: make(map[string]*Policy)}
	made.prepareHTTP2()
	made.others.attach(c)
	if made.http2 != nil {
		made.others.attach(made.http2.Config)
	}
	return made, nil
}

// check refuses values that crypto/tls would interpret as "use the default".
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

// authenticate makes c request client certificates.
func authenticate(c *tls.Config, p config.TLSPolicy, revoked *revocation) (*clientVerifier, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(p.ClientAuthPool) {
		return nil, fmt.Errorf("client_auth: the file %s named by ca contains no PEM certificate; without a CA weir cannot verify client certificates", p.ClientAuthCA)
	}
	required := p.ClientAuth == config.ClientAuthRequire
	if !required && p.ClientAuth != config.ClientAuthRequest {
		return nil, fmt.Errorf("client_auth: mode %q is neither request nor require", p.ClientAuth)
	}
	cas, err := config.Authorities(p.ClientAuthPool)
	if err != nil {
		return nil, fmt.Errorf("client_auth: the file %s named by ca %w", p.ClientAuthCA, err)
	}
	v := &clientVerifier{roots: roots, required: required, revoked: revoked, alone: !config.NamesFit(cas)}
	c.VerifyConnection = v.verify
	switch {
	case v.alone && required:
		c.ClientAuth = tls.RequireAnyClientCert
	case v.alone:
		c.ClientAuth = tls.RequestClientCert
	case required:
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, roots
	default:
		c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, roots
	}
	return v, nil
}

// clientVerifier verifies the client certificates of a policy, beside crypto/tls or alone.
type clientVerifier struct {
	roots    *x509.CertPool
	required bool
	revoked  *revocation // nil: certificates cannot be revoked
	// alone means that crypto/tls does not verify certificates: it would send the names of all CAs
	// to the client, and they do not fit into a handshake.
	alone bool
}

// ErrClientCertificate is in the error of a handshake if weir no longer accepts the
// client certificate of a resumed session.
var ErrClientCertificate = errors.New("the client certificate is not acceptable")

// verify checks the client certificate of a resumed session as a full handshake would. It
// refuses a certificate that has expired since, or whose CA is no longer trusted
// (CVE-2025-68121: a resumption without this check). It refuses revoked certificates in
// both kinds of handshake.
func (v *clientVerifier) verify(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 {
		if v.required {
			return fmt.Errorf("%w: the client sent none, and client_auth requires one", ErrClientCertificate)
		}
		return nil
	}
	if !s.DidResume && !v.alone {
		return v.revoked.check(s.VerifiedChains, time.Now()) // crypto/tls has just verified it
	}
	now := time.Now()
	chains, err := v.chains(&s, now)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrClientCertificate, err)
	}
	return v.revoked.check(chains, now)
}

// chains verifies the client certificate of a connection.
func (v *clientVerifier) chains(s *tls.ConnectionState, now time.Time) ([][]*x509.Certificate, error) {
	options := x509.VerifyOptions{
		Roots:         v.roots,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range s.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	return s.PeerCertificates[0].Verify(options)
}

// State returns the state of a connection under p. Its VerifiedChains are those of the client
// certificate, whether crypto/tls or p has verified it.
func (p *Policy) State(s tls.ConnectionState) tls.ConnectionState {
	if p.clients != nil && p.clients.alone && len(s.PeerCertificates) > 0 {
		s.VerifiedChains, _ = p.clients.chains(&s, time.Now()) // the handshake has succeeded; an error can only be that it has expired since
	}
	return s
}

// scope returns everything that a resumed session takes over from its first handshake.
// Sessions resume only if it is equal.
func scope(p config.TLSPolicy) string {
	// The content of revocation lists is not part of the scope. When a list changes,
	// clients that are not revoked keep their connections and sessions, see Standing.
	all := fmt.Sprintf("%q %q %x %q", p.Name, p.ClientAuth, sha256.Sum256(p.ClientAuthPool), p.ClientAuthCRL)
	if p.ClientAuth == config.ClientAuthReport { // each connection examines its certificate once
		all += fmt.Sprintf(" %d %x", p.ClientAuthDepth, sha256.Sum256(p.ClientAuthLists))
	}
	return all
}

// Allows reports whether a client may use the policy. An unknown client address (of a
// Unix socket) is in no network.
func (p *Policy) Allows(client netip.Addr) bool {
	if len(p.From) == 0 {
		return true
	}
	client = client.Unmap().WithZone("") // prefixes never contain an address with a zone
	for _, n := range p.From {
		if n.Contains(client) {
			return true
		}
	}
	return false
}

// RetryECH sets the configurations that p sends to clients to try again with: clients
// whose ECH weir could not decrypt, and clients that only imitate ECH (GREASE). It must
// be called before p is used. crypto/tls takes the configurations from here, not from the
// keys of Server.
func (p *Policy) RetryECH(keys []tls.EncryptedClientHelloKey) {
	p.Config.EncryptedClientHelloKeys = keys
	if p.http2 != nil {
		p.http2.RetryECH(keys)
	}
}

// Server returns the configuration for the handshakes of a listener. It calls choose with
// each ClientHello, whose Conn is the connection. If choose returns an error or no
// policy, the handshake fails. The configuration itself has no fallback: no certificate,
// no ticket keys.
//
// With the keys ech (of ParseECH; nil: none), crypto/tls first decrypts an encrypted
// ClientHello. choose then sees the inner ClientHello, and never the outer name. If no
// key fits, choose gets the outer ClientHello, as if it were not encrypted.
func Server(choose func(*tls.ClientHelloInfo) (*Policy, error), ech []tls.EncryptedClientHelloKey) *tls.Config {
	return &tls.Config{
		MinVersion:               tls.VersionTLS10, // needed by SupportsCertificate, which choose calls
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
