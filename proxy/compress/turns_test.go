package compress

import (
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// oneCore makes encoders share one core during a test.
func oneCore(t *testing.T) {
	before := cores
	cores = newTurns(1)
	t.Cleanup(func() { cores = before })
}

// counting is a codec that counts how many compute at the same time.
type counting struct {
	now, most *atomic.Int32
	to        io.Writer
}

func (c *counting) compute() error {
	if n := c.now.Add(1); n > c.most.Load() {
		c.most.Store(n)
	}
	for range 10 {
		runtime.Gosched()
	}
	c.now.Add(-1)
	_, err := c.to.Write([]byte("encoded"))
	return err
}

func (c *counting) Write(p []byte) (int, error) { return len(p), c.compute() }
func (c *counting) Flush() error                { return c.compute() }
func (c *counting) Close() error                { return c.compute() }
func (c *counting) Reset(w io.Writer)           { c.to = w }

func newCounting(now, most *atomic.Int32, to Destination) *Encoder {
	e := &Encoder{coding: Gzip, codec: &counting{now: now, most: most}}
	e.to.destination = to
	e.codec.Reset(&e.to)
	return e
}

func TestEncodersTakeTurns(t *testing.T) {
	oneCore(t)
	var now, most atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			e := newCounting(&now, &most, discard{})
			for range 20 {
				e.Write([]byte("a"))
				e.Flush()
			}
			e.Close()
		})
	}
	wg.Wait()
	if most.Load() != 1 || len(cores.taken) != 0 || cores.waiting.Load() != 0 {
		t.Errorf("%d computed at the same time; %d turns are taken, %d wait", most.Load(), len(cores.taken), cores.waiting.Load())
	}
}

// gate is a destination that takes nothing before it opens.
type gate chan struct{}

func (g gate) WriteBody([]byte) error {
	<-g
	return nil
}

// A client that reads nothing keeps no core from others.
func TestSlowClientsHoldNoTurn(t *testing.T) {
	oneCore(t)
	var now, most atomic.Int32
	var wg sync.WaitGroup
	opens := make(gate)
	for range 3 {
		wg.Go(func() {
			e := newCounting(&now, &most, opens)
			e.Write([]byte("a"))
			e.Flush()
		})
	}
	e := newCounting(&now, &most, discard{})
	for range 100 {
		e.Write([]byte("a"))
		e.Flush()
	}
	close(opens)
	wg.Wait()
	if len(cores.taken) != 0 {
		t.Error("a turn is still taken")
	}
}

type panicking struct{}

func (panicking) WriteBody([]byte) error { panic("test") }

// A panic of the destination does not keep the turn.
func TestPanicFreesTheTurn(t *testing.T) {
	oneCore(t)
	var now, most atomic.Int32
	func() {
		defer func() { recover() }()
		e := newCounting(&now, &most, panicking{})
		e.Write([]byte("a"))
		e.Flush()
	}()
	if len(cores.taken) != 0 {
		t.Error("the turn is still taken")
	}
}

// Busy says so while many wait.
func TestBusy(t *testing.T) {
	oneCore(t)
	cores.take()
	var wg sync.WaitGroup
	for n := range int32(mostWaiting) {
		if Busy() {
			t.Fatalf("busy with %d that wait", n)
		}
		wg.Go(func() {
			cores.take()
			cores.free()
		})
		for cores.waiting.Load() != n+1 {
			runtime.Gosched()
		}
	}
	if !Busy() {
		t.Errorf("not busy with %d that wait", mostWaiting)
	}
	cores.free()
	wg.Wait()
	if Busy() || len(cores.taken) != 0 {
		t.Error("busy at the end")
	}
}
