package node

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/tally"
	"github.com/weirproxy/weir/tls/policy"
)

// overview has the parts of the Overview that take long with ten thousand routes. All open pages share
// these parts, and each update changes the rows of the update before. forget frees the rows.
type overview struct {
	mu     sync.Mutex
	at     time.Time // when the parts before slowAt were read
	total  tally.Counts
	open   map[string]*listener.OpenNow
	watch  status.Watch
	routes []status.Route
	behind []status.Backend // without endpoints

	slowAt time.Time // when certs and tls were read
	certs  []status.Certificate
	tls    status.TLS

	of    *config.Config // infos are made from it
	infos []status.RouteInfo
}

// forget frees the rows if no page has asked for them for status.ForgetAfter.
func (v *overview) forget(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Sub(v.at) > status.ForgetAfter {
		v.at, v.slowAt, v.watch = time.Time{}, time.Time{}, status.Watch{}
		v.routes, v.behind, v.certs, v.of, v.infos = nil, nil, nil, nil, nil
	}
}

// How long weir shows the parts of the Overview before it reads them again.
const (
	fastParts = time.Second
	slowParts = 10 * time.Second
)

// refreshAfter returns how long a page should wait before it asks again. An Overview of 10,000 routes and as
// many backends takes 6 ms of CPU time, and more with the garbage and on a busy machine.
func refreshAfter(rows int) time.Duration {
	return min(max(2*time.Second, time.Duration(rows)*time.Second/4000), 10*time.Second)
}

// showOverview answers GET /status/overview.
func (s *server) showOverview(w http.ResponseWriter, r *http.Request) {
	v, now := r.URL.Query(), time.Now()
	var o status.Overview
	s.longParts(now, v, &o)
	for i := range o.Backends.Rows {
		s.addEndpoints(&o.Backends.Rows[i])
	}
	o.Refusals, o.Events = s.refused.List(), s.events.List()
	o.Problems = s.problemsShown()
	o.Objects = s.objectsShown(status.QueryOf(v, "faults"))
	o.Refresh = refreshAfter(o.Routes.All + o.Backends.All).Seconds()
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(o) // indentation would double the time; an error means that the client is gone
}

// describe sets the parts about the node and its listeners. open has the open connections of each listener.
func (s *server) describe(o *status.Overview, now time.Time, open map[string]*listener.OpenNow) {
	cfg := s.configInEffect()
	verdict := s.node.Verdict()
	o.Generation, o.OldProcesses = s.generations.number, s.generations.list()
	o.At, o.Uptime = now.UTC(), now.Sub(s.started).Seconds()
	o.Version, o.PID, o.Node, o.ConfigHash = s.build.Version, os.Getpid(), cfg.Node, cfg.Hash
	o.ConfigFile, o.ConfigLoaded = cmp.Or(s.path, BuiltIn), s.effect.Load().loaded.UTC()
	o.Health = status.Health{Healthy: verdict.Healthy, Ready: verdict.Ready, Cordoned: verdict.Cordoned, Draining: s.node.Draining(),
		Reasons: append([]string{}, verdict.Reasons...), Drain: s.drainStatus()}
	resident, _ := processMemory(os.Getpid())
	o.Connections = status.Connections{States: make(map[string]int), Resident: uint64(resident), Held: s.memory.Used(), HeldLimit: s.memory.Limit()}
	o.Listeners = make([]status.Listener, 0, len(cfg.Listeners))
	for _, l := range cfg.Listeners {
		row := status.Listener{Name: l.Name, Protocol: string(l.Protocol), Address: l.Address, States: make(map[string]int)}
		if n := open[l.Name]; n != nil {
			row.Parked = n.Parked
			for state, count := range n.States {
				row.Open += count
				row.States[conn.State(state).String()] = count
			}
		}
		o.Listeners = append(o.Listeners, row)
	}
	for _, n := range open { // removed listeners included
		o.Connections.Parked += n.Parked
		for state, count := range n.States {
			o.Connections.Open += count
			o.Connections.States[conn.State(state).String()] += count
		}
	}
	if c := &o.Connections; c.Open >= leastForMemory {
		c.PerConnection = c.Resident / uint64(c.Open)
	}
}

// leastForMemory is the number of open connections from which the Overview shows memory per connection.
const leastForMemory = 1000

// longParts sets the traffic, the TLS handshakes, and the lists of routes, backends (without endpoints) and
// certificates. It also calls describe. query has the parameters of the request.
func (s *server) longParts(now time.Time, query url.Values, o *status.Overview) {
	v := &s.overview
	v.mu.Lock()
	defer v.mu.Unlock()
	cfg := s.configInEffect()
	if now.Sub(v.at) >= fastParts || v.of != cfg {
		if v.of != cfg {
			v.of, v.infos, v.slowAt = cfg, routeInfos(cfg), time.Time{}
		}
		v.at, v.total, v.open = now, s.proxy.Metrics.Total(), s.lm.Open()
		v.routes = v.watch.Observe(now, v.infos, s.proxy.Metrics.Traffic())
		v.readBackends(s.backends)
		s.countRefusals(now)
	}
	if now.Sub(v.slowAt) >= slowParts || s.issuing.changed.Swap(false) {
		v.slowAt, v.certs, v.tls = now, s.certificateRows(now, cfg), s.tlsShown()
	}
	s.describe(o, now, v.open)
	o.Traffic, o.TLS = s.history.Traffic(v.at, v.total), v.tls
	o.Routes = status.PageOfRoutes(v.routes, status.QueryOf(query, "routes"))
	o.Backends = status.PageOfBackends(v.behind, status.QueryOf(query, "backends"))
	o.Certificates = status.PageOfCertificates(v.certs, status.QueryOf(query, "certificates"))
}

// mostHostsShown limits the hosts of one route in the Overview.
const mostHostsShown = 20

// routeInfos lists the routes by name. An object of the cluster may have several config.Routes with one name.
func routeInfos(cfg *config.Config) []status.RouteInfo {
	infos := make([]status.RouteInfo, 0, len(cfg.Routes))
	at := make(map[string]int, len(cfg.Routes))
	for i := range cfg.Routes {
		pause.IfDue()
		r := cfg.Routes[i]
		n, known := at[r.Name]
		if !known {
			n = len(infos)
			at[r.Name] = n
			to := r.Backend
			if to == "" && len(r.Backends) > 0 {
				to = r.Setting("backends")
			}
			infos = append(infos, status.RouteInfo{Name: r.Name, Hosts: []string{}, Position: positionOf(r), Backend: to})
		}
		for _, h := range r.Hosts {
			if in := &infos[n]; len(in.Hosts) < mostHostsShown && !slices.Contains(in.Hosts, h) {
				in.Hosts = append(in.Hosts, h)
			}
		}
	}
	return infos
}

func (v *overview) readBackends(set *backend.Set) {
	v.behind = v.behind[:0]
	for b := range set.Summaries {
		v.behind = append(v.behind, status.Backend{Name: b.Name, Ready: b.Ready, Working: b.Working, Count: b.Endpoints, Down: b.Down, InFlight: b.InFlight, Waiting: b.Waiting})
	}
}

// addEndpoints adds the endpoints of a backend. Endpoints with a problem come first.
func (s *server) addEndpoints(b *status.Backend) {
	b.Endpoints = []status.Endpoint{}
	st, ok := s.backends.StatusOf(b.Name)
	if !ok {
		return
	}
	for _, e := range st.Endpoints {
		shown := status.Endpoint{Address: e.Address, Host: e.Host, State: stateOf(&e), Local: e.Local, InFlight: e.InFlight}
		if shown.State != "up" {
			shown.Error = cut(e.LastError)
		}
		b.Endpoints = append(b.Endpoints, shown)
	}
	slices.SortStableFunc(b.Endpoints, func(x, y status.Endpoint) int {
		return cmp.Compare(slices.Index(endpointStates, x.State), slices.Index(endpointStates, y.State))
	})
	b.Endpoints = b.Endpoints[:min(len(b.Endpoints), status.MostEndpoints)]
}

// endpointStates are the states of endpoints, the worst first.
var endpointStates = []string{"down", "failing", "ejected", "terminating", "up"}

func stateOf(e *backend.EndpointStatus) string {
	switch {
	case e.Terminating:
		return "terminating"
	case e.Up:
		return "up"
	case e.Failing:
		return "failing"
	case e.EjectedUntil.After(time.Now()):
		return "ejected"
	}
	return "down"
}

func (s *server) certificateRows(now time.Time, cfg *config.Config) []status.Certificate {
	tries := s.issuing.list(cfg)
	rows := []status.Certificate{}
	for _, c := range s.certs.All(now) {
		row := status.Certificate{Names: c.Names[:min(len(c.Names), mostHostsShown)], Source: c.Source, NotAfter: c.NotAfter.UTC(), Soon: c.Due}
		for _, name := range c.Names {
			if e, failed := tries[name]; failed && c.Source == "acme" {
				row.Next, row.Error = e.Next, errorText(e.Err)
				delete(tries, name)
			}
		}
		rows = append(rows, row)
	}
	for name, e := range tries { // there is no certificate
		rows = append(rows, status.Certificate{Names: []string{name}, Source: "acme", Next: e.Next, Error: errorText(e.Err)})
	}
	return rows
}

// mostOldClients limits the kinds of old clients in the Overview.
const mostOldClients = 20

func (s *server) tlsShown() status.TLS {
	seen := s.proxy.Clients.Seen()
	t := status.TLS{Since: seen.Since.UTC(), Versions: make(map[string]uint64), Old: []status.OldClients{}}
	for _, m := range seen.Modern {
		t.Versions[policy.VersionName(tls.VersionTLS13)] += m.Count
	}
	for _, c := range seen.Clients {
		if c.Result != "ok" {
			continue
		}
		t.Versions[c.Version] += c.Count
		if old := c.Version == policy.VersionName(tls.VersionTLS10) || c.Version == policy.VersionName(tls.VersionTLS11); old && len(t.Old) < mostOldClients {
			t.Old = append(t.Old, status.OldClients{Host: c.Host, Network: c.Network, Version: c.Version, JA4: c.JA4, Count: c.Count, LastSeen: c.Last.UTC()})
		}
	}
	return t
}

// objectsShown returns nil without a cluster.
func (s *server) objectsShown(q status.Query) *status.Objects {
	c := s.current()
	if c == nil {
		return nil
	}
	shown := &status.Objects{Synced: c.source.HasSynced(), LastSync: c.source.LastSync()}
	if err := c.trouble.last(); err != nil {
		shown.Trouble = cut(err.Error())
	}
	var faults []status.Fault
	if list := c.faults.Load(); list != nil {
		for _, f := range faultsOf(*list) {
			faults = append(faults, status.Fault{Kind: f.Kind, Object: f.Object, Reason: string(f.Reason), Message: f.Message})
		}
	}
	shown.Faults = status.PageOfFaults(faults, q)
	return shown
}
