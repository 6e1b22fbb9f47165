package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// secret is a folder in the form in which Kubernetes mounts a Secret: its files are links to ..data/NAME, and
// ..data is a link that moves to a new folder in one step.
type secret struct {
	t       *testing.T
	dir     string
	version int
}

func newSecret(t *testing.T) *secret {
	t.Helper()
	return &secret{t: t, dir: t.TempDir()}
}

// publish replaces the content of the folder by files. The key is the name of a file.
func (s *secret) publish(files map[string][]byte) {
	s.t.Helper()
	before, _ := os.Readlink(filepath.Join(s.dir, "..data"))
	s.version++
	version := fmt.Sprintf("..2026_11_21_%d", s.version)
	err := os.Mkdir(filepath.Join(s.dir, version), 0o755)
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.dir, version, name), content, 0o644))
		if before == "" {
			err = errors.Join(err, os.Symlink("..data/"+name, filepath.Join(s.dir, name)))
		}
	}
	err = errors.Join(err, os.Symlink(version, filepath.Join(s.dir, "..data_tmp")),
		os.Rename(filepath.Join(s.dir, "..data_tmp"), filepath.Join(s.dir, "..data")))
	if before != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, before)))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// pair returns the content of a Secret of the type kubernetes.io/tls.
func pair(t *testing.T, cert, key string) map[string][]byte {
	t.Helper()
	c, err1 := os.ReadFile(cert)
	k, err2 := os.ReadFile(key)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"tls.crt": c, "tls.key": k}
}

// If another program renews a certificate, weir loads it by itself, and no handshake fails. weir does not
// load half a pair.
func TestMountedSecretIsSwappedUnderTraffic(t *testing.T) {
	long(t)
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	secret := newSecret(t)
	pool := x509.NewCertPool()
	var all []certificate
	for i := range 5 {
		c := writeCertificate(t, w.dir, fmt.Sprint("version", i), false, "app.example.org")
		text, _ := os.ReadFile(c.cert)
		pool.AppendCertsFromPEM(text)
		all = append(all, c)
	}
	secret.publish(pair(t, all[0].cert, all[0].key))
	w.start(`
listeners:
  secure: {address: '@secure', protocol: tls}
certificates: [{cert: '` + secret.dir + `/tls.crt', key: '` + secret.dir + `/tls.key'}]
routes: [{listeners: [secure], hosts: [app.example.org], backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	stop, running, requests := make(chan struct{}), sync.WaitGroup{}, atomic.Int64{}
	for range 3 {
		running.Go(func() {
			for {
				c, _, err := shake(t, w.at("secure"), "app.example.org", pool)
				if err != nil {
					t.Errorf("a handshake: %v", err)
					return
				}
				if resp, _, err := ask(c, bufio.NewReader(c), "GET", "app.example.org", "/"); err != nil || resp.StatusCode != 200 {
					t.Errorf("a request: %v, %v", resp, err)
				}
				c.Close()
				requests.Add(1)
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	serves := func(want certificate) {
		t.Helper()
		eventually(t, "the new certificate is served", func() error {
			c, leaf, err := shake(t, w.at("secure"), "app.example.org", pool)
			if err != nil {
				return err
			}
			c.Close()
			if leaf.SerialNumber.Cmp(want.serial) != 0 {
				return errNotYet
			}
			return nil
		})
	}
	serves(all[0])
	for _, c := range all[1:3] {
		secret.publish(pair(t, c.cert, c.key))
		serves(c)
	}
	for _, bad := range []map[string][]byte{
		pair(t, all[3].cert, all[4].key), // the key of another certificate
		{"tls.crt": []byte("-----BEGIN CERTIFICATE-----\nhalf"), "tls.key": nil},
	} {
		failed := w.metric("weir_tls_certificate_reloads_total", "result", "failure")
		w.log.reset()
		secret.publish(bad)
		eventually(t, "the bad pair is counted", func() error {
			if w.metric("weir_tls_certificate_reloads_total", "result", "failure") == failed {
				return errNotYet
			}
			return nil
		})
		eventually(t, "the bad pair is logged", func() error {
			if !strings.Contains(w.log.String(), secret.dir) {
				return errNotYet
			}
			return nil
		})
		serves(all[2])
	}
	secret.publish(pair(t, all[4].cert, all[4].key))
	serves(all[4])
	eventually(t, "there is a load", func() error {
		if n := requests.Load(); n < 20 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	close(stop)
	running.Wait()
}

// authorityOf signs client certificates.
type authorityOf struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) *authorityOf {
	t.Helper()
	a := &authorityOf{t: t}
	a.key, a.pem = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Example, Inc."}},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign})
	block, _ := pem.Decode(a.pem)
	a.cert, _ = x509.ParseCertificate(block.Bytes)
	return a
}

// sign completes and signs a certificate. While a has no certificate of its own, the certificate is
// self-signed.
func (a *authorityOf) sign(template *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// client returns a client certificate, and writes it to name.crt and name.key in dir.
func (a *authorityOf) client(dir, name string) (tls.Certificate, certificate) {
	a.t.Helper()
	key, cert := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Example, Inc."}},
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 7)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	c := certificate{cert: filepath.Join(dir, name+".crt"), key: filepath.Join(dir, name+".key")}
	pair, err2 := tls.X509KeyPair(cert, keyPEM)
	if err := errors.Join(err, err2, os.WriteFile(c.cert, cert, 0o644), os.WriteFile(c.key, keyPEM, 0o600)); err != nil {
		a.t.Fatal(err)
	}
	return pair, c
}

// When a client CA is replaced, the clients of the new CA get in at once, and those of the old CA no longer
// do, not even with a session from before.
func TestClientCAIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	before, after := newAuthority(t, "before"), newAuthority(t, "after")
	old, _ := before.client(w.dir, "old.example.org")
	young, _ := after.client(w.dir, "new.example.org")
	secret := newSecret(t)
	secret.publish(map[string][]byte{"ca.crt": before.pem})
	w.start(`
listeners:
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org]}}]
tls_policies:
  robots: {client_auth: {mode: require, ca: '` + secret.dir + `/ca.crt'}}
routes: [{listeners: [secure], hosts: [app.example.org], tls_policy: robots, backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	oldConfig := anyCertificate("app.example.org")
	oldConfig.Certificates, oldConfig.ClientSessionCache = []tls.Certificate{old}, tls.NewLRUClientSessionCache(1)
	newConfig := anyCertificate("app.example.org")
	newConfig.Certificates = []tls.Certificate{young}
	request := func(config *tls.Config) (resumed bool, err error) {
		c := tls.Client(dial(t, w.at("secure")), config)
		_, err = askSeen(c, "app.example.org", "/")
		return c.ConnectionState().DidResume, err
	}
	if _, err := request(oldConfig); err != nil {
		t.Fatal(err)
	}
	if resumed, err := request(oldConfig); err != nil || !resumed {
		t.Fatalf("the session is resumed: %t, %v", resumed, err)
	}
	if _, err := request(newConfig); err == nil {
		t.Error("a certificate of nobody's was accepted")
	}
	secret.publish(map[string][]byte{"ca.crt": after.pem})
	eventually(t, "clients of the new CA come in", func() error {
		_, err := request(newConfig)
		return err
	})
	if resumed, err := request(oldConfig); err == nil {
		t.Errorf("a client of the old CA is still let in, its session resumed: %t", resumed)
	}
}
