package hello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"reflect"
	"testing"
	"testing/iotest"
)

// sslv2Hello is a ClientHello in the format of SSLv2 (RFC 5246, appendix E.2), as OpenSSL
// 0.9.8 makes it: a version, a session and a challenge of these lengths, and suites.
func sslv2Hello(major, minor byte, session, challenge int, suites ...int) []byte {
	b := []byte{0, 0, 1, major, minor}
	b = binary.BigEndian.AppendUint16(b, uint16(3*len(suites)))
	b = binary.BigEndian.AppendUint16(b, uint16(session))
	b = binary.BigEndian.AppendUint16(b, uint16(challenge))
	for _, s := range suites {
		b = append(b, byte(s>>16), byte(s>>8), byte(s))
	}
	b = append(b, make([]byte, session)...)
	b = append(b, bytes.Repeat([]byte{0x5a}, challenge)...)
	binary.BigEndian.PutUint16(b, 0x8000|uint16(len(b)-2))
	return b
}

// weir reads an SSLv2-format ClientHello to its end, in pieces of any size, and does not use its content.
func TestReadSSLv2(t *testing.T) {
	const more = "and what follows"
	for _, hello := range [][]byte{
		sslv2Hello(3, 1, 0, 32, 0x39, 0x38, 0x35, 0x16, 0x13, 0x0a, 0x0700c0, 0x33, 0x32, 0x2f, 0x030080, 0x05, 0x04, 0x010080),
		sslv2Hello(3, 0, 0, 16, 0x0a),
		sslv2Hello(3, 3, 0, 32, make([]int, 100)...), // longer than 255 bytes
		sslv2Hello(0, 2, 16, 16, 0x010080),
	} {
		stream := append(bytes.Clone(hello), more...)
		f := func(r io.Reader) {
			t.Helper()
			info, taken, err := Read(r, 0)
			rest, _ := io.ReadAll(r)
			if err != nil || !reflect.DeepEqual(info, Info{SSLv2: true}) || !bytes.Equal(append(taken, rest...), stream) {
				t.Errorf("%x: %+v, %v, %d and %d bytes", hello[:5], info, err, len(taken), len(rest))
			}
		}
		f(bytes.NewReader(stream))
		f(iotest.OneByteReader(bytes.NewReader(stream)))
		for cut := 1; cut < len(hello); cut++ {
			f(io.MultiReader(bytes.NewReader(stream[:cut]), bytes.NewReader(stream[cut:])))
			if _, taken, err := Read(bytes.NewReader(hello[:cut]), 0); !errors.Is(err, io.ErrUnexpectedEOF) || taken != nil {
				t.Errorf("cut at %d: %d bytes, %v", cut, len(taken), err)
			}
		}
		late := io.MultiReader(bytes.NewReader(hello[:len(hello)-1]), iotest.ErrReader(os.ErrDeadlineExceeded))
		if _, _, err := Read(late, 0); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a deadline: %v", err)
		}
		if _, _, err := Read(bytes.NewReader(hello), len(hello)-1); !errors.Is(err, ErrTooLong) {
			t.Errorf("the limit: %v", err)
		}
	}
}

// Bytes with contradicting lengths are no SSLv2 ClientHello. Nor is a ClientHello that
// crypto/tls can read.
func TestReadRefusesBadSSLv2(t *testing.T) {
	f := func(what string, stream []byte, malformed bool) {
		t.Helper()
		info, taken, err := Read(bytes.NewReader(append(stream, make([]byte, 64)...)), 0)
		var record tls.RecordHeaderError
		if taken != nil || info.SSLv2 || errors.Is(err, ErrBadSSLv2) != malformed || errors.As(err, &record) == malformed {
			t.Errorf("%s: %+v, %d bytes, %v", what, info, len(taken), err)
		}
	}
	changed := func(i int, b byte) []byte {
		hello := sslv2Hello(3, 1, 0, 32, 0x2f, 0x05, 0x0a)
		hello[i] = b
		return hello
	}
	f("one byte too short", changed(1, 9+9+32-1), true)
	f("one byte too long", changed(1, 9+9+32+1), true)
	f("too short for its lengths", changed(1, 8), true)
	f("another message", changed(2, 2), false)
	f("version 2.0 of what is not SSLv2", changed(3, 2), false)
	f("version 0.3", []byte("\x80\x2e\x01\x00\x03"), false)
	f("no suite", sslv2Hello(3, 1, 0, 32), true)
	f("no challenge", sslv2Hello(3, 1, 0, 0, 0x2f), true)
	f("no content", []byte("\x80\x00\x01\x03\x01"), true)
	f("a piece of a suite", changed(6, 10), true)
	f("a session of 8 bytes", sslv2Hello(3, 1, 8, 32, 0x2f), true)
	f("a challenge of 15 bytes", sslv2Hello(3, 1, 0, 15, 0x2f), true)
	f("a challenge of 33 bytes", sslv2Hello(3, 1, 0, 33, 0x2f), true)
}
