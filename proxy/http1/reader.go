// Package http1 is the HTTP/1.1 codec, in both roles: Server reads requests and
// writes responses, Client the reverse. It is strict where leniency would let
// two parsers read two messages (request smuggling): such input is refused, and
// nothing after it is read. It does no routing, and of connections it knows
// only how to read and write.
package http1

import (
	"bytes"
	"io"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Limits bound a head.
type Limits = message.Limits

// reader is the buffered reading side of a connection. It holds memory only
// while bytes are in it or wanted.
type reader struct {
	src     io.Reader
	pooled  *conn.Buffer
	buf     []byte // pooled[:], or larger for a large head
	r, w    int    // buf[r:w] is there and unread
	scanned int    // of that, how much was searched for the end of a head
}

func (r *reader) buffered() []byte { return r.buf[r.r:r.w] }

func (r *reader) empty() bool { return r.r == r.w }

// fill reads once. It makes room first, growing to at most limit bytes.
func (r *reader) fill(limit int) error {
	switch {
	case r.buf == nil:
		r.pooled = conn.GetBuffer()
		r.buf = r.pooled[:]
	case r.r == r.w:
		r.r, r.w = 0, 0
	case r.w == len(r.buf) && r.r > 0:
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	case r.w == len(r.buf):
		grown := make([]byte, min(2*len(r.buf), max(limit, len(r.buf)+1)))
		copy(grown, r.buf)
		r.free()
		r.buf = grown
	}
	n, err := r.src.Read(r.buf[r.w:])
	r.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// release gives the memory back if no bytes are in it.
func (r *reader) release() {
	if r.empty() {
		r.free()
		r.buf, r.r, r.w, r.scanned = nil, 0, 0, 0
	}
}

// take returns a copy of what is there, and gives the memory back.
func (r *reader) take() []byte {
	b := bytes.Clone(r.buffered())
	r.discard()
	return b
}

// discard forgets what is there, and gives the memory back.
func (r *reader) discard() {
	r.consume(len(r.buffered()))
	r.release()
}

// hasLine says whether a line ends within the next limit bytes.
func (r *reader) hasLine(limit int) bool {
	b := r.buffered()
	return bytes.IndexByte(b[:min(limit, len(b))], '\n') >= 0
}

func (r *reader) free() {
	conn.PutBuffer(r.pooled)
	r.pooled = nil
}

var headEnd = []byte("\r\n\r\n")

// head returns the next head with its empty line. The slice is valid until
// consume; nothing is consumed before. A conn.ErrWouldBlock loses nothing.
func (r *reader) head(limit int) ([]byte, error) {
	for {
		b := r.buffered()
		if len(b) > r.scanned {
			from := max(0, r.scanned-len(headEnd)+1)
			if i := bytes.Index(b[from:], headEnd); i >= 0 {
				if n := from + i + len(headEnd); n <= limit {
					r.scanned = 0
					return b[:n], nil
				}
				return nil, message.ErrHeadTooLarge
			}
			if bareLF(b, r.scanned) {
				return nil, errBareLF
			}
			r.scanned = len(b)
		}
		if len(b) >= limit {
			return nil, message.ErrHeadTooLarge
		}
		if err := r.fill(limit); err != nil {
			if err == io.EOF && len(b) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

func (r *reader) consume(n int) { r.r += n }

// truncated says whether the end that was read may be somebody else's than the
// peer's. A body that only the end ends is not whole then (RFC 9112, section 9.8).
func (r *reader) truncated() bool {
	src, can := r.src.(interface{ Truncated() bool })
	return can && src.Truncated()
}

// bareLF finds a line feed after from that no carriage return precedes. Such a
// head would never end here, but does for parsers that take bare line feeds.
func bareLF(b []byte, from int) bool {
	for i := from; i < len(b); i++ {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			return false
		}
		i += j
		if i == 0 || b[i-1] != '\r' {
			return true
		}
	}
	return false
}

func refusal(status int, reason, detail string) *message.Refusal {
	return &message.Refusal{Status: status, Reason: reason, Detail: detail}
}

var errBareLF = refusal(400, "bare_line_feed", "a line ends without a carriage return")
