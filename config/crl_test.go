package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// listMaker is a CA that signs revocation lists.
type listMaker struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newListMaker(t testing.TB, name string) listMaker {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	return listMaker{cert, key}
}

// list signs a list in DER.
func (m listMaker) list(t testing.TB, entries []x509.RevocationListEntry, this time.Time, life time.Duration, extensions ...pkix.Extension) []byte {
	t.Helper()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: this, NextUpdate: this.Add(life),
		RevokedCertificateEntries: entries, ExtraExtensions: extensions}, m.cert, m.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func revokedSerials(serials ...int64) (all []x509.RevocationListEntry) {
	for _, s := range serials {
		all = append(all, x509.RevocationListEntry{SerialNumber: big.NewInt(s), RevocationTime: time.Now()})
	}
	return all
}

func asPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func idp(der ...byte) pkix.Extension {
	return pkix.Extension{Id: config.OIDDistribution, Critical: true, Value: append([]byte{0x30, byte(len(der))}, der...)}
}

// weir refuses a list that does not show for every certificate whether it is revoked.
func TestRevocationLists(t *testing.T) {
	ca := newListMaker(t, "ca")
	now := time.Now()
	plain := ca.list(t, revokedSerials(7, 300, 2), now, time.Hour)
	f := func(what string, data []byte, lists int, want string) {
		t.Helper()
		got, err := config.ParseRevocationLists(data)
		switch {
		case want == "" && (err != nil || len(got) != lists):
			t.Errorf("%s: %d lists, %v", what, len(got), err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	in := asPEM("X509 CRL", plain)
	f("DER", plain, 1, "")
	f("PEM", in, 1, "")
	f("two", append(append([]byte("text\n"), in...), in...), 2, "")
	f("a certificate beside it", append(asPEM("CERTIFICATE", ca.cert.Raw), in...), 1, "")
	f("nothing", nil, 0, "not a readable certificate revocation list")
	f("a certificate alone", asPEM("CERTIFICATE", ca.cert.Raw), 0, "no whole certificate revocation list")
	f("cut short", in[:len(in)-40], 0, "no whole certificate revocation list")
	f("a second one cut short", append(append([]byte{}, in...), in[:len(in)-40]...), 0, "no whole certificate revocation list")
	f("DER cut short", plain[:len(plain)-1], 0, "not a readable certificate revocation list")
	f("from the future", ca.list(t, nil, now.Add(time.Hour), time.Hour), 0, "in the future")
	f("clocks apart", ca.list(t, nil, now.Add(time.Minute), time.Hour), 1, "")
	f("delta", ca.list(t, nil, now, time.Hour, pkix.Extension{Id: config.OIDDelta, Critical: true, Value: []byte{2, 1, 1}}), 0, "delta list")
	f("indirect", ca.list(t, nil, now, time.Hour, idp(0x84, 1, 0xff)), 0, "indirect")
	f("some reasons", ca.list(t, nil, now, time.Hour, idp(0x83, 2, 1, 2)), 0, "some reasons")
	f("attribute certificates", ca.list(t, nil, now, time.Hour, idp(0x85, 1, 0xff)), 0, "attribute certificates")
	f("a name that is no URL", ca.list(t, nil, now, time.Hour, idp(0xa0, 7, 0xa0, 5, 0x82, 3, 'a', '.', 'b')), 0, "not named by a URL")
	f("a name in parts", ca.list(t, nil, now, time.Hour, idp(0xa0, 2, 0xa1, 0)), 0, "not named by a URL")
	f("a broken point", ca.list(t, nil, now, time.Hour, pkix.Extension{Id: config.OIDDistribution, Critical: true, Value: []byte{1}}), 0, "broken Issuing")
	f("an unknown extension", ca.list(t, nil, now, time.Hour, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}), 0, "critical extension 1.2.3")
	f("an unknown extension that is not critical", ca.list(t, nil, now, time.Hour, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}), 1, "")
	entry := revokedSerials(5)
	entry[0].ExtraExtensions = []pkix.Extension{{Id: config.OIDEntryIssuer, Critical: true, Value: []byte{0x30, 0}}}
	f("an entry of another CA's", ca.list(t, entry, now, time.Hour), 0, "indirect")
	entry[0].ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}}
	f("an entry with an unknown extension", ca.list(t, entry, now, time.Hour), 0, "critical extension 1.2.3")

	lists, _ := config.ParseRevocationLists(plain)
	for serial, want := range map[int64]bool{1: false, 2: true, 7: true, 44: false, 300: true} {
		if got := lists[0].Revokes(&x509.Certificate{SerialNumber: big.NewInt(serial)}); got != want {
			t.Errorf("serial number %d is revoked: %v", serial, got)
		}
	}
	part, err := config.ParseRevocationLists(ca.list(t, nil, now, time.Hour, idp(0xa0, 9, 0xa0, 7, 0x86, 5, 'h', ':', '/', '/', 'a', 0x81, 1, 0xff)))
	if err != nil {
		t.Fatal(err)
	}
	covers := func(c x509.Certificate, want bool) {
		t.Helper()
		if got := part[0].Covers(&c); got != want {
			t.Errorf("a list for users at h://a covers %v at %q: %v", c.IsCA, c.CRLDistributionPoints, got)
		}
	}
	covers(x509.Certificate{CRLDistributionPoints: []string{"h://b", "h://a"}}, true)
	covers(x509.Certificate{CRLDistributionPoints: []string{"h://b"}}, false)
	covers(x509.Certificate{}, false)
	covers(x509.Certificate{CRLDistributionPoints: []string{"h://a"}, IsCA: true}, false)
}

func TestRevocationFilesOfAPolicy(t *testing.T) {
	dir := folder{t, t.TempDir()}
	ca, other, liar := newListMaker(t, "ca"), newListMaker(t, "other"), newListMaker(t, "ca")
	dir.write("ca.pem", asPEM("CERTIFICATE", ca.cert.Raw))
	dir.write("both.pem", append(asPEM("CERTIFICATE", ca.cert.Raw), asPEM("CERTIFICATE", other.cert.Raw)...))
	dir.write("ca.crl", ca.list(t, nil, time.Now(), time.Hour))
	dir.write("old.crl", ca.list(t, nil, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour))
	dir.write("other.crl", asPEM("X509 CRL", other.list(t, nil, time.Now(), time.Hour)))
	dir.write("liar.crl", liar.list(t, nil, time.Now(), time.Hour))
	text := func(ca, crl string) string {
		return "listeners: {web: {address: ':443', protocol: tls}}\nbackends: {app: {endpoints: ['a:1']}}\ncertificates: [{self_signed: {hosts: [a.example]}}]\n" +
			"routes: [{listeners: [web], hosts: [a.example], tls_policy: p, backend: app}]\ntls_policies: {p: {client_auth: {mode: require, ca: " + ca + ", crl: [" + crl + "]}}}\n"
	}
	f := func(caFile, crl, wantError, wantWarning string) {
		t.Helper()
		c, errs := dir.parse(text(caFile, crl))
		if (wantError == "") != (errs == "") || !strings.Contains(errs, wantError) {
			t.Errorf("%s, %s: errors %q, want %q", caFile, crl, errs, wantError)
		}
		if c == nil {
			return
		}
		warnings := ""
		if len(c.Warnings) > 0 {
			warnings = c.Warnings.Error()
		}
		if (wantWarning == "") != (warnings == "") || !strings.Contains(warnings, wantWarning) {
			t.Errorf("%s, %s: warnings %q, want %q", caFile, crl, warnings, wantWarning)
		}
	}
	f("ca.pem", "ca.crl", "", "")
	f("both.pem", "ca.crl, other.crl", "", "")
	f("both.pem", "ca.crl", "", `no list is from the CA "CN=other"`)
	f("ca.pem", "ca.crl, other.crl", "", `the list of "CN=other" has an effect only if clients send`)
	f("ca.pem", "old.crl", "", `the list of "CN=ca" expired on 2020-01-01T01:00:00Z`)
	f("ca.pem", "liar.crl", `"liar.crl" has a list of "CN=ca" that was not signed by the CA of this name in ca`, "")
	f("ca.pem", "ca.pem", `"ca.pem" has no whole certificate revocation list`, "")
	f("ca.pem", "none.crl", `"none.crl" cannot be read: no such file or directory`, "")

	// A process that already uses the file only gets a warning.
	path := filepath.Join(dir.path, "weir.yaml")
	if err := os.WriteFile(path, []byte(text("ca.pem", "liar.crl")), 0o600); err != nil {
		t.Fatal(err)
	}
	used := config.InUse{CRL: func(file string) bool { return file == filepath.Join(dir.path, "liar.crl") }}
	if c, err := file.Reload(path, environment, used); err != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings.Error(), "its previous content stays in use") {
		t.Errorf("a file in use that broke: %v", err)
	}
}

// No file makes the parser panic, and no list revokes a certificate that it does not
// contain.
func FuzzRevocationLists(f *testing.F) {
	ca := newListMaker(f, "ca")
	plain := ca.list(f, revokedSerials(7, 300), time.Now(), time.Hour)
	f.Add(plain)
	f.Add(asPEM("X509 CRL", plain))
	f.Add(ca.list(f, nil, time.Now(), time.Hour, idp(0xa0, 9, 0xa0, 7, 0x86, 5, 'h', ':', '/', '/', 'a', 0x81, 1, 0xff)))
	f.Add(ca.list(f, nil, time.Now(), time.Hour, idp(0x84, 1, 0xff)))
	f.Add([]byte("-----BEGIN X509 CRL-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lists, err := config.ParseRevocationLists(data)
		if (err == nil) != (len(lists) > 0) {
			t.Fatalf("%d lists, %v", len(lists), err)
		}
		for _, l := range lists {
			for _, s := range l.Serials {
				if !l.Revokes(&x509.Certificate{SerialNumber: new(big.Int).SetBytes([]byte(s))}) {
					t.Fatalf("the serial number %x is lost", s)
				}
			}
		}
	})
}
