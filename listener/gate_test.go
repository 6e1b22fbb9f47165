package listener

import (
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/config"
)

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimits(config.Limits{})
		stop := make(chan struct{})
		come := func() (passed chan struct{}) {
			passed = make(chan struct{})
			go func() {
				defer close(passed)
				l.gate.pass(stop)
			}()
			return passed
		}
		f := func(what string, want bool, all ...chan struct{}) {
			t.Helper()
			synctest.Wait()
			for _, passed := range all {
				got := false
				select {
				case <-passed:
					got = true
				default:
				}
				if got != want {
					t.Errorf("%s: passed is %t", what, got)
				}
			}
		}
		crowded := func(want bool) {
			t.Helper()
			synctest.Wait()
			got := false
			select {
			case <-l.Crowded():
				got = true
			default:
			}
			if got != want {
				t.Errorf("that somebody waits was told is %t", got)
			}
		}
		f("nobody said anything", true, come(), come())
		l.Admit(2)
		f("two may come", true, come(), come())
		crowded(false)
		third, fourth := come(), come()
		f("two have come", false, third, fourth)
		crowded(true)
		l.Admit(0)
		f("still none", false, third, fourth)
		crowded(true)
		l.Admit(5)
		f("enough", true, third, fourth)
		l.Admit(0)
		fifth := come()
		f("none again", false, fifth)
		close(stop)
		f("the listener closes", true, fifth)
	})
}
