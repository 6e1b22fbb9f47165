package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// A burst is admitted at once, and after it one request for each interval.
func TestBurstThenRate(t *testing.T) {
	f := func(limit Limit, steps ...string) {
		t.Helper()
		table := NewTable(limit, 100)
		now := table.start
		for i, want := range steps {
			wait, expected, _ := strings.Cut(want, " ")
			after, err := time.ParseDuration(wait)
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(after)
			v := table.Admit(7, now)
			if got := fmt.Sprintf("%t left %d retry %s full %s", v.Admitted, v.Left, v.Retry, v.Full); got != expected {
				t.Errorf("request %d: %s, want %s", i, got, expected)
			}
		}
	}
	minute := Limit{Every: time.Minute, Burst: 3}
	f(minute,
		"0s true left 2 retry 0s full 1m0s",
		"0s true left 1 retry 0s full 2m0s",
		"0s true left 0 retry 1m0s full 3m0s",
		"0s false left 0 retry 1m0s full 3m0s",
		"59s false left 0 retry 1s full 2m1s",
		"1s true left 0 retry 1m0s full 3m0s",
		"1s false left 0 retry 59s full 2m59s",
		"2h true left 2 retry 0s full 1m0s")
	f(Limit{Every: time.Second, Burst: 1},
		"0s true left 0 retry 1s full 1s",
		"999ms false left 0 retry 1ms full 1ms",
		"1ms true left 0 retry 1s full 1s")
}

// The table does what one list of due times does, for any keys and times, as long as it is not
// full.
func TestTableEqualsAList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limit := Limit{Every: time.Duration(1 + random.IntN(1000)), Burst: 1 + random.IntN(5)}
		table := NewTable(limit, 1<<10)
		admitted := map[uint64][]time.Time{} // what was admitted, as if it had come evenly
		now := table.start
		for range 500 {
			now = now.Add(time.Duration(random.IntN(int(2 * limit.Every))))
			hash := uint64(2*random.IntN(4) + 1)
			hash = hash<<32 | hash
			due := admitted[hash]
			next := now
			if len(due) > 0 && due[0].After(now) {
				next = due[0]
			}
			want := next.Sub(now) <= time.Duration(limit.Burst-1)*limit.Every
			if want {
				admitted[hash] = []time.Time{next.Add(limit.Every)}
			}
			if got := table.Admit(hash, now); got.Admitted != want {
				t.Fatalf("%v: admitted %t, want %t", limit, got.Admitted, want)
			}
		}
	}
}

// However many goroutines ask for a key at once, its burst is admitted, and no more.
func TestAtOnce(t *testing.T) {
	for range 50 {
		table := NewTable(Limit{Every: time.Hour, Burst: 100}, 10)
		var admitted atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 50 {
					if table.Admit(42, table.start).Admitted {
						admitted.Add(1)
					}
				}
			})
		}
		all.Wait()
		if n := admitted.Load(); n != 100 || table.Keys() != 1 {
			t.Fatalf("%d requests of a burst of 100 admitted, %d keys", n, table.Keys())
		}
	}
}

// The number of keys is bounded, and so is the memory for each. The key that is nearest to rest
// is forgotten first.
func TestManyKeys(t *testing.T) {
	const keys = 10_000
	table := NewTable(Limit{Every: time.Second, Burst: 1}, keys)
	size := uintptr(len(table.segments)) * (unsafe.Sizeof(segment{}) + unsafe.Sizeof(table.segments[0]))
	if size > 48*keys {
		t.Errorf("the table takes %d bytes for %d keys", size, keys)
	}
	random := rand.New(rand.NewPCG(3, 4))
	now := table.start
	for range 20 * keys {
		now = now.Add(time.Millisecond)
		table.Admit(random.Uint64(), now)
	}
	if n := table.Keys(); n > len(table.segments)*segmentBuckets*ways || n < keys {
		t.Errorf("%d keys", n)
	}
	last := random.Uint64()
	table.Admit(last, now)
	if table.Admit(last, now).Admitted {
		t.Error("a key is forgotten before older ones")
	}
}

func TestAdmitAllocatesNothing(t *testing.T) {
	table := NewTable(Limit{Every: time.Second, Burst: 1}, 100)
	table.Admit(1, table.start)
	if n := testing.AllocsPerRun(100, func() { table.Admit(1, table.start) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAdmit(b *testing.B) {
	table := NewTable(Limit{Every: time.Microsecond, Burst: 10}, 10_000)
	now := time.Now()
	var next atomic.Uint64
	b.RunParallel(func(pb *testing.PB) {
		key := next.Add(1) << 33
		for pb.Next() {
			table.Admit(key, now)
		}
	})
}

// A key whose time has not come counts as evicted; a key at rest does not.
func TestEvictions(t *testing.T) {
	table := NewTable(Limit{Every: time.Second, Burst: 1}, 1)
	now := table.start
	for i := range uint64(2 * ways) {
		table.Admit(2*i+3, now)
	}
	if n := table.Evictions(); n != ways {
		t.Errorf("%d evictions", n)
	}
	for i := range uint64(ways) {
		table.Admit(2*i+101, now.Add(time.Minute))
	}
	if n := table.Evictions(); n != ways {
		t.Errorf("%d evictions after a minute", n)
	}
}

// Limits share a table. A request counts for all of its limits, or for none.
func TestSharedTable(t *testing.T) {
	table := NewTable(Limit{Every: time.Hour, Burst: 1}, 100)
	now := table.start
	second, minute := Count{Limit{time.Second, 3}, 8}, Count{Limit{time.Minute, 5}, 16}
	f := func(after time.Duration, want string, all ...Count) {
		t.Helper()
		now = now.Add(after)
		got := ""
		for range len(want) {
			if table.AdmitAll(all, now) {
				got += "y"
			} else {
				got += "n"
			}
		}
		if got != want {
			t.Errorf("after %v it is %s, want %s", after, got, want)
		}
	}
	f(0, "yyyn", second, minute)
	f(time.Second, "yn", second, minute) // the refused ones did not count by the minute
	f(time.Second, "yn", second, minute)
	f(time.Second, "nn", second, minute)
	f(0, "yn", second) // the refused ones did not count by the second
	f(time.Minute, "yn", minute)
	f(0, "yyyn", Count{Limit{time.Second, 3}, 24})
	if table.Keys() != 3 {
		t.Errorf("there are %d keys", table.Keys())
	}
}
