//go:build linux

package park

import (
	"sync"
	"syscall"
	"testing"
	"time"
)

func socketPair(t *testing.T) (ours, theirs int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

func newSet(t *testing.T) *Set {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWaitEnds(t *testing.T) {
	s := newSet(t)
	f := func(name string, deadline time.Duration, act func(s *Set, token Token, theirs int), want Reason) {
		t.Helper()
		ours, theirs := socketPair(t)
		defer syscall.Close(ours)
		closed := false
		token, err := s.Begin(ours, time.Now().Add(deadline))
		if err != nil {
			t.Fatal(err)
		}
		act(s, token, theirs)
		if name == "end of stream" {
			closed = true
		}
		if got := s.Wait(token); got != want {
			t.Errorf("%s: the wait ended with %d, want %d", name, got, want)
		}
		if !closed {
			syscall.Close(theirs)
		}
	}
	write := func(_ *Set, _ Token, theirs int) { syscall.Write(theirs, []byte("x")) }
	f("bytes", time.Minute, write, Ready)
	f("end of stream", time.Minute, func(_ *Set, _ Token, theirs int) { syscall.Close(theirs) }, Ready)
	f("half close", time.Minute, func(_ *Set, _ Token, theirs int) { syscall.Shutdown(theirs, syscall.SHUT_WR) }, Ready)
	f("call", time.Minute, func(s *Set, token Token, _ int) { s.End(token) }, Called)
	f("deadline", 0, func(*Set, Token, int) {}, Late)
}

// TestBytesBefore: what came before the wait began ends it as well.
func TestBytesBefore(t *testing.T) {
	s := newSet(t)
	ours, theirs := socketPair(t)
	defer syscall.Close(ours)
	defer syscall.Close(theirs)
	syscall.Write(theirs, []byte("x"))
	token, err := s.Begin(ours, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Wait(token); got != Ready {
		t.Errorf("the wait ended with %d", got)
	}
}

// TestStaleToken: a token of a wait that is over does nothing to the wait that
// has its place now.
func TestStaleToken(t *testing.T) {
	s := newSet(t)
	a, b := socketPair(t)
	defer syscall.Close(a)
	defer syscall.Close(b)
	old, err := s.Begin(a, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s.End(old)
	s.Wait(old)
	s.Forget(a)
	current, err := s.Begin(a, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if current.place() != old.place() {
		t.Fatal("the place was not used again, the test shows nothing")
	}
	s.End(old)
	s.mu.Lock()
	waiting := s.places[current.place()].waiting
	s.mu.Unlock()
	if !waiting {
		t.Error("an old token ended a wait that is not its own")
	}
	syscall.Write(b, []byte("x"))
	if got := s.Wait(current); got != Ready {
		t.Errorf("the wait ended with %d, want Ready", got)
	}
}

// TestManyWaits opens, ends and closes waits from many goroutines, so that
// descriptors and places are used again all the time.
func TestManyWaits(t *testing.T) {
	s := newSet(t)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for i := range 200 {
				fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Error(err)
					return
				}
				token, err := s.Begin(fds[0], time.Time{})
				if err != nil {
					t.Error(err)
				}
				want := Ready
				if i%2 == 0 {
					go syscall.Write(fds[1], []byte("x"))
				} else {
					want = Called
					go s.End(token)
				}
				if got := s.Wait(token); got != want {
					t.Errorf("a wait ended with %d, want %d", got, want)
				}
				syscall.Close(fds[0])
				if want == Called {
					syscall.Close(fds[1]) // else the write may still be on its way
				} else {
					defer syscall.Close(fds[1])
				}
			}
		})
	}
	all.Wait()
	if s.used != 0 {
		t.Errorf("%d places are taken after all waits ended", s.used)
	}
}
