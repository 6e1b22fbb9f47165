package node

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/sockets"
)

// runningPort is the health, admin or metrics port.
type runningPort struct {
	socket *sockets.Socket
	stop   context.CancelFunc
	done   chan struct{} // closed when the port has ended
}

// wantedPort is a port of a configuration; without an address there is none.
type wantedPort struct {
	name, network, address string
	serve                  func(context.Context, net.Listener) error
	implied                bool // no file names the address
}

// adminSocket is the name of the socket beside the admin port.
const adminSocket = "admin socket"

// optional returns true if weir goes on without a port that it cannot bind because of err. Nobody asks for the socket
// beside the port, and service managers may forbid it (RestrictAddressFamilies, AppArmor).
func (w wantedPort) optional(err error) bool {
	return w.name == adminSocket || w.implied && errors.Is(err, syscall.EADDRINUSE)
}

func (s *server) wantedPorts(p *plan) []wantedPort {
	health := wantedPort{name: "health", serve: s.health.Serve}
	if h := p.cfg.Health; h != nil {
		health.network, health.address = h.Network, h.Address
	}
	metrics := wantedPort{name: "metrics", serve: s.serveMetrics}
	if m := p.cfg.Metrics; m != nil {
		metrics.network, metrics.address = m.Network, m.Address
	}
	a := p.cfg.Admin
	beside := wantedPort{name: adminSocket, network: "unix", serve: s.serveAdminSocket}
	if a.Network == "tcp" {
		beside.address = AdminSocket(a.Address)
	}
	return []wantedPort{health, metrics, {"admin", a.Network, a.Address, s.serveAdmin, a.Implied}, beside}
}

// AdminSocket returns the abstract Unix socket beside the admin port at a TCP address, such as
// @weir/127.0.0.1:8087. It has no file, so it needs no folder that weir may write to. Empty: this system has no
// such sockets.
func AdminSocket(address string) string {
	if runtime.GOOS != "linux" {
		return ""
	}
	host, port, _ := net.SplitHostPort(address)
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		address = "127.0.0.1:" + port
	}
	return "@weir/" + address
}

// unbound has the errors of addresses that could not be bound.
type unbound []error

// Error returns one line for each address.
func (u unbound) Error() string {
	text := make([]string, len(u))
	for i, err := range u {
		text[i] = err.Error()
	}
	return strings.Join(text, "\n")
}

// Unwrap returns the errors of all addresses.
func (u unbound) Unwrap() []error { return u }

// adoptPorts starts new ports. It returns functions that close the removed ones.
func (s *server) adoptPorts(p *plan) (closing []func()) {
	if h := p.cfg.Health; h != nil {
		s.health.SetFrom(h.From)
	}
	for _, w := range s.wantedPorts(p) {
		socket, old := p.sockets.Opened(w.name), s.ports[w.name]
		if socket == nil && w.address != "" && p.sockets.Err(w.name) == nil {
			continue // the old port continues
		}
		if err := p.sockets.Err(w.name); err != nil && !p.again && !(w.name == adminSocket && p.sockets.Err("admin") != nil) {
			help := "end the other process, or set admin.address to a free address"
			if !errors.Is(err, syscall.EADDRINUSE) {
				help = "without it weir's commands need admin.token; allow abstract Unix sockets (in systemd: AF_UNIX in RestrictAddressFamilies)"
			}
			s.log.Warn("weir goes on without this port; "+help, zap.String("port", w.name), zap.Error(err))
		}
		if old != nil {
			closing = append(closing, old.close)
			delete(s.ports, w.name)
		}
		if socket != nil {
			s.ports[w.name] = s.startPort(w, socket)
		}
	}
	return closing
}

// close closes a port whose socket may have been replaced.
func (p *runningPort) close() {
	p.socket.AwaitEmpty()
	p.stop()
	<-p.done
}

func (s *server) startPort(w wantedPort, ln *sockets.Socket) *runningPort {
	// The context does not depend on s.ctx: closePorts ends a port, together with the
	// listeners.
	ctx, stop := context.WithCancel(context.Background())
	port := &runningPort{socket: ln, stop: stop, done: make(chan struct{})}
	s.log.Info("listening", zap.String("port", w.name), zap.Stringer("address", ln.Addr()))
	go func() {
		defer close(port.done)
		if !s.awaitGate(ctx.Done()) {
			ln.Close()
			return
		}
		if err := w.serve(ctx, ln); err != nil {
			s.log.Error("a port failed", zap.String("port", w.name), zap.Error(err))
		}
	}()
	return port
}

// answerPatience limits how long a request may run after its port was closed.
const answerPatience = 10 * time.Second

// closePorts closes the ports. Other processes can bind them at once; a response in
// progress may take answerPatience longer.
func (s *server) closePorts() {
	for _, port := range s.ports {
		port.stop()
	}
	for _, port := range s.ports {
		<-port.done
	}
}

// awaitAnswers waits until the closed admin and metrics ports have written their last answers,
// or until ctx ends. A port that is closed has no sockets any more, but a client that asked for a
// reload may still wait for its answer.
func (s *server) awaitAnswers(ctx context.Context) {
	written := make(chan struct{})
	go func() {
		s.answering.Wait()
		close(written)
	}()
	select {
	case <-written:
	case <-ctx.Done():
	}
}

// portLog returns a log for the messages of net/http about a port, at most one a second.
func (s *server) portLog(name string) *log.Logger {
	limited := &listener.Repeats{PerSecond: 1, More: func(port string, held int) {
		s.log.Warn("more problems with a port", zap.String("port", port), zap.Int("more", held))
	}}
	return log.New(lines(func(line string) {
		if limited.Allow(name) {
			s.log.Warn("a problem with a port", zap.String("port", name), zap.String("error", line))
		}
	}), "", 0)
}

// hurried closes connections after their response while the reserve is in use.
func hurried(reserve *conn.Reserve, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reserve.Low() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// lines is a writer that gets whole lines.
type lines func(string)

func (l lines) Write(b []byte) (int, error) {
	l(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// serveAdmin answers on ln until ctx ends.
func (s *server) serveAdmin(ctx context.Context, ln net.Listener) error {
	// No write timeout: a CPU profile or a trace takes as long as the client asked for.
	guarded := func(ln net.Listener) net.Listener { return guardedListener{ln, s.access.Load, false} }
	return s.servePort(ctx, "admin", ln, guarded, &http.Server{Handler: s.admin(), ConnContext: letIn})
}

// serveAdminSocket is serveAdmin for the socket beside the port, which has no TLS.
func (s *server) serveAdminSocket(ctx context.Context, ln net.Listener) error {
	plain := func(ln net.Listener) net.Listener { return guardedListener{ln, s.access.Load, true} }
	return s.servePort(ctx, adminSocket, ln, plain, &http.Server{Handler: s.admin(), ConnContext: letIn})
}

// serveMetrics serves the metrics port until ctx ends.
func (s *server) serveMetrics(ctx context.Context, ln net.Listener) error {
	open := func(ln net.Listener) net.Listener { return ln }
	return s.servePort(ctx, "metrics", ln, open, &http.Server{Handler: s.scrape(), WriteTimeout: 30 * time.Second})
}

// endPort closes the port of server, and waits for its requests, but not longer than within. A
// client that moved the port by its request to reload still gets an answer. A reload waits until
// removed listeners have emptied their queues, which may take seconds.
func endPort(server *http.Server, within time.Duration) {
	bounded, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if server.Shutdown(bounded) != nil {
		server.Close()
	}
}

// portReserve is how many descriptors the admin port, its socket and the metrics port each reserve, so that
// they answer while clients use up all others.
const portReserve = 4

// servePort completes the settings of a server whose requests have no bodies, and serves
// until ctx ends. guard wraps the listener.
func (s *server) servePort(ctx context.Context, name string, ln net.Listener, guard func(net.Listener) net.Listener, server *http.Server) error {
	crowd := crowd{max: maxPortConnections}
	reserve := conn.NewReserve(ln, portReserve, crowd.endOne)
	defer reserve.Close()
	crowd.ended = reserve.Refill
	server.Handler = hurried(reserve, server.Handler)
	server.ReadHeaderTimeout, server.ReadTimeout, server.IdleTimeout = 5*time.Second, 10*time.Second, time.Minute
	server.MaxHeaderBytes, server.ErrorLog, server.ConnState = 16<<10, s.portLog(name), crowd.changed
	s.answering.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer s.answering.Done()
		endPort(server, answerPatience)
	})
	defer func() {
		if stop() {
			s.answering.Done()
		}
	}()
	if err := server.Serve(guard(reserve)); err != http.ErrServerClosed {
		return fmt.Errorf("serving the %s port: %w", name, err)
	}
	return nil
}
