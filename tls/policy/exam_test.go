package policy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// examined makes a policy that leaves the decision about certificates to routes.
func examined(t testing.TB, cert *tls.Certificate, depth int, ca, lists []byte) *Policy {
	t.Helper()
	return newPolicy(t, config.TLSPolicy{Name: "auth-tls/a/ca/1", ClientAuth: config.ClientAuthReport, ClientAuthPool: ca, ClientAuthDepth: depth, ClientAuthLists: lists}, cert, keyring{}.attach)
}

// Each handshake succeeds, and the exam says the same about a resumed session.
func TestExams(t *testing.T) {
	later := time.Now().Add(time.Hour)
	root := newAuthority(t, "root")
	one := root.intermediate(t, "one")
	second := one.intermediate(t, "two")
	other, namesake := newAuthority(t, "other"), newAuthority(t, "root")
	server := root.issue(t, "a.example.org", false, later)
	with := func(c *tls.Certificate, chain ...authority) *tls.Certificate {
		for _, ca := range chain {
			c.Certificate = append(c.Certificate, ca.cert.Raw)
		}
		return c
	}
	good, revoked := root.issue(t, "good", false, later), root.issue(t, "revoked", false, later)
	lists := pemList(root.revoke(t, time.Hour, revoked.Leaf))
	f := func(what string, p *Policy, cert *tls.Certificate, want string, unknown bool) {
		t.Helper()
		var state tls.ConnectionState
		p.Config.VerifyConnection = func(s tls.ConnectionState) error { state = s; return nil }
		for _, version := range sessionVersions {
			cl := client(version)
			if cert != nil {
				cl = client(version, cert)
			}
			cl.ServerName, cl.ClientSessionCache = "a.example.org", tls.NewLRUClientSessionCache(1)
			for _, resumed := range []bool{false, true} {
				if _, err := shake(t, two(p, p), cl); err != nil {
					t.Errorf("%s, %s: the handshake fails: %v", what, tls.VersionName(version), err)
					continue
				}
				x := p.Examine(&state, time.Now())
				if x.Reason != want || (x.Err == nil) != (want == "") || x.Unknown != unknown || (x.Leaf == nil) != (cert == nil) || state.DidResume != resumed {
					t.Errorf("%s, %s, resumed %t: %+v, want %q", what, tls.VersionName(version), state.DidResume, x, want)
				}
			}
		}
	}
	plain := examined(t, server, 1, root.pem, nil)
	f("none", plain, nil, "", false)
	f("good", plain, good, "", false)
	f("one CA between", plain, with(one.issue(t, "a", false, later), one), "", false)
	f("two CAs between", plain, with(second.issue(t, "a", false, later), second, one), "unable to get local issuer certificate", true)
	f("two CAs between, one of them in ca.crt", examined(t, server, 1, append(append([]byte{}, root.pem...), pemOf(one.cert)...), nil), with(second.issue(t, "a", false, later), second), "unable to get issuer certificate", false)
	f("two CAs between, as allowed", examined(t, server, 2, root.pem, nil), with(second.issue(t, "a", false, later), second, one), "", false)
	f("the CA between is in ca.crt", examined(t, server, 1, append(append([]byte{}, root.pem...), pemOf(one.cert)...), nil), one.issue(t, "a", false, later), "", false)
	f("the CA between is missing", plain, one.issue(t, "a", false, later), "unable to verify the first certificate", true)
	f("the root is missing in ca.crt", examined(t, server, 1, pemOf(one.cert), nil), one.issue(t, "a", false, later), "unable to get issuer certificate", false)
	f("another CA", plain, other.issue(t, "a", false, later), "unable to verify the first certificate", true)
	f("another CA, sent too", plain, with(other.issue(t, "a", false, later), other), "self-signed certificate in certificate chain", true)
	f("a CA below another one", plain, with(other.intermediate(t, "x").issue(t, "a", false, later), other.intermediate(t, "x")), "unable to verify the first certificate", true)
	f("self-signed", plain, &tls.Certificate{Certificate: [][]byte{other.cert.Raw}, PrivateKey: other.key}, "self-signed certificate", true)
	f("a CA with the same name", plain, namesake.issue(t, "a", false, later), "unable to verify the first certificate", true)
	f("a revoked one", examined(t, server, 1, root.pem, lists), revoked, "certificate revoked", false)
	f("not a revoked one", examined(t, server, 1, root.pem, lists), good, "", false)
	f("no list of the CA between", examined(t, server, 1, root.pem, lists), with(one.issue(t, "a", false, later), one), "unable to get certificate CRL", false)
	f("the list has expired", examined(t, server, 1, root.pem, pemList(root.revoke(t, -time.Minute))), good, "unable to get certificate CRL", false)

	expired := root.issue(t, "expired", false, time.Now().Add(-time.Minute))
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{expired.Leaf}}
	if x := plain.Examine(&state, time.Now()); x.Reason != "certificate has expired" || x.Unknown {
		t.Errorf("%+v", x)
	}
	if x := plain.Examine(&state, time.Now().Add(-1000*time.Hour)); x.Reason != "certificate is not yet valid" || x.Unknown {
		t.Errorf("%+v", x)
	}
	if x := newPolicy(t, config.TLSPolicy{Name: "a"}, server, keyring{}.attach).Examine(&state, time.Now()); x != nil {
		t.Errorf("%+v", x)
	}
}

// Connections under other CAs, another depth or other lists are of another scope.
func TestScopeOfExams(t *testing.T) {
	ca := newAuthority(t, "ca")
	server := ca.issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	seen := map[string]bool{}
	for _, p := range []*Policy{examined(t, server, 1, ca.pem, nil), examined(t, server, 2, ca.pem, nil), examined(t, server, 1, newAuthority(t, "ca").pem, nil),
		examined(t, server, 1, ca.pem, pemList(ca.revoke(t, time.Hour))), examined(t, server, 1, ca.pem, pemList(ca.revoke(t, time.Hour, server.Leaf)))} {
		if seen[p.Scope] {
			t.Errorf("two policies have the scope %s", p.Scope)
		}
		seen[p.Scope] = true
	}
	for _, c := range []config.TLSPolicy{{ClientAuth: config.ClientAuthReport}, {ClientAuth: config.ClientAuthReport, ClientAuthPool: []byte("x")}, {ClientAuth: config.ClientAuthReport, ClientAuthPool: ca.pem, ClientAuthLists: []byte("x")}} {
		c.MinVersion, c.MaxVersion, c.CipherSuites = tls.VersionTLS12, tls.VersionTLS13, allIDs()
		if _, err := New(c, always(server), keyring{}.attach); err == nil {
			t.Errorf("%+v makes a policy", c)
		}
	}
}

// pemList returns a revocation list in PEM.
func pemList(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}
