package proxy

import (
	"crypto/tls"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
	"github.com/weirproxy/weir/tls/policy"
)

// tunnel connects a client with an endpoint of a route's backend. The tunnel closes both
// connections after both streams have ended. If it were inlined, requests would need more stack.
//
//go:noinline
func (p *Proxy) tunnel(c *conn.Conn, e *edge, r *Route) { p.tunnelTo(c, nil, e, r, "", nil, nil) }

// tunnelTo is tunnel for a client with TLS. sni is the name in its ClientHello. tc is the TLS
// connection that weir terminates, and under its policy; both are nil for TLS that passes through. shake
// is released when the tunnel begins; nil: nothing is charged.
func (p *Proxy) tunnelTo(c *conn.Conn, tc *tls.Conn, e *edge, r *Route, sni string, under *policy.Policy, shake *handshakeMemory) {
	r = r.destination()
	sec := newSecurity(tc, sni, under)
	rec := accesslog.Record{Kind: "tunnel", Listener: e.name, Origin: &c.Origin, Started: time.Now()}
	sec.describe(&rec)
	describeRoute(&rec, r)
	var held filter.State
	defer held.End() // unless the tunnel has taken it over
	link, endpoint, err := p.connect(c, &sec, r, &rec, &held)
	if err != nil {
		c.Abort() // otherwise the client could take this for the regular end of a stream
		c.Close()
		rec.Err = err
		p.tunnelEnded(&rec)
		if err == errLoop && p.Looped != nil {
			p.Looped(&rec)
		}
		if rec.Reason == connectFailed && p.EndpointFailed != nil {
			p.EndpointFailed(r.backend.Name(), rec.Reason, func() *accesslog.Record { return &rec })
		}
		return
	}
	shake.release()
	c.SetState(conn.Tunnel)
	client := &tunnel.ConnEnd{Conn: c, TLS: tc}
	o := &openTunnel{client: client, raw: client, dialled: link.Conn, listener: e.name, sni: sec.SNI, policy: sec.Policy,
		started: rec.Started, connect: rec.Connect, attempts: rec.Attempts, slot: held.Detach()}
	o.openAccount(p, c)
	p.runTunnel(o, link, e, r, endpoint)
}

// connect asks the guards of the route, and finds an endpoint that accepts a connection, within
// the limits for retries. held gets what the guards hold.
func (p *Proxy) connect(c *conn.Conn, sec *Security, r *Route, rec *accesslog.Record, held *filter.State) (*tunnel.ConnEnd, *backend.Endpoint, error) {
	visits := p.visitsOf(c)
	if visits >= p.mostVisits() {
		rec.Reason = refuseLoop.Reason
		return nil, nil, errLoop
	}
	if refusal := r.guardTunnel(c, held); refusal != nil {
		rec.Reason = refusal.Reason
		return nil, nil, refusal
	}
	d := &tunnelDial{retries: retries{backend: r.backend, metrics: r.metrics}, proxy: p, conn: c, visits: visits + 1, security: sec, rec: rec}
	o := d.run(d)
	rec.Attempts, rec.Connect, rec.Reason = d.made, d.connect, o.reason
	return d.link, d.held, o.err
}

// guardTunnel returns why a guard of the route refuses a connection, or nil.
func (r *Route) guardTunnel(c *conn.Conn, held *filter.State) *message.Refusal {
	return r.filters.GuardTunnel(c.Client, held, func(guard, result string) { r.metrics.get().guard(guard, result).Inc() })
}

// tunnelDial connects to an endpoint for a tunnel.
type tunnelDial struct {
	retries
	proxy    *Proxy
	conn     *conn.Conn // the client's
	visits   int        // how often the tunnel passes this process, with this visit
	security *Security  // of the client's connection
	rec      *accesslog.Record
	link     *tunnel.ConnEnd // valid after the outcome is a tunnel
}

func (d *tunnelDial) acquire(tried []*backend.Endpoint) (*backend.Endpoint, *backend.Link, error) {
	e, err := d.backend.Acquire(d.conn.Client.Addr(), tried, time.Time{}, d)
	return e, nil, err
}

// Wait waits for an event. It ends early if weir cuts the client's connection.
func (d *tunnelDial) Wait(event <-chan struct{}, patience time.Duration) (happened bool, gone error) {
	defer d.conn.CutAlso(nil)
	return waitUnlessGone(d, event, patience)
}

// CutAlso makes a cut of the client's connection end the waits of other.
func (d *tunnelDial) CutAlso(other conn.Cuttable) { d.conn.CutAlso(other) }

// gone returns false: a client may have ended its direction and wait for the other.
func (d *tunnelDial) gone() bool { return false }

// abandoned returns the outcome if weir cut the client's connection.
func (d *tunnelDial) abandoned(err error) *outcome {
	return &outcome{failure: clientGone, reason: "cut", err: err}
}

// repeatable returns false: an attempt that did not fail to connect is a tunnel.
func (d *tunnelDial) repeatable(failure) bool { return false }

// pause does nothing: the limits of a route are for requests.
func (d *tunnelDial) pause() *outcome { return nil }

func (d *tunnelDial) try(e *backend.Endpoint, _ *backend.Link, _ bool) *outcome {
	d.rec.Endpoint = e.Address()
	begun := time.Now()
	cut := newCancelable(time.Time{})
	d.conn.CutAlso(cut)
	link, err := d.proxy.localConns.dial(e.AddrPort(), d.visits, func(w backend.Watch) (*tunnel.ConnEnd, error) {
		return e.DialWatched(cut.ctx, outgoing(&d.conn.Origin, d.conn.Client, d.security), w)
	})
	d.conn.CutAlso(nil)
	err = cut.end(err)
	d.retries.connect = time.Since(begun)
	switch {
	case err == nil:
		e.Succeeded()
		d.link = link
		d.metrics.get().times.connected(d.connect)
		return tunnelOpened
	case errors.Is(err, errClientCut):
		return d.abandoned(err)
	}
	e.Failed(err)
	return &outcome{failure: unsent, reason: connectFailed, err: err}
}

// openTunnel is the owner of a tunnel: it holds what weir must release, count and log when the
// tunnel ends. For a parked tunnel, weir keeps only the openTunnel, the tunnel itself and its
// connections. An openTunnel holds no part of a table.
type openTunnel struct {
	proxy       *Proxy
	client      tunnel.End
	endpointEnd tunnel.End
	dialled     *conn.Conn // the connection that localConns.dial made for the tunnel; nil: an exchange made it
	endpoint    *backend.Endpoint
	untrack     func()
	metrics     *routeMetrics // they also contain the names of the route and the backend
	series      *routeSeries  // counts this tunnel

	listener, sni string
	policy        *policy.Policy // of the TLS that weir terminates; nil: none
	started       time.Time
	connect       time.Duration
	attempts      int
	slot          *filter.Slot    // of in_flight; nil: none
	holding       memory.Account  // of a connection that became the tunnel
	account       *memory.Account // holding, or that of the HTTP/2 connection that carries the tunnel
	kept          int             // bytes that account is charged for upgrade
	// One of the two is set.
	raw     *tunnel.ConnEnd   // the client's end: its connection became the tunnel at once
	upgrade *accesslog.Record // the record of the exchange that became the tunnel

	unlogged   bool        // the route has no access log
	next, prev *openTunnel // guarded by proxy.tunnels.mu
}

// runTunnel starts a tunnel between o's client and a connection to an endpoint.
func (p *Proxy) runTunnel(o *openTunnel, endpoint tunnel.End, e *edge, r *Route, to *backend.Endpoint) {
	client := o.client
	o.proxy, o.endpointEnd, o.endpoint, o.metrics = p, endpoint, to, r.metrics
	o.unlogged = r.config.Unlogged
	o.untrack = to.Track(client.Cuttable())
	p.tunnels.add(o)
	if p.Orphaned != nil && !p.table.Load().has(o.on()) {
		p.Orphaned(client.Cuttable()) // a reload removed the route while weir connected to the endpoint
	}
	o.series = r.metrics.get()
	o.series.openTunnels().Inc()
	o.series.traffic.Tunnels.Add(1)
	idle := r.config.TunnelIdle
	if idle == 0 {
		idle = e.timeouts.TunnelIdle
	}
	limits := tunnel.Options{Idle: idle, Lifetime: r.config.MaxLifetime, Sent: o.series.in, Received: o.series.out, Account: o.account}
	if o.upgrade != nil {
		go tunnel.Start(client, endpoint, limits, o) // the goroutine of an exchange has a larger stack, and holds a session
		return
	}
	tunnel.Start(client, endpoint, limits, o)
}

func (o *openTunnel) on() routeOn { return routeOn{o.listener, o.metrics.key.route} }

// Ended releases the resources of the tunnel, and counts and logs it.
func (o *openTunnel) Ended(r tunnel.Result) {
	o.series.openTunnels().Dec()
	o.series.traffic.Tunnels.Add(-1)
	o.untrack()
	o.slot.Release()
	o.proxy.tunnels.remove(o)
	if o.dialled != nil {
		o.proxy.localConns.forget(o.dialled)
	}
	o.endpointEnd.Close(r.Reason)
	defer o.client.Close(r.Reason) // last: a drain may end when it is closed, and the log with the drain
	o.endpoint.Release()
	o.log(r)
	o.account.Release(o.kept)
	o.holding.Close()
}

func (o *openTunnel) log(r tunnel.Result) {
	rec := o.upgrade
	if rec == nil {
		key := o.metrics.key
		rec = &accesslog.Record{Kind: "tunnel", Listener: o.listener, Origin: &o.raw.Conn.Origin, Route: key.route, Backend: key.backend,
			Endpoint: o.endpoint.Address(), Attempts: o.attempts, Started: o.started, Connect: o.connect, Unlogged: o.unlogged}
		sec := newSecurity(o.raw.TLS, o.sni, o.policy)
		sec.describe(rec)
	}
	rec.Duration = time.Since(o.started)
	rec.Received, rec.Sent = r.Sent, r.Received // seen from the client: into weir, out of weir
	rec.Reason = r.Reason
	if !conn.Routine(r.Err) {
		rec.Err = r.Err
	}
	o.proxy.tunnelEnded(rec)
}

// Panicked reports a panic. The tunnel ends after it.
func (o *openTunnel) Panicked(value any, stack []byte) {
	if o.proxy.Panicked != nil {
		o.proxy.Panicked(o.listener, value, stack)
	}
}

// tunnelUpgraded runs the tunnel that an exchange became after a 101 response. From then on,
// the tunnel owns the connection. The tunnel needs nothing else of the session.
func (s *http1Session) tunnelUpgraded() {
	s.ended = true
	s.conn.SetState(conn.Tunnel)
	s.releaseBody()
	o := s.openTunnel(&tunnel.ConnEnd{Conn: s.conn, TLS: s.tls, Early: s.http1.TakeBuffered()})
	s.conn, s.tls = conn.Closed(), nil
	s.startTunnel(o)
}

// openTunnel makes the tunnel between the client and the endpoint that sent 101. The tunnel
// keeps nothing of the exchange.
func (x *exchange) openTunnel(client tunnel.End) *openTunnel {
	rec := x.newRecord(time.Now())
	rec.Kind, rec.Status = "upgrade", http.StatusSwitchingProtocols
	rec.Request, rec.Response = x.req.Clone(), nil
	x.route.metrics.exchange(rec.Status, x.waited, 0, 0, x.trace)
	if x.trace != nil {
		x.endTrace(rec)
	}
	return &openTunnel{client: client, listener: x.edge.name, started: x.started, upgrade: rec}
}

// startTunnel hands over the connection to the endpoint, and starts the tunnel.
func (x *exchange) startTunnel(o *openTunnel) {
	link, to := x.attempts.link, x.attempts.endpoint
	o.account = x.account
	if x.wire.Version() != "2" { // the account of the session ends with the session
		o.openAccount(x.proxy, o.client.(*tunnel.ConnEnd).Conn)
	}
	o.kept = o.upgrade.Request.Size()
	o.account.Force(o.kept) // the exchange had it
	endpoint := link.TunnelEnd(o.account)
	x.attempts.link, x.attempts.held = nil, nil
	o.slot = x.filtered.Detach()
	x.proxy.runTunnel(o, endpoint, x.edge, x.route, to)
}

// openAccount opens an account for a connection that has become the tunnel.
func (o *openTunnel) openAccount(p *Proxy, c *conn.Conn) {
	o.holding.Open(p.Memory, c.Network().Prefix(), c)
	o.account = &o.holding
}

// tunnels is the set of all open tunnels, for reloads. It is a list through the tunnels
// themselves, so it allocates no memory.
type tunnels struct {
	mu    sync.Mutex
	first *openTunnel
}

// routeOn is a route on one listener.
type routeOn struct{ listener, route string }

func (t *tunnels) add(o *openTunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.next = t.first; o.next != nil {
		o.next.prev = o
	}
	t.first = o
}

func (t *tunnels) remove(o *openTunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		t.first = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	}
	o.next, o.prev = nil, nil
}

// orphans returns the client ends of the tunnels whose route is not in the table. changed has the
// names of the routes that differ from the last table.
func (t *tunnels) orphans(table *Table, changed map[string]bool) (orphans []conn.Cuttable) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o := t.first; o != nil; o = o.next {
		if on := o.on(); changed[on.route] && !table.has(on) {
			orphans = append(orphans, o.client.Cuttable())
		}
	}
	return orphans
}
