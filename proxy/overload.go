package proxy

import "github.com/weirproxy/weir/listener/conn"

// Leave begins to end the connections of HTTP/2 for which f returns true: their
// clients are told, and what runs or is on its way is served. f is called with
// a lock held.
func (p *Proxy) Leave(f func(*conn.Conn) bool) {
	p.http2.leave(func(s *http2Session) bool { return f(s.conn) })
}

// Exchanges calls f for each HTTP/2 connection that is not idle, with the number of
// exchanges and tunnels that run on it.
func (p *Proxy) Exchanges(f func(c *conn.Conn, running int)) {
	for _, s := range p.http2.those(func(s *http2Session) bool { return s.conn.State() != conn.Idle }) {
		f(s.conn, s.http2.Working())
	}
}

// CutTunnels cuts the tunnels at rest within the connections of HTTP/2 for which
// f returns true. f is called with a lock held.
func (p *Proxy) CutTunnels(f func(*conn.Conn) bool) {
	for _, s := range p.http2.those(func(s *http2Session) bool { return f(s.conn) }) {
		s.http2.CutTunnels()
	}
}
