package listener

import (
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/config"
)

func TestAwaitRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimits(config.Limits{})
		stop := make(chan struct{})
		through := func() (passed chan struct{}) {
			passed = make(chan struct{})
			go func() {
				defer close(passed)
				l.awaitRoom(stop)
			}()
			synctest.Wait()
			return passed
		}
		f := func(what string, passed chan struct{}, want bool) {
			t.Helper()
			synctest.Wait()
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
		f("nobody said anything", through(), true)
		l.connections.Store(2)
		l.Admit(3)
		f("one more may come", through(), true)
		l.Admit(2)
		first, second := through(), through()
		f("no room", first, false)
		select {
		case <-l.Crowded():
		default:
			t.Error("nobody was told that a listener waits")
		}
		l.Admit(2)
		f("still no room", first, false)
		l.Admit(4)
		f("there is room again", first, true)
		f("for all that wait", second, true)

		l.Admit(0)
		third := through()
		f("nothing is accepted", third, false)
		l.connections.Store(1)
		f("one that ends is not noticed", third, false)
		l.Admit(2)
		f("but by the next look", third, true)
		l.Admit(0)
		fourth := through()
		close(stop)
		f("the listener closes", fourth, true)
	})
}
