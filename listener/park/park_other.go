//go:build !linux

package park

import (
	"errors"
	"sync/atomic"
	"time"
)

// Set is a set of waits. On systems without epoll there is none: connections wait in the
// runtime's poller, each with its goroutine.
type Set struct{}

// New returns an error: there is no set.
func New() (*Set, error) { return nil, errors.ErrUnsupported }

// Park is never called.
func (s *Set) Park(int, bool, Waiter, time.Time, *atomic.Uint64) error { return errors.ErrUnsupported }

// Watch is never called.
func (s *Set) Watch(int, bool, Waiter, *atomic.Uint64) error { return errors.ErrUnsupported }

// After is never called.
func (s *Set) After(time.Time, Waiter) Token { return 0 }

// End is never called.
func (s *Set) End(Token) {}

// Expire is never called.
func (s *Set) Expire(Token) bool { return false }

// Cancel is never called.
func (s *Set) Cancel(Token) bool { return false }

// Forget is never called.
func (s *Set) Forget(int) {}

// Waiter is never called.
func (s *Set) Waiter(Token) Waiter { return nil }

// Waiting is never called.
func (s *Set) Waiting() int { return 0 }
