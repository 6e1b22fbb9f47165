package policy

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weirproxy/weir/config"
)

// revoke signs a list that began an hour ago and expires after life.
func (a authority) revoke(t testing.TB, life time.Duration, certs ...*x509.Certificate) []byte {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(life)}
	for _, c := range certs {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// intermediate makes a CA whose certificate a signed.
func (a authority) intermediate(t testing.TB, name string) authority {
	t.Helper()
	key := newKey(false)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	return authority{cert: cert, key: key}
}

// revocable makes a policy with its revocation lists in files.
func revocable(t testing.TB, crls *CRLs, cert *tls.Certificate, pool []byte, attach func(string, *tls.Config), files ...string) *Policy {
	t.Helper()
	c := config.TLSPolicy{Name: "a", ClientAuth: config.ClientAuthRequire, ClientAuthPool: pool, ClientAuthCRL: files}
	plan, err := crls.Plan([]config.TLSPolicy{c})
	if err != nil {
		t.Fatal(err)
	}
	p := newPolicy(t, c, cert, attach)
	p.Revoke(plan, files)
	plan.Commit()
	return p
}

func file(t testing.TB, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRevokedCertificatesAreRefused(t *testing.T) {
	later := time.Now().Add(time.Hour)
	root := newAuthority(t, "root")
	issuing, second := root.intermediate(t, "issuing"), root.intermediate(t, "second")
	server := root.issue(t, "a.example.org", false, later)
	good, bad := issuing.issue(t, "good", false, later), issuing.issue(t, "bad", false, later)
	direct, outside := root.issue(t, "direct", false, later), second.issue(t, "outside", false, later)
	for c, ca := range map[*tls.Certificate]authority{good: issuing, bad: issuing, outside: second} {
		c.Certificate = append(c.Certificate, ca.cert.Raw)
	}
	dir := t.TempDir()
	write := func(name string, data []byte) string { return file(t, filepath.Join(dir, name), data) }
	ofRoot := write("root", root.revoke(t, time.Hour))
	ofIssuing := write("issuing", issuing.revoke(t, time.Hour, bad.Leaf))
	f := func(what string, pool []byte, cert *tls.Certificate, want string, files ...string) {
		t.Helper()
		for _, more := range [][]byte{nil, manyCAs()} {
			p := revocable(t, NewCRLs(prometheus.NewRegistry()), server, append(slices.Clone(pool), more...), keyring{}.attach, files...)
			for _, version := range sessionVersions {
				cl := client(version, cert)
				cl.ServerName = "a.example.org"
				_, err := shake(t, two(p, p), cl)
				if got := HandshakeResult(err); got != want {
					t.Errorf("%s, %s, %d more bytes of CAs: %s (%v), want %s", what, tls.VersionName(version), len(more), got, err, want)
				}
			}
		}
	}
	both := append(append([]byte{}, root.pem...), pemOf(issuing.cert)...)
	f("not revoked", root.pem, good, ResultOK, ofRoot, ofIssuing)
	f("revoked", root.pem, bad, ResultRevoked, ofRoot, ofIssuing)
	f("revoked, and the intermediate trusted by itself", both, bad, ResultRevoked, ofRoot, ofIssuing)
	f("not revoked, by the root itself", root.pem, direct, ResultOK, ofRoot)
	f("no list of the issuing CA", root.pem, good, ResultRevocationUnknown, ofRoot)
	f("no list of the root", root.pem, good, ResultRevocationUnknown, ofIssuing)
	f("no list of the root, and the intermediate trusted by itself", both, good, ResultOK, ofIssuing)
	f("another CA's", root.pem, outside, ResultRevocationUnknown, ofRoot, ofIssuing)
	gone := write("gone", root.revoke(t, time.Hour, issuing.cert))
	f("the intermediate is revoked", root.pem, good, ResultRevoked, gone, ofIssuing)
	f("the intermediate is revoked, and trusted by itself", both, good, ResultRevoked, gone, ofIssuing)
	expired := write("expired", root.revoke(t, -time.Minute, bad.Leaf))
	f("the list has run out", root.pem, direct, ResultRevocationUnknown, expired)
	f("a newer one is beside it", root.pem, direct, ResultOK, expired, ofRoot)
	revokedOnce := write("revoked-once", root.revoke(t, -time.Minute, direct.Leaf))
	f("revoked by one that has run out", root.pem, direct, ResultRevoked, revokedOnce, ofRoot)
	impostor := newAuthority(t, "issuing")
	f("a list by somebody of the CA's name", root.pem, good, ResultRevocationUnknown, ofRoot, write("impostor", impostor.revoke(t, time.Hour)))

	// A policy without its lists refuses the client.
	p := newPolicy(t, config.TLSPolicy{Name: "a", ClientAuth: config.ClientAuthRequire, ClientAuthPool: root.pem, ClientAuthCRL: []string{ofRoot}}, server, keyring{}.attach)
	cl := client(tls.VersionTLS13, direct)
	cl.ServerName = "a.example.org"
	if _, err := shake(t, two(p, p), cl); HandshakeResult(err) != ResultRevocationUnknown {
		t.Errorf("without lists: %v", err)
	}
}

// After a revocation, the client can neither resume its session nor send another request
// on an open connection. Other clients can do both.
func TestRevocationEndsSessions(t *testing.T) {
	testRevocationEndsSessions(t, nil)
	testRevocationEndsSessions(t, manyCAs())
}

func testRevocationEndsSessions(t *testing.T, more []byte) {
	ca := newAuthority(t, "ca")
	pool := append(slices.Clone(ca.pem), more...)
	later := time.Now().Add(time.Hour)
	server, good, bad := ca.issue(t, "a.example.org", false, later), ca.issue(t, "good", false, later), ca.issue(t, "bad", false, later)
	for _, version := range sessionVersions {
		path := file(t, filepath.Join(t.TempDir(), "crl"), ca.revoke(t, time.Hour))
		reg := prometheus.NewRegistry()
		crls := NewCRLs(reg)
		keys := keyring{}
		p := revocable(t, crls, server, pool, keys.attach, path)
		clients := map[*tls.Certificate]*tls.Config{good: client(version, good), bad: client(version, bad)}
		for _, cl := range clients {
			cl.ServerName = "a.example.org"
			if _, err := shake(t, two(p, p), cl); err != nil {
				t.Fatal(err)
			}
		}
		standing := p.Stand([][]*x509.Certificate{{bad.Leaf, ca.cert}})
		wellStanding := p.Stand([][]*x509.Certificate{{good.Leaf, ca.cert}})
		if standing.Refused() || wellStanding.Refused() {
			t.Fatal("refused before it was revoked")
		}

		file(t, path, ca.revoke(t, time.Hour, bad.Leaf))
		if replaced, err := crls.Reload(); err != nil || len(replaced) != 1 {
			t.Fatalf("%q, %v", replaced, err)
		}
		if replaced, err := crls.Reload(); err != nil || len(replaced) != 0 {
			t.Errorf("a file that did not change: %q, %v", replaced, err)
		}
		if state, err := shake(t, two(p, p), clients[good]); err != nil || !state.DidResume {
			t.Errorf("%s: who is not revoked: %v", tls.VersionName(version), err)
		}
		if _, err := shake(t, two(p, p), clients[bad]); HandshakeResult(err) != ResultRevoked {
			t.Errorf("%s: the session of one that was revoked: %v", tls.VersionName(version), err)
		}
		for range 2 { // the second time from memory
			if !standing.Refused() {
				t.Error("an open connection of a revoked client is not refused")
			}
		}
		if wellStanding.Refused() {
			t.Error("open connections are not judged by the new list")
		}

		// A broken file leaves the previous list in use.
		file(t, path, []byte("no list"))
		if _, err := crls.Reload(); err == nil {
			t.Error("no error of a broken file")
		}
		if _, err := shake(t, two(p, p), client(version, bad)); err == nil {
			t.Error("a broken file lets revoked certificates in")
		}
		again := revocable(t, crls, server, pool, keys.attach, path) // a reload of the configuration
		if again.revoked.files[0] != p.revoked.files[0] {
			t.Error("a reload reads what is in use anew")
		}
		if n, err := testutil.GatherAndCount(reg, "weir_tls_crl_next_update_timestamp_seconds"); n != 1 || err != nil {
			t.Errorf("%d gauges, %v", n, err)
		}
		if failed := testutil.ToFloat64(crls.failed); failed != 1 {
			t.Errorf("%v failures counted", failed)
		}
	}
}

// A connection stays open when a list expires.
func TestExpiredListKeepsConnections(t *testing.T) {
	ca := newAuthority(t, "ca")
	leaf := ca.issue(t, "client", false, time.Now().Add(time.Hour))
	path := file(t, filepath.Join(t.TempDir(), "crl"), ca.revoke(t, -time.Minute))
	crls := NewCRLs(prometheus.NewRegistry())
	p := revocable(t, crls, leaf, ca.pem, keyring{}.attach, path)
	if p.Stand([][]*x509.Certificate{{leaf.Leaf, ca.cert}}).Refused() {
		t.Error("an open connection is refused because a list ran out")
	}
	if all := crls.Expired(time.Now()); len(all) != 1 || all[0].File != path || all[0].Issuer != "CN=ca" {
		t.Errorf("expired are %v", all)
	}
	var nobody *Standing
	if nobody.Refused() || (&Policy{}).Stand(nil) != nil {
		t.Error("a policy without lists refuses")
	}
}

// A look-up in a list with 100,000 entries does not search all of them.
func TestLargeRevocationList(t *testing.T) {
	ca := newAuthority(t, "ca")
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for i := range int64(100_000) {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(1<<60 + 2*i), RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.cert, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := ca.issue(t, "client", false, time.Now().Add(time.Hour))
	path := file(t, filepath.Join(t.TempDir(), "crl"), der)
	p := revocable(t, NewCRLs(prometheus.NewRegistry()), leaf, ca.pem, keyring{}.attach, path)
	c := *leaf.Leaf
	for serial, want := range map[int64]error{1 << 60: ErrRevoked, 1<<60 + 1: nil, 1<<60 + 199_998: ErrRevoked, 1<<60 + 199_999: nil} {
		c.SerialNumber = big.NewInt(serial)
		if err := p.revoked.check([][]*x509.Certificate{{&c, ca.cert}}, time.Now()); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("serial number %d: %v, want %v", serial, err, want)
		}
	}
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
