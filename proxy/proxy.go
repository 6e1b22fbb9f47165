// Package proxy is the path of a connection through weir. The order of its files is: serve.go
// takes a connection over from a listener, identify.go finds out which protocol it carries,
// exchange.go serves a request, route.go finds its route, forward.go forwards it by way of
// retry.go, attempts.go and attempt.go, and tunnel.go connects raw bytes. The other files are
// parts that these use.
package proxy

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/trace"
	"github.com/weirproxy/weir/tls/policy"
)

// Proxy serves connections by the current table. The caller sets its exported fields before
// the first connection and does not change them afterwards.
type Proxy struct {
	// Metrics counts exchanges and tunnels. Required.
	Metrics *Metrics
	// Handshakes counts TLS handshakes. Required.
	Handshakes *policy.Metrics
	// Refused is called for connections that end before there is an exchange or tunnel. The
	// kind of the record is "refused". Refused may use the record until it returns. nil: none.
	Refused func(r *accesslog.Record)
	// Orphaned is called with the client's end of a tunnel if a reload removed the tunnel's
	// route while weir connected the tunnel. The caller drains it. nil: none.
	Orphaned func(conn.Cuttable)
	// Memory is the account of the memory that connections make weir hold; nil: weir counts
	// no memory.
	Memory *memory.Process
	// Clients remembers which TLS features clients need; nil: none.
	Clients *policy.Clients
	// Challenges answers ACME challenges; nil: weir refuses them.
	Challenges Challenges
	// Panicked is called after a panic in a connection's goroutine. The panic ends that
	// connection and no other. nil: none.
	Panicked func(listener string, value any, stack []byte)

	// Looped is called for requests and connections that passed this process more often
	// than limits.loop allows. Looped may use the record until it returns. nil: none.
	Looped func(r *accesslog.Record)

	// GuardFailed is called for requests that weir refused because a guard of their route could
	// not decide. guard is its key in the route. GuardFailed may use the record until it
	// returns. nil: none.
	GuardFailed func(guard string, r *accesslog.Record)

	// EndpointFailed is called for requests whose last endpoint could not be reached, or sent no
	// complete and valid response, and for tunnels that no endpoint accepted. EndpointFailed may
	// use the record until it returns. nil: none.
	EndpointFailed func(r *accesslog.Record)

	limits     atomic.Pointer[http1.Limits]
	most       atomic.Int32 // visits of a request or connection; 0: defaultVisits
	table      atomic.Pointer[Table]
	departed   atomic.Pointer[map[string]departed] // listeners that reloads removed
	draining   atomic.Bool
	log        atomic.Pointer[func(*accesslog.Record)]
	tracer     atomic.Pointer[trace.Tracer]
	tunnels    tunnels
	localConns localConnections
	http2      http2Sessions
	mirrors    atomic.Int64 // copies of requests that run
	hooks      hooks
}

// hooks tell tests about steps that have no effect outside of weir. They are nil elsewhere.
type hooks struct {
	waits func() // a wait for an endpoint goes on after a check of the client
}

// Swap makes t the current table. Running exchanges continue with the old table; the next
// request of every connection uses the new one. Swap returns the clients' ends of the
// tunnels whose route was removed. The caller drains them.
func (p *Proxy) Swap(t *Table) (orphans []conn.Cuttable) {
	p.departed.Store(p.departing(t)) // first: then each listener of a connection is always in one of the two
	p.table.Store(t)
	p.http2.goAway(func(s *http2Session) bool { return !s.follow(t) })
	return p.tunnels.orphans(t, p.Metrics.retain(t))
}

// departed is a listener that a reload removed, or whose protocol a reload changed. Weir
// serves one more exchange or tunnel on each connection that the listener had accepted, by
// the last table that contained the listener.
type departed struct {
	table *Table    // with this listener alone
	until time.Time // until then, pending connections arrive and idle connections end
}

// departing returns the listeners that have departed when next becomes the table.
func (p *Proxy) departing(next *Table) *map[string]departed {
	all, now := make(map[string]departed), time.Now()
	if before := p.departed.Load(); before != nil {
		maps.Copy(all, *before)
		maps.DeleteFunc(all, func(_ string, d departed) bool { return now.After(d.until) })
	}
	t := p.table.Load()
	if t == nil {
		return &all
	}
	for name, e := range t.edges {
		if n := next.edges[name]; n != nil && n.protocol == e.protocol {
			continue
		}
		until := now.Add(time.Minute)
		if e.protocol != config.ProtocolTCP {
			until = until.Add(max(e.timeouts.KeepAlive, e.timeouts.RequestHead))
		}
		all[name] = departed{table: &Table{edges: map[string]*edge{name: e}, ech: t.ech}, until: until}
	}
	return &all
}

// Table returns the current table; nil: there is none.
func (p *Proxy) Table() *Table { return p.table.Load() }

// SetLimits sets the limits for the message heads of new connections.
func (p *Proxy) SetLimits(l http1.Limits) { p.limits.Store(&l) }

// SetLog sets the function that is called for every exchange and tunnel that ends; nil: none.
func (p *Proxy) SetLog(f func(*accesslog.Record)) {
	if f == nil {
		p.log.Store(nil)
		return
	}
	p.log.Store(&f)
}

// SetDraining starts or stops draining. While draining, each HTTP/1.1 response asks the
// client to close the connection. An HTTP/2 connection ends when its exchanges have ended.
func (p *Proxy) SetDraining(on bool) {
	p.draining.Store(on)
	if on {
		p.http2.goAway(func(*http2Session) bool { return true })
	}
}

// timeout limits the waits that have no setting. An example is the time in which weir
// discards what a client sends after weir's response.
const timeout = 2 * time.Second
