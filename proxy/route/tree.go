package route

import "strings"

// tree is a prefix tree of texts. Each node is a text, or the common beginning of several texts.
// The time of a search depends on the length of the searched text and not on the number of texts.
type tree struct {
	nodes []node // the first is the root, the common beginning of all texts; the children of a node follow each other
}

type node struct {
	label    string // the bytes after the parent's text
	firsts   string // the first byte of each child's label
	children uint32 // the index of the first child
	from, to uint32 // the entries of the node's text; from == to: the node is only a beginning
	up       uint32 // the nearest node above that has entries, or the root
	depth    uint32 // the length of the node's text
}

// newTree builds the tree of texts: at least one, sorted, and none of them twice. Text i has the
// entries from starts[i] to starts[i+1].
func newTree(texts []string, starts []uint32) *tree {
	root := common(texts[0], texts[len(texts)-1])
	t := &tree{nodes: []node{{label: texts[0][:root], depth: uint32(root)}}}
	type part struct{ from, to int } // the texts that begin with a node's text
	parts := []part{{0, len(texts)}}
	for i := 0; i < len(parts); i++ {
		n, p := t.nodes[i], parts[i]
		if p.from < p.to && len(texts[p.from]) == int(n.depth) {
			n.from, n.to = starts[p.from], starts[p.from+1]
			p.from++
		}
		up := n.up
		if n.from < n.to {
			up = uint32(i)
		}
		n.children = uint32(len(t.nodes))
		var firsts []byte
		for p.from < p.to {
			first := texts[p.from][n.depth]
			next := p.from + 1
			for next < p.to && texts[next][n.depth] == first {
				next++
			}
			depth := common(texts[p.from], texts[next-1])
			firsts = append(firsts, first)
			t.nodes = append(t.nodes, node{label: texts[p.from][n.depth:depth], up: up, depth: uint32(depth)})
			parts = append(parts, part{p.from, next})
			p.from = next
		}
		n.firsts = string(firsts)
		t.nodes[i] = n
	}
	return t
}

// common returns the length of the common beginning of a and b.
func common(a, b string) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// child returns the child of n whose label begins with b; nil: there is none.
func (t *tree) child(n *node, b byte) *node {
	const few = 8 // a loop is faster than a call
	if len(n.firsts) > few {
		if i := strings.IndexByte(n.firsts, b); i >= 0 {
			return &t.nodes[int(n.children)+i]
		}
		return nil
	}
	for i := range len(n.firsts) {
		if n.firsts[i] == b {
			return &t.nodes[int(n.children)+i]
		}
	}
	return nil
}

// deepest returns the node with entries whose text is the longest prefix of p; nil: there is
// none.
func (t *tree) deepest(p []byte) *node {
	at := &t.nodes[0]
	if len(p) < len(at.label) || string(p[:len(at.label)]) != at.label {
		return nil
	}
	for int(at.depth) < len(p) {
		rest := p[at.depth:]
		next := t.child(at, rest[0])
		if next == nil || len(rest) < len(next.label) || len(next.label) > 1 && string(rest[:len(next.label)]) != next.label {
			break
		}
		at = next
	}
	if at.from < at.to {
		return at
	}
	return t.above(at)
}

// above returns the node of the next shorter text that has entries; nil: there is none.
func (t *tree) above(n *node) *node {
	if up := &t.nodes[n.up]; up.from < up.to && up != n {
		return up
	}
	return nil
}

// cursor goes down a tree byte by byte.
type cursor struct {
	tree *tree
	at   *node
	used int // bytes of the label of at
}

func (t *tree) cursor() cursor { return cursor{tree: t, at: &t.nodes[0]} }

// text returns the node whose text consists of the bytes so far; nil: these bytes are only the
// beginning of texts.
func (c *cursor) text() *node {
	if c.used == len(c.at.label) && c.at.from < c.at.to {
		return c.at
	}
	return nil
}

// step goes on by one byte. It returns false if no text goes on with it.
func (c *cursor) step(b byte) bool {
	if c.used == len(c.at.label) {
		next := c.tree.child(c.at, b)
		if next == nil {
			return false
		}
		c.at, c.used = next, 1
		return true
	}
	if c.at.label[c.used] != b {
		return false
	}
	c.used++
	return true
}
