package http2

import (
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
)

// body contains the bytes of a body that have arrived and were not read. It takes up
// memory only for these bytes, in whole buffers, and never more than the stream's window.
type body struct {
	account *memory.Account // charged for each buffer; nil: nothing is charged
	chunks  []chunk
	given   int // bytes of the first chunk that next has returned
	size    int
}

type chunk struct {
	buf  *conn.Buffer
	r, w int
}

// add appends a copy of p. It returns false if there is no memory for it.
func (b *body) add(p []byte) bool {
	b.size += len(p)
	for len(p) > 0 {
		n := len(b.chunks)
		if n == 0 || b.chunks[n-1].w == conn.BufferSize {
			if !b.account.Charge(conn.BufferSize) {
				b.size -= len(p)
				return false
			}
			b.chunks = append(b.chunks, chunk{buf: conn.GetBuffer()})
			n++
		}
		last := &b.chunks[n-1]
		k := copy(last.buf[last.w:], p)
		last.w += k
		p = p[k:]
	}
	return true
}

// whole returns all bytes, if they are in one piece.
func (b *body) whole() ([]byte, bool) {
	switch len(b.chunks) {
	case 0:
		return nil, true
	case 1:
		first := &b.chunks[0]
		return first.buf[first.r+b.given : first.w], true
	}
	return nil, false
}

// next returns the next piece, or nothing. The piece is valid until done.
func (b *body) next() []byte {
	if len(b.chunks) == 0 {
		return nil
	}
	first := &b.chunks[0]
	b.given = first.w - first.r
	return first.buf[first.r:first.w]
}

// done removes the piece that next returned, and returns its length.
func (b *body) done() int {
	n := b.given
	if n == 0 {
		return 0
	}
	b.given = 0
	b.size -= n
	first := &b.chunks[0]
	if first.r += n; first.r < first.w {
		return n // more bytes have arrived in this buffer
	}
	conn.PutBuffer(first.buf)
	b.account.Release(conn.BufferSize)
	copy(b.chunks, b.chunks[1:])
	b.chunks = b.chunks[:len(b.chunks)-1]
	return n
}

// discard discards all bytes.
func (b *body) discard() {
	for i := range b.chunks {
		conn.PutBuffer(b.chunks[i].buf)
		b.chunks[i] = chunk{}
	}
	b.account.Release(conn.BufferSize * len(b.chunks))
	*b = body{account: b.account, chunks: b.chunks[:0]}
}
