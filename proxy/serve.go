package proxy

import (
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// Serve takes over a connection whose header is through, and closes it. It
// returns when nothing of the connection is left.
func (p *Proxy) Serve(c *conn.Conn, listener string) {
	t := p.table.Load()
	e := t.edges[listener]
	if e == nil {
		c.Close() // the listener went with a reload while the connection was on its way
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

// refuse ends a connection that cannot be served. Nothing is written to it.
func (p *Proxy) refuse(c *conn.Conn, e *edge, reason string, err error) {
	c.Close()
	if p.Refused != nil {
		p.Refused(c, e.name, reason, err)
	}
}
