package probe

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirproxy/weir/listener/header"
)

// writer returns the bytes of a PROXY header for a connection between two addresses.
type writer func(local, remote netip.AddrPort) []byte

func none(_, _ netip.AddrPort) []byte { return nil }

// honest returns a header that names the addresses of the connection itself, so that the
// logs of the endpoint name the host that probes it.
func honest(version int) writer {
	return func(local, remote netip.AddrPort) []byte {
		return header.Append(nil, version, &header.Header{Source: local, Destination: remote}, header.Options{})
	}
}

func local(version int) writer {
	return func(_, _ netip.AddrPort) []byte {
		return header.Append(nil, version, &header.Header{Local: true}, header.Options{})
	}
}

// spoofed names a client that no network has: an address for documentation (RFC 5737,
// RFC 3849).
func spoofed(version int) writer {
	return func(_, remote netip.AddrPort) []byte {
		source := netip.MustParseAddrPort("192.0.2.1:4711")
		if remote.Addr().Unmap().Is6() {
			source = netip.MustParseAddrPort("[2001:db8::1]:4711")
		}
		return header.Append(nil, version, &header.Header{Source: source, Destination: remote}, header.Options{})
	}
}

// withTLVs has a unique id, an authority, and a TLV of a type that the specification keeps
// for experiments, which every receiver must skip.
func withTLVs(name string) writer {
	return func(local, remote netip.AddrPort) []byte {
		h := header.Header{Source: local, Destination: remote}
		h.TLVs.UniqueID, h.TLVs.Authority = []byte("weir-probe"), name
		b := header.Append(nil, 2, &h, header.Options{})
		b = append(b, 0xf0, 0, 4, 'w', 'e', 'i', 'r')
		binary.BigEndian.PutUint16(b[14:], uint16(len(b)-16))
		return b
	}
}

// withChecksum has a CRC32C, which is right or wrong.
func withChecksum(right bool) writer {
	return func(local, remote netip.AddrPort) []byte {
		b := header.Append(nil, 2, &header.Header{Source: local, Destination: remote}, header.Options{Checksum: true})
		if !right {
			b[len(b)-1] ^= 0xff
		}
		return b
	}
}

// twice repeats a header, as a client does that adds its own to the one of its load
// balancer.
func (w writer) twice() writer {
	return func(local, remote netip.AddrPort) []byte {
		b := w(local, remote)
		return append(slices.Clip(b), b...)
	}
}

// cut returns the first part of a header.
func (w writer) cut() writer {
	return func(local, remote netip.AddrPort) []byte {
		b := w(local, remote)
		return b[:len(b)*2/3]
	}
}

// malformed are headers that begin like a header of a version and violate the
// specification.
var malformed = []struct {
	name    string
	version int
	header  writer
}{
	{"v1 with words in place of addresses", 1, func(_, _ netip.AddrPort) []byte { return []byte("PROXY TCP4 here there 1 2\r\n") }},
	{"v1 with a port above 65535", 1, func(_, _ netip.AddrPort) []byte { return []byte("PROXY TCP4 192.0.2.1 192.0.2.2 70000 443\r\n") }},
	{"v2 with version 3 in its 13th byte", 2, func(local, remote netip.AddrPort) []byte {
		b := honest(2)(local, remote)
		b[12] = 3<<4 | b[12]&0xf
		return b
	}},
	{"v2 with too few bytes for its addresses", 2, func(local, remote netip.AddrPort) []byte {
		b := honest(2)(local, remote)[:20]
		binary.BigEndian.PutUint16(b[14:], 4)
		return b
	}},
}

// noHeader returns a line that no endpoint takes for a PROXY header.
func noHeader(local, remote netip.AddrPort) []byte {
	return append([]byte("NONE"), honest(1)(local, remote)[len("PROXY"):]...)
}

// request returns an HTTP request.
func request(host string) []byte {
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		host = "[" + ip.WithZone("").String() + "]"
	}
	return fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\nUser-Agent: weir-probe\r\nConnection: close\r\n\r\n", host)
}

// hostOf returns the host of an address as the Host header and SNI have it: without a
// port and brackets.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return address
	case host == "":
		return "localhost" // net.Dial connects to this machine
	}
	return strings.TrimSuffix(host, ".")
}
