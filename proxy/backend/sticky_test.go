package backend

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
)

const testStickyKey = "a key of thirty-two characters.."

// sticky returns a backend with sticky sessions and a key of its own.
func sticky(name string, addresses ...string) config.Backend {
	b := settings(name, addresses...)
	b.Sticky = &config.Sticky{Cookie: "weir", Key: testStickyKey}
	return b
}

// stickyRequest sends one request with a cookie. It returns the endpoint, and the cookie for the next request.
func stickyRequest(t *testing.T, b *Backend, cookie string) (address, next string, kept bool) {
	t.Helper()
	e, kept, err := b.AcquireSticky([]byte(cookie), netip.Addr{}, nil, time.Time{}, alone{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Release()
	return e.address, b.StickyValue(e), kept
}

func TestSticky(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		addresses := []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"}
		w.update(sticky("app", addresses...))
		b := w.set.Backend("app")
		first, cookie, kept := stickyRequest(t, b, "")
		if kept || cookie == "" {
			t.Fatalf("the first request: kept %t, cookie %q", kept, cookie)
		}
		stays := func(what string) {
			t.Helper()
			for range 50 {
				if got, value, kept := stickyRequest(t, b, cookie); got != first || value != cookie || !kept {
					t.Fatalf("%s: %s with the cookie %q, kept %t; want %s with %q", what, got, value, kept, first, cookie)
				}
			}
		}
		stays("three endpoints")
		moves := func(what string) {
			t.Helper()
			got, value, kept := stickyRequest(t, b, cookie)
			if got == first || value == cookie || kept {
				t.Errorf("%s: %s with the cookie %q, kept %t", what, got, value, kept)
			}
			if again, _, _ := stickyRequest(t, b, value); again != got {
				t.Errorf("%s: the new cookie leads to %s, not %s", what, again, got)
			}
		}
		with := func(terminating bool) config.Backend {
			c := sticky("app", addresses...)
			for i := range c.Endpoints {
				c.Endpoints[i].Terminating = terminating && c.Endpoints[i].Address == first
			}
			return c
		}
		w.update(with(true))
		stays("a terminating endpoint")
		for range 50 {
			if got, _, _ := stickyRequest(t, b, ""); got == first {
				t.Fatal("a new client got the terminating endpoint")
			}
		}
		w.update(sticky("app", slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return a == first })...))
		moves("a removed endpoint")
		w.update(with(false))
		stays("an endpoint that has returned")
		e := endpointOf(t, b, first)
		for range 5 {
			e.Failed(fmt.Errorf("reset"))
		}
		moves("an ejected endpoint")
		time.Sleep(b.Settings().Ejection.For)
		synctest.Wait()
		stays("after the ejection")
		counts := [numStickyResults]uint64{}
		for i := range counts {
			counts[i] = b.stuck[i].Load()
		}
		if want := [numStickyResults]uint64{51, 202, 2}; counts != want {
			t.Errorf("counts %v, want %v", counts, want)
		}
	})
}

// After a failed attempt the cookie decides nothing.
func TestStickyRetry(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(sticky("app", "10.0.0.1:80", "10.0.0.2:80"))
	b := w.set.Backend("app")
	_, cookie, _ := stickyRequest(t, b, "")
	e, _, err := b.AcquireSticky([]byte(cookie), netip.Addr{}, nil, time.Time{}, alone{})
	if err != nil {
		t.Fatal(err)
	}
	other, kept, err := b.AcquireSticky([]byte(cookie), netip.Addr{}, []*Endpoint{e}, time.Time{}, alone{})
	if err != nil || other == e || kept {
		t.Errorf("the retry went to %v, kept %t, %v", other, kept, err)
	}
	e.Release()
	other.Release()
}

// The first part of a cookie names the backend, even if its endpoint has gone.
func TestStickyCookieOfABackend(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(sticky("app", "10.0.0.1:80"), sticky("next", "10.0.0.1:80"), settings("plain", "10.0.0.1:80"))
	app, next := w.set.Backend("app"), w.set.Backend("next")
	_, cookie, _ := stickyRequest(t, app, "")
	f := func(b *Backend, cookie string, want bool) {
		t.Helper()
		if got := b.KnowsCookie([]byte(cookie)); got != want {
			t.Errorf("%s knows %q: %t", b.Name(), cookie, got)
		}
	}
	f(app, cookie, true)
	f(next, cookie, false)
	f(w.set.Backend("plain"), cookie, false)
	f(app, "", false)
	f(app, cookie[:8], false)
	f(app, "AAAAAAAA"+cookie[8:], false)
	w.update(sticky("app", "10.0.0.9:80"), sticky("next", "10.0.0.1:80"))
	f(app, cookie, true)
	if _, _, kept := stickyRequest(t, next, cookie); kept {
		t.Error("a cookie of one backend decided about another")
	}
	if raw, err := base64.RawURLEncoding.DecodeString(cookie); err != nil || len(raw) != stickyBackendBytes+stickyEndpointBytes || strings.Contains(string(raw), "10.0") {
		t.Errorf("the cookie %q decodes to %q, %v", cookie, raw, err)
	}
}

// A key that comes later begins the sessions. Another key ends them.
func TestStickyKey(t *testing.T) {
	w := newWorld(t, Options{})
	c := settings("app", "10.0.0.1:80", "10.0.0.2:80")
	c.Sticky = &config.Sticky{Cookie: "weir"}
	w.update(c, settings("plain", "10.0.0.1:80"))
	b := w.set.Backend("app")
	if _, cookie, _ := stickyRequest(t, b, ""); cookie != "" {
		t.Errorf("without a key: %q", cookie)
	}
	w.set.SetStickyKey(testStickyKey)
	first, cookie, _ := stickyRequest(t, b, "")
	again, _, kept := stickyRequest(t, b, cookie)
	if cookie == "" || again != first || !kept {
		t.Errorf("with a key: %q, %s after %s", cookie, again, first)
	}
	w.set.SetStickyKey("another" + testStickyKey)
	if _, value, kept := stickyRequest(t, b, cookie); kept || value == "" || value == cookie {
		t.Errorf("with another key: %q, kept %t", value, kept)
	}
	c.Sticky = nil
	w.update(c)
	if _, value, _ := stickyRequest(t, b, cookie); value != "" {
		t.Errorf("without sticky sessions: %q", value)
	}
}

func TestStickyAllocatesNothing(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(sticky("app", "10.0.0.1:80", "10.0.0.2:80"))
	b := w.set.Backend("app")
	_, text, _ := stickyRequest(t, b, "")
	cookie := []byte(text)
	if n := testing.AllocsPerRun(100, func() {
		e, _, _ := b.AcquireSticky(cookie, netip.Addr{}, nil, time.Time{}, alone{})
		e.Release()
	}); n != 0 {
		t.Errorf("a request with a cookie allocates %v times", n)
	}
}
