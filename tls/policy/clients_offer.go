package policy

import (
	"crypto/tls"
	"fmt"
	"slices"
)

// Offer describes what a ClientHello offered, in words for a log. Lists are in the
// client's order, without GREASE, and limited.
type Offer struct {
	// Versions and Suites are names where known, else hexadecimal numbers.
	Versions, Suites []string
	// Protocols are the protocols of ALPN.
	Protocols []string
	// OnlySHA1 reports that TLS 1.2 is the client's newest version, and that it verifies
	// only signatures with SHA-1.
	OnlySHA1 bool
	JA4      string
}

// The limits of an Offer. Real clients offer less; strangers could send 64 KiB.
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

// OfferedVersions returns the oldest and the latest version that a ClientHello offers.
func OfferedVersions(h *tls.ClientHelloInfo) (oldest, latest uint16) {
	versions := withoutGREASE(h.SupportedVersions)
	if len(versions) == 0 {
		return versionSSL3, versionSSL3
	}
	return slices.Min(versions), slices.Max(versions)
}

// names returns at most limit names, and the number of the others.
func names[T any](values []T, limit int, name func(T) string) (list []string) {
	for i, v := range values {
		if i == limit {
			return append(list, fmt.Sprintf("%d more", len(values)-limit))
		}
		list = append(list, name(v))
	}
	return list
}

// onlySHA1Offered reports whether TLS 1.2 is the newest version, and SHA-1 the best
// signature hash, that the client offers.
func onlySHA1Offered(h *tls.ClientHelloInfo) bool {
	o := offered(h.SignatureSchemes)
	return newest(h.SupportedVersions) == tls.VersionTLS12 && o&anySHA1 != 0 && o&anyBetter == 0
}

// offeredSuiteName also has names of suites that old clients offer and Go does not
// implement.
func offeredSuiteName(id uint16) string {
	if name := suitesOfOthers[id]; name != "" {
		return name
	}
	return tls.CipherSuiteName(id)
}
