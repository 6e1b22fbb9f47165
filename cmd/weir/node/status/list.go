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
// NAME_sort and NAME_page belong to it. rows is for all lists. Wrong values count as missing ones.
func QueryOf(v url.Values, name string) Query {
	q := Query{Search: strings.ToLower(strings.TrimSpace(v.Get(name))), Sort: v.Get(name + "_sort"), Page: 1, Rows: rowsByDefault}
	if n, err := strconv.Atoi(v.Get(name + "_page")); err == nil && n > 0 {
		q.Page = n
	}
	if n, err := strconv.Atoi(v.Get("rows")); err == nil && n > 0 {
		q.Rows = min(n, mostRows)
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

// pauseEvery is how many rows are read between two calls of pause.IfDue.
const pauseEvery = 64

// pageOf makes one page of the rows that match, in the order of compare. If q wants a page after the
// last one, pageOf makes the last one.
func pageOf[T any](all []T, q Query, match, bad func(*T) bool, compare func(a, b *T) int) List[T] {
	l := List[T]{All: len(all), Rows: []T{}}
	found := make([]*T, 0, len(all))
	for i := range all {
		if i%pauseEvery == 0 {
			pause.IfDue()
		}
		if bad(&all[i]) {
			l.Bad++
		}
		if match(&all[i]) {
			found = append(found, &all[i])
		}
	}
	l.Matching = len(found)
	l.Pages = max((len(found)+q.Rows-1)/q.Rows, 1)
	l.Page = min(q.Page, l.Pages)
	to := min(l.Page*q.Rows, len(found))
	for _, r := range first(found, to, compare)[(l.Page-1)*q.Rows:] {
		l.Rows = append(l.Rows, *r)
	}
	return l
}

// mostSelected is the most rows that first selects. For more, sorting takes less time.
const mostSelected = 500

// first returns the first n rows of all in the order of compare, and may change all. Equal rows keep their
// order. People look at the first pages, so first does not sort ten thousand rows for them.
func first[T any](all []*T, n int, compare func(a, b *T) int) []*T {
	compared := 0
	ordered := func(a, b *T) int {
		if compared++; compared%pauseEvery == 0 {
			pause.IfDue()
		}
		return compare(a, b)
	}
	if n > mostSelected || n == len(all) {
		slices.SortStableFunc(all, ordered)
		return all[:n]
	}
	chosen := make([]*T, 0, n+1)
	for _, r := range all {
		if len(chosen) == n && (n == 0 || ordered(r, chosen[n-1]) >= 0) {
			continue
		}
		at := sort.Search(len(chosen), func(i int) bool { return ordered(chosen[i], r) > 0 })
		chosen = slices.Insert(chosen, at, r)
		chosen = chosen[:min(len(chosen), n)]
	}
	return chosen
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
