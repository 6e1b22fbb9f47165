package policy

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"slices"
)

// The extensions that JA4 handles in a special way.
const (
	extensionServerName = 0x0000
	extensionALPN       = 0x0010
)

// JA4 returns the JA4 fingerprint of a ClientHello over TCP, as FoxIO defines it. The
// fingerprint identifies the kind of client. It does not depend on the server name or on
// the order of extensions. For a decrypted ECH, it is the fingerprint of the inner
// ClientHello.
//
// crypto/tls hides two cases. A ClientHello that has no version known to crypto/tls, and
// no extension for versions, counts as SSL 3. A ClientHello without this extension that
// claims a version above TLS 1.3 counts as TLS 1.3.
func JA4(h *tls.ClientHelloInfo) string {
	suites := withoutGREASE(h.CipherSuites)
	extensions := withoutGREASE(h.Extensions)
	name := byte('i')
	if slices.Contains(extensions, extensionServerName) {
		name = 'd'
	}
	head := fmt.Sprintf("t%s%c%02d%02d%s", ja4Version(h.SupportedVersions), name,
		min(len(suites), 99), min(len(extensions), 99), ja4Protocol(h.SupportedProtos))

	slices.Sort(suites)
	slices.Sort(extensions)
	extensions = slices.DeleteFunc(extensions, func(e uint16) bool { return e == extensionServerName || e == extensionALPN })
	return head + "_" + ja4Hash(suites, nil) + "_" + ja4Hash(extensions, withoutGREASE(h.SignatureSchemes))
}

// isGREASE reports whether v is a reserved value (0x0a0a, 0x1a1a and so on) that clients
// send to test that servers ignore unknown values (RFC 8701).
func isGREASE[T ~uint16](v T) bool { return v&0x0f0f == 0x0a0a && v>>8 == v&0xff }

// withoutGREASE returns a copy of values.
func withoutGREASE[T ~uint16](values []T) []T {
	return slices.DeleteFunc(slices.Clone(values), isGREASE[T])
}

// newest returns the highest version that the client offers; zero: none is known.
func newest(versions []uint16) (v uint16) {
	for _, o := range versions {
		if !isGREASE(o) {
			v = max(v, o)
		}
	}
	return v
}

func ja4Version(versions []uint16) string {
	switch v := newest(versions); {
	case len(versions) == 0, v == versionSSL3:
		return "s3"
	case v == 0x0002:
		return "s2"
	case v >= tls.VersionTLS10 && v <= tls.VersionTLS13:
		return fmt.Sprintf("1%d", v-tls.VersionTLS10)
	}
	return "00"
}

// versionSSL3 is SSL 3.0. crypto/tls does not support it, and its constant there is
// deprecated.
const versionSSL3 = 0x0300

// ja4Protocol returns the first and last character of the first ALPN value, or of its
// hexadecimal form if one of them is neither a letter nor a digit.
func ja4Protocol(protocols []string) string {
	if len(protocols) == 0 || protocols[0] == "" {
		return "00"
	}
	p := protocols[0]
	if !alphanumeric(p[0]) || !alphanumeric(p[len(p)-1]) {
		p = hex.EncodeToString([]byte(p))
	}
	return string([]byte{p[0], p[len(p)-1]})
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

// ja4Hash hashes the values and, if there are any, the signatures after an underscore.
func ja4Hash(values []uint16, signatures []tls.SignatureScheme) string {
	if len(values) == 0 {
		return "000000000000"
	}
	text := appendHex(make([]byte, 0, 5*(len(values)+len(signatures))), values)
	if len(signatures) > 0 {
		text = appendHex(append(text, '_'), signatures)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

func appendHex[T ~uint16](text []byte, values []T) []byte {
	for i, v := range values {
		if i > 0 {
			text = append(text, ',')
		}
		text = hex.AppendEncode(text, []byte{byte(v >> 8), byte(v)})
	}
	return text
}
