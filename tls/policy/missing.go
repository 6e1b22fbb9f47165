package policy

import (
	"crypto/tls"
	"slices"
	"strings"
)

// missing is a set of kinds of cipher suites that crypto/tls does not implement.
type missing uint8

const (
	missingDHE      missing = 1 << iota // key exchange by DHE, with any cipher
	missingCAMELLIA                     // all others with the cipher CAMELLIA
	missingOthers
)

// names returns the names of the kinds, for logs.
func (m missing) names() (list []string) {
	for i, name := range []string{"DHE", "CAMELLIA", "others"} {
		if m&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

// OnlyMissing returns the kinds of the client's suites for TLS 1.0 to 1.2, if crypto/tls
// implements none of these suites, so that no policy can have one. Suites of TLS 1.3 do
// not count: they are useless if an older version was negotiated, and sufficient
// otherwise.
func OnlyMissing(h *tls.ClientHelloInfo) []string { return onlyMissing(h).names() }

func onlyMissing(h *tls.ClientHelloInfo) (m missing) {
	for _, id := range withoutGREASE(h.CipherSuites) {
		name := offeredSuiteName(id)
		switch {
		case slices.Contains(oldSuites, id):
			return 0
		case id>>8 == 0x13, strings.HasSuffix(name, "_SCSV"): // suites of TLS 1.3; signals that are no suites
		case strings.Contains(name, "_DHE_"):
			m |= missingDHE
		case strings.Contains(name, "CAMELLIA"):
			m |= missingCAMELLIA
		default:
			m |= missingOthers
		}
	}
	return m
}

// suitesOfOthers are suites that clients offer and crypto/tls does not implement, from
// the IANA registry: all suites with DHE or CAMELLIA and a certificate, and some of the
// others.
var suitesOfOthers = map[uint16]string{
	0x0003: "TLS_RSA_EXPORT_WITH_RC4_40_MD5",
	0x0004: "TLS_RSA_WITH_RC4_128_MD5",
	0x0006: "TLS_RSA_EXPORT_WITH_RC2_CBC_40_MD5",
	0x0007: "TLS_RSA_WITH_IDEA_CBC_SHA",
	0x0008: "TLS_RSA_EXPORT_WITH_DES40_CBC_SHA",
	0x0009: "TLS_RSA_WITH_DES_CBC_SHA",
	0x0011: "TLS_DHE_DSS_EXPORT_WITH_DES40_CBC_SHA",
	0x0012: "TLS_DHE_DSS_WITH_DES_CBC_SHA",
	0x0013: "TLS_DHE_DSS_WITH_3DES_EDE_CBC_SHA",
	0x0014: "TLS_DHE_RSA_EXPORT_WITH_DES40_CBC_SHA",
	0x0015: "TLS_DHE_RSA_WITH_DES_CBC_SHA",
	0x0016: "TLS_DHE_RSA_WITH_3DES_EDE_CBC_SHA",
	0x0032: "TLS_DHE_DSS_WITH_AES_128_CBC_SHA",
	0x0033: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA",
	0x0038: "TLS_DHE_DSS_WITH_AES_256_CBC_SHA",
	0x0039: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA",
	0x003d: "TLS_RSA_WITH_AES_256_CBC_SHA256",
	0x0040: "TLS_DHE_DSS_WITH_AES_128_CBC_SHA256",
	0x0041: "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA",
	0x0044: "TLS_DHE_DSS_WITH_CAMELLIA_128_CBC_SHA",
	0x0045: "TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA",
	0x0067: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256",
	0x006a: "TLS_DHE_DSS_WITH_AES_256_CBC_SHA256",
	0x006b: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256",
	0x0084: "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA",
	0x0087: "TLS_DHE_DSS_WITH_CAMELLIA_256_CBC_SHA",
	0x0088: "TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA",
	0x0096: "TLS_RSA_WITH_SEED_CBC_SHA",
	0x0099: "TLS_DHE_DSS_WITH_SEED_CBC_SHA",
	0x009a: "TLS_DHE_RSA_WITH_SEED_CBC_SHA",
	0x009e: "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256",
	0x009f: "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384",
	0x00a2: "TLS_DHE_DSS_WITH_AES_128_GCM_SHA256",
	0x00a3: "TLS_DHE_DSS_WITH_AES_256_GCM_SHA384",
	0x00ba: "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA256",
	0x00bd: "TLS_DHE_DSS_WITH_CAMELLIA_128_CBC_SHA256",
	0x00be: "TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA256",
	0x00c0: "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA256",
	0x00c3: "TLS_DHE_DSS_WITH_CAMELLIA_256_CBC_SHA256",
	0x00c4: "TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA256",
	0x00ff: "TLS_EMPTY_RENEGOTIATION_INFO_SCSV",
	0x5600: "TLS_FALLBACK_SCSV",
	0xc008: "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA",
	0xc024: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
	0xc028: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
	0xc042: "TLS_DHE_DSS_WITH_ARIA_128_CBC_SHA256",
	0xc043: "TLS_DHE_DSS_WITH_ARIA_256_CBC_SHA384",
	0xc044: "TLS_DHE_RSA_WITH_ARIA_128_CBC_SHA256",
	0xc045: "TLS_DHE_RSA_WITH_ARIA_256_CBC_SHA384",
	0xc052: "TLS_DHE_RSA_WITH_ARIA_128_GCM_SHA256",
	0xc053: "TLS_DHE_RSA_WITH_ARIA_256_GCM_SHA384",
	0xc056: "TLS_DHE_DSS_WITH_ARIA_128_GCM_SHA256",
	0xc057: "TLS_DHE_DSS_WITH_ARIA_256_GCM_SHA384",
	0xc072: "TLS_ECDHE_ECDSA_WITH_CAMELLIA_128_CBC_SHA256",
	0xc073: "TLS_ECDHE_ECDSA_WITH_CAMELLIA_256_CBC_SHA384",
	0xc076: "TLS_ECDHE_RSA_WITH_CAMELLIA_128_CBC_SHA256",
	0xc077: "TLS_ECDHE_RSA_WITH_CAMELLIA_256_CBC_SHA384",
	0xc07a: "TLS_RSA_WITH_CAMELLIA_128_GCM_SHA256",
	0xc07b: "TLS_RSA_WITH_CAMELLIA_256_GCM_SHA384",
	0xc07c: "TLS_DHE_RSA_WITH_CAMELLIA_128_GCM_SHA256",
	0xc07d: "TLS_DHE_RSA_WITH_CAMELLIA_256_GCM_SHA384",
	0xc080: "TLS_DHE_DSS_WITH_CAMELLIA_128_GCM_SHA256",
	0xc081: "TLS_DHE_DSS_WITH_CAMELLIA_256_GCM_SHA384",
	0xc086: "TLS_ECDHE_ECDSA_WITH_CAMELLIA_128_GCM_SHA256",
	0xc087: "TLS_ECDHE_ECDSA_WITH_CAMELLIA_256_GCM_SHA384",
	0xc08a: "TLS_ECDHE_RSA_WITH_CAMELLIA_128_GCM_SHA256",
	0xc08b: "TLS_ECDHE_RSA_WITH_CAMELLIA_256_GCM_SHA384",
	0xc09e: "TLS_DHE_RSA_WITH_AES_128_CCM",
	0xc09f: "TLS_DHE_RSA_WITH_AES_256_CCM",
	0xc0a2: "TLS_DHE_RSA_WITH_AES_128_CCM_8",
	0xc0a3: "TLS_DHE_RSA_WITH_AES_256_CCM_8",
	0xccaa: "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
}
