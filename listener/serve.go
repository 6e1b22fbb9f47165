package listener

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
)

// admission is one connection from accept to close, and the counts that include it. All
// fields except the links belong to the goroutine that owns the connection.
type admission struct {
	l       *Listener
	c       *conn.Conn
	pending bool
	judge   bool         // there was no room: the client network decides whether the connection stays
	counted bool         // limits.clients counts it as open, under c.Network()
	source  conn.Network // the network that counts it as pending; invalid: it does not count

	shard      *shard
	next, prev *admission
}

// serve is the goroutine of a connection: admission, PROXY header, Handle.
func (l *Listener) serve(c *conn.Conn, s *Settings, judge bool) {
	a := &admission{l: l, c: c, pending: true, judge: judge}
	c.OnClose = a.close
	c.OnEstablished = a.established
	l.tracker.add(a)
	if l.admit(a, s.Policy) {
		s.Handle(c)
	}
}

// admit finds the client address, and counts the connection under its network. If it
// returns false, the connection is closed.
//
// A peer that must send PROXY headers is a load balancer, and the limit does not apply to
// it. If a PROXY header is used, the client in it counts. If it is discarded, the peer
// counts: an unverified address must neither use up another client's limit nor hide the
// sender from its own. The same addresses count for limits.clients, when they are final.
func (l *Listener) admit(a *admission, p *Policy) bool {
	rule := p.rule(a.c.Peer.Addr())
	mode := rule.mode
	switch mode {
	case config.HeaderNone:
		return a.identified() && a.countSource() && a.countClient()
	case config.HeaderOptional, config.HeaderDiscard:
		if !a.countSource() {
			return false
		}
	case config.HeaderRequire:
	default:
		a.refuseHeader(outcome{result: resultDenied}, p)
		return false
	}
	timeout := p.timeout
	if a.judge {
		timeout = min(timeout, judgeTimeout)
	}
	o := read(a.c, rule, a.c.Accepted.Add(timeout))
	if a.judge && o.result == resultLate && timeout < p.timeout {
		a.refuse(ReasonFairShare, false, l.limitErrors[ReasonFairShare])
		return false
	}
	if o.result.refused() {
		a.refuseHeader(o, p)
		return false
	}
	if o.result == resultCut {
		a.c.Close()
		return false
	}
	l.count.headers[o.result][o.version].Inc()
	if o.result == resultAccepted {
		a.c.NoteHeader(time.Since(a.c.Accepted))
	}
	if o.result != resultAccepted || mode == config.HeaderDiscard {
		return a.identified() && (mode == config.HeaderRequire || a.countClient()) // only the address of the socket is known
	}
	a.c.Header = o.header
	a.c.Client, a.c.Local = o.header.Source, o.header.Destination
	return a.identified() && a.countSource() && a.countClient()
}

// judgeTimeout is the time for the PROXY header of a connection for which there is no
// room. There are few places for such connections. A load balancer sends the header at
// once, or with the first bytes of the client.
const judgeTimeout = 250 * time.Millisecond

// identified is called when the client's address is final. If it returns false, the
// connection is closed.
func (a *admission) identified() bool {
	a.c.Identify(*a.l.limits.prefixes.Load())
	if !a.judge {
		return true
	}
	a.judge = false
	if a.l.limits.gate.judge(a.c.Network()) {
		return true
	}
	a.refuse(ReasonFairShare, false, a.l.limitErrors[ReasonFairShare])
	return false
}

// countSource counts the connection under the network of its client, and no longer under
// the previous one.
func (a *admission) countSource() bool {
	a.dropSource()
	key := a.l.limits.network(a.c.Client.Addr())
	if !a.l.limits.countSource(key) {
		a.refuse(ReasonPendingPerSource, false, a.l.limitErrors[ReasonPendingPerSource])
		return false
	}
	a.source = key
	return true
}

// countClient counts the connection of an identified client for limits.clients. If it returns
// false, the connection is closed.
func (a *admission) countClient() bool {
	counted, reason, ok := a.l.limits.clients.admit(a.c.Client.Addr(), a.c.Network())
	a.counted = counted
	if !ok {
		a.refuse(reason, false, a.l.limitErrors[reason])
	}
	return ok
}

func (a *admission) dropSource() {
	if a.source.IsValid() {
		a.l.limits.dropSource(a.source)
		a.source = conn.Network{}
	}
}

func (a *admission) established() {
	if a.pending {
		a.pending = false
		a.l.limits.pending.Add(-1)
		a.dropSource()
	}
}

func (a *admission) close() {
	a.established()
	if a.judge {
		a.l.limits.gate.giveUp()
	}
	if a.counted {
		a.l.limits.clients.drop(a.c.Network())
	}
	a.l.limits.connections.Add(-1)
	a.l.open.Add(-1)
	a.l.tracker.remove(a) // last, because a drain waits for it
}

// refuseHeader counts and refuses a connection because of its PROXY header.
func (a *admission) refuseHeader(o outcome, p *Policy) {
	a.l.count.headers[o.result][o.version].Inc()
	var err error
	switch o.result {
	case resultDenied:
		err = fmt.Errorf("proxy_protocol.%s denies connections from %v", p.name, a.c.Peer.Addr())
	case resultMissing:
		err = fmt.Errorf("proxy_protocol.%s requires a PROXY header from %v, but the connection begins with other bytes", p.name, a.c.Peer.Addr())
	case resultLate:
		err = fmt.Errorf("the PROXY header was not complete %v after accept (proxy_protocol.%s.header_timeout)", p.timeout, p.name)
	case resultTruncated:
		err = fmt.Errorf("the peer closed the connection before its PROXY header was complete: %w", o.err)
	default:
		err = o.err
		if errors.Is(err, header.ErrMixedFamilies) {
			err = fmt.Errorf("%w; to accept it, set mixed_families in the rule of proxy_protocol.%s for %v", err, p.name, a.c.Peer.Addr())
		}
	}
	a.refuse(o.result.reason(), o.silent && o.result == resultTruncated, err)
}

func (a *admission) refuse(reason Reason, silent bool, err error) {
	a.l.count.rejected[reason].Inc()
	a.c.Close()
	if a.l.refused != nil {
		a.l.refused(Refusal{Listener: a.l.name, Peer: a.c.Peer, Client: a.c.Client, Reason: reason, Silent: silent, Err: err})
	}
}

// outcome is the result of reading a PROXY header.
type outcome struct {
	result  result
	version int            // 0: no PROXY header began
	header  *header.Header // nil: none; the connection keeps only this part of the outcome
	silent  bool
	err     error
}

// reading is a PROXY header that is being read. Before the first byte it holds no buffer.
type reading struct {
	c    *conn.Conn
	buf  *conn.Buffer
	have int // bytes in buf
	size int // length of the header when it is complete
	err  error
}

// read reads a PROXY header, in any number of pieces, before the deadline. The bytes
// after the header become the next bytes of the connection.
func read(c *conn.Conn, rule rule, deadline time.Time) outcome {
	r := reading{c: c}
	c.SetReadDeadline(deadline)
	if err := c.Await(r.step); err != nil {
		r.err = err
	}
	c.SetReadDeadline(time.Time{})
	o := r.outcome(rule)
	conn.PutBuffer(r.buf)
	return o
}

// step reads once, and returns true if reading is over. Await calls it when bytes may be
// there.
func (r *reading) step() bool {
	if r.buf == nil {
		r.buf = conn.GetBuffer()
	}
	n, err := r.c.Read(r.buf[r.have:header.MaxSize])
	if err == conn.ErrWouldBlock {
		if r.have == 0 {
			conn.PutBuffer(r.buf)
			r.buf = nil
		}
		return false
	}
	r.have += n
	if n > 0 {
		r.size, r.err = header.Scan(r.buf[:r.have])
	}
	if err != nil && r.size == 0 && r.err == nil {
		r.err = err
	}
	return r.size > 0 || r.err != nil
}

func (r *reading) outcome(rule rule) outcome {
	mode := rule.mode
	o := outcome{err: r.err, silent: r.have == 0}
	if r.err == nil {
		h, err := header.Parse(r.buf[:r.size])
		if rule.mixed && errors.Is(err, header.ErrMixedFamilies) {
			err = nil
		}
		o.header, o.err = &h, err
	}
	if !errors.Is(o.err, header.ErrAbsent) && r.have > 0 {
		o.version = header.Began(r.buf[:r.have])
	}
	switch {
	case o.err == nil && o.header.Local:
		o.result = resultLocal
	case o.err == nil:
		o.result = resultAccepted
	case errors.Is(o.err, header.ErrAbsent) && mode == config.HeaderOptional:
		o.result = resultAbsent
	case errors.Is(o.err, header.ErrAbsent):
		o.result = resultMissing
	case errors.Is(o.err, header.ErrMalformed):
		o.result = resultMalformed
	case errors.Is(o.err, header.ErrChecksum):
		o.result = resultChecksum
	case errors.Is(o.err, conn.ErrCut):
		o.result = resultCut
	case errors.Is(o.err, os.ErrDeadlineExceeded):
		o.result = resultLate
	default:
		o.result = resultTruncated
	}
	r.finish(o, mode)
	return o
}

// finish makes the first byte after the PROXY header the next byte of the connection. It
// sets c.Header for discarded and local headers; admit sets it for accepted ones.
func (r *reading) finish(o outcome, mode config.HeaderMode) {
	if o.result.refused() || o.result == resultCut {
		return
	}
	r.c.BytesRead -= int64(r.size)
	if rest := r.buf[r.size:r.have]; len(rest) > 0 {
		r.c.Unread(append([]byte(nil), rest...))
	}
	switch {
	case mode == config.HeaderDiscard:
		r.c.Header = &header.Header{Version: o.version, Local: true}
	case o.result == resultLocal:
		r.c.Header = o.header
	}
}
