package proxy

import (
	"net/netip"
	"time"

	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/trace"
)

// exchange is a request, its response and its result.
type exchange struct {
	clientSide
	wire wire

	req message.Request
	res message.Response
	progress

	relay func() bool // x.attempts.relayReady, bound once

	privates *privates // of the client's connection; nil: HTTP/2 connections have none

	whole  bool // the request's body has arrived: no read waits for the client
	ended  bool // of a connection with one exchange at a time: this exchange is the last one
	broken bool // weir sent an incomplete response
}

// progress is the state of an exchange apart from its messages. It starts from zero with
// each exchange, so that no state of an earlier one can remain.
type progress struct {
	started  time.Time
	client   netip.AddrPort // the client that sent the request, see filter.Forwarding; port 0: unknown
	route    *Route
	attempts attempts // of the route's backend; zero: weir answered without it

	filtered filter.State // what the route's filters remember

	orphaned   bool // a reload removed the listener, or changed its protocol
	outlived   bool // a reload changed the host that its connection was made for, or revoked its certificate
	answered   bool // the response's head is in the output for the client
	identified bool // the request has its X-Request-Id, see RequestID
	visited    bool // the request's CDN-Loop has this visit too
	upgraded   bool
	kept       bool       // the endpoint of the attempt is the one that cookie names
	key        netip.Addr // by which a backend with balance: hash chooses an endpoint
	cookie     []byte     // of the client for sticky sessions of the backend; nil: none
	copies     *copies    // for the mirrors of the route; nil: none
	held       *heldBody  // the request's body, if a guard has read it; nil: none has
	paged      bool       // an error page has replaced the endpoint's response
	left       int        // bytes of the replaced response
	status     int
	reason     string           // of a response that weir generated, or of a failure
	user       string           // the authenticated user; empty: none
	identity   *filter.Identity // who sent the request; nil: unknown
	err        error            // the cause of the reason
	waited     time.Duration    // until the response's head
	packing    packing          // of the response's body
	arrived    int              // the size of the request's head as it arrived
	covered    int              // bytes that cover has charged
	trace      *trace.Trace     // nil: the exchange is not traced
	sent       int64            // bytes of the response's body, as the client gets it
}

// reset begins a new exchange; the request has been read already.
func (x *exchange) reset(now time.Time) { x.progress = progress{started: now} }

// serve serves the request that has been read. The caller then calls finish.
func (x *exchange) serve() {
	x.begin()
	if x.trusts != 0 {
		x.req.RestoreAsserted()
		x.client = x.edge.forwarding.FindClient(&x.req, x.origin.Client, x.trusts)
	}
	if challenges := (filter.HTTP01{Challenges: x.proxy.Challenges}); challenges.Answer(x) {
		return
	}
	x.edge.forwarding.DropAsserted(&x.req.Head)
	route, refusal := x.routeOf(&x.req)
	if t := x.proxy.tracer.Load(); t != nil {
		x.beginTrace(t, route)
	}
	if refusal != nil {
		if refusal == refuseGuardedPath {
			x.err = x.whyGuarded()
		}
		x.reply(refusal)
		return
	}
	x.route = route
	if !route.filters.Answer(x) {
		x.forward(route)
	}
}

// begin starts an exchange: it starts the clock, and takes the current table.
func (x *exchange) begin() {
	x.reset(time.Now())
	x.client, x.arrived = x.origin.Client, max(x.req.Size(), freeHead)
	if t := x.proxy.table.Load(); t != x.table && !x.follow(t) {
		x.ended, x.orphaned = true, true // this is the connection's last exchange
	}
}

// now returns the time. It reads only the monotonic clock, and time.Now also the wall clock.
func (x *exchange) now() time.Time { return x.started.Add(time.Since(x.started)) }

// answer answers a request that could not be read. The caller then calls finish.
func (x *exchange) answer(r *message.Refusal) {
	x.begin()
	x.ended = true
	x.reply(r)
}

// finish ends an exchange that did not become a tunnel. It counts and logs the exchange, and
// skips the rest of a body that has arrived.
func (x *exchange) finish(now time.Time) {
	x.releaseBody()
	x.unpack()
	if x.copies != nil {
		x.copies.end()
	}
	x.filtered.End()
	x.record(now)
	x.uncover()
}

// releaseBody skips the rest of a request's body that has arrived, and gives back the memory for it.
func (x *exchange) releaseBody() {
	if _, whole := x.wire.BufferedBody(); whole && !x.wire.BodyEnded() {
		x.wire.SkipBody()
	}
	if u := x.attempts.upload; u != nil {
		u.kept.free()
	}
	x.releaseHeld()
}

// forget prepares x for the pool. x keeps only the memory of its messages, emptied, and the
// function that is bound to x.
func (x *exchange) forget() {
	x.uncover()
	req, res := x.req, x.res
	req.Reset()
	res.Reset()
	*x = exchange{relay: x.relay}
	x.req, x.res = req, res
}

// abandon releases the resources of an exchange whose goroutine panics. The exchange is not
// used again.
func (x *exchange) abandon() {
	x.attempts.abandon()
	if e := x.packing.encoder; e != nil {
		x.account.Release(e.Coding().Memory()) // a panic may have left the encoder in any state
	}
	x.releaseHeld()
	x.uncover()
	x.filtered.End()
	if x.privates != nil {
		x.privates.drop()
	}
}
