package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/disk"
	"github.com/weirproxy/weir/tls/hello"
)

// entry is one entry of the configuration with its certificates. It does not change.
type entry struct {
	source     config.Certificate
	names      []string // spelled by hello.Name, wildcards as "*.parent"; sorted
	leading    string   // the one of names for clients without SNI
	candidates []*candidate
	notAfter   time.Time
	digest     [sha256.Size]byte // of the files' content
	managed    Managed           // of an ACME entry; candidates, notAfter and digest are then unset
}

// of returns the candidates for name, one of e.names.
func (e *entry) of(name string) []*candidate {
	if e.managed == nil {
		return e.candidates
	}
	k := kindECDSA
	if e.source.ACME.KeyKind() == "rsa" {
		k = kindRSA
	}
	return []*candidate{{kind: k, name: name, get: func() (*tls.Certificate, error) { return e.managed.Certificate(name), nil }}}
}

// own returns the candidates of an entry for the clients of one TLS policy. Such an entry from an authority
// has one name, that of a listener of a Gateway.
func (e *entry) own() []*candidate {
	if e.managed == nil {
		return e.candidates
	}
	return e.of(e.leading)
}

// first returns the certificate that weir prefers for name; nil: there is none yet.
func (e *entry) first(name string) *tls.Certificate {
	c, err := e.of(name)[0].get()
	if err != nil {
		return nil
	}
	return c
}

// openManaged makes the entry for an ACME source. The entry has no certificates of its
// own.
func openManaged(source config.Certificate, m Managed) *entry {
	e := &entry{source: source, managed: m}
	for _, host := range source.ACME.Hosts {
		e.names = append(e.names, hello.Name(host))
	}
	if len(e.names) > 0 {
		e.leading = e.names[0]
	}
	e.names = sorted(e.names)
	return e
}

// identity identifies the same entry in two configurations.
type identity struct{ cert, key, hosts, pair, owner string }

func identify(c config.Certificate) identity {
	i := identity{cert: c.CertFile, key: c.KeyFile, hosts: strings.Join(c.SelfSigned, "\n")}
	if c.Pair != nil {
		i.pair, i.owner = c.Pair.Name, c.Pair.Owner
	}
	return i
}

// kind orders candidates: signing with ECDSA costs a tenth of signing with RSA.
type kind int

const (
	kindECDSA kind = iota
	kindEd25519
	kindRSA
)

// candidate is one certificate. get may take a moment at its first call. It returns nil
// while an authority has not issued the certificate.
type candidate struct {
	kind kind
	name string // only for a certificate from an authority, or for a missing pair
	get  func() (*tls.Certificate, error)
}

func ready(k kind, cert *tls.Certificate) *candidate {
	return &candidate{kind: k, get: func() (*tls.Certificate, error) { return cert, nil }}
}

// open makes the entry for source, or returns previous if that is still valid.
func open(source config.Certificate, previous *entry, read func(path string) ([]byte, error)) (*entry, error) {
	var e *entry
	var err error
	switch {
	case source.Pair != nil:
		e, err = openPair(source, previous)
	case source.CertFile != "":
		e, err = openFiles(source, previous, read)
	default:
		e, err = openSelfSigned(source, previous)
	}
	if err != nil && source.Position.Line > 0 {
		return nil, fmt.Errorf("%s: %w", source.Position, err)
	}
	return e, err
}

func openFiles(source config.Certificate, previous *entry, read func(path string) ([]byte, error)) (*entry, error) {
	certPEM, err := read(source.CertFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate named by cert: %w", err)
	}
	keyPEM, err := read(source.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the private key named by key: %w", err)
	}
	certSum, keySum := sha256.Sum256(certPEM), sha256.Sum256(keyPEM)
	digest := sha256.Sum256(append(certSum[:], keySum[:]...))
	if previous != nil && previous.digest == digest {
		return previous, nil
	}
	return parsePair(source, certPEM, keyPEM, digest)
}

func readFile(path string) ([]byte, error) { return disk.Read(path, config.MaxPEM) }

// openPair makes the entry for a pair, which came without files. weir uses the
// certificate for the pair's hosts, whatever names the certificate contains. Without a
// certificate, weir refuses clients of these hosts.
func openPair(source config.Certificate, previous *entry) (*entry, error) {
	p := source.Pair
	digest := pairDigest(p)
	if previous != nil && previous.digest == digest {
		return previous, nil
	}
	none := &candidate{name: p.Name, get: func() (*tls.Certificate, error) { return nil, nil }}
	e := &entry{source: source, digest: digest, candidates: []*candidate{none}}
	if len(p.CertPEM) > 0 {
		cert, k, err := usePair(p.CertPEM, []byte(p.KeyPEM), p.Name, p.Name)
		if err != nil {
			return nil, err
		}
		e.candidates, e.notAfter = []*candidate{ready(k, cert)}, cert.Leaf.NotAfter
	}
	for _, host := range p.Hosts {
		e.names = append(e.names, hello.Name(host))
	}
	e.names = sorted(e.names)
	return e, nil
}

// pairDigest returns a hash of all parts of a pair.
func pairDigest(p *config.Pair) [sha256.Size]byte {
	certSum, keySum := sha256.Sum256(p.CertPEM), sha256.Sum256([]byte(p.KeyPEM))
	hosts := sha256.Sum256([]byte(fmt.Sprint(p.Default, p.Hosts)))
	return sha256.Sum256(slices.Concat(certSum[:], keySum[:], hosts[:]))
}

func parsePair(source config.Certificate, certPEM, keyPEM []byte, digest [sha256.Size]byte) (*entry, error) {
	cert, k, err := usePair(certPEM, keyPEM, source.CertFile, source.KeyFile)
	if err != nil {
		return nil, err
	}
	names := namesOf(cert.Leaf)
	if len(names) == 0 {
		return nil, fmt.Errorf("the certificate %s serves no name: it has neither a subject alternative name nor a common name", source.CertFile)
	}
	return &entry{
		source:     source,
		names:      names,
		candidates: []*candidate{ready(k, cert)},
		notAfter:   cert.Leaf.NotAfter,
		digest:     digest,
	}, nil
}

// usePair parses a chain and its key. Errors contain certName and keyName.
func usePair(certPEM, keyPEM []byte, certName, keyName string) (*tls.Certificate, kind, error) {
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot use the certificate %s with the private key %s: %w", certName, keyName, err)
	}
	if cert.Leaf == nil { // GODEBUG=x509keypairleaf=0
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return nil, 0, fmt.Errorf("cannot read the certificate %s: %w", certName, err)
		}
	}
	k, err := kindOf(cert.Leaf)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot use the certificate %s: %w", certName, err)
	}
	return &cert, k, nil
}

func kindOf(leaf *x509.Certificate) (kind, error) {
	switch key := leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return 0, errors.New("TLS does not support P-224 keys; make the certificate with a P-256 key")
		}
		return kindECDSA, nil
	case ed25519.PublicKey:
		return kindEd25519, nil
	case *rsa.PublicKey:
		return kindRSA, nil
	}
	return 0, fmt.Errorf("weir does not support keys of type %T; make the certificate with an ECDSA or RSA key", leaf.PublicKey)
}

// namesOf returns the names of a certificate. The common name counts only if there are no
// alternative names of any kind (RFC 6125, section 6.4.4).
func namesOf(leaf *x509.Certificate) []string {
	var names []string
	for _, name := range leaf.DNSNames {
		names = append(names, hello.Name(name))
	}
	for _, ip := range leaf.IPAddresses {
		names = append(names, ipName(ip))
	}
	hasOthers := len(leaf.EmailAddresses) > 0 || len(leaf.URIs) > 0
	if len(names) == 0 && !hasOthers && leaf.Subject.CommonName != "" {
		names = append(names, hello.Name(leaf.Subject.CommonName))
	}
	return sorted(names)
}

// sorted sorts names and removes duplicates, so that lists are comparable.
func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

func ipName(ip net.IP) string {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap().String()
}

// Self-signed certificates live long: operators do not renew them by hand, and clients
// that pinned one must keep it. After a reload, a certificate is valid for renewBefore at
// least.
const (
	selfSignedLife = 10 * 365 * 24 * time.Hour
	renewBefore    = 365 * 24 * time.Hour
	clockSkew      = 24 * time.Hour
)

// openSelfSigned makes an ECDSA certificate at once. The key of the RSA certificate takes
// some hundred milliseconds, so weir makes it for the first client that needs it: a
// client without ECDSA, or with RSA key exchange only.
func openSelfSigned(source config.Certificate, previous *entry) (*entry, error) {
	now := time.Now()
	if previous != nil && now.Add(renewBefore).Before(previous.notAfter) {
		return previous, nil
	}
	e := &entry{source: source, notAfter: now.Add(selfSignedLife)}
	for _, host := range source.SelfSigned {
		e.names = append(e.names, hello.Name(host))
	}
	e.names = sorted(e.names)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a self-signed certificate: %w", err)
	}
	cert, err := selfSign(e, key, x509.KeyUsageDigitalSignature)
	if err != nil {
		return nil, err
	}
	lazyRSA := sync.OnceValues(func() (*tls.Certificate, error) {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return nil, fmt.Errorf("cannot make a self-signed certificate: %w", err)
		}
		return selfSign(e, key, x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment)
	})
	e.candidates = []*candidate{ready(kindECDSA, cert), {kind: kindRSA, get: lazyRSA}}
	return e, nil
}

func selfSign(e *entry, key crypto.Signer, usage x509.KeyUsage) (*tls.Certificate, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "weir self-signed"},
		NotBefore:             e.notAfter.Add(-selfSignedLife - clockSkew),
		NotAfter:              e.notAfter,
		KeyUsage:              usage,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, name := range e.names {
		if ip, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, ip.AsSlice())
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a self-signed certificate for %s: %w", strings.Join(e.names, ", "), err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot read the self-signed certificate for %s: %w", strings.Join(e.names, ", "), err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
