// Package compress chooses content codings (RFC 9110, section 8.4) and encodes bodies: zstd, br
// (Brotli) and gzip. It knows nothing of HTTP messages and connections.
package compress

import (
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Coding is a content coding.
type Coding uint8

// The codings. Of those that a client likes equally, the first one is used.
const (
	Identity Coding = iota // no coding
	Zstd
	Brotli
	Gzip
	codings
)

// String returns the name in Content-Encoding.
func (c Coding) String() string { return [...]string{"identity", "zstd", "br", "gzip"}[c] }

// Memory returns the memory that an Encoder of the coding holds at most, in bytes.
// TestMemoryOfEncoders measures it.
func (c Coding) Memory() int { return [...]int{0, 1 << 20, 3 << 20, 1 << 20}[c] }

// window is how far back the codings other than gzip look for repeated text, as a power of two in
// bytes. Larger windows need more memory, here and in clients.
const window = 18

// Destination takes the encoded body.
type Destination interface {
	// WriteBody takes a piece of the body. It must not keep p.
	WriteBody(p []byte) error
}

// Encoder encodes one body. Get takes it from a pool, and Release gives it back. One goroutine at
// a time may use it.
type Encoder struct {
	coding Coding
	codec  codec
	to     sink
	in     int64
	held   bool // the codec has bytes that it has not written yet
}

// codec is what the three libraries have in common.
type codec interface {
	io.WriteCloser
	Flush() error
	Reset(io.Writer)
}

var pools [codings]sync.Pool

// Get returns an encoder that writes to the destination. The coding is not Identity. The caller
// has charged Memory to the account of the client, and calls Release once.
func Get(coding Coding, to Destination) *Encoder {
	e, _ := pools[coding].Get().(*Encoder)
	if e == nil {
		e = newEncoder(coding)
	}
	e.to.destination = to
	e.codec.Reset(&e.to)
	return e
}

func newEncoder(coding Coding) *Encoder {
	e := &Encoder{coding: coding}
	switch coding {
	case Zstd:
		// The options are valid, so there is no error. With a concurrency of 1 there are no
		// goroutines.
		w, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(1<<window), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true), zstd.WithEncoderCRC(false))
		e.codec = w
	case Brotli:
		e.codec = brotli.NewWriterOptions(nil, brotli.WriterOptions{Quality: 4, LGWin: window})
	default:
		w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
		e.codec = w
	}
	return e
}

// Coding returns the coding.
func (e *Encoder) Coding() Coding { return e.coding }

// Write takes a piece of the body. Write, Flush and Close may wait for a turn, and return the errors
// of the destination.
func (e *Encoder) Write(p []byte) (int, error) {
	e.in += int64(len(p))
	e.held = e.held || len(p) > 0
	e.to.begin()
	defer e.to.rest()
	return e.codec.Write(p)
}

// Flush writes all bytes that were taken so far, so that a client can decode them. It writes
// nothing if nothing was taken since the last time.
func (e *Encoder) Flush() error {
	if !e.held {
		return nil
	}
	e.held = false
	e.to.begin()
	defer e.to.rest()
	if err := e.codec.Flush(); err != nil {
		return err
	}
	return e.to.flush()
}

// Close writes the end of the body. It leaves the destination open. A Flush after it writes
// nothing.
func (e *Encoder) Close() error {
	e.held = false
	e.to.begin()
	defer e.to.rest()
	if err := e.codec.Close(); err != nil {
		return err
	}
	return e.to.flush()
}

// Transferred returns how many bytes were taken and written.
func (e *Encoder) Transferred() (in, out int64) { return e.in, e.to.written }

// Release gives the encoder back, also after an error or in the middle of a body.
func (e *Encoder) Release() {
	e.to.destination, e.to.written, e.to.used = nil, 0, 0
	e.in, e.held = 0, false
	e.codec.Reset(nothing{})
	pools[e.coding].Put(e)
}

// nothing is the destination of a codec in the pool.
type nothing struct{}

func (nothing) Write(p []byte) (int, error) { return len(p), nil }

// sink gathers the small writes of a codec, so that the framing of HTTP adds less.
type sink struct {
	destination Destination
	written     int64
	used        int
	computes    bool // the codec has a turn
	buffer      [4 << 10]byte
}

// Write belongs to the codec.
func (s *sink) Write(p []byte) (int, error) {
	if s.used+len(p) > len(s.buffer) {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > len(s.buffer) {
		return len(p), s.pass(p)
	}
	s.used += copy(s.buffer[s.used:], p)
	return len(p), nil
}

func (s *sink) flush() error {
	if s.used == 0 {
		return nil
	}
	n := s.used
	s.used = 0
	return s.pass(s.buffer[:n])
}

// pass may wait for the client. Meanwhile other encoders may use the core.
func (s *sink) pass(p []byte) error {
	s.written += int64(len(p))
	s.rest()
	err := s.destination.WriteBody(p)
	s.begin()
	return err
}

func (s *sink) begin() {
	cores.take()
	s.computes = true
}

// rest also works after a panic of the destination.
func (s *sink) rest() {
	if s.computes {
		s.computes = false
		cores.free()
	}
}
