package proxy

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// tunnel connects a client with an endpoint of a route's backend and closes
// both when they have no more to say.
func (p *Proxy) tunnel(c *conn.Conn, e *edge, r *Route) { p.tunnelTo(c, e, r, "") }

func (p *Proxy) tunnelTo(c *conn.Conn, e *edge, r *Route, sni string) {
	rec := Record{Kind: "tunnel", Listener: e.name, Conn: c, SNI: sni, Started: time.Now()}
	rec.route(r)
	link, err := p.connect(c, r, sni, &rec)
	if err != nil {
		c.Abort() // the client must not take this for the end of a stream
		c.Close()
		rec.Err = err
		p.tunnelEnded(&rec)
		return
	}
	func() {
		defer link.Endpoint().Release() // also where it panics, and the client's connection is closed by Proxy.rescue
		defer link.Close()
		p.runTunnel(tunnel.End{Conn: c}, tunnel.End{Conn: link.Conn, TLS: link.TLS}, e, r, link.Endpoint(), &rec)
	}()
	c.Close()
	p.tunnelEnded(&rec)
}

// connect finds an endpoint that takes a connection, within the bounds for retries.
func (p *Proxy) connect(c *conn.Conn, r *Route, sni string, rec *Record) (*backend.Session, error) {
	b := r.backend
	var tried []*backend.Endpoint
	excused := 0
	for attempt := 1; ; attempt++ {
		e, err := b.Acquire(c.Client.Addr(), tried, time.Time{})
		if err != nil {
			rec.Reason = whyNone(err)
			return nil, err
		}
		rec.Endpoint, rec.Attempts = e.Address(), attempt
		begun := time.Now()
		link, err := e.Dial(context.Background(), p.outgoing(c, nil, sni, nil))
		rec.Connect = time.Since(begun)
		if err == nil {
			e.Succeeded()
			return link, nil
		}
		e.Failed(err)
		e.Release()
		tried = append(tried, e)
		if !b.AllowConnect(tried, &excused, err) {
			rec.Reason = "connect"
			return nil, err
		}
		b.Retried(backend.RetryConnect)
	}
}

func (p *Proxy) runTunnel(client, endpoint tunnel.End, e *edge, r *Route, to *backend.Endpoint, rec *Record) {
	if client.Stream == nil {
		client.Conn.SetState(conn.Tunnel)
	}
	end := client.Linked()
	defer to.Track(end)()
	on := routeOn{e.name, r.name}
	p.tunnels.add(end, on)
	defer p.tunnels.remove(end)
	if p.Orphaned != nil && !p.table.Load().routes[on] {
		p.Orphaned(end) // a reload took the route away while the endpoint was dialled
	}
	r.metrics.tunnels.Inc()
	defer r.metrics.tunnels.Dec()
	idle := r.config.TunnelIdle
	if idle == 0 {
		idle = e.timeouts.TunnelIdle
	}
	result := tunnel.Run(client, endpoint, tunnel.Options{Idle: idle, Lifetime: r.config.MaxLifetime,
		Sent: r.metrics.in, Received: r.metrics.out})
	rec.Received, rec.Sent = result.Sent, result.Received // by the client's view of weir: in, out
	rec.Reason = result.Reason
	if !conn.Routine(result.Err) {
		rec.Err = result.Err
	}
}

// tunnelUpgraded runs the tunnel that an exchange became by a 101.
func (s *session) tunnelUpgraded() {
	s.ended = true
	s.tunnelFrom(tunnel.End{Conn: s.conn, TLS: s.tls, Early: s.http1.TakeBuffered()})
}

// tunnelFrom runs the tunnel between client and the endpoint that said 101.
func (x *exchange) tunnelFrom(client tunnel.End) {
	link := x.link
	endpoint := tunnel.End{Conn: link.Conn, TLS: link.TLS, Early: link.HTTP.TakeBuffered()}
	if link.Stream != nil {
		endpoint.Stream = link.Stream
	}
	rec := x.newRecord(time.Now())
	rec.Kind, rec.Status = "upgrade", http.StatusSwitchingProtocols
	x.route.metrics.exchange(rec.Status, x.waited, 0, 0)
	x.proxy.runTunnel(client, endpoint, x.edge, x.route, x.endpoint, &rec)
	link.HTTP.Close()
	link.Close()
	x.link, x.held = nil, nil
	x.endpoint.Release()
	rec.Duration = time.Since(x.started)
	x.proxy.tunnelEnded(&rec)
	x.broken = rec.Reason != tunnel.ReasonEOF
}

// tunnels knows the route of every open tunnel, for reloads.
type tunnels struct {
	mu   sync.Mutex
	open map[conn.Linked]routeOn
}

// routeOn is a route as one listener has it.
type routeOn struct{ listener, route string }

func (t *tunnels) add(c conn.Linked, r routeOn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = make(map[conn.Linked]routeOn)
	}
	t.open[c] = r
}

func (t *tunnels) remove(c conn.Linked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
}

// orphans are the tunnels whose route the table does not have.
func (t *tunnels) orphans(table *Table) (orphans []conn.Linked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, r := range t.open {
		if !table.routes[r] {
			orphans = append(orphans, c)
		}
	}
	return orphans
}
