package config

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/disk"
)

// MaxPEM limits a certificate, key or CA file in bytes. The CA bundles of operating
// systems have a quarter of that.
const MaxPEM = 1 << 20

// renewBefore is how long before the end of a certificate in a file weir begins to warn.
const renewBefore = 14 * day

// Files lists the certificate, key, CA, revocation list, ECH and token files of the
// configuration, and its files of users and keys, each file once.
func (c *Config) Files() []string {
	var all []string
	for _, cert := range c.Certificates {
		all = append(all, cert.CertFile, cert.KeyFile)
		if cert.ACME != nil {
			all = append(all, cert.ACME.CAFile)
		}
	}
	for _, k := range c.ECHKeys {
		all = append(all, k.File)
	}
	for _, t := range c.TLSPolicies {
		all = append(all, t.ClientAuthCA)
		all = append(all, t.ClientAuthCRL...)
	}
	all = append(all, c.Admin.TokenFile)
	if t := c.Admin.TLS; t != nil {
		all = append(all, t.CertFile, t.KeyFile, t.ClientCAFile)
	}
	for i := range c.Auth {
		all = append(all, c.Auth[i].Files()...)
	}
	for _, b := range c.Backends {
		all = append(all, b.TLS.CAFile, b.TLS.CertFile, b.TLS.KeyFile)
	}
	if t := c.Traces; t != nil && t.OTLP != nil {
		all = append(all, t.OTLP.CAFile)
	}
	all = slices.DeleteFunc(all, func(f string) bool { return f == "" })
	slices.Sort(all)
	return slices.Compact(all)
}

// files makes relative file paths absolute, starting at folder, and checks the content of
// the files.
func (v *draft) files(folder string) {
	resolve := func(paths ...*string) {
		for _, p := range paths {
			if *p != "" && !filepath.IsAbs(*p) {
				*p = filepath.Join(folder, *p)
			}
		}
	}
	v.absolute(&v.shared, folder)
	if k := v.kubernetes; k != nil && k.Kubeconfig != "" {
		resolve(&k.Kubeconfig)
		if _, err := disk.Read(k.Kubeconfig, MaxPEM); err != nil {
			v.failAt(v.places[&k.Kubeconfig], "%s cannot be read: %v; give the path of a kubeconfig, or take it out to use the service account of the Pod", v.quote(&k.Kubeconfig, k.Kubeconfig), reason(err))
		}
	}
	for _, c := range v.certificates {
		resolve(&c.CertFile, &c.KeyFile)
		if c.CertFile != "" || c.KeyFile != "" {
			names, kinds := v.servedPair(&c.CertFile, &c.KeyFile)
			v.unread = v.unread || names == nil
			v.certified(names)
			if len(kinds) > 0 {
				v.inFile[c] = keyed{names, kinds}
			}
		}
		v.certified(c.SelfSigned)
		if a := c.ACME; a != nil {
			resolve(&a.CAFile)
			v.acmeFiles(a, folder)
			v.certified(a.Hosts)
		}
	}
	for _, k := range v.echKeys {
		resolve(&k.File)
		k.PEM = v.echKey(&k.File)
	}
	for _, t := range v.policies {
		resolve(&t.ClientAuthCA)
		if t.ClientAuthCA != "" {
			t.ClientAuthPool = v.authorities(&t.ClientAuthCA)
			if cas, err := certificatesOf(t.ClientAuthPool); err == nil && !NamesFit(cas) {
				v.warnAt(v.places[&t.ClientAuthCA], "the names of its %d CAs take more than %d bytes, and a TLS handshake has no room for more, so weir sends none of them; clients that choose their certificate by these names may send none, so use fewer CAs if you can", len(cas), maxNamesOfCAs)
			}
			for i := range t.ClientAuthCRL {
				resolve(&t.ClientAuthCRL[i])
			}
			v.revocation(t)
		}
	}
	v.authFiles(resolve)
	v.adminFiles(folder)
	v.checkTraces(resolve)
	for _, b := range v.backends {
		resolve(&b.TLS.CAFile, &b.TLS.CertFile, &b.TLS.KeyFile)
		if b.TLS.CAFile != "" {
			v.authorities(&b.TLS.CAFile)
		}
		v.pair(&b.TLS.CertFile, &b.TLS.KeyFile)
	}
	if a := v.accessLog; a != nil && a.Path != "stdout" && a.Path != "stderr" {
		resolve(&a.Path)
		v.checkLogFolder(&a.Path)
	}
}

// checkLogFolder reports a missing folder of the access log: weir creates the file, but
// not its folder.
func (v *draft) checkLogFolder(file *string) {
	folder := filepath.Dir(*file)
	info, err := os.Stat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist) && v.places[file].hidden():
		v.failAt(v.places[file], "the folder of the file does not exist; create it, or name another file")
	case errors.Is(err, fs.ErrNotExist):
		v.failAt(v.places[file], "the folder %s does not exist; create it, or name another file", folder)
	case err == nil && !info.IsDir():
		v.failAt(v.places[file], "%s is not a file; name a file, or stdout", v.quote(file, *file))
	}
}

func (v *draft) certified(names []string) {
	for _, name := range names {
		v.names[name] = true
	}
}

// acmeFiles reads the CA file of a and sets its storage.
func (v *draft) acmeFiles(a *ACME, folder string) {
	if a.CAFile != "" {
		a.CAPool = v.authorities(&a.CAFile)
	}
	v.absolute(&a.Storage, folder)
	if v.given(&a.Storage) {
		return
	}
	if a.Storage = v.storageFor(); a.Storage == "" && !v.given(&v.shared) {
		v.failAt(v.places[a], "there is no place to keep keys and certificates: neither STATE_DIRECTORY, XDG_DATA_HOME nor HOME is set; give storage, such as /var/lib/weir")
	}
}

// echKey checks that a file contains an ECH key in the form that nginx, HAProxy and
// OpenSSL also read, and returns its content.
func (v *draft) echKey(file *string) []byte {
	data, ok := v.read(file)
	if !ok {
		return nil
	}
	if err := checkECHKey(data); err != nil {
		v.failAt(v.places[file], "%s %v", v.quote(file, *file), err)
	}
	return data
}

// servedPair is pair, except that it only warns of unusable files that are already in
// use.
func (v *draft) servedPair(cert, key *string) (names, kinds []string) {
	before := len(v.errs)
	if leaf := v.pair(cert, key); leaf != nil {
		return namesOf(leaf), []string{kindOf(leaf)}
	}
	if v.inUse.Pair == nil {
		return nil, nil
	}
	names, ok := v.inUse.Pair(*cert, *key)
	if !ok {
		return nil, nil
	}
	for _, e := range v.errs[before:] {
		e.Message += keptFile
		v.warns = append(v.warns, e)
	}
	v.errs = v.errs[:before]
	return names, nil
}

// keptFile is the end of the warning that weir cannot use a file and keeps its former
// content in use.
const keptFile = "; its previous content stays in use"

// KeptFiles counts the unusable files whose former content stays in use.
func (c *Config) KeptFiles() (n int) {
	for _, w := range c.Warnings {
		if strings.HasSuffix(w.Message, keptFile) {
			n++
		}
	}
	return n
}

// pair checks that certificate and key can be read and belong together. It returns the
// leaf certificate, or nil after an error.
func (v *draft) pair(cert, key *string) *x509.Certificate {
	if *cert == "" || *key == "" {
		return nil // already reported
	}
	certPEM, okCert := v.read(cert)
	keyPEM, okKey := v.read(key)
	if !okCert || !okKey {
		return nil
	}
	pair, leaf, err := checkPair(certPEM, keyPEM)
	if err == nil {
		err = v.tryPair(&pair)
	}
	var misfit KeyError
	switch {
	case errors.As(err, &misfit):
		v.failAt(v.places[key], "%s %v", v.quote(key, *key), misfit)
		return nil
	case err != nil:
		v.failAt(v.places[cert], "%s %v", v.quote(cert, *cert), err)
		return nil
	}
	switch left, until := time.Until(leaf.NotAfter), leaf.NotAfter.UTC().Format(time.DateOnly); {
	case left < 0:
		v.warnAt(v.places[cert], "the certificate expired on %s; clients will refuse it", until)
	case left < renewBefore:
		v.warnAt(v.places[cert], "the certificate expires on %s; renew it", until)
	}
	return leaf
}

// CheckPair returns an error if weir cannot serve a chain and its private key, both in
// PEM. The error is a KeyError if the key is the cause. Without an error it returns the
// leaf.
func CheckPair(certPEM, keyPEM []byte) (leaf *x509.Certificate, err error) {
	_, leaf, err = checkPair(certPEM, keyPEM)
	return leaf, err
}

func checkPair(certPEM, keyPEM []byte) (pair tls.Certificate, leaf *x509.Certificate, err error) {
	all, err := certificatesOf(certPEM)
	if err != nil {
		return pair, nil, err
	}
	if isEncrypted(keyPEM) {
		return pair, nil, KeyError{errEncrypted}
	}
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return pair, nil, KeyError{err}
	}
	return pair, all[0], usable(all[0])
}

// KeyError means that a private key cannot be used with its certificate.
type KeyError struct{ Err error }

var errEncrypted = errors.New(`is encrypted with a password, which weir cannot ask for; write it without one by "openssl pkey -in OLD -out NEW", and let only weir's user read it`)

// isEncrypted reports whether the first private key in PEM is encrypted (RFC 1421 or PKCS #8).
func isEncrypted(keyPEM []byte) bool {
	for block, rest := pem.Decode(keyPEM); block != nil; block, rest = pem.Decode(rest) {
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED")
		}
	}
	return false
}

// Error names the cause and the correction.
func (e KeyError) Error() string {
	if e.Err == errEncrypted {
		return e.Err.Error()
	}
	return fmt.Sprintf("cannot be used with its certificate: %s; give the private key in PEM that the certificate was made for",
		strings.TrimPrefix(e.Err.Error(), "tls: "))
}

// Unwrap returns the error of crypto/tls.
func (e KeyError) Unwrap() error { return e.Err }

// usable returns an error for certificates with which every handshake would fail.
func usable(leaf *x509.Certificate) error {
	switch key := leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return errors.New("has a P-224 key, which TLS cannot sign with; make it with a P-256 key")
		}
	case *rsa.PublicKey, ed25519.PublicKey:
	default:
		return errors.New("has a key of a kind that TLS does not use; make it with an ECDSA or RSA key")
	}
	if len(namesOf(leaf)) == 0 {
		return errors.New("names no host; make it with subject alternative names")
	}
	return nil
}

func namesOf(leaf *x509.Certificate) []string {
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 && leaf.Subject.CommonName != "" {
		names = append(names, leaf.Subject.CommonName)
	}
	for i, name := range names {
		names[i] = strings.TrimSuffix(strings.ToLower(name), ".")
	}
	return names
}

// authorities checks that file holds certificates, and returns its content.
func (v *draft) authorities(file *string) []byte {
	data, ok := v.read(file)
	if !ok {
		return nil
	}
	all, err := certificatesOf(data)
	if err != nil {
		v.failAt(v.places[file], "%s %v", v.quote(file, *file), err)
		return data
	}
	var last time.Time
	for _, c := range all {
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	if time.Now().After(last) {
		v.warnAt(v.places[file], "all its certificates have expired, the last one on %s; no certificate that they signed is accepted", last.UTC().Format(time.DateOnly))
	}
	return data
}

// read returns the content of the file whose path is at dst. It reads only regular files:
// a pipe or device might never end.
func (v *draft) read(dst *string) ([]byte, bool) {
	data, err := disk.Read(*dst, MaxPEM)
	if err != nil {
		v.failAt(v.places[dst], "%s cannot be read: %v; give the path of a PEM file, starting at the configuration's folder", v.quote(dst, *dst), reason(err))
	}
	return data, err == nil
}

// reason is err without the path. The caller names the path, or must not name it.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
