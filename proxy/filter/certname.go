package filter

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"net/netip"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// The names in a certificate can contain any bytes, because its authority decides on them. When
// weir writes such a name into an HTTP header, it escapes every byte that could have another
// meaning there: as a backslash and two upper-case hexadecimal digits. There is no other form of
// escape. So no name can end its HTTP header, its element of a list or its part of a distinguished
// name, and an endpoint can restore each name byte for byte.

// attributeNames are the short names of attributes: the names of RFC 4514, section 3, and for
// other attributes in certificates the names of OpenSSL.
var attributeNames = map[string]string{
	"2.5.4.3": "CN", "2.5.4.4": "SN", "2.5.4.5": "serialNumber", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST",
	"2.5.4.9": "STREET", "2.5.4.10": "O", "2.5.4.11": "OU", "2.5.4.12": "title", "2.5.4.17": "postalCode", "2.5.4.42": "GN",
	"0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC", "1.2.840.113549.1.9.1": "emailAddress",
}

// nameForm is a form of distinguished names. All forms write the last part first.
type nameForm struct {
	names  func(kind string) (name string, known bool) // of attributes, by their numbers
	text   func(value []byte, tag cbasn1.Tag) ([]byte, bool)
	escape func(b, text []byte) []byte     // appends text
	dump   func(b, encoding []byte) []byte // appends the encoding of a value in hexadecimal
	// reverse also writes the last attribute of a part first.
	reverse bool
}

// rfc4514 is the form of RFC 4514 with weir's own escapes.
var rfc4514 = &nameForm{
	names:  func(kind string) (string, bool) { name, ok := attributeNames[kind]; return name, ok },
	text:   textOf,
	escape: func(b, text []byte) []byte { return appendEscaped(b, text, inName) },
	dump:   hex.AppendEncode,
}

// appendName appends a distinguished name in DER in the form of RFC 4514.
// If der is not a distinguished name, it appends nothing.
func appendName(b, der []byte) []byte { return rfc4514.append(b, der) }

// append appends a distinguished name in DER, or nothing if der is none.
func (f *nameForm) append(b, der []byte) []byte {
	in := cryptobyte.String(der)
	var sequence cryptobyte.String
	if !in.ReadASN1(&sequence, cbasn1.SEQUENCE) {
		return b
	}
	var parts []cryptobyte.String
	for !sequence.Empty() {
		var part cryptobyte.String
		if !sequence.ReadASN1(&part, cbasn1.SET) || part.Empty() {
			return b
		}
		parts = append(parts, part)
	}
	begin := len(b)
	for i, part := range slices.Backward(parts) {
		if i < len(parts)-1 {
			b = append(b, ',')
		}
		from, all := len(b), [][]byte(nil)
		for first := true; !part.Empty(); first = false {
			if !first {
				b = append(b, '+')
			}
			at, ok := len(b), false
			if b, ok = f.attribute(b, &part); !ok {
				return b[:begin]
			}
			if f.reverse && (!first || !part.Empty()) {
				all = append(all, slices.Clone(b[at:]))
			}
		}
		if len(all) > 1 {
			slices.Reverse(all)
			b = append(b[:from], bytes.Join(all, []byte{'+'})...)
		}
	}
	return b
}

// attribute reads an attribute and appends its short name and its value. If it does not
// know the name or the type of the value, it appends the encoding of the value (RFC 4514,
// section 2.4), after the short name or the number.
func (f *nameForm) attribute(b []byte, in *cryptobyte.String) ([]byte, bool) {
	var attribute, value cryptobyte.String
	var kind asn1.ObjectIdentifier
	var tag cbasn1.Tag
	if !in.ReadASN1(&attribute, cbasn1.SEQUENCE) || !attribute.ReadASN1ObjectIdentifier(&kind) {
		return b, false
	}
	encoding := attribute
	if !attribute.ReadAnyASN1(&value, &tag) || !attribute.Empty() {
		return b, false
	}
	if name, ok := f.names(kind.String()); ok {
		if text, ok := f.text(value, tag); ok {
			return f.escape(append(append(b, name...), '='), text), true
		}
		b = append(b, name...)
	} else {
		b = append(b, kind.String()...)
	}
	return f.dump(append(b, "=#"...), encoding), true
}

// textOf returns the value of a string type in UTF-8.
func textOf(value []byte, tag cbasn1.Tag) ([]byte, bool) {
	switch tag {
	case cbasn1.UTF8String, cbasn1.PrintableString, cbasn1.IA5String, asn1.TagNumericString:
		return value, true
	case cbasn1.T61String: // the meaning of its letters beyond ASCII is not defined
		return value, !slices.ContainsFunc(value, func(c byte) bool { return c >= utf8.RuneSelf })
	case asn1.TagBMPString:
		return decodeBMP(value)
	}
	return nil, false
}

func decodeBMP(value []byte) (text []byte, ok bool) {
	if len(value)%2 != 0 {
		return nil, false
	}
	for i := 0; i < len(value); i += 2 {
		r := rune(value[i])<<8 | rune(value[i+1])
		if utf16.IsSurrogate(r) {
			return nil, false
		}
		text = utf8.AppendRune(text, r)
	}
	return text, true
}

// oidSAN is the subject alternative name (RFC 5280, section 4.2.1.6).
var oidSAN = asn1.ObjectIdentifier{2, 5, 29, 17}

// The kinds of general names that weir forwards.
var (
	sanEmail = cbasn1.Tag(1).ContextSpecific()
	sanDNS   = cbasn1.Tag(2).ContextSpecific()
	sanURI   = cbasn1.Tag(6).ContextSpecific()
	sanIP    = cbasn1.Tag(7).ContextSpecific()
)

// appendSAN appends the alternative names of a certificate, in their order and with their kind:
// "DNS:a.example, URI:spiffe://b/c, IP:192.0.2.1". It skips all kinds other than DNS, URI, email
// and IP.
func appendSAN(b []byte, c *x509.Certificate) []byte {
	i := slices.IndexFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oidSAN) })
	if i < 0 {
		return b
	}
	in := cryptobyte.String(c.Extensions[i].Value)
	var names cryptobyte.String
	if !in.ReadASN1(&names, cbasn1.SEQUENCE) {
		return b
	}
	begin := len(b)
	for !names.Empty() {
		var value cryptobyte.String
		var tag cbasn1.Tag
		if !names.ReadAnyASN1(&value, &tag) {
			return b[:begin]
		}
		kind := ""
		switch tag {
		case sanEmail:
			kind = "email:"
		case sanDNS:
			kind = "DNS:"
		case sanURI:
			kind = "URI:"
		case sanIP:
			a, ok := netip.AddrFromSlice(value)
			if !ok {
				continue
			}
			kind, value = "IP:", cryptobyte.String(a.String())
		default:
			continue
		}
		if len(b) > begin {
			b = append(b, ", "...)
		}
		b = appendEscaped(append(b, kind...), value, inList)
	}
	return b
}

// inName contains the bytes with a meaning in a distinguished name, and inList the bytes with a
// meaning in a list.
var (
	inName = bytesOf(`"+,;<>\`)
	inList = bytesOf(` ",\`)
)

// bytesOf returns a set of bytes: the bytes of list, and all bytes that must not or should not
// be in an HTTP header, which are controls and all bytes beyond ASCII.
func bytesOf(list string) *[256]bool {
	var set [256]bool
	for c := range set {
		set[c] = c < ' ' || c >= 0x7f
	}
	for i := range len(list) {
		set[list[i]] = true
	}
	return &set
}

// appendEscaped appends text. It writes the bytes of escape as a backslash and two hexadecimal
// digits. It does the same with a space at either end, because HTTP headers lose it, and with a
// number sign at the beginning, because that would announce an encoding.
func appendEscaped(b, text []byte, escape *[256]bool) []byte {
	const digits = "0123456789ABCDEF"
	for i, c := range text {
		atEnd := i == 0 || i == len(text)-1
		if escape[c] || c == ' ' && atEnd || c == '#' && i == 0 {
			b = append(b, '\\', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}
