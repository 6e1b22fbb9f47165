// Package http1 is the HTTP/1.1 codec, in both roles: Server reads requests and writes
// responses; Client writes requests and reads responses. It refuses input that two parsers
// could read as different messages (request smuggling), and reads nothing after such input.
// It does no routing. It uses connections only to read and write.
package http1

import (
	"bytes"
	"io"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Limits limit the size of a head.
type Limits = message.Limits

// reader is the buffered reading side of a connection. It holds memory only while it contains
// bytes or reads.
type reader struct {
	src     io.Reader
	pooled  *conn.Buffer
	buf     []byte // pooled[:], or larger for a large head
	r, w    int    // buf[r:w] are the unread bytes
	scanned int    // number of unread bytes already searched for the end of a head
	skipped int    // empty lines that were skipped before the next head
	loose   bool   // one of these lines ended in LF without CR

	account *memory.Account // is charged for the memory of a large head; nil: nothing is charged
	charged int             // bytes charged to account
}

func (r *reader) buffered() []byte { return r.buf[r.r:r.w] }

func (r *reader) empty() bool { return r.r == r.w }

// fill reads once from the connection. First it makes room, and grows the buffer to at most
// limit bytes if needed.
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
		size := min(2*len(r.buf), max(limit, len(r.buf)+1))
		if !r.charge(2 * size) { // twice, because the message will contain a copy
			return message.ErrMemory
		}
		grown := make([]byte, size)
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

// release releases the memory if the reader has no unread bytes.
func (r *reader) release() {
	if r.empty() {
		r.free()
		r.buf, r.r, r.w, r.scanned = nil, 0, 0, 0
		if r.charged > 0 {
			r.account.Release(r.charged)
			r.charged = 0
		}
	}
}

// charge increases the charge of the account to n bytes. It returns false if the account
// refuses.
func (r *reader) charge(n int) bool {
	if n > r.charged {
		if !r.account.Charge(n - r.charged) {
			return false
		}
		r.charged = n
	}
	return true
}

// take returns a copy of the unread bytes, and releases the memory.
func (r *reader) take() []byte {
	b := bytes.Clone(r.buffered())
	r.discard()
	return b
}

// discard drops the unread bytes, and releases the memory.
func (r *reader) discard() {
	r.consume(len(r.buffered()))
	r.release()
}

// hasLine reports whether a line ends within the next limit bytes.
func (r *reader) hasLine(limit int) bool {
	b := r.buffered()
	return bytes.IndexByte(b[:min(limit, len(b))], '\n') >= 0
}

func (r *reader) free() {
	conn.PutBuffer(r.pooled)
	r.pooled = nil
}

const headEnd = "\r\n\r\n"

// findHeadEnd returns the index of the first headEnd in b, or -1. bytes.Index takes twice as long for a
// head, because each line has the beginning of headEnd.
func findHeadEnd(b []byte) int {
	for at := 0; ; at++ {
		i := bytes.IndexByte(b[at:], '\r')
		if at += i; i < 0 || len(b)-at < len(headEnd) {
			return -1
		}
		if string(b[at:at+len(headEnd)]) == headEnd {
			return at
		}
	}
}

// head returns the next head with its empty line. The slice is valid until consume; head
// itself consumes only empty lines before it. After a conn.ErrWouldBlock the caller calls it
// again; no bytes are lost.
func (r *reader) head(limit int) ([]byte, error) {
	for {
		if err := r.skipEmptyLines(0); err != nil {
			return nil, err
		}
		b := r.buffered()
		if len(b) > r.scanned {
			from := max(0, r.scanned-len(headEnd)+1)
			if i := findHeadEnd(b[from:]); i >= 0 {
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

// maxEmptyLines limits the empty lines before a head. Old clients send one after the body of
// a POST.
const maxEmptyLines = 4

// skipEmptyLines consumes the empty lines before a head (RFC 9112, section 2.2).
// They do not start a message: weir starts no timeout and charges no memory for them.
func (r *reader) skipEmptyLines(rules Lenient) error {
	for {
		n := endOfLine(r.buffered(), rules)
		if n == 0 {
			return nil
		}
		if r.skipped == maxEmptyLines {
			return errEmptyLines
		}
		r.skipped++
		r.scanned = 0
		r.loose = r.loose || n == 1
		r.consume(n)
	}
}

// truncated reports whether an attacker may have caused the end of the stream, because
// TLS ended without a close_notify. A body that is delimited by the end is then incomplete
// (RFC 9112, section 9.8).
func (r *reader) truncated() bool {
	src, can := r.src.(interface{ Truncated() bool })
	return can && src.Truncated()
}

// bareLF reports whether b has a line feed, at from or later, without a carriage return
// before it. For weir such a head would never end, but it does for parsers that accept bare
// line feeds.
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

var (
	errBareLF     = refusal(400, "bare_line_feed", "a line ends without a carriage return")
	errEmptyLines = refusal(400, "empty_lines", "there are more than four empty lines before the request or response line")
)
