// Package park is where connections wait that have nothing to say, at less
// than the runtime's poller would cost: an epoll set of our own, one-shot, that
// is itself one descriptor in the runtime's.
//
// Today a connection waits here for its first request alone, with its
// goroutine: a client that comes for one request then needs neither an os.File
// nor a timer of the runtime, and none of the system calls that these make.
package park

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set is a set of waiting descriptors. Its methods may be called by anyone.
type Set struct {
	epoll int
	raw   syscall.RawConn

	mu     sync.Mutex
	places []*place
	free   []int32
	used   int
	next   time.Time // when sweep comes; zero: it need not
	timer  *time.Timer
}

// Token names one wait; zero names none. It says nothing any more once the
// wait has ended, even if its place and the descriptor's number belong to
// another one.
type Token uint64

func token(place, generation int32) Token {
	return Token(uint32(generation))<<32 | Token(uint32(place))
}

func (t Token) place() int32      { return int32(uint32(t)) }
func (t Token) generation() int32 { return int32(t >> 32) }

// Reason says why a wait ended.
type Reason uint8

// The reasons.
const (
	Ready  Reason = iota // bytes, an end of stream or an error are there
	Late                 // the deadline has passed
	Called               // somebody called End
)

type place struct {
	ended      chan Reason
	generation int32
	waiting    bool
	deadline   time.Time // zero: none
}

// resolution is how late a deadline may be noticed, where many follow each other.
const resolution = 50 * time.Millisecond

// New makes a set. It lasts as long as the process.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll set for waiting connections: %w", err)
	}
	unix.SetNonblock(fd, true) // or os.NewFile takes it for a file that blocks
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot wait for an epoll set: %w", err)
	}
	s := &Set{epoll: fd, raw: raw}
	go s.collect(f)
	return s, nil
}

// Begin begins a wait for fd, a socket, to have something to read. Wait has to
// follow, and nobody closes fd before it returned.
func (s *Set) Begin(fd int, deadline time.Time) (Token, error) {
	t := s.take(deadline)
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: t.place(), Pad: t.generation()}
	if err := epollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		s.give(t)
		return t, fmt.Errorf("cannot wait for a connection: %w", err)
	}
	return t, nil
}

// Wait waits until the wait that Begin began ends.
func (s *Set) Wait(t Token) Reason {
	why := <-s.at(t).ended
	s.give(t)
	return why
}

// End ends a wait, if it has not ended yet.
func (s *Set) End(t Token) { s.end(t, Called) }

// Forget takes fd out of the set. It is for descriptors that live on: closing
// does the same.
func (s *Set) Forget(fd int) { epollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

func (s *Set) at(t Token) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places[t.place()]
}

func (s *Set) take(deadline time.Time) Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	var i int32
	if n := len(s.free); n > 0 {
		i = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		i = int32(len(s.places))
		s.places = append(s.places, &place{ended: make(chan Reason, 1)})
	}
	p := s.places[i]
	p.generation = max(1, p.generation+1) // never zero, also after an overflow
	p.waiting, p.deadline = true, deadline
	s.used++
	if !deadline.IsZero() && (s.next.IsZero() || deadline.Before(s.next)) {
		s.sweepAt(deadline)
	}
	return token(i, p.generation)
}

// give makes a place free. Its channel is empty: a wait ends once.
func (s *Set) give(t Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places[t.place()].waiting = false
	s.free = append(s.free, t.place())
	s.used--
}

func (s *Set) end(t Token, why Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[t.place()]; p.waiting && p.generation == t.generation() {
		p.waiting = false
		p.ended <- why
	}
}

// collect ends the waits whose descriptors have something. It lives in one
// RawConn.Read, so that no event is lost between a look and the next wait.
func (s *Set) collect(f *os.File) {
	var events [128]unix.EpollEvent
	err := s.raw.Read(func(fd uintptr) bool {
		for {
			n := epollWait(int(fd), events[:])
			for _, e := range events[:n] {
				s.end(token(e.Fd, e.Pad), Ready)
			}
			if n < len(events) {
				return false
			}
		}
	})
	panic(fmt.Sprintf("waiting for the epoll set %s ended: %v", f.Name(), err))
}

// sweepAt sets the one timer. Waits mostly have the same length, so that a new
// one rarely ends before all others.
func (s *Set) sweepAt(at time.Time) {
	s.next = at
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(at), s.sweep)
		return
	}
	s.timer.Reset(time.Until(at))
}

// sweep ends the waits whose deadline has passed, and comes again for the next one.
func (s *Set) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.next = time.Time{}
	for _, p := range s.places {
		switch {
		case !p.waiting || p.deadline.IsZero():
		case !now.Before(p.deadline):
			p.waiting = false
			p.ended <- Late
		case s.next.IsZero() || p.deadline.Before(s.next):
			s.next = p.deadline
		}
	}
	if soonest := now.Add(resolution); !s.next.IsZero() {
		if s.next.Before(soonest) {
			s.next = soonest
		}
		s.sweepAt(s.next)
	}
}
