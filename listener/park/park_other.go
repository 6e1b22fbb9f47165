//go:build !linux

// Package park is where connections wait that have nothing to say. Without
// epoll there is none, and the runtime's poller does it.
package park

import (
	"errors"
	"time"
)

// Set is a set of waiting descriptors.
type Set struct{}

// Token names one wait.
type Token uint64

// Reason says why a wait ended.
type Reason uint8

// The reasons.
const (
	Ready Reason = iota
	Late
	Called
)

// New says that there is none.
func New() (*Set, error) { return nil, errors.ErrUnsupported }

// Begin is never called.
func (s *Set) Begin(int, time.Time) (Token, error) { return 0, errors.ErrUnsupported }

// Wait is never called.
func (s *Set) Wait(Token) Reason { return Ready }

// End is never called.
func (s *Set) End(Token) {}

// Forget is never called.
func (s *Set) Forget(int) {}
