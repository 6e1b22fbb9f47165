package proxy

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

// certField is an HTTP header with information about the client certificate, for the endpoint.
type certField struct {
	id    message.ID
	value []byte
}

// certify notes whether the client proved that it has a certificate, and the HTTP headers about
// it for endpoints. For a connection under client_auth, crypto/tls has verified the certificate;
// for a resumed session, package policy has.
func (c *clientSide) certify() {
	if c.security.Policy.ClientAuth == config.ClientAuthNone {
		return
	}
	state := c.security.State()
	if len(state.PeerCertificates) == 0 {
		return
	}
	c.certified = true
	c.certFields = certFields(&state, c.security.Policy.Forward)
	c.standing = c.security.Policy.Stand(state.VerifiedChains)
}

// certFields returns the HTTP headers that forward lists, without empty ones.
func certFields(state *tls.ConnectionState, forward []config.ClientCertField) (fields []certField) {
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

// addCertFields adds the HTTP headers about the client's certificate to the request.
func (x *exchange) addCertFields(req *message.Request) {
	for i := range x.certFields {
		req.Add(x.certFields[i].id, x.certFields[i].value)
	}
}
