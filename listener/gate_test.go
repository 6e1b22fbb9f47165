package listener

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
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

// If there is no room, the listener accepts a few connections, and judge decides by their client networks.
// The listener closes the refused ones, and their places are free again.
func TestGateShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(edge)})
		synctest.Wait() // the listener has passed the gate, and waits for a connection
		w.limits.Admit(0)
		first := ln.dial(insider)
		defer first.Close()
		var mu sync.Mutex
		var asked []string
		var coming []net.Conn
		come := func(peer, first string) { // come makes the listener accept a connection
			go func() {
				c := ln.dial(peer)
				mu.Lock()
				coming = append(coming, c)
				mu.Unlock()
				io.WriteString(c, first)
			}()
		}
		f := func(what string, left bool, handled int, rejected float64) {
			t.Helper()
			synctest.Wait()
			if len(w.handled) != handled || w.limits.Left() < 0 != left {
				t.Errorf("%s: %d connections are served, want %d; %d may come", what, len(w.handled), handled, w.limits.Left())
			}
			w.wantRejected(ReasonFairShare, rejected)
		}
		f("it had passed before", true, 1, 0)
		come(insider, "")
		f("nobody is let in", true, 1, 0)
		small := netip.MustParseAddr("1.0.0.7")
		w.limits.Share(2, func(n conn.Network) bool {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, n.String())
			return n.Prefix().Addr() == small
		})
		f("the one that waited is refused", true, 1, 1)
		come(insider, "")
		f("and the next", true, 1, 2)
		come(balancer, "PROXY TCP4 1.0.0.7 203.0.113.7 1 443\r\n")
		f("one stays", true, 2, 2)
		come(balancer, "PROXY TCP4 1.0.0.8 203.0.113.7 1 443\r\n")
		f("another does not", true, 2, 3)
		come(balancer, "PROXY")
		f("one is slow", true, 2, 3)
		come(insider, "")
		f("both places are taken", true, 2, 3)
		time.Sleep(judgeTimeout)
		f("one took too long for its header, and the next had its place", true, 2, 5)
		w.limits.Share(2, nil)
		w.limits.Admit(1)
		come(insider, "")
		f("there is room", false, 3, 5)
		if want := "[172.16.0.1/32 172.16.0.1/32 1.0.0.7/32 1.0.0.8/32 172.16.0.1/32]"; fmt.Sprint(asked) != want {
			t.Errorf("asked for %v, want %s", asked, want)
		}
		for _, c := range coming {
			c.Close()
		}
		w.limits.gate.mu.Lock()
		if g := w.limits.gate; g.judging != 0 {
			t.Errorf("%d are still to be judged", g.judging)
		}
		w.limits.gate.mu.Unlock()
		w.close()
	})
}
