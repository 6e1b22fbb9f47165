package proxy

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
)

// Requests for a backend that an object names, and that does not exist, get 500. A weighted route
// answers only the backend's share with 500.
func TestMissingBackend(t *testing.T) {
	e := newEndpoint(t)
	text := `
listeners: {web: {address: "@0", protocol: http}}
routes:
  - {name: all, listeners: [web], hosts: [all.example], backend: none}
  - name: half
    listeners: [web]
    hosts: [half.example]
    backends: [{name: none}, {name: app}]
backends: {app: {endpoints: ["@app"]}, none: {endpoints: ["127.0.0.1:9"]}}
`
	r := newRig(t, text, func(c *config.Config) {
		for i, b := range c.Backends {
			if b.Name == "none" {
				missing := *b
				missing.Missing, missing.Endpoints = true, nil
				c.Backends[i] = &missing
			}
		}
	}, "@app", e.address)
	c := r.dial("web")
	ask := func(host string) { c.write(fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)) }
	ask("all.example")
	c.wantResponse(500, "nothing serves this path at the moment\n")
	if got := r.record()["reason"]; got != "no_backend" {
		t.Errorf("the reason is %q", got)
	}
	var at *peer
	for i := range 4 {
		ask("half.example")
		if i%2 == 0 {
			c.wantResponse(500, "nothing serves this path at the moment\n")
			continue
		}
		if at == nil {
			at = e.accept()
		}
		at.head()
		at.write(ok("x"))
		c.wantResponse(200, "x")
	}
}

// A closed route answers with its own status, and 404 is that of a path without a route.
func TestClosedRouteStatus(t *testing.T) {
	r := newRig(t, `
listeners: {web: {address: "@0", protocol: http}}
routes: [{listeners: [web], respond: {status: 200}}]
`, func(c *config.Config) {
		closed := *c.Routes[0]
		closed.Respond, closed.Closure = nil, &config.Closure{Status: 404, Reason: "no_route", Why: "no route"}
		c.Routes[0] = &closed
	})
	c := r.dial("web")
	c.write(get)
	c.wantResponse(404, "no route matches the host and path\n")
	if got := r.record()["reason"]; got != "no_route" {
		t.Errorf("the reason is %q", got)
	}
}

// Of equal matches, the one of the oldest object goes first, then that of the first name, then the
// first one of the object, whatever the names of the routes.
func TestRouteOrder(t *testing.T) {
	order := func(created int64, object string, index int) *config.RouteOrder {
		return &config.RouteOrder{Created: created, Object: object, Index: index}
	}
	routes := []*config.Route{
		{Name: "d", Order: order(1, "x/a", 0)}, {Name: "c", Order: order(1, "x/a", 1)},
		{Name: "b", Order: order(1, "x/b", 0)}, {Name: "a", Order: order(2, "a/a", 0)},
	}
	b := config.NewBackend("b")
	cfg := &config.Config{Listeners: []config.Listener{config.NewListener("web")}, Backends: []*config.Backend{&b}}
	cfg.Listeners[0].Protocol = config.ProtocolHTTP
	for first := range routes {
		cfg.Routes = slices.Clone(routes[first:])
		slices.Reverse(cfg.Routes)
		for _, r := range cfg.Routes {
			r.Listeners, r.Backend = []string{"web"}, "b"
		}
		set := backend.NewSet(backend.Options{})
		backends, err := set.Update(cfg.Backends, backend.NodeInfo{})
		if err != nil {
			t.Fatal(err)
		}
		table, err := NewTable(cfg, Parts{Backends: backends, Metrics: NewMetrics(prometheus.NewRegistry())})
		set.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := table.routed("web", "a.example", "/"); got != routes[first].Name {
			t.Errorf("without the first %d, the route %s gets the request, not %s", first, got, routes[first].Name)
		}
	}
	if (*config.RouteOrder)(nil).Compare(nil) != 0 || order(0, "", 0).Compare(nil) != 1 || (*config.RouteOrder)(nil).Compare(order(0, "", 0)) != -1 {
		t.Error("a route without an order does not go first")
	}
}

// A gRPC client may repeat a call whose backend does not exist yet.
func TestMissingBackendForGRPC(t *testing.T) {
	if got := grpcStatus(&missing.refusal); got != grpcUnavailable {
		t.Errorf("the gRPC status is %d", got)
	}
	if got := grpcStatus(&message.Refusal{Status: 500, Reason: "other"}); got != grpcUnknown {
		t.Errorf("the gRPC status of another error is %d", got)
	}
	if !bytes.Contains([]byte(missing.why.Error()), []byte("does not exist")) {
		t.Error(missing.why)
	}
}
