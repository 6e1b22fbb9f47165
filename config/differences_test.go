package config_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// The differences of random lists lead from one to the other.
func TestDiffer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	name := func(b *config.Backend) string { return b.Name }
	for range 2000 {
		var before []*config.Backend
		for range r.IntN(12) {
			before = append(before, &config.Backend{Name: fmt.Sprint(r.IntN(8))})
		}
		after := slices.Clone(before)
		for range r.IntN(4) {
			if len(after) > 0 {
				after = slices.Delete(after, 0, 1)
			}
			after = append(after, &config.Backend{Name: fmt.Sprint(r.IntN(8))})
		}
		if sorted := r.IntN(4) > 0; sorted {
			for _, list := range [][]*config.Backend{before, after} {
				slices.SortStableFunc(list, func(a, b *config.Backend) int { return strings.Compare(a.Name, b.Name) })
			}
		}
		d := config.Differ(before, after, name)
		got := make([]*config.Backend, len(after))
		for _, run := range d.Kept {
			copy(got[run.After:], before[run.Before:run.Before+run.Length])
		}
		for _, j := range d.Added {
			if got[j] != nil {
				t.Fatalf("element %d is kept and added: %+v", j, d)
			}
			got[j] = after[j]
		}
		if !slices.Equal(got, after) {
			t.Fatalf("%+v does not lead to the second list", d)
		}
		kept := 0
		for _, run := range d.Kept {
			kept += run.Length
		}
		if kept+len(d.Gone) != len(before) || d.None() != slices.Equal(before, after) {
			t.Fatalf("%d elements are kept and %d gone, of %d", kept, len(d.Gone), len(before))
		}
	}
}
