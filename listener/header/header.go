// Package header reads and writes PROXY headers, versions 1 and 2. Framing, checksum and
// the order of checks are its own; go-proxyproto reads and writes the formats and TLVs.
// The package does not know sockets, policies or time.
package header

import "net/netip"

// Header is the content of one PROXY header.
type Header struct {
	// Version is 1 or 2; 0 if there was no header.
	Version int
	// Local is set by v2 LOCAL and v1 UNKNOWN, and by v2 addresses that are not IP. Then
	// the addresses of the socket apply, and Source and Destination are not valid.
	Local       bool
	Source      netip.AddrPort
	Destination netip.AddrPort
	TLVs        TLVs
}

// TLVs are the extensions of a v2 header that weir understands. A zero value means that
// the TLV is absent.
type TLVs struct {
	Authority string
	ALPN      string
	UniqueID  []byte
	Netns     string
	SSL       *SSL
	// AWSVPCEndpoint is the id of the VPC endpoint of a PrivateLink connection.
	AWSVPCEndpoint string
	// AzureLinkID is the id of an Azure private endpoint's link.
	AzureLinkID uint32
	// GCPPSC is the connection id of Google's Private Service Connect.
	GCPPSC uint64
	HasGCP bool
}

// SSL is the SSL TLV (PROXY protocol, section 2.2.6): how the client connected to the
// sender of the header.
type SSL struct {
	// TLS means that the client used TLS, ClientCert that it gave a certificate on this
	// connection, and Verified that the sender verified the certificate.
	TLS, ClientCert, Verified                   bool
	Version, CommonName, Cipher, SigAlg, KeyAlg string
	// Group is the key exchange group. SigScheme is the signature scheme by which the
	// sender of the header authenticated itself.
	Group, SigScheme string
	// Certificate is the client certificate, in DER.
	Certificate []byte
}
