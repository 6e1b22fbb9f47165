package core

import (
	"sync"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
)

// The output uses buffers from pools. Most output fits into the smallest kind. Other
// output moves to a larger buffer, because large bodies would otherwise cause more work
// for growing than for all else. An idle connection keeps no buffer.
const (
	mediumOutput = 64 << 10
	largeOutput  = 288 << 10 // enough for the default of Config.Output, and for the frames that may exceed it
)

var (
	mediumOutputs = sync.Pool{New: func() any { return new([mediumOutput]byte) }}
	largeOutputs  = sync.Pool{New: func() any { return new([largeOutput]byte) }}
)

// withRoom makes room in the output for n more bytes.
func (c *Connection) withRoom(n int) {
	if cap(c.out)-len(c.out) >= n {
		return
	}
	c.out = enlarge(c.out, n)
	c.chargeOutput(max(cap(c.out), len(c.out)+n))
}

// chargeOutput charges for an output of n bytes. Call it after a head was appended, because
// the head may have needed more room than withRoom made.
func (c *Connection) chargeOutput(n int) {
	if more := n - c.outCharged; more > 0 {
		c.config.Account.Force(more)
		c.outCharged += more
	}
}

// outputLimit returns how many bytes of output may wait before bodies and heads wait: fewer
// while memory is short.
func (c *Connection) outputLimit() int {
	if c.config.Account.Short() {
		return min(c.config.Output, conn.BufferSize-frameHeaderSize)
	}
	return c.config.Output
}

// Crowded reports whether so much output waits that heads must wait, too.
func (c *Connection) Crowded() bool { return len(c.out) >= c.outputLimit() }

// Output is output that was taken from a core.
type Output struct {
	bytes   []byte
	charged int // the memory in bytes that account was charged for the output
	account *memory.Account
}

// Bytes returns the output. It is valid until Free.
func (o Output) Bytes() []byte { return o.bytes }

// Free gives back the memory of the output. Call it once, when the bytes were sent or
// cannot be sent any more.
func (o Output) Free() {
	putOutput(o.bytes)
	o.account.Release(o.charged)
}

// enlarge returns b with room for n more bytes.
func enlarge(b []byte, n int) []byte {
	var larger []byte
	switch n += len(b); {
	case n <= conn.BufferSize:
		larger = conn.GetBuffer()[:0]
	case n <= mediumOutput:
		larger = mediumOutputs.Get().(*[mediumOutput]byte)[:0]
	case n <= largeOutput:
		larger = largeOutputs.Get().(*[largeOutput]byte)[:0]
	default:
		return b // append allocates a buffer
	}
	larger = append(larger, b...)
	putOutput(b)
	return larger
}

// putOutput gives a buffer back to its pool. The caller keeps no slice of it.
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
