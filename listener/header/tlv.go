package header

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/pires/go-proxyproto"
	"github.com/pires/go-proxyproto/tlvparse"
)

// maxUniqueID is the limit of section 2.2.5, in bytes.
const maxUniqueID = 128

// tlv is one extension. Its value is a part of the bytes of the header.
type tlv struct {
	kind  proxyproto.PP2Type
	value []byte
	at    int // offset of the value in the header
}

// splitTLVs splits b[from:] into TLVs. They must fill it completely.
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

// verifyLocal checks the CRC32C of a header if it finds one. The payload may begin with
// addresses or not, so it looks in both positions.
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

// matches computes the CRC32C of b, with the four bytes of the checksum as zeros (section
// 2.2.3).
func matches(b []byte, checksum *tlv) bool {
	sum := crc32.Checksum(b[:checksum.at], castagnoli)
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	sum = crc32.Update(sum, castagnoli, b[checksum.at+4:])
	return sum == binary.BigEndian.Uint32(checksum.value)
}

func duplicate(kind proxyproto.PP2Type) error {
	return malformed("it has the TLV %#02x twice", byte(kind))
}

// read takes the TLVs that weir understands from the list, and skips the rest, as the
// specification requires. A TLV that weir understands may occur only once.
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

// readVendor reads the extensions of cloud providers. Anyone may use these types (section
// 2.2.8), so a value in another form is not an error: another vendor made it.
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

// sslFixed is the length in bytes of the fields client and verify of an SSL TLV, which
// come before its own TLVs (section 2.2.6).
const sslFixed = 5

// readSSL requires the right form, but accepts any text: weir does not refuse a client
// because of the character set in the name of its certificate.
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
