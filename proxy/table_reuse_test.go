package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/overlay"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/tls/policy"
)

// each calls f with every route.
func (t *Table) each(f func(*Route)) {
	for _, r := range t.routes {
		f(r)
	}
}

// After each of many random changes, a table that reuses parts of the previous table finds the same routes as
// a new table. It compiles only the hosts whose routes changed.
func TestTableUsesTheTableBefore(t *testing.T) {
	set := backend.NewSet(backend.Options{})
	t.Cleanup(set.Close)
	r := rand.New(rand.NewPCG(1, 2))
	policies := map[string]*policy.Policy{config.DefaultTLSPolicy: {}, "other": {}}
	m := NewMetrics(prometheus.NewRegistry())
	web, tls, raw := config.NewListener("web"), config.NewListener("tls"), config.NewListener("raw")
	web.Protocol, tls.Protocol, raw.Protocol = config.ProtocolHTTP, config.ProtocolTLS, config.ProtocolTCP
	cfg := &config.Config{Listeners: []config.Listener{web, tls, raw}}
	tcp := config.NewBackend("tcp")
	tcp.Protocol = config.ProtocolTCP
	hosts, paths := []string{"a.example", "b.example", "*.example", ""}, []string{"/", "/a", "/a/b"}
	var before *Table
	for step := range 500 {
		cfg = new(*cfg)
		cfg.Routes = changed(r, cfg.Routes, hosts, paths)
		cfg.Backends = []*config.Backend{new(config.NewBackend("app")), &tcp, new(config.NewBackend("next"))}
		if r.IntN(10) == 0 { // a new backend with this name
			if _, err := set.Update(cfg.Backends[1:], backend.NodeInfo{}); err != nil {
				t.Fatal(err)
			}
		}
		backends, err := set.Update(cfg.Backends, backend.NodeInfo{})
		if err != nil {
			t.Fatal(err)
		}
		parts := Parts{Backends: backends, Policies: policies, Metrics: m}
		fresh, err := NewTable(cfg, parts)
		if err != nil {
			t.Fatal(err)
		}
		parts.Before = before
		table, err := NewTable(cfg, parts)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := describe(table, backends), describe(fresh, backends); got != want {
			t.Fatalf("after change %d: got\n%s\nwant\n%s", step, got, want)
		}
		again, err := NewTable(cfg, Parts{Backends: backends, Policies: policies, Metrics: m, Before: table})
		if err != nil || again.compiled != 0 || fresh.compiled == 0 {
			t.Fatalf("without a change %d hosts are compiled, from scratch %d, %v", again.compiled, fresh.compiled, err)
		}
		before = table
	}
}

// changed returns the routes with one route added, replaced or removed.
func changed(r *rand.Rand, routes []*config.Route, hosts, paths []string) []*config.Route {
	routes = slices.Clone(routes)
	one := func() *config.Route {
		c := &config.Route{Name: fmt.Sprint("r", r.IntN(5)), Listeners: [][]string{{"web"}, {"tls"}, {"web", "tls"}}[r.IntN(3)],
			TLSPolicy: []string{config.DefaultTLSPolicy, "other"}[r.IntN(2)], TLS: config.TLSTerminate, Backend: "app", MaxBody: r.Int64()}
		if host := hosts[r.IntN(len(hosts))]; host != "" {
			c.Hosts = []string{host}
		}
		if r.IntN(3) > 0 {
			c.Paths = []config.Path{{Value: paths[r.IntN(len(paths))], Exact: r.IntN(4) == 0}}
		}
		switch r.IntN(14) {
		case 0:
			c.Backend, c.Redirect = "", &config.Redirect{Port: 443, Status: 308}
		case 1:
			c.Listeners, c.Backend = []string{"tls"}, "tcp"
		case 2:
			c.Listeners, c.Backend, c.TLS = []string{"tls"}, "tcp", config.TLSPassthrough
		case 3:
			c.Listeners, c.Backend = []string{"raw"}, "tcp"
		case 4:
			c.Backend, c.Backends = "", []config.WeightedBackend{{Name: "next", Weight: 1}, {Name: "app", Weight: r.IntN(3)}}
		case 5:
			c.Backend, c.Fallback = "next", &config.Fallback{Backend: "app"}
		case 6:
			c.Backend, c.Mirror = "next", []config.Mirror{{Backend: "app", Percent: 1}}
		case 7:
			c.Backend, c.Errors = "next", []config.ErrorPage{{Status: []config.StatusRange{{Min: 500, Max: 599}}, Backend: "app", Path: "/"}}
		}
		return c
	}
	switch n := len(routes); {
	case n < 3 || r.IntN(3) == 0 && n < 12:
		return append(routes, one())
	case r.IntN(2) == 0:
		return slices.Delete(routes, 0, 1)
	}
	routes[r.IntN(len(routes))] = one()
	return routes
}

// besides returns the backends to which a route leads besides its own.
func besides(r *Route) (all []*backend.Backend) {
	if r.fallback != nil {
		all = append(all, r.fallback.backend)
	}
	for _, p := range r.pages {
		all = append(all, p.backend)
	}
	for _, m := range r.mirrors {
		all = append(all, m.backend)
	}
	return all
}

// describe returns a text with everything that a table decides.
func describe(t *Table, backends *overlay.Map[*backend.Backend]) (text string) {
	routes := func(all ...*Route) {
		for _, r := range all {
			if r != nil {
				text += fmt.Sprintf("  %+v current backend %t metrics %s\n", *r.config, r.leadsTo(backends), r.metrics.key)
				text += fmt.Sprintf("  beside it %v\n", besides(r))
			}
		}
	}
	for _, name := range []string{"raw", "tls", "web"} {
		e := t.edges[name]
		text += fmt.Sprintf("%s passthrough %t tunnels %t http %t nameless %p\n", name, e.passthrough, e.tunnels, e.http, e.nameless)
		routes(e.raw, e.ssh)
		for _, host := range []string{"a.example", "b.example", "c.example", "d.other"} {
			h := e.lookup([]byte(host))
			if h == nil {
				continue
			}
			text += fmt.Sprintf(" %s is %s with policy %p\n", host, h.name, h.policy)
			routes(h.passthrough, h.tunnel)
			for _, path := range []string{"/", "/a", "/a/b", "/c"} {
				text += fmt.Sprintf("  %s -> %s\n", path, h.routed(path))
			}
		}
		for n := range 5 {
			text += fmt.Sprint(" ", t.has(routeOn{name, fmt.Sprint("r", n)}))
		}
	}
	t.each(func(r *Route) { routes(r) })
	return text
}

// A change of one of many hosts compiles that host alone. A table shares the routes of the
// configuration.
func TestOnlyTheHostIsCompiled(t *testing.T) {
	web := config.NewListener("web")
	web.Protocol = config.ProtocolHTTP
	cfg := &config.Config{Listeners: []config.Listener{web}}
	for i := range 300 {
		cfg.Routes = append(cfg.Routes, &config.Route{Name: fmt.Sprint(i), Listeners: []string{"web"}, Hosts: []string{fmt.Sprint("h", i, ".example")}, Redirect: &config.Redirect{Port: 443, Status: 308}})
	}
	parts := Parts{Metrics: NewMetrics(prometheus.NewRegistry())}
	var err error
	if parts.Before, err = NewTable(cfg, parts); err != nil {
		t.Fatal(err)
	}
	for i, r := range parts.Before.routes {
		if r.config != cfg.Routes[i] {
			t.Errorf("the table copied the route %s", r.name)
		}
	}
	next := *cfg
	next.Routes = slices.Clone(cfg.Routes)
	next.Routes[7] = new(*cfg.Routes[7])
	next.Routes[7].Paths = []config.Path{{Value: "/new"}}
	table, err := NewTable(&next, parts)
	if err != nil {
		t.Fatal(err)
	}
	if parts.Before.compiled != 300 || table.compiled != 1 {
		t.Errorf("%d hosts were compiled, then %d", parts.Before.compiled, table.compiled)
	}
}
