package http1

import (
	"io"
	"strconv"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// writer is the buffered writing side of a connection: a message that fits
// leaves in one write. It holds memory only while bytes are in it.
type writer struct {
	dst     io.Writer
	pooled  *conn.Buffer
	buf     []byte
	chunked bool // the current body is sent in chunks
}

// room returns the buffer to append to.
func (w *writer) room() []byte {
	if w.buf == nil {
		w.pooled = conn.GetBuffer()
		w.buf = w.pooled[:0]
	}
	return w.buf
}

// flush writes what was gathered, in one write, and gives the memory back.
func (w *writer) flush() error {
	var err error
	if len(w.buf) > 0 {
		_, err = w.dst.Write(w.buf)
	}
	conn.PutBuffer(w.pooled)
	w.pooled, w.buf = nil, nil
	return err
}

// chunkOverhead is the most that framing adds to a piece of a body.
const chunkOverhead = 16 + 2 + 2

// body adds a piece of a body. What does not fit goes out at once.
func (w *writer) body(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	b := w.room()
	if len(b)+len(p)+chunkOverhead > cap(b) && len(b) > 0 {
		if !w.chunked {
			return w.fillUp(p)
		}
		if err := w.flush(); err != nil {
			return err
		}
		b = w.room()
	}
	if !w.chunked {
		if len(p)+chunkOverhead > cap(b) {
			_, err := w.dst.Write(p)
			return err
		}
		w.buf = append(b, p...)
		return nil
	}
	b = strconv.AppendUint(b, uint64(len(p)), 16)
	b = append(b, '\r', '\n')
	b = append(b, p...)
	w.buf = append(b, '\r', '\n')
	return nil
}

// fillUp sends p behind what is there: in whole buffers, so that a large body
// costs no more writes than it has buffers.
func (w *writer) fillUp(p []byte) error {
	n := min(len(p), cap(w.buf)-len(w.buf))
	w.buf = append(w.buf, p[:n]...)
	if err := w.flush(); err != nil || n == len(p) {
		return err
	}
	w.buf = append(w.room(), p[n:]...)
	return nil
}

// end finishes the current body; trailers go out only behind chunks.
func (w *writer) end(trailers *message.Head) {
	if !w.chunked {
		return
	}
	w.chunked = false
	b := append(w.room(), "0\r\n"...)
	b = appendFields(b, trailers)
	w.buf = append(b, '\r', '\n')
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

// discard forgets what was gathered.
func (w *writer) discard() {
	conn.PutBuffer(w.pooled)
	w.pooled, w.buf, w.chunked = nil, nil, false
}
