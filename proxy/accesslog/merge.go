package accesslog

import "math"

// merge iterates over the lines of several stripes in the order of their times. Within a stripe
// it keeps the order.
type merge struct{ sources []source }

// source has the lines of one stripe that are left.
type source struct {
	chunks []*chunk
	line   int // the next one of chunks[0]
}

func sameStripe(chunks []*chunk) bool {
	for _, c := range chunks {
		if c.stripe != chunks[0].stripe {
			return false
		}
	}
	return true
}

func newMerge(chunks []*chunk) *merge {
	m := new(merge)
	of := map[int]int{} // index in sources by stripe
	for _, c := range chunks {
		i, known := of[c.stripe]
		if !known {
			i = len(m.sources)
			of[c.stripe] = i
			m.sources = append(m.sources, source{})
		}
		m.sources[i].chunks = append(m.sources[i].chunks, c)
	}
	return m
}

// time returns the time of the next line. A source without lines comes last.
func (s *source) time() int64 {
	if len(s.chunks) == 0 {
		return math.MaxInt64
	}
	return s.chunks[0].times[s.line]
}

// next returns the next lines, one or more of the same stripe; nil: there are no more.
func (m *merge) next() []byte {
	first, second := -1, int64(math.MaxInt64) // the earliest source, and the time of the one after it
	for i := range m.sources {
		t := m.sources[i].time()
		switch {
		case len(m.sources[i].chunks) == 0:
		case first < 0:
			first = i
		case t < m.sources[first].time():
			first, second = i, m.sources[first].time()
		case t < second:
			second = t
		}
	}
	if first < 0 {
		return nil
	}
	return m.sources[first].until(second)
}

// until returns the next line, and those after it in the same chunk that are not later than t.
func (s *source) until(t int64) []byte {
	c, from := s.chunks[0], 0
	if s.line > 0 {
		from = c.ends[s.line-1]
	}
	for s.line++; s.line < len(c.ends) && c.times[s.line] <= t; s.line++ {
	}
	to := c.ends[s.line-1]
	if s.line == len(c.ends) {
		s.chunks, s.line = s.chunks[1:], 0
	}
	return c.b[from:to]
}
