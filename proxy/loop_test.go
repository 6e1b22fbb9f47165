package proxy

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

func TestUniqueIDCountsVisits(t *testing.T) {
	id := uniqueID(nil)
	if len(id) != idLength || idVisitsOf(id) != 1 {
		t.Fatalf("%q", id)
	}
	if other := uniqueID(nil); bytes.Equal(id, other) {
		t.Errorf("%q twice", id)
	}
	next := id
	for range 300 {
		next = uniqueID(next)
	}
	if got := idVisitsOf(next); got != 255 || !bytes.Equal(next[:idLength-idVisits], id[:idLength-idVisits]) {
		t.Errorf("%q after %q, %d visits", next, id, got)
	}
	for _, foreign := range [][]byte{[]byte("x"), id[:idLength-1], append(bytes.Clone(id), 'a'), bytes.Repeat([]byte("a"), idLength),
		append(bytes.Clone(id[:idLength-idVisits]), "zz"...)} {
		if got := uniqueID(foreign); !bytes.Equal(got, foreign) || idVisitsOf(foreign) != 0 {
			t.Errorf("%q became %q", foreign, got)
		}
	}
}

func TestVisitsOfRequests(t *testing.T) {
	own := string(visitor)
	for _, c := range []struct {
		values []string
		visits int
		want   string // the last value, to which this visit was added
	}{
		{nil, 0, own},
		{[]string{"a, b"}, 0, "a, b, " + own},
		{[]string{own}, 1, own + ", " + own},
		{[]string{own + ";v=1 , x", `"` + own, own}, 3, own + ", " + own},
		{[]string{"a", ""}, 0, ", " + own},
	} {
		var x exchange
		for _, v := range c.values {
			x.req.AddField("cdn-LOOP", v)
		}
		if got := x.visits(); got != c.visits {
			t.Errorf("%q: %d visits, want %d", c.values, got, c.visits)
		}
		fields := len(x.req.Fields)
		addVisit(&x.req)
		if got := string(x.req.Value(len(x.req.Fields) - 1)); got != c.want || len(x.req.Fields) != max(1, fields) {
			t.Errorf("%q: %q in %d fields", c.values, got, len(x.req.Fields))
		}
	}
	var x exchange
	x.req.AddField("CDN_Loop", own)
	if x.req.Fields[0].ID != message.Misspelt {
		t.Error("another spelling of the header is not known as one")
	}
}

// weir may accept a connection to itself before the dial that opened it has returned. visits then waits for
// that dial, and for no other one.
func TestVisitsOfTunnels(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	to := netip.MustParseAddrPort(ln.Addr().String())
	var l localConnections
	accept := func() *conn.Conn {
		nc, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return conn.New(nc)
	}
	found := make(chan int, 1)
	var accepted *conn.Conn
	link, err := l.dial(to, 2, func(w backend.Watch) (*tunnel.ConnEnd, error) {
		nc, err := net.Dial("tcp", to.String())
		if err != nil {
			return nil, err
		}
		accepted = accept()
		made := conn.New(nc)
		go func() { found <- l.visits(accepted) }()
		eventually(t, "it waits", func() error {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.waiting == nil {
				return errors.New("not yet")
			}
			return nil
		})
		w.Made(made)
		if n := <-found; n != 2 { // the test checks that before the handshake, which may have to wait for the result
			t.Errorf("%d visits", n)
		}
		return &tunnel.ConnEnd{Conn: made}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Conn.Close()

	stranger, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if n := l.visits(accept()); n != 0 {
		t.Errorf("a stranger was here %d times", n)
	}
	if _, err := l.dial(to, 1, func(backend.Watch) (*tunnel.ConnEnd, error) { return nil, errors.New("refused") }); err == nil {
		t.Error("the error is gone")
	}
	l.forget(link.Conn)
	if n := l.visits(accepted); n != 0 || l.known.Load() != 0 || len(l.made) != 0 || len(l.dialing) != 0 {
		t.Errorf("after the end: %d visits, %d known, %v, %v", n, l.known.Load(), l.made, l.dialing)
	}
}

// If a pending connection to the same address is never made, others wait only for a limited time.
func TestVisitsOfTunnelsEnd(t *testing.T) {
	to := netip.MustParseAddrPort("127.0.0.1:1")
	var l localConnections
	release, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		l.dial(to, 1, func(backend.Watch) (*tunnel.ConnEnd, error) { <-release; return nil, errors.New("no") })
	}()
	eventually(t, "it is being made", func() error {
		if l.known.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	c := conn.Closed()
	c.Peer, c.Local = netip.MustParseAddrPort("127.0.0.1:2"), to
	begun := time.Now()
	if n := l.visits(c); n != 0 {
		t.Errorf("%d visits", n)
	}
	if took := time.Since(begun); took > patience {
		t.Errorf("it took %v", took)
	}
	close(release)
	<-ended
}
