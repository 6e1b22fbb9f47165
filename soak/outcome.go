package soak

import (
	"errors"
	"io"
	"slices"
	"time"
)

// tolerated has for each role the problems that are no anomalies. The other side need not
// accept faults, but it must close the connection silently or send an answer. Plaintext
// on TLS and wrong addresses are wrong on any connection.
var tolerated = map[role][]Kind{
	faulty:     {Reset, Closed, Handshake, UnexpectedStatus},
	openBody:   {Reset, Closed, UnexpectedStatus, ShortBody},
	slowReader: {Reset, Closed, UnexpectedStatus, ShortBody},
}

// countEnd counts how the connection ended. nil: as planned.
func (l *link) countEnd(err error) {
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

// judge decides whether p is an anomaly, or an expected result of a fault.
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

// outcome counts the outcome of a connection with a role, once.
func (l *link) outcome(what string) {
	if l.role == ordinary || l.counted {
		return
	}
	l.counted = true
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

// sever cuts the connection, and evaluates the reaction of the other side.
func (l *link) sever(c *cut) {
	patience := time.Now().Add(l.run.Timeout)
	switch c.how {
	case CutReset:
		l.tcp.SetLinger(0)
		l.tcp.Close() // before TLS can send its close_notify
		l.outcome(weReset)
		return
	case CutClose:
		l.tcp.CloseWrite()
	case CutSilent:
		patience = l.ends // or the end of the run
	}
	l.until(patience, true)
	n, err := io.Copy(io.Discard, onlyReader{l.top})
	// Before the handshake, the other side can only send alerts. With HTTP/2 it sends its
	// SETTINGS to every client. Neither is an answer.
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
