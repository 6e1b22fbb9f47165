package proxy

import (
	"runtime/debug"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// Serve takes over a connection whose PROXY header has been read, and closes it. It may return
// long before a tunnel ends; the tunnel closes its connection itself. A panic ends this
// connection and no other, and Serve calls Panicked.
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

// rescue ends a connection whose goroutine panics. It resets the connection, so that the
// client does not take an incomplete response for complete.
func (p *Proxy) rescue(c *conn.Conn, listener string) {
	value := recover()
	if value == nil {
		return
	}
	stack := debug.Stack()
	c.Cut() // also cuts the connection to the endpoint, if there is one
	c.Abort()
	c.Close()
	if p.Panicked != nil {
		p.Panicked(listener, value, stack)
	}
}

// edge finds the listener in the current table, or else in the last table that contained it.
// Weir serves one exchange or tunnel on a connection that a listener accepted before a reload
// removed the listener.
func (p *Proxy) edge(listener string) (*Table, *edge) {
	t := p.table.Load()
	if e := t.edges[listener]; e != nil {
		return t, e
	}
	return p.departedEdge(listener)
}

// departedEdge finds a listener that a reload removed, or whose protocol a reload changed.
func (p *Proxy) departedEdge(listener string) (*Table, *edge) {
	all := p.departed.Load()
	if all == nil || (*all)[listener].table == nil {
		return nil, nil
	}
	t := (*all)[listener].table
	return t, t.edges[listener]
}

// refuse ends a connection that weir cannot serve, without writing to it. It reports the reason.
func (p *Proxy) refuse(c *conn.Conn, e *edge, reason string, err error) {
	p.refuseAs(c, &accesslog.Record{Listener: e.name, Reason: reason, Err: err})
}

// refuseAs closes c. It completes r and reports it.
func (p *Proxy) refuseAs(c *conn.Conn, r *accesslog.Record) {
	c.Close()
	if p.Refused != nil {
		r.Kind, r.Origin = "refused", &c.Origin
		p.Refused(r)
	}
}
