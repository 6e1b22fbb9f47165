package health

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"
)

// Port answers load balancers. Every path gives the verdict but /livez and
// /readyz. One Port may serve several listeners, one after the other, as
// reloads move it.
type Port struct {
	node *Node
	from atomic.Pointer[[]netip.Prefix]
}

// The waits of the port. A check takes milliseconds; what takes longer is none.
const (
	readHeadTimeout  = 5 * time.Second // PROXY header and request head together
	exchangeTimeout  = 10 * time.Second
	keepAliveTimeout = 60 * time.Second
	shutdownTimeout  = time.Second
	maxHead          = 16 << 10
)

// NewPort makes a port for the verdicts of n, with PROXY headers taken from anyone.
func NewPort(n *Node) *Port {
	p := &Port{node: n}
	p.SetFrom(nil)
	return p
}

// SetFrom limits who may send a PROXY header to the port, where it is always
// optional; nil: anyone. A header from elsewhere ends the connection.
func (p *Port) SetFrom(from []netip.Prefix) { p.from.Store(&from) }

// Serve answers on ln, which it closes, until ctx is done; then it returns nil
// after at most a second. It keeps a few descriptors back, so that it
// answers while none are left for anything else.
func (p *Port) Serve(ctx context.Context, ln net.Listener) error {
	a := newAcceptor(ln, &p.from)
	defer a.Close()
	server := &http.Server{
		Handler:                      p.handler(a),
		ReadHeaderTimeout:            readHeadTimeout,
		ReadTimeout:                  exchangeTimeout,
		WriteTimeout:                 exchangeTimeout,
		IdleTimeout:                  keepAliveTimeout,
		MaxHeaderBytes:               maxHead,
		DisableGeneralOptionsHandler: true,                       // OPTIONS * is asked for the verdict, too
		ErrorLog:                     log.New(io.Discard, "", 0), // checks that break off are routine
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		bounded, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if server.Shutdown(bounded) != nil {
			server.Close()
		}
	})
	err := server.Serve(a)
	if stop() { // Serve ended by itself
		server.Close()
		return err
	}
	<-ended
	return nil
}

// report is what kube-proxy's healthCheckNodePort answers, and why.
type report struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int      `json:"localEndpoints"`
	ServiceProxyHealthy bool     `json:"serviceProxyHealthy"`
	Verdict             string   `json:"verdict"`
	Reasons             []string `json:"reasons"`
}

func (p *Port) handler(a *acceptor) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.Low() {
			w.Header().Set("Connection", "close") // the descriptor is needed
		}
		switch r.URL.Path {
		case "/livez":
			answer(w, true, map[string]any{"live": true})
		case "/readyz":
			v := p.node.Verdict()
			answer(w, v.Ready, map[string]any{"ready": v.Ready})
		default:
			writeVerdict(w, p.node.Verdict())
		}
	})
}

func writeVerdict(w http.ResponseWriter, v Verdict) {
	if v.Weighted {
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(v.LocalEndpoints))
	}
	body := report{
		LocalEndpoints:      v.LocalEndpoints,
		ServiceProxyHealthy: v.Ready && !v.Cordoned,
		Verdict:             "unhealthy",
		Reasons:             v.Reasons,
	}
	body.Service.Name = "weir"
	if v.Healthy {
		body.Verdict = "healthy"
	}
	if body.Reasons == nil {
		body.Reasons = []string{} // an empty list, not null
	}
	answer(w, v.Healthy, body)
}

func answer(w http.ResponseWriter, well bool, body any) {
	text, err := json.MarshalIndent(body, "", "\t")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	status := http.StatusOK
	if !well {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	w.Write(append(text, '\n'))
}
