package e2e

import (
	"bufio"
	"fmt"
	"testing"
)

// destinations has one route for each way in which a route chooses and asks its endpoints.
const destinations = `
listeners:
  web: {address: '@web', protocol: http}
  raw: {address: '@raw', protocol: tcp}
routes:
  - {name: weighted, listeners: [web], hosts: [split.shop.test], paths: [/w], backends: [{name: echo, weight: 90}, {name: next, weight: 10}]}
  - {name: tcp-weighted, listeners: [raw], backends: [{name: lines, weight: 3}, {name: more, weight: 1}]}
backends:
  echo: {endpoints: ['@echo', '@echo2']}
  next: {endpoints: ['@next']}
  lines: {protocol: tcp, endpoints: ['@lines']}
  more: {protocol: tcp, endpoints: ['@lines']}
`

// startDestinations starts weir with routes for each kind of destination.
func startDestinations(t *testing.T) *weir {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	for _, name := range []string{"echo", "echo2", "next"} {
		w.address[name] = newWebBackend(t, name).address
	}
	w.address["lines"] = newEchoBackend(t).address
	return w.start(destinations)
}

func TestRouteWeights(t *testing.T) {
	w := startDestinations(t)
	c := dial(t, w.at("web"))
	defer c.Close()
	r, got := bufio.NewReader(c), map[string]int{}
	for range 1000 {
		resp, _, err := ask(c, r, "GET", "split.shop.test", "/w")
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
	}
	eventually(t, "weir has counted all requests, 90 % of them for echo", func() error { // it counts after the response
		for _, name := range []string{"echo", "next"} {
			got[name] = int(w.metric("weir_http_requests_total", "route", "weighted", "backend", name, "code", "200"))
		}
		if got["echo"] < 880 || got["echo"] > 920 || got["echo"]+got["next"] != 1000 {
			return fmt.Errorf("the backends got %v", got)
		}
		return nil
	})
	w.logged("a request to next", func(e entry) bool { return e.text("route") == "weighted" && e.text("backend") == "next" })
}

func TestRouteWeightsOfTunnels(t *testing.T) {
	w := startDestinations(t)
	for range 40 {
		c := dial(t, w.at("raw"))
		c.Write([]byte("x"))
		if _, err := readFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	w.wantMetric(40, "weir_tunnels_ended_total", "route", "tcp-weighted")
	eventually(t, "three quarters of the tunnels are in the log with the first backend", func() error {
		got := map[string]int{}
		for _, e := range w.accessLog() {
			got[e.text("backend")]++
		}
		if got["lines"] != 30 || got["more"] != 10 {
			return fmt.Errorf("the backends got %v", got)
		}
		return nil
	})
}
