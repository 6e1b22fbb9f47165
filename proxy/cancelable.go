package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// errClientCut ends a dial whose client's connection was cut.
var errClientCut = errors.New("the client's connection ended before there was one to the endpoint")

// cancelable is a dial that ends when its client's connection is cut. It implements conn.Linked.
type cancelable struct {
	ctx    context.Context
	cancel context.CancelFunc
	cut    atomic.Bool
}

func newCancelable() *cancelable {
	c := new(cancelable)
	c.ctx, c.cancel = context.WithCancel(context.Background())
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
