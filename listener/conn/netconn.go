package conn

import (
	"net"
	"time"
)

// NetConn returns c as a net.Conn for crypto/tls, and for code that uses one in the same way:
// one goroutine reads, one writes, and the owner closes. A Conn is no net.Conn itself, because
// it has no write deadline. WriteTimeout, or Cut, limits its writes.
func (c *Conn) NetConn() net.Conn { return (*netConn)(c) }

// netConn is a Conn that has the methods which net.Conn requires.
type netConn Conn

func (n *netConn) Read(p []byte) (int, error)        { return (*Conn)(n).Read(p) }
func (n *netConn) Write(p []byte) (int, error)       { return (*Conn)(n).Write(p) }
func (n *netConn) Close() error                      { return (*Conn)(n).Close() }
func (n *netConn) RemoteAddr() net.Addr              { return (*Conn)(n).RemoteAddr() }
func (n *netConn) LocalAddr() net.Addr               { return (*Conn)(n).LocalAddr() }
func (n *netConn) SetReadDeadline(t time.Time) error { return (*Conn)(n).SetReadDeadline(t) }

// SetDeadline sets the read deadline.
func (n *netConn) SetDeadline(t time.Time) error { return n.SetReadDeadline(t) }

// SetWriteDeadline does nothing. crypto/tls gives its close_notify five seconds, and then sets
// a deadline that has passed. Behind a client that reads slowly, five seconds would turn the
// end of a response or of a tunnel into a reset.
func (n *netConn) SetWriteDeadline(time.Time) error { return nil }
