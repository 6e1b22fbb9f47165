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

// Port answers load balancers. Every path except /livez and /readyz returns the verdict.
// One Port may serve several listeners, one after the other, because a reload may move
// it.
type Port struct {
	node   *Node
	from   atomic.Pointer[[]netip.Prefix]
	askers askers
	asked  atomic.Int64 // when the last request came, in Unix nanoseconds; 0: none came
	moved  atomic.Bool
	open   atomic.Int64 // connections
}

// The timeouts of the port. A check takes milliseconds; a longer exchange is not a check.
const (
	readHeadTimeout  = 5 * time.Second // PROXY header and request head together
	exchangeTimeout  = 10 * time.Second
	keepAliveTimeout = 60 * time.Second
	shutdownTimeout  = time.Second
	maxHead          = 16 << 10
)

// NewPort makes a port for the verdicts of n. It accepts PROXY headers from all peers.
func NewPort(n *Node) *Port {
	p := &Port{node: n}
	p.SetFrom(nil)
	return p
}

// SetFrom sets the peers that may send a PROXY header to the port; nil: all peers. The
// header is always optional. A header from another peer ends the connection.
func (p *Port) SetFrom(from []netip.Prefix) { p.from.Store(&from) }

// Serve answers on ln until ctx is done, and then returns nil after at most a second. It
// closes ln. It reserves a few descriptors, so that it can answer when weir has no other
// descriptor left.
func (p *Port) Serve(ctx context.Context, ln net.Listener) error {
	a := newAcceptor(ln, &p.from)
	a.count = &p.open
	defer a.Close()
	server := &http.Server{
		Handler:                      p.handler(a),
		ReadHeaderTimeout:            readHeadTimeout,
		ReadTimeout:                  exchangeTimeout,
		WriteTimeout:                 exchangeTimeout,
		IdleTimeout:                  keepAliveTimeout,
		MaxHeaderBytes:               maxHead,
		DisableGeneralOptionsHandler: true,                       // OPTIONS * returns the verdict, too
		ErrorLog:                     log.New(io.Discard, "", 0), // aborted checks are routine
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if p.moved.Load() {
			a.Close() // connections end with their next response
			return
		}
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

// Move prepares the port for another process that takes over its socket. When its context
// ends, Serve closes the socket and returns at once. Open connections end with their next
// response: a check that is on its way must get an answer. Await waits for them.
func (p *Port) Move() { p.moved.Store(true) }

// awaitInterval is how often Await looks for open connections.
const awaitInterval = 20 * time.Millisecond

// Await waits until the port has no open connection, or until ctx ends.
func (p *Port) Await(ctx context.Context) {
	tick := time.NewTicker(awaitInterval)
	defer tick.Stop()
	for p.open.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// report is the answer: the fields of kube-proxy's healthCheckNodePort, the verdict, and
// the reasons.
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
		if a.Low() || p.moved.Load() {
			w.Header().Set("Connection", "close") // the descriptor is needed, or another process answers
		}
		p.asked.Store(time.Now().UnixNano())
		switch r.URL.Path {
		case "/livez":
			answer(w, true, map[string]any{"live": true})
		case "/readyz":
			v := p.node.Verdict()
			answer(w, v.Ready, map[string]any{"ready": v.Ready})
		default:
			v := p.node.Verdict()
			if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
				p.askers.note(peer.Addr().Unmap(), v.Healthy)
			}
			writeVerdict(w, v)
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
