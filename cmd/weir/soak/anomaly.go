package soak

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Kind is what kind of thing was not as it has to be.
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
	Local             Kind = "local"
)

// kinds says of each what it means.
var kinds = map[Kind]string{
	PlaintextOnTLS:    "bytes that are no TLS came on a TLS connection",
	WrongAddress:      "another client address was seen than the connection's, or none",
	Reset:             "the connection, or its stream, was reset",
	Timeout:           "nothing came for as long as --timeout",
	ShortBody:         "a response ended before its end",
	Refused:           "the connection was refused, or there was no way there",
	UnexpectedStatus:  "a response had another status than --status allows",
	Closed:            "the connection was closed where a response was due",
	Handshake:         "the TLS handshake failed",
	Malformed:         "what came is not what the protocol allows",
	UnexpectedReply:   "what came does not match --reply",
	UnexpectedOutcome: "a connection with faults did not end as --expect has it",
	Local:             "this machine has no descriptors, ports or memory left, or not the address of --from: the run is not what was asked for",
}

// Anomaly is one kind of what was found.
type Anomaly struct {
	Kind     Kind      `json:"kind"`
	What     string    `json:"what"`
	Count    int64     `json:"count"`
	Examples []Example `json:"examples"` // the first ones
}

// Example is one time that it happened.
type Example struct {
	After      float64 `json:"after_seconds"` // since the start of the run
	Connection int64   `json:"connection"`
	From       string  `json:"from"`             // the local address
	Client     string  `json:"client,omitempty"` // that of the header
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

// The kinds of problems that are none: the run ended, or the connection did in
// a way that it may.
const (
	timeIsUp Kind = "time_is_up"
	none     Kind = "none"
)

var errTimeIsUp error = &problem{timeIsUp, "the run ended"}

// errIdleEnd means that the other side closed a connection between exchanges,
// or said that it will take no more of them. It may.
var errIdleEnd = errors.New("the connection was closed while idle")

// A cut is the error with which a connection ends that is cut on purpose.
type cut struct{ how string }

func (c *cut) Error() string { return "the connection was cut on purpose: " + c.how }

// problemOf finds out what kind of problem err is.
func problemOf(err error) *problem {
	var (
		p       *problem
		c       *cut
		timeout net.Error
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
	case is(syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.EACCES):
		return &problem{Local, err.Error()}
	case is(syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH):
		return &problem{Refused, err.Error()}
	case is(syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED):
		return &problem{Reset, err.Error()}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &problem{Timeout, err.Error()}
	case is(io.EOF, io.ErrUnexpectedEOF, net.ErrClosed):
		return &problem{Closed, err.Error()}
	}
	return &problem{Malformed, err.Error()}
}

// kindOf is the kind of problem that err is, if it is one.
func kindOf(err error) Kind {
	if err == nil {
		return ""
	}
	return problemOf(err).kind
}

// during adds to err what was being done, and keeps its kind.
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
