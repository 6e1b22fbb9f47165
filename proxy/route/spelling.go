package route

import "github.com/weirproxy/weir/proxy/message"

// longestSpelling returns the first match for any spelling of the path that an endpoint may
// treat as the same path: with escapes decoded, backslashes as slashes, slashes merged, and letters in another case. A
// longer text always goes before a shorter one, so the last match on the way down is the first
// one in the order.
func (x *index[T]) longestSpelling(path []byte, r *Request) (best *entry[T]) {
	c := x.cursor()
	last := byte(0)
	for i := 0; i < len(path); {
		b, width := slashed(path[i:])
		i += width
		if b == '/' && last == '/' {
			continue
		}
		if n := c.text(); n != nil {
			best = x.spelt(n, []byte{b}, r, best)
		}
		if last = b; !c.step(lower(b)) {
			return best
		}
	}
	if n := c.text(); n != nil {
		best = x.spelt(n, nil, r, best)
	}
	return best
}

// slashed is message.DecodeByte for an endpoint that takes a backslash for a slash. No path of a route has a backslash.
func slashed(b []byte) (c byte, width int) {
	if c, width = message.DecodeByte(b); c == '\\' {
		c = '/'
	}
	return c, width
}

// spelt returns the first match of a node if the path goes on with rest, or otherwise.
func (x *index[T]) spelt(n *node, rest []byte, r *Request, otherwise *entry[T]) *entry[T] {
	for i := n.from; i < n.to; i++ {
		if e := &x.entries[i]; e.ends(rest) && e.conditions.hold(r) {
			return e
		}
	}
	return otherwise
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}
