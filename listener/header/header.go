// Package header reads and writes PROXY protocol headers, versions 1 and 2.
// Framing, checksum and the order of events are ours; the formats and TLVs are
// go-proxyproto's. It knows nothing of sockets, policies or time.
package header

import "net/netip"

// Header is what one PROXY header said.
type Header struct {
	// Version is 1 or 2; 0 where there was no header.
	Version int
	// Local is set by v2 LOCAL and v1 UNKNOWN (and by v2 addresses that are not IP):
	// the socket's own addresses hold, Source and Destination are not valid.
	Local       bool
	Source      netip.AddrPort
	Destination netip.AddrPort
	TLVs        TLVs
}

// TLVs are the extensions of a v2 header that weir understands. Zero values mean absent.
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

// SSL is the SSL TLV (PROXY protocol, section 2.2.6): how the client of the sender was connected.
type SSL struct {
	// TLS says that the client came over TLS; ClientCert that it gave a certificate on this connection;
	// Verified that the certificate was verified.
	TLS, ClientCert, Verified                   bool
	Version, CommonName, Cipher, SigAlg, KeyAlg string
	// Group is what keys were agreed on by, SigScheme what the sender of the header proved itself by.
	Group, SigScheme string
	// Certificate is the client's, in DER.
	Certificate []byte
}
