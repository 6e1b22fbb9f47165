package backend

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// blackHole listens on an address without accepting, and fills the accept queue, so that the kernel
// answers no further SYN. It returns the port.
func blackHole(t *testing.T, host string) uint16 {
	t.Helper()
	a := netip.MustParseAddr(host)
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: a.As16()})
	if a.Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Addr: a.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, at), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	var port int
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		port = name.Port
	case *unix.SockaddrInet6:
		port = name.Port
	}
	ap := netip.AddrPortFrom(a, uint16(port))
	for range 10 {
		c, err := net.DialTimeout("tcp", ap.String(), 300*time.Millisecond)
		if conn.TimedOut(err) {
			return ap.Port()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the accept queue is never full")
	return 0
}

// raced makes a backend with one name for 127.0.0.1 and ::1. dead, one of them, leads nowhere; the other
// one accepts connections if it is to be alive.
func raced(t *testing.T, dead string, alive bool) (w *world, b *Backend, slow, other *Endpoint) {
	t.Helper()
	live := map[string]string{"127.0.0.1": "::1", "::1": "127.0.0.1"}[dead]
	port := netip.AddrPortFrom(netip.MustParseAddr(dead), blackHole(t, dead))
	at := netip.AddrPortFrom(netip.MustParseAddr(live), port.Port())
	if alive {
		ln, err := net.Listen("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
	}
	var dns nameServer
	dns.set(nil, "127.0.0.1", "::1")
	w = newWorld(t, Options{Lookup: dns.lookup})
	_, number, _ := net.SplitHostPort(at.String())
	cfg := settings("app", "app.internal:"+number)
	cfg.Ejection, cfg.Retries.Attempts, cfg.Timeouts.Connect = config.Ejection{For: time.Minute}, 1, 20*time.Second
	if !alive {
		cfg.Timeouts.Connect = time.Second
	}
	w.update(cfg)
	b = w.set.Backend("app")
	return w, b, endpointOf(t, b, port.String()), endpointOf(t, b, at.String())
}

// A connection to an address that does not answer ends as soon as the other family connects. The
// endpoint is avoided, and longer each time. That needs neither retries nor ejections in the file.
func TestFamiliesRace(t *testing.T) {
	for _, dead := range []string{"::1", "127.0.0.1"} {
		w, b, slow, other := raced(t, dead, true)
		for inRow := range 5 {
			_, err := slow.Dial(t.Context(), nil)
			if !errors.Is(err, ErrOtherFamily) || !strings.Contains(err.Error(), slow.Address()) {
				t.Fatalf("%s: %v", dead, err)
			}
			excused := 0
			if !b.AllowConnect([]*Endpoint{slow}, &excused, err, time.Second) || excused != 1 {
				t.Errorf("%s: no other attempt may follow", dead)
			}
			for range 5 { // of connections that began together
				slow.Failed(err)
			}
			cause, left := avoided(slow)
			if want := min(time.Minute<<inRow, longestAvoided); cause != otherFamily || left > want || left < want/2 {
				t.Errorf("%s: it is avoided for another %v because of cause %d, not for %v", dead, left, cause, want)
			}
			if events := w.kinds(); !strings.Contains(strings.Join(events, ","), "endpoint ejected "+slow.Address()) {
				t.Errorf("%s: %v", dead, events)
			}
			if c, err := other.Dial(t.Context(), nil); err != nil {
				t.Error(err)
			} else {
				c.Close()
			}
			b.mu.Lock()
			slow.endEjection()
			b.rebuild()
			b.unlock()
		}
	}
}

// avoided returns why the endpoint is ejected, and for how long it still is.
func avoided(e *Endpoint) (ejectionCause, time.Duration) {
	e.backend.mu.Lock()
	defer e.backend.mu.Unlock()
	if e.ejection == nil {
		return numEjectionCauses, 0
	}
	return e.ejection.cause, time.Until(e.ejection.until)
}

// If the other family does not connect, the connection has all of its time, and the endpoint stays.
func TestNoFamilyConnects(t *testing.T) {
	_, b, slow, _ := raced(t, "::1", false)
	_, err := slow.Dial(t.Context(), nil)
	if !conn.TimedOut(err) || errors.Is(err, ErrOtherFamily) {
		t.Errorf("%v", err)
	}
	if slow.Failed(err); isOut(b, slow) {
		t.Error("the endpoint is ejected")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := slow.Dial(ctx, nil); errors.Is(err, ErrOtherFamily) || !ourOwn(err) {
		t.Errorf("a dial that is canceled: %v", err)
	}
}
