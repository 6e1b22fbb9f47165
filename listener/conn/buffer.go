package conn

import "sync"

// BufferSize is the length of a pooled buffer in bytes. A TLS record fits into it.
const BufferSize = 16 << 10

// Buffer is a pooled block of memory.
type Buffer [BufferSize]byte

var buffers = sync.Pool{New: func() any { return new(Buffer) }}

// GetBuffer takes a buffer from the pool. Its content is undefined.
func GetBuffer() *Buffer { return buffers.Get().(*Buffer) }

// PutBuffer gives b back. The caller must not keep a slice of it.
func PutBuffer(b *Buffer) {
	if b != nil {
		buffers.Put(b)
	}
}
