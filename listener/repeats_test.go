package listener

import (
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		more := make(chan int, 10)
		r := Repeats{PerSecond: 3, More: func(key string, held int) {
			if key != "a" {
				t.Errorf("told of %s", key)
			}
			more <- held
		}}
		written := 0
		for range 1000 {
			if r.Allow("a") {
				written++
			}
		}
		if !r.Allow("b") {
			t.Error("one key holds up another")
		}
		if written != 3 || len(more) != 0 {
			t.Errorf("%d written, told %d times", written, len(more))
		}
		begin := time.Now()
		if held := <-more; held != 997 || time.Since(begin) != time.Second {
			t.Errorf("told of %d after %v", held, time.Since(begin))
		}
		if !r.Allow("a") {
			t.Error("the next second begins with nothing written")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(more) != 0 || len(r.keys) != 0 {
			t.Errorf("told %d times, keys %v", len(more), r.keys)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var once Repeats
		if !once.Allow("a") || once.Allow("a") {
			t.Error("the zero value writes one a second")
		}
		time.Sleep(2 * time.Second)
	})
}

// A kind of event that goes on has one line, and then a number each minute. After a quiet minute it is new again.
func TestRepeatsOfAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		more := make(chan int, 100)
		var told []int
		r := Repeats{Every: time.Minute, More: func(_ string, held int) { more <- held }}
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
			for len(more) > 0 {
				told = append(told, <-more)
			}
		}
		var wrote []time.Duration
		begin := time.Now()
		for range 18 {
			if r.Allow("a") {
				wrote = append(wrote, time.Since(begin))
			}
			time.Sleep(9 * time.Second)
		}
		wait(5 * time.Minute)
		if !r.Allow("a") || !slices.Equal(wrote, []time.Duration{0}) || !slices.Equal(told, []int{6, 7, 4}) {
			t.Errorf("lines at %v, then %v", wrote, told)
		}
		for i := range 3 * mostKeys {
			r.Allow(strconv.Itoa(i))
		}
		known := func() int {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.keys)
		}
		if n := known(); n != mostKeys+1 {
			t.Errorf("%d keys", n)
		}
		wait(10 * time.Minute)
		if n := known(); n != 0 || told[len(told)-1] != 2*mostKeys {
			t.Errorf("%d keys after quiet minutes, told %v", n, told)
		}
	})
}
