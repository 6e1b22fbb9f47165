package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

func cancelled() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx, cancel
}

// ask does a handshake for name and returns the result of Demand.
func ask(t *testing.T, e *Entry, name string) (cert *tls.Certificate, err error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer b.Close()
		tls.Server(b, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err = e.Demand(h)
			return cert, err
		}}).Handshake()
	}()
	tls.Client(a, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	<-done
	return cert, err
}

// asked is an ask URL; answer returns its status for a name.
func asked(t *testing.T, answer func(name string) int) (url string, count *atomic.Int32) {
	t.Helper()
	count = new(atomic.Int32)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.Add(1)
		w.WriteHeader(answer(r.URL.Query().Get("domain")))
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/allowed?who=weir", count
}

func onDemand(dir string, o config.OnDemand) config.Certificate {
	c := entryFor(dir)
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	if o.Concurrent == 0 {
		o.Concurrent = 1
	}
	c.ACME.OnDemand = &o
	return c
}

func TestDemandMatches(t *testing.T) {
	f := func(hosts []string, name string, want bool) {
		t.Helper()
		d := newDemand(nil, &config.OnDemand{Hosts: hosts, Ask: "http://127.0.0.1/"})
		if got := d.matches(name); got != want {
			t.Errorf("with the hosts %q, %q matches: %v", hosts, name, got)
		}
	}
	hosts := []string{"*.customers.example.org", "Shop.example.org"}
	f(hosts, "a.customers.example.org", true)
	f(hosts, "shop.example.org", true)
	f(hosts, "a.b.customers.example.org", false)
	f(hosts, "customers.example.org", false)
	f(hosts, ".customers.example.org", false)
	f(hosts, "*.customers.example.org", false)
	f(hosts, "", false)
	f(nil, "any.example.com", true)
	f(nil, "192.0.2.1", false)
	f(nil, "2001:db8::1", false)
	f(nil, "*.example.com", false)
	f(nil, "two words.example.com", false)
	f(nil, "../../etc", false)
	f(nil, "", false)
}

func TestDemandFindsWhatTheStorageHas(t *testing.T) {
	url, count := asked(t, func(name string) int {
		if name == "no.example.org" {
			return http.StatusForbidden
		}
		return http.StatusOK
	})
	c := onDemand(t.TempDir(), config.OnDemand{Ask: url})
	plant(t, c, "yes.example.org", 90*24*time.Hour)
	plant(t, c, "no.example.org", 90*24*time.Hour)
	h := newHarness(t, nil)
	e := h.use(c)[0]
	for range 3 {
		if cert, err := ask(t, e, "yes.example.org"); err != nil || cert == nil {
			t.Fatalf("an allowed name gets %v, %v", cert, err)
		}
		if cert, err := ask(t, e, "no.example.org"); err != nil || cert != nil {
			t.Errorf("a name that is not allowed gets %v, %v", cert, err)
		}
	}
	if n := count.Load(); n != 2 {
		t.Errorf("somebody was asked %d times about two names", n)
	}
	if n := len(e.All()); n != 1 {
		t.Errorf("%d certificates are in memory", n)
	}
	if e.Certificate("yes.example.org") != nil {
		t.Error("a name on demand is listed")
	}
}

// An authority that hangs delays handshakes only until their timeout. It causes no more
// attempts than the limit, and does not delay the end of the process.
func TestDemandIsBounded(t *testing.T) {
	hang := make(chan struct{})
	var asking atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asking.Add(1)
		<-hang
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(hang) })
	c := onDemand(t.TempDir(), config.OnDemand{Hosts: []string{"*.example.org"}, Timeout: time.Second, Concurrent: 2})
	c.ACME.Directory = srv.URL
	there := onDemand(string(c.ACME.Storage), *c.ACME.OnDemand)
	there.ACME.Directory = srv.URL
	plant(t, there, "there.example.org", 90*24*time.Hour)
	h := newHarness(t, nil)
	e := h.use(c)[0]

	start := time.Now()
	results := make(chan error, 20)
	var all sync.WaitGroup
	for i := range cap(results) {
		all.Go(func() {
			cert, err := ask(t, e, fmt.Sprintf("name%d.example.org", i))
			if cert != nil {
				t.Error("a certificate out of nothing")
			}
			results <- err
		})
	}
	all.Wait()
	if took := time.Since(start); took > patience {
		t.Errorf("handshakes took %s", took)
	}
	close(results)
	late, tooMany := 0, 0
	for err := range results {
		switch {
		case errors.Is(err, errLate):
			late++
			if text := err.Error(); text != "the certificate was not issued within 1s (on_demand.timeout): issuance continues in the background" {
				t.Error(text)
			}
		case errors.Is(err, errTooMany):
			tooMany++
		default:
			t.Errorf("a handshake ended with %v", err)
		}
	}
	if late != 2 || tooMany != cap(results)-2 {
		t.Errorf("%d handshakes waited, %d were refused", late, tooMany)
	}
	if n := asking.Load(); n > 2 {
		t.Errorf("%d questions are with the authority", n)
	}
	told := 0
	h.mu.Lock()
	for _, one := range h.events {
		if one.Kind == Refused && errors.Is(one.Err, errTooMany) && one.OnDemand {
			told++
		}
	}
	h.mu.Unlock()
	if told != 1 {
		t.Errorf("%d refusals were told of, and one is enough", told)
	}
	if cert, err := ask(t, e, "there.example.org"); err != nil || cert == nil {
		t.Errorf("a certificate that is there is not served meanwhile: %v", err)
	}
	start = time.Now()
	h.Close()
	if took := time.Since(start); took > 2*closePatience {
		t.Errorf("Close took %s", took)
	}
}

func TestAskErrors(t *testing.T) {
	url, count := asked(t, func(string) int { return http.StatusBadGateway })
	h := newHarness(t, nil)
	e := h.use(onDemand(t.TempDir(), config.OnDemand{Ask: url}))[0]
	if cert, err := ask(t, e, "app.example.org"); err == nil || cert != nil {
		t.Errorf("while nobody can be asked the name gets %v, %v", cert, err)
	}
	h.expect(AskError, "app.example.org")
	ask(t, e, "app.example.org")
	if n := count.Load(); n != 1 {
		t.Errorf("what cannot be asked was asked %d times in a row", n)
	}
}

// A redirect of the ask URL does not permit a name.
func TestAskRedirects(t *testing.T) {
	login, _ := asked(t, func(string) int { return http.StatusOK })
	srv := httptest.NewServer(http.RedirectHandler(login, http.StatusFound))
	t.Cleanup(srv.Close)
	h := newHarness(t, nil)
	e := h.use(onDemand(t.TempDir(), config.OnDemand{Ask: srv.URL}))[0]
	if cert, err := ask(t, e, "app.example.org"); err != nil || cert != nil {
		t.Errorf("a name of which nobody said that it is meant gets %v, %v", cert, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.events) > 0 {
		t.Errorf("there were events: %+v", h.events)
	}
}

// Requests of strangers for many names do not delay the names that an entry lists.
func TestDemandLeavesRoomForListedNames(t *testing.T) {
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(hang) })
	const names = maxAttempts + 8
	c := onDemand(t.TempDir(), config.OnDemand{Hosts: []string{"*.example.org"}, Timeout: 10 * time.Millisecond, Concurrent: names})
	c.ACME.Directory = srv.URL
	h := newHarness(t, nil)
	e := h.use(c)[0]
	for i := range names {
		ask(t, e, fmt.Sprintf("name%d.example.org", i))
	}
	eventually(t, "all of them are being got", func() bool { return len(e.a.demand.slots) == names })
	listed := *c.ACME
	listed.Hosts = []string{"app.example.com"}
	h.use(config.Certificate{ACME: &listed})
	eventually(t, "so is one that is listed", func() bool { return len(e.a.slots) == 1 })
}

func TestBudget(t *testing.T) {
	var b budget
	now := time.Now()
	taken := func() (n int) {
		for b.take(now) {
			n++
		}
		return n
	}
	f := func(after time.Duration, want int) {
		t.Helper()
		now = now.Add(after)
		if got := taken(); got != want {
			t.Errorf("%s later %d names are allowed, want %d", after, got, want)
		}
	}
	f(0, perHour)
	f(time.Second, 0)
	f(10*time.Minute, perHour/6)
	f(100*time.Hour, perHour)
}

func TestNamesOnDemandAreForgotten(t *testing.T) {
	d := newDemand(nil, &config.OnDemand{Hosts: []string{"*.example.org"}})
	over := make(chan struct{})
	close(over)
	for i := range maxWanted {
		name := fmt.Sprint(i)
		w := &wanted{keeper: newKeeper(nil, name), done: over}
		d.names[name] = w
	}
	d.makeRoom()
	if n := len(d.names); n != maxWanted-1 {
		t.Errorf("%d names are in memory", n)
	}
}
