package policy

import (
	"crypto/tls"
	"errors"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// offering describes a ClientHello. Unset fields are left out.
type offering struct {
	legacy     uint16   // version of hello
	versions   []uint16 // of the extension
	suites     []uint16
	extensions []uint16 // in this order
	signatures []uint16
	protocols  []string
}

// parse lets crypto/tls parse the ClientHello as if a client had sent it.
func (o offering) parse(t testing.TB) *tls.ClientHelloInfo {
	t.Helper()
	return parseHello(t, o.raw())
}

var errSeen = errors.New("that is all")

func parseHello(t testing.TB, raw []byte) (info *tls.ClientHelloInfo) {
	t.Helper()
	err := tls.Server(&onlyReads{data: raw}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		info = h
		return nil, errSeen
	}}).Handshake()
	if !errors.Is(err, errSeen) {
		t.Fatalf("crypto/tls does not take the hello: %v", err)
	}
	return info
}

// onlyReads is a connection that delivers data and then ends.
type onlyReads struct {
	net.Conn
	data []byte
}

func (c *onlyReads) Read(p []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, net.ErrClosed
	}
	n := copy(p, c.data)
	c.data = c.data[n:]
	return n, nil
}
func (c *onlyReads) Write(p []byte) (int, error)      { return len(p), nil }
func (c *onlyReads) SetWriteDeadline(time.Time) error { return nil }

// raw returns the record with the ClientHello.
func (o offering) raw() []byte {
	var b cryptobyte.Builder
	b.AddUint8(22)
	b.AddUint16(min(o.legacy, tls.VersionTLS10))
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint8(1)
		b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
			b.AddUint16(o.legacy)
			b.AddBytes(make([]byte, 32))
			b.AddUint8(0)
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { addAll(b, o.suites) })
			b.AddBytes([]byte{1, 0})
			if len(o.extensions) > 0 {
				b.AddUint16LengthPrefixed(o.addExtensions)
			}
		})
	})
	return b.BytesOrPanic()
}

func addAll(b *cryptobyte.Builder, values []uint16) {
	for _, v := range values {
		b.AddUint16(v)
	}
}

func (o offering) addExtensions(b *cryptobyte.Builder) {
	for _, e := range o.extensions {
		b.AddUint16(e)
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { o.addExtension(b, e) })
	}
}

func (o offering) addExtension(b *cryptobyte.Builder, e uint16) {
	switch e {
	case 0x0000: // server_name
		b.AddBytes([]byte("\x00\x0e\x00\x00\x0ba.example.o"))
	case 0x0005: // status_request
		b.AddBytes([]byte{1, 0, 0, 0, 0})
	case 0x000a: // supported_groups
		b.AddBytes([]byte{0, 6, 0x2a, 0x2a, 0, 29, 0, 23})
	case 0x000b: // ec_point_formats
		b.AddBytes([]byte{1, 0})
	case 0x000d:
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { addAll(b, o.signatures) })
	case 0x0010:
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, p := range o.protocols {
				b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(p)) })
			}
		})
	case 0x002b:
		b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { addAll(b, o.versions) })
	case 0x002d: // psk_key_exchange_modes
		b.AddBytes([]byte{1, 1})
	case 0x0033: // key_share, empty
		b.AddBytes([]byte{0, 0})
	case 0xfe0d: // encrypted_client_hello that no key decrypts
		b.AddBytes([]byte{0, 0, 1, 0, 1, 7})
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(make([]byte, 32)) })
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(make([]byte, 64)) })
	case 0xff01: // renegotiation_info
		b.AddUint8(0)
	}
}

// hexes parses a list in the form of JA4_r and JA4_ro.
func hexes(t testing.TB, list string) (values []uint16) {
	t.Helper()
	for _, h := range strings.Split(list, ",") {
		var v uint16
		for _, c := range h {
			v = v<<4 | uint16(strings.IndexRune("0123456789abcdef", c))
		}
		values = append(values, v)
	}
	return values
}

// The suites and signatures that Chrome has offered for years, in its order.
const (
	chromeSuites     = "1301,1302,1303,c02b,c02f,c02c,c030,cca9,cca8,c013,c014,009c,009d,002f,0035"
	chromeSignatures = "0403,0804,0401,0503,0805,0501,0806,0601"
)

// These fingerprints were published together with their input. The first is FoxIO's
// example in the definition. The second is from a service that shows browsers their
// fingerprint. The third is a test of FoxIO's own implementation.
func TestJA4OfPublishedExamples(t *testing.T) {
	f := func(suites, extensions, signatures, want string) {
		t.Helper()
		o := offering{legacy: tls.VersionTLS12, versions: []uint16{0xdada, tls.VersionTLS13, tls.VersionTLS12}, protocols: []string{"h2", "http/1.1"},
			suites: hexes(t, suites), extensions: hexes(t, extensions), signatures: hexes(t, signatures)}
		if got := JA4(o.parse(t)); got != want {
			t.Errorf("JA4 is %s, want %s", got, want)
		}
		// GREASE changes nothing, at any position.
		o.suites = append([]uint16{0x3a3a}, o.suites...)
		o.extensions = append(append([]uint16{0x6a6a}, o.extensions...), 0xfafa)
		o.signatures = append([]uint16{0x0a0a}, o.signatures...)
		if got := JA4(o.parse(t)); got != want {
			t.Errorf("with GREASE, JA4 is %s, want %s", got, want)
		}
		slices.Reverse(o.suites)
		slices.Reverse(o.extensions)
		if got := JA4(o.parse(t)); got != want {
			t.Errorf("in another order, JA4 is %s, want %s", got, want)
		}
	}
	f(chromeSuites, "001b,0000,0033,0010,4469,0017,002d,000d,0005,0023,0012,002b,ff01,000b,000a,0015", chromeSignatures, "t13d1516h2_8daaf6152771_e5627efa2ab1")
	f(chromeSuites, "002d,0033,0010,fe0d,0017,44cd,0000,000b,000a,002b,ff01,0023,0012,0005,000d,001b", chromeSignatures, "t13d1516h2_8daaf6152771_d8a2da3f94cd")
	f(chromeSuites, "fe0d,0010,0017,0033,44cd,ff01,000a,000d,0023,002b,000b,ca34,002d,0000,0005,001b,0012", "0904,0905,0906,"+chromeSignatures,
		"t13d1517h2_8daaf6152771_cb7bf5808d99")
	// Without signatures there is no underscore. This is also FoxIO's example.
	if got := ja4Hash(slices.Sorted(slices.Values(hexes(t, "001b,0033,4469,0017,002d,000d,0005,0023,0012,002b,ff01,000b,000a,0015"))), nil); got != "6d807ffa2a79" {
		t.Errorf("the hash without signatures is %s", got)
	}
}

func TestJA4Head(t *testing.T) {
	f := func(what string, o offering, want string) {
		t.Helper()
		got, _, _ := strings.Cut(JA4(o.parse(t)), "_")
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	old := offering{suites: []uint16{0x0005, 0x000a, 0x00ff}}
	for version, want := range map[uint16]string{0x0300: "ts3i030000", 0x0301: "t10i030000", 0x0302: "t11i030000", 0x0303: "t12i030000"} {
		old.legacy = version
		f("without extensions", old, want)
	}
	if got := JA4(old.parse(t)); !strings.HasSuffix(got, "_000000000000") {
		t.Errorf("without extensions the last hash is of something: %s", got)
	}
	f("the extension goes before the field", offering{legacy: tls.VersionTLS12, versions: []uint16{0x0302, 0x0301}, extensions: []uint16{0x2b}}, "t11i000100")
	f("versions that nobody knows", offering{legacy: tls.VersionTLS12, versions: []uint16{0x0305}, extensions: []uint16{0x2b}}, "t00i000100")
	f("GREASE alone", offering{legacy: tls.VersionTLS12, versions: []uint16{0x1a1a}, extensions: []uint16{0x2b}}, "t00i000100")
	many := offering{legacy: tls.VersionTLS12, extensions: []uint16{0}}
	for i := range 150 {
		many.suites = append(many.suites, uint16(i))
		many.extensions = append(many.extensions, 0x7000+uint16(i))
	}
	f("too many to count", many, "t12d999900")
	for protocol, want := range map[string]string{"h2": "h2", "http/1.1": "h1", "x": "xx", "\xab": "ab", "\xab\xcd": "ad", "0\xab": "3b",
		"01\xab\xcd": "3d", "0\xab\xcd1": "01", "\x0a\x0a": "0a", "acme-tls/1": "a1", "-": "2d", "é": "c9"} {
		f("ALPN "+protocol, offering{legacy: tls.VersionTLS12, extensions: []uint16{0x10}, protocols: []string{protocol, "h2"}}, "t12i0001"+want)
	}
}

var ja4Form = regexp.MustCompile(`^t(1[0-3]|s2|s3|00)[di][0-9]{4}[0-9A-Za-z]{2}_[0-9a-f]{12}_[0-9a-f]{12}$`)

// For every input, the fingerprint has the right form, and the logged lists stay within
// their limits.
func FuzzJA4(f *testing.F) {
	f.Add([]byte{3, 4, 3, 3}, []byte{0x13, 1}, []byte{0, 0, 0, 16}, []byte{8, 4}, "h2")
	f.Add([]byte{}, []byte{}, []byte{}, []byte{}, "")
	f.Add([]byte{0x0a, 0x0a}, []byte{0x0a, 0x0a}, []byte{0xfa, 0xfa}, []byte{0x1a, 0x1a}, "\xff")
	pairs := func(b []byte) (values []uint16) {
		for ; len(b) > 1; b = b[2:] {
			values = append(values, uint16(b[0])<<8|uint16(b[1]))
		}
		return values
	}
	f.Fuzz(func(t *testing.T, versions, suites, extensions, signatures []byte, protocol string) {
		h := &tls.ClientHelloInfo{SupportedVersions: pairs(versions), CipherSuites: pairs(suites), Extensions: pairs(extensions),
			SupportedProtos: []string{protocol, "h2"}}
		for _, s := range pairs(signatures) {
			h.SignatureSchemes = append(h.SignatureSchemes, tls.SignatureScheme(s))
		}
		before := slices.Clone(h.CipherSuites)
		if got := JA4(h); !ja4Form.MatchString(got) {
			t.Errorf("JA4 is %q", got)
		}
		o := OfferOf(h)
		if len(o.Versions) > maxVersions+1 || len(o.Suites) > maxSuites+1 || len(o.Protocols) > maxProtocols+1 || len(o.Protocols[0]) > maxProtocolLength {
			t.Errorf("an offer of %d versions, %d suites, %d protocols", len(o.Versions), len(o.Suites), len(o.Protocols))
		}
		c := NewClients()
		c.Note(Handshake{Hello: h, Err: errSeen})
		if len(c.Seen().Clients) != 1 || !slices.Equal(before, h.CipherSuites) {
			t.Error("the hello was changed, or not remembered")
		}
	})
}

// JA4 and OfferOf handle every input that crypto/tls accepts as a ClientHello.
func FuzzJA4OfHello(f *testing.F) {
	f.Add(offering{legacy: tls.VersionTLS12, suites: []uint16{0xc02f}, extensions: []uint16{0, 0x0d, 0x10}, signatures: []uint16{0x0201}, protocols: []string{"h2"}}.raw())
	f.Add(offering{legacy: 0x0300, suites: []uint16{5}}.raw())
	f.Fuzz(func(t *testing.T, raw []byte) {
		tls.Server(&onlyReads{data: raw}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			if got := JA4(h); !ja4Form.MatchString(got) {
				t.Errorf("JA4 is %q", got)
			}
			OfferOf(h)
			return nil, errSeen
		}}).Handshake()
	})
}

func TestOffer(t *testing.T) {
	o := OfferOf(offering{legacy: tls.VersionTLS12, suites: []uint16{0x2a2a, 0xc02f, 0x0039, 0x00ff, 0x1234}, extensions: []uint16{0x0d, 0x10},
		signatures: []uint16{0x0201, 0x0203}, protocols: []string{"h2", strings.Repeat("x", 200)}}.parse(t))
	f := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s are %q, want %q", what, got, want)
		}
	}
	f("versions", o.Versions, "TLS 1.2", "TLS 1.1", "TLS 1.0")
	f("suites", o.Suites, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_DHE_RSA_WITH_AES_256_CBC_SHA", "TLS_EMPTY_RENEGOTIATION_INFO_SCSV", "0x1234")
	f("protocols", o.Protocols, "h2", strings.Repeat("x", maxProtocolLength))
	f("versions of an SSL 3 client", OfferOf(offering{legacy: 0x0300}.parse(t)).Versions, "SSLv3")
	many := OfferOf(&tls.ClientHelloInfo{CipherSuites: make([]uint16, 1000)})
	if n := len(many.Suites); n != maxSuites+1 || many.Suites[maxSuites] != "920 more" {
		t.Errorf("%d suites are listed, the last as %s", n, many.Suites[n-1])
	}
	sha1 := func(legacy uint16, want bool, signatures ...uint16) {
		t.Helper()
		o := offering{legacy: legacy, signatures: signatures}
		if len(signatures) > 0 {
			o.extensions = []uint16{0x0d}
		}
		if got := OfferOf(o.parse(t)).OnlySHA1; got != want {
			t.Errorf("signatures %04x: only SHA-1 is %v, want %v", signatures, got, want)
		}
	}
	sha1(tls.VersionTLS12, true, 0x0201)
	sha1(tls.VersionTLS12, true, 0x0201, 0x0203, 0x0202)
	sha1(tls.VersionTLS12, true) // RFC 5246, section 7.4.1.4.1
	sha1(tls.VersionTLS12, false, 0x0201, 0x0401)
	sha1(tls.VersionTLS12, false, 0x0101) // MD5
	sha1(tls.VersionTLS11, false, 0x0201) // TLS 1.1 has no choice of signatures
}
