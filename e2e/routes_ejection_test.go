package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// sharesOfFailures has a backend that ejects by share alone.
const sharesOfFailures = `
listeners: {web: {address: '@web', protocol: http}}
metrics: {per_endpoint: true}
routes: [{name: shop, listeners: [web], hosts: [shop.test], backend: app}]
backends:
  app:
    endpoints: ['@one', '@two', '@three', '@four']
    balance: round_robin
    retries: {attempts: 1}
    ejection: {failures: 0, for: 10m, share: 0.5, minimum: 10, within: 1m}
`

// startFailing starts weir with four endpoints. Those in failing break three of five requests.
func startFailing(t *testing.T, failing ...string) (w *weir, asked map[string]*atomic.Int64) {
	t.Helper()
	t.Parallel()
	w, asked = newWeir(t), map[string]*atomic.Int64{}
	fails := map[string]bool{}
	for _, name := range failing {
		fails[name] = true
	}
	for _, name := range []string{"one", "two", "three", "four"} {
		n := new(atomic.Int64)
		asked[name] = n
		w.serve(name, func(rw http.ResponseWriter, r *http.Request) {
			if i := n.Add(1); fails[name] && i%5%2 == 0 {
				panic(http.ErrAbortHandler)
			}
			rw.Header().Set("Connection", "close") // the end of an idle connection is no failure
		})
	}
	return w.start(sharesOfFailures), asked
}

func (w *weir) endpointsOut() (out int) {
	for _, name := range []string{"one", "two", "three", "four"} {
		if w.metric("weir_backend_endpoint_up", "backend", "app", "endpoint", w.address[name]) == 0 {
			out++
		}
	}
	return out
}

// An endpoint that fails three of five requests, never five in a row, gets no more requests.
func TestRouteEjectionByShare(t *testing.T) {
	w, asked := startFailing(t, "one")
	for range 200 {
		called(t, w, "POST", "shop.test", "/")
	}
	eventually(t, "the endpoint is ejected", func() error {
		if n := w.endpointsOut(); n != 1 {
			return fmt.Errorf("%d endpoints are out", n)
		}
		return nil
	})
	if w.metric("weir_backend_endpoint_up", "backend", "app", "endpoint", w.at("one")) != 0 {
		t.Error("another endpoint is out")
	}
	if n := asked["one"].Load(); n < 10 || n > 15 {
		t.Errorf("the endpoint got %d requests, want the minimum of 10 and few more", n)
	}
	for range 20 {
		if resp, _ := called(t, w, "POST", "shop.test", "/"); resp.StatusCode != 200 {
			t.Errorf("got %d", resp.StatusCode)
		}
	}
	w.wantMetric(1, "weir_backend_ejections_total", "backend", "app", "reason", "share")
	w.wantMetric(0, "weir_backend_ejections_total", "backend", "app", "reason", "consecutive")
	eventually(t, "weir's log has the ejection with its counts", func() error {
		for line := range strings.Lines(w.log.String()) {
			_, reason, _ := strings.Cut(line, `"reason":"for 10m0s because `)
			var failed, requests int
			n, _ := fmt.Sscanf(reason, "%d of its %d requests within 1m0s failed (ejection.share is 0.5)", &failed, &requests)
			if n == 2 && strings.Contains(line, w.at("one")) && requests >= 10 && 2*failed >= requests {
				return nil
			}
		}
		return errors.New("there is no such line")
	})
}

// Of four endpoints, three that fail, weir takes out two.
func TestRouteEjectionLeavesHalf(t *testing.T) {
	w, asked := startFailing(t, "one", "two", "three")
	for range 300 {
		called(t, w, "POST", "shop.test", "/")
	}
	w.wantMetric(2, "weir_backend_ejections_total", "backend", "app", "reason", "share")
	if n := w.endpointsOut(); n != 2 {
		t.Errorf("%d endpoints are out, want 2", n)
	}
	used := 0
	for _, name := range []string{"one", "two", "three", "four"} {
		if asked[name].Load() > 50 {
			used++
		}
	}
	if used != 2 {
		t.Errorf("%d endpoints got most of the requests, want 2", used)
	}
}

// A response that breaks off is a failure, and no success.
func TestRouteEjectionOfBrokenResponses(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	for _, name := range []string{"one", "two"} {
		w.serve(name, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Connection", "close")
			if name == "one" {
				rw.Header().Set("Content-Length", "10")
				rw.Write([]byte("part"))
				rw.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		})
	}
	w.start(`
listeners: {web: {address: '@web', protocol: http}}
routes: [{name: shop, listeners: [web], hosts: [shop.test], backend: app}]
backends:
  app: {endpoints: ['@one', '@two'], balance: round_robin, ejection: {for: 10m, share: 0.9, minimum: 10, within: 1m}}
`)
	for range 40 {
		resp, err := control.Do(&http.Request{Method: "GET", Host: "shop.test", URL: &url.URL{Scheme: "http", Host: w.at("web"), Path: "/"}})
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body) // it may break off
		resp.Body.Close()
	}
	w.wantMetric(1, "weir_backend_ejections_total", "backend", "app", "reason", "share")
}

// Endpoints that answer 503 to everything get no more requests.
func TestEndpointThatAnswers503ToEverything(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	for name, status := range map[string]int{"one": 503, "two": 503, "three": 200, "four": 200} {
		w.serve(name, func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(status) })
	}
	w.start(strings.Replace(sharesOfFailures, "failures: 0, for: 10m, share: 0.5, minimum: 10, within: 1m", "for: 10m, statuses: [502-504]", 1))
	for range 40 {
		called(t, w, "POST", "shop.test", "/")
	}
	w.wantMetric(2, "weir_backend_ejections_total", "backend", "app", "reason", "status")
	for range 20 {
		if resp, _ := called(t, w, "POST", "shop.test", "/"); resp.StatusCode != 200 {
			t.Errorf("got %d", resp.StatusCode)
		}
	}
}
