package hello

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
)

// Clients from before 2010 (OpenSSL 0.9.8 and Java 6 by default) ask for TLS by a
// ClientHello in SSLv2 format (RFC 5246, appendix E.2). It has no extensions, so no SNI.
// crypto/tls cannot read this format, so weir cannot terminate such a connection. It can only
// forward the connection to a server that reads the format.

// BeginsSSLv2 returns true if b begins with an SSLv2-format ClientHello. b needs at least
// five bytes: two for the length, with the highest bit set, one for the message type, and
// two for the highest version that the client offers.
func BeginsSSLv2[T string | []byte](b T) bool {
	return len(b) >= 5 && b[0]&0x80 != 0 && b[2] == 1 && (b[3] == 3 || b[3] == 0 && b[4] == 2)
}

// ErrBadSSLv2 is what Read's error wraps if the lengths in an SSLv2-format ClientHello are invalid.
var ErrBadSSLv2 = errors.New("an SSLv2-format ClientHello is malformed")

// sslv2 reads the rest of an SSLv2-format ClientHello after crypto/tls has failed with err.
// It returns err if the stream begins with anything else.
func (c *recorder) sslv2(err error) error {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) || !BeginsSSLv2(c.taken) {
		return err
	}
	length := int(binary.BigEndian.Uint16(c.taken) &^ 0x8000)
	for len(c.taken) < 2+length {
		switch err := c.fill(); {
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
	if !wholeSSLv2(c.taken[2 : 2+length]) {
		return ErrBadSSLv2
	}
	return nil
}

// wholeSSLv2 returns true if the lengths in an SSLv2-format ClientHello are valid and add up to its size.
func wholeSSLv2(b []byte) bool {
	const fixed = 9 // type, version and three lengths
	if len(b) < fixed {
		return false
	}
	suites, session, challenge := int(binary.BigEndian.Uint16(b[3:])), int(binary.BigEndian.Uint16(b[5:])), int(binary.BigEndian.Uint16(b[7:]))
	return suites > 0 && suites%3 == 0 && (session == 0 || session == 16) && challenge >= 16 && challenge <= 32 &&
		fixed+suites+session+challenge == len(b)
}
