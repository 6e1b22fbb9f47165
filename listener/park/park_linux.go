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

// Set is a set of waits. Any goroutine may call its methods.
type Set struct {
	epoll int
	raw   syscall.RawConn

	mu     sync.Mutex // held while a wait begins or ends, also during the system call
	places []*[chunk]place
	free   int32 // the first free place; next links the free places; none: no free place
	used   int
	wheel  wheel
}

// place is one wait, or free.
type place struct {
	waiter     Waiter // nil: the place is free
	generation int32
	next, prev int32 // in the slot of the wheel, or in the list of free places
	due        tick  // zero: no deadline
}

// chunk is the number of places that are allocated together. Places never move, so a
// growing set copies nothing.
const chunk = 256

// none is the index of no place.
const none int32 = -1

// New makes a set. It exists as long as the process.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll set for idle connections: %w", err)
	}
	unix.SetNonblock(fd, true) // otherwise os.NewFile treats it as a blocking file
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

// Park begins a wait of w until the socket fd has something to read, an end of stream or
// an error, or until deadline; zero: no deadline. It stores the token in at. again means
// that fd was in the set before and has not been closed since; it saves a system call.
//
// After Park, w owns the connection: the wait may end before Park returns. The owner must
// not close fd before the wait has ended.
func (s *Set) Park(fd int, again bool, w Waiter, deadline time.Time, at *atomic.Uint64) error {
	return s.begin(fd, again, unix.EPOLLIN|unix.EPOLLRDHUP, w, deadline, at)
}

// Watch begins a wait of w until the stream of fd has ended, or until an error, even if
// there are bytes to read. Otherwise it works like Park. A descriptor has only one wait
// at a time.
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

// After begins a wait of w that ends only at the deadline.
func (s *Set) After(deadline time.Time, w Waiter) Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(w, deadline)
}

// End ends a wait, unless it has already ended.
func (s *Set) End(t Token) {
	if w := s.remove(t); w != nil {
		w.Wake(Called)
	}
}

// Expire ends a wait as its deadline would. It returns false if the wait has already
// ended.
func (s *Set) Expire(t Token) bool {
	w := s.remove(t)
	if w != nil {
		w.Wake(Late)
	}
	return w != nil
}

// Cancel ends a wait without a call of Wake, and returns true. If it returns false, the
// wait has already ended, and Wake was called or will be called.
func (s *Set) Cancel(t Token) bool { return s.remove(t) != nil }

// Forget removes fd from the set. It is for descriptors whose socket stays open: closing
// the last descriptor of a socket also removes it.
func (s *Set) Forget(fd int) { epollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Waiter returns the waiter of the wait that t names; nil: the wait has ended.
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

// Waiting returns the number of waits.
func (s *Set) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// arm makes the set report the next event of fd, once. It also reports an event that is
// already there.
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
	p.generation = max(1, p.generation+1) // never zero, not even after an overflow
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

// give ends a wait: it frees the place and returns its waiter, or nil if the wait that t
// names has already ended.
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

// collect ends the waits whose descriptors have an event. It runs in one RawConn.Read, so
// that no event is lost between a check and the next wait.
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

// ready wakes the waiters of the events. It ignores an event of a wait that has ended.
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
