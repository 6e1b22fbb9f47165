package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// The bounds of one try.
const (
	dialTimeout = 5 * time.Second
	maxReply    = 64 << 10               // bytes that are read from an endpoint
	pause       = 300 * time.Millisecond // a reply has ended when no byte came for so long
	maxTime     = time.Second            // from the first byte of a reply to the last one that is read
)

// Reaction says how the endpoint reacted to the bytes of a try.
type Reaction string

// The reactions.
const (
	Closes  Reaction = "closes"  // it closed the connection, and no byte came back
	Answers Reaction = "answers" // bytes came back; on a TLS port bytes other than TLS records
	Alerts  Reaction = "alerts"  // TLS records came back
	Waits   Reaction = "waits"   // nothing came back, and the connection stayed open
	Serves  Reaction = "serves"  // the request or the handshake succeeded
)

// reply has the bytes that the endpoint sent on one connection, and how the connection ended.
type reply struct {
	bytes  []byte
	sent   []byte // the PROXY header that the try sent
	closed bool
	early  bool          // the reaction came before the header, on a connection that waited
	after  time.Duration // from the beginning of the connection to the reaction; 0: there was none
}

// dial opens a connection to the endpoint.
func (p *prober) dial(ctx context.Context) (net.Conn, error) {
	c, err := p.Options.dial(ctx, "tcp", p.at)
	if err != nil {
		return nil, err
	}
	p.connections.Add(1)
	if end, ok := ctx.Deadline(); ok {
		c.SetDeadline(end)
	}
	context.AfterFunc(ctx, func() { c.Close() }) // the probe has ended
	return c, nil
}

// try sends a header and a payload at once, and reads what comes back. With half it ends
// its sending side after them.
func (p *prober) try(ctx context.Context, w writer, payload []byte, half bool) (reply, error) {
	c, err := p.dial(ctx)
	if err != nil {
		return reply{}, err
	}
	defer c.Close()
	begun := time.Now()
	r := reply{sent: headerFor(c, w)}
	send(c, r.sent, payload)
	if half {
		c.(interface{ CloseWrite() error }).CloseWrite()
	}
	r.read(c, begun, p.Patience)
	return r, nil
}

// wait sends the first bytes of a header, or none, and waits. When the endpoint did not
// react for so long, wait sends the rest of the header and the payload.
func (p *prober) wait(ctx context.Context, first func(net.Conn) []byte, wait time.Duration, rest func(net.Conn) (header, payload []byte)) (reply, error) {
	c, err := p.dial(ctx)
	if err != nil {
		return reply{}, err
	}
	defer c.Close()
	begun := time.Now()
	var r reply
	send(c, first(c), nil)
	r.read(c, begun, wait)
	if r.closed || len(r.bytes) > 0 || ctx.Err() != nil {
		r.early = true
		return r, nil
	}
	var payload []byte
	r.sent, payload = rest(c)
	send(c, r.sent, payload)
	r.read(c, begun, p.Patience)
	return r, nil
}

// send writes at once. An error is no result: the endpoint may have closed the connection
// already, and the bytes that it sent before can still be read.
func send(c net.Conn, header, payload []byte) {
	if b := append(header[:len(header):len(header)], payload...); len(b) > 0 {
		c.Write(b)
	}
}

// read reads until the endpoint closes the connection, makes a pause after bytes, or does
// nothing for patience. An endpoint that sends bytes without end is read for maxTime, and up to
// maxReply bytes.
func (r *reply) read(c net.Conn, begun time.Time, patience time.Duration) {
	end := time.Now().Add(patience)
	var last time.Time // zero: no byte came yet
	buffer := make([]byte, 16<<10)
	for len(r.bytes) < maxReply {
		c.SetReadDeadline(end)
		n, err := c.Read(buffer[:min(len(buffer), maxReply-len(r.bytes))])
		r.bytes = append(r.bytes, buffer[:n]...)
		r.closed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
		if r.after == 0 && (n > 0 || r.closed) {
			r.after = time.Since(begun)
		}
		if err != nil {
			return
		}
		if last.IsZero() {
			last = time.Now().Add(maxTime)
		}
		if end = time.Now().Add(pause); end.After(last) {
			end = last
		}
	}
}

func headerFor(c net.Conn, w writer) []byte {
	return w(addrOf(c.LocalAddr()), addrOf(c.RemoteAddr()))
}

func addrOf(a net.Addr) netip.AddrPort {
	at := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// reaction classifies the reply of an endpoint, on a TLS port or on another one.
func (r *reply) reaction(tlsPort bool) Reaction {
	switch {
	case len(r.bytes) == 0 && r.closed:
		return Closes
	case len(r.bytes) == 0:
		return Waits
	case tlsPort && onlyRecords(r.bytes):
		return Alerts
	}
	return Answers
}

// The types of TLS records that matter here (RFC 8446, section 5.1), and of one message.
const (
	recordAlert     = 21
	recordHandshake = 22
	recordLast      = 24 // heartbeat
	serverHello     = 2
)

// onlyRecords reports whether b is a sequence of TLS records; the last may be cut.
func onlyRecords(b []byte) bool {
	for len(b) > 0 {
		if b[0] < 20 || b[0] > recordLast || len(b) > 1 && b[1] != 3 {
			return false
		}
		if len(b) < 5 {
			return true
		}
		b = b[min(len(b), 5+int(b[3])<<8+int(b[4])):]
	}
	return true
}

// shakesHands reports whether b is a reply to a ClientHello that was read as such: a
// ServerHello, or an alert about what the ClientHello offers.
func shakesHands(b []byte) bool {
	if len(b) < 6 || !onlyRecords(b) {
		return false
	}
	switch b[0] {
	case recordHandshake:
		return b[5] == serverHello
	case recordAlert:
		if len(b) < 7 {
			return false
		}
		switch b[6] {
		case 40, 71, 80, 112, 120: // handshake_failure, insufficient_security, internal_error (no certificate, in Go), unrecognized_name, no_application_protocol
			return true
		}
	}
	return false
}

// status returns the status code of an HTTP response; 0 if b is none.
func status(b []byte) int {
	version, rest, _ := bytes.Cut(b, []byte(" "))
	if !bytes.HasPrefix(version, []byte("HTTP/")) || len(rest) < 3 {
		return 0
	}
	n, err := strconv.Atoi(string(rest[:3]))
	if err != nil {
		return 0
	}
	return n
}

// clientHello returns the first bytes of a TLS client. The name may be an address; then
// there is no SNI.
func clientHello(name string) []byte {
	var c capture
	tls.Client(&c, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS10, InsecureSkipVerify: true}).Handshake() //nolint:gosec // no data is sent
	return c.written
}

// capture is a connection that keeps what a client writes first.
type capture struct {
	net.Conn
	written []byte
}

func (c *capture) Write(b []byte) (int, error) {
	c.written = append(c.written, b...)
	return len(b), nil
}

func (c *capture) Read([]byte) (int, error)         { return 0, io.EOF }
func (c *capture) Close() error                     { return nil }
func (c *capture) SetDeadline(time.Time) error      { return nil }
func (c *capture) SetWriteDeadline(time.Time) error { return nil }

// summary shows a reply in a few words.
func (r *reply) summary() string {
	switch {
	case len(r.bytes) == 0:
		return ""
	case onlyRecords(r.bytes) && r.bytes[0] == recordAlert && len(r.bytes) > 6:
		return fmt.Sprintf("TLS alert %d (%v)", r.bytes[6], tls.AlertError(r.bytes[6]))
	case onlyRecords(r.bytes):
		return "TLS handshake"
	}
	line, _, _ := bytes.Cut(r.bytes, []byte("\n"))
	return strconv.QuoteToASCII(string(bytes.TrimSpace(line[:min(len(line), 80)])))
}
