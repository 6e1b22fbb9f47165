package filter

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// ClientCert is the HTTP headers with information about a verified client certificate, for
// endpoints.
type ClientCert []certField

type certField struct {
	id    message.ID
	value []byte
}

// EditRequest adds the headers to the request.
func (c ClientCert) EditRequest(x Exchange) {
	req := x.Request()
	for i := range c {
		req.Add(c[i].id, c[i].value)
	}
}

// NewClientCert returns the HTTP headers that forward lists, without empty ones. state has a
// client certificate, which was verified.
func NewClientCert(state *tls.ConnectionState, forward []config.ClientCertField) (fields ClientCert) {
	leaf := state.PeerCertificates[0]
	add := func(id message.ID, value []byte) {
		if len(value) > 0 {
			fields = append(fields, certField{id, value})
		}
	}
	wants := func(f config.ClientCertField) bool { return slices.Contains(forward, f) }
	if wants(config.ClientCertSubject) {
		add(message.XClientCertSubject, appendName(nil, leaf.RawSubject))
	}
	if wants(config.ClientCertSAN) {
		add(message.XClientCertSAN, appendSAN(nil, leaf))
	}
	if wants(config.ClientCertFingerprint) {
		sum := sha256.Sum256(leaf.Raw)
		add(message.XClientCertSHA256, hex.AppendEncode(nil, sum[:]))
	}
	chain := wants(config.ClientCertChain)
	if chain || wants(config.ClientCertCertificate) { // the chain requires it (RFC 9440, section 2.3)
		add(message.ClientCert, appendByteSequence(nil, leaf.Raw))
	}
	if chain && len(state.VerifiedChains) > 0 {
		add(message.ClientCertChain, appendChain(nil, state.VerifiedChains[0][1:]))
	}
	return fields
}

// appendChain appends certificates as a list (RFC 9440, section 2.3): the CA certificates of the
// client's certificate, in the order of TLS. The list includes the trust anchor, because weir
// cannot know whether a backend has it. It is the verified chain. Other certificates that the
// client sent are not in it, because weir has not verified them.
func appendChain(b []byte, chain []*x509.Certificate) []byte {
	for i, c := range chain {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = appendByteSequence(b, c.Raw)
	}
	return b
}

// appendByteSequence appends b as a byte sequence (RFC 8941, section 3.3.5).
func appendByteSequence(b, content []byte) []byte {
	b = append(b, ':')
	b = base64.StdEncoding.AppendEncode(b, content)
	return append(b, ':')
}
