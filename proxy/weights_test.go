package proxy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// split is a weighted route without connections.
func split(weights ...uint64) (w *weighted, counts []float64) {
	var routes []*Route
	for i := range weights {
		routes = append(routes, &Route{name: fmt.Sprint(i)})
	}
	return newWeighted(routes, weights), make([]float64, len(weights))
}

// The destinations get their shares within two percentage points over any 1,000 requests, and
// nearly so over the first few.
func TestWeightsAreSmooth(t *testing.T) {
	for _, weights := range [][]uint64{{1}, {90, 10}, {1, 1}, {1, 2}, {1, 1, 1}, {99, 1}, {999, 1}, {5, 3, 2}, {50, 30, 15, 4, 1},
		{1000000, 999999, 1}, {13, 21, 34, 55}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}} {
		wantSmooth(t, weights)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		weights := make([]uint64, 2+random.IntN(4))
		for i := range weights {
			weights[i] = 1 + random.Uint64N([]uint64{10, 100, 1000, 100_000}[random.IntN(4)])
		}
		wantSmooth(t, weights)
	}
}

func wantSmooth(t *testing.T, weights []uint64) {
	t.Helper()
	w, counts := split(weights...)
	sum := 0.0
	for _, weight := range weights {
		sum += float64(weight)
	}
	const window = 1000
	var past [window]string
	for n := range 4 * window {
		r := w.next().name
		i := int(r[0] - '0')
		counts[i]++
		if n < window {
			if off := math.Abs(counts[i] - float64(n+1)*float64(weights[i])/sum); off > 7 {
				t.Fatalf("%v: after %d requests, destination %d is off by %v", weights, n+1, i, off)
			}
		} else {
			counts[past[n%window][0]-'0']--
		}
		past[n%window] = r
		if n < window {
			continue
		}
		for i := range weights {
			if off := math.Abs(counts[i]/window - float64(weights[i])/sum); off > .01 {
				t.Fatalf("%v: in the 1000 requests to %d, the share of destination %d is off by %v", weights, n, i, off)
			}
		}
	}
}

const weights = `
listeners: {web: {address: '@0', protocol: http}}
routes: [{name: w, listeners: [web], backends: [{name: echo, weight: 3}, {name: next}, {name: off, weight: 0}]}]
backends: {echo: {endpoints: ['@echo']}, next: {endpoints: ['@next']}, off: {endpoints: ['@next']}}
`

// Metrics and the log name the backend that got the request, also after a reload that keeps
// the route, and after one that removes a backend from it.
func TestWeightedRoute(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, weights, nil, "@echo", e.address, "@next", e.address)
	const requests = "weir_http_requests_total"
	ask := func(n int) map[string]int {
		t.Helper()
		got := map[string]int{}
		for range n {
			c := r.dial("web")
			c.write(get)
			serveOnce(e.accept(), ok("mine")).Close()
			c.wantResponse(200, "mine")
			c.Close()
			got[fmt.Sprint(r.record()["backend"])]++
		}
		return got
	}
	if got := ask(8); got["echo"] != 6 || got["next"] != 2 || len(got) != 2 {
		t.Errorf("the shares are %v", got)
	}
	r.load(weights, nil, "@echo", e.address, "@next", e.address)
	ask(8)
	if a, b := r.counter(requests, "route", "w", "backend", "echo"), r.counter(requests, "route", "w", "backend", "next"); a != 12 || b != 4 {
		t.Errorf("%v and %v requests are counted", a, b)
	}
	r.load(strings.Replace(weights, "{name: next}, ", "", 1), nil, "@echo", e.address, "@next", e.address)
	if got := ask(4); got["echo"] != 4 {
		t.Errorf("the shares are %v", got)
	}
	if a, b := r.counter(requests, "route", "w", "backend", "echo"), r.counter(requests, "route", "w", "backend", "next"); a != 16 || b != 0 {
		t.Errorf("%v and %v requests are counted", a, b)
	}
	if n := r.counter("weir_bytes_total", "route", "w", "direction", "in"); n == 0 {
		t.Error("the bytes of the route are no longer counted")
	}
}

// A destination without endpoints loses its share of the requests, and no more.
func TestWeightedBackendWithoutEndpoint(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(weights, "next: {endpoints: ['@next']}", "next: {endpoints: ['127.0.0.1:1'], health_check: {tcp: {}}}", 1), nil, "@echo", e.address, "@next", e.address)
	lost := 0
	for range 8 {
		c := r.dial("web")
		c.write(get)
		select {
		case s := <-e.conns:
			serveOnce(s, ok("")).Close()
			r.record().want(t, "backend", "echo", "status", 200)
		case line := <-r.records:
			lost++
			line.want(t, "backend", "next", "status", 503, "reason", "no_endpoint_ready")
		}
		c.Close()
	}
	if lost != 2 {
		t.Errorf("%d requests were lost", lost)
	}
	if n := r.counter("weir_http_generated_responses_total", "route", "w", "backend", "next", "reason", "no_endpoint_ready"); n != 2 {
		t.Errorf("%v responses are counted", n)
	}
}

func TestWeightedTunnels(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, `
listeners: {tcp: {address: '@0', protocol: tcp}}
routes: [{name: git, listeners: [tcp], backends: [{name: a, weight: 3}, {name: b, weight: 1}]}]
backends: {a: {protocol: tcp, endpoints: ['@ssh']}, b: {protocol: tcp, endpoints: ['@ssh']}}
`, nil, "@ssh", e.address)
	got := map[string]int{}
	for range 8 {
		c := r.dial("tcp")
		c.converse(e.accept(), func() {})
		got[fmt.Sprint(r.record()["backend"])]++
	}
	if got["a"] != 6 || got["b"] != 2 {
		t.Errorf("the shares are %v", got)
	}
	if n := r.counter("weir_tunnels_ended_total", "route", "git", "reason", "eof"); n != 8 {
		t.Errorf("%v tunnels are counted", n)
	}
	if n := r.counter("weir_tunnels_open", "route", "git"); n != 0 {
		t.Errorf("%v tunnels are open", n)
	}
}
