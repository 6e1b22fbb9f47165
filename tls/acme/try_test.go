package acme

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"

	"github.com/weirproxy/weir/config"
)

// If weir is restarted again and again, it asks the authority only once.
func TestRestartsWait(t *testing.T) {
	at, ca, asked := countingDirectory(t)
	c := entryFor(t.TempDir(), "app.example.org")
	c.ACME.Directory, c.ACME.CAPool = at, ca
	first := newHarness(t, nil)
	first.use(c)
	failed := first.expect(Failed, "app.example.org")
	if !strings.Contains(failed.Err.Error(), "we do not like you") || time.Until(failed.Next) < 30*time.Second {
		t.Errorf("the event is %+v", failed)
	}
	if strings.Contains(failed.Err.Error(), "urn:ietf") || strings.Contains(failed.Err.Error(), "HTTP 403") {
		t.Errorf("what the authority said is told as %q", failed.Err)
	}
	first.Close()
	before := asked.Load()
	for range 3 {
		h := newHarness(t, nil)
		h.use(c)
		if waiting := h.expect(Waiting, "app.example.org"); !waiting.Next.Equal(failed.Next) || waiting.Err == nil || waiting.Err.Error() != failed.Err.Error() {
			t.Errorf("the next attempt is on %s because of %v, and was announced for %s because of %v", waiting.Next, waiting.Err, failed.Next, failed.Err)
		}
		h.Close()
	}
	if n := asked.Load(); n != before {
		t.Errorf("the authority was asked %d times more", n-before)
	}

	other := *c.ACME // with other settings, weir must try again at once
	other.Email = "ops@example.org"
	c.ACME = &other
	h := newHarness(t, nil)
	h.use(c)
	h.expect(Failed, "app.example.org")
	if asked.Load() == before {
		t.Error("with other settings the authority is not asked at once")
	}
}

// weir makes a record before an attempt. The record counts if the process dies during the attempt. It does
// not count if the process is told to stop and ends the attempt.
func TestRecords(t *testing.T) {
	c := entryFor(t.TempDir(), "app.example.org")
	h := newHarness(t, nil)
	plan, err := h.Prepare([]config.Certificate{c})
	if err != nil {
		t.Fatal(err)
	}
	a := plan.Entry(c.ACME).a
	a.answered.Store(true)
	e, err := a.open()
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	record := func() record {
		t.Helper()
		r, err := a.loadRecord(ctx, e, "app.example.org")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	begin := func() *try {
		t.Helper()
		one := &try{keeper: newKeeper(a, "app.example.org"), engine: e}
		if err := one.begin(ctx); err != nil {
			t.Fatal(err)
		}
		return one
	}
	if r := record(); r.Failures != 0 || !r.Next.IsZero() {
		t.Errorf("without an attempt the record is %+v", r)
	}
	one := begin()
	if a.tooEarly(ctx, e, "app.example.org") != nil {
		t.Error("another process does not wait for the end of the attempt")
	}
	if r := record(); r.Failures != 1 || time.Until(r.Next) < 30*time.Second {
		t.Errorf("in the middle of an attempt the record is %+v", r)
	}
	var later *laterError
	var noRetry certmagic.ErrNoRetry
	if err := one.begin(ctx); !errors.As(err, &later) || !errors.As(err, &noRetry) {
		t.Errorf("another process would begin, too: %v", err)
	}
	ended, cancel := cancelled()
	defer cancel()
	one.failed(ended)
	if r := record(); r.Failures != 0 || !r.Next.IsZero() {
		t.Errorf("after an attempt that was called off the record is %+v", r)
	}
	one = begin()
	one.err = errors.New("bad luck")
	one.failed(ctx)
	if r, later := record(), a.tooEarly(ctx, e, "app.example.org"); r.Failures != 1 || later == nil || !later.until.Equal(r.Next) || later.why != "bad luck" {
		t.Errorf("after a failed attempt the record is %+v, and another process waits: %+v", r, later)
	}
	if err := e.config.Storage.Store(ctx, a.recordKey(e, "app.example.org"), []byte("{broken")); err != nil {
		t.Fatal(err)
	}
	if r := record(); r.Failures != 0 {
		t.Errorf("a broken record is read as %+v", r)
	}
}

func TestDelay(t *testing.T) {
	refused := fmt.Errorf("wrapped: %w", acme.Problem{Type: acme.ProblemTypeUnauthorized})
	tooMany := acme.Problem{Type: acme.ProblemTypeRateLimited}
	down := fmt.Errorf("wrapped: %w", &url.Error{Op: "Get", Err: errors.New("connection refused")})
	f := func(failures int, err error, left, want time.Duration) {
		t.Helper()
		one := &try{keeper: &keeper{}}
		if left != 0 {
			one.old = &held{Certificate: certmagic.Certificate{}}
			one.old.Leaf = &x509.Certificate{NotAfter: time.Now().Add(left)}
		}
		// Certificates get older while the test runs, and delays have jitter.
		if got := one.delay(failures, err); got < want-time.Second || got > want+want/8 {
			t.Errorf("after %d failures, the last of them %v, with %s left, the delay is %s, want %s", failures, err, left, got, want)
		}
	}
	const day = 24 * time.Hour
	f(1, nil, 0, time.Minute)
	f(1, refused, 0, time.Minute)
	f(2, refused, 0, 5*time.Minute)
	f(6, refused, 0, time.Hour)
	f(9, refused, 0, 6*time.Hour)
	f(1000, refused, 0, 6*time.Hour)
	f(1, down, 0, 5*time.Second)
	f(1000, down, 0, 10*time.Minute)
	f(1, tooMany, 0, time.Hour)
	f(1000, tooMany, 0, 6*time.Hour)
	// The delay ends well before the certificate's end.
	f(1000, refused, 30*day, 6*time.Hour)
	f(1000, refused, day, day/10)
	f(1000, refused, 5*time.Minute, 30*time.Second)
	f(1000, refused, time.Second, leastPause)
	f(1, tooMany, 5*time.Minute, time.Hour)
	// An expired certificate does not shorten the delay.
	f(1000, refused, -day, 6*time.Hour)

	// The failures of one hour stay below the limit of Let's Encrypt.
	attempts, total := 1, time.Duration(0)
	for i := 1; total < time.Hour; i++ {
		total += (&try{keeper: &keeper{}}).delay(i, refused)
		if total < time.Hour {
			attempts++
		}
	}
	if attempts > 6 {
		t.Errorf("%d attempts are made in an hour", attempts)
	}
}

// weir soon asks an unreachable authority again, and starts without it.
func TestUnreachableAuthority(t *testing.T) {
	h := newHarness(t, nil)
	e := h.use(entryFor(t.TempDir(), "app.example.org"))[0]
	failed := h.expect(Failed, "app.example.org")
	if wait := time.Until(failed.Next); wait > 10*time.Second {
		t.Errorf("the next attempt is in %s", wait)
	}
	if e.Certificate("app.example.org") != nil {
		t.Error("a certificate out of nothing")
	}
	h.expect(Failed, "app.example.org") // again, without help
}

// An authority that hangs does not delay attempts at another authority, however many names wait for it.
func TestAuthoritiesThatHangAreAlone(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(2 * time.Second):
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(srv.Close)
	var names []string
	for i := range maxAttempts + 8 {
		names = append(names, fmt.Sprintf("name%d.example.org", i))
	}
	c := entryFor(t.TempDir(), names...)
	c.ACME.Directory = srv.URL
	h := newHarness(t, nil)
	e := h.use(c)[0]
	eventually(t, "as many attempts as there may be wait for it", func() bool { return len(e.a.slots) == maxAttempts })

	at, ca, _ := countingDirectory(t)
	other := entryFor(string(c.ACME.Storage), "app.example.com")
	other.ACME.Directory, other.ACME.CAPool = at, ca
	h.use(c, other)
	h.expect(Failed, "app.example.com") // this authority answers with an error, so it was asked
}
