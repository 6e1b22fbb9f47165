package overlay

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// A Map and its changed copies behave as plain maps do.
func TestRandomChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		want := map[string]int{}
		for i := range r.IntN(300) {
			want[fmt.Sprint(i)] = i
		}
		m := Of(maps.Clone(want))
		var old []*Map[int]
		var before []map[string]int
		for range 60 {
			old, before = append(old, m), append(before, maps.Clone(want))
			var changes []Change[int]
			for range r.IntN(6) {
				c := Change[int]{Key: fmt.Sprint(r.IntN(320)), Value: r.Int(), Gone: r.IntN(3) == 0}
				changes = append(changes, c)
				if want[c.Key] = c.Value; c.Gone {
					delete(want, c.Key)
				}
			}
			m = m.With(changes...)
		}
		for i, m := range append(old, m) {
			check(t, m, append(before, want)[i])
		}
	}
}

func check(t *testing.T, m *Map[int], want map[string]int) {
	t.Helper()
	if got := maps.Collect(m.All()); !maps.Equal(got, want) || m.Len() != len(want) {
		t.Fatalf("it has %d keys: %v; want %d: %v", m.Len(), got, len(want), want)
	}
	for i := range 330 {
		key := fmt.Sprint(i)
		value, known := want[key]
		if got, found := m.Get(key); found != known || known && got != value {
			t.Fatalf("Get(%s) is %d, %t; want %d, %t", key, got, found, value, known)
		}
		if got, found := m.Find([]byte(key)); found != known || known && got != value {
			t.Fatalf("Find(%s) is %d, %t; want %d, %t", key, got, found, value, known)
		}
	}
	for range m.All() {
		break // as a loop may end early
	}
}

func TestNilMap(t *testing.T) {
	var m *Map[int]
	check(t, m, nil)
	check(t, m.With(), nil)
	check(t, m.With(Change[int]{Key: "1", Value: 2}), map[string]int{"1": 2})
}

// A change of one entry shares the others, and a look-up does not allocate.
func TestChangeIsSmall(t *testing.T) {
	all := map[string]int{}
	for i := range 10_000 {
		all[fmt.Sprint(i)] = i
	}
	m := Of(all).With(Change[int]{Key: "7", Value: 1})
	key := []byte("7000")
	if n := testing.AllocsPerRun(100, func() { m.Find(key) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
	i := 0
	if n := testing.AllocsPerRun(100, func() { m.With(Change[int]{Key: "8", Value: i}); i++ }); n > 5 {
		t.Errorf("a change allocates %v times", n)
	}
	if len(m.over) != 1 || len(m.base.of) != 10_000 {
		t.Errorf("the maps have %d and %d entries", len(m.base.of), len(m.over))
	}
}

func BenchmarkFind(b *testing.B) {
	all := map[string]int{}
	for i := range 10_000 {
		all[fmt.Sprintf("host-%d.example.org", i)] = i
	}
	key := []byte("host-7000.example.org")
	for name, m := range map[string]*Map[int]{"plain": Of(all), "changed": Of(all).With(Change[int]{Key: "x"})} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m.Find(key)
			}
		})
	}
}

func TestReplaced(t *testing.T) {
	all := map[string]int{}
	for i := range 100 {
		all[fmt.Sprint(i)] = i
	}
	equal := func(a, b int) bool { return a == b }
	m := Of(all)
	f := func(name string, a, b *Map[int], want int, wantKnown bool) {
		t.Helper()
		if keys, known := a.Replaced(b, equal); len(keys) != want || known != wantKnown {
			t.Errorf("%s: %v, %t", name, keys, known)
		}
	}
	f("the same", m, m, 0, true)
	f("a new key", m, m.With(Change[int]{Key: "new"}), 0, true)
	f("a removed key", m, m.With(Change[int]{Key: "1", Gone: true}), 0, true)
	f("another value", m, m.With(Change[int]{Key: "1", Value: 7}), 1, true)
	f("a value that was another one", m.With(Change[int]{Key: "1", Value: 7}), m, 1, true)
	f("a removed key that came back", m.With(Change[int]{Key: "1", Gone: true}), m.With(Change[int]{Key: "1", Gone: true}, Change[int]{Key: "1", Value: 8}), 0, true)
	f("another map", m, Of(maps.Clone(all)), 0, false)
	f("none", nil, m, 0, true)
}
