package e2e

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// revoke replaces the file at path with a new list.
func (a *authorityOf) revoke(path string, serials ...*big.Int) {
	a.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, s := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: s, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err := errors.Join(err, os.WriteFile(path+".new", der, 0o644), os.Rename(path+".new", path)); err != nil {
		a.t.Fatal(err)
	}
}

// weir refuses a revoked client certificate in a handshake, in a resumed session, and for further requests on
// an open connection. A broken list file or a broken configuration does not change that.
func TestRevokedClientCertificate(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	ca := newAuthority(t, "ca")
	good, _ := ca.client(w.dir, "good.example.org")
	bad, _ := ca.client(w.dir, "bad.example.org")
	list := filepath.Join(w.dir, "ca.crl")
	ca.revoke(list)
	if err := os.WriteFile(w.dir+"/ca.crt", ca.pem, 0o644); err != nil {
		t.Fatal(err)
	}
	w.start(`
listeners:
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org]}}]
tls_policies:
  robots: {client_auth: {mode: require, ca: '@@dir/ca.crt', crl: ['@@dir/ca.crl']}}
routes: [{listeners: [secure], hosts: [app.example.org], tls_policy: robots, backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	of := func(c tls.Certificate) *tls.Config {
		config := anyCertificate("app.example.org")
		config.Certificates, config.ClientSessionCache = []tls.Certificate{c}, tls.NewLRUClientSessionCache(1)
		return config
	}
	goodConfig, badConfig := of(good), of(bad)
	request := func(config *tls.Config) (resumed bool, err error) {
		c := tls.Client(dial(t, w.at("secure")), config)
		defer c.Close()
		_, err = askSeen(c, "app.example.org", "/")
		return c.ConnectionState().DidResume, err
	}
	for _, config := range []*tls.Config{goodConfig, badConfig} {
		if _, err := request(config); err != nil {
			t.Fatal(err)
		}
		if resumed, err := request(config); err != nil || !resumed {
			t.Fatalf("the session is resumed: %t, %v", resumed, err)
		}
	}
	open := func(config *tls.Config) func() (status int, last bool) {
		c := tls.Client(dial(t, w.at("secure")), config)
		r := bufio.NewReader(c)
		return func() (status int, last bool) {
			resp, _, err := ask(c, r, "GET", "app.example.org", "/")
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, resp.Close
		}
	}
	goodOpen, badOpen := open(goodConfig), open(badConfig)
	for _, ask := range []func() (int, bool){goodOpen, badOpen} {
		if status, last := ask(); status != 200 || last {
			t.Fatal("nobody is revoked yet")
		}
	}
	if runtime.GOOS == "linux" {
		w.wantMetric(2, "weir_connections_parked") // a parked connection keeps the state of its certificate
	}

	if err := os.WriteFile(w.config, []byte("listeners: broken"), 0o644); err != nil { // the list takes effect although the configuration is broken
		t.Fatal(err)
	}
	ca.revoke(list, bad.Leaf.SerialNumber)
	w.wantMetric(1, "weir_tls_crl_reloads_total", "result", "success")
	if status, last := badOpen(); status != 421 || !last {
		t.Errorf("an open connection of a revoked client gets %d, and ends: %t", status, last)
	}
	if status, last := goodOpen(); status != 200 || last {
		t.Errorf("an open connection of another client gets %d, and ends: %t", status, last)
	}
	if resumed, err := request(badConfig); err == nil {
		t.Errorf("a revoked client is let in, its session resumed: %t", resumed)
	}
	if resumed, err := request(goodConfig); err != nil || !resumed {
		t.Errorf("another client is not resumed: %t, %v", resumed, err)
	}
	w.wantMetric(1, "weir_tls_handshakes_total", "result", "revoked")
	if next := w.metric("weir_tls_crl_next_update_timestamp_seconds", "file", list); next < float64(time.Now().Unix()) {
		t.Errorf("the list runs out at %v", next)
	}

	if err := os.WriteFile(list, []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a broken list is counted", func() error {
		if n := w.metric("weir_tls_crl_reloads_total", "result", "failure"); n == 0 {
			return errNotYet
		}
		return nil
	})
	if _, err := request(of(bad)); err == nil {
		t.Error("a broken list lets the revoked client in")
	}
	if _, err := request(of(good)); err != nil {
		t.Errorf("a broken list keeps others out: %v", err)
	}
	eventually(t, "the broken list is logged", func() error {
		if !strings.Contains(w.log.String(), "a revocation list file changed and cannot be used; the previous lists stay in use") {
			return errNotYet
		}
		return nil
	})
}
