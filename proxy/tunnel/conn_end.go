package tunnel

import (
	"crypto/tls"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// ConnEnd is an end that is a connection of its own.
type ConnEnd struct {
	Conn *conn.Conn
	// TLS is the TLS session over Conn, after its handshake; nil: no TLS.
	TLS *tls.Conn
	// Early contains bytes that the caller has already read from this end, decrypted. The
	// tunnel sends them to the other end first.
	Early []byte
}

// Cuttable returns the connection.
func (e *ConnEnd) Cuttable() conn.Cuttable { return e.Conn }

// Close closes the connection. Over TLS it sends a close_notify only if reason is ReasonEOF:
// otherwise the peer would take an incomplete stream for complete.
func (e *ConnEnd) Close(reason string) {
	if e.TLS != nil && reason == ReasonEOF {
		e.TLS.Close()
	} else {
		e.Conn.Close()
	}
}

// begin removes the deadline, because the watch ends all waits. It also removes the
// connection from the poller of the Go runtime: no goroutine waits for it yet, and the tunnel
// may be idle.
func (e *ConnEnd) begin() {
	e.Conn.SetDuplex(true)
	e.Conn.SetReadDeadline(time.Time{})
	e.unpoll()
}

func (e *ConnEnd) end() { e.Conn.SetDuplex(false) }

func (e *ConnEnd) cutAlso(other conn.Cuttable) { e.Conn.CutAlso(other) }

// endsItself returns false: a wait for the connection finds out how it ended.
func (e *ConnEnd) endsItself() bool { return false }

// err returns nil: only a call of Cut cuts a connection.
func (e *ConnEnd) err() error { return nil }

// abort makes the close a reset.
func (e *ConnEnd) abort() { e.Conn.Abort() }

func (e *ConnEnd) moved(now time.Time) { e.Conn.Quiet(now) }

func (e *ConnEnd) parks() bool { return e.Conn.CanPark() }

// dozes returns false if bytes may be in this process, where the lot cannot see them.
func (e *ConnEnd) dozes() bool {
	return e.parks() && e.TLS == nil && len(e.Early) == 0 && !e.Conn.HasPeeked()
}

func (e *ConnEnd) park(d *direction) bool { return e.Conn.Park(d, time.Time{}) }

func (e *ConnEnd) unpark() bool { return e.Conn.Unpark() }

func (e *ConnEnd) polled() bool { return e.Conn.Polled() }

func (e *ConnEnd) unpoll() {
	if e.parks() {
		e.Conn.Unpoll()
	}
}

func (e *ConnEnd) takeRead() (early, peeked []byte) {
	early, e.Early = e.Early, nil
	if e.TLS == nil { // otherwise the peeked bytes belong to the TLS session
		peeked = e.Conn.TakePeeked()
	}
	return early, peeked
}

func (e *ConnEnd) copyFrom(d *direction) bool {
	step := func() bool { return d.step(e) }
	err := conn.ErrQuiet
	if e.parks() {
		if err = e.Conn.AwaitBusy(step); err == conn.ErrQuiet && e.parkIdle(d) {
			return false
		}
	}
	if err == conn.ErrQuiet { // the direction cannot be parked, and waits here
		err = e.Conn.Await(step)
	}
	if err != nil {
		d.t.fail(d.src(), err)
	}
	return true
}

func (e *ConnEnd) parkIdle(d *direction) bool {
	if e.TLS != nil {
		conn.ReleaseTLS(e.TLS)
	}
	return d.t.parkIdle(d)
}

func (e *ConnEnd) read(p []byte) (int, error) {
	if e.TLS != nil {
		return e.TLS.Read(p)
	}
	return e.Conn.Read(p)
}

func (e *ConnEnd) write(p []byte) (int, error) {
	if e.TLS != nil {
		return e.TLS.Write(p)
	}
	return e.Conn.Write(p)
}

func (e *ConnEnd) authenticated() bool { return e.TLS != nil }

func (e *ConnEnd) truncated() bool { return e.TLS != nil && e.Conn.SawEnd() }

// closeWrite sends the end of the stream. Over TLS, a truncated end stays truncated.
func (e *ConnEnd) closeWrite(truncated bool) error {
	if e.TLS != nil && !truncated {
		if err := e.TLS.CloseWrite(); err != nil {
			return err
		}
	}
	return e.Conn.CloseWrite()
}

func (e *ConnEnd) plainTCP() *conn.Conn {
	if e.TLS != nil || !e.Conn.IsTCP() {
		return nil
	}
	return e.Conn
}
