// Package listener accepts connections, applies limits to them, and reads the PROXY
// header of each under its policy and deadline. It knows every open connection, so that a
// drain can wait for it.
//
// Every connection has its own goroutine from accept on. The goroutine reads the PROXY
// header and then runs Settings.Handle, which owns the connection and closes it. weir
// writes nothing to a connection that it refuses.
package listener

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// Options are the parameters of a Listener. All are required except the callbacks.
type Options struct {
	// Name is the name of the listener in the configuration, and its label in metrics.
	Name string
	// Limits, Tracker and Metrics are shared by all listeners.
	Limits  *Limits
	Tracker *Tracker
	Metrics *Metrics
	// Refused, if set, is called for every connection that is closed before Handle. Many
	// goroutines call it, and it must not block.
	Refused func(Refusal)
	// Trouble, if set, is called if connections cannot be accepted, at most once in
	// troubleInterval. The error names what to change.
	Trouble func(error)
	Settings
}

// Settings are the options that a reload may change while the socket stays open. They
// apply to connections that are accepted after the change.
type Settings struct {
	// Policy decides which peers have to send a PROXY header; nil: weir looks for no
	// header.
	Policy *Policy
	// MaxConnections limits the open connections of the listener; 0: only Limits apply.
	MaxConnections int
	// Handle serves a connection after its PROXY header was read. It runs in the
	// goroutine of the connection, and owns the connection. It calls Established when the
	// handshake is complete (at once if there is no handshake), and closes the
	// connection.
	Handle func(*conn.Conn)
}

// Refusal is a connection that was closed before Handle, without a byte written.
type Refusal struct {
	Listener string
	// Peer is the other end of the socket. Client is the source in the PROXY header, or
	// else Peer.
	Peer, Client netip.AddrPort
	// Reason is the label in weir_connections_rejected_total.
	Reason Reason
	// Silent means that weir waited for a PROXY header and the peer closed the connection
	// without sending a byte, as a TCP check of a load balancer does.
	Silent bool
	// Err names the problem, and the setting that decided.
	Err error
}

// socket is what a Listener needs of its socket to end without losing a connection. A
// sockets.Socket is one. Other listeners close at once.
type socket interface {
	SetDeadline(time.Time) error
	Shared() bool
	RefuseNew() time.Duration
	Waits(within time.Duration) bool
}

// Listener accepts connections on one socket.
type Listener struct {
	name    string
	ln      net.Listener
	socket  socket // nil: ln is another kind of listener
	accept  func() (*conn.Conn, error)
	limits  *Limits
	tracker *Tracker
	count   *counters
	refused func(Refusal)
	trouble func(error)
	// limitErrors are made once, because a flood of connections would need one each.
	limitErrors [ReasonFairShare + 1]error

	settings atomic.Pointer[Settings]
	open     atomic.Int64

	troubled time.Time // when trouble was last called; only Serve uses it

	mu      sync.Mutex
	serving bool
	closed  bool
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the socket is closed
}

// New makes a Listener that owns ln from now on. Serve starts it.
func New(ln net.Listener, o Options) *Listener {
	l := &Listener{
		name: o.Name, ln: ln, limits: o.Limits, tracker: o.Tracker,
		count: o.Metrics.listener(o.Name), refused: o.Refused, trouble: o.Trouble,
		limitErrors: limitErrors(o.Name),
		closing:     make(chan struct{}), done: make(chan struct{}),
	}
	l.socket, _ = ln.(socket)
	l.accept = l.acceptNet
	if a, taken, err := conn.NewAcceptor(ln); taken {
		l.ln, l.accept = a, a.AcceptConn
		if err != nil {
			l.ln, l.accept = ln, func() (*conn.Conn, error) { return nil, errors.Join(err, net.ErrClosed) }
		}
	}
	l.Update(o.Settings)
	return l
}

// acceptNet accepts from listeners that an Acceptor does not support.
func (l *Listener) acceptNet() (*conn.Conn, error) {
	nc, err := l.ln.Accept()
	if err != nil {
		return nil, err
	}
	return conn.New(nc), nil
}

// Name is the listener's name in the configuration.
func (l *Listener) Name() string { return l.name }

// Addr is the address that the socket is bound to.
func (l *Listener) Addr() net.Addr { return l.ln.Addr() }

// Open returns the number of the listener's open connections.
func (l *Listener) Open() int { return int(l.open.Load()) }

// Update makes s the settings of later connections.
func (l *Listener) Update(s Settings) { l.settings.Store(&s) }

// Serve accepts connections until Close, and then closes the socket. An error means that
// the socket has failed permanently. Call it once.
func (l *Listener) Serve() error {
	if !l.begin() {
		return nil
	}
	defer close(l.done)
	l.limits.listen(l)
	err := l.acceptAll()
	l.limits.unlisten(l)
	if closeErr := l.ln.Close(); err == nil && closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
		err = fmt.Errorf("cannot close listener %s: %w", l.name, closeErr)
	}
	return err
}

func (l *Listener) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.serving {
		return false
	}
	l.serving = true
	return true
}

// Close stops accepting and closes the socket. It first serves the connections that the
// kernel has already accepted, instead of resetting them, even if Serve has not begun. It
// leaves the accept queue of a shared socket to the other owner. Open connections stay
// open: see Tracker.Drain. Close returns when the socket is closed.
func (l *Listener) Close() error {
	l.mu.Lock()
	first, serving := !l.closed, l.serving
	l.closed = true
	if first {
		close(l.closing)
		l.wake()
	}
	l.mu.Unlock()
	if serving || !first {
		<-l.done
		return nil
	}
	defer close(l.done) // Serve returns at once from now on
	l.finishQueue()
	return l.ln.Close()
}

// wake ends Accept. Serve then empties the queue.
func (l *Listener) wake() {
	if d, ok := l.ln.(deadliner); ok {
		d.SetDeadline(longAgo)
	} else if l.serving {
		l.ln.Close()
	}
}

type deadliner interface{ SetDeadline(time.Time) error }

var longAgo = time.Unix(1, 0)

func (l *Listener) isClosing() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// acceptAll is the accept loop. It never waits for a client.
func (l *Listener) acceptAll() error {
	var wait backoff
	for {
		judge := l.limits.gate.pass(l.closing)
		c, err := l.accept()
		switch {
		case err == nil:
			wait = 0
			l.accepted(c, judge)
		case l.isClosing():
			l.finishQueue()
			return nil
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrClosed):
			return fmt.Errorf("listener %s: its socket was closed by other code: %w", l.name, err)
		case routine(err):
		default:
			l.tellTrouble(err)
			moved, _ := l.limits.gate.changed() // closes when a resource may be free again
			wait.wait(l.closing, moved)
		}
	}
}

// routine reports whether an error of accept concerns only one connection, which has
// ended meanwhile. Linux returns such errors of the new socket from accept (accept(2)).
func routine(err error) bool {
	for _, e := range [...]syscall.Errno{
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EPROTO, syscall.ENETDOWN,
		syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// backoff doubles from 5 milliseconds to a second.
type backoff time.Duration

func (b *backoff) wait(stop, sooner <-chan struct{}) {
	*b = min(max(2**b, backoff(5*time.Millisecond)), backoff(time.Second))
	t := time.NewTimer(time.Duration(*b))
	defer t.Stop()
	select {
	case <-t.C:
	case <-sooner:
	case <-stop:
	}
}

// troubleInterval is the shortest time between two calls of Trouble.
const troubleInterval = 5 * time.Second

func (l *Listener) tellTrouble(err error) {
	exhausted := conn.Exhausted(err)
	if exhausted {
		l.count.rejected[ReasonDescriptors].Inc()
		l.limits.gate.tellCrowded()
	}
	now := time.Now()
	if l.trouble == nil || !l.troubled.IsZero() && now.Sub(l.troubled) < troubleInterval {
		return
	}
	l.troubled = now
	if exhausted {
		err = fmt.Errorf("listener %s cannot accept connections and waits: %w; raise the limit of open files "+
			"(ulimit -n, or LimitNOFILE of the systemd unit) or set limits.max_connections below it", l.name, err)
	} else {
		err = fmt.Errorf("listener %s cannot accept connections and waits: %w", l.name, err)
	}
	l.trouble(err)
}

// queueTime limits two waits of a closing listener: for clients that have begun their handshakes, and, if the
// kernel accepts new handshakes, for new connections. A client sends a lost packet again after a second. A test
// uses a longer time.
var queueTime = 3 * time.Second

// finishQueue serves the connections in the accept queue of a closing listener, or leaves them to the other owner
// of a shared socket.
func (l *Listener) finishQueue() {
	if l.socket != nil && !l.socket.Shared() {
		l.emptyQueue()
	}
}

// emptyQueue accepts the connections whose handshake the kernel has completed, however long that takes on a busy
// machine. It waits for handshakes that have begun, so that closing the socket resets no client.
func (l *Listener) emptyQueue() {
	until := time.Now().Add(queueTime)
	handshakes := l.socket.RefuseNew()
	endless := handshakes == 0 // connections may arrive as fast as weir accepts them
	var wait backoff
	for l.somebodyComes(until, handshakes) && !(endless && time.Now().After(until)) {
		l.mu.Lock()                                       // Close sets the deadline that ended this Accept
		l.socket.SetDeadline(time.Now().Add(time.Second)) // a connection waits, unless the client has just closed it
		l.mu.Unlock()
		c, err := l.accept()
		switch {
		case err == nil:
			l.accepted(c, false)
		case routine(err):
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrClosed), time.Now().After(until):
			return
		case !errors.Is(err, os.ErrDeadlineExceeded):
			l.tellTrouble(err)
			wait.wait(nil, nil)
		}
	}
}

// somebodyComes waits until a connection is in the accept queue. It returns false if none
// will come: no handshake has begun, or none was completed before until. If the kernel does
// not report handshakes, it waits for the time handshakes.
func (l *Listener) somebodyComes(until time.Time, handshakes time.Duration) bool {
	at, err := netip.ParseAddrPort(l.ln.Addr().String())
	if err != nil || handshakes == 0 { // handshakes begin all the time, or there is no time to wait
		return l.socket.Waits(handshakes)
	}
	none := false // result of the last check; the kernel lists no handshake whose first packet it still processes
	for wait := time.Duration(0); !l.socket.Waits(wait); wait = handshakeInterval {
		begun, known := handshaking(at)
		switch {
		case !known:
			return l.socket.Waits(handshakes)
		case !begun && none: // handshakes completed before this are in the queue
			return l.socket.Waits(0)
		case time.Now().After(until):
			return false
		}
		none = !begun
	}
	return true
}

// handshakeInterval is how often the listener checks for incomplete handshakes.
const handshakeInterval = 20 * time.Millisecond

// accepted counts a new connection and starts its goroutine, or closes the connection if
// a limit is reached. judge: see gate.pass.
func (l *Listener) accepted(c *conn.Conn, judge bool) {
	s := l.settings.Load()
	l.count.accepted.Inc()
	l.tracker.arrivals.note(c.Peer.Addr())
	if n := l.open.Add(1); s.MaxConnections > 0 && n > int64(s.MaxConnections) {
		l.open.Add(-1)
		l.refuseAccepted(c, ReasonMaxConnections)
		return
	}
	if reason, ok := l.limits.open(); !ok {
		l.open.Add(-1)
		l.refuseAccepted(c, reason)
		return
	}
	if judge {
		l.limits.gate.take()
	}
	l.tracker.expect()
	go l.serve(c, s, judge)
}

// refuseAccepted closes a connection that was never admitted. It does little work,
// because in a flood it runs for most connections.
func (l *Listener) refuseAccepted(c *conn.Conn, reason Reason) {
	l.count.rejected[reason].Inc()
	c.Close()
	if l.refused != nil {
		l.refused(Refusal{Listener: l.name, Peer: c.Peer, Client: c.Peer, Reason: reason, Err: l.limitErrors[reason]})
	}
}

// limitErrors returns an error for every limit, which names the setting.
func limitErrors(name string) (errs [ReasonFairShare + 1]error) {
	for reason, setting := range [...]string{
		ReasonMaxConnections:    "listeners." + name + ".max_connections",
		ReasonMaxConnectionsAll: "limits.max_connections",
		ReasonPending:           "limits.pending",
		ReasonPendingPerSource:  "limits.pending_per_source",
		ReasonClientConnections: "limits.clients.connections",
		ReasonClientRate:        "limits.clients.rate",
	} {
		errs[reason] = fmt.Errorf("listener %s closed a new connection: %s is reached", name, setting)
	}
	errs[ReasonFairShare] = fmt.Errorf("listener %s closed a new connection: memory or file descriptors are running short, and the client network "+
		"(limits.clients.prefix) has used up its fair share; raise the limit of open files or the memory limit", name)
	return errs
}
