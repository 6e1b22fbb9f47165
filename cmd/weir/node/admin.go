package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/backend"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/config/file"
)

// admin is the handler of the admin port. An operator sees the state of weir there, starts a
// drain and takes profiles. guard refuses requests without access.
func (s *server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.exposition())
	mux.HandleFunc("GET /status", s.showStatus)
	mux.HandleFunc("GET /status/overview", s.showOverview)
	mux.Handle("GET /status/page.css", status.Page("page.css"))
	mux.Handle("GET /status/page.js", status.Page("page.js"))
	mux.HandleFunc("GET /config", s.showConfig)
	mux.HandleFunc("GET /explain", s.showExplanation)
	mux.HandleFunc("GET /kubernetes", s.showObjects)
	mux.HandleFunc("GET /tls/clients", s.showTLSClients)
	mux.HandleFunc("POST /drain", s.toggle(s.setDraining, true))
	mux.HandleFunc("POST /undrain", s.toggle(s.setDraining, false))
	mux.HandleFunc("POST /cordon", s.toggle(s.setCordoned, true))
	mux.HandleFunc("POST /uncordon", s.toggle(s.setCordoned, false))
	mux.HandleFunc("POST /reload", s.adminReload)
	mux.HandleFunc("/debug/pprof/", unhurried(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", unhurried(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", unhurried(pprof.Trace))
	mux.HandleFunc("GET /{$}", s.showIndex)
	return s.guard(mux)
}

const (
	scrapesAtOnce = 8       // each holds all series in memory
	scrapeGarbage = 2 << 20 // bytes of garbage that scrapes may leave
)

func (s *server) exposition() http.Handler {
	all := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce, EnableOpenMetrics: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all.ServeHTTP(w, r)
		go pause.Tidy(scrapeGarbage)
	})
}

// scrape is the handler of the metrics port: it serves /metrics to every client, and
// nothing else. On loopback it refuses web pages of other sites, because strangers can
// reach the port there only through such pages.
func (s *server) scrape() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.exposition())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch err := fromElsewhere(r); {
		case err != nil:
			s.metrics.refused.WithLabelValues(string(refusedOrigin)).Inc()
			http.Error(w, err.Error()+"; the metrics port refuses requests from web pages of other sites", http.StatusForbidden)
		case isLoopbackRequest(r) && !new(access).answersFor(r.Host):
			s.metrics.refused.WithLabelValues(string(refusedHost)).Inc()
			http.Error(w, fmt.Sprintf("the metrics port on loopback does not answer requests for the Host %q; use an IP address or localhost", cut(r.Host)), http.StatusMisdirectedRequest)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// unhurried removes the read deadline of the connection. net/http continues to read, to
// notice that a client closes the connection. So the deadline would end a profile of more
// than ten seconds. The body of the request is already read.
func unhurried(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxAdminBody))
		http.NewResponseController(w).SetReadDeadline(time.Time{})
		h(w, r)
	}
}

// maxAdminBody limits the body of a request. No request of this port needs a body.
const maxAdminBody = 64 << 10

const adminIndex = `weir, admin port

GET  /              in a browser: the status page
GET  /metrics       for Prometheus
GET  /status        the health of this node, connections and endpoints
GET  /status/overview  the data of the status page: traffic, routes, backends, certificates, refusals
GET  /config        the configuration in effect
GET  /explain       the way of a request through the configuration in effect; weir explain --admin asks it
GET  /kubernetes    the objects of the cluster, and their faults
GET  /tls/clients   clients that still need old TLS; weir tls report evaluates it
GET  /debug/pprof/  profiles
POST /reload        load the configuration again, as SIGHUP does
POST /drain         the health port answers 503, and responses close connections; /undrain ends it
POST /cordon        the health port answers 503; /uncordon ends it
POST and profiles need admin.token, or the Unix socket beside the port, as weir's commands use it
`

// showIndex serves the status page to browsers, and the list of paths to other programs.
func (s *server) showIndex(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if wantsPage(r) {
		statusPage.ServeHTTP(w, r)
		return
	}
	fmt.Fprint(w, adminIndex)
}

var statusPage = status.Page("index.html")

// wantsPage returns true if a browser asks for a page.
func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

func (s *server) toggle(set func(bool) error, on bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.log.Info("request on the admin port: "+r.URL.Path[1:], zap.String("peer", peerOf(r)))
		if err := set(on); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		s.showStatus(w, r)
	}
}

func (s *server) adminReload(w http.ResponseWriter, _ *http.Request) {
	switch err := s.reload("the admin port"); {
	case err == errLeft:
		http.Error(w, "an upgrade ended meanwhile, and the new process loads the configuration now; its log says whether that succeeds, or send the request again", http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	fmt.Fprintln(w, "the configuration is in effect; its hash is", s.configInEffect().Hash)
}

// nodeStatus is the answer to GET /status.
type nodeStatus struct {
	Version    string         `json:"version"`
	Node       string         `json:"node"`
	ConfigHash string         `json:"config_hash"`
	Held       string         `json:"held,omitempty"` // why a changed file waits for a signal
	Verdict    health.Verdict `json:"verdict"`
	// NoHealthPort is true if the configuration has no section health.
	NoHealthPort bool           `json:"no_health_port,omitempty"`
	Draining     bool           `json:"draining"`
	Drain        *status.Drain  `json:"drain,omitempty"`
	Connections  map[string]int `json:"connections"`
	// Generation is the number of this process: 1 for the first, and one more after each upgrade. OldProcesses are
	// those before it that still have connections, the oldest first.
	Generation   int                     `json:"generation"`
	OldProcesses []status.OldProcess     `json:"old_processes"`
	Backends     []backend.BackendStatus `json:"backends"`
}

// drainStatus returns nil without a drain.
func (s *server) drainStatus() *status.Drain {
	a := s.tracker.Arrivals()
	if a.Since.IsZero() {
		return nil
	}
	untold := s.untoldLoadBalancers()
	return &status.Drain{Seconds: time.Since(a.Since).Seconds(), NewConnections: a.New, LastNewConnection: a.Last.Seconds(), LastNewConnectionFrom: shownAddr(a.From),
		LoadBalancersTold: len(untold) == 0, LoadBalancersNotTold: untold}
}

func (s *server) showStatus(w http.ResponseWriter, _ *http.Request) {
	cfg := s.configInEffect()
	st := nodeStatus{Version: s.build.Version, Node: cfg.Node, ConfigHash: cfg.Hash, Held: s.lasting.text(heldProblem), Verdict: s.node.Verdict(),
		NoHealthPort: cfg.Health == nil, Draining: s.node.Draining(), Drain: s.drainStatus(), Connections: make(map[string]int), Generation: s.generations.number, OldProcesses: s.generations.list(), Backends: s.backends.Status()}
	s.tracker.Each(func(c *conn.Conn) { st.Connections[c.State().String()]++ })
	writeJSON(w, st)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.Encode(v)
}

func (s *server) showConfig(w http.ResponseWriter, _ *http.Request) {
	e := s.effect.Load()
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Config-Hash", e.file.Hash)
	w.Write(file.Effective(e.file))
	s.writeObjects(w, e) // an error means that the client is gone
}
