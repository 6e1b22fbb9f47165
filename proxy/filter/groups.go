package filter

import (
	"regexp"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/expression"
	"github.com/weirproxy/weir/proxy/message"
)

// groups finds the groups of the expression by which a route has a request. A nil groups finds
// none.
type groups struct {
	expressions []groupsOf // of the route, in the order of precedence
}

// groupsOf is one expression.
type groupsOf struct {
	*regexp.Regexp
	decoded bool // it matches the decoded path
}

// newGroups compiles the expressions of a route; nil: the path has no groups. The configuration has
// been checked: every path of the route is an expression that has the groups.
func newGroups(path *template, paths []config.Path) *groups {
	if !slices.ContainsFunc(path.parts, func(p templatePart) bool { return p.group > 0 }) {
		return nil
	}
	// The order is that of package route: the longer text, then the later one in the order of bytes.
	paths = slices.Clone(paths)
	slices.SortStableFunc(paths, func(a, b config.Path) int {
		if len(a.Value) != len(b.Value) {
			return len(b.Value) - len(a.Value)
		}
		return strings.Compare(b.Value, a.Value)
	})
	g := new(groups)
	for _, p := range paths {
		at := expression.Start
		if p.Decoded {
			at = expression.StartFolded
		}
		if compiled, _, err := expression.Compile(p.Value, at); err == nil {
			g.expressions = append(g.expressions, groupsOf{compiled, p.Decoded})
		}
	}
	return g
}

// find compares a path with the expressions. The first that matches is the one by which the route
// has the request.
func (g *groups) find(path []byte) captures {
	if g == nil {
		return captures{}
	}
	for _, e := range g.expressions {
		text := path
		if e.decoded {
			text = message.Leveled(path)
		}
		if at := e.FindSubmatchIndex(text); at != nil {
			return captures{text, at, e.decoded}
		}
	}
	return captures{}
}

// captures are the groups of a path. Without a match all of them are empty.
type captures struct {
	path    []byte
	at      []int // two for each group, as regexp returns them
	decoded bool  // path is a decoded path
}

// append appends the text of a group, which is empty if the group took no part in the match.
func (c *captures) append(b []byte, n int) []byte {
	if 2*n+1 >= len(c.at) || c.at[2*n] < 0 {
		return b
	}
	text := c.path[c.at[2*n]:c.at[2*n+1]]
	if c.decoded {
		return message.AppendEscaped(b, text)
	}
	return append(b, text...)
}
