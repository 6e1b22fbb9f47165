package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
)

// target is an endpoint whose results the test sets.
type target struct {
	mu     sync.Mutex
	err    error  // the error of Dial
	asker  *asker // the connection, for a check by HTTP
	dialed []time.Time
	told   []bool
	why    string
}

func (t *target) Address() string { return "10.0.0.1:80" }

func (t *target) Dial(ctx context.Context, forHTTP bool) (Connection, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dialed = append(t.dialed, time.Now())
	if t.err != nil {
		return nil, t.err
	}
	if t.asker != nil {
		return t.asker, nil
	}
	return connected{}, nil
}

// connected is a connection for which no goroutine waits.
type connected struct{}

func (connected) Cut()         {}
func (connected) Close() error { return nil }

func (t *target) SetReady(ready bool, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = append(t.told, ready)
	t.why = why
}

func (t *target) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
}

func (t *target) verdicts() []bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	told := t.told
	t.told = nil
	return told
}

func settings() config.HealthCheck {
	return config.HealthCheck{TCP: true, Interval: 10 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
}

var errDown = errors.New("connection refused")

func TestRiseAndFall(t *testing.T) {
	const up, down = true, false
	f := func(wasReady bool, results, want []bool) {
		t.Helper()
		k := streak{ready: wasReady, judged: wasReady}
		var got []bool
		for _, r := range results {
			got = append(got, k.add(r, 2, 3))
		}
		if !slices.Equal(got, want) {
			t.Errorf("was ready %t, results %v: %v, want %v", wasReady, results, got, want)
		}
	}
	f(false, []bool{up}, []bool{up}) // the first result decides at once
	f(false, []bool{down, up, up}, []bool{down, down, up})
	f(false, []bool{up, down, down, down}, []bool{up, up, up, down})
	f(false, []bool{up, down, down, up, down, down}, []bool{up, up, up, up, up, up})
	f(false, []bool{down, up, down, up, up, down, down, down, up}, []bool{down, down, down, down, up, up, up, down, down})
	f(true, []bool{down, down, down, up, up}, []bool{up, up, down, down, up})
}

func TestChecksGoOnUntilStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewChecker()
		defer c.Close()
		var one target
		start := time.Now()
		stop := c.Start(&one, settings(), false)
		synctest.Wait()
		if !slices.Equal(one.verdicts(), []bool{true}) || !one.dialed[0].Equal(start) {
			t.Fatal("the first check did not come at once")
		}
		one.fail(errDown)
		time.Sleep(44 * time.Second) // the second check comes within 10 s, and each later one within 11 s
		told := one.verdicts()
		if len(told) < 4 || told[1] != true || told[2] != false || told[len(told)-1] != false {
			t.Errorf("told %v", told)
		}
		if !strings.Contains(one.why, "10.0.0.1:80") || !strings.Contains(one.why, "refused") {
			t.Errorf("reason %q", one.why)
		}
		stop()
		synctest.Wait()
		n := len(one.dialed)
		time.Sleep(time.Hour)
		if len(one.dialed) != n {
			t.Error("a stopped check goes on")
		}
	})
}

func TestChecksAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewChecker()
		defer c.Close()
		start := time.Now()
		targets := make([]target, 200)
		for i := range targets {
			c.Start(&targets[i], settings(), false)
		}
		time.Sleep(60 * time.Second)
		synctest.Wait()
		var tenths [10]int
		for i := range targets {
			d := targets[i].dialed
			second := d[1].Sub(start)
			if second >= 10*time.Second {
				t.Fatalf("the second check came after %v", second)
			}
			tenths[second/time.Second]++
			for j := 2; j < len(d); j++ {
				if gap := d[j].Sub(d[j-1]); gap < 9*time.Second || gap > 11*time.Second {
					t.Errorf("an interval of %v", gap)
				}
			}
		}
		for i, n := range tenths {
			if n < 4 || n > 50 { // 20 on average
				t.Errorf("%d of 200 second checks in second %d: %v", n, i, tenths)
			}
		}
	})
}

// Without free descriptors, weir must not treat its endpoints as failed.
func TestExhaustionIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewChecker()
		defer c.Close()
		var one target
		c.Start(&one, settings(), false)
		synctest.Wait()
		one.verdicts()
		one.fail(fmt.Errorf("dial: %w", syscall.EMFILE))
		time.Sleep(5 * time.Minute)
		if told := one.verdicts(); len(told) != 0 {
			t.Errorf("told %v", told)
		}
	})
}

// asker is a connection that answers with a status or an error, or waits until it is cut.
type asker struct {
	connected
	status int
	err    error
	hangs  bool
	asked  *Question
	ended  chan struct{}
}

func (a *asker) Ask(ctx context.Context, q *Question) (*Answer, error) {
	a.asked = q
	if a.hangs {
		<-a.ended
		return nil, context.Cause(ctx)
	}
	return &Answer{Status: a.status}, a.err
}

func (a *asker) Cut() { close(a.ended) }

func TestHTTPCheck(t *testing.T) {
	f := func(a asker, wantWhy string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			a.ended = make(chan struct{})
			s := settings()
			s.TCP, s.HTTP = false, &config.HTTPCheck{Path: "/healthz?a=%2f;", Host: "app.internal", StatusMin: 200, StatusMax: 399}
			start := time.Now()
			err := try(context.Background(), &target{asker: &a}, &s)
			if (err == nil) != (wantWhy == "") || err != nil && !strings.Contains(err.Error(), wantWhy) {
				t.Errorf("%+v: %v, want %q", a, err, wantWhy)
			}
			if waited := time.Since(start); waited > s.Timeout {
				t.Errorf("%+v took %v", a, waited)
			}
			if q := a.asked; q.Method != "GET" || q.Path != "/healthz?a=%2f;" || q.Host != "app.internal" {
				t.Errorf("asked %+v", q)
			}
		})
	}
	f(asker{status: 200}, "")
	f(asker{status: 399}, "")
	f(asker{status: 503}, "status 503 is not within health_check.http.status (200-399)")
	f(asker{err: io.EOF}, "GET /healthz?a=%2f; from 10.0.0.1:80: EOF")
	f(asker{hangs: true}, "GET /healthz?a=%2f; from 10.0.0.1:80 took longer than 2s (health_check.timeout)")
}

func TestHTTPCheckNamesTheEndpoint(t *testing.T) {
	f := func(address, path, wantHost string) {
		t.Helper()
		a := asker{status: 200}
		err := tryHTTP(context.Background(), &a, &config.HTTPCheck{Path: path, StatusMin: 200, StatusMax: 200}, address)
		if (err == nil) != (wantHost != "") {
			t.Errorf("%s %q: %v", address, path, err)
		}
		if err == nil && a.asked.Host != wantHost {
			t.Errorf("Host %q, want %q", a.asked.Host, wantHost)
		}
	}
	f("10.0.0.1:8080", "/", "10.0.0.1:8080")
	f("unix:/run/app.sock", "/", "localhost")
	f("10.0.0.1:8080", "/ HTTP/1.1\r\nX: y", "")
}

func TestCloseWaitsForRunningChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewChecker()
		one := target{asker: &asker{hangs: true, ended: make(chan struct{})}}
		s := settings()
		s.TCP, s.HTTP = false, &config.HTTPCheck{Path: "/", StatusMin: 200, StatusMax: 399}
		c.Start(&one, s, false)
		synctest.Wait()
		start := time.Now()
		c.Close()
		if time.Since(start) != 0 || len(one.verdicts()) != 0 {
			t.Errorf("ended after %v, told %v", time.Since(start), one.told)
		}
		c.Start(&one, s, false)()
	})
}
