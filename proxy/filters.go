package proxy

import (
	"errors"
	"net/netip"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"
)

// This file is what filters see of an exchange: filter.Exchange documents the methods.

// Request returns the request.
func (x *exchange) Request() *message.Request { return &x.req }

// Host returns the normal form of the request's host.
func (x *exchange) Host() string {
	var buf [route.MaxHost]byte
	return string(route.AppendHost(buf[:0], x.req.Bytes(x.req.Host)))
}

// KnownLength returns the known length of the request's body.
func (x *exchange) KnownLength() int64 {
	if x.req.Length == message.Unknown {
		body, _ := x.body().BufferedBody()
		return int64(len(body))
	}
	return x.req.Length
}

// Origin returns where the connection comes from.
func (x *exchange) Origin() *conn.Origin { return x.origin }

// Client returns the client that sent the request.
func (x *exchange) Client() netip.AddrPort { return x.client }

// Trusts returns what weir accepts from the sender. If weir itself has verified a certificate,
// it accepts no information about another one: the two might belong to different clients.
func (x *exchange) Trusts() filter.Trust {
	if x.security.cert.sent() {
		return x.trusts &^ filter.TrustClientCert
	}
	return x.trusts
}

// Terminated reports whether weir terminates the client's TLS.
func (x *exchange) Terminated() bool { return x.security.Terminated() }

// OrdersHTTP01 reports whether weir obtains a certificate for the host by HTTP-01.
func (x *exchange) OrdersHTTP01() bool {
	return x.proxy.Challenges != nil && x.proxy.Challenges.OrdersHTTP01(x.Host())
}

// Certificate returns what routes know of the client's certificate.
func (x *exchange) Certificate() *filter.Certificate {
	if x.security.cert == nil {
		return nil
	}
	return x.security.cert.report
}

// RequestID returns the request's X-Request-Id, and makes one if there is none yet.
func (x *exchange) RequestID() []byte {
	x.identify()
	return x.req.Get(message.XRequestID)
}

// identify makes sure that the request has its X-Request-Id.
func (x *exchange) identify() {
	if !x.identified {
		x.identified = true
		x.edge.forwarding.Identify(x)
	}
}

// Protocol returns the version of HTTP.
func (x *exchange) Protocol() string {
	switch {
	case x.wire.Version() == "2":
		return "HTTP/2"
	case x.req.Minor == 0:
		return "HTTP/1.0"
	}
	return "HTTP/1.1"
}

// Started returns the time at which the exchange began.
func (x *exchange) Started() time.Time { return x.started }

// State returns what filters remember of the exchange.
func (x *exchange) State() *filter.State { return &x.filtered }

// Generated reports whether weir itself made the response.
func (x *exchange) Generated() bool { return x.reason != "" }

// Refuse answers the request with a refusal.
func (x *exchange) Refuse(r *message.Refusal) { x.reply(r) }

// Begin begins a response that weir generates.
func (x *exchange) Begin(status int, reason string) *message.Response {
	x.beginReply(status, reason)
	return &x.res
}

// Send sends the response that Begin began.
func (x *exchange) Send(body string) { x.endReply(body) }

// SetCause sets the error in the access log.
func (x *exchange) SetCause(err error) { x.err = err }

// SetUser sets the user's name in the access log.
func (x *exchange) SetUser(name string) { x.user = name }

// SetIdentity sets who sent the request.
func (x *exchange) SetIdentity(id *filter.Identity) { x.identity = id }

// Identity returns who sent the request.
func (x *exchange) Identity() *filter.Identity { return x.identity }

// GuardFailed refuses the request, and counts and logs that a guard could not decide. A client that
// has gone is no failure of the guard.
func (x *exchange) GuardFailed(guard string, r *message.Refusal, err error) {
	if errors.Is(err, errClientGone) { // the client has left
		reason := x.cutFor()
		if reason == "" {
			reason = "client_gone"
		}
		x.giveUp(&outcome{failure: clientGone, reason: reason, err: err})
		return
	}
	x.err = err
	if errors.Is(err, message.ErrMemory) { // no failure of the guard either
		x.reply(message.ErrMemory)
		return
	}
	x.reply(r)
	x.err = err // also if the client left before it got the reply
	x.route.metrics.get().guardFailed(guard, r.Reason).Inc()
	if x.proxy.GuardFailed != nil {
		x.proxy.GuardFailed(guard, x.newRecord(time.Now()))
	}
}

// CountGuard counts a request by the route, the guard and the reason of the response.
func (x *exchange) CountGuard(guard string, refused bool) {
	decided := "allowed"
	if refused {
		decided = x.reason
	}
	x.route.metrics.get().guard(guard, decided).Inc()
}

// Close makes this exchange the last one of its connection.
func (x *exchange) Close() { x.ended = true }
