package route

import (
	"iter"
	"regexp"

	"github.com/weirproxy/weir/proxy/message"
)

// Paths are the compiled matches of a host. Several goroutines may use them at once, because
// they never change. Compile makes them.
type Paths[T any] struct {
	before      texts[T]   // the paths that go before expressions
	among       texts[T]   // the paths among the expressions
	expressions *index[T]  // by the literal text with which all paths of the expression begin, in lower case; nil: none
	decoded     *index[T]  // the same for expressions that match decoded paths; nil: none
	everything  []entry[T] // with the prefix "/"
}

// texts are paths that are no expressions.
type texts[T any] struct {
	plain     *index[T] // by path; nil: none
	spellings *index[T] // of paths in any spelling, by path in lower case; they are in plain as well; nil: none
}

// index finds the entries of a text. The entries of a node are in the order of precedence.
type index[T any] struct {
	*tree
	entries []entry[T]
}

// entry is a compiled match.
type entry[T any] struct {
	route      T
	conditions *conditions    // nil: none
	expression *regexp.Regexp // for the path; nil: none
	position   uint32         // in the order of precedence
	kind       Kind
	slash      bool // the text ends in a slash
}

// Find returns the route of a request: of the first match in the order of precedence that
// accepts the request. It returns false if no match does.
func (p *Paths[T]) Find(r *Request) (route T, found bool) {
	return p.FindOf(r.Head.Bytes(r.Head.Path), r)
}

// FindOf is Find for another path than that of the request, such as the path of a redirect.
func (p *Paths[T]) FindOf(path []byte, r *Request) (route T, found bool) {
	if e := p.find(path, r); e != nil {
		return e.route, true
	}
	return route, false
}

func (p *Paths[T]) find(path []byte, r *Request) *entry[T] {
	best := p.before.find(path, r)
	if best == nil {
		best = p.findAmong(path, r)
	}
	for i := 0; best == nil && i < len(p.everything); i++ {
		if e := &p.everything[i]; e.conditions.hold(r) {
			best = e
		}
	}
	return best
}

// findAmong returns the first match among the expressions, and the paths among them.
func (p *Paths[T]) findAmong(path []byte, r *Request) (best *entry[T]) {
	if p.expressions != nil {
		best = p.expressions.firstExpression(path, r)
	}
	if p.decoded != nil {
		best = first(best, p.decoded.firstDecoded(path, r))
	}
	if p.among.plain != nil {
		best = first(best, p.among.find(path, r))
	}
	return best
}

// find returns the first match for a path.
func (t *texts[T]) find(path []byte, r *Request) (best *entry[T]) {
	if t.plain != nil {
		best = t.plain.longest(path, r)
	}
	if t.spellings != nil {
		best = first(best, t.spellings.longestSpelling(path, r))
	}
	return best
}

// first returns the entry that goes first; each may be nil.
func first[T any](a, b *entry[T]) *entry[T] {
	if a == nil || b != nil && b.position < a.position {
		return b
	}
	return a
}

// All returns the route of every match, in no order. A route with several matches occurs several
// times.
func (p *Paths[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, entries := range [][]entry[T]{p.before.plain.all(), p.among.plain.all(), p.expressions.all(), p.decoded.all(), p.everything} {
			for i := range entries {
				if !yield(entries[i].route) {
					return
				}
			}
		}
	}
}

// all returns the entries of x, which may be nil.
func (x *index[T]) all() []entry[T] {
	if x == nil {
		return nil
	}
	return x.entries
}

// longest returns the first match for a path as it is written.
func (x *index[T]) longest(path []byte, r *Request) *entry[T] {
	for n := x.deepest(path); n != nil; n = x.above(n) {
		for i := n.from; i < n.to; i++ {
			e := &x.entries[i]
			if e.ends(path[n.depth:]) && e.conditions.hold(r) {
				return e
			}
		}
	}
	return nil
}

// ends reports whether the path may go on with rest after the text of e.
func (e *entry[T]) ends(rest []byte) bool {
	return len(rest) == 0 || e.kind != Exact && (rest[0] == '/' || e.slash || e.kind == Begins)
}

// firstDecoded is firstExpression for the path after decoding.
func (x *index[T]) firstDecoded(path []byte, r *Request) *entry[T] {
	return x.firstExpression(message.Leveled(path), r)
}

// firstExpression returns the first match for a path among the expressions.
func (x *index[T]) firstExpression(path []byte, r *Request) (best *entry[T]) {
	c := x.cursor()
	for i := 0; ; i++ {
		if n := c.text(); n != nil {
			best = first(best, x.matching(n, path, best, r))
		}
		if i == len(path) || !c.step(lower(path[i])) {
			return best
		}
	}
}

// matching returns the first expression of a node that matches and goes before the entry before;
// nil: none.
func (x *index[T]) matching(n *node, path []byte, before *entry[T], r *Request) *entry[T] {
	for i := n.from; i < n.to; i++ {
		e := &x.entries[i]
		if before != nil && before.position < e.position {
			break
		}
		if e.expression.Match(path) && e.conditions.hold(r) {
			return e
		}
	}
	return nil
}
