package header

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strconv"

	"github.com/pires/go-proxyproto"
	"github.com/pires/go-proxyproto/tlvparse"
)

// Options are choices for a header that weir sends.
type Options struct {
	// Checksum adds a CRC32C to a v2 header.
	Checksum bool
}

// Append appends h to dst, in version 1 if version is 1, else in version 2. It ignores
// h.Version. If h is local or has no source, it appends LOCAL or UNKNOWN without TLVs. Both
// addresses of a header have one family: if one of them is IPv6, Append maps an IPv4 address
// into IPv6 (RFC 4291, section 2.5.5.2). A missing destination becomes the unspecified
// address. A v2 header also contains the TLVs authority, ALPN, unique id and SSL of h. Append
// omits a TLV that would make the header longer than MaxSize.
func Append(dst []byte, version int, h *Header, o Options) []byte {
	local := h.Local || !h.Source.IsValid()
	source, destination := oneFamily(h.Source, h.Destination)
	if version == 1 {
		return appendV1(dst, local, source, destination)
	}
	start := len(dst)
	dst = append(dst, signatureV2...)
	switch {
	case local:
		dst = append(dst, 2<<4|commandLocal, familyUnspec, 0, 0)
	case source.Addr().Is4():
		dst = append(dst, 2<<4|commandProxy, familyTCP4, 0, 0)
		dst = appendBlock(dst, source, destination)
	default:
		dst = append(dst, 2<<4|commandProxy, familyTCP6, 0, 0)
		dst = appendBlock(dst, source, destination)
	}
	if !local {
		dst = h.TLVs.append(dst, start)
	}
	if o.Checksum {
		dst = append(dst, byte(proxyproto.PP2_TYPE_CRC32C), 0, 4, 0, 0, 0, 0)
	}
	header := dst[start:]
	binary.BigEndian.PutUint16(header[14:], uint16(len(header)-fixedV2))
	if o.Checksum {
		binary.BigEndian.PutUint32(header[len(header)-4:], crc32.Checksum(header, castagnoli))
	}
	return dst
}

// oneFamily returns both addresses as IPv4, or both as IPv6. It changes nothing that is not valid,
// except for the destination of a valid source.
func oneFamily(source, destination netip.AddrPort) (netip.AddrPort, netip.AddrPort) {
	source, destination = unmap(source), unmap(destination)
	switch {
	case !source.IsValid():
	case !destination.IsValid() && source.Addr().Is4():
		destination = netip.AddrPortFrom(netip.IPv4Unspecified(), destination.Port())
	case !destination.IsValid():
		destination = netip.AddrPortFrom(netip.IPv6Unspecified(), destination.Port())
	case source.Addr().Is4() != destination.Addr().Is4():
		source, destination = sixteen(source), sixteen(destination)
	}
	return source, destination
}

func sixteen(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
}

func appendV1(dst []byte, local bool, source, destination netip.AddrPort) []byte {
	dst = append(dst, signatureV1...)
	if local {
		return append(dst, "UNKNOWN\r\n"...)
	}
	if source.Addr().Is4() {
		dst = append(dst, "TCP4 "...)
	} else {
		dst = append(dst, "TCP6 "...)
	}
	dst = source.Addr().AppendTo(dst)
	dst = append(dst, ' ')
	dst = destination.Addr().AppendTo(dst)
	dst = append(dst, ' ')
	dst = strconv.AppendUint(dst, uint64(source.Port()), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendUint(dst, uint64(destination.Port()), 10)
	return append(dst, "\r\n"...)
}

func appendBlock(dst []byte, source, destination netip.AddrPort) []byte {
	for _, a := range [...]netip.Addr{source.Addr(), destination.Addr()} {
		if a.Is4() {
			four := a.As4()
			dst = append(dst, four[:]...)
		} else {
			sixteen := a.As16()
			dst = append(dst, sixteen[:]...)
		}
	}
	dst = binary.BigEndian.AppendUint16(dst, source.Port())
	return binary.BigEndian.AppendUint16(dst, destination.Port())
}

func (t *TLVs) append(dst []byte, start int) []byte {
	limit := start + MaxSize - 7 // a checksum may follow
	dst = appendTLV(dst, limit, proxyproto.PP2_TYPE_AUTHORITY, t.Authority)
	dst = appendTLV(dst, limit, proxyproto.PP2_TYPE_ALPN, t.ALPN)
	if len(t.UniqueID) <= maxUniqueID {
		dst = appendTLV(dst, limit, proxyproto.PP2_TYPE_UNIQUE_ID, t.UniqueID)
	}
	if t.SSL != nil {
		dst = t.SSL.append(dst, limit)
	}
	return dst
}

// appendTLV appends a TLV, unless it is empty or would end after limit.
func appendTLV[V string | []byte](dst []byte, limit int, kind proxyproto.PP2Type, value V) []byte {
	if len(value) == 0 || len(dst)+3+len(value) > limit {
		return dst
	}
	dst = append(dst, byte(kind))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(value)))
	return append(dst, value...)
}

func (s *SSL) append(dst []byte, limit int) []byte {
	if len(dst)+3+sslFixed > limit {
		return dst
	}
	var client byte
	if s.TLS {
		client |= tlvparse.PP2_BITFIELD_CLIENT_SSL
	}
	if s.ClientCert {
		client |= tlvparse.PP2_BITFIELD_CLIENT_CERT_CONN
	}
	if s.ClientCert || s.Verified {
		client |= tlvparse.PP2_BITFIELD_CLIENT_CERT_SESS
	}
	verify := byte(1)
	if s.Verified {
		verify = 0
	}
	start := len(dst)
	dst = append(dst, byte(proxyproto.PP2_TYPE_SSL), 0, 0, client, 0, 0, 0, verify)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_VERSION, s.Version)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_CN, s.CommonName)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_CIPHER, s.Cipher)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_SIG_ALG, s.SigAlg)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_KEY_ALG, s.KeyAlg)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_GROUP, s.Group)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_SIG_SCHEME, s.SigScheme)
	dst = appendTLV(dst, limit, proxyproto.PP2_SUBTYPE_SSL_CLIENT_CERT, s.Certificate)
	binary.BigEndian.PutUint16(dst[start+1:], uint16(len(dst)-start-3))
	return dst
}
