package http2

import (
	"sync"

	"github.com/weirproxy/weir/listener/conn"
)

// Output gathers in buffers from pools. Most of it fits the smallest kind; what
// does not moves to a larger one, because large bodies would otherwise spend
// more on growing than on all else, and nothing of an idle connection's is kept.
const (
	mediumOutput = 64 << 10
	largeOutput  = 288 << 10 // the default of Config.Output, and what comes on top of it
)

var (
	mediumOutputs = sync.Pool{New: func() any { return new([mediumOutput]byte) }}
	largeOutputs  = sync.Pool{New: func() any { return new([largeOutput]byte) }}
)

// withRoom returns b with room for n more bytes.
func withRoom(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	var larger []byte
	switch n += len(b); {
	case n <= conn.BufferSize:
		larger = conn.GetBuffer()[:0]
	case n <= mediumOutput:
		larger = mediumOutputs.Get().(*[mediumOutput]byte)[:0]
	case n <= largeOutput:
		larger = largeOutputs.Get().(*[largeOutput]byte)[:0]
	default:
		return b // append finds a place
	}
	larger = append(larger, b...)
	putOutput(b)
	return larger
}

// putOutput gives a buffer back. The caller keeps no slice of it.
func putOutput(b []byte) {
	switch cap(b) {
	case conn.BufferSize:
		conn.PutBuffer((*conn.Buffer)(b[:conn.BufferSize]))
	case mediumOutput:
		mediumOutputs.Put((*[mediumOutput]byte)(b[:mediumOutput]))
	case largeOutput:
		largeOutputs.Put((*[largeOutput]byte)(b[:largeOutput]))
	}
}
