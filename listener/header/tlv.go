package header

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/pires/go-proxyproto"
	"github.com/pires/go-proxyproto/tlvparse"
)

// maxUniqueID is section 2.2.5's bound in bytes.
const maxUniqueID = 128

// tlv is one extension; its value is a part of the header's bytes.
type tlv struct {
	kind  proxyproto.PP2Type
	value []byte
	at    int // where in the header the value begins
}

// splitTLVs frames b[from:], which has to be TLVs to its end.
func splitTLVs(b []byte, from int) ([]tlv, error) {
	if from == len(b) {
		return nil, nil
	}
	list := make([]tlv, 0, 8)
	for at := from; at < len(b); {
		if len(b)-at < 3 {
			return nil, malformed("it has %d bytes after its last TLV", len(b)-at)
		}
		value := at + 3
		end := value + int(binary.BigEndian.Uint16(b[at+1:]))
		if end > len(b) {
			return nil, malformed("its TLV %#02x is longer than the header", b[at])
		}
		list = append(list, tlv{proxyproto.PP2Type(b[at]), b[value:end], value})
		at = end
	}
	return list, nil
}

// verify checks the CRC32C of the header b if its TLVs have one.
func verify(b []byte, tlvs []tlv) error {
	found, err := checksumAmong(tlvs)
	if err == nil && found != nil && !matches(b, found) {
		return ErrChecksum
	}
	return err
}

// verifyLocal checks the CRC32C of a header whose payload may or may not begin
// with addresses, wherever one can be found.
func verifyLocal(b []byte) error {
	block, _ := addressBlock(b[13])
	seen := false
	for _, from := range [...]int{fixedV2, fixedV2 + block} {
		if from > len(b) {
			continue
		}
		tlvs, err := splitTLVs(b, from)
		if err != nil {
			continue // no TLVs from here on
		}
		found, err := checksumAmong(tlvs)
		if err != nil || found == nil {
			continue
		}
		if matches(b, found) {
			return nil
		}
		seen = true
	}
	if seen {
		return ErrChecksum
	}
	return nil
}

func checksumAmong(tlvs []tlv) (found *tlv, err error) {
	for i := range tlvs {
		switch t := &tlvs[i]; {
		case t.kind != proxyproto.PP2_TYPE_CRC32C:
		case found != nil:
			return nil, duplicate(t.kind)
		case len(t.value) != 4:
			return nil, malformed("its CRC32C has %d bytes, not 4", len(t.value))
		default:
			found = t
		}
	}
	return found, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// matches computes the CRC32C of b with the checksum's own four bytes as zeros (section 2.2.3).
func matches(b []byte, checksum *tlv) bool {
	sum := crc32.Checksum(b[:checksum.at], castagnoli)
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	sum = crc32.Update(sum, castagnoli, b[checksum.at+4:])
	return sum == binary.BigEndian.Uint32(checksum.value)
}

func duplicate(kind proxyproto.PP2Type) error {
	return malformed("it has the TLV %#02x twice", byte(kind))
}

// read takes what weir understands from the list and skips the rest, as the
// specification wants. A TLV that is understood may be there once.
func (t *TLVs) read(list []tlv) (err error) {
	var seen [256]bool
	for _, e := range list {
		switch e.kind {
		case proxyproto.PP2_TYPE_AUTHORITY:
			t.Authority = string(e.value)
		case proxyproto.PP2_TYPE_ALPN:
			t.ALPN = string(e.value)
		case proxyproto.PP2_TYPE_NETNS:
			t.Netns = string(e.value)
		case proxyproto.PP2_TYPE_UNIQUE_ID:
			if len(e.value) > maxUniqueID {
				return malformed("its unique id has %d bytes, more than %d", len(e.value), maxUniqueID)
			}
			t.UniqueID = bytes.Clone(e.value)
		case proxyproto.PP2_TYPE_SSL:
			if t.SSL, err = readSSL(e); err != nil {
				return err
			}
		default:
			if !t.readVendor(e) {
				continue
			}
		}
		if seen[e.kind] {
			return duplicate(e.kind)
		}
		seen[e.kind] = true
	}
	return nil
}

// readVendor reads the clouds' extensions. Their types are anybody's to use
// (section 2.2.8), so a value of another form is not an error but somebody else's.
func (t *TLVs) readVendor(e tlv) bool {
	one := []proxyproto.TLV{{Type: e.kind, Value: e.value}}
	switch e.kind {
	case tlvparse.PP2_TYPE_AWS:
		id := tlvparse.FindAWSVPCEndpointID(one)
		if id == "" {
			return false
		}
		t.AWSVPCEndpoint = id
		return true
	case tlvparse.PP2_TYPE_AZURE:
		id, ok := tlvparse.FindAzurePrivateEndpointLinkID(one)
		if ok {
			t.AzureLinkID = id
		}
		return ok
	case tlvparse.PP2_TYPE_GCP:
		id, ok := tlvparse.ExtractPSCConnectionID(one)
		if ok {
			t.GCPPSC, t.HasGCP = id, true
		}
		return ok
	}
	return false
}

// sslFixed is the length of an SSL TLV before its own TLVs: client and verify (section 2.2.6).
const sslFixed = 5

// readSSL holds the form to be binding but not the texts: a client is not
// turned away for the character set of its certificate's name.
func readSSL(e tlv) (*SSL, error) {
	if len(e.value) < sslFixed {
		return nil, malformed("its SSL TLV has only %d bytes", len(e.value))
	}
	inner, err := splitTLVs(e.value, sslFixed)
	if err != nil {
		return nil, err
	}
	p := tlvparse.PP2SSL{Client: e.value[0], Verify: binary.BigEndian.Uint32(e.value[1:])}
	var seen [256]bool
	for _, s := range inner {
		if seen[s.kind] && s.kind != proxyproto.PP2_TYPE_NOOP {
			return nil, duplicate(s.kind)
		}
		seen[s.kind] = true
		p.TLV = append(p.TLV, proxyproto.TLV{Type: s.kind, Value: s.value})
	}
	s := &SSL{TLS: p.ClientSSL(), ClientCert: p.ClientCertConn()}
	// Without a certificate, verify is 0 too.
	s.Verified = p.Verified() && (p.ClientCertConn() || p.ClientCertSess())
	s.Version, _ = p.SSLVersion()
	s.CommonName, _ = p.ClientCN()
	s.Cipher, _ = p.SSLCipher()
	s.SigAlg, _ = p.SSLSigAlg()
	s.KeyAlg, _ = p.SSLKeyAlg()
	s.Group, _ = p.SSLGroup()
	s.SigScheme, _ = p.SSLSigScheme()
	if certificate, _ := p.ClientCert(); len(certificate) > 0 {
		s.Certificate = bytes.Clone(certificate)
	}
	return s, nil
}
