// Package hello reads the ClientHello of a TLS connection without completing a handshake.
// It returns what the client requests, and every byte read from the socket, so that the
// next reader of the stream gets them.
//
// crypto/tls does the parsing. weir has no parser of its own, because it could read a
// ClientHello differently from the handshake that follows. weir would then choose a route
// or a TLS policy for a name that the handshake never sees (CVE-2026-32305: a
// sniffer gave up on a ClientHello cut into pieces).
package hello

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// DefaultMax is the default limit of Read, in bytes. crypto/tls accepts a ClientHello of
// up to 64 KiB. Real ones, including post-quantum key shares, are smaller than 2 KiB.
const DefaultMax = 64 << 10

// ErrTooLong is in Read's error if the limit was reached before the ClientHello was
// complete.
var ErrTooLong = errors.New("it is too long")

// Info is what a client requests before anything is authenticated or encrypted.
type Info struct {
	// ServerName is the SNI as Name returns it; empty if the client sent none.
	ServerName string
	// ALPN lists the application protocols that the client offers, in its order.
	ALPN []string
	// Versions are the TLS versions that the client offers, as crypto/tls numbers, in its
	// order.
	Versions []uint16
	// CipherSuites are the IDs of the cipher suites that the client offers, in its order.
	CipherSuites []uint16
	// SSLv2 reports that the ClientHello has the format of SSLv2, see sslv2.go. All other
	// fields are then empty.
	SSLv2 bool
}

// Read reads r until the ClientHello is complete, even if it is split into several
// segments and records. It returns the Info and every byte read from r, which may go
// beyond the ClientHello. The caller owns both. Read reads at most max bytes; zero or
// less means DefaultMax.
//
// An error means that the stream does not begin with a ClientHello that crypto/tls
// accepts, nor with one in the format of SSLv2, or that reading failed. Then there is no
// Info, and the caller must close the connection: it must not continue as if there were
// no SNI. Read never writes to the connection, not even an alert. Deadlines are those of
// r. Reads of r must block (not conn.Conn inside Await).
func Read(r io.Reader, max int) (Info, []byte, error) {
	if max <= 0 {
		max = DefaultMax
	}
	rec := &recorder{r: r, max: max}
	err := tls.Server(rec, parse).Handshake()
	if rec.seen {
		return rec.info, rec.taken, nil
	}
	if err = rec.sslv2(err); err == nil {
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

// errParsed ends a handshake after the ClientHello was parsed.
var errParsed = errors.New("the ClientHello was read")

// parse is shared by all reads. crypto/tls calls GetConfigForClient after it parsed the
// ClientHello and before it uses it. The recorder, which crypto/tls has as its
// connection, gets the result.
var parse = &tls.Config{
	GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		rec := h.Conn.(*recorder)
		rec.seen = true
		rec.info = Info{
			ServerName:   Name(h.ServerName),
			ALPN:         slices.Clone(h.SupportedProtos),
			Versions:     slices.Clone(h.SupportedVersions),
			CipherSuites: slices.Clone(h.CipherSuites),
		}
		return nil, errParsed
	},
}

// recorder is the connection for crypto/tls. It keeps all bytes that it reads, and
// discards all bytes that crypto/tls writes. crypto/tls first asks for five bytes only.
// recorder reads more, so that a ClientHello of usual size takes one system call.
type recorder struct {
	r     io.Reader
	max   int
	taken []byte // all bytes read from r
	given int    // number of bytes of taken that crypto/tls has read
	info  Info
	seen  bool
}

// readAhead is the size of the buffer for one read, in bytes, unless the limit leaves
// less.
const readAhead = 2 << 10

func (c *recorder) Read(p []byte) (int, error) {
	if c.given == len(c.taken) {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.taken[c.given:])
	c.given += n
	return n, nil
}

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

func (c *recorder) Write(p []byte) (int, error)      { return len(p), nil }
func (c *recorder) Close() error                     { return nil }
func (c *recorder) LocalAddr() net.Addr              { return nil }
func (c *recorder) RemoteAddr() net.Addr             { return nil }
func (c *recorder) SetDeadline(time.Time) error      { return nil }
func (c *recorder) SetReadDeadline(time.Time) error  { return nil }
func (c *recorder) SetWriteDeadline(time.Time) error { return nil }
