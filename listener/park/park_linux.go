package park

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set is a set of waits. Its methods may be called by anyone.
type Set struct {
	epoll int
	raw   syscall.RawConn

	mu     sync.Mutex // a wait begins and ends under it, the system call included
	places []*[chunk]place
	free   int32 // the first of the free places, linked by next; none: no
	used   int
	wheel  wheel
}

// place is one wait, or free.
type place struct {
	waiter     Waiter // nil: nobody waits here
	generation int32
	next, prev int32 // in the wheel's slot, or the list of free places
	due        tick  // zero: no deadline
}

// chunk is how many places are made at once. They never move, so that a set
// that grows copies nothing.
const chunk = 256

// none is no place.
const none int32 = -1

// New makes a set. It lasts as long as the process.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll set for idle connections: %w", err)
	}
	unix.SetNonblock(fd, true) // or os.NewFile takes it for a file that blocks
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot wait for an epoll set: %w", err)
	}
	s := &Set{epoll: fd, raw: raw, free: none}
	s.wheel.init(time.Now())
	go s.collect(f)
	return s, nil
}

// Park begins a wait of w for fd, a socket, to have something to read, an end
// or an error, until deadline; zero: for ever. It leaves the token in at. again
// says that the set had this fd before, and that it was not closed since; it
// saves a system call.
//
// From then on the connection is w's: the wait may have ended before Park
// returns. Nobody closes fd before it ended.
func (s *Set) Park(fd int, again bool, w Waiter, deadline time.Time, at *atomic.Uint64) error {
	return s.begin(fd, again, unix.EPOLLIN|unix.EPOLLRDHUP, w, deadline, at)
}

// Watch begins a wait of w for fd's stream to have come to its end, or for an
// error, whatever there is still to read. All else is as with Park. A descriptor
// has one wait at a time.
func (s *Set) Watch(fd int, again bool, w Waiter, at *atomic.Uint64) error {
	return s.begin(fd, again, unix.EPOLLRDHUP, w, time.Time{}, at)
}

func (s *Set) begin(fd int, again bool, events uint32, w Waiter, deadline time.Time, at *atomic.Uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.take(w, deadline)
	if err := s.arm(fd, again, events, t); err != nil {
		s.give(t)
		return fmt.Errorf("cannot add a connection to the epoll set: %w", err)
	}
	at.Store(uint64(t))
	return nil
}

// After begins a wait of w for nothing but the deadline.
func (s *Set) After(deadline time.Time, w Waiter) Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(w, deadline)
}

// End ends a wait, if it has not ended yet.
func (s *Set) End(t Token) {
	if w := s.remove(t); w != nil {
		w.Wake(Called)
	}
}

// Expire ends a wait as its deadline would. It returns false where it has ended already.
func (s *Set) Expire(t Token) bool {
	w := s.remove(t)
	if w != nil {
		w.Wake(Late)
	}
	return w != nil
}

// Cancel ends a wait without a word to its Waiter, and returns true. Where it
// returns false the wait has ended already, and Wake was called or will be.
func (s *Set) Cancel(t Token) bool { return s.remove(t) != nil }

// Forget takes fd out of the set. It is for descriptors that live on: closing
// the last one of a socket does the same.
func (s *Set) Forget(fd int) { epollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Waiter returns who waits by the wait that t names; nil: it has ended.
func (s *Set) Waiter(t Token) Waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.generation() == 0 {
		return nil
	}
	if p := s.at(t.place()); p.generation == t.generation() {
		return p.waiter
	}
	return nil
}

// Waiting counts the waits.
func (s *Set) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// arm makes the set look after fd, once. What is there already is reported, too.
func (s *Set) arm(fd int, again bool, events uint32, t Token) error {
	event := unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: t.place(), Pad: t.generation()}
	op, other, wrong := unix.EPOLL_CTL_ADD, unix.EPOLL_CTL_MOD, error(syscall.EEXIST)
	if again {
		op, other, wrong = other, op, syscall.ENOENT
	}
	err := epollCtl(s.epoll, op, fd, &event)
	if err == wrong {
		err = epollCtl(s.epoll, other, fd, &event)
	}
	return err
}

func (s *Set) at(i int32) *place { return &s.places[i/chunk][i%chunk] }

func (s *Set) take(w Waiter, deadline time.Time) Token {
	if s.free == none {
		s.grow()
	}
	i := s.free
	p := s.at(i)
	s.free = p.next
	p.waiter, p.next, p.prev, p.due = w, none, none, 0
	p.generation = max(1, p.generation+1) // never zero, also after an overflow
	s.used++
	if !deadline.IsZero() {
		s.schedule(i, p, deadline)
	}
	return token(i, p.generation)
}

func (s *Set) grow() {
	first := int32(len(s.places)) * chunk
	s.places = append(s.places, new([chunk]place))
	for i := first + chunk - 1; i >= first; i-- {
		s.at(i).next = s.free
		s.free = i
	}
}

// give ends a wait: it makes its place free and returns who waited there, or
// nil where the wait that t names has ended before.
func (s *Set) give(t Token) Waiter {
	if t.generation() == 0 {
		return nil
	}
	p := s.at(t.place())
	w := p.waiter
	if w == nil || p.generation != t.generation() {
		return nil
	}
	if p.due != 0 {
		s.unschedule(p)
	}
	p.waiter, p.next = nil, s.free
	s.free = t.place()
	s.used--
	return w
}

func (s *Set) remove(t Token) Waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.give(t)
}

// collect ends the waits whose descriptors have something. It lives in one
// RawConn.Read, so that no event is lost between a look and the next wait.
func (s *Set) collect(f *os.File) {
	var events [128]unix.EpollEvent
	var woken [len(events)]Waiter
	err := s.raw.Read(func(fd uintptr) bool {
		for {
			n := epollWait(int(fd), events[:])
			s.ready(events[:n], woken[:n])
			if n < len(events) {
				return false
			}
		}
	})
	panic(fmt.Sprintf("waiting for the epoll set %s ended: %v", f.Name(), err))
}

// ready wakes whoever the events are for. An event of a wait that has ended is
// nobody's.
func (s *Set) ready(events []unix.EpollEvent, woken []Waiter) {
	s.mu.Lock()
	for i, e := range events {
		woken[i] = s.give(token(e.Fd, e.Pad))
	}
	s.mu.Unlock()
	for i, w := range woken {
		if w != nil {
			w.Wake(Ready)
		}
		woken[i] = nil
	}
}
