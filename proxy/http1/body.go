package http1

import (
	"bytes"
	"io"

	"github.com/weirproxy/weir/proxy/message"
)

// body decodes one message body. The zero value is a body that has ended.
type body struct {
	state    bodyState
	left     int64 // unread bytes of a body with a length, or of the current chunk
	overhead int64 // bytes of chunk size lines beyond what is usual and twice the data; at least 0
	rules    Lenient
	odd      bool // weir accepted a fault
}

type bodyState uint8

const (
	bodyEnded bodyState = iota
	bodyLength
	bodyUntilClose
	chunkSize
	chunkData
	chunkEnd
	chunkTrailers
)

var (
	errChunkSize  = refusal(400, "bad_chunk", "a chunk of the body does not begin with its size in hexadecimal digits")
	errChunkEnd   = refusal(400, "bad_chunk", "a chunk of the body is longer than its size")
	errChunkLine  = refusal(400, "bad_chunk", "the line with the size of a chunk is too long")
	errChunkWaste = refusal(400, "bad_chunk", "the body has more chunk extensions than data")
)

// maxChunkLine limits the line with the size of a chunk and its extensions, which are unused
// in practice. maxOverhead limits by how much all these lines may exceed usualSize for each
// chunk, and twice the data. Without limits, a sender could make weir read such lines
// endlessly (CVE-2023-39326). Some senders write all sizes with 8 digits or pad them, also
// those of chunks of a byte.
const (
	maxChunkLine = 256
	maxOverhead  = 8 << 10
	usualSize    = 16
)

func (b *body) start(length int64, chunked, untilClose bool, rules Lenient) {
	switch {
	case chunked:
		*b = body{state: chunkSize, rules: rules}
	case untilClose:
		*b = body{state: bodyUntilClose}
	case length > 0:
		*b = body{state: bodyLength, left: length}
	default:
		*b = body{}
	}
}

func (b *body) ended() bool { return b.state == bodyEnded }

// owes reports whether the sender has begun something that it must complete: a body with a length,
// a chunk, or the trailers. Between two chunks it may be silent.
func (b *body) owes() bool {
	return b.state == bodyLength || b.state == chunkData || b.state == chunkEnd || b.state == chunkTrailers
}

// next returns the next piece of the body, valid until the next read of r. It returns io.EOF
// when the body has ended. It reads from the connection only if it has nothing to return.
// After a conn.ErrWouldBlock the caller calls it again; no bytes are lost. head is the head
// of the message: its Connection fields also apply to trailers.
func (b *body) next(r *reader, head, trailers *message.Head, limits Limits) ([]byte, error) {
	for {
		switch b.state {
		case bodyEnded:
			return nil, io.EOF
		case bodyLength, bodyUntilClose, chunkData:
			return b.data(r)
		case chunkSize:
			if err := b.size(r); err != nil {
				return nil, err
			}
		case chunkEnd:
			if err := b.crlf(r); err != nil {
				return nil, err
			}
			b.state = chunkSize
		case chunkTrailers:
			if err := b.readTrailers(r, head, trailers, limits); err != nil {
				return nil, err
			}
			b.state = bodyEnded
		}
	}
}

func (b *body) data(r *reader) ([]byte, error) {
	if r.empty() {
		err := r.fill(0)
		if err == io.EOF && b.state == bodyUntilClose && !r.truncated() {
			b.state = bodyEnded
			return nil, io.EOF
		}
		if err != nil {
			return nil, unexpected(err)
		}
	}
	p := r.buffered()
	if b.state != bodyUntilClose {
		if int64(len(p)) >= b.left {
			p = p[:b.left]
		}
		b.left -= int64(len(p))
		if b.left == 0 {
			b.state = afterData[b.state]
		}
	}
	r.consume(len(p))
	b.endChunk(r)
	return p, nil
}

// endChunk consumes the end of a chunk if it arrived together with the last byte. Otherwise
// a caller that checks for unread bytes would take it for more of the body.
func (b *body) endChunk(r *reader) {
	if b.state != chunkEnd {
		return
	}
	if n := b.lineEnd(r.buffered()); n > 0 {
		r.consume(n)
		b.state = chunkSize
	}
}

// lineEnd is endOfLine with the rules of the body.
func (b *body) lineEnd(p []byte) int {
	n := endOfLine(p, b.rules)
	b.odd = b.odd || n == 1
	return n
}

// endOfLine returns the length of the line end at the beginning of p; 0: there is none, or
// it is incomplete.
func endOfLine(p []byte, rules Lenient) int {
	switch {
	case len(p) >= 2 && p[0] == '\r' && p[1] == '\n':
		return 2
	case len(p) >= 1 && p[0] == '\n' && rules.accepts(BareLF):
		return 1
	}
	return 0
}

// afterData is the state after the last byte of a piece.
var afterData = [...]bodyState{bodyLength: bodyEnded, chunkData: chunkEnd}

func (b *body) size(r *reader) error {
	line, whole, err := b.line(r)
	if err != nil {
		return err
	}
	var n int64
	digits := 0
	for digits < len(line) && message.HexDigit(line[digits]) {
		n = n<<4 | int64(hexValue(line[digits]))
		if digits++; digits > 15 {
			return errChunkSize
		}
	}
	rest := line[digits:]
	if b.rules.accepts(ofResponse) {
		// Apache httpd 1.3 and others pad all sizes to the same length with spaces. Before an
		// extension, RFC 9112 (section 7.1.1) allows spaces and tabs, too.
		rest = message.TrimSpace(rest)
	}
	if digits == 0 || len(rest) > 0 && rest[0] != ';' || !message.ValidValue(rest) {
		return errChunkSize
	}
	if b.overhead = max(0, b.overhead+int64(len(line))-usualSize-2*n); b.overhead > maxOverhead {
		return errChunkWaste
	}
	r.consume(whole)
	b.left, b.state = n, chunkData
	if n == 0 {
		b.state = chunkTrailers
	}
	return nil
}

// line returns the next line without its end, and its length including the end. It consumes
// nothing.
func (b *body) line(r *reader) (line []byte, whole int, err error) {
	for {
		p := r.buffered()
		p = p[:min(len(p), maxChunkLine)] // more bytes may have arrived
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			switch {
			case i > 0 && p[i-1] == '\r':
				return p[:i-1], i + 1, nil
			case b.rules.accepts(BareLF):
				b.odd = true
				return p[:i], i + 1, nil
			}
			return nil, 0, errBareLF
		}
		if len(p) == maxChunkLine {
			return nil, 0, errChunkLine
		}
		if err := r.fill(0); err != nil {
			return nil, 0, unexpected(err)
		}
	}
}

// crlf consumes the end of a chunk.
func (b *body) crlf(r *reader) error {
	for {
		p := r.buffered()
		if n := b.lineEnd(p); n > 0 {
			r.consume(n)
			return nil
		}
		if len(p) >= 2 || len(p) == 1 && p[0] != '\r' {
			return errChunkEnd
		}
		if err := r.fill(0); err != nil {
			return unexpected(err)
		}
	}
}

// readTrailers reads the trailers, and keeps the fields that may be trailers.
func (b *body) readTrailers(r *reader, head, trailers *message.Head, limits Limits) error {
	for {
		p := r.buffered()
		if n := b.lineEnd(p); n > 0 {
			r.consume(n)
			return nil
		}
		if len(p) >= 2 {
			break
		}
		if len(p) == 1 && p[0] == '\n' {
			return errBareLF // not an empty line for weir, but for other parsers
		}
		if err := r.fill(limits.HeadBytes); err != nil {
			return unexpected(err)
		}
	}
	section, n, err := r.headBy(b.rules, limits.HeadBytes)
	if err != nil {
		return unexpected(err)
	}
	b.odd = b.odd || n != len(section)
	block, offset := trailers.Load(section)
	if err := parseFields(trailers, block, offset, limits.Fields, 0); err != nil {
		trailers.Reset() // refused as a whole
		return err
	}
	r.consume(n)
	message.KeepTrailers(trailers, head)
	return nil
}

func hexValue(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// unexpected replaces io.EOF within a message by io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
