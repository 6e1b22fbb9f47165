package header

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxSize is the length in bytes of the longest header that weir accepts or writes.
const MaxSize = 4096

const (
	signatureV1 = "PROXY "
	signatureV2 = "\r\n\r\n\x00\r\nQUIT\n"

	// maxV1 is the length in bytes of the longest v1 line with its CRLF (section 2.1).
	maxV1 = 107
	// fixedV2 is the length in bytes of the part that every v2 header has: signature,
	// version and command, family and transport, length (section 2.2).
	fixedV2 = 16
)

// The errors of Scan and Parse. An error that wraps ErrMalformed has a text that names
// the problem.
var (
	// ErrAbsent means that the bytes are not the start of a header.
	ErrAbsent = errors.New("the bytes are not the start of a PROXY header")
	// ErrMalformed means that the bytes begin like a header, but violate the
	// specification.
	ErrMalformed = errors.New("malformed PROXY header")
	// ErrMixedFamilies means that one address of a v1 header is IPv4 and the other IPv6. The
	// specification has no such header, but nginx and Envoy write them: the word TCP4 or TCP6
	// is the family of the client, and the destination is their own address. Parse returns such
	// a header together with this error, which wraps ErrMalformed.
	ErrMixedFamilies = fmt.Errorf("%w: its two addresses have different families, as nginx writes them", ErrMalformed)
	// ErrChecksum means that the CRC32C of a v2 header does not match the header.
	ErrChecksum = errors.New("the CRC32C of the PROXY header does not match")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// The second nibble of a v2 header's 13th byte, and its 14th byte.
const (
	commandLocal = 0
	commandProxy = 1

	familyUnspec = 0x00
	familyTCP4   = 0x11
	familyUDP4   = 0x12
	familyTCP6   = 0x21
	familyUDP6   = 0x22
	familyUnix   = 0x31
	familyUnixDg = 0x32
)

// addressBlock returns the length in bytes of the addresses and ports of a family. ok is
// false for a byte that the specification does not define.
func addressBlock(family byte) (length int, ok bool) {
	switch family {
	case familyUnspec:
		return 0, true
	case familyTCP4, familyUDP4:
		return 12, true
	case familyTCP6, familyUDP6:
		return 36, true
	case familyUnix, familyUnixDg:
		return 216, true
	}
	return 0, false
}

// Scan checks the first bytes of a stream. If n is above 0, b[:n] is one whole framed
// header, for Parse. If n is 0 without an error, b may become a header: more bytes are
// needed. ErrAbsent means that b is not the start of a header. Other errors wrap
// ErrMalformed.
func Scan(b []byte) (n int, err error) {
	switch {
	case agree(b, signatureV1):
		return scanV1(b)
	case agree(b, signatureV2):
		return scanV2(b)
	}
	return 0, ErrAbsent
}

// Began returns the version of the header that begins with b, or 0 if b is empty. Scan
// must not have returned ErrAbsent for b.
func Began(b []byte) int {
	switch {
	case len(b) == 0:
		return 0
	case b[0] == signatureV1[0]:
		return 1
	}
	return 2
}

// agree reports whether b and s have equal bytes up to the length of the shorter one.
func agree(b []byte, s string) bool {
	n := min(len(b), len(s))
	return string(b[:n]) == s[:n]
}

// scanV1 finds the end of the line, and checks the words at its beginning. Parse reads
// the rest.
func scanV1(b []byte) (int, error) {
	line := b[:min(len(b), maxV1)]
	rest := line[min(len(line), len(signatureV1)):]
	if !agree(rest, "TCP4 ") && !agree(rest, "TCP6 ") && !agree(rest, "UNKNOWN ") && !agree(rest, "UNKNOWN\r") {
		return 0, malformed("its protocol is not TCP4, TCP6 or UNKNOWN")
	}
	end := bytes.IndexAny(line, "\r\n")
	if end >= 0 && line[end] == '\n' {
		return 0, malformed("its line ends without CR")
	}
	switch {
	case end >= 0 && end+1 < len(line) && line[end+1] == '\n':
		return end + 2, nil
	case end >= 0 && end+1 < len(line):
		return 0, malformed("a CR is not followed by LF")
	case len(line) == maxV1:
		return 0, malformed("it has no CRLF within %d bytes", maxV1)
	}
	return 0, nil
}

// scanV2 checks each byte of the fixed part as soon as it has arrived.
func scanV2(b []byte) (int, error) {
	if len(b) <= 12 {
		return 0, nil
	}
	command := b[12] & 0xf
	if b[12]>>4 != 2 || command > commandProxy {
		return 0, malformed("its version and command are %#02x, which weir does not know", b[12])
	}
	if len(b) <= 13 {
		return 0, nil
	}
	block, ok := addressBlock(b[13])
	if !ok {
		return 0, malformed("its address family and transport are %#02x, which weir does not know", b[13])
	}
	if datagram := b[13]&0xf == 2; datagram && command == commandProxy {
		return 0, malformed("it is for datagrams (%#02x), not for TCP connections", b[13])
	}
	if len(b) < fixedV2 {
		return 0, nil
	}
	length := int(binary.BigEndian.Uint16(b[14:]))
	switch {
	case fixedV2+length > MaxSize:
		return 0, malformed("it is %d bytes long, more than %d", fixedV2+length, MaxSize)
	case command == commandProxy && length < block:
		return 0, malformed("its length of %d bytes is too short for its addresses", length)
	case len(b) < fixedV2+length:
		return 0, nil
	}
	return fixedV2 + length, nil
}
