package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/tls/policy"
)

// admin is the admin port: sight, and the switches an operator needs on a bad
// night. It asks nobody who they are, so it belongs on loopback.
func (s *server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /status", s.showStatus)
	mux.HandleFunc("GET /config", s.showConfig)
	mux.HandleFunc("GET /kubernetes", s.showObjects)
	mux.HandleFunc("GET /tls/clients", s.showTLSClients)
	mux.HandleFunc("POST /drain", s.toggle(s.setDraining, true))
	mux.HandleFunc("POST /undrain", s.toggle(s.setDraining, false))
	mux.HandleFunc("POST /cordon", s.toggle(s.node.SetCordoned, true))
	mux.HandleFunc("POST /uncordon", s.toggle(s.node.SetCordoned, false))
	mux.HandleFunc("POST /reload", s.adminReload)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", s.showIndex)
	// A web page in an operator's browser must not be able to press the buttons.
	return http.NewCrossOriginProtection().Handler(mux)
}

const adminIndex = `weir, admin port

GET  /metrics       for Prometheus
GET  /status        the verdict, connections and endpoints
GET  /config        the configuration in effect
GET  /kubernetes    the objects of the cluster, and what is wrong with them
GET  /tls/clients   who still needs old TLS; weir tls report makes sense of it
GET  /debug/pprof/  profiles
POST /reload        load the configuration again, as SIGHUP does
POST /drain         unhealthy, and responses close their connections; /undrain ends it
POST /cordon        unhealthy; /uncordon ends it
`

func (s *server) showIndex(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, adminIndex) }

func (s *server) toggle(set func(bool), on bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.log.Info("told by the admin port: " + r.URL.Path[1:])
		set(on)
		s.showStatus(w, r)
	}
}

func (s *server) adminReload(w http.ResponseWriter, _ *http.Request) {
	if err := s.reload("the admin port"); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	fmt.Fprintln(w, "the configuration is in effect, its hash is", s.config.Load().Hash)
}

// status is what GET /status shows.
type status struct {
	Version     string                  `json:"version"`
	Node        string                  `json:"node"`
	ConfigHash  string                  `json:"config_hash"`
	Verdict     health.Verdict          `json:"verdict"`
	Draining    bool                    `json:"draining"`
	Connections map[string]int          `json:"connections"`
	Backends    []backend.BackendStatus `json:"backends"`
}

func (s *server) showStatus(w http.ResponseWriter, _ *http.Request) {
	cfg := s.config.Load()
	st := status{Version: buildVersion(), Node: cfg.Node, ConfigHash: cfg.Hash, Verdict: s.node.Verdict(),
		Draining: s.node.Draining(), Connections: make(map[string]int), Backends: s.backends.Status()}
	s.tracker.Each(func(c *conn.Conn) { st.Connections[c.State().String()]++ })
	writeJSON(w, st)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.Encode(v)
}

// tlsClients is what GET /tls/clients shows: what policies allow, and what clients need.
type tlsClients struct {
	Version    string             `json:"version"`
	Node       string             `json:"node"`
	ConfigHash string             `json:"config_hash"`
	Policies   []tlsPolicy        `json:"policies"`
	Hosts      []proxy.HostRoutes `json:"hosts"`
	policy.Seen
}

// tlsPolicy is a TLS policy as it is in effect.
type tlsPolicy struct {
	Name         string   `json:"name"`
	MinVersion   string   `json:"min_version"`
	MaxVersion   string   `json:"max_version"`
	CipherSuites []string `json:"cipher_suites"`
	SHA1         bool     `json:"sha1_signatures,omitempty"`
}

func (s *server) showTLSClients(w http.ResponseWriter, _ *http.Request) {
	cfg := s.config.Load()
	c := tlsClients{Version: buildVersion(), Node: cfg.Node, ConfigHash: cfg.Hash, Hosts: s.proxy.Hosts(), Seen: s.proxy.Clients.Seen()}
	for _, p := range cfg.TLSPolicies {
		t := tlsPolicy{Name: p.Name, MinVersion: policy.VersionName(p.MinVersion), MaxVersion: policy.VersionName(p.MaxVersion), SHA1: p.SHA1}
		for _, id := range p.CipherSuites {
			t.CipherSuites = append(t.CipherSuites, policy.SuiteName(id))
		}
		c.Policies = append(c.Policies, t)
	}
	writeJSON(w, c)
}

func (s *server) showConfig(w http.ResponseWriter, _ *http.Request) {
	file := s.file.Load()
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Config-Hash", file.Hash)
	w.Write(file.Effective())
	w.Write(s.effectiveObjects())
}
