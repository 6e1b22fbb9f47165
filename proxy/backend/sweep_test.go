package backend

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

// idleOf makes an idle link whose endpoint's last response had these headers.
func idleOf(t *testing.T, e *Endpoint, headers string) {
	t.Helper()
	s, err := e.Dial(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Speak(message.Limits{})
	if _, err := io.WriteString(s.own.rw, "HTTP/1.1 204 No Content\r\n"+headers+"\r\n"); err != nil { // the endpoint echoes it
		t.Fatal(err)
	}
	var req message.Request
	var res message.Response
	if err := s.HTTP.ReadHead(&req, &res); err != nil {
		t.Fatal(err)
	}
	e.Keep(s)
}

// If the responses of an endpoint announce when it closes idle connections, weir closes them a second
// earlier. So the end of a connection hits no request.
func TestAnnouncedIdleTime(t *testing.T) {
	address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) { io.Copy(c, c) })
	w := newWorld(t, Options{})
	w.update(settings("app", address))
	w.set.stop() // the test counts the seconds
	<-w.set.done
	e := acquire(t, w.set.Backend("app"))
	for headers, usable := range map[string]int{
		"":                                      60,
		"Keep-Alive: timeout=5, max=100\r\n":    4,
		"Keep-Alive: timeout=2\r\n":             1,
		"Keep-Alive: timeout=1\r\n":             1,
		"Keep-Alive: timeout=4294967295\r\n":    60,
		"Keep-Alive: timeout=0, max=1000\r\n":   60,
		"Keep-Alive: timeout=120, max=1000\r\n": 60,
	} {
		idleOf(t, e, headers)
		seconds := 0
		for ; e.IdleCount() > 0; seconds++ {
			e.sweep(60)
		}
		if seconds != usable {
			t.Errorf("%q: usable for %d s, want %d", headers, seconds, usable)
		}
	}
	idleOf(t, e, "Keep-Alive: timeout=3\r\n")
	e.sweep(60)
	s := e.Idle(Need{})
	if s == nil {
		t.Fatal("it is not used while it is safe")
	}
	e.Keep(s) // its idle time begins again
	e.ticks += 2
	if s := e.Idle(Need{}); s != nil {
		t.Error("it is used when the endpoint may close it")
		s.Close()
	}
	idleOf(t, e, "Keep-Alive: timeout=3\r\n")
	s = e.Idle(Need{})
	if s == nil || !e.Hold(s) {
		t.Fatal("a private link is not kept")
	}
	e.sweep(60)
	if e.HeldCount() != 1 {
		t.Error("a private link ends early")
	}
	e.sweep(60)
	if e.HeldCount() != 0 {
		t.Error("a private link is used when the endpoint may close it")
	}
}

// The sweep notices the end of a TLS connection after the endpoint's close_notify.
func TestIdleTLSConnectionThatEnded(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue("app.internal", false)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	closing := make(chan struct{})
	address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
		if s.Handshake() == nil {
			<-closing
		}
		s.Close()
	})
	w := newWorld(t, Options{})
	cfg := settings("app", address)
	cfg.Protocol, cfg.TLS.CAFile, cfg.TLS.ServerName = "https", a.file, "app.internal"
	w.update(cfg)
	e := acquire(t, w.set.Backend("app"))
	s, err := e.Dial(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.ended() {
		t.Error("an open connection ended")
	}
	close(closing)
	waitReadable(t, s)
	for !s.ended() { // until the end has arrived, too
		waitReadable(t, s)
	}
}

func TestLearnsWhenIdleConnectionsEnd(t *testing.T) {
	type look []uint32
	f := func(want string, looks ...look) {
		t.Helper()
		var c closes
		var got []string
		for _, l := range looks {
			var seen ends
			for _, seconds := range l {
				seen.add(seconds)
			}
			if after, learned := c.learn(seen); learned {
				got = append(got, string(rune('0'+after)))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v: learned %q, want %q", looks, got, want)
		}
	}
	f("")
	f("", look{5}, look{5})
	f("5", look{5}, look{5}, look{5}, look{5}, look{5})
	f("5", look{5}, nil, look{5, 5}, nil, nil, look{6, 5})
	f("", look{1}, look{3}, look{9}, look{5}, look{5})
	f("", look{5, 2}, look{5, 1}, look{5, 3}, look{9, 1}) // a restart closes all
	f("5 9", look{5}, look{5}, look{5}, look{9}, look{9}, look{9})
	f("0", look{0}, look{1}, look{0})
}

// If an endpoint closes idle connections before weir does, weir reports that once, with the key of the
// setting if there is one.
func TestEndpointThatClosesFirstIsReported(t *testing.T) {
	address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) { io.ReadFull(c, make([]byte, 1)) })
	f := func(seconds int, namespace, want string) {
		t.Helper()
		w := newWorld(t, Options{})
		cfg := settings("app", address)
		cfg.Namespace = namespace
		w.update(cfg)
		w.set.stop() // the test counts the seconds
		<-w.set.done
		e := acquire(t, w.set.Backend("app"))
		for range 6 {
			s, err := e.Dial(context.Background(), nil)
			if err != nil {
				t.Fatal(err)
			}
			e.Keep(s)
			for range seconds - 1 {
				e.sweep(60)
			}
			io.WriteString(s.own.rw, "x") // the endpoint's idle time is over
			waitReadable(t, s)
			e.sweep(60)
			if e.IdleCount() != 0 {
				t.Fatal("the end was not seen")
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.events) != 1 || w.events[0].Kind != EndpointClosesIdle || w.events[0].Endpoint != address || !strings.Contains(w.events[0].Reason, want) {
			t.Errorf("%d s: events %+v, want one with %q", seconds, w.events, want)
		}
	}
	f(4, "", "after 2 to 4s; POST requests that weir sends at that moment are answered 502; set backends.app.timeouts.keep_alive to 2s, or let the endpoint keep idle connections for longer than 1m0s")
	f(3, "", "after 1 to 3s; POST requests that weir sends at that moment are answered 502; set backends.app.timeouts.keep_alive to 1s, or let")
	f(2, "", "within 2s; POST requests that weir sends at that moment are answered 502; let the endpoint")
	f(1, "", "within 1s; POST requests that weir sends at that moment are answered 502; let the endpoint")
	f(4, "shop", "are answered 502; let the endpoint")
}
