package policy

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/cryptobyte"

	"github.com/weirproxy/weir/config"
)

// The types of the PEM blocks of a key file (RFC 9934, section 3).
const (
	echKeyBlock    = "PRIVATE KEY"
	echConfigBlock = "ECHCONFIG"
)

// The numbers of RFC 9849, section 4, and of HPKE (RFC 9180, section 7).
const (
	echVersion         = 0xfe0d
	echKEM             = 0x0020 // DHKEM(X25519, HKDF-SHA256)
	echKDF             = 0x0001 // HKDF-SHA256
	echAES128GCM       = 0x0001
	echAES256GCM       = 0x0002
	echChaCha20        = 0x0003
	echMaximumNameSize = 64 // clients pad names to this length
)

// ParseECH converts the key files of a configuration into the keys for Server. The first
// file is the newest: weir tells clients that use no known key to try again with it. The
// other files decrypt ClientHellos that clients encrypted for older keys.
func ParseECH(files []config.ECHKey) ([]tls.EncryptedClientHelloKey, error) {
	var keys []tls.EncryptedClientHelloKey
	for i, f := range files {
		found, err := parseECHFile(f.PEM, i == 0)
		if err != nil {
			err = fmt.Errorf("the ECH key file %s: %w", f.File, err)
			if f.Position.Line > 0 {
				err = fmt.Errorf("%s: %w", f.Position, err)
			}
			return nil, err
		}
		keys = append(keys, found...)
	}
	return keys, nil
}

// PublicNames returns the outer names that clients show when they use keys, in the order
// of the keys.
func PublicNames(keys []tls.EncryptedClientHelloKey) []string {
	var names []string
	for _, k := range keys {
		if c, err := readECHConfig(k.Config); err == nil {
			names = append(names, string(c.publicName))
		}
	}
	return names
}

// parseECHFile reads one private key and one list of its configurations, in any order.
func parseECHFile(text []byte, retry bool) ([]tls.EncryptedClientHelloKey, error) {
	var key *ecdh.PrivateKey
	var list []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case echKeyBlock:
			if key != nil {
				return nil, errors.New("it has two private keys; put each with its ECHCONFIG into its own file")
			}
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, errors.New("its PRIVATE KEY is not in PKCS #8 form")
			}
			var ok bool
			if key, ok = parsed.(*ecdh.PrivateKey); !ok || key.Curve() != ecdh.X25519() {
				return nil, fmt.Errorf("its private key is of the type %T; make an X25519 key with weir ech", parsed)
			}
		case echConfigBlock:
			if list != nil {
				return nil, errors.New("it has two ECHCONFIG blocks; put all configurations into one")
			}
			list = block.Bytes
		default:
			return nil, fmt.Errorf("it has a block %q; the file must have one PRIVATE KEY and one ECHCONFIG", block.Type)
		}
	}
	switch {
	case key == nil:
		return nil, errors.New("it has no PRIVATE KEY in PEM; make the file with weir ech")
	case list == nil:
		return nil, errors.New("it has no ECHCONFIG in PEM; make the file with weir ech")
	}
	return matchECH(key, list, retry)
}

// matchECH returns the configurations of a list. All of them must be for key.
func matchECH(key *ecdh.PrivateKey, list []byte, retry bool) ([]tls.EncryptedClientHelloKey, error) {
	configs, err := readECHConfigList(list)
	if err != nil {
		return nil, err
	}
	var keys []tls.EncryptedClientHelloKey
	for _, c := range configs {
		if c.version != echVersion {
			continue // another draft, for other clients
		}
		if err := c.check(key.PublicKey().Bytes()); err != nil {
			return nil, err
		}
		keys = append(keys, tls.EncryptedClientHelloKey{Config: c.raw, PrivateKey: key.Bytes(), SendAsRetry: retry})
	}
	if len(keys) == 0 {
		return nil, errors.New("its ECHCONFIG has no configuration of RFC 9849")
	}
	return keys, nil
}

// echConfig has the parts of an ECHConfig that weir needs (RFC 9849, section 4).
type echConfig struct {
	raw        []byte
	version    uint16
	kem        uint16
	publicKey  []byte
	suites     [][2]uint16 // KDF and AEAD
	publicName []byte
}

var errECHConfig = errors.New("its ECHCONFIG is malformed")

func readECHConfigList(list []byte) ([]echConfig, error) {
	s := cryptobyte.String(list)
	var configs cryptobyte.String
	if !s.ReadUint16LengthPrefixed(&configs) || !s.Empty() || configs.Empty() {
		return nil, errECHConfig
	}
	var all []echConfig
	for !configs.Empty() {
		rest := []byte(configs)
		var body cryptobyte.String
		if !configs.Skip(2) || !configs.ReadUint16LengthPrefixed(&body) {
			return nil, errECHConfig
		}
		c, err := readECHConfig(rest[:len(rest)-len(configs)])
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// readECHConfig reads one configuration. If the version is not echVersion, it reads only
// the version.
func readECHConfig(raw []byte) (echConfig, error) {
	c := echConfig{raw: bytes.Clone(raw)}
	s := cryptobyte.String(c.raw)
	var body, key, suites, name, extensions cryptobyte.String
	if !s.ReadUint16(&c.version) || !s.ReadUint16LengthPrefixed(&body) || !s.Empty() {
		return echConfig{}, errECHConfig
	}
	if c.version != echVersion {
		return c, nil
	}
	var id, longest uint8
	if !body.ReadUint8(&id) || !body.ReadUint16(&c.kem) || !body.ReadUint16LengthPrefixed(&key) ||
		!body.ReadUint16LengthPrefixed(&suites) || !body.ReadUint8(&longest) ||
		!body.ReadUint8LengthPrefixed(&name) || !body.ReadUint16LengthPrefixed(&extensions) || !body.Empty() {
		return echConfig{}, errECHConfig
	}
	c.publicKey, c.publicName = key, name
	for !suites.Empty() {
		var suite [2]uint16
		if !suites.ReadUint16(&suite[0]) || !suites.ReadUint16(&suite[1]) {
			return echConfig{}, errECHConfig
		}
		c.suites = append(c.suites, suite)
	}
	for !extensions.Empty() {
		var value cryptobyte.String
		if !extensions.Skip(2) || !extensions.ReadUint16LengthPrefixed(&value) {
			return echConfig{}, errECHConfig
		}
	}
	return c, nil
}

// check refuses configurations with which crypto/tls would fail for every client, and
// configurations that no client would use.
func (c *echConfig) check(publicKey []byte) error {
	switch {
	case c.kem != echKEM:
		return fmt.Errorf("its ECHCONFIG has the KEM %#04x; weir supports only X25519 with HKDF-SHA256 (%#04x)", c.kem, echKEM)
	case !bytes.Equal(c.publicKey, publicKey):
		return errors.New("its ECHCONFIG was made for another private key")
	case len(c.suites) == 0:
		return errors.New("its ECHCONFIG offers no cipher suite")
	}
	for _, s := range c.suites {
		if s[0] != echKDF || s[1] < echAES128GCM || s[1] > echChaCha20 {
			return fmt.Errorf("its ECHCONFIG offers the cipher suite %#04x, %#04x, which weir does not support", s[0], s[1])
		}
	}
	return checkPublicName(string(c.publicName))
}

// checkPublicName checks a name as clients do: it must be a host name that a certificate
// can contain, and must not look like an IPv4 address (RFC 9849, section 4).
func checkPublicName(name string) error {
	bad := func(why string) error {
		return fmt.Errorf("the public name %q is not a host name: %s", name, why)
	}
	if name == "" || len(name) > 253 {
		return bad("it must have 1 to 253 bytes")
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		switch {
		case l == "" || len(l) > 63:
			return bad("each label must have 1 to 63 bytes")
		case l[0] == '-' || l[len(l)-1] == '-':
			return bad("a label begins or ends with a hyphen")
		case strings.Trim(l, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "":
			return bad("a label may have only letters, digits and hyphens")
		}
	}
	last := strings.ToLower(labels[len(labels)-1])
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
		return bad("clients would read it as an IPv4 address")
	}
	return nil
}

// NewECH makes a new key and its configuration, with publicName as the outer name. file
// is the key file (RFC 9934) for ParseECH; it is secret. list is the ECHConfigList to
// publish.
func NewECH(publicName string) (file, list []byte, err error) {
	if err := checkPublicName(publicName); err != nil {
		return nil, nil, err
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make an ECH key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot encode an ECH key: %w", err)
	}
	if list, err = buildECHConfigList(publicName, key.PublicKey().Bytes()); err != nil {
		return nil, nil, fmt.Errorf("cannot make an ECH configuration: %w", err)
	}
	file = pem.EncodeToMemory(&pem.Block{Type: echKeyBlock, Bytes: der})
	return append(file, pem.EncodeToMemory(&pem.Block{Type: echConfigBlock, Bytes: list})...), list, nil
}

func buildECHConfigList(publicName string, publicKey []byte) ([]byte, error) {
	id := make([]byte, 1) // identifies the key for a client; crypto/tls tries all of our keys
	rand.Read(id)
	var b cryptobyte.Builder
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint16(echVersion)
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			b.AddBytes(id)
			b.AddUint16(echKEM)
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(publicKey) })
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
				for _, aead := range []uint16{echAES128GCM, echAES256GCM, echChaCha20} {
					b.AddUint16(echKDF)
					b.AddUint16(aead)
				}
			})
			b.AddUint8(echMaximumNameSize)
			b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(publicName)) })
			b.AddUint16(0) // no extensions
		})
	})
	return b.Bytes()
}
