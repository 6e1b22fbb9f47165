// Package proxy is the path of a connection through weir, in the order of its
// files: serve.go takes it over from a listener, identify.go finds out what it
// carries, route.go where that goes, forward.go takes it there. The rest are
// the parts these four use.
package proxy

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/tls/policy"
)

// Proxy serves connections by the current table. Its fields are set before the
// first connection and do not change.
type Proxy struct {
	// Metrics counts exchanges and tunnels. Required.
	Metrics *Metrics
	// Handshakes counts TLS handshakes. Required.
	Handshakes *policy.Metrics
	// Refused is told of connections that end before there is an exchange or
	// tunnel, by a record of the kind "refused"; nil: nobody is. It may use the
	// record until it returns.
	Refused func(r *Record)
	// Orphaned is told of the client's end of a tunnel whose route went with a
	// reload while the tunnel was being made, for the caller to drain; nil: nobody is.
	Orphaned func(conn.Linked)
	// Memory is the account of the memory that connections make weir hold; nil: nothing is
	// counted.
	Memory *memory.Process
	// Clients remembers what clients need of TLS; nil: nobody does.
	Clients *policy.Clients
	// Challenges answers ACME challenges; nil: nobody does, and they are refused.
	Challenges Challenges
	// Panicked is told of a panic in a connection's goroutine, which ends that
	// connection and nothing else; nil: nobody is.
	Panicked func(listener string, value any, stack []byte)

	// Looped is called for requests and connections that passed this process more often
	// than limits.loop allows; nil: nothing is called. It may use the record until it
	// returns.
	Looped func(r *Record)

	limits   atomic.Pointer[http1.Limits]
	most     atomic.Int32 // visits of a request or connection; 0: defaultVisits
	table    atomic.Pointer[Table]
	departed atomic.Pointer[map[string]departed] // listeners that reloads took away
	draining atomic.Bool
	log      atomic.Pointer[func(*Record)]
	tunnels  tunnels
	ways     ways
	http2    http2Sessions
}

// Swap puts a table in place. Exchanges that run go on by the old one; the next
// request of every connection finds the new one. It returns the clients'
// ends of tunnels whose route is gone, for the caller to drain.
func (p *Proxy) Swap(t *Table) (orphans []conn.Linked) {
	p.departed.Store(p.departing(t)) // first: there is always one that knows a connection's listener
	p.table.Store(t)
	p.http2.leave(func(s *http2Session) bool { return !s.follow(t) })
	p.Metrics.retain(t)
	return p.tunnels.orphans(t)
}

// departed is a listener that a reload took away, or made one of another
// protocol. What it had taken is served once more, by the table that had it last.
type departed struct {
	table *Table    // with this listener alone
	until time.Time // by then what was on its way has arrived, and what was idle has ended
}

// departing are the listeners that have departed once next is the table.
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

// SetLimits bounds the heads of connections to come.
func (p *Proxy) SetLimits(l http1.Limits) { p.limits.Store(&l) }

// SetLog makes f be told of every exchange and tunnel that ends; nil: nobody is.
func (p *Proxy) SetLog(f func(*Record)) {
	if f == nil {
		p.log.Store(nil)
		return
	}
	p.log.Store(&f)
}

// SetDraining makes responses tell their clients not to use the connection
// again, or stops doing so. Connections that speak HTTP/2 end once what runs has ended.
func (p *Proxy) SetDraining(on bool) {
	p.draining.Store(on)
	if on {
		p.http2.leave(func(*http2Session) bool { return true })
	}
}

// timeout bounds waits that no setting is for, such as reading away what a
// client sends after its answer.
const timeout = 2 * time.Second
