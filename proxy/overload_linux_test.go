package proxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// Weir can find idle clients and end them without losing a request.
func TestEndIdle(t *testing.T) {
	for _, text := range []string{plain, secure} {
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@app", e.address)
		c := patient(r.dialClient(text))
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		s := patient(e.accept())
		s.head()
		if ours := r.only(); ours.EndIdle() || ours.State() != conn.Active {
			t.Error("an exchange was ended")
		}
		s.write(ok("x"))
		c.wantResponse(200, "x")
		r.record()
		r.wantParked()
		ours := r.only()
		if age, known := ours.QuietFor(time.Now().Add(time.Minute)); !known || age < time.Minute || age > time.Minute+patience {
			t.Errorf("it was idle for %v, %t", age, known)
		}
		if !ours.EndIdle() {
			t.Error("an idle client was not ended")
		}
		c.wantEnd(false)
		r.wantNoLog()
	}
}

// If a request has arrived before weir ends the idle connection, weir serves it, whichever event it notices
// first. Otherwise the request would be reset.
func TestEndIdleBesideARequest(t *testing.T) {
	long(t)
	for _, text := range []string{plain, secure} {
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@app", e.address)
		c := patient(r.dialClient(text))
		get := func(end bool) {
			t.Helper()
			c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			if end {
				r.only().EndIdle() // usually earlier than the lot notices the request
			}
			s := patient(e.accept())
			s.head()
			s.write(ok("x"))
			c.wantResponse(200, "x")
			r.record()
			s.Close()
		}
		get(false)
		for range 2 {
			r.wantParked()
			get(true)
		}
	}
}

func TestGoAway(t *testing.T) {
	r, e := newRig2(t, nil)
	idle, busy := r.dial2("tls"), r.dial2("web")
	patient(idle.peer)
	id := busy.request(true, "/")
	s := patient(e.accept())
	s.head()
	chosen := func(c *conn.Conn) bool {
		_, known := c.QuietFor(time.Now())
		return known && c.State() == conn.Idle
	}
	eventually(t, "one is idle since its greeting", func() error {
		n := 0
		r.mu.Lock()
		defer r.mu.Unlock()
		for c := range r.open {
			if chosen(c) {
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	r.proxy.GoAway(chosen)
	idle.wantAway("NO_ERROR ")
	s.write(ok("x"))
	busy.want2(id, 200, "x")
	r.record()
	busy.alive()
}

// The age of a tunnel counts from its last byte, in either direction.
func TestTunnelsReportIdle(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, raw, nil, "@ssh", e.address)
	c := r.dial("tcp")
	s := e.accept()
	ours := r.only()
	idleFor := func() (time.Duration, error) {
		age, known := ours.QuietFor(time.Now())
		if !known || ours.State() != conn.Tunnel {
			return 0, fmt.Errorf("it is %v, and idle %t", ours.State(), known)
		}
		return age, nil
	}
	eventually(t, "it is idle", func() error {
		age, err := idleFor()
		if err == nil && age < 500*time.Millisecond {
			err = fmt.Errorf("for %v", age)
		}
		return err
	})
	f := func(from, to *peer) {
		t.Helper()
		begun := time.Now()
		from.write("x")
		to.wantRead("x")
		eventually(t, "its age begins anew", func() error {
			age, err := idleFor()
			if age > time.Since(begun)+200*time.Millisecond { // the resolution is a tenth of a second
				err = fmt.Errorf("it is idle for %v", age)
			}
			return err
		})
	}
	f(c, s)
	f(s, c)
}
