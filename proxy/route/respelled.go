package route

import (
	"bytes"
	"slices"

	"github.com/weirproxy/weir/proxy/message"
)

// Respelled finds the routes that a request would have if its path were spelled in another
// way: with escapes decoded, slashes merged, parameters (";a=b") removed, or in another case.
// Several goroutines may use it at once, because it never changes.
type Respelled[T any] struct{ paths *Paths[T] }

// CompileRespelled compiles the matches of a host, as Compile does.
func CompileRespelled[T any](entries []Entry[T]) (*Respelled[T], error) {
	// The entries themselves go before their copies: a path that is spelled as in a match
	// is meant.
	all := slices.Clone(entries)
	for _, e := range entries {
		if e.Path.Kind == Expression {
			e.Path.FoldCase = true
		} else {
			e.Path.Text, e.Path.AnySpelling = string(appendLeveled(nil, []byte(e.Path.Text), false)), true
		}
		all = append(all, e)
	}
	paths, err := Compile(all)
	return &Respelled[T]{paths}, err
}

// Any reports whether a route that another spelling of the request's path has fulfils the
// condition is. It allocates only for paths with escapes, parameters or repeated slashes.
func (s *Respelled[T]) Any(r *Request, is func(T) bool) bool {
	path := r.Head.Bytes(r.Head.Path)
	if e := s.paths.find(path, r); e != nil && is(e.route) {
		return true
	}
	isOne := message.IsLevel(path) && !bytes.ContainsRune(path, ';')
	return !isOne && s.anyLeveled(path, r, is)
}

// anyLeveled is Any for the leveled forms of a path. It allocates.
func (s *Respelled[T]) anyLeveled(path []byte, r *Request, is func(T) bool) bool {
	var buf [256]byte
	for _, bare := range []bool{false, true} {
		if e := s.paths.find(appendLeveled(buf[:0], path, bare), r); e != nil && is(e.route) {
			return true
		}
	}
	return false
}

// appendLeveled appends a path with its escapes decoded and its slashes merged, and if bare is
// true without the parameters of its segments.
func appendLeveled(buf, path []byte, bare bool) []byte {
	for len(path) > 0 {
		c, width := message.DecodeByte(path)
		path = path[width:]
		switch {
		case c == '/' && bytes.HasSuffix(buf, slash):
		case c == ';' && bare:
			for len(path) > 0 {
				if c, width = message.DecodeByte(path); c == '/' {
					break
				}
				path = path[width:]
			}
		default:
			buf = append(buf, c)
		}
	}
	return buf
}

var slash = []byte("/")
