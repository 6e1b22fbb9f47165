package proxy

import "github.com/weirproxy/weir/listener/conn"

// GoAway begins to end the HTTP/2 connections for which f returns true. Weir sends GOAWAY, and
// serves the running requests and the requests on their way. GoAway calls f with a lock held.
func (p *Proxy) GoAway(f func(*conn.Conn) bool) {
	if going := p.http2.those(func(s *http2Session) bool { return f(s.conn) }); len(going) > 0 {
		go func() { // it waits for the locks of connections
			for _, s := range going {
				s.goAway()
			}
		}()
	}
}

// Exchanges calls f for each HTTP/2 connection that is not idle. running is the number of
// exchanges and tunnels on the connection, and received how many bytes they have received. Exchanges takes no lock of a
// connection: while memory is short, the goroutine that has it may wait for the garbage collector.
func (p *Proxy) Exchanges(f func(c *conn.Conn, running int, received int64)) {
	for _, s := range p.http2.those(func(s *http2Session) bool { return s.conn.State() != conn.Idle }) {
		running, received := s.holding.Exchanges()
		f(s.conn, running, received)
	}
}

// CutTunnels cuts the idle tunnels and silent streams on the HTTP/2 connections for which f returns true. It
// calls f with a lock held.
func (p *Proxy) CutTunnels(f func(*conn.Conn) bool) {
	for _, s := range p.http2.those(func(s *http2Session) bool { return f(s.conn) }) {
		s.http2.CutTunnels()
	}
}
