// Package hello reads the ClientHello of a TLS connection without completing a handshake.
// It returns the name that the client requests, and every byte read from the socket, so that
// the next reader of the stream gets them.
//
// The ClientHello may be for an endpoint whose TLS weir passes through, and not for crypto/tls.
// So this parser accepts what crypto/tls refuses: unknown, repeated or malformed extensions. It
// is strict about the name alone, because weir chooses a route by it: a name that the endpoint
// or crypto/tls could read differently is an error (CVE-2026-32305: a sniffer gave up on a
// ClientHello cut into pieces). FuzzRead compares the name with that of crypto/tls.
package hello

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
)

// DefaultMax is the default limit of Read, in bytes, and that of crypto/tls. Real ones, including post-quantum key shares, are smaller than 2 KiB.
const DefaultMax = 64 << 10

// ErrTooLong is in Read's error if the limit was reached before the ClientHello was
// complete.
var ErrTooLong = errors.New("it is too long")

// ErrMalformed is in Read's error if the stream begins with TLS, but not with a ClientHello in
// which weir finds the name. The error says why.
var ErrMalformed = errors.New("malformed ClientHello")

// Info is what a client requests before anything is authenticated or encrypted.
type Info struct {
	// ServerName is the SNI as Name returns it; empty if the client sent none.
	ServerName string
	// SSLv2 reports that the ClientHello has the format of SSLv2, see sslv2.go. There is then
	// no name.
	SSLv2 bool
}

// Read reads r until the ClientHello is complete, even if it is split into several
// segments and records. It returns the Info and every byte read from r, which may go
// beyond the ClientHello. The caller owns both. Read reads at most max bytes; zero or
// less means DefaultMax.
//
// An error means that the stream does not begin with a ClientHello, or that its name can be
// read in more than one way, or that reading failed. If the stream is no TLS, the error is a
// tls.RecordHeaderError, as that of crypto/tls. With an error there is no Info, and the caller
// must close the connection: it must not continue as if there were no SNI. Read never writes
// to the connection, not even an alert. Deadlines are those of r. Reads of r must block (not
// conn.Conn inside Await).
func Read(r io.Reader, max int) (Info, []byte, error) {
	if max <= 0 {
		max = DefaultMax
	}
	rec := &recorder{r: r, max: max}
	message, err := rec.message()
	if err == nil {
		var name string
		if name, err = nameIn(message); err == nil {
			return Info{ServerName: name}, rec.taken, nil
		}
	} else if err = rec.sslv2(err); err == nil {
		return Info{SSLv2: true}, rec.taken, nil
	}
	return Info{}, nil, fmt.Errorf("reading the ClientHello: %w", err)
}

// Name returns the form of a host name that weir compares: ASCII letters in lower case,
// no trailing dot. It does not change other letters: the lower case of Unicode would turn
// the Kelvin sign into a k, and so one name into another.
func Name(s string) string {
	s = strings.TrimSuffix(s, ".")
	for i := 0; i < len(s); i++ {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return lower(s)
		}
	}
	return s
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + ('a' - 'A')
		}
	}
	return string(b)
}

// recorder reads records, and keeps all bytes that it reads. It reads more than the header of
// a record at once, so that a ClientHello of usual size takes one system call.
type recorder struct {
	r     io.Reader
	max   int
	taken []byte // all bytes read from r
	used  int    // bytes of taken that records before the next one have used
}

// The parts of TLS that a ClientHello needs (RFC 8446, sections 4 and 5.1).
const (
	recordAlert     = 21
	recordHandshake = 22
	recordHeader    = 5       // bytes
	maxRecord       = 1 << 14 // bytes
	maxWarnings     = 16      // alerts in a row, as crypto/tls ignores them
	typeHello       = 1
	messageHeader   = 4 // bytes
)

// message returns the body of the ClientHello. It joins the parts in several records.
func (c *recorder) message() ([]byte, error) {
	var message []byte
	for warnings := 0; ; {
		kind, data, err := c.record()
		switch {
		case err != nil:
			return nil, err
		case kind == recordAlert:
			if warnings++; warnings > maxWarnings {
				return nil, fmt.Errorf("%w: too many alerts", ErrMalformed)
			}
			continue
		case len(data) == 0:
			return nil, fmt.Errorf("%w: an empty record", ErrMalformed)
		}
		warnings = 0
		if message = append(message, data...); message[0] != typeHello {
			return nil, fmt.Errorf("%w: the first message has type %d", ErrMalformed, message[0])
		}
		if len(message) < messageHeader {
			continue
		}
		length := int(binary.BigEndian.Uint32(message)) & 0xffffff
		if length > DefaultMax {
			return nil, fmt.Errorf("%w: a message of %d bytes", ErrTooLong, length)
		}
		if len(message) >= messageHeader+length {
			return message[messageHeader : messageHeader+length], nil
		}
	}
}

// record returns the next record. An alert that does not end the connection has no data.
func (c *recorder) record() (kind byte, data []byte, err error) {
	head, err := c.next(recordHeader)
	if err != nil {
		return 0, nil, err
	}
	kind, length := head[0], int(binary.BigEndian.Uint16(head[3:]))
	if kind != recordHandshake && kind != recordAlert || head[1] >= 0x10 {
		return 0, nil, tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake", RecordHeader: [recordHeader]byte(head)}
	}
	if length > maxRecord {
		return 0, nil, fmt.Errorf("%w: a record of %d bytes", ErrMalformed, length)
	}
	if data, err = c.next(length); err != nil || kind == recordHandshake {
		return kind, data, err
	}
	const warning, closeNotify = 1, 0
	switch {
	case length != 2:
		return 0, nil, fmt.Errorf("%w: an alert of %d bytes", ErrMalformed, length)
	case data[1] == closeNotify:
		return 0, nil, io.EOF
	case data[0] != warning:
		return 0, nil, &net.OpError{Op: "remote error", Err: tls.AlertError(data[1])}
	}
	return kind, nil, nil
}

// next returns the next n bytes.
func (c *recorder) next(n int) ([]byte, error) {
	for len(c.taken) < c.used+n {
		if err := c.fill(); err != nil {
			if err == io.EOF && len(c.taken) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	c.used += n
	return c.taken[c.used-n : c.used], nil
}

// readAhead is the size of the buffer for one read, in bytes, unless the limit leaves
// less.
const readAhead = 2 << 10

// fill reads at least one byte from r, or returns an error.
func (c *recorder) fill() error {
	room := c.max - len(c.taken)
	if room <= 0 {
		return fmt.Errorf("%w: over %d bytes", ErrTooLong, c.max)
	}
	room = min(room, readAhead)
	c.taken = slices.Grow(c.taken, room)
	for range maxEmptyReads {
		n, err := c.r.Read(c.taken[len(c.taken) : len(c.taken)+room])
		c.taken = c.taken[:len(c.taken)+n]
		if n > 0 {
			return nil // the next read returns an error again
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

const maxEmptyReads = 100
