package route

import (
	"bytes"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/weirproxy/weir/proxy/message"
)

// Respelled finds the routes that a request would have if its path were spelled in another
// way: with escapes decoded, slashes merged, parameters (";a=b") removed, or in another case.
// Several goroutines may use it at once, because it never changes.
type Respelled[T any] struct {
	written *Paths[T]          // the matches as they are
	ranks   []uint32           // of the matches, in the order of precedence
	any     *Paths[respelt[T]] // the matches in any spelling; expressions in any case
}

// respelt is the route of a match, and its rank. Of two matches that have a path in some spelling, the
// one with the higher rank is more specific; if both ranks are equal, they have the same path.
type respelt[T any] struct {
	route T
	rank  uint32
}

// CompileRespelled compiles the matches of a host. written is the result of Compile for them.
func CompileRespelled[T any](entries []Entry[T], written *Paths[T]) (*Respelled[T], error) {
	s := &Respelled[T]{written: written}
	var all []Entry[respelt[T]]
	among := make(map[string]uint32) // the ranks of paths among expressions
	for i, e := range inOrder(entries) {
		m, rank := e.Match, uint32(0)
		class := m.Path.class()
		if m.Path.Kind == Expression {
			m.Path.FoldCase, rank = true, uint32(len(entries)-i)
		} else if class != everything {
			m.Path.Text, m.Path.AnySpelling = string(folded(message.Leveled([]byte(m.Path.Text)))), true
			if rank = rankOfPlain + uint32(len(m.Path.Text)); class == regular {
				text := lowered(m.Path.Text)
				rank = max(uint32(len(entries)-i), among[text])
				among[text] = rank
			}
		}
		s.ranks = append(s.ranks, rank)
		all = append(all, Entry[respelt[T]]{m, respelt[T]{e.Route, rank}})
	}
	var err error
	s.any, err = Compile(all)
	return s, err
}

// rankOfPlain is more than the number of matches of a host.
const rankOfPlain = 1 << 31

// Any reports whether a route that another spelling of the request's path has fulfils the
// condition is. A match for the path as it is written is meant: less specific ones do not count then.
// Any allocates only for paths with escapes, parameters or repeated slashes.
func (s *Respelled[T]) Any(r *Request, is func(T) bool) bool {
	return s.AnyOf(r.Head.Bytes(r.Head.Path), r, is)
}

// AnyOf is Any for another path than that of the request, such as the path after a rewrite. The route
// that matches this path as written counts, too, unless its match is for all paths.
func (s *Respelled[T]) AnyOf(path []byte, r *Request, is func(T) bool) bool {
	least := uint32(0)
	if e := s.written.find(path, r); e != nil {
		least = s.ranks[e.position]
		if least > 0 && !(e.expression != nil && e.expression.Match(slash)) && is(e.route) {
			return true
		}
	}
	if s.anySpelled(path, r, least, is) {
		return true
	}
	rest := withoutAuthority(path)
	return len(rest) > 0 && s.anySpelled(rest, r, least, is)
}

// anySpelled is AnyOf for all spellings of a path.
func (s *Respelled[T]) anySpelled(path []byte, r *Request, least uint32, is func(T) bool) bool {
	if s.anyRead(path, r, least, is) {
		return true
	}
	isOne := message.IsLevel(path) && !slices.ContainsFunc(path, func(c byte) bool { return c == ';' || c == '\\' || c >= utf8.RuneSelf })
	return !isOne && s.anyReading(path, r, least, is)
}

// withoutAuthority returns the path in a reference that begins with two slashes and a host (RFC 3986,
// section 4.2). Endpoints read a path in this way if they resolve it like a link, such as by
// "new URL(request.url, base)" in JavaScript, which also ignores further slashes, and takes
// backslashes for slashes. It returns nothing for other paths, and for references without a path.
func withoutAuthority(path []byte) []byte {
	host := bytes.TrimLeft(path, `/\`)
	if len(path)-len(host) < 2 {
		return nil
	}
	return host[min(uint(bytes.IndexAny(host, `/\`)), uint(len(host))):]
}

// anyReading is AnyOf for the readings of a path. It allocates.
func (s *Respelled[T]) anyReading(path []byte, r *Request, least uint32, is func(T) bool) bool {
	var buf [256]byte
	for _, how := range readings {
		if !how.changes(path) {
			continue
		}
		read := folded(appendRead(buf[:0], path, how))
		if s.anyRead(read, r, least, is) {
			return true
		}
		// An endpoint that decodes before it splits off the query sees its beginning here.
		if end := bytes.IndexAny(read, "?#"); end > 0 && s.anyRead(read[:end], r, least, is) {
			return true
		}
	}
	return false
}

// anyRead is AnyOf for one reading of a path. Only matches of a higher rank than least count.
func (s *Respelled[T]) anyRead(path []byte, r *Request, least uint32, is func(T) bool) bool {
	counts := func(e *entry[respelt[T]], path []byte) bool {
		return e.route.rank > least && e.conditions.hold(r) && (e.expression == nil || e.expression.Match(path)) && is(e.route.route)
	}
	return s.any.before.spellings.anySpelling(path, counts) || s.any.among.spellings.anySpelling(path, counts) ||
		s.any.expressions.anyExpression(path, counts) || s.any.decoded != nil && s.any.decoded.anyExpression(message.Leveled(path), counts)
}

// anySpelling reports whether a path has, in any spelling, a match that counts.
func (x *index[T]) anySpelling(path []byte, counts func(e *entry[T], path []byte) bool) bool {
	if x == nil {
		return false
	}
	c := x.cursor()
	last := byte(0)
	for i := 0; i < len(path); {
		b, width := slashed(path[i:])
		i += width
		if b == '/' && last == '/' {
			continue
		}
		if x.anyAt(c.text(), []byte{b}, counts) {
			return true
		}
		if last = b; !c.step(lower(b)) {
			return false
		}
	}
	return x.anyAt(c.text(), nil, counts)
}

// anyAt reports whether a match of the node counts, if the path goes on with rest. n may be nil.
func (x *index[T]) anyAt(n *node, rest []byte, counts func(e *entry[T], path []byte) bool) bool {
	if n == nil {
		return false
	}
	for i := n.from; i < n.to; i++ {
		if e := &x.entries[i]; e.ends(rest) && counts(e, nil) {
			return true
		}
	}
	return false
}

// anyExpression reports whether an expression matches the path and counts.
func (x *index[T]) anyExpression(path []byte, counts func(e *entry[T], path []byte) bool) bool {
	if x == nil {
		return false
	}
	c := x.cursor()
	for i := 0; ; i++ {
		if n := c.text(); n != nil {
			for j := n.from; j < n.to; j++ {
				if e := &x.entries[j]; counts(e, path) {
					return true
				}
			}
		}
		if i == len(path) || !c.step(lower(path[i])) {
			return false
		}
	}
}

// reading is what an endpoint may do with a path before it looks at it, in this order.
type reading struct {
	turn   bool // it takes backslashes for slashes
	bare   bool // it removes the parameters of segments
	decode bool // it decodes escapes
	drop   bool // it removes a "%" without two digits
	late   bool // it also takes the backslashes for slashes that it has decoded
	again  bool // it removes parameters that it has decoded
	merge  bool // it merges slashes
}

// readings are the readings of a path, apart from the path as it is written. Each of them stands for
// upper and lower case as well.
var readings = func() (all []reading) {
	for i := 1; i < 1<<7; i++ {
		how := reading{i&1 > 0, i&2 > 0, i&4 > 0, i&8 > 0, i&16 > 0, i&32 > 0, i&64 > 0}
		if (how.decode || !how.drop && !how.late && !how.again) && (how.turn || !how.late) {
			all = append(all, how)
		}
	}
	return all
}()

// changes reports whether every step of the reading may change the path.
func (how reading) changes(path []byte) bool {
	return (!how.decode || bytes.IndexByte(path, '%') >= 0) && (!how.bare || bytes.IndexByte(path, ';') >= 0) &&
		(!how.turn || how.late || bytes.IndexByte(path, '\\') >= 0) &&
		(!how.late || bytes.Contains(path, []byte("%5c")) || bytes.Contains(path, []byte("%5C"))) &&
		(!how.drop || message.BrokenEscape(path))
}

// appendRead appends a path as an endpoint reads it.
func appendRead(buf, path []byte, how reading) []byte {
	begin := len(buf)
	buf = append(buf, path...)
	b := buf[begin:]
	if how.turn {
		turnBackslashes(b)
	}
	if how.bare {
		b = withoutParameters(b)
	}
	if how.decode {
		b = withoutEscapes(b, how.drop)
	}
	if how.late {
		turnBackslashes(b)
	}
	if how.again {
		b = withoutParameters(b)
	}
	if how.merge {
		b = withoutRepeats(b)
	}
	return buf[:begin+len(b)]
}

// withoutParameters removes the parameters of segments within b.
func withoutParameters(b []byte) []byte {
	to, skips := b[:0], false
	for _, c := range b {
		if skips = c != '/' && (skips || c == ';'); !skips {
			to = append(to, c)
		}
	}
	return to
}

// withoutEscapes decodes escapes within b, once. With drop, it removes each "%" without two digits.
func withoutEscapes(b []byte, drop bool) []byte {
	to := b[:0]
	for len(b) > 0 {
		c, width := message.DecodeByte(b)
		if !drop || c != '%' || width > 1 {
			to = append(to, c)
		}
		b = b[width:]
	}
	return to
}

func turnBackslashes(b []byte) {
	for i, c := range b {
		if c == '\\' {
			b[i] = '/'
		}
	}
}

// folded returns a decoded path with its letters beyond ASCII in lower case. Some of them are another
// case of an ASCII letter for endpoints that compare letter by letter, such as Java's
// equalsIgnoreCase: U+017F of s, U+212A of k, U+0130 and U+0131 of i. So a letter gets upper case first.
// It returns path itself if that is ASCII, and otherwise allocates.
func folded(path []byte) []byte {
	if !slices.ContainsFunc(path, func(c byte) bool { return c >= utf8.RuneSelf }) {
		return path
	}
	to := make([]byte, 0, len(path))
	for len(path) > 0 {
		c, width := utf8.DecodeRune(path)
		if c < utf8.RuneSelf || c == utf8.RuneError {
			to = append(to, path[:width]...)
		} else {
			to = utf8.AppendRune(to, unicode.ToLower(unicode.ToUpper(c)))
		}
		path = path[width:]
	}
	return to
}

// withoutRepeats merges slashes within b.
func withoutRepeats(b []byte) []byte {
	to := b[:0]
	for _, c := range b {
		if c != '/' || !bytes.HasSuffix(to, slash) {
			to = append(to, c)
		}
	}
	return to
}

var slash = []byte("/")
