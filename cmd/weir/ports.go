package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener"
)

// boundPort is the health or the admin port, and the address it was bound for.
type boundPort struct {
	network, address string
	stop             context.CancelFunc
	done             chan struct{}
}

// wantedPort is a port of a configuration; without an address there is none.
type wantedPort struct {
	name, network, address string
	serve                  func(context.Context, net.Listener) error
}

func (s *server) wantedPorts(p *plan) []wantedPort {
	health := wantedPort{name: "health", serve: s.health.Serve}
	if h := p.cfg.Health; h != nil {
		health.network, health.address = h.Network, h.Address
	}
	return []wantedPort{health, {"admin", p.cfg.Admin.Network, p.cfg.Admin.Address, s.serveAdmin}}
}

// bindPorts binds the health and admin ports where they are new.
func (s *server) bindPorts(p *plan) error {
	for _, w := range s.wantedPorts(p) {
		if old := s.ports[w.name]; w.address == "" || old != nil && old.network == w.network && old.address == w.address {
			continue
		}
		ln, err := listener.Bind(w.network, w.address)
		if err != nil {
			return fmt.Errorf("cannot bind the %s port: %w", w.name, err)
		}
		p.ports[w.name] = ln
	}
	return nil
}

// adoptPorts starts new ports and ends those that are gone.
func (s *server) adoptPorts(p *plan) {
	if h := p.cfg.Health; h != nil {
		s.health.SetFrom(h.From)
	}
	for _, w := range s.wantedPorts(p) {
		ln, old := p.ports[w.name], s.ports[w.name]
		if ln == nil && w.address != "" {
			continue
		}
		if old != nil {
			old.stop()
			<-old.done // a next configuration may want the address again
			delete(s.ports, w.name)
		}
		if ln != nil {
			s.ports[w.name] = s.startPort(w, ln)
		}
	}
}

func (s *server) startPort(w wantedPort, ln net.Listener) *boundPort {
	// Not derived from s.ctx: the health port answers until the very end of a drain.
	ctx, stop := context.WithCancel(context.Background())
	b := &boundPort{network: w.network, address: w.address, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		if err := w.serve(ctx, ln); err != nil {
			s.log.Error("a port failed", zap.String("port", w.name), zap.Error(err))
		}
	}()
	return b
}

func (s *server) closePorts() {
	for _, b := range s.ports {
		b.stop()
	}
	for _, b := range s.ports {
		<-b.done
	}
}

// portLog takes what net/http has to say about a port, which is never much but
// while descriptors are exhausted.
func (s *server) portLog(name string) *log.Logger {
	limited := &listener.Repeats{PerSecond: 1, More: func(port string, held int) {
		s.log.Warn("trouble with a port, more of it", zap.String("port", port), zap.Int("more", held))
	}}
	return log.New(lines(func(line string) {
		if limited.Allow(name) {
			s.log.Warn("trouble with a port", zap.String("port", name), zap.String("error", line))
		}
	}), "", 0)
}

// lines is a writer of whole lines.
type lines func(string)

func (l lines) Write(b []byte) (int, error) {
	l(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// serveAdmin answers on ln until ctx ends.
func (s *server) serveAdmin(ctx context.Context, ln net.Listener) error {
	// No write timeout: a CPU profile or a trace takes as long as was asked for.
	server := &http.Server{Handler: s.admin(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: s.portLog("admin")}
	stop := context.AfterFunc(ctx, func() {
		// Who moved the port by asking it to reload gets an answer.
		bounded, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(bounded) != nil {
			server.Close()
		}
	})
	defer stop()
	if err := server.Serve(ln); err != http.ErrServerClosed {
		return fmt.Errorf("serving the admin port: %w", err)
	}
	return nil
}
