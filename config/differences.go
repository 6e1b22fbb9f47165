package config

import (
	"strings"

	"github.com/weirproxy/weir/pause"
)

// Differences tells how one list became another. Both lists contain pointers, and share the
// elements that did not change. So Differ compares pointers, which takes microseconds for thousands
// of elements. It compares names only where the lists differ.
type Differences struct {
	// Kept are the elements that both lists have.
	Kept []Run
	// Gone has the indexes of the elements that only the first list has. Added has the indexes of
	// the elements that only the second list has. If the lists are not in the order of the names,
	// an element of both lists may be in Gone and in Added.
	Gone, Added []int
}

// Run is a number of elements that follow each other in both lists.
type Run struct{ Before, After, Length int }

// Differ compares two lists in the order of the names of their elements. Elements of the same
// name may have any order. Differ pauses, so the caller holds no lock that a request may need.
func Differ[T any](before, after []*T, name func(*T) string) (d Differences) {
	i, j := 0, 0
	for i < len(before) && j < len(after) {
		pause.IfDue()
		n := 0
		for i+n < len(before) && j+n < len(after) && before[i+n] == after[j+n] {
			n++
		}
		if n > 0 {
			d.Kept = append(d.Kept, Run{i, j, n})
			i, j = i+n, j+n
			continue
		}
		c := strings.Compare(name(before[i]), name(after[j]))
		if c <= 0 {
			d.Gone = append(d.Gone, i)
			i++
		}
		if c >= 0 {
			d.Added = append(d.Added, j)
			j++
		}
	}
	for ; i < len(before); i++ {
		d.Gone = append(d.Gone, i)
	}
	for ; j < len(after); j++ {
		d.Added = append(d.Added, j)
	}
	return d
}

// None reports whether the lists are equal.
func (d *Differences) None() bool { return len(d.Gone)+len(d.Added) == 0 }
