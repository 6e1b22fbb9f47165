package soak

import (
	"errors"
	"io"
	"slices"
	"time"
)

// tolerated are the problems that a connection may have which asks for them:
// the other side need not bear faults, but it has to do so in silence or with
// an answer. Plaintext on TLS and wrong addresses are wrong on any connection.
var tolerated = map[role][]Kind{
	faulty:     {Reset, Closed, Handshake, UnexpectedStatus},
	openBody:   {Reset, Closed, UnexpectedStatus, ShortBody},
	slowReader: {Reset, Closed, UnexpectedStatus, ShortBody},
}

// settle counts how the connection ended.
func (l *link) settle(err error) {
	if err == nil {
		return
	}
	var c *cut
	switch {
	case errors.As(err, &c):
		l.sever(c)
	case errors.Is(err, errIdleEnd):
		l.run.endedIdle.Add(1)
	default:
		l.judge(problemOf(err))
	}
}

// judge decides whether p is an anomaly, or what a fault has led to.
func (l *link) judge(p *problem) {
	switch {
	case p.kind == timeIsUp || p.kind == Timeout && (l.mustEnd() || l.patient()):
		l.outcome(waiting)
	case !slices.Contains(tolerated[l.role], p.kind):
		l.anomaly(p)
	case p.kind == UnexpectedStatus:
		l.outcome(answered)
	default:
		l.outcome(closed)
	}
}

func (l *link) anomaly(p *problem) {
	e := Example{After: time.Since(l.run.start).Seconds(), Connection: l.number, Detail: p.detail}
	if l.tcp != nil {
		e.From = l.tcp.LocalAddr().String()
	}
	if l.run.Header > 0 {
		e.Client = l.client.String()
	}
	l.run.anomaly(p.kind, e)
}

// outcome counts what became of a connection with a role, once.
func (l *link) outcome(what string) {
	if l.role == ordinary || l.settled {
		return
	}
	l.settled = true
	l.run.outcome(string(l.role), what)
	if what == closed {
		l.run.givenUp.add(time.Since(l.began))
	}
	bad := map[string][]string{
		ExpectServed:   {answered, closed, weReset},
		ExpectUnserved: {served},
		ExpectClosed:   {served, answered},
	}
	if slices.Contains(bad[l.run.Expect], what) {
		l.anomaly(&problem{UnexpectedOutcome, "the connection was " + what})
	}
}

// sever cuts the connection, and looks at what the other side says to that.
func (l *link) sever(c *cut) {
	patience := time.Now().Add(l.run.Timeout)
	switch c.how {
	case CutReset:
		l.tcp.SetLinger(0)
		l.tcp.Close() // before TLS can say goodbye
		l.outcome(weReset)
		return
	case CutClose:
		l.tcp.CloseWrite()
	case CutSilent:
		patience = l.ends // or that of the run
	}
	l.until(patience, true)
	n, err := io.Copy(io.Discard, onlyReader{l.top})
	// Before the handshake what comes can be alerts at most, and HTTP/2 says
	// its SETTINGS to anybody.
	said := n > 0 && !l.overHTTP2() && (!l.wire.secure || l.top != l.wire)
	switch {
	case kindOf(err) == PlaintextOnTLS:
		l.anomaly(problemOf(err))
	case said:
		l.outcome(answered)
	case kindOf(err) == Timeout:
		l.outcome(waiting)
	default:
		l.outcome(closed)
	}
}

// onlyReader hides all methods but Read.
type onlyReader struct{ io.Reader }
