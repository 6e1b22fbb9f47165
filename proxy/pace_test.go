package proxy

import (
	"testing"
	"time"
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
