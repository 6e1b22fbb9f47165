package backend

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func TestPrivateLinksAreTheirClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		cfg := settings("app", "10.0.0.1:80")
		cfg.MaxIdle = 1
		w.update(cfg)
		b := w.set.Backend("app")
		e := endpointOf(t, b, "10.0.0.1:80")
		closed := func(far net.Conn) {
			t.Helper()
			far.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := far.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("it is not closed: %v", err)
			}
		}
		one, far1 := link(e)
		two, far2 := link(e)
		for _, s := range []*Link{one, two} {
			s.MakePrivate()
			if !s.Private() || !e.Hold(s) {
				t.Fatal("it is not held")
			}
		}
		if e.Idle(Need{}) != nil || e.IdleCount() != 0 || e.HeldCount() != 2 {
			t.Errorf("held links are among the pool's: %d, %d", e.IdleCount(), e.HeldCount())
		}
		if !one.Reclaim() || !one.Reused || one.Reclaim() || e.HeldCount() != 1 {
			t.Error("a link is not given back once")
		}
		two.Drop()
		two.Drop()
		closed(far2)

		e.Hold(one)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if e.HeldCount() != 1 {
			t.Error("it ended before keep_alive was over")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if e.HeldCount() != 0 || one.Reclaim() {
			t.Error("it outlived keep_alive")
		}
		closed(far1)

		three, far3 := link(e)
		three.MakePrivate()
		e.Hold(three)
		changed := cfg
		changed.SendProxy = 1
		w.update(changed)
		if three.Reclaim() {
			t.Error("it outlived its settings")
		}
		closed(far3)
		four, far4 := link(e)
		e.Hold(four)
		if err := b.AcquireAt(e, alone{}); err != nil || e.InFlight() != 1 {
			t.Errorf("%v, %d in flight", err, e.InFlight())
		}
		e.Release()
		w.update()
		if four.Reclaim() {
			t.Error("it outlived its endpoint")
		}
		closed(far4)
		five, far5 := link(e)
		if e.Hold(five) {
			t.Error("an endpoint that is gone holds a link")
		}
		closed(far5)
		if err := b.AcquireAt(e, alone{}); err != ErrNoReady || b.InFlight() != 0 {
			t.Errorf("%v, %d in flight", err, b.InFlight())
		}
	})
}
