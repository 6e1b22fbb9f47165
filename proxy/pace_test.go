package proxy

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
)

func TestPace(t *testing.T) {
	const second = time.Second
	// f sends a piece of n bytes each time the pause each has passed. It stops when a piece is late, or after
	// an hour.
	f := func(rate int64, n int, each, want time.Duration) {
		t.Helper()
		p := newPace(60*second, rate)
		lasted := time.Duration(0)
		for ; lasted < time.Hour && each <= p.left; lasted += each {
			p.came(n, each)
		}
		if lasted != want {
			t.Errorf("%d bytes every %v at no less than %d a second last %v, want %v", n, each, rate, lasted, want)
		}
	}
	f(240, 240, second, time.Hour)
	f(240, 1460, 6*second, time.Hour)    // a packet from time to time
	f(240, 16<<10, 60*second, time.Hour) // long pauses, many bytes at once
	f(240, 16<<10, 61*second, 0)
	f(240, 1, second, 60*second)
	f(240, 1, 10*second, 60*second)
	f(240, 120, second, 119*second)
	f(240, 239, second, time.Hour) // it becomes too slow only after four hours
	f(0, 1, 60*second, time.Hour)
	f(0, 1, 61*second, 0)

	p := newPace(60*second, 240)
	p.came(100<<20, time.Millisecond)
	if p.left != 60*second {
		t.Errorf("100 MiB win %v", p.left)
	}
	p.came(0, 59*second) // no bytes arrived: an error follows, or bytes that are not part of the body
	p.came(1, 59*second)
	if left := p.left.Round(second); left != second {
		t.Errorf("after a pause %v are left", left)
	}
}

// sourceAfter is a body of which a byte arrives after some time.
type sourceAfter struct {
	source
	arrives, until time.Time
}

func (s *sourceAfter) SetReadDeadline(until time.Time) { s.until = until }
func (s *sourceAfter) Owes() bool                      { return false }

func (s *sourceAfter) ReadBody(*message.Request) ([]byte, error) {
	if s.until.Before(s.arrives) {
		time.Sleep(time.Until(s.until))
		return nil, os.ErrDeadlineExceeded
	}
	time.Sleep(time.Until(s.arrives))
	return []byte("x"), nil
}

// Silence in which a client owes nothing does not count as slowness: afterwards the client has the whole time again.
func TestPaceAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		u := &upload{link: new(backend.Link), begun: now, pace: newPace(time.Minute, 240)}
		u.pace.silence = time.Hour
		u.answered.Store(true)
		u.attempts = &attempts{requester: new(inquiry), req: &message.Request{Length: message.Unknown}}
		u.attempts.upload = u
		f := func(wait, want time.Duration) {
			t.Helper()
			u.attempts.body = &sourceAfter{arrives: time.Now().Add(wait)}
			if p, err := u.next(); err != nil || len(p) != 1 || u.pace.left.Round(time.Second) != want {
				t.Errorf("after %v came %q, %v; %v are left, want %v", wait, p, err, u.pace.left, want)
			}
		}
		f(30*time.Second, 30*time.Second)
		f(10*time.Minute, time.Minute)
		f(20*time.Second, 40*time.Second)
	})
}
