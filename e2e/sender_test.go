package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// This file builds its PROXY headers from the specification, and not with the library that weir uses.

// v1Header is a PROXY v1 header.
func v1Header(from, to string) []byte {
	source, destination := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	family := "TCP4"
	if source.Addr().Is6() {
		family = "TCP6"
	}
	return fmt.Appendf(nil, "PROXY %s %s %s %d %d\r\n", family, source.Addr(), destination.Addr(), source.Port(), destination.Port())
}

// tlv is a type-length-value field of a PROXY v2 header.
type tlv struct {
	kind  byte
	value []byte
}

// v2Header is a PROXY v2 header with the PROXY command.
func v2Header(from, to string, tlvs ...tlv) []byte {
	source, destination := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	family := byte(0x11)
	if source.Addr().Is6() {
		family = 0x21
	}
	body := append(source.Addr().AsSlice(), destination.Addr().AsSlice()...)
	body = binary.BigEndian.AppendUint16(body, source.Port())
	body = binary.BigEndian.AppendUint16(body, destination.Port())
	return v2Raw(0x21, family, appendTLVs(body, tlvs))
}

// v2Local returns a v2 LOCAL header, as the health checks of load balancers send it.
func v2Local() []byte { return v2Raw(0x20, 0x00, nil) }

func appendTLVs(b []byte, tlvs []tlv) []byte {
	for _, t := range tlvs {
		b = append(b, t.kind)
		b = binary.BigEndian.AppendUint16(b, uint16(len(t.value)))
		b = append(b, t.value...)
	}
	return b
}

var v2Signature = []byte("\r\n\r\n\x00\r\nQUIT\n")

func v2Raw(command, family byte, body []byte) []byte {
	h := append(bytes.Clone(v2Signature), command, family)
	h = binary.BigEndian.AppendUint16(h, uint16(len(body)))
	return append(h, body...)
}

// withChecksum adds a TLV with the CRC32C to a v2 header. If wrong is true, the checksum is incorrect.
func withChecksum(h []byte, wrong bool) []byte {
	h = append(bytes.Clone(h), 0x03, 0, 4, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(h[14:], binary.BigEndian.Uint16(h[14:])+7)
	sum := crc32.Checksum(h, crc32.MakeTable(crc32.Castagnoli))
	if wrong {
		sum++
	}
	binary.BigEndian.PutUint32(h[len(h)-4:], sum)
	return h
}

// nlbProbe returns the LOCAL header of a health check, captured from an AWS NLB (kubernetes/kubernetes issue
// 57250). It has no address block, a checksum, and 74 bytes of padding.
func nlbProbe() []byte {
	return v2Raw(0x20, 0x11, append([]byte{0x03, 0x00, 0x04, 0xbc, 0xe5, 0x95, 0x1f, 0x04, 0x00, 0x4a}, make([]byte, 74)...))
}

// dial connects to address. from is the loopback address to connect from, if given.
func dial(t testing.TB, address string, from ...string) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: patience}
	if len(from) > 0 {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from[0])}
	}
	c, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// dialWith connects to address and sends header.
func dialWith(t testing.TB, address string, header []byte) net.Conn {
	t.Helper()
	c := dial(t, address)
	if _, err := c.Write(header); err != nil {
		t.Fatal(err)
	}
	return c
}

// shim stands for a load balancer in front of weir, for clients that cannot send PROXY headers. It listens on
// the returned address, and sends header at the start of each connection to address.
func shim(t testing.TB, address string, header []byte) string {
	t.Helper()
	return serve(t, func(client net.Conn) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := c.Write(header); err != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			io.Copy(c, client)
			c.(*net.TCPConn).CloseWrite()
		}()
		io.Copy(client, c)
		client.(*net.TCPConn).CloseWrite()
		<-done
	})
}

// readToEnd reads until the other end closes or resets the connection. A timeout is an error.
func readToEnd(c net.Conn) ([]byte, error) {
	all, err := io.ReadAll(c)
	if err == nil || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return all, nil
	}
	return all, err
}

// noPlaintext returns an error unless b is empty or one TLS alert. A TLS port that refuses a client may send
// nothing else.
func noPlaintext(b []byte) error {
	if len(b) == 0 || len(b) == 7 && b[0] == 21 && b[1] == 3 {
		return nil
	}
	return fmt.Errorf("weir wrote %d bytes: %q", len(b), b[:min(len(b), 100)])
}

// firstLine returns the first line of s, for messages of failed tests.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
