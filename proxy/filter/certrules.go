package filter

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"

	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// Certificate describes a client certificate that weir has verified, and that routes accept or refuse.
// It does not change.
type Certificate struct {
	Sent    bool  // the client sent a certificate
	Err     error // why the certificate is not good; nil: it is good, or the client sent none
	Unknown bool  // the certificate is from a CA that the policy does not have, and has no other fault

	verify          string // the result in the words of nginx
	subject, issuer []byte // in the form of OpenSSL
	whole           []byte // the certificate in PEM, percent-encoded
}

// NewCertificate describes a client certificate; leaf nil: the client sent none. err is why the
// certificate is not good. reason is err in the words of OpenSSL. unknown is Certificate.Unknown.
func NewCertificate(leaf *x509.Certificate, err error, reason string, unknown bool) *Certificate {
	c := &Certificate{Sent: leaf != nil, Err: err, Unknown: unknown, verify: "NONE"}
	if leaf == nil {
		return c
	}
	if c.verify = "SUCCESS"; err != nil {
		c.verify = "FAILED:" + reason
	}
	c.subject, c.issuer = openssl.append(nil, leaf.RawSubject), openssl.append(nil, leaf.RawIssuer)
	c.whole = appendEncoded(nil, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}))
	return c
}

// certRules decides about client certificates as nginx does with the configuration of ingress-nginx
// (auth-tls-* of an Ingress), and tells endpoints about them.
type certRules struct {
	config.ClientCert
	match *regexp.Regexp // of Match; nil: any subject
}

func newCertRules(c *config.ClientCert) *certRules {
	r := &certRules{ClientCert: *c}
	if c.Match != "" {
		r.match = regexp.MustCompile(c.Match) // package annotation has compiled it before
	}
	return r
}

var (
	refuseNoCert    = &message.Refusal{Status: http.StatusBadRequest, Reason: "client_cert_missing", Detail: "this host needs a client certificate"}
	refuseBadCert   = &message.Refusal{Status: http.StatusBadRequest, Reason: "client_cert_invalid", Detail: "the client certificate is not acceptable"}
	refuseOtherCert = &message.Refusal{Status: http.StatusForbidden, Reason: "client_cert_name", Detail: "this client certificate gives no access"}
)

// FilterName returns the key that policies have for client certificates.
func (r *certRules) FilterName() string { return "client_auth" }

// Answer refuses requests of clients without a good certificate.
func (r *certRules) Answer(x Exchange) bool {
	c := x.Certificate()
	switch {
	case r.Mode == config.CertOff: // the policy requests no certificate
	case c != nil && c.Err != nil && (r.Mode != config.CertUnverified || !c.Unknown):
		x.SetCause(c.Err)
		return r.refuse(x, refuseBadCert)
	case r.Mode == config.CertRequired && (c == nil || !c.Sent):
		return r.refuse(x, refuseNoCert)
	}
	if r.match != nil && (c == nil || !r.match.Match(c.subject)) {
		x.Refuse(refuseOtherCert)
		return true
	}
	x.State().cert = r
	return false
}

// refuse redirects the client to ErrorPage, or answers 400 if the route has none.
func (r *certRules) refuse(x Exchange, why *message.Refusal) bool {
	if r.ErrorPage == "" {
		x.Refuse(why)
		return true
	}
	res := x.Begin(http.StatusFound, why.Reason)
	res.AddField("Location", r.ErrorPage)
	x.Send("a client certificate is needed\n")
	return true
}

// aboutCert are the HTTP headers that certRules writes.
var aboutCert = message.NewNames([]string{"ssl-client-cert", "ssl-client-verify", "ssl-client-subject-dn", "ssl-client-issuer-dn"})

// EditRequest replaces the headers about the client's certificate.
func (r *certRules) EditRequest(x Exchange) {
	req := x.Request()
	r.EditTrailers(&req.Head)
	r.write(&req.Head, x)
}

// EditTrailers drops headers about the client's certificate that a client or another proxy sent. weir has
// dropped them already, unless the listener trusts the sender (trust: client_cert).
func (r *certRules) EditTrailers(h *message.Head) {
	for i := range h.Fields {
		if !h.Fields[i].Dropped && aboutCert.HasAlike(h.Name(i)) {
			h.Fields[i].Dropped = true
		}
	}
}

// write adds the headers about the certificate that have a value. It adds none to requests without TLS.
func (r *certRules) write(h *message.Head, x Exchange) {
	if !x.Terminated() {
		return
	}
	c := x.Certificate()
	if c == nil { // the policy requests none
		c = noCertificate
	}
	if r.Forward && len(c.whole) > 0 {
		h.AddSpans(h.StoreString("ssl-client-cert"), h.Store(c.whole))
	}
	h.AddSpans(h.StoreString("ssl-client-verify"), h.StoreString(c.verify))
	if len(c.subject) > 0 {
		h.AddSpans(h.StoreString("ssl-client-subject-dn"), h.Store(c.subject))
	}
	if len(c.issuer) > 0 {
		h.AddSpans(h.StoreString("ssl-client-issuer-dn"), h.Store(c.issuer))
	}
}

var noCertificate = NewCertificate(nil, nil, "", false)

// openssl is the form of distinguished names that nginx writes; OpenSSL calls it RFC2253. A backslash before
// a printable character keeps the character, where rfc4514 writes two hexadecimal digits.
var openssl = &nameForm{names: opensslName, text: opensslText, escape: appendBackslashed, reverse: true,
	dump: func(b, encoding []byte) []byte { return append(b, strings.ToUpper(hex.EncodeToString(encoding))...) }}

// opensslNames are the short names of OpenSSL that attributeNames does not have.
var opensslNames = map[string]string{
	"2.5.4.9": "street", "2.5.4.13": "description", "2.5.4.14": "searchGuide", "2.5.4.15": "businessCategory", "2.5.4.16": "postalAddress",
	"2.5.4.18": "postOfficeBox", "2.5.4.20": "telephoneNumber", "2.5.4.41": "name", "2.5.4.43": "initials", "2.5.4.44": "generationQualifier",
	"2.5.4.45": "x500UniqueIdentifier", "2.5.4.46": "dnQualifier", "2.5.4.65": "pseudonym", "2.5.4.72": "role", "2.5.4.97": "organizationIdentifier",
	"1.2.840.113549.1.9.2": "unstructuredName", "1.2.840.113549.1.9.8": "unstructuredAddress", "0.9.2342.19200300.100.1.3": "mail",
	"1.3.6.1.4.1.311.60.2.1.1": "jurisdictionL", "1.3.6.1.4.1.311.60.2.1.2": "jurisdictionST", "1.3.6.1.4.1.311.60.2.1.3": "jurisdictionC",
}

func opensslName(kind string) (name string, known bool) {
	if name, known = opensslNames[kind]; known {
		return name, true
	}
	name, known = attributeNames[kind]
	return name, known
}

// opensslText returns the value of a string type in UTF-8. OpenSSL reads T61 as Latin-1.
func opensslText(value []byte, tag cbasn1.Tag) (text []byte, ok bool) {
	if tag == cbasn1.T61String {
		for _, c := range value {
			text = utf8.AppendRune(text, rune(c))
		}
		return text, true
	}
	return textOf(value, tag)
}

// appendBackslashed appends text. It writes a backslash before characters with a meaning in a name, and
// controls and bytes beyond ASCII as a backslash and two hexadecimal digits.
func appendBackslashed(b, text []byte) []byte {
	const digits = "0123456789ABCDEF"
	for i, c := range text {
		switch {
		case c < ' ' || c >= 0x7f:
			b = append(b, '\\', digits[c>>4], digits[c&15])
			continue
		case inName[c], c == '#' && i == 0, c == ' ' && (i == 0 || i == len(text)-1):
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return b
}
