package header

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"
)

// nlbProbe is the header of a health check by an AWS network load balancer: LOCAL over
// IPv4, with TLVs at the place of the addresses.
var nlbProbe = unhex("0d0a0d0a000d0a515549540a" + "20110054" + "030004bce5951f" + "04004a" + strings.Repeat("00", 74))

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// v2 builds a header of a command byte, a family byte and a payload.
func v2(command, family byte, payload ...[]byte) []byte {
	all := bytes.Join(payload, nil)
	b := append([]byte(signatureV2), command, family, byte(len(all)>>8), byte(len(all)))
	return append(b, all...)
}

func ext(kind byte, value string) []byte {
	return append([]byte{kind, byte(len(value) >> 8), byte(len(value))}, value...)
}

// sealed fills in the CRC32C whose TLV is the last seven bytes of b.
func sealed(b []byte) []byte {
	b = bytes.Clone(b)
	binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b, castagnoli))
	return b
}

var (
	block4    = unhex("c0000201 cb007107 d431 01bb") // 192.0.2.1:54321 to 203.0.113.7:443
	block6    = unhex("20010db8000000000000000000000001 20010db8000000000000000000000002 d431 01bb")
	blockMap  = unhex("00000000000000000000ffffc0000201 20010db8000000000000000000000002 d431 01bb")
	blockUnix = make([]byte, 216)
	emptyCRC  = ext(3, "\x00\x00\x00\x00")

	source4, destination4 = netip.MustParseAddrPort("192.0.2.1:54321"), netip.MustParseAddrPort("203.0.113.7:443")
	source6, destination6 = netip.MustParseAddrPort("[2001:db8::1]:54321"), netip.MustParseAddrPort("[2001:db8::2]:443")
)

func proxied4(payload ...[]byte) []byte {
	return v2(0x21, 0x11, append([][]byte{block4}, payload...)...)
}

// accepted are headers and their content.
var accepted = []struct {
	name  string
	bytes []byte
	want  Header
}{
	{"v1 TCP4", []byte("PROXY TCP4 192.0.2.1 203.0.113.7 54321 443\r\n"), Header{Version: 1, Source: source4, Destination: destination4}},
	{"v1 TCP6", []byte("PROXY TCP6 2001:db8::1 2001:DB8:0:0:0:0:0:2 54321 443\r\n"), Header{Version: 1, Source: source6, Destination: destination6}},
	{"v1 TCP6 longest", []byte("PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"), Header{Version: 1,
		Source:      netip.MustParseAddrPort("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"),
		Destination: netip.MustParseAddrPort("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535")}},
	{"v1 TCP6 mapped", []byte("PROXY TCP6 ::ffff:192.0.2.1 ::ffff:203.0.113.7 54321 443\r\n"), Header{Version: 1, Source: source4, Destination: destination4}},
	{"v1 ports 0 and 65535", []byte("PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n"), Header{Version: 1,
		Source: netip.MustParseAddrPort("0.0.0.0:0"), Destination: netip.MustParseAddrPort("255.255.255.255:65535")}},
	{"v1 UNKNOWN", []byte("PROXY UNKNOWN\r\n"), Header{Version: 1, Local: true}},
	{"v1 UNKNOWN with more", []byte("PROXY UNKNOWN ffff::1 whatever\x00\xff  1 1\r\n"), Header{Version: 1, Local: true}},
	{"v1 UNKNOWN longest", []byte("PROXY UNKNOWN " + strings.Repeat("x", 107-14-2) + "\r\n"), Header{Version: 1, Local: true}},
	{"v2 TCP4", proxied4(), Header{Version: 2, Source: source4, Destination: destination4}},
	{"v2 TCP6", v2(0x21, 0x21, block6), Header{Version: 2, Source: source6, Destination: destination6}},
	{"v2 TCP6 mapped", v2(0x21, 0x21, blockMap), Header{Version: 2, Source: source4, Destination: destination6}},
	{"v2 Unix", v2(0x21, 0x31, blockUnix, ext(2, "a.example")), Header{Version: 2, Local: true, TLVs: TLVs{Authority: "a.example"}}},
	{"v2 UNSPEC", v2(0x21, 0x00), Header{Version: 2, Local: true}},
	{"v2 UNSPEC with bytes", v2(0x21, 0x00, []byte("any")), Header{Version: 2, Local: true}},
	{"v2 LOCAL", v2(0x20, 0x00), Header{Version: 2, Local: true}},
	{"v2 LOCAL TCP4 without block", v2(0x20, 0x11), Header{Version: 2, Local: true}},
	{"v2 LOCAL UDP6", v2(0x20, 0x22, []byte("x")), Header{Version: 2, Local: true}},
	{"v2 LOCAL with block, never used", v2(0x20, 0x11, block4, ext(2, "a.example")), Header{Version: 2, Local: true}},
	{"v2 LOCAL with block and checksum", sealed(v2(0x20, 0x11, block4, emptyCRC)), Header{Version: 2, Local: true}},
	{"v2 LOCAL UNSPEC with checksum", sealed(v2(0x20, 0x00, emptyCRC)), Header{Version: 2, Local: true}},
	{"v2 LOCAL with garbage", v2(0x20, 0x11, []byte("\x03\x00\x04abc")), Header{Version: 2, Local: true}},
	{"probe of an AWS load balancer", nlbProbe, Header{Version: 2, Local: true}},
	{"v2 checksum", sealed(proxied4(ext(2, "a.example"), emptyCRC)), Header{Version: 2, Source: source4, Destination: destination4, TLVs: TLVs{Authority: "a.example"}}},
	{"v2 padding twice, unknown TLVs twice", proxied4(ext(4, "x"), ext(4, ""), ext(0xf1, "a"), ext(0xf1, "b")), Header{Version: 2, Source: source4, Destination: destination4}},
	{"v2 longest", proxied4(ext(4, strings.Repeat("x", MaxSize-16-12-3))), Header{Version: 2, Source: source4, Destination: destination4}},
	{"v2 all TLVs", proxied4(
		ext(1, "h2"), ext(2, "a.example"), ext(5, "\x00id"), ext(0x30, "ns"),
		ext(0x20, "\x07\x00\x00\x00\x00"+string(ext(0x21, "TLSv1.3"))+string(ext(0x22, "J\xf6rg"))+string(ext(0x23, "AES"))+string(ext(0x24, "SHA256"))+string(ext(0x25, "RSA2048"))+string(ext(0x26, "x25519"))+string(ext(0x27, "ecdsa_secp256r1_sha256"))+string(ext(0x28, "\x30\x03\x02\x01\x00"))+string(ext(0x29, "unknown"))),
		ext(0xea, "\x01vpce-08d2bf15fac5001c9"), ext(0xea, "\x02other"), ext(0xee, "\x01\x01\x02\x00\x00"), ext(0xe0, "\x00\x00\x00\x00\x00\x00\x01\x02")),
		Header{Version: 2, Source: source4, Destination: destination4, TLVs: TLVs{
			ALPN: "h2", Authority: "a.example", UniqueID: []byte("\x00id"), Netns: "ns",
			SSL: &SSL{TLS: true, ClientCert: true, Verified: true, Version: "TLSv1.3", CommonName: "J\xf6rg", Cipher: "AES", SigAlg: "SHA256", KeyAlg: "RSA2048",
				Group: "x25519", SigScheme: "ecdsa_secp256r1_sha256", Certificate: []byte("\x30\x03\x02\x01\x00")},
			AWSVPCEndpoint: "vpce-08d2bf15fac5001c9", AzureLinkID: 0x0201, GCPPSC: 0x0102, HasGCP: true}}},
	{"v2 SSL without certificate is not verified", proxied4(ext(0x20, "\x01\x00\x00\x00\x00"+string(ext(0x21, "TLSv1.2")))),
		Header{Version: 2, Source: source4, Destination: destination4, TLVs: TLVs{SSL: &SSL{TLS: true, Version: "TLSv1.2"}}}},
	{"v2 SSL resumed with certificate", proxied4(ext(0x20, "\x05\x00\x00\x00\x00"+string(ext(0x21, "TLSv1.2")))),
		Header{Version: 2, Source: source4, Destination: destination4, TLVs: TLVs{SSL: &SSL{TLS: true, Verified: true, Version: "TLSv1.2"}}}},
	{"v2 SSL with an empty certificate", proxied4(ext(0x20, "\x07\x00\x00\x00\x00"+string(ext(0x28, "")))),
		Header{Version: 2, Source: source4, Destination: destination4, TLVs: TLVs{SSL: &SSL{TLS: true, ClientCert: true, Verified: true}}}},
	{"v2 SSL with a bad certificate", proxied4(ext(0x20, "\x07\x00\x00\x00\x13")),
		Header{Version: 2, Source: source4, Destination: destination4, TLVs: TLVs{SSL: &SSL{TLS: true, ClientCert: true}}}},
	{"v2 other people's vendor TLVs", proxied4(ext(0xea, ""), ext(0xea, "\x01a b"), ext(0xee, "\x01"), ext(0xe0, "x")), Header{Version: 2, Source: source4, Destination: destination4}},
}

var refused = []struct {
	name  string
	bytes []byte
	want  error
}{
	{"HTTP", []byte("GET / HTTP/1.1\r\n"), ErrAbsent},
	{"POST", []byte("POST / HTTP/1.1\r\n"), ErrAbsent},
	{"PROXYING", []byte("PROXYING / HTTP/1.1\r\n"), ErrAbsent},
	{"TLS", []byte("\x16\x03\x01\x00\xa5"), ErrAbsent},
	{"empty lines", []byte("\r\n\r\nGET"), ErrAbsent},
	{"nearly v2", []byte("\r\n\r\n\x00\r\nQUIT\r"), ErrAbsent},

	{"v1 UDP4", []byte("PROXY UDP4 192.0.2.1 203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 lower case", []byte("PROXY tcp4 192.0.2.1 203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 TCP4 alone", []byte("PROXY TCP4\r\n"), ErrMalformed},
	{"v1 no protocol", []byte("PROXY \r\n"), ErrMalformed},
	{"v1 UNKNOWNX", []byte("PROXY UNKNOWNX\r\n"), ErrMalformed},
	{"v1 two spaces", []byte("PROXY TCP4  192.0.2.1 203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 two spaces before protocol", []byte("PROXY  TCP4 192.0.2.1 203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 space at the end", []byte("PROXY TCP4 192.0.2.1 203.0.113.7 54321 443 \r\n"), ErrMalformed},
	{"v1 tab", []byte("PROXY TCP4 192.0.2.1\t203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 LF", []byte("PROXY TCP4 192.0.2.1 203.0.113.7 54321 443\n"), ErrMalformed},
	{"v1 UNKNOWN LF", []byte("PROXY UNKNOWN x\n"), ErrMalformed},
	{"v1 CR inside", []byte("PROXY UNKNOWN \rx\r\n"), ErrMalformed},
	{"v1 leading zero in port", []byte("PROXY TCP4 192.0.2.1 203.0.113.7 054321 443\r\n"), ErrMalformed},
	{"v1 leading zero in octet", []byte("PROXY TCP4 192.0.02.1 203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 port too large", []byte("PROXY TCP4 192.0.2.1 203.0.113.7 65536 443\r\n"), ErrMalformed},
	{"v1 signed port", []byte("PROXY TCP4 192.0.2.1 203.0.113.7 +1 443\r\n"), ErrMalformed},
	{"v1 no port", []byte("PROXY TCP4 192.0.2.1 203.0.113.7 54321\r\n"), ErrMalformed},
	{"v1 IPv6 as TCP4", []byte("PROXY TCP4 2001:db8::1 2001:db8::2 54321 443\r\n"), ErrMalformed},
	{"v1 IPv4 as TCP6", []byte("PROXY TCP6 192.0.2.1 203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 zone", []byte("PROXY TCP6 fe80::1%eth0 fe80::2 54321 443\r\n"), ErrMalformed},
	{"v1 NUL", []byte("PROXY TCP4 192.0.2.1\x00 203.0.113.7 54321 443\r\n"), ErrMalformed},
	{"v1 too long", []byte("PROXY UNKNOWN " + strings.Repeat("x", 107-14-1) + "\r\n"), ErrMalformed},
	{"v1 endless", bytes.Repeat([]byte("PROXY UNKNOWN "), 50), ErrMalformed},

	{"v2 version 1", v2(0x11, 0x11, block4), ErrMalformed},
	{"v2 version 3", v2(0x31, 0x11, block4), ErrMalformed},
	{"v2 command 2", v2(0x22, 0x11, block4), ErrMalformed},
	{"v2 family 4", v2(0x21, 0x41, block4), ErrMalformed},
	{"v2 transport 3", v2(0x21, 0x13, block4), ErrMalformed},
	{"v2 transport 0", v2(0x21, 0x10, block4), ErrMalformed},
	{"v2 LOCAL unknown family", v2(0x20, 0x51), ErrMalformed},
	{"v2 UDP4", v2(0x21, 0x12, block4), ErrMalformed},
	{"v2 UDP6", v2(0x21, 0x22, block6), ErrMalformed},
	{"v2 Unix datagram", v2(0x21, 0x32, blockUnix), ErrMalformed},
	{"v2 TCP4 too short", v2(0x21, 0x11, block4[:11]), ErrMalformed},
	{"v2 TCP6 too short", v2(0x21, 0x21, block6[:35]), ErrMalformed},
	{"v2 Unix too short", v2(0x21, 0x31, blockUnix[:215]), ErrMalformed},
	{"v2 too long", proxied4(ext(4, strings.Repeat("x", MaxSize-16-12-3+1))), ErrMalformed},
	{"v2 LOCAL too long", v2(0x20, 0x00, make([]byte, MaxSize-16+1)), ErrMalformed},
	{"v2 half a TLV", proxied4([]byte{2, 0}), ErrMalformed},
	{"v2 TLV beyond the end", proxied4([]byte{2, 0, 5, 'a'}), ErrMalformed},
	{"v2 authority twice", proxied4(ext(2, "a"), ext(2, "b")), ErrMalformed},
	{"v2 ALPN twice", proxied4(ext(1, "a"), ext(1, "a")), ErrMalformed},
	{"v2 SSL twice", proxied4(ext(0x20, "\x00\x00\x00\x00\x00"), ext(0x20, "\x00\x00\x00\x00\x00")), ErrMalformed},
	{"v2 VPC endpoint twice", proxied4(ext(0xea, "\x01a"), ext(0xea, "\x01b")), ErrMalformed},
	{"v2 checksum twice", sealed(proxied4(emptyCRC, emptyCRC)), ErrMalformed},
	{"v2 checksum of 3 bytes", proxied4(ext(3, "abc")), ErrMalformed},
	{"v2 unique id too long", proxied4(ext(5, strings.Repeat("x", 129))), ErrMalformed},
	{"v2 SSL too short", proxied4(ext(0x20, "\x01\x00\x00\x00")), ErrMalformed},
	{"v2 SSL with half a TLV", proxied4(ext(0x20, "\x01\x00\x00\x00\x00\x21\x00")), ErrMalformed},
	{"v2 SSL with two certificates", proxied4(ext(0x20, "\x07\x00\x00\x00\x00"+string(ext(0x28, "a"))+string(ext(0x28, "a")))), ErrMalformed},
	{"v2 SSL with two versions", proxied4(ext(0x20, "\x01\x00\x00\x00\x00"+string(ext(0x21, "a"))+string(ext(0x21, "b")))), ErrMalformed},
	{"v2 checksum 0", proxied4(emptyCRC), ErrChecksum},
	{"v2 changed after the checksum", flip(sealed(proxied4(emptyCRC)), 17), ErrChecksum},
	{"v2 LOCAL checksum 0", v2(0x20, 0x00, emptyCRC), ErrChecksum},
	{"v2 LOCAL changed after the checksum", flip(sealed(v2(0x20, 0x11, block4, emptyCRC)), 20), ErrChecksum},
	{"changed probe of an AWS load balancer", flip(nlbProbe, len(nlbProbe)-1), ErrChecksum},
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func TestAccepted(t *testing.T) {
	for _, c := range accepted {
		t.Run(c.name, func(t *testing.T) {
			checkFraming(t, c.bytes)
			got, err := Parse(c.bytes)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// checkFraming checks that Scan asks for more bytes after every proper prefix of the
// header b, and ignores bytes after it.
func checkFraming(t *testing.T, b []byte) {
	t.Helper()
	for i := range b {
		if n, err := Scan(b[:i]); n != 0 || err != nil {
			t.Fatalf("of %d bytes of %d: %d, %v", i, len(b), n, err)
		}
		if i > 0 && Began(b[:i]) == 0 {
			t.Fatalf("of %d bytes no version is known", i)
		}
	}
	for _, rest := range []string{"", "\r\n", "GET / HTTP/1.1\r\n\r\n"} {
		if n, err := Scan(append(bytes.Clone(b), rest...)); n != len(b) || err != nil {
			t.Fatalf("with %q after it: %d, %v; want %d", rest, n, err, len(b))
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.bytes)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if h, err := Parse(c.bytes[:len(c.bytes)-1]); err == nil {
				t.Errorf("without its last byte it is taken for %+v", h)
			}
		})
	}
}

// Scan reports a header whose first bytes break the specification before the rest has arrived.
func TestScanIsEarly(t *testing.T) {
	f := func(b string, want error) {
		t.Helper()
		if n, err := Scan([]byte(b)); n != 0 || !errors.Is(err, want) {
			t.Errorf("%q: %d, %v; want %v", b, n, err, want)
		}
	}
	f("G", ErrAbsent)
	f("PO", ErrAbsent)
	f("\r\nG", ErrAbsent)
	f("PROXY U", nil)
	f("PROXY UX", ErrMalformed)
	f("PROXY TCP5", ErrMalformed)
	f("PROXY TCP4 \n", ErrMalformed)
	f(signatureV2, nil)
	f(signatureV2+"\x11", ErrMalformed)
	f(signatureV2+"\x21\x13", ErrMalformed)
	f(signatureV2+"\x21\x11\xff", nil)
	f(signatureV2+"\x21\x11\xff\xff", ErrMalformed)
	f(signatureV2+"\x21\x11\x00\x01", ErrMalformed)
}

func TestAppend(t *testing.T) {
	f := func(version int, h Header, o Options, want []byte) {
		t.Helper()
		got := Append([]byte("before"), version, &h, o)
		if want = append([]byte("before"), want...); !bytes.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	plain := Options{}
	f(1, Header{Source: source4, Destination: destination4}, plain, []byte("PROXY TCP4 192.0.2.1 203.0.113.7 54321 443\r\n"))
	f(1, Header{Source: source6, Destination: destination6}, plain, []byte("PROXY TCP6 2001:db8::1 2001:db8::2 54321 443\r\n"))
	f(1, Header{Source: mapped(source4), Destination: mapped(destination4)}, Options{Checksum: true}, []byte("PROXY TCP4 192.0.2.1 203.0.113.7 54321 443\r\n"))
	f(1, Header{Source: source4, Destination: destination6}, plain, []byte("PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 54321 443\r\n"))
	f(1, Header{Source: source6, Destination: destination4}, plain, []byte("PROXY TCP6 2001:db8::1 ::ffff:203.0.113.7 54321 443\r\n"))
	f(1, Header{Source: source6, Destination: mapped(destination4)}, plain, []byte("PROXY TCP6 2001:db8::1 ::ffff:203.0.113.7 54321 443\r\n"))
	f(1, Header{Source: netip.MustParseAddrPort("[fe80::1%eth0]:54321"), Destination: destination4}, plain, []byte("PROXY TCP6 fe80::1 ::ffff:203.0.113.7 54321 443\r\n"))
	f(1, Header{Source: source4}, plain, []byte("PROXY TCP4 192.0.2.1 0.0.0.0 54321 0\r\n"))
	f(1, Header{Source: source6}, plain, []byte("PROXY TCP6 2001:db8::1 :: 54321 0\r\n"))
	f(1, Header{Destination: destination4}, plain, []byte("PROXY UNKNOWN\r\n"))
	f(1, Header{Local: true, Source: source4, Destination: destination4}, plain, []byte("PROXY UNKNOWN\r\n"))
	f(1, Header{}, plain, []byte("PROXY UNKNOWN\r\n"))
	f(2, Header{Source: source4, Destination: destination4}, plain, proxied4())
	f(2, Header{Source: source6, Destination: destination6}, plain, v2(0x21, 0x21, block6))
	f(2, Header{Source: mapped(source4), Destination: mapped(destination4)}, plain, proxied4())
	f(2, Header{Source: source4, Destination: destination6}, plain, v2(0x21, 0x21, blockMap))
	f(2, Header{Source: source6, Destination: destination4}, plain, v2(0x21, 0x21, unhex("20010db8000000000000000000000001 00000000000000000000ffffcb007107 d431 01bb")))
	f(2, Header{Source: source6}, plain, v2(0x21, 0x21, unhex("20010db8000000000000000000000001 00000000000000000000000000000000 d431 0000")))
	f(2, Header{Destination: destination6}, plain, v2(0x20, 0))
	f(2, Header{Local: true, TLVs: TLVs{Authority: "a"}}, plain, v2(0x20, 0))
	f(2, Header{Local: true}, Options{Checksum: true}, sealed(v2(0x20, 0, emptyCRC)))
	f(2, Header{Source: source4, Destination: destination4, TLVs: TLVs{Authority: "a.example", ALPN: "http/1.1", Netns: "not sent on"}},
		Options{Checksum: true}, sealed(proxied4(ext(2, "a.example"), ext(1, "http/1.1"), emptyCRC)))
	// Append omits TLVs that do not fit.
	f(2, Header{Source: source4, Destination: destination4, TLVs: TLVs{Authority: strings.Repeat("a", MaxSize), ALPN: "h2", UniqueID: make([]byte, 129)}},
		plain, proxied4(ext(1, "h2")))
	f(2, Header{Source: source4, Destination: destination4, TLVs: TLVs{SSL: &SSL{TLS: true, ClientCert: true, Verified: true, CommonName: "a", Certificate: make([]byte, MaxSize)}}},
		plain, proxied4(ext(0x20, "\x07\x00\x00\x00\x00"+string(ext(0x22, "a")))))
}

func mapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
}

func TestRoundTrip(t *testing.T) {
	for _, c := range accepted {
		for version := 1; version <= 2; version++ {
			checkRoundTrip(t, c.want, version)
		}
	}
}

func checkRoundTrip(t *testing.T, h Header, version int) {
	t.Helper()
	for _, o := range []Options{{}, {Checksum: true}} {
		b := Append(nil, version, &h, o)
		checkFraming(t, b)
		got, err := Parse(b)
		if err != nil {
			t.Fatalf("%+v in version %d became %x: %v", h, version, b, err)
		}
		if want := carried(h, version); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v in version %d became %+v", want, version, got)
		}
	}
}

// carried returns the part of h that a header of this version, made by Append, can
// contain.
func carried(h Header, version int) Header {
	if h.Local {
		return Header{Version: version, Local: true}
	}
	w := Header{Version: version, Source: h.Source, Destination: h.Destination}
	if version == 2 {
		w.TLVs = TLVs{Authority: h.TLVs.Authority, ALPN: h.TLVs.ALPN, UniqueID: h.TLVs.UniqueID, SSL: h.TLVs.SSL}
	}
	return w
}

func FuzzScan(f *testing.F) {
	for _, c := range accepted {
		f.Add(c.bytes)
	}
	for _, c := range refused {
		f.Add(c.bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := Scan(b)
		if n < 0 || n > len(b) || n > MaxSize || n > 0 && err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if n == 0 && err == nil && len(b) >= MaxSize {
			t.Fatal("more than the longest header is asked for")
		}
		if n == 0 {
			return
		}
		h, err := Parse(b[:n])
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrChecksum) {
				t.Fatal(err)
			}
			return
		}
		agreesWithLibrary(t, b[:n], h)
		checkFraming(t, b[:n])
		checkRoundTrip(t, h, 1)
		if n <= MaxSize-7 { // room for a checksum
			h.TLVs.UniqueID = noEmpty(h.TLVs.UniqueID)
			checkRoundTrip(t, h, 2)
		}
	})
}

func noEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// agreesWithLibrary checks that go-proxyproto reads the same header from the same bytes.
// The exceptions are headers that it refuses although the specification lets a receiver
// choose.
func agreesWithLibrary(t *testing.T, b []byte, h Header) {
	t.Helper()
	r := bufio.NewReader(bytes.NewReader(append(bytes.Clone(b), "rest"...)))
	p, err := proxyproto.Read(r)
	if err != nil {
		if h.Version == 2 && h.Local && b[13] == familyUnspec {
			return
		}
		t.Fatalf("we take %x for %+v, go-proxyproto says %v", b, h, err)
	}
	if rest, _ := r.Peek(5); string(rest) != "rest" {
		t.Fatalf("go-proxyproto leaves %q", rest)
	}
	if int(p.Version) != h.Version {
		t.Fatalf("version %d, go-proxyproto %d", h.Version, p.Version)
	}
	if h.Local {
		return
	}
	source, ok := p.SourceAddr.(*net.TCPAddr)
	if !ok || unmap(source.AddrPort()) != h.Source {
		t.Fatalf("source %v, go-proxyproto %v", h.Source, p.SourceAddr)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, c := range accepted {
		if c.name == "v1 TCP4" || c.name == "v2 TCP4" || c.name == "v2 checksum" {
			b.Run(c.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if n, err := Scan(c.bytes); n == 0 || err != nil {
						b.Fatal(err)
					}
					if _, err := Parse(c.bytes); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
