package policy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
)

// anySession is a client's session cache that offers the latest session to every server,
// as an attacker would.
type anySession struct{ state *tls.ClientSessionState }

func (c *anySession) Get(string) (*tls.ClientSessionState, bool)  { return c.state, c.state != nil }
func (c *anySession) Put(_ string, state *tls.ClientSessionState) { c.state = state }

func client(version uint16, certs ...*tls.Certificate) *tls.Config {
	c := &tls.Config{MinVersion: version, MaxVersion: version, ClientSessionCache: &anySession{}}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(certs) == 0 {
			return &tls.Certificate{}, nil
		}
		return certs[0], nil
	}
	return c
}

var sessionVersions = []uint16{tls.VersionTLS12, tls.VersionTLS13}

// two returns a listener with the policies a and b. The SNI chooses between them.
func two(a, b *Policy) *tls.Config {
	return Server(func(h *tls.ClientHelloInfo) (*Policy, error) {
		if h.ServerName == "b.example.org" {
			return b, nil
		}
		return a, nil
	}, nil)
}

// sharedKeys gives all scopes the same key, which attach must never do. With this key a session does resume
// in another scope, which shows that the tests can detect the error.
func sharedKeys(_ string, c *tls.Config) { c.SetSessionTicketKeys([][32]byte{{1}}) }

func TestSessionsStayInTheirPolicy(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert := ca.issue(t, "*.example.org", false, time.Now().Add(time.Hour))
	f := func(what string, a, b config.TLSPolicy, attach func(string, *tls.Config), want bool) {
		t.Helper()
		for _, version := range sessionVersions {
			server := two(newPolicy(t, a, cert, attach), newPolicy(t, b, cert, attach))
			cl := client(version, ca.issue(t, "client", false, time.Now().Add(time.Hour)))
			for i, name := range []string{"a.example.org", "a.example.org", "b.example.org"} {
				cl.ServerName = name
				state, err := shake(t, server, cl)
				if err != nil {
					t.Fatalf("%s, %s: %v", what, tls.VersionName(version), err)
				}
				wantResumed := i == 1 || i == 2 && want
				if state.DidResume != wantResumed {
					t.Errorf("%s, %s: connection %d to %s resumed: %v, want %v", what, tls.VersionName(version), i, name, state.DidResume, wantResumed)
				}
			}
		}
	}
	a, b := config.TLSPolicy{Name: "a"}, config.TLSPolicy{Name: "b"}
	f("other name", a, b, keyring{}.attach, false)
	f("shared keys", a, b, sharedKeys, true)
	f("the same policy in two configurations, as after a reload", a, a, keyring{}.attach, true)

	mode := func(mode config.ClientAuthMode, pool authority) config.TLSPolicy {
		return config.TLSPolicy{Name: "a", ClientAuth: mode, ClientAuthPool: pool.pem}
	}
	f("same authentication", mode(config.ClientAuthRequire, ca), mode(config.ClientAuthRequire, ca), keyring{}.attach, true)
	f("none and required", a, mode(config.ClientAuthRequire, ca), keyring{}.attach, false)
	f("requested and required", mode(config.ClientAuthRequest, ca), mode(config.ClientAuthRequire, ca), keyring{}.attach, false)
	both := ca
	both.pem = append(newAuthority(t, "other").pem, ca.pem...)
	f("another CA file", mode(config.ClientAuthRequire, ca), mode(config.ClientAuthRequire, both), keyring{}.attach, false)
}

// A session of one TLS version does not resume in another, whatever the client offers.
func TestSessionsStayInTheirVersion(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "*.example.org", false, time.Now().Add(time.Hour))
	for _, from := range sessionVersions {
		for _, to := range sessionVersions {
			server := newPolicy(t, anything(), cert, keyring{}.attach).Config
			cl := client(from)
			if _, err := shake(t, server, cl); err != nil {
				t.Fatal(err)
			}
			cl.MinVersion, cl.MaxVersion = to, to
			state, err := shake(t, server, cl)
			if err != nil || state.DidResume != (from == to) {
				t.Errorf("a session of %s in %s: resumed %v, error %v", tls.VersionName(from), tls.VersionName(to), state.DidResume, err)
			}
		}
	}
}

func TestClientAuth(t *testing.T) {
	ca, stranger := newAuthority(t, "ca"), newAuthority(t, "stranger")
	later := time.Now().Add(time.Hour)
	cert := ca.issue(t, "a.example.org", false, later)
	good, wrong := ca.issue(t, "good", false, later), stranger.issue(t, "wrong", false, later)
	expired := ca.issue(t, "expired", false, time.Now().Add(-time.Minute))
	var more []byte // CAs beside ca
	f := func(mode config.ClientAuthMode, given *tls.Certificate, want string) {
		t.Helper()
		for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS12, tls.VersionTLS13} {
			p := anything()
			if p.ClientAuth = mode; mode != config.ClientAuthNone {
				p.ClientAuthPool = append(slices.Clone(ca.pem), more...)
			}
			cl := client(version)
			if given != nil {
				cl = client(version, given)
			}
			cl.CipherSuites = allIDs()
			_, err := shake(t, newPolicy(t, p, cert, keyring{}.attach).Config, cl)
			if got := HandshakeResult(err); got != want {
				t.Errorf("mode %q, %s: the result is %s (%v), want %s", mode, tls.VersionName(version), got, err, want)
			}
		}
	}
	f(config.ClientAuthNone, nil, ResultOK)
	f(config.ClientAuthNone, wrong, ResultOK) // weir does not request it, so the client does not send it
	for _, more = range [][]byte{nil, manyCAs()} {
		f(config.ClientAuthRequest, nil, ResultOK)
		f(config.ClientAuthRequest, good, ResultOK)
		f(config.ClientAuthRequest, wrong, ResultClientCertificate)
		f(config.ClientAuthRequest, expired, ResultClientCertificate)
		f(config.ClientAuthRequire, nil, ResultClientCertificate)
		f(config.ClientAuthRequire, good, ResultOK)
		f(config.ClientAuthRequire, wrong, ResultClientCertificate)
		f(config.ClientAuthRequire, expired, ResultClientCertificate)
		f(config.ClientAuthReport, nil, ResultOK)
		f(config.ClientAuthReport, wrong, ResultOK)
	}
}

// A resumed session has no advantage over a full handshake: its certificate must be valid now, and for the
// current CA.
func TestResumptionVerifiesAgain(t *testing.T) {
	f := func(version uint16, more []byte) {
		synctest.Test(t, func(t *testing.T) {
			ca := newAuthority(t, "ca")
			cert := ca.issue(t, "a.example.org", false, time.Now().Add(90*time.Hour))
			short := ca.issue(t, "client", false, time.Now().Add(time.Hour))
			p := newPolicy(t, config.TLSPolicy{ClientAuth: config.ClientAuthRequire, ClientAuthPool: append(slices.Clone(ca.pem), more...)}, cert, sharedKeys)
			cl := client(version, short)
			over := func(p *Policy) (tls.ConnectionState, error) {
				a, b := newPipe()
				return shakeOver(a, b, p.Config, cl)
			}
			if _, err := over(p); err != nil {
				t.Fatal(err)
			}
			if state, err := over(p); err != nil || !state.DidResume || len(state.PeerCertificates) == 0 {
				t.Errorf("%s: resumed %v, error %v", tls.VersionName(version), state.DidResume, err)
			}
			chains := p.State(tls.ConnectionState{PeerCertificates: []*x509.Certificate{short.Leaf}}).VerifiedChains
			if more != nil && (len(chains) != 1 || len(chains[0]) != 2 || !chains[0][1].Equal(ca.cert)) {
				t.Errorf("%s: the verified chains are %v", tls.VersionName(version), chains)
			}
			// The keys are shared on purpose: even then, the CA check refuses the client.
			other := newAuthority(t, "other")
			moved := newPolicy(t, config.TLSPolicy{ClientAuth: config.ClientAuthRequire, ClientAuthPool: append(slices.Clone(other.pem), more...)}, cert, sharedKeys)
			if _, err := over(moved); HandshakeResult(err) != ResultClientCertificate {
				t.Errorf("%s: with another CA: %v", tls.VersionName(version), err)
			}
			time.Sleep(2 * time.Hour)
			if _, err := over(p); HandshakeResult(err) != ResultClientCertificate {
				t.Errorf("%s: expired since: %v", tls.VersionName(version), err)
			}
		})
	}
	for _, version := range sessionVersions {
		f(version, nil)
		f(version, manyCAs())
	}
}

// verify does not depend on earlier checks of crypto/tls.
func TestVerify(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	good := ca.issue(t, "good", false, time.Now().Add(time.Hour)).Leaf
	expired := ca.issue(t, "expired", false, time.Now().Add(-time.Minute)).Leaf
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	f := func(leaf *x509.Certificate, resumed, required, want bool) {
		t.Helper()
		s := tls.ConnectionState{DidResume: resumed}
		if leaf != nil {
			s.PeerCertificates = []*x509.Certificate{leaf, other.cert}
		}
		err := (&clientVerifier{roots: roots, required: required}).verify(s)
		if (err == nil) != want || err != nil && !errors.Is(err, ErrClientCertificate) {
			t.Errorf("leaf %v, resumed %v, required %v: %v", leaf != nil, resumed, required, err)
		}
	}
	f(nil, false, false, true)
	f(nil, false, true, false)
	f(nil, true, true, false)
	f(nil, true, false, true)
	f(good, true, true, true)
	f(good, true, false, true)
	f(expired, true, true, false)
	f(expired, true, false, false)
	f(other.cert, true, true, false)
}
