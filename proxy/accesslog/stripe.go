package accesslog

import "sync"

// chunkSize is the size of the memory for lines. A chunk is handed over when fewer than
// chunkSpare bytes are left.
const (
	chunkSize  = 64 << 10
	chunkSpare = 8 << 10
)

// chunk has lines that are to be written.
type chunk struct {
	b      []byte
	ends   []int   // where each line ends in b
	times  []int64 // of the lines, in Unix nanoseconds
	stripe int
	held   int64 // bytes that count towards the limit of the store
}

// stripe takes lines. Its lock is nearly always free, because each processor prefers a stripe
// of its own.
type stripe struct {
	mu    sync.Mutex
	chunk *chunk // nil: no line waits
	line  line
	index int
	ended bool     // no more lines
	_     [64]byte // the next stripe is not in the same cache line
}

// put appends the line of a record. It returns errSlow if there is no memory for it.
func (s *stripe) put(w *Writer, f *Format, r *Record, share float64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.chunk
	if c == nil {
		if s.ended {
			return errClosed
		}
		if c = w.store.take(); c == nil {
			return errSlow
		}
		c.stripe, s.chunk = s.index, c
	}
	s.line.b, s.line.share = c.b, share
	f.append(&s.line, r) // if it panics, c is as before
	b := s.line.b
	s.line.b = nil
	if more := int64(cap(b)) - c.held; more > 0 && !w.store.grow(c, more) {
		return errSlow
	}
	c.b, c.ends, c.times = b, append(c.ends, len(b)), append(c.times, r.Ended.UnixNano())
	if len(b) > chunkSize-chunkSpare {
		s.chunk = nil
		w.store.fill(c)
		signal(w.filled)
	}
	return nil
}

// handOver gives the lines to the store. If it is the last time, s takes no more lines. The
// caller holds s.mu.
func (s *stripe) handOver(w *Writer, last bool) {
	if s.chunk != nil && len(s.chunk.b) > 0 {
		w.store.fill(s.chunk)
		s.chunk = nil
	}
	if last {
		s.ended, s.chunk = true, nil
	}
}

// store has the chunks that wait for the destination, and those that are free.
type store struct {
	mu    sync.Mutex
	full  []*chunk // of each stripe in the order of its lines
	other []*chunk // the memory of full while full is being written
	free  []*chunk
	held  int64 // bytes of all chunks
	limit int64
}

// mostFree is the number of chunks that an idle log keeps.
const mostFree = 4

// take returns an empty chunk, or nil.
func (s *store) take() *chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		c := s.free[n-1]
		s.free = s.free[:n-1]
		return c
	}
	if s.held+chunkSize > s.limit {
		return nil
	}
	s.held += chunkSize
	return &chunk{b: make([]byte, 0, chunkSize), held: chunkSize}
}

// grow lets a chunk with a long line be larger by n bytes, or returns false.
func (s *store) grow(c *chunk, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held+n > s.limit {
		return false
	}
	s.held += n
	c.held += n
	return true
}

// fill takes a chunk that is to be written.
func (s *store) fill(c *chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = append(s.full, c)
}

// takeFull returns the chunks that are to be written. The caller releases them before it calls
// takeFull again.
func (s *store) takeFull() []*chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.full
	s.full, s.other = s.other[:0], full
	return full
}

// lines returns the number of lines that wait, and of those that are being written.
func (s *store) lines() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range [][]*chunk{s.full, s.other} {
		for _, c := range all {
			if c != nil {
				n += len(c.ends)
			}
		}
	}
	return n
}

// release makes chunks free.
func (s *store) release(chunks []*chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range chunks {
		chunks[i] = nil
		if c.held > chunkSize || len(s.free) >= mostFree {
			s.held -= c.held
			continue
		}
		c.b, c.ends, c.times = c.b[:0], c.ends[:0], c.times[:0]
		s.free = append(s.free, c)
	}
}
