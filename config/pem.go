package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// certificatesOf parses every certificate in data. Other blocks are passed
// over, as files that hold certificate and key together are common.
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
			return nil, fmt.Errorf("has a broken certificate, number %d in the file; make it anew", len(all)+1)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New(`has no certificate; give a file in PEM, with a line "-----BEGIN CERTIFICATE-----"`)
	}
	return all, nil
}
