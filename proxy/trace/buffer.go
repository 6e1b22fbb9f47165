package trace

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Buffer holds the encoded spans that wait for their receiver.
type Buffer struct {
	dropped prometheus.Counter // spans that did not fit

	mu     sync.Mutex
	chunks []chunk
	size   int
	limit  int
	full   atomic.Bool
	wake   chan struct{} // there are spans
	filled chan struct{} // there is a whole chunk
}

// chunk has the spans of one request to the receiver.
type chunk struct {
	b     []byte
	spans int
}

// chunkSize is the size of a request in bytes. Receivers refuse requests of more than 4 MiB.
const chunkSize = 256 << 10

// NewBuffer returns a Buffer of at most limit bytes. dropped counts the spans that do not fit.
func NewBuffer(limit int, dropped prometheus.Counter) *Buffer {
	return &Buffer{limit: limit, dropped: dropped, wake: make(chan struct{}, 1), filled: make(chan struct{}, 1)}
}

// isFull reports whether there is no room, and counts the spans that are dropped then.
func (b *Buffer) isFull(spans int) bool {
	if !b.full.Load() {
		return false
	}
	b.dropped.Add(float64(spans))
	return true
}

// add copies the spans of one trace.
func (b *Buffer) add(spans []byte, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size+len(spans) > b.limit {
		b.full.Store(true)
		b.dropped.Add(float64(count))
		return
	}
	b.size += len(spans)
	n := len(b.chunks) - 1
	if n < 0 || len(b.chunks[n].b) >= chunkSize {
		b.chunks = append(b.chunks, chunk{})
		n++
		signal(b.wake)
	}
	c := &b.chunks[n]
	c.b, c.spans = append(c.b, spans...), c.spans+count
	if len(c.b) >= chunkSize {
		signal(b.filled)
	}
}

// take returns the next chunk; it has no spans if the buffer is empty.
func (b *Buffer) take() (c chunk) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.chunks) == 0 {
		return c
	}
	c = b.chunks[0]
	b.chunks = slices.Delete(b.chunks, 0, 1)
	b.size -= len(c.b)
	b.full.Store(false)
	return c
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
