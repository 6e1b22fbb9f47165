package http1

import (
	"io"
	"strconv"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// writer is the buffered writing side of a connection. It sends a message that fits into the
// buffer in one write. It holds memory only while it contains bytes.
type writer struct {
	dst     io.Writer
	pooled  *conn.Buffer
	buf     []byte
	chunked bool // the current body is sent in chunks

	account *memory.Account // is charged for buffers larger than a pooled one; nil: nothing is charged
	charged int             // bytes charged to account
}

// room returns the buffer to append to.
func (w *writer) room() []byte {
	if w.buf == nil {
		w.pooled = conn.GetBuffer()
		w.buf = w.pooled[:0]
	}
	return w.buf
}

// gathered makes b the buffer. The caller got b from room, and has appended a head.
func (w *writer) gathered(b []byte) {
	w.buf = b
	if more := cap(b) - w.charged; more > 0 && cap(b) > conn.BufferSize {
		w.account.Force(more)
		w.charged += more
	}
}

// free releases the memory.
func (w *writer) free() {
	conn.PutBuffer(w.pooled)
	w.pooled, w.buf = nil, nil
	if w.charged > 0 {
		w.account.Release(w.charged)
		w.charged = 0
	}
}

// flush writes the buffered bytes in one write, and releases the memory.
func (w *writer) flush() error {
	var err error
	if len(w.buf) > 0 {
		_, err = w.dst.Write(w.buf)
	}
	w.free()
	return err
}

const (
	// chunkOverhead is the maximum that framing adds to a piece of a body, including the end
	// of the body. body keeps this room free, so that the buffer does not grow.
	chunkOverhead = 16 + len("\r\n") + len("\r\n") + len("0\r\n\r\n")
	// leastPiece is the least room for which body splits a piece.
	leastPiece = 512
)

// body adds a piece of a body. If the piece does not fit, body sends full buffers at once. So
// a large body takes no more writes than it fills buffers.
func (w *writer) body(p []byte) error {
	for len(p) > 0 {
		b := w.room()
		n := min(len(p), cap(b)-len(b)-chunkOverhead)
		switch {
		case n == len(p):
			w.add(p)
			return nil
		case len(b) == 0 && !w.chunked:
			_, err := w.dst.Write(p)
			return err
		case n >= leastPiece:
			w.add(p[:n])
			p = p[n:]
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
	return nil
}

// add buffers a piece. The caller has checked that there is room.
func (w *writer) add(p []byte) {
	if !w.chunked {
		w.buf = append(w.buf, p...)
		return
	}
	b := strconv.AppendUint(w.buf, uint64(len(p)), 16)
	b = append(b, '\r', '\n')
	b = append(b, p...)
	w.buf = append(b, '\r', '\n')
}

// end finishes the current body. It writes trailers only after a chunked body.
func (w *writer) end(trailers *message.Head) {
	if !w.chunked {
		return
	}
	w.chunked = false
	b := append(w.room(), "0\r\n"...)
	b = appendFields(b, trailers)
	w.gathered(append(b, '\r', '\n'))
}

func appendFields(b []byte, h *message.Head) []byte {
	for i := range h.Fields {
		if !h.Fields[i].Dropped {
			b = append(b, h.Name(i)...)
			b = append(b, ':', ' ')
			b = append(b, h.Value(i)...)
			b = append(b, '\r', '\n')
		}
	}
	return b
}

// discard drops the buffered bytes, and releases the memory.
func (w *writer) discard() {
	w.free()
	w.chunked = false
}
