package header

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxSize is the length in bytes of the longest header that is accepted or written.
const MaxSize = 4096

const (
	signatureV1 = "PROXY "
	signatureV2 = "\r\n\r\n\x00\r\nQUIT\n"

	// maxV1 is the longest v1 line, its CRLF included (section 2.1).
	maxV1 = 107
	// fixedV2 is the part of a v2 header that is always there: signature,
	// version and command, family and transport, length (section 2.2).
	fixedV2 = 16
)

// The errors of Scan and Parse. Those that wrap ErrMalformed say what is wrong.
var (
	// ErrAbsent means that the bytes are not the start of a header.
	ErrAbsent = errors.New("the bytes are not the start of a PROXY header")
	// ErrMalformed means that a header was begun and breaks the specification.
	ErrMalformed = errors.New("malformed PROXY header")
	// ErrChecksum means that a v2 header is not the one its CRC32C was made for.
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

// addressBlock is the length of a family's addresses and ports; ok is false
// for bytes that the specification does not define.
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

// Scan looks at the first bytes of a stream. With n above 0, b[:n] is one whole
// framed header, for Parse. With neither n nor an error, b may yet become one:
// more bytes are needed. ErrAbsent means that b is not the start of a header;
// other errors wrap ErrMalformed.
func Scan(b []byte) (n int, err error) {
	switch {
	case agree(b, signatureV1):
		return scanV1(b)
	case agree(b, signatureV2):
		return scanV2(b)
	}
	return 0, ErrAbsent
}

// Began is the version that b, of which Scan did not say ErrAbsent, is the
// beginning of; 0 where nothing came yet.
func Began(b []byte) int {
	switch {
	case len(b) == 0:
		return 0
	case b[0] == signatureV1[0]:
		return 1
	}
	return 2
}

// agree reports whether b and s are the same as far as both go.
func agree(b []byte, s string) bool {
	n := min(len(b), len(s))
	return string(b[:n]) == s[:n]
}

// scanV1 finds the end of the line and the words it may begin with; Parse reads the rest.
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

// scanV2 checks the fixed part byte by byte, as early as each byte is there.
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
