package header

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/pires/go-proxyproto"
)

// Parse reads one whole header that Scan has framed. It unmaps IPv4 addresses that are
// mapped into IPv6. It does not keep b. Errors wrap ErrMalformed or are ErrChecksum. With
// ErrMixedFamilies it also returns the header.
//
// A LOCAL or UNKNOWN header yields no addresses and no TLVs. The bytes after the fixed
// part of a LOCAL header need not have the form that its family announces: health checks
// of AWS load balancers carry TLVs without an address block. Therefore Parse only looks
// for a checksum in them. A PROXY header without a family is treated in the same way.
func Parse(b []byte) (Header, error) {
	n, err := Scan(b)
	if err != nil {
		return Header{}, err
	}
	if n == 0 || n != len(b) {
		return Header{}, malformed("it is incomplete: %d of %d bytes", len(b), n)
	}
	if b[0] == signatureV1[0] {
		return parseV1(b)
	}
	return parseV2(b)
}

func parseV1(b []byte) (Header, error) {
	h := Header{Version: 1}
	if agree(b[len(signatureV1):], "UNKNOWN") {
		h.Local = true
		return h, nil
	}
	return h, h.readAddresses(b)
}

func parseV2(b []byte) (h Header, err error) {
	h.Version = 2
	family := b[13]
	if b[12]&0xf == commandLocal || family == familyUnspec {
		h.Local = true
		return h, verifyLocal(b)
	}
	block, _ := addressBlock(family)
	tlvs, err := splitTLVs(b, fixedV2+block)
	if err != nil {
		return h, err
	}
	if err := verify(b, tlvs); err != nil {
		return h, err
	}
	if family == familyUnix {
		h.Local = true // weir cannot use the path of a socket as an address
	} else if err := h.readAddresses(b); err != nil {
		return h, err
	}
	return h, h.TLVs.read(tlvs)
}

// reader is the input of go-proxyproto.
type reader struct {
	bytes  bytes.Reader
	buffer *bufio.Reader
}

// go-proxyproto needs a v1 line in one read, so the buffer can hold the longest line.
var readers = sync.Pool{New: func() any { return &reader{buffer: bufio.NewReaderSize(nil, 128)} }}

// readAddresses lets go-proxyproto read the addresses of b, a header of TCP over IPv4 or IPv6.
func (h *Header) readAddresses(b []byte) error {
	r := readers.Get().(*reader)
	r.bytes.Reset(b)
	r.buffer.Reset(&r.bytes)
	p, err := proxyproto.Read(r.buffer)
	r.bytes.Reset(nil)
	readers.Put(r)
	if err != nil && h.Version == 1 {
		return h.readMixed(b)
	}
	if err != nil {
		return malformed("its addresses cannot be read")
	}
	source, sourceOK := p.SourceAddr.(*net.TCPAddr)
	destination, destinationOK := p.DestinationAddr.(*net.TCPAddr)
	if !sourceOK || !destinationOK {
		return malformed("it has no TCP addresses")
	}
	h.Source, h.Destination = unmap(source.AddrPort()), unmap(destination.AddrPort())
	return nil
}

// readMixed reads the addresses and ports of b, a v1 header that go-proxyproto refused. Its error
// is ErrMixedFamilies, or tells what is wrong.
func (h *Header) readMixed(b []byte) error {
	fields := strings.Split(strings.TrimSuffix(string(b), "\r\n"), " ")
	if len(fields) != 6 {
		return malformed("its line has %d words, and needs six with one space between them: PROXY, TCP4 or TCP6, the two addresses and the two ports", len(fields))
	}
	var ends [2]netip.AddrPort
	var misfit error
	for i, which := range []string{"source", "destination"} {
		a, err := netip.ParseAddr(fields[2+i])
		family := "IPv" + fields[1][3:]
		if err != nil || a.Zone() != "" || a.Is4() != (family == "IPv4") && misfit != nil {
			return malformed("its %s address %q is not an %s address", which, fields[2+i], family)
		}
		if a.Is4() != (family == "IPv4") {
			misfit = malformed("its %s address %q is not an %s address", which, fields[2+i], family)
		}
		port, err := strconv.ParseUint(fields[4+i], 10, 16)
		if err != nil || strconv.FormatUint(port, 10) != fields[4+i] {
			return malformed("its %s port %q is not a number from 0 to 65535", which, fields[4+i])
		}
		ends[i] = unmap(netip.AddrPortFrom(a, uint16(port)))
	}
	if misfit == nil {
		return malformed("its addresses and ports cannot be read")
	}
	h.Source, h.Destination = ends[0], ends[1]
	return fmt.Errorf("%w (%s and %s)", ErrMixedFamilies, fields[2], fields[3])
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
