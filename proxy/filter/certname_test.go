package filter

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// attribute is a part of a name. A part can share its place with the part before; then it stands
// beside that part.
type attribute struct {
	kind   asn1.ObjectIdentifier
	tag    cbasn1.Tag
	value  string
	beside bool
}

var (
	commonName = asn1.ObjectIdentifier{2, 5, 4, 3}
	country    = asn1.ObjectIdentifier{2, 5, 4, 6}
	unit       = asn1.ObjectIdentifier{2, 5, 4, 11}
	odd        = asn1.ObjectIdentifier{1, 2, 3, 4}
)

// nameOf returns a distinguished name in DER, with any bytes in its attributes.
func nameOf(attributes ...attribute) []byte {
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		for i := 0; i < len(attributes); {
			b.AddASN1(cbasn1.SET, func(b *cryptobyte.Builder) {
				for first := true; i < len(attributes) && (first || attributes[i].beside); first = false {
					a := attributes[i]
					i++
					b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
						b.AddASN1ObjectIdentifier(a.kind)
						b.AddASN1(a.tag, func(b *cryptobyte.Builder) { b.AddBytes([]byte(a.value)) })
					})
				}
			})
		}
	})
	return b.BytesOrPanic()
}

func TestNames(t *testing.T) {
	f := func(want string, attributes ...attribute) {
		t.Helper()
		if got := string(appendName([]byte("before "), nameOf(attributes...))); got != "before "+want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	cn := func(want, value string) {
		t.Helper()
		f("CN="+want, attribute{kind: commonName, tag: cbasn1.UTF8String, value: value})
	}
	f("")
	f("CN=robot-7,OU=b+OU=a,C=DE", attribute{country, cbasn1.PrintableString, "DE", false}, attribute{unit, cbasn1.UTF8String, "b", false},
		attribute{unit, cbasn1.UTF8String, "a", true}, attribute{commonName, cbasn1.UTF8String, "robot-7", false})
	// The examples of RFC 4514, section 4, except escapes, of which weir has only one kind.
	f(`CN=James \22Jim\22 Smith\2C III,OU=Sales+CN=J.  Smith`, attribute{unit, cbasn1.UTF8String, "Sales", false},
		attribute{commonName, cbasn1.UTF8String, "J.  Smith", true}, attribute{commonName, cbasn1.UTF8String, `James "Jim" Smith, III`, false})
	cn(`Before\0DAfter`, "Before\rAfter")
	cn(`Lu\C4\8Di\C4\87`, "Lučić")
	f("1.2.3.4=#04024869", attribute{odd, cbasn1.OCTET_STRING, "Hi", false})

	cn("", "")
	cn(`\20`, " ")
	cn(`\20 \20`, "   ")
	cn(`\20a b\20`, " a b ")
	cn(`\23a#`, "#a#")
	cn(`a=b`, "a=b")
	cn(`\5C\2C\2B\22\3C\3E\3B`, `\,+"<>;`)
	cn(`a\2CO=root`, "a,O=root")
	cn(`a\0D\0AX-Client-Cert-SHA256: 00`, "a\r\nX-Client-Cert-SHA256: 00")
	cn(`\00\09\7F\FF`, "\x00\t\x7f\xff")
	cn(`\5C41`, `\41`)
	// Letters of other string types, and input that is not a name.
	f("CN=caf\\C3\\A9", attribute{commonName, cbasn1.Tag(asn1.TagBMPString), "\x00c\x00a\x00f\x00\xe9", false})
	f("CN=#1e03006161", attribute{commonName, cbasn1.Tag(asn1.TagBMPString), "\x00aa", false})
	f("CN=#1e02d800", attribute{commonName, cbasn1.Tag(asn1.TagBMPString), "\xd8\x00", false})
	f("CN=a", attribute{commonName, cbasn1.T61String, "a", false})
	f("CN=#1401e9", attribute{commonName, cbasn1.T61String, "\xe9", false})
	f("CN=#020105", attribute{commonName, cbasn1.INTEGER, "\x05", false})
	f("emailAddress=a@b.example", attribute{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}, cbasn1.IA5String, "a@b.example", false})
	for _, bad := range []string{"", "\x30", "\x30\x02\x31\x00", "\x30\x04\x31\x02\x30\x00", "\x04\x00", "\x30\x02\x30\x00"} {
		if got := appendName([]byte("x"), []byte(bad)); string(got) != "x" {
			t.Errorf("%x is the name %q", bad, got)
		}
	}
}

// unescape decodes the output of appendEscaped, and fails if there is another way to write it.
func unescape(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			b.WriteByte(text[i])
			continue
		}
		c, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
		if err != nil || strings.ToUpper(text[i+1:i+3]) != text[i+1:i+3] {
			t.Fatalf("%q has an escape that is none: %v", text, err)
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String()
}

func checkField(t *testing.T, text string) {
	t.Helper()
	for _, c := range []byte(text) {
		if c < ' ' || c >= 0x7f {
			t.Fatalf("%q cannot stand in a field", text)
		}
	}
	if strings.TrimSpace(text) != text {
		t.Fatalf("%q loses a space as a field", text)
	}
}

// A simple reader can decode any name that a certificate contains, part by part.
func FuzzName(f *testing.F) {
	f.Add("a", "b", false)
	f.Add("a,CN=root", "\r\nX: y", true)
	f.Add(" ", "#", true)
	f.Add(`\2C`, "+", true)
	f.Add("\xff\x00", `";`, false)
	f.Fuzz(func(t *testing.T, one, two string, beside bool) {
		der := nameOf(attribute{commonName, cbasn1.UTF8String, one, false}, attribute{unit, cbasn1.UTF8String, two, beside})
		text := string(appendName(nil, der))
		checkField(t, text)
		want, separator := []string{"OU=" + two, "CN=" + one}, ","
		if beside {
			separator = "+"
			slices.Reverse(want)
		}
		got := strings.Split(text, separator)
		for i := range got {
			got[i] = unescape(t, got[i])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q is read as %q, not %q", text, got, want)
		}
	})
}

// FuzzNameDER searches for names whose fields checkField refuses.
func FuzzNameDER(f *testing.F) {
	f.Add(nameOf(attribute{commonName, cbasn1.UTF8String, "a", false}, attribute{odd, cbasn1.SET, "", true}))
	f.Add([]byte("\x30\x02\x31\x00"))
	f.Fuzz(func(t *testing.T, der []byte) {
		checkField(t, string(appendName(nil, der)))
		checkField(t, string(appendSAN(nil, withSAN(der))))
	})
}

// withSAN returns a certificate with names as its alternative names.
func withSAN(names []byte) *x509.Certificate {
	return &x509.Certificate{Extensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 15}}, {Id: oidSAN, Value: names}}}
}

// generalNames returns alternative names in DER; each begins with the number of its tag.
func generalNames(names ...string) []byte {
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		for _, n := range names {
			b.AddASN1(cbasn1.Tag(n[0]-'0').ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(n[1:])) })
		}
	})
	return b.BytesOrPanic()
}

func TestAlternativeNames(t *testing.T) {
	f := func(want string, names ...string) {
		t.Helper()
		if got := string(appendSAN([]byte("before "), withSAN(generalNames(names...)))); got != "before "+want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	f("")
	f("DNS:a.example, URI:spiffe://b/c?d=e;f, email:g@h.example, IP:192.0.2.1, IP:2001:db8::1, DNS:*.i",
		"2a.example", "6spiffe://b/c?d=e;f", "1g@h.example", "7\xc0\x00\x02\x01", "7"+string(netip.MustParseAddr("2001:db8::1").AsSlice()), "2*.i")
	f(`DNS:a\2C\20URI:spiffe://root`, "2a, URI:spiffe://root")
	f(`URI:\22\5C\20\0D\0A\C3\A9`, "6\"\\ \r\n\u00e9")
	f("DNS:", "2")
	f("DNS:a", "0other", "8registered", "7\x01\x02", "2a", "4directory")
	if got := appendSAN(nil, &x509.Certificate{}); len(got) > 0 {
		t.Errorf("%q from nothing", got)
	}
	if got := appendSAN(nil, withSAN([]byte("\x30\x05\x82\x01a\x82\x09"))); len(got) > 0 {
		t.Errorf("%q from what is cut", got)
	}
}

func FuzzAlternativeNames(f *testing.F) {
	f.Add("a", "b")
	f.Add("a, DNS:root", `"`)
	f.Add(" \\", "\r\n")
	f.Fuzz(func(t *testing.T, one, two string) {
		text := string(appendSAN(nil, withSAN(generalNames("2"+one, "6"+two))))
		checkField(t, text)
		got := strings.Split(text, ",")
		for i := range got {
			got[i] = unescape(t, strings.TrimPrefix(got[i], " "))
		}
		if want := []string{"DNS:" + one, "URI:" + two}; !slices.Equal(got, want) {
			t.Errorf("%q is read as %q, not %q", text, got, want)
		}
	})
}

// Go's own package gives the same result for a name, if the name is unambiguous.
func TestNamesAsGoHasThem(t *testing.T) {
	name := pkix.Name{Country: []string{"DE"}, Organization: []string{"Weir"}, OrganizationalUnit: []string{"a", "b"}, CommonName: "robot 7",
		StreetAddress: []string{"Am Wehr 1"}, Locality: []string{"B"}, Province: []string{"BY"}, PostalCode: []string{"1"}}
	der, err := asn1.Marshal(name.ToRDNSequence())
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(name.String(), "POSTALCODE", "postalCode", 1)
	if got := string(appendName(nil, der)); got != want {
		t.Errorf("%q, not %q", got, want)
	}
}
