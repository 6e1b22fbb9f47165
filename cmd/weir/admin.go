package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
)

// admin is the admin port: sight, and the switches an operator needs on a bad
// night. It asks nobody who they are, so it belongs on loopback.
func (s *server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /status", s.showStatus)
	mux.HandleFunc("GET /config", s.showConfig)
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
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.Encode(st)
}

func (s *server) showConfig(w http.ResponseWriter, _ *http.Request) {
	cfg := s.config.Load()
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Config-Hash", cfg.Hash)
	w.Write(cfg.Effective())
}
