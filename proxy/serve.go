package proxy

import (
	"runtime/debug"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// Serve takes over a connection whose header is through, and closes it, a
// tunnel's perhaps long after it returned: nobody waits for those. A panic ends
// the connection and no other: Panicked is told.
func (p *Proxy) Serve(c *conn.Conn, listener string) {
	defer p.rescue(c, listener)
	t, e := p.edge(listener)
	if e == nil {
		c.Close()
		return
	}
	c.WriteTimeout = e.timeouts.BodyIdle
	switch e.protocol {
	case config.ProtocolTCP:
		c.Established()
		p.tunnel(c, e, e.raw)
	case config.ProtocolHTTP:
		p.servePlain(c, t, e)
	case config.ProtocolTLS:
		p.serveTLS(c, t, e)
	}
}

// rescue ends a connection whose goroutine panics. The client is reset, so that
// it takes nothing it got for a whole.
func (p *Proxy) rescue(c *conn.Conn, listener string) {
	value := recover()
	if value == nil {
		return
	}
	stack := debug.Stack()
	c.Cut() // and the endpoint's connection, if it has one
	c.Abort()
	c.Close()
	if p.Panicked != nil {
		p.Panicked(listener, value, stack)
	}
}

// edge finds the listener in the current table, or in the last that had it: what a
// listener took before a reload removed it is served for one exchange or tunnel.
func (p *Proxy) edge(listener string) (*Table, *edge) {
	t := p.table.Load()
	if e := t.edges[listener]; e != nil {
		return t, e
	}
	return p.departedEdge(listener)
}

// departedEdge finds a listener that was taken away, or became another.
func (p *Proxy) departedEdge(listener string) (*Table, *edge) {
	all := p.departed.Load()
	if all == nil || (*all)[listener].table == nil {
		return nil, nil
	}
	t := (*all)[listener].table
	return t, t.edges[listener]
}

// refuse ends a connection that cannot be served. Nothing is written to it.
func (p *Proxy) refuse(c *conn.Conn, e *edge, reason string, err error) {
	p.refuseAs(c, &Record{Listener: e.name, Reason: reason, Err: err})
}

// refuseAs closes c, and reports r, which it completes.
func (p *Proxy) refuseAs(c *conn.Conn, r *Record) {
	c.Close()
	if p.Refused != nil {
		r.Kind, r.Origin = "refused", &c.Origin
		p.Refused(r)
	}
}
