package soak

import (
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/header"
)

// A role is an intentional treatment of a connection.
type role string

const (
	ordinary   role = ""
	faulty     role = "faults"
	openBody   role = "open_bodies"
	slowReader role = "slow_readers"
)

// The outcomes of connections with a role.
const (
	served   = "served"
	answered = "answered" // with a status that was not expected, or after a cut
	closed   = "closed"   // by the other side, without an answer
	waiting  = "waiting"  // still open when the run ended, or Timeout after a cut
	weReset  = "reset_by_us"
)

// A link is one connection. It belongs to the goroutine of live, which closes it. Other
// goroutines may only call hurry and wake.
type link struct {
	run     *runner
	number  int64
	client  netip.Addr // the client address in the PROXY header; without one, the local address
	role    role
	faults  []Fault // the faults that are still to come
	began   time.Time
	ends    time.Time // when churn ends the connection; zero: never
	at      state
	counted bool // the outcome is counted

	wire  *wire
	top   io.ReadWriter // wire, or TLS over it
	ahead byte          // a byte that await has read, and Read has not
	has   bool
	speak speaker

	seat    seat     // in an open loop
	arrival *arrival // the arrival of the current request; nil: none

	lock   sync.Mutex
	tcp    *net.TCPConn
	idle   bool // the end of the run does not wait for the link
	called bool // it got an arrival while it was idle
}

// A speaker speaks a protocol on a link.
type speaker interface {
	// begin prepares the connection for the first request.
	begin() error
	// exchange makes one exchange. last: no other exchange may follow.
	exchange() (last bool, err error)
	// idleUntil serves the connection between exchanges, until t.
	idleUntil(t time.Time) error
}

func newLink(r *runner, number int64) *link {
	// Shares are distributed evenly over the connections, for any number of processes.
	_, spread := math.Modf(float64(number) * math.Phi)
	l := &link{run: r, number: number, began: time.Now()}
	switch u := Share(spread); {
	case u < r.SlowReaders:
		l.role = slowReader
	case u < r.SlowReaders+r.OpenBodies:
		l.role = openBody
	case len(r.Faults) > 0 && u >= 1-r.Faulty:
		l.role, l.faults = faulty, r.Faults
	}
	if r.Churn > 0 {
		// Connections must not end at the same time: their life is from half of Churn to
		// one and a half.
		_, when := math.Modf(float64(number) * math.Sqrt2)
		l.ends = l.began.Add(time.Duration((0.5 + when) * float64(r.Churn)))
	}
	if r.Header > 0 {
		l.client = nth(r.Clients, number)
	}
	l.seat.wake = l.wake
	switch r.Protocol {
	case HTTP1:
		l.speak = &http1Speaker{l}
	case HTTP2, GRPC:
		l.speak = newHTTP2Speaker(l)
	case WebSocket:
		l.speak = &webSocketSpeaker{link: l}
	default:
		l.speak = &rawSpeaker{l}
	}
	return l
}

// live runs the connection from the beginning to the end.
func (l *link) live() {
	defer l.move(nowhere)
	l.move(connecting)
	if err := apart(l.dial); err != nil {
		l.countEnd(during("connecting", err))
		return
	}
	defer l.close()
	err := l.talk()
	l.countEnd(err)
	if s, ok := l.speak.(*webSocketSpeaker); ok && err == nil {
		s.closeWebSocket()
	}
}

// talk does the handshake and all exchanges.
func (l *link) talk() error {
	l.move(handshaking)
	if err := apart(l.introduce); err != nil {
		return err
	}
	for first := true; ; first = false {
		if again, err := l.turn(first); !again {
			return err
		}
		l.move(exchanging)
		last, err := l.request()
		if err != nil || last {
			return err
		}
	}
}

// request makes one request, and counts it.
func (l *link) request() (last bool, err error) {
	began := l.latencyStart()
	err = apart(func() (err error) {
		last, err = l.speak.exchange()
		return err
	})
	if a := l.arrival; a != nil {
		l.arrival = nil
		if errors.Is(err, errIdleEnd) { // the target did not process the request
			l.run.queue.back(*a)
			return true, err
		}
		defer l.run.queue.ended(1)
	}
	if err != nil {
		return true, err
	}
	l.run.request(time.Since(began), l.untouched())
	l.outcome(served)
	if l.role == faulty { // the request with the fault is over
		l.role, l.faults = ordinary, nil
	}
	return last, nil
}

// latencyStart returns when the latency of the request begins: now, or when the request was
// due. It records the parts of the difference.
func (l *link) latencyStart() time.Time {
	now := time.Now()
	if l.arrival == nil {
		return now
	}
	due, free := l.arrival.due, l.seat.since
	l.run.waited.add(max(0, free.Sub(due)))
	if free.After(due) {
		due = free
	}
	l.run.behind.add(now.Sub(due))
	return l.arrival.due
}

// turn waits until the connection must make a request. It returns false if it must not make
// one.
func (l *link) turn(first bool) (again bool, err error) {
	switch {
	case l.run.queue != nil && l.role == ordinary:
		return l.nextArrival()
	case first:
		return true, nil
	}
	return l.awaitNext()
}

// nextArrival waits for a due request of the open loop.
func (l *link) nextArrival() (again bool, err error) {
	q := l.run.queue
	l.move(held)
	a, ok := q.take(&l.seat)
	if !ok {
		ends := l.ends
		if ends.IsZero() {
			ends = time.Now().Add(forever)
		}
		err = l.speak.idleUntil(ends)
		a, ok = q.cancel(&l.seat)
		l.lock.Lock()
		l.called = false
		l.lock.Unlock()
	}
	switch {
	case !ok:
		return false, err
	case err != nil:
		q.back(a)
		return false, err
	}
	l.arrival = &a
	return true, nil
}

// wake ends the wait of an idle connection that got an arrival.
func (l *link) wake() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.called = true
	if l.idle {
		l.tcp.SetDeadline(time.Unix(1, 0))
	}
}

// apart runs f in another goroutine, and waits for it. So the stack that f needs is freed
// before the connection is held: there are many held connections.
func apart(f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
	}()
	<-done
	return err
}

// untouched reports whether the other side alone determines how long things take.
func (l *link) untouched() bool { return len(l.faults) == 0 && !l.patient() }

// patient reports whether the link waits on purpose.
func (l *link) patient() bool { return l.role == openBody || l.role == slowReader }

// forever is longer than any run.
const forever = 1000 * time.Hour

// awaitNext waits for the next request. It returns false if there is none.
func (l *link) awaitNext() (again bool, err error) {
	l.move(held)
	next := time.Now().Add(forever)
	if l.run.Every > 0 && (l.run.Protocol != Raw || len(l.run.Send) > 0) {
		next = time.Now().Add(l.run.Every)
	}
	over := !l.ends.IsZero() && l.ends.Before(next)
	if over {
		next = l.ends
	}
	err = l.speak.idleUntil(next)
	return err == nil && !over && l.run.running(), err
}

func (l *link) move(to state) {
	l.run.move(l.at, to)
	l.at = to
}

func (l *link) dial() error {
	d := net.Dialer{Timeout: l.run.Timeout, KeepAlive: -1, Control: control(l.role == slowReader)}
	if len(l.run.From) > 0 {
		d.LocalAddr = &net.TCPAddr{IP: nth(l.run.From, l.number).AsSlice()}
	}
	began := time.Now()
	c, err := d.DialContext(l.run.life, "tcp", l.run.resolved.String())
	switch {
	case err != nil && l.run.life.Err() != nil:
		return errTimeIsUp
	case err != nil:
		return err
	}
	l.run.connect.add(time.Since(began))
	l.run.connected()
	if !l.client.IsValid() {
		l.client = c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
	}
	l.lock.Lock()
	l.tcp = c.(*net.TCPConn)
	l.lock.Unlock()
	l.wire = &wire{TCPConn: l.tcp, link: l}
	l.top = l.wire
	return nil
}

// introduce sends the PROXY header and does the handshake.
func (l *link) introduce() error {
	l.wire.secure = l.run.tls != nil
	if l.run.Header > 0 {
		h := header.Header{Source: l.clientPort(), Destination: l.run.resolved}
		text := header.Append(nil, l.run.Header, &h, header.Options{})
		err := l.send(Header, text, func(b []byte) error {
			_, err := l.Write(b)
			return err
		})
		if err != nil {
			return during("sending the header", err)
		}
	}
	if l.run.tls != nil {
		if err := l.handshake(); err != nil {
			return err
		}
	}
	l.wire.slow = l.role == slowReader
	return l.speak.begin()
}

func (l *link) handshake() error {
	began := time.Now()
	l.wire.hello = true
	c := tls.Client(l.wire, l.run.tls)
	l.refresh()
	if err := c.Handshake(); err != nil {
		return l.unshaken(during("the TLS handshake", err))
	}
	if want := l.run.tls.NextProtos; l.overHTTP2() && want[0] != c.ConnectionState().NegotiatedProtocol {
		return problemf(Handshake, "the target did not select %s (ALPN)", want[0])
	}
	if l.untouched() {
		l.run.handshake.add(time.Since(began))
	}
	l.top = c
	return nil
}

func (l *link) overHTTP2() bool { return l.run.Protocol == HTTP2 || l.run.Protocol == GRPC }

// unshaken examines the error that ended a handshake.
func (l *link) unshaken(err error) error {
	switch kindOf(err) {
	case Malformed:
		return &problem{Handshake, err.Error()}
	case Reset, Closed: // the other side may have sent plaintext before, and it is not read yet
		if _, last := io.Copy(io.Discard, onlyReader{l.wire}); kindOf(last) == PlaintextOnTLS {
			return last
		}
	}
	return err
}

// clientPort returns the made-up client address with a made-up port.
func (l *link) clientPort() netip.AddrPort {
	return netip.AddrPortFrom(l.client, uint16(1024+l.number%64000))
}

// send sends a part with write, and makes the faults of this part.
func (l *link) send(part Part, b []byte, write func([]byte) error) error {
	at := 0
	if len(l.faults) > 0 {
		for _, f := range faultsOf(l.faults, part, len(b)) {
			if to := f.at(len(b)); to > at {
				if err := write(b[at:to]); err != nil {
					return err
				}
				at = to
			}
			if err := l.strike(&f); err != nil {
				return err
			}
		}
	}
	if at == len(b) {
		return nil
	}
	return write(b[at:])
}

// strike makes a fault happen.
func (l *link) strike(f *Fault) error {
	if f.Cut != "" {
		return &cut{f.Cut}
	}
	gone, err := l.wire.ended(f.Delay)
	l.refresh() // the delay must not count as a wait for the other side
	if err == nil && gone {
		err = io.EOF
	}
	return during("during a delay in the "+string(f.Part), err)
}

// Read returns the byte that await has read, and then reads from top.
func (l *link) Read(p []byte) (int, error) {
	if l.has && len(p) > 0 {
		p[0], l.has = l.ahead, false
		return 1, nil
	}
	l.refresh()
	return l.top.Read(p)
}

func (l *link) Write(p []byte) (int, error) {
	l.refresh()
	return l.top.Write(p)
}

// await waits until a byte can be read, or until t.
func (l *link) await(t time.Time) (ready bool, err error) {
	if l.has {
		return true, nil
	}
	l.until(t, true)
	var one [1]byte
	_, err = io.ReadFull(l.top, one[:])
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return false, nil
	case err != nil:
		return false, err
	}
	l.ahead, l.has = one[0], true
	return true, nil
}

// refresh gives the other side Timeout for the next step. A connection that waits on
// purpose has time until the end of its life or of the run.
func (l *link) refresh() {
	if l.patient() {
		l.until(l.ends, true)
		return
	}
	l.until(time.Now().Add(l.run.Timeout), false)
}

// until sets the deadline of reads and writes. With idle, the end of the run does not
// wait for the link.
func (l *link) until(t time.Time, idle bool) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.idle = idle
	if l.mustEnd() || l.idle && l.called {
		t = time.Unix(1, 0)
	}
	l.tcp.SetDeadline(t)
}

func (l *link) mustEnd() bool {
	phase := l.run.phase.Load()
	return phase == over || phase == stopping && l.idle
}

// hurry ends the waits of the link if the new phase of the run requires that.
func (l *link) hurry() {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.tcp != nil && l.mustEnd() {
		l.tcp.SetDeadline(time.Unix(1, 0))
	}
}

func (l *link) close() {
	if l.run.running() { // otherwise the last interval of the time series would show all open connections
		defer l.run.disconnected()
	}
	if c, ok := l.top.(*tls.Conn); ok {
		c.Close() // sends close_notify
		return
	}
	l.tcp.Close()
}
