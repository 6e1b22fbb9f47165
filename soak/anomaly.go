package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Kind is a kind of anomaly.
type Kind string

// The kinds.
const (
	PlaintextOnTLS    Kind = "plaintext_on_tls"
	WrongAddress      Kind = "wrong_address"
	Reset             Kind = "reset"
	Timeout           Kind = "timeout"
	ShortBody         Kind = "short_body"
	Refused           Kind = "refused"
	UnexpectedStatus  Kind = "unexpected_status"
	Closed            Kind = "closed"
	Handshake         Kind = "handshake"
	Malformed         Kind = "malformed"
	UnexpectedReply   Kind = "unexpected_reply"
	UnexpectedOutcome Kind = "unexpected_outcome"
	MissingTrailers   Kind = "missing_trailers"
	Unsent            Kind = "unsent"
	Local             Kind = "local"
)

// kinds has the meaning of each kind.
var kinds = map[Kind]string{
	PlaintextOnTLS:    "the target sent bytes that are not TLS on a TLS connection",
	WrongAddress:      "the target saw a wrong client address, or none",
	Reset:             "the connection, or its stream, was reset",
	Timeout:           "the target did not answer within --timeout",
	ShortBody:         "a response ended before all of its body arrived",
	Refused:           "connect refused: the target refused the connection, or there is no route to it",
	UnexpectedStatus:  "a response had another status than --status or --grpc-status allows",
	Closed:            "the connection was closed before a response arrived",
	Handshake:         "the TLS handshake failed",
	Malformed:         "the target sent something that the protocol does not allow",
	UnexpectedReply:   "the reply does not match --reply, or is not the echo of the message",
	UnexpectedOutcome: "a connection with faults did not end as --expect requires",
	MissingTrailers:   "a gRPC response ended without the trailer grpc-status",
	Unsent:            "a request of an open loop was due, and no connection was free for it within --timeout",
	Local:             "this machine ran out of descriptors, ports or memory, or does not have the address of --from, so the run is incomplete",
}

// Anomaly is one kind of anomaly in a report.
type Anomaly struct {
	Kind     Kind      `json:"kind"`
	What     string    `json:"what"`
	Count    int64     `json:"count"`
	Examples []Example `json:"examples"` // the first ones
}

// Example is one occurrence of an anomaly.
type Example struct {
	After      float64 `json:"after_seconds"` // since the start of the run
	Connection int64   `json:"connection"`
	From       string  `json:"from"`             // the local address
	Client     string  `json:"client,omitempty"` // the address in the PROXY header
	Detail     string  `json:"detail"`
}

// A problem is an error whose kind is known.
type problem struct {
	kind   Kind
	detail string
}

func (p *problem) Error() string { return p.detail }

func problemf(kind Kind, format string, args ...any) error {
	return &problem{kind, fmt.Sprintf(format, args...)}
}

// These kinds are not anomalies: the run ended, or the connection ended in an allowed
// way.
const (
	timeIsUp Kind = "time_is_up"
	none     Kind = "none"
)

var errTimeIsUp error = &problem{timeIsUp, "the run ended"}

// errIdleEnd: the other side closed a connection between exchanges, or reported that it
// takes no more exchanges. Both are allowed.
var errIdleEnd = errors.New("the connection was closed while idle")

// A cut is the error of a connection that is cut on purpose.
type cut struct{ how string }

func (c *cut) Error() string { return "the connection was cut on purpose: " + c.how }

// problemOf returns the problem that err means.
func problemOf(err error) *problem {
	var (
		p       *problem
		c       *cut
		timeout net.Error
		op      *net.OpError
		closing *closeFrame
	)
	is := func(any ...error) bool {
		for _, one := range any {
			if errors.Is(err, one) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &c) || errors.Is(err, errIdleEnd):
		return &problem{none, err.Error()}
	case errors.As(err, &closing):
		return &problem{Closed, err.Error()}
	case is(syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.EACCES):
		return &problem{Local, err.Error()}
	case is(syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH):
		return &problem{Refused, err.Error()}
	case is(syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED):
		return &problem{Reset, err.Error()}
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert, which in TLS 1.3 may arrive after the handshake
		return &problem{Handshake, err.Error()}
	case is(os.ErrDeadlineExceeded, context.DeadlineExceeded):
		return &problem{Timeout, "it took longer than --timeout"}
	case errors.As(err, &timeout) && timeout.Timeout(): // a timeout of the kernel
		return &problem{Timeout, err.Error()}
	case is(io.EOF, io.ErrUnexpectedEOF, net.ErrClosed):
		return &problem{Closed, err.Error()}
	}
	return &problem{Malformed, err.Error()}
}

// kindOf returns the kind of problem that err is; "": err is nil.
func kindOf(err error) Kind {
	if err == nil {
		return ""
	}
	return problemOf(err).kind
}

// during adds the current action to err, and keeps its kind.
func during(what string, err error) error {
	if err == nil {
		return nil
	}
	p := problemOf(err)
	if p.kind == none {
		return err
	}
	return &problem{p.kind, what + ": " + p.detail}
}
