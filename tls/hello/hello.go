// Package hello reads the ClientHello of a TLS connection without opening the
// connection: what the client asks for, and every byte that was taken from the
// socket, so that they can be given to whoever goes on with the stream.
//
// crypto/tls itself does the parsing. A parser of our own would sooner or later
// read some hello in another way than the handshake that follows, and a route
// or a TLS policy would be chosen for a name that the handshake never sees
// (CVE-2026-32305 was a hello cut into pieces that a sniffer gave up on).
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

// DefaultMax is how many bytes Read takes at most when it is not told otherwise.
// crypto/tls accepts hellos of up to 64 KiB; real ones, post-quantum key shares
// included, stay under 2 KiB.
const DefaultMax = 64 << 10

// ErrTooLong is what Read's error wraps when the limit was reached before the
// ClientHello was complete.
var ErrTooLong = errors.New("it is too long")

// Info is what a client asks for before anything is proven or encrypted.
type Info struct {
	// ServerName is the SNI as Name spells it; empty where the client sent none.
	ServerName string
	// ALPN lists the application protocols offered, in the client's order.
	ALPN []string
	// Versions are the TLS versions offered, as crypto/tls numbers, in the client's order.
	Versions []uint16
	// CipherSuites are the suite ids offered, in the client's order.
	CipherSuites []uint16
	// SSLv2 says that the hello has the format of SSLv2, see sslv2.go. All else is empty then.
	SSLv2 bool
}

// Read reads r until a whole ClientHello was there, however it is cut into
// segments and records, and returns it together with every byte taken from r,
// which may go beyond the hello. The caller owns both. It takes at most max
// bytes; zero or less means DefaultMax.
//
// An error means that the stream begins neither with a ClientHello that
// crypto/tls accepts nor with one in the format of SSLv2, or that reading failed; there is no Info then, and the
// caller closes the connection: it never goes on as if there had been no SNI.
// Nothing is ever written, not even an alert. Deadlines are those of r, whose
// reads have to wait (not conn.Conn inside Await).
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

// Name spells a host name the way weir compares them: ASCII letters in lower
// case, no trailing dot. Other letters are left alone: a lower-case mapping of
// Unicode would turn the Kelvin sign into a k and so one name into another.
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

// errParsed ends a handshake that has served its purpose.
var errParsed = errors.New("the ClientHello was read")

// parse is shared by all reads: crypto/tls calls GetConfigForClient once the
// hello is parsed and before it acts on it, and what is read goes to the
// recorder, which it finds as the connection.
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

// recorder is the connection that crypto/tls is given: it keeps what is read
// and swallows what is written. It reads ahead of crypto/tls, which asks for
// five bytes first, so that a hello of ordinary size takes one system call.
type recorder struct {
	r     io.Reader
	max   int
	taken []byte // all that came from r
	given int    // how much of taken crypto/tls has
	info  Info
	seen  bool
}

// readAhead is the least room offered to a read.
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

// fill takes more bytes from r, at least one or an error.
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
			return nil // an error that came with bytes comes again
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
