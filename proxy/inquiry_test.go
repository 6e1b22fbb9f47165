package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/memory"
)

func TestGet(t *testing.T) {
	large := strings.Repeat("x", 100)
	requests := make(chan *http.Request, 1)
	address := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Clone(context.Background())
		w.Header().Set("X-Path", r.RequestURI)
		if r.URL.Path == "/missing" {
			w.WriteHeader(404)
		}
		w.Write([]byte(large))
	})
	r := newRig(t, plain, func(cfg *config.Config) { cfg.Backends[0].Host = "keys.example.org" }, "@app", address)
	b := r.set.Backend("app")
	for _, test := range []struct {
		target string
		most   int
		status int
		error  string
	}{
		{target: "/keys?x=1", most: 100, status: 200},
		{target: "/missing", most: 1000, status: 404},
		{target: "/keys", most: 99, error: `requesting "/keys" from backend "app": the response of backend "app" is larger than 99 bytes`},
		{target: "/a/../b", most: 100, error: `requesting "/a/../b" from backend "app": 400`},
	} {
		a, err := r.proxy.Get(t.Context(), b, test.target, test.most, patience)
		if test.error != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.error) {
				t.Errorf("%s: the error is %v", test.target, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.target, err)
			continue
		}
		got := <-requests
		if a.Status != test.status || string(a.Body) != large || string(a.Header.GetName("x-path")) != test.target {
			t.Errorf("%s: %d %q %q", test.target, a.Status, a.Body, a.Header.GetName("x-path"))
		}
		if got.Host != "keys.example.org" || got.Method != "GET" || got.ContentLength != 0 {
			t.Errorf("%s: the endpoint got %s for %q", test.target, got.Method, got.Host)
		}
	}
	if n := b.InFlight(); n != 0 {
		t.Errorf("%d inquiries are in flight after their end", n)
	}
}

// An endpoint that is silent, or that sends its response too slowly, costs an inquiry no more than its patience.
func TestInquiryEndsInTime(t *testing.T) {
	for _, beginning := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"} {
		r, e := newPlain(t, nil)
		errs := make(chan error, 1)
		go func() {
			_, err := r.proxy.Get(t.Context(), r.set.Backend("app"), "/slow", 100, 50*time.Millisecond)
			errs <- err
		}()
		p := e.accept()
		p.head()
		p.write(beginning)
		err := next(t, errs, "an error")
		if err == nil || !strings.Contains(err.Error(), `backend "app" sent no complete response within 50ms`) {
			t.Errorf("after %q: %v", beginning, err)
		}
		if _, err := p.Read(make([]byte, 1)); err == nil {
			t.Error("weir sends more")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			_, err := r.proxy.Get(ctx, r.set.Backend("app"), "/again", 100, time.Hour)
			errs <- err
		}()
		e.accept().head()
		gone := errors.New("nobody waits")
		cancel(gone)
		if err := next(t, errs, "an error"); !errors.Is(err, gone) {
			t.Errorf("after the end of its context: %v", err)
		}
	}
}

// The wait in a queue ends with the patience as well, and the endpoint is not blamed for it.
func TestInquiryInQueue(t *testing.T) {
	r, e := newPlain(t, func(cfg *config.Config) { cfg.Backends[0].MaxConnections, cfg.Backends[0].Queue.Timeout = 1, time.Hour })
	c := r.dial("web")
	c.write(get)
	first := e.accept()
	first.head()
	if _, err := r.proxy.Get(t.Context(), r.set.Backend("app"), "/", 100, 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), "queue.timeout") {
		t.Errorf("the error is %v", err)
	}
	first.write(ok("yes"))
	c.wantResponse(200, "yes")
}

// An inquiry for a client charges its request and the response to the client's account.
func TestInquiryCharges(t *testing.T) {
	address := newHandler(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 50<<10)) })
	r := newRig(t, plain, nil, "@app", address)
	q := r.proxy.newInquiry(r.set.Backend("app"))
	q.most, q.patience, q.account = 1<<20, patience, new(memory.Account)
	q.account.Open(r.proxy.Memory, netip.MustParsePrefix("192.0.2.0/24"), q)
	defer q.account.Close()
	if err := q.get("x", "/"); err != nil {
		t.Fatal(err)
	}
	if o := q.run(); o != nil || len(q.body) != 50<<10 || q.account.Used() != int64(cap(q.body)+q.covered) || q.covered < q.req.Size() {
		t.Errorf("the outcome is %+v, %d bytes, %d charged", o, len(q.body), q.account.Used())
	}
	q.release()
	if n := q.account.Used(); n != 0 {
		t.Errorf("%d bytes stay charged", n)
	}
}

// The account is charged for the capacity of the bytes, which never exceeds most.
func TestGrown(t *testing.T) {
	process := memory.NewProcess(t.Context())
	process.SetLimit(64 << 20)
	account := new(memory.Account)
	account.Open(process, netip.MustParsePrefix("192.0.2.0/24"), nil)
	defer account.Close()
	const most = 100_000
	var p []byte
	copies := 0
	for len(p) < most {
		n := min(700, most-len(p))
		before := cap(p)
		room, ok := grown(account, p, n, most)
		if !ok {
			t.Fatalf("at %d bytes there is no memory", len(p))
		}
		if cap(room) != before {
			copies++
		}
		p = append(room, make([]byte, n)...)
		if got := account.Used(); got != int64(cap(p)) || cap(p) > most {
			t.Fatalf("%d bytes of %d are charged as %d", len(p), cap(p), got)
		}
	}
	if copies > 10 {
		t.Errorf("the bytes were copied %d times", copies)
	}
	account.Release(cap(p))
	process.SetLimit(100_000)
	if q, ok := grown(account, p[:1:1], 8<<20, 16<<20); ok || cap(q) != 1 {
		t.Errorf("against the limit there is room for %d bytes", cap(q))
	}
	if got := account.Used(); got != 0 {
		t.Errorf("%d bytes stay charged", got)
	}
}

// An inquiry leaves a queue when its client has gone. If the inquiry itself takes too long, nobody has gone.
func TestInquiryLeavesTheQueue(t *testing.T) {
	for why, want := range map[inquiryCut]error{cutByUser: errClientGone, cutByTime: nil} {
		q := new(inquiry)
		q.endFor(why)
		if came, gone := q.Wait(nil, time.Hour); came || gone != want {
			t.Errorf("%v: the turn came: %t; %v", why, came, gone)
		}
	}
}
