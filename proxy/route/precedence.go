package route

import (
	"cmp"
	"strings"
)

// precedence compares two matches of a host. Of all matches that accept a request, the least
// one gets it:
//
//  1. a path before an expression and before a path that goes among the expressions, and these
//     before "/" as prefix;
//  2. the longer text;
//  3. an exact path before a prefix;
//  4. a match of one spelling before AnySpelling, and Prefix before Begins;
//  5. of expressions of equal length the later one in the order of bytes, as in ingress-nginx;
//  6. a match with methods, then the one with more headers, then the one with more query
//     parameters, as in the Gateway API, then the one with more cookies, then one with client
//     networks.
//
// Otherwise the caller's order decides. A longer path is compared first, although the Gateway API
// says that an exact path goes first: a prefix that matches is never longer than the exact path,
// unless the exact path matches in another spelling.
func precedence(a, b *Match) int {
	return cmp.Or(
		a.Path.class()-b.Path.class(),
		len(b.Path.Text)-len(a.Path.Text),
		b.Path.rank()-a.Path.rank(),
		compareExpressions(&a.Path, &b.Path),
		min(len(b.Methods), 1)-min(len(a.Methods), 1),
		len(b.Headers)-len(a.Headers),
		len(b.Query)-len(a.Query),
		len(b.Cookies)-len(a.Cookies),
		min(len(b.Clients), 1)-min(len(a.Clients), 1),
	)
}

// The classes of paths, in their order.
const (
	plain   = iota
	regular // an expression, or a path that goes among them
	everything
)

func (p *Path) class() int {
	switch {
	case p.Kind == Expression:
		return regular
	case p.Kind != Exact && p.Text == "/":
		return everything
	case p.Among:
		return regular
	}
	return plain
}

// rank orders paths of equal length: the path with the higher rank comes first.
func (p *Path) rank() (r int) {
	if p.Kind == Exact {
		r += 2
	}
	if !p.AnySpelling && p.Kind != Begins {
		r++
	}
	return r
}

func compareExpressions(a, b *Path) int {
	if a.Kind != Expression || b.Kind != Expression {
		return 0
	}
	return cmp.Or(strings.Compare(b.Text, a.Text), number(a.FoldCase)-number(b.FoldCase), number(a.Decoded)-number(b.Decoded))
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
