package config

import (
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
)

// certificatesOf parses every certificate in data. It skips other blocks, because files
// with certificate and key together are common.
func certificatesOf(data []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("has a broken certificate, number %d in the file; create it again", len(all)+1)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New(`has no certificate; give a file in PEM, with a line "-----BEGIN CERTIFICATE-----"`)
	}
	return all, nil
}

// checkECHKey looks for the two blocks of a file with an ECH key: a private key in PKCS
// #8 and a list of configurations. OpenSSL, nginx and HAProxy use this form. Package
// tls/policy checks the content of the configurations.
func checkECHKey(data []byte) error {
	keys, lists := 0, 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		switch block.Type {
		case "PRIVATE KEY":
			keys++
			if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
				return errors.New("has a private key that cannot be read; create the file again")
			}
		case "ECHCONFIG":
			lists++
			if b := block.Bytes; len(b) < 4 || int(binary.BigEndian.Uint16(b)) != len(b)-2 {
				return errors.New("has a block ECHCONFIG that is not a list of configurations; create the file again with weir ech")
			}
		}
	}
	if keys != 1 || lists != 1 {
		return errors.New(`is not a file with an ECH key; give one in PEM with one block "PRIVATE KEY" and one "ECHCONFIG", as weir ech and OpenSSL make it`)
	}
	return nil
}
