package status

import (
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/pause"
)

// The limits of the rows in one page of a list.
const (
	rowsByDefault = 25
	mostRows      = 200
)

// Query says which rows of a list are wanted.
type Query struct {
	Search string // a part of a name, in lower case; empty: all rows
	Sort   string
	Page   int // from 1
	Rows   int // in a page
}

// QueryOf reads the Query of a list from the parameters of a request: NAME is the search, and
// NAME_sort, NAME_page and NAME_rows belong to it. rows is for lists without NAME_rows. QueryOf ignores
// invalid values.
func QueryOf(v url.Values, name string) Query {
	q := Query{Search: strings.ToLower(strings.TrimSpace(v.Get(name))), Sort: v.Get(name + "_sort"), Page: 1, Rows: rowsByDefault}
	if n, err := strconv.Atoi(v.Get(name + "_page")); err == nil && n > 0 {
		q.Page = n
	}
	for _, key := range []string{"rows", name + "_rows"} {
		if n, err := strconv.Atoi(v.Get(key)); err == nil && n > 0 {
			q.Rows = min(n, mostRows)
		}
	}
	return q
}

// matches returns true if one of the texts contains the search.
func (q *Query) matches(more []string, texts ...string) bool {
	if q.Search == "" {
		return true
	}
	has := func(t string) bool { return strings.Contains(strings.ToLower(t), q.Search) }
	return slices.ContainsFunc(texts, has) || slices.ContainsFunc(more, has)
}

// mostSelected limits the rows that pageOf selects one by one. For a later page, pageOf sorts all rows,
// which takes less time.
const mostSelected = 500

// pageOf makes one page of the rows that match, in the order of compare. If q wants a page after the
// last one, pageOf makes the last one.
func pageOf[T any](all []T, q Query, match, bad func(*T) bool, compare func(a, b *T) int) List[T] {
	l := List[T]{All: len(all), Rows: []T{}}
	found := selection[T]{compare: compare}
	if q.Page <= mostSelected/q.Rows {
		found.most = q.Page * q.Rows
	}
	for i := range all {
		pause.InLoop(i)
		if bad(&all[i]) {
			l.Bad++
		}
		if match(&all[i]) {
			l.Matching++
			found.add(&all[i])
		}
	}
	l.Pages = max((l.Matching+q.Rows-1)/q.Rows, 1)
	if q.Page > l.Pages {
		q.Page = l.Pages
		return pageOf(all, q, match, bad, compare)
	}
	l.Page = q.Page
	from := (l.Page - 1) * q.Rows
	for _, r := range found.sorted()[from:min(from+q.Rows, l.Matching)] {
		l.Rows = append(l.Rows, *r)
	}
	return l
}

// selection has the first rows in the order of compare. Equal rows keep the order in which they were added.
// A selection of the first rows is much faster than a sort of ten thousand rows, and nearly all requests
// are for the first pages.
type selection[T any] struct {
	most     int // rows; 0: all
	compare  func(a, b *T) int
	rows     []*T
	compared int // how often sorted has compared two rows
}

func (s *selection[T]) add(r *T) {
	n := len(s.rows)
	switch {
	case s.most == 0:
		s.rows = append(s.rows, r)
	case n < s.most || s.before(r, s.rows[n-1]):
		at := sort.Search(n, func(i int) bool { return s.before(r, s.rows[i]) })
		s.rows = slices.Insert(s.rows, at, r)
		s.rows = s.rows[:min(n+1, s.most)]
	}
}

func (s *selection[T]) before(a, b *T) bool { return s.compare(a, b) < 0 }

// sorted returns the rows in their order.
func (s *selection[T]) sorted() []*T {
	if s.most == 0 {
		slices.SortStableFunc(s.rows, func(a, b *T) int {
			pause.InLoop(s.compared)
			s.compared++
			return s.compare(a, b)
		})
	}
	return s.rows
}

// badFirst orders rows with a problem before others.
func badFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
