package conn

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// played is a system with one socket. Its poller is edge-triggered, like the one of the
// runtime, and its lot is level-triggered. Its clock is the one of testing/synctest.
type played struct {
	mu      sync.Mutex
	changed sync.Cond

	in    []byte
	ended bool
	room  int // room for bytes of the Conn
	out   []byte
	calls int // calls of read

	next   int          // the next descriptor
	open   map[int]bool // the descriptors
	poller *playedPoller
	waits  map[park.Token]*playedWait
	tokens uint64
}

// play makes a bare connection in a simulated system.
func play() (*Conn, *played) {
	s := &played{next: 1 << 20, open: map[int]bool{}, waits: map[park.Token]*playedWait{}, room: 1 << 20}
	s.changed.L = &s.mu
	return &Conn{system: s, fd: s.descriptor(), Accepted: time.Now(), Origin: Origin{Header: &noHeader}}, s
}

// playPolled is like play, for a polled connection.
func playPolled() (*Conn, *played) {
	c, s := play()
	c.JoinPoller()
	return c, s
}

// playUnpolled is like play, for a connection that was polled.
func playUnpolled() (*Conn, *played) {
	c, s := playPolled()
	c.Unpoll()
	return c, s
}

// eachPlayed runs f in a bubble, with a played connection in every state in which a wait can
// begin.
func eachPlayed(t *testing.T, f func(*testing.T, *Conn, *played)) {
	for name, play := range map[string]func() (*Conn, *played){"bare": play, "polled": playPolled, "unpolled": playUnpolled} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := play()
				f(t, c, s)
				wantError(t, c.Close(), nil)
				s.wantClosed(t)
			})
		})
	}
}

// arrive causes one event: bytes, and if end is true the end of the stream with them.
func (s *played) arrive(text string, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in = append(s.in, text...)
	s.ended = s.ended || end
	if s.poller != nil {
		s.poller.readable = true
	}
	s.wakeLot()
	s.changed.Broadcast()
}

// take makes room for n more bytes.
func (s *played) take(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room += n
	if s.poller != nil {
		s.poller.writable = true
	}
	s.changed.Broadcast()
}

// wantClosed checks that no descriptor is open, and that no wait is left in the lot.
func (s *played) wantClosed(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) > 0 || len(s.waits) > 0 {
		t.Errorf("%d descriptors are open, %d waits are in the lot", len(s.open), len(s.waits))
	}
}

// descriptor returns a new descriptor of the socket.
func (s *played) descriptor() int {
	s.next++
	s.open[s.next] = true
	return s.next
}

func (s *played) read(fd int, p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	n := copy(p, s.in)
	s.in = s.in[n:]
	switch {
	case !s.open[fd]:
		return 0, syscall.EBADF
	case n == 0 && !s.ended:
		return 0, syscall.EAGAIN
	}
	return n, nil
}

func (s *played) write(fd int, p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(p), s.room)
	s.room -= n
	s.out = append(s.out, p[:n]...)
	switch {
	case !s.open[fd]:
		return 0, syscall.EBADF
	case n == 0:
		return 0, syscall.EAGAIN
	}
	return n, nil
}

func (s *played) close(fd int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open[fd] {
		return syscall.EBADF
	}
	delete(s.open, fd)
	return nil
}

func (s *played) duplicate(int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.descriptor()
}

func (s *played) hasUnread(int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.in) > 0
}

func (s *played) join(fd int) (socket, syscall.RawConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poller = &playedPoller{system: s, fd: fd, readable: len(s.in) > 0 || s.ended, writable: true}
	return s.poller, playedRaw{s.poller}
}

func (s *played) lot() waits { return s }

// playedPoller is a descriptor in the poller.
type playedPoller struct {
	system             *played
	fd                 int
	readable, writable bool // an event has come, and no wait has taken it
	readBy, writeBy    time.Time
}

// await calls step until it returns true, as RawConn does. It calls step at once, unless the
// deadline has passed.
func (p *playedPoller) await(event *bool, by *time.Time, step func(fd uintptr) bool) error {
	s := p.system
	s.mu.Lock()
	defer s.mu.Unlock()
	passed := func() bool { return !by.IsZero() && !time.Now().Before(*by) }
	for {
		if passed() {
			return os.ErrDeadlineExceeded
		}
		*event = false
		s.mu.Unlock()
		done := step(uintptr(p.fd))
		s.mu.Lock()
		if done {
			return nil
		}
		for !*event && !passed() {
			s.changed.Wait()
		}
	}
}

func (p *playedPoller) setDeadline(by *time.Time, at time.Time) {
	s := p.system
	s.mu.Lock()
	defer s.mu.Unlock()
	*by = at
	if !at.IsZero() {
		time.AfterFunc(time.Until(at), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
}

func (p *playedPoller) SetReadDeadline(at time.Time) error {
	p.setDeadline(&p.readBy, at)
	return nil
}

func (p *playedPoller) SetWriteDeadline(at time.Time) error {
	p.setDeadline(&p.writeBy, at)
	return nil
}

func (p *playedPoller) SetDeadline(at time.Time) error {
	p.SetReadDeadline(at)
	return p.SetWriteDeadline(at)
}

func (p *playedPoller) Control(f func(fd uintptr)) error { f(uintptr(p.fd)); return nil }

func (p *playedPoller) Read(b []byte) (n int, err error) {
	failed := playedRaw{p}.Read(func(fd uintptr) bool {
		n, err = p.system.read(int(fd), b)
		return err != syscall.EAGAIN
	})
	switch {
	case failed != nil:
		return 0, failed
	case n == 0 && err == nil:
		return 0, io.EOF
	}
	return n, err
}

func (p *playedPoller) Write(b []byte) (n int, err error) {
	failed := playedRaw{p}.Write(func(fd uintptr) bool {
		var m int
		m, err = p.system.write(int(fd), b[n:])
		n += m
		return n == len(b) || err != nil && err != syscall.EAGAIN
	})
	if failed != nil {
		return n, failed
	}
	return n, err
}

func (p *playedPoller) Close() error { return p.system.close(p.fd) }

// playedRaw is the syscall.RawConn of a playedPoller.
type playedRaw struct{ p *playedPoller }

func (r playedRaw) Control(f func(fd uintptr)) error {
	f(uintptr(r.p.fd))
	return nil
}

func (r playedRaw) Read(step func(fd uintptr) bool) error {
	return r.p.await(&r.p.readable, &r.p.readBy, step)
}

func (r playedRaw) Write(step func(fd uintptr) bool) error {
	return r.p.await(&r.p.writable, &r.p.writeBy, step)
}

// playedWait is a wait in the lot.
type playedWait struct {
	waiter  park.Waiter
	onlyEnd bool
	timer   *time.Timer
}

func (s *played) Park(fd int, _ bool, w park.Waiter, deadline time.Time, at *atomic.Uint64) error {
	return s.begin(&playedWait{waiter: w}, deadline, at)
}

func (s *played) Watch(fd int, _ bool, w park.Waiter, at *atomic.Uint64) error {
	return s.begin(&playedWait{waiter: w, onlyEnd: true}, time.Time{}, at)
}

func (s *played) begin(w *playedWait, deadline time.Time, at *atomic.Uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens++
	t := park.Token(s.tokens)
	if !deadline.IsZero() {
		w.timer = time.AfterFunc(time.Until(deadline), func() { s.finish(t, park.Late) })
	}
	s.waits[t] = w
	at.Store(uint64(t))
	s.wakeLot()
	return nil
}

// wakeLot ends the waits that have an event. The caller holds the lock.
func (s *played) wakeLot() {
	for t, w := range s.waits {
		if s.ended || len(s.in) > 0 && !w.onlyEnd {
			go s.finish(t, park.Ready)
		}
	}
}

// finish ends a wait, and calls Wake.
func (s *played) finish(t park.Token, why park.Reason) bool {
	w := s.remove(t)
	if w != nil {
		w.waiter.Wake(why)
	}
	return w != nil
}

func (s *played) remove(t park.Token) *playedWait {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waits[t]
	delete(s.waits, t)
	if w != nil && w.timer != nil {
		w.timer.Stop()
	}
	return w
}

func (s *played) End(t park.Token)         { s.finish(t, park.Called) }
func (s *played) Expire(t park.Token) bool { return s.finish(t, park.Late) }
func (s *played) Cancel(t park.Token) bool { return s.remove(t) != nil }
func (s *played) Forget(int)               {}

func (s *played) Waiter(t park.Token) park.Waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waits[t]; w != nil {
		return w.waiter
	}
	return nil
}
