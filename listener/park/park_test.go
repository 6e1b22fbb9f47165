//go:build linux

package park

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience limits waits that end at once unless something is wrong.
const patience = 20 * time.Second

func socketPair(t testing.TB) (ours, theirs int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

func newSet(t testing.TB) *Set {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// waiter records how its wait ended.
type waiter struct {
	woken chan Reason
	token atomic.Uint64
}

func newWaiter() *waiter { return &waiter{woken: make(chan Reason, 10)} }

func (w *waiter) Wake(why Reason) { w.woken <- why }

func (w *waiter) want(t testing.TB, want Reason) {
	t.Helper()
	select {
	case got := <-w.woken:
		if got != want {
			t.Fatalf("the wait ended with %d, want %d", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("the wait did not end, want %d", want)
	}
}

// wantNone checks that w was not woken, or not woken again, after the event under test.
func (w *waiter) wantNone(t testing.TB) {
	t.Helper()
	if len(w.woken) > 0 {
		t.Errorf("a wait ended with %d that should not have", <-w.woken)
	}
}

func (w *waiter) end(s *Set) { s.End(Token(w.token.Load())) }

func park(t testing.TB, s *Set, fd int, deadline time.Time) *waiter {
	t.Helper()
	w := newWaiter()
	if err := s.Park(fd, false, w, deadline, &w.token); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWaitEnds(t *testing.T) {
	s := newSet(t)
	f := func(name string, deadline time.Duration, act func(w *waiter, ours, theirs int), want Reason) {
		t.Run(name, func(t *testing.T) {
			ours, theirs := socketPair(t)
			defer syscall.Close(ours)
			defer syscall.Close(theirs)
			begun := time.Now()
			w := park(t, s, ours, begun.Add(deadline))
			act(w, ours, theirs)
			w.want(t, want)
			if want == Late && time.Since(begun) < deadline {
				t.Errorf("it ended after %v, before its deadline of %v", time.Since(begun), deadline)
			}
			w.end(s) // too late
			w.wantNone(t)
		})
	}
	f("bytes", time.Minute, func(_ *waiter, _, theirs int) { syscall.Write(theirs, []byte("x")) }, Ready)
	f("end of stream", time.Minute, func(_ *waiter, _, theirs int) { syscall.Shutdown(theirs, syscall.SHUT_RDWR) }, Ready)
	f("half close", time.Minute, func(_ *waiter, _, theirs int) { syscall.Shutdown(theirs, syscall.SHUT_WR) }, Ready)
	f("call", time.Minute, func(w *waiter, _, _ int) { w.end(s) }, Called)
	nothing := func(*waiter, int, int) {}
	f("deadline", 70*time.Millisecond, nothing, Late)
	f("deadline passed", 0, nothing, Late)
	f("deadline long passed", -time.Hour, nothing, Late)
	if n := s.Waiting(); n != 0 {
		t.Errorf("%d waits are left", n)
	}
}

// Bytes that came before the wait began also end it.
func TestBytesBefore(t *testing.T) {
	s := newSet(t)
	ours, theirs := socketPair(t)
	defer syscall.Close(ours)
	defer syscall.Close(theirs)
	syscall.Write(theirs, []byte("x"))
	for range 3 { // no goroutine reads the bytes, so they end each wait
		park(t, s, ours, time.Time{}).want(t, Ready)
	}
}

// The result again of a wait is only a hint.
func TestAgain(t *testing.T) {
	s := newSet(t)
	ours, theirs := socketPair(t)
	defer syscall.Close(ours)
	defer syscall.Close(theirs)
	for _, again := range []bool{true, true, false, true, false} {
		w := newWaiter()
		if err := s.Park(ours, again, w, time.Time{}, &w.token); err != nil {
			t.Fatal(err)
		}
		w.end(s)
		w.want(t, Called)
	}
	s.Forget(ours)
	w := newWaiter()
	if err := s.Park(ours, true, w, time.Time{}, &w.token); err != nil {
		t.Fatal(err)
	}
	syscall.Write(theirs, []byte("x"))
	w.want(t, Ready)
}

func TestParkFails(t *testing.T) {
	s := newSet(t)
	w := newWaiter()
	if err := s.Park(-1, false, w, time.Now(), &w.token); err == nil {
		t.Error("a wait for no descriptor began")
	}
	if n := s.Waiting(); n != 0 || s.wheel.count != 0 {
		t.Errorf("%d waits and %d deadlines are left of one that did not begin", n, s.wheel.count)
	}
	if w.token.Load() != 0 {
		t.Error("it has a token")
	}
}

func TestCancel(t *testing.T) {
	s := newSet(t)
	ours, theirs := socketPair(t)
	defer syscall.Close(ours)
	defer syscall.Close(theirs)
	w := park(t, s, ours, time.Now().Add(time.Minute))
	if !s.Cancel(Token(w.token.Load())) {
		t.Error("a running wait could not be cancelled")
	}
	if s.Cancel(Token(w.token.Load())) {
		t.Error("it could be cancelled twice")
	}
	syscall.Write(theirs, []byte("x"))
	other := park(t, s, ours, time.Time{})
	other.want(t, Ready)
	if s.Cancel(Token(other.token.Load())) {
		t.Error("a wait that has ended could be cancelled")
	}
	w.wantNone(t)
	if s.Cancel(0) {
		t.Error("no wait could be cancelled")
	}
	s.End(0)
}

// The token of an ended wait has no effect on the wait that now has its place.
func TestStaleToken(t *testing.T) {
	s := newSet(t)
	a, b := socketPair(t)
	defer syscall.Close(a)
	defer syscall.Close(b)
	old := park(t, s, a, time.Time{})
	old.end(s)
	old.want(t, Called)
	current := park(t, s, a, time.Time{})
	if Token(current.token.Load()).place() != Token(old.token.Load()).place() {
		t.Fatal("the place was not used again, the test shows nothing")
	}
	old.end(s)
	current.wantNone(t)
	syscall.Write(b, []byte("x"))
	current.want(t, Ready)
}

// A wait that ends only at its deadline.
func TestAfter(t *testing.T) {
	s := newSet(t)
	begun := time.Now()
	w := newWaiter()
	s.After(begun.Add(120*time.Millisecond), w)
	w.want(t, Late)
	if d := time.Since(begun); d < 120*time.Millisecond {
		t.Errorf("it ended after %v", d)
	}
	called := newWaiter()
	token := s.After(begun.Add(time.Hour), called)
	s.End(token)
	called.want(t, Called)
}

// TestWheel turns a wheel by hand, past deadlines within one turn and further away. It
// checks that each deadline passes in its step, and in no other.
func TestWheel(t *testing.T) {
	s := newSet(t)
	s.wheel.began = time.Now().Add(-time.Hour) // the timer is always wrong: the test calls turn
	random := rand.New(rand.NewPCG(1, 2))
	type wait struct {
		w     *waiter
		token Token
		due   tick
	}
	var waits []wait
	now := s.wheel.passed(time.Now())
	for range 400 {
		d := time.Duration(random.Int64N(int64(5 * slots * resolution)))
		w := newWaiter()
		deadline := time.Now().Add(d)
		token := s.After(deadline, w)
		s.mu.Lock()
		due := s.at(token.place()).due
		s.mu.Unlock()
		if late := s.wheel.began.Add(time.Duration(due) * resolution).Sub(deadline); late < 0 || late > resolution {
			t.Fatalf("a deadline in %v has a step that is %v late", d, late)
		}
		waits = append(waits, wait{w, token, due})
	}
	for i := range waits {
		if i%10 == 0 && !s.Cancel(waits[i].token) {
			t.Fatal("could not be cancelled")
		}
	}
	for step := now; step < now+6*slots; step += tick(1 + random.IntN(20)) {
		s.wheel.began = time.Now().Add(-time.Duration(step)*resolution - resolution/2)
		s.turn()
		for i, w := range waits {
			if i%10 != 0 && (w.due <= step) != (len(w.w.woken) == 1) {
				t.Fatalf("in step %d, a wait that is due in %d was woken %d times", step, w.due, len(w.w.woken))
			}
		}
	}
	if s.wheel.count != 0 || s.Waiting() != 0 || slices.ContainsFunc(s.wheel.firsts[:], func(i int32) bool { return i != none }) {
		t.Errorf("%d deadlines and %d waits are left", s.wheel.count, s.Waiting())
	}
}

// A wheel that did not turn for a long time, because the machine slept, misses no
// deadline.
func TestWheelThatSlept(t *testing.T) {
	s := newSet(t)
	w, far := newWaiter(), newWaiter()
	s.After(time.Now().Add(time.Minute), w)
	s.After(time.Now().Add(time.Hour), far)
	s.mu.Lock()
	s.wheel.began = s.wheel.began.Add(-30 * time.Minute)
	s.mu.Unlock()
	s.turn()
	w.want(t, Late)
	far.wantNone(t)
}

// A hundred thousand waits need no goroutine, and no memory except their places.
func TestWaitsCostNothing(t *testing.T) {
	s := newSet(t)
	before := runtime.NumGoroutine()
	w := newWaiter()
	tokens := make([]Token, 100_000)
	for i := range tokens {
		tokens[i] = s.After(time.Now().Add(time.Hour), w)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	if n := len(s.places) * chunk; n > len(tokens)+chunk {
		t.Errorf("%d places for %d waits", n, len(tokens))
	}
	for _, token := range tokens {
		if !s.Cancel(token) {
			t.Fatal("could not be cancelled")
		}
	}
	for i := range tokens { // the set uses the places again
		tokens[i] = s.After(time.Now().Add(time.Hour), w)
	}
	if n := len(s.places) * chunk; n > len(tokens)+chunk {
		t.Errorf("%d places for %d waits", n, len(tokens))
	}
}

// stormer runs the life of connections: it opens a pair of sockets, waits for an event on
// one of them, and ends the wait in different ways, by itself or while other stormers do
// the same. Then it closes both sockets. Other stormers reuse their numbers at once.
type stormer struct {
	s     *Set
	woken chan Reason
	token atomic.Uint64
	again bool
}

func (st *stormer) Wake(why Reason) { st.woken <- why }

// TestStorm closes and reuses descriptors and places all the time, from many goroutines.
// Every wait must end once, for its own reason.
func TestStorm(t *testing.T) {
	s := newSet(t)
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	var all sync.WaitGroup
	for seed := range 48 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(seed), 7))
			for range rounds {
				if !storm(t, s, random) {
					return
				}
			}
		})
	}
	all.Wait()
	if n := s.Waiting(); n != 0 {
		t.Errorf("%d waits are left", n)
	}
	if s.wheel.count != 0 {
		t.Errorf("%d deadlines are left", s.wheel.count)
	}
}

// storm is the life of one connection: some waits, each ended in a random way.
func storm(t *testing.T, s *Set, random *rand.Rand) bool {
	ours, theirs := socketPair(t)
	st := &stormer{s: s, woken: make(chan Reason, 2)}
	var helpers sync.WaitGroup
	defer func() {
		helpers.Wait()
		syscall.Close(ours)
		syscall.Close(theirs)
	}()
	for range 1 + random.IntN(4) {
		if !st.wait(t, ours, theirs, random, &helpers) {
			return false
		}
		if random.IntN(4) == 0 { // as for a connection that sheds its descriptor
			dup, err := unix.FcntlInt(uintptr(ours), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return false
			}
			s.Forget(ours)
			syscall.Close(ours)
			ours, st.again = dup, false
		}
	}
	return true
}

func (st *stormer) wait(t *testing.T, ours, theirs int, random *rand.Rand, helpers *sync.WaitGroup) bool {
	how := random.IntN(5)
	deadline := time.Now().Add(time.Hour)
	if how == 3 {
		deadline = time.Now().Add(time.Duration(random.IntN(20)) * time.Millisecond)
	}
	if err := st.s.Park(ours, st.again, st, deadline, &st.token); err != nil {
		t.Error(err)
		return false
	}
	st.again = true
	token := Token(st.token.Load())
	want := []Reason{Ready, Called, Called, Late, Called}[how]
	switch how {
	case 0:
		helpers.Go(func() { syscall.Write(theirs, []byte("x")) })
	case 1:
		helpers.Go(func() { st.s.End(token) })
	case 2: // two calls at the same time
		helpers.Go(func() { st.s.End(token) })
		helpers.Go(func() { st.s.End(token) })
	case 4: // Cancel: the waiter is not woken
		if !st.s.Cancel(token) {
			t.Error("a wait that nobody ended could not be cancelled")
		}
		return len(st.woken) == 0
	}
	select {
	case got := <-st.woken:
		if got != want {
			t.Errorf("a wait ended with %d, want %d", got, want)
			return false
		}
	case <-time.After(patience):
		t.Errorf("a wait that was to end with %d did not", want)
		return false
	}
	if how == 0 {
		var b [1]byte
		if n, err := syscall.Read(ours, b[:]); n != 1 || err != nil {
			t.Errorf("a wait was told of bytes that are not there: %d, %v", n, err)
		}
	}
	return true
}

func BenchmarkPark(b *testing.B) {
	s := newSet(b)
	ours, theirs := socketPair(b)
	defer syscall.Close(ours)
	defer syscall.Close(theirs)
	w := newWaiter()
	buf := []byte{0}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Park(ours, true, w, time.Now().Add(time.Minute), &w.token); err != nil {
			b.Fatal(err)
		}
		syscall.Write(theirs, buf)
		<-w.woken
		syscall.Read(ours, buf)
	}
}

// Expire ends a wait as its deadline would, unless it has already ended.
func TestExpire(t *testing.T) {
	s := newSet(t)
	ours, theirs := socketPair(t)
	defer syscall.Close(theirs)
	defer syscall.Close(ours)
	w := newWaiter()
	if err := s.Park(ours, false, w, time.Time{}, &w.token); err != nil {
		t.Fatal(err)
	}
	token := Token(w.token.Load())
	if !s.Expire(token) {
		t.Error("the wait was not ended")
	}
	w.want(t, Late)
	if s.Expire(token) || s.Expire(0) {
		t.Error("it was ended twice")
	}
	if err := s.Park(ours, true, w, time.Time{}, &w.token); err != nil {
		t.Fatal(err)
	}
	syscall.Write(theirs, []byte("x"))
	w.want(t, Ready)
	if s.Expire(Token(w.token.Load())) || len(w.woken) > 0 {
		t.Error("what is there already is no reason to go on")
	}
}
