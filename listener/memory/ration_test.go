package memory

import (
	"testing"
	"testing/synctest"
	"time"
)

// In a ration, a connection with many exchanges gets no more of them and waits before it reads. A connection with few
// goes on.
func TestRation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, newClient := process(t, 64*mib)
		c := newClient(1)
		f := func(what string, running int, want bool) {
			t.Helper()
			c.account.running.Store(int64(running))
			begun := time.Now()
			c.account.AwaitRation()
			waited := time.Since(begun)
			got := c.account.ChargeExchange()
			c.account.Received(7)
			if n, received := c.account.Exchanges(); got != (n == running+1) || received != 7 {
				t.Errorf("%s: %d exchanges run and have received %d bytes", what, n, received)
			}
			c.account.EndExchange(7)
			if got {
				c.account.Release(Exchange)
			}
			if got != want || waited != 0 != (!want && running > Few) {
				t.Errorf("%s: one more than %d exchanges is granted is %t, after %v", what, running, got, waited)
			}
		}
		f("no ration", 100, true)
		p.Allow(time.Second)
		f("not yet", 100, true)
		time.Sleep(2 * time.Second)
		if f("nobody watches", 100, false); !c.account.Short() {
			t.Error("memory is not short")
		}
		f("nobody watches", Few, false)
		f("nobody watches", Few-1, true)
		p.Allow(-1)
		f("a ration", 100, false)
		p.Allow(NoRation)
		f("it is over", 100, true)
		if c.account.Short() || p.Refused(OfProcess) != 3 {
			t.Errorf("memory is short is %t, %d were refused", c.account.Short(), p.Refused(OfProcess))
		}
	})
	var none *Account
	if none.AwaitRation(); !none.ChargeExchange() {
		t.Error("a nil account is in the way")
	}
}
