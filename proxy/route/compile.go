package route

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/expression"
)

// Compile compiles the matches of a host. Of matches that are equal in every other respect, the
// earlier one goes first, so the caller puts older objects first. Compile keeps the slices
// within the entries. The error names the path, and the condition if there is one.
func Compile[T any](entries []Entry[T]) (*Paths[T], error) {
	entries = inOrder(entries)
	p := &Paths[T]{}
	var before, among textCollection[T]
	var expressions, decoded collection[T]
	for i := range entries {
		pause.IfDue()
		path := &entries[i].Path
		e, beginning, err := newEntry(&entries[i], uint32(i))
		if err != nil {
			return nil, fmt.Errorf("compiling the path %q: %w", path.Text, err)
		}
		switch class := path.class(); {
		case class == everything:
			p.everything = append(p.everything, e)
		case path.Kind == Expression && path.Decoded:
			decoded.add(beginning, e)
		case path.Kind == Expression:
			expressions.add(beginning, e)
		case class == regular:
			among.add(path, e)
		default:
			before.add(path, e)
		}
	}
	p.before, p.among, p.expressions, p.decoded = before.texts(), among.texts(), expressions.index(), decoded.index()
	return p, nil
}

// inOrder returns matches in the order of precedence.
func inOrder[T any](entries []Entry[T]) []Entry[T] {
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b Entry[T]) int { return precedence(&a.Match, &b.Match) })
	return entries
}

// textCollection are entries of paths that are no expressions, before they become texts.
type textCollection[T any] struct{ plain, spellings collection[T] }

func (c *textCollection[T]) add(path *Path, e entry[T]) {
	c.plain.add(path.Text, e)
	if path.AnySpelling {
		c.spellings.add(lowered(path.Text), e)
	}
}

func (c *textCollection[T]) texts() texts[T] {
	return texts[T]{c.plain.index(), c.spellings.index()}
}

var (
	errNoSlash           = errors.New("a path begins with a slash")
	errSpeltExpression   = errors.New("a regular expression cannot match all spellings of a path; use a prefix")
	errFoldedText        = errors.New("only a regular expression can ignore case, or match a decoded path")
	errAmongItself       = errors.New("a regular expression is among the expressions anyway")
	errUnknownComparison = errors.New("the kind of the path does not exist")
)

// newEntry compiles a match. beginning is the text with which the paths of an expression begin.
func newEntry[T any](of *Entry[T], position uint32) (e entry[T], beginning string, err error) {
	p := &of.Path
	e = entry[T]{route: of.Route, position: position, kind: p.Kind, slash: strings.HasSuffix(p.Text, "/")}
	if e.conditions, err = newConditions(&of.Match); err != nil {
		return e, "", err
	}
	switch {
	case p.Kind > Expression:
		return e, "", errUnknownComparison
	case p.Kind != Expression && !strings.HasPrefix(p.Text, "/"):
		return e, "", errNoSlash
	case p.Kind != Expression && (p.FoldCase || p.Decoded):
		return e, "", errFoldedText
	case p.Kind != Expression:
		return e, "", nil
	case p.Among:
		return e, "", errAmongItself
	case p.AnySpelling:
		return e, "", errSpeltExpression
	}
	at := expression.Start
	if p.FoldCase {
		at = expression.StartFolded
	}
	e.expression, beginning, err = expression.Compile(p.Text, at)
	return e, beginning, err
}

// lowered returns s with its ASCII letters in lower case.
func lowered(s string) string {
	b := []byte(s)
	for i := range b {
		b[i] = lower(b[i])
	}
	return string(b)
}

// collection are entries by their text, before they become an index.
type collection[T any] struct {
	texts   []string
	entries []entry[T]
}

func (c *collection[T]) add(text string, e entry[T]) {
	c.texts, c.entries = append(c.texts, text), append(c.entries, e)
}

// index builds the index of the entries; nil: there are none. The entries were added in the order
// of precedence.
func (c *collection[T]) index() *index[T] {
	if len(c.entries) == 0 {
		return nil
	}
	order := make([]int, len(c.texts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(c.texts[a], c.texts[b]) })
	x := &index[T]{entries: make([]entry[T], 0, len(order))}
	var texts []string
	var starts []uint32
	for _, i := range order {
		if len(texts) == 0 || texts[len(texts)-1] != c.texts[i] {
			texts, starts = append(texts, c.texts[i]), append(starts, uint32(len(x.entries)))
		}
		x.entries = append(x.entries, c.entries[i])
	}
	x.tree = newTree(texts, append(starts, uint32(len(x.entries))))
	return x
}
