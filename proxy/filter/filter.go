// Package filter has what a route or a listener does to requests and responses in addition to
// forwarding them. Each feature is one file. A filter implements only the interfaces that it
// needs: Answerer, TunnelGuard, BodyGuard, RequestEditor, TrailerEditor, ResponseEditor.
package filter

import (
	"net/netip"
	"slices"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Exchange is a request and its response, as filters see them. The exchange of package proxy
// implements it. A filter must not use it after its method has returned.
type Exchange interface {
	// Request returns the request. In EditRequest it is the request for the endpoint.
	Request() *message.Request
	// Host returns the host of the request in lower case, without port and trailing dot.
	Host() string
	// HoldBody reads the whole body of the request, if it has at most most bytes, and keeps it for the
	// endpoint. The filter must not change it. ok is false if HoldBody has answered the request, because
	// the body is larger or did not arrive. The request of a tunnel has no body.
	HoldBody(most int) (body []byte, ok bool)
	// KnownLength returns the length of the request's body, as far as it is known: the whole
	// length if the client declared it, or if the body has arrived; otherwise a part of it.
	KnownLength() int64

	// Origin returns where the connection comes from. The filter must not change it.
	Origin() *conn.Origin
	// Client returns the client that sent the request; port 0: unknown.
	Client() netip.AddrPort
	// Trusts returns the information about clients that weir accepts from the sender of
	// this request.
	Trusts() Trust
	// Terminated reports whether weir terminates the client's TLS.
	Terminated() bool
	// OrdersHTTP01 reports whether weir itself obtains a certificate for the host of the request by
	// HTTP-01 challenges.
	OrdersHTTP01() bool
	// Secure reports whether the client used TLS: to weir, or by the PROXY header to the
	// sender of that header.
	Secure() bool

	// Certificate returns what weir knows of the certificate of the client if the TLS policy leaves
	// the decision about it to routes; nil: the policy does not, or there is no TLS.
	Certificate() *Certificate

	// Protocol returns the version of HTTP, such as HTTP/1.1.
	Protocol() string
	// Started returns the time at which weir had read the head of the request.
	Started() time.Time
	// State returns what filters remember of the exchange.
	State() *State

	// Generated reports whether weir itself made the response, and no endpoint.
	Generated() bool

	// RequestID returns the value of the request's only X-Request-Id, valid until the request
	// changes. The first call drops an id that weir does not trust, and makes a new one.
	RequestID() []byte

	// RefusePath returns why weir would refuse the request if it had this path instead of its own,
	// because the path is another spelling of one that is guarded; nil: it would not.
	RefusePath(path []byte) *message.Refusal
	// Refuse answers the request with a refusal.
	Refuse(r *message.Refusal)
	// Begin begins another response of weir, of type text/plain. The filter may add HTTP
	// headers, and then calls Send. reason is the reason in metrics and the log.
	Begin(status int, reason string) *message.Response
	// Send sends the response that Begin began.
	Send(body string)
	// SetCause sets why the request is refused, for the access log only: clients must not learn it.
	SetCause(err error)
	// Close makes this exchange the last one of an HTTP/1.1 connection. Call it before the
	// response begins.
	Close()

	// SetUser sets the name of the authenticated user, for the access log.
	SetUser(name string)
	// SetIdentity sets the authenticated sender of the request. Identity returns it; nil: no guard
	// has authenticated the sender.
	SetIdentity(id *Identity)
	Identity() *Identity
	// Ask sends a request to a server and waits for the response, which q.Read gets. The error
	// says why there is no complete response.
	Ask(q *Question) error
	// Wait waits until event is closed, but not longer than patience. happened reports whether
	// it was closed. gone is not nil if the client has gone meanwhile, or if weir ends its
	// connection; GuardFailed takes it.
	Wait(event <-chan struct{}, patience time.Duration) (happened bool, gone error)
	// GuardFailed answers the request with a refusal because a guard could not decide, for
	// example because a server did not answer. It counts and logs the failure. err is the cause.
	GuardFailed(guard string, r *message.Refusal, err error)
	// CountGuard counts a request that a guard has allowed or refused. If it was refused, the
	// response has been sent.
	CountGuard(guard string, refused bool)
}

// Answerer may answer a request, so that no endpoint gets it.
type Answerer interface {
	// Answer returns true if it has answered the request.
	Answer(x Exchange) bool
}

// Guard is an Answerer that answers only the requests that it refuses. Metrics count what it
// allows and refuses.
type Guard interface {
	Answerer
	// GuardName returns the key of the guard in a route, such as rate_limit.
	GuardName() string
}

// BodyGuard may refuse a request because of its body, while the body arrives.
type BodyGuard interface {
	// GuardBody returns why weir refuses the request, or nil. n is the number of bytes that
	// have arrived.
	GuardBody(n int64) *message.Refusal
}

// TunnelGuard is a Guard that also decides on connections that are to become tunnels.
type TunnelGuard interface {
	Guard
	// GuardTunnel returns why weir refuses the connection of a client, or nil. Port 0: the
	// client is unknown. s is the state of the tunnel.
	GuardTunnel(client netip.AddrPort, s *State) *message.Refusal
}

// RequestEditor changes requests before an endpoint gets them.
type RequestEditor interface {
	EditRequest(x Exchange)
}

// TrailerEditor changes the trailers of requests before an endpoint gets them.
type TrailerEditor interface {
	EditTrailers(trailers *message.Head)
}

// ResponseEditor changes the HTTP headers of every final response: the endpoint's, and weir's
// own ones.
type ResponseEditor interface {
	EditResponse(x Exchange, res *message.Response)
}

// Chain is the filters of a route, in their order of effect. A nil Chain has none. It is
// immutable after Compile.
type Chain struct {
	answerers []answerer
	tunnels   []TunnelGuard
	bodies    []BodyGuard
	requests  []RequestEditor
	trailers  []TrailerEditor
	responses []ResponseEditor
	names     []string // of all filters
}

// answerer is an Answerer and, if it is a Guard, its name.
type answerer struct {
	Answerer
	guard string // empty: it is no guard
}

// Compile makes the filters of a route. Their order here is their order of effect. It returns
// nil if the route has none. shared has the objects that the route's settings name; it may be
// nil for routes that name none.
func Compile(r *config.Route, shared *SharedPlan) *Chain {
	var c Chain
	if r.ClientCert != nil {
		c.add(newCertRules(r.ClientCert))
	}
	s := newScript(r.Script)
	if s != nil && len(s.host)+len(s.locations) > 0 {
		c.add(&scriptSteps{s, s.host, true})
	}
	if r.CORS != nil && r.CORS.AsNginx {
		c.add(newNginxCORS(r.CORS))
	} else if r.CORS != nil {
		c.add(preflights{})
	}
	if s != nil && len(s.location) > 0 {
		c.add(&scriptSteps{s, s.location, false})
	}
	switch {
	case r.Redirect == nil:
	case r.Redirect.Moves():
		c.add(newMove(r))
	default:
		c.add(&redirect{to: *r.Redirect, always: r.OnlyRedirects()})
	}
	if r.Limits != nil {
		c.add(newObjectLimits(r.Limits, shared))
	}
	if r.Clients != nil {
		c.add(newClients(r.Clients, r.Satisfy == config.SatisfyAny))
	}
	if r.RateLimit != "" {
		c.add(newRateGuard(r.Name, shared.rates[r.RateLimit]))
	}
	if r.InFlight != nil {
		c.add(newInFlight(r.InFlight, shared.slots[r.Name], shared.prefixes))
	}
	if r.Auth != "" {
		c.add(newAuth(r, shared))
	}
	if r.MaxBody > 0 {
		c.add(maxBody(r.MaxBody))
	}
	if r.Respond != nil {
		c.add(newRespond(r.Respond))
	}
	if r.Request != nil {
		c.add(newRequestEdits(r.Request))
	}
	if r.Rewrite != nil {
		c.add(newRewrite(r))
	}
	if r.Reverse != nil {
		c.add(newReverse(r.Reverse))
	}
	if r.Response != nil {
		c.add(newResponseEdits(r.Response))
	}
	if s != nil {
		if r.HSTS != nil { // ingress-nginx sets it before the snippets, so they can replace it
			c.add(newHSTS(r.HSTS))
		}
		c.add(&scriptHeaders{s})
		if r.Response != nil && len(r.Response.Set) > 0 { // ingress-nginx sets custom-headers after the snippets
			c.add(newResponseEdits(&config.HeaderEdits{Set: r.Response.Set}))
		}
	}
	if r.CORS != nil && !r.CORS.AsNginx {
		c.add(newCORS(r.CORS))
	}
	if r.HSTS != nil && s == nil {
		c.add(newHSTS(r.HSTS))
	}
	if len(c.answerers)+len(c.bodies)+len(c.requests)+len(c.responses) == 0 {
		return nil
	}
	return &c
}

// ForBackend returns the filters of c, which may be nil, and the changes of requests for one of
// several backends.
func (c *Chain) ForBackend(edits *config.HeaderEdits) *Chain {
	if edits == nil {
		return c
	}
	var all Chain
	if c != nil {
		all = *c
	}
	all.requests, all.trailers, all.names = slices.Clip(all.requests), slices.Clip(all.trailers), slices.Clip(all.names)
	all.add(newRequestEdits(edits))
	return &all
}

// add adds a filter to the end of each list that it belongs to.
func (c *Chain) add(f any) {
	if key := keyOf(f); !slices.Contains(c.names, key) { // cors works on requests and responses
		c.names = append(c.names, key)
	}
	if a, is := f.(Answerer); is {
		entry := answerer{Answerer: a}
		if g, is := f.(Guard); is {
			entry.guard = g.GuardName()
		}
		c.answerers = append(c.answerers, entry)
	}
	if g, is := f.(TunnelGuard); is {
		c.tunnels = append(c.tunnels, g)
	}
	if b, is := f.(BodyGuard); is {
		c.bodies = append(c.bodies, b)
	}
	if e, is := f.(RequestEditor); is {
		c.requests = append(c.requests, e)
	}
	if e, is := f.(TrailerEditor); is {
		c.trailers = append(c.trailers, e)
	}
	if e, is := f.(ResponseEditor); is {
		c.responses = append(c.responses, e)
	}
}

// Answer returns true if a filter has answered the request.
func (c *Chain) Answer(x Exchange) bool {
	if c == nil {
		return false
	}
	for i := range c.answerers {
		f := &c.answerers[i]
		answered := f.Answer(x)
		if f.guard != "" {
			x.CountGuard(f.guard, answered)
		}
		if answered {
			return true
		}
	}
	return false
}

// Play runs only the filters that need nothing but the head of the request and the client's address:
// they change the URL, redirect, answer preflights, run the steps of snippets, or refuse the client. Only snippets refuse
// an unknown client. Play returns true if a filter has answered the request.
func (c *Chain) Play(x Exchange) bool {
	if c == nil {
		return false
	}
	for i := range c.answerers {
		switch f := c.answerers[i].Answerer.(type) {
		case preflights, *nginxCORS, *rewrite, *move, *redirect, *scriptSteps:
			if f.Answer(x) {
				return true
			}
		case *clients:
			if x.Client().Addr().IsValid() && f.Answer(x) {
				return true
			}
		}
	}
	return false
}

// GuardTunnel returns why a guard refuses the connection of a client, which is to become a
// tunnel, or nil. It calls count for each guard that has decided, with its name and "allowed" or
// the reason of the refusal.
func (c *Chain) GuardTunnel(client netip.AddrPort, s *State, count func(guard, result string)) *message.Refusal {
	if c == nil {
		return nil
	}
	for _, g := range c.tunnels {
		if r := g.GuardTunnel(client, s); r != nil {
			count(g.GuardName(), r.Reason)
			return r
		}
		count(g.GuardName(), "allowed")
	}
	return nil
}

// GuardBody returns why a filter refuses the request, of whose body n bytes have arrived, or
// nil.
func (c *Chain) GuardBody(n int64) *message.Refusal {
	if c == nil {
		return nil
	}
	for _, f := range c.bodies {
		if r := f.GuardBody(n); r != nil {
			return r
		}
	}
	return nil
}

// EditRequest lets the filters change the request.
func (c *Chain) EditRequest(x Exchange) {
	if c == nil {
		return
	}
	for _, f := range c.requests {
		f.EditRequest(x)
	}
}

// EditTrailers lets the filters change the trailers of the request.
func (c *Chain) EditTrailers(trailers *message.Head) {
	if c == nil {
		return
	}
	for _, f := range c.trailers {
		f.EditTrailers(trailers)
	}
}

// EditResponse lets the filters change a final response.
func (c *Chain) EditResponse(x Exchange, res *message.Response) {
	if c == nil {
		return
	}
	for _, f := range c.responses {
		f.EditResponse(x, res)
	}
}
