package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// errClientCut ends a dial whose client's connection was cut.
var errClientCut = errors.New("the client's connection ended before there was one to the endpoint")

// cancelable is a dial that ends when its client's connection is cut. It implements conn.Cuttable.
type cancelable struct {
	ctx    context.Context
	cancel context.CancelFunc
	cut    atomic.Bool
}

// newCancelable returns a dial that also ends at a time; zero: never.
func newCancelable(until time.Time) *cancelable {
	c := new(cancelable)
	if until.IsZero() {
		c.ctx, c.cancel = context.WithCancel(context.Background())
	} else {
		c.ctx, c.cancel = context.WithDeadline(context.Background(), until)
	}
	return c
}

// Cut ends the dial.
func (c *cancelable) Cut() {
	c.cut.Store(true)
	c.cancel()
}

// WasCut reports whether Cut was called.
func (c *cancelable) WasCut() bool { return c.cut.Load() }

// end returns err, the result of the dial. If Cut ended the dial, the result is also errClientCut.
func (c *cancelable) end(err error) error {
	c.cancel()
	if err != nil && c.WasCut() {
		return fmt.Errorf("%w: %w", errClientCut, err)
	}
	return err
}
