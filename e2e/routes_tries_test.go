package e2e

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// timed has a route with timeouts and retries.
const timed = `
listeners:
  web: {address: '@web', protocol: http}
  websecure: {address: '@websecure', protocol: tls}
certificates: [{self_signed: {hosts: [split.shop.test]}}]
routes:
  - {name: timed, listeners: [web, websecure], hosts: [split.shop.test], paths: [/t], timeouts: {request: 5s, try: 2s}, retries: {attempts: 3, when: [connect, timeout, 503]}, backend: broken}
backends: {broken: {endpoints: ['@broken'], ejection: {failures: 0}}}
`

func TestRouteTimeoutsAndRetries(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	var asked atomic.Int64
	w.serve("broken", func(rw http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		switch r.URL.Path {
		case "/t/slow":
			<-r.Context().Done()
		case "/t/late":
			if n == 1 {
				<-r.Context().Done()
			}
		case "/t/busy":
			if n < 3 {
				rw.WriteHeader(503)
			}
		case "/t/down":
			rw.WriteHeader(503)
		case "/t/failed":
			rw.WriteHeader(500)
		}
	})
	w.start(timed)
	f := func(method, path string, want int, attempts int64) {
		t.Helper()
		asked.Store(0)
		begun := time.Now()
		resp, _ := called(t, w, method, "split.shop.test", path)
		if resp.StatusCode != want || asked.Load() != attempts {
			t.Errorf("%s %s got %d in %d attempts, not %d in %d", method, path, resp.StatusCode, asked.Load(), want, attempts)
		}
		if took := time.Since(begun); path == "/t/slow" && method == "GET" && took < 5*time.Second {
			t.Errorf("the request ended after %v, before its timeout", took)
		}
	}
	f("GET", "/t/slow", 504, 3) // 2 s, 2 s, 1 s
	f("GET", "/t/late", 200, 2)
	f("GET", "/t/busy", 200, 3)
	f("GET", "/t/down", 503, 3)
	f("GET", "/t/failed", 500, 1)
	f("POST", "/t/slow", 504, 1)
	f("POST", "/t/busy", 503, 1)
	for reason, want := range map[string]float64{"timeout": 3, "status": 4} {
		if n := w.metric("weir_retries_total", "route", "timed", "backend", "broken", "reason", reason); n != want {
			t.Errorf("%v retries for %s, not %v", n, reason, want)
		}
	}
	w.logged("the end of all attempts", func(e entry) bool { return e.text("reason") == "request_timeout" && e.text("route") == "timed" })
	w.logged("the end of the attempt of a POST", func(e entry) bool { return e.text("reason") == "try_timeout" })
}
