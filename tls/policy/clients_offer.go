package policy

import (
	"crypto/tls"
	"fmt"
)

// Offer is what a ClientHello offered, in words for a log. Lists are in the
// client's order, without GREASE, and bounded.
type Offer struct {
	// Versions and Suites have names where there are some, else hexadecimal numbers.
	Versions, Suites []string
	// Protocols are those of ALPN.
	Protocols []string
	// OnlySHA1 says that the client is one of TLS 1.2 and verifies no better signatures than SHA-1.
	OnlySHA1 bool
	JA4      string
}

// The most that an Offer lists. What real clients offer is shorter; strangers could fill 64 KiB.
const (
	maxVersions       = 16
	maxSuites         = 80
	maxProtocols      = 16
	maxProtocolLength = 64
)

// OfferOf describes a ClientHello.
func OfferOf(h *tls.ClientHelloInfo) Offer {
	o := Offer{
		Versions: names(withoutGREASE(h.SupportedVersions), maxVersions, VersionName),
		Suites:   names(withoutGREASE(h.CipherSuites), maxSuites, offeredSuiteName),
		Protocols: names(h.SupportedProtos, maxProtocols, func(p string) string {
			return p[:min(len(p), maxProtocolLength)]
		}),
		OnlySHA1: onlySHA1Offered(h),
		JA4:      JA4(h),
	}
	if len(h.SupportedVersions) == 0 {
		o.Versions = []string{VersionName(versionSSL3)}
	}
	return o
}

// names returns at most limit names, and how many more there are.
func names[T any](values []T, limit int, name func(T) string) (list []string) {
	for i, v := range values {
		if i == limit {
			return append(list, fmt.Sprintf("%d more", len(values)-limit))
		}
		list = append(list, name(v))
	}
	return list
}

// onlySHA1Offered says whether TLS 1.2 is the newest version and SHA-1 the best
// hash of signatures that the client offers.
func onlySHA1Offered(h *tls.ClientHelloInfo) bool {
	o := offered(h.SignatureSchemes)
	return newest(h.SupportedVersions) == tls.VersionTLS12 && o&anySHA1 != 0 && o&anyBetter == 0
}

// offeredSuiteName also knows suites that old clients offer and Go does not implement.
func offeredSuiteName(id uint16) string {
	if name := suitesOfOthers[id]; name != "" {
		return name
	}
	return tls.CipherSuiteName(id)
}

// suitesOfOthers are from the registry of IANA.
var suitesOfOthers = map[uint16]string{
	0x0003: "TLS_RSA_EXPORT_WITH_RC4_40_MD5",
	0x0004: "TLS_RSA_WITH_RC4_128_MD5",
	0x0006: "TLS_RSA_EXPORT_WITH_RC2_CBC_40_MD5",
	0x0007: "TLS_RSA_WITH_IDEA_CBC_SHA",
	0x0008: "TLS_RSA_EXPORT_WITH_DES40_CBC_SHA",
	0x0009: "TLS_RSA_WITH_DES_CBC_SHA",
	0x0013: "TLS_DHE_DSS_WITH_3DES_EDE_CBC_SHA",
	0x0015: "TLS_DHE_RSA_WITH_DES_CBC_SHA",
	0x0016: "TLS_DHE_RSA_WITH_3DES_EDE_CBC_SHA",
	0x0032: "TLS_DHE_DSS_WITH_AES_128_CBC_SHA",
	0x0033: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA",
	0x0038: "TLS_DHE_DSS_WITH_AES_256_CBC_SHA",
	0x0039: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA",
	0x003d: "TLS_RSA_WITH_AES_256_CBC_SHA256",
	0x0040: "TLS_DHE_DSS_WITH_AES_128_CBC_SHA256",
	0x0041: "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA",
	0x0045: "TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA",
	0x0067: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256",
	0x006a: "TLS_DHE_DSS_WITH_AES_256_CBC_SHA256",
	0x006b: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256",
	0x0084: "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA",
	0x0088: "TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA",
	0x009e: "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256",
	0x009f: "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384",
	0x00a2: "TLS_DHE_DSS_WITH_AES_128_GCM_SHA256",
	0x00ff: "TLS_EMPTY_RENEGOTIATION_INFO_SCSV",
	0x5600: "TLS_FALLBACK_SCSV",
	0xc008: "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA",
	0xc024: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
	0xc028: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
	0xccaa: "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
}
