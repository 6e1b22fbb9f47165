package node

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// weir waits for the last writes to a cluster until the drain ends, as long as writes succeed. In any case it
// waits for lastWrites.
func TestWaitForLastWrites(t *testing.T) {
	errOver := errors.New("over")
	for _, c := range []struct {
		name        string
		ends        time.Duration // time until the end of the drain
		every, stop time.Duration // a write succeeds once per every, until stop
		done        time.Duration // the work is done; 0: never
		takes       time.Duration
		want        error
	}{
		{"done at once", time.Minute, 0, 0, time.Millisecond, time.Millisecond, nil},
		{"done after many writes", time.Minute, time.Second, time.Hour, 40 * time.Second, 40 * time.Second, nil},
		{"nothing is written", time.Minute, 0, 0, 0, leavePatience, errNoWrites},
		{"no more is written", time.Minute, time.Second, 10 * time.Second, 0, 10*time.Second + leavePatience, errNoWrites},
		{"the drain is too short", time.Minute, 3 * time.Second, time.Hour, 0, time.Minute, errOver},
		{"the drain took all of its time", 0, time.Second, time.Hour, 0, lastWrites, errOver},
		{"nothing is written after the drain", -time.Minute, 0, 0, 0, lastWrites, errNoWrites},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := &cluster{wrote: make(chan struct{}, 1), gone: make(chan struct{})}
				began, over := time.Now(), make(chan struct{})
				var writing sync.WaitGroup
				writing.Go(func() {
					for at := c.every; c.every > 0 && at <= c.stop; at += c.every {
						select {
						case <-time.After(c.every):
							one.noteWrite()
						case <-over:
							return
						}
					}
				})
				if c.done > 0 {
					time.AfterFunc(c.done, func() { close(one.gone) })
				}
				got := one.awaitGone(began.Add(c.ends), errOver)
				close(over)
				writing.Wait()
				if took := time.Since(began); got != c.want || took != c.takes {
					t.Errorf("after %v: %v, want %v after %v", took, got, c.want, c.takes)
				}
			})
		})
	}
}

// leaving is a control whose last writes never end.
type leaving struct {
	began chan struct{}
	cause chan error
}

func (l *leaving) InEffect(*config.Config, *kube.Routing) {}

func (l *leaving) Release(context.Context) {}

func (l *leaving) Leave(ctx context.Context, _ func()) {
	close(l.began)
	<-ctx.Done()
	l.cause <- context.Cause(ctx)
}

// A second signal ends the wait for the last writes to the cluster, also after all
// connections have ended.
func TestSecondSignalEndsLastWrites(t *testing.T) {
	c := newClustered(t, shop, "web")
	l := &leaving{began: make(chan struct{}), cause: make(chan error, 1)}
	c.begin = func(*config.Config) (control, error) { return l, nil }
	c.load(strings.Replace(beside, "timeout: 2s", "timeout: 1h", 1))
	c.until("shop.example", "/", 503)
	now, ended := make(chan struct{}), make(chan error)
	c.ended = true
	go func() { ended <- c.shutdown(now) }()
	<-l.began
	eventually(t, "all ports are closed", func() error {
		if c.logged("all ports are closed, and another process can bind them") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	close(now)
	if err := <-ended; err != nil {
		t.Errorf("the shutdown failed: %v", err)
	}
	if cause := <-l.cause; cause != errSecondSignal {
		t.Errorf("the last writes ended because: %v", cause)
	}
}
