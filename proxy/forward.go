package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
)

// exchange is a request, its response and what became of them.
type exchange struct {
	req message.Request
	res message.Response
	progress

	bytesRead, bytesWritten int64 // of the connection when the exchange began
}

// progress is what an exchange knows beside its messages. It starts from
// nothing with each one, so that nothing of an earlier one can be left in it.
type progress struct {
	started  time.Time
	route    *Route
	endpoint *backend.Endpoint
	held     *backend.Endpoint // endpoint, until it is released
	link     *backend.Session  // the connection to the endpoint, while there is one
	phase    phase
	upload   *upload   // sends a body that did not come with its head; nil: it did
	until    time.Time // when the wait for the endpoint ends
	lookAt   time.Time // when to look after the client meanwhile
	moved    bool      // some of the body came since until was set

	trouble  trouble
	attempts int
	answered bool // the response's head was gathered for the client
	upgraded bool
	status   int
	reason   string // of an answer that is weir's own
	err      error  // behind the reason
	connect  time.Duration
	waited   time.Duration // until the response's head
}

// reset begins a new exchange; the request was read already.
func (x *exchange) reset(now time.Time) { x.progress = progress{started: now} }

// phase is how far an exchange is with its endpoint.
type phase uint8

const (
	sending phase = iota
	awaitingHead
	relayingBody
)

// trouble is how an attempt failed.
type trouble uint8

const (
	none       trouble = iota
	stale              // the idle connection had ended; nothing was sent
	unsent             // there was no connection
	unanswered         // a reused connection ended before any byte of the response
	failed             // the endpoint gave no proper response head
	cutShort           // the response broke off behind its head
	clientGone         // the client broke off, or sent no proper body
)

// forward takes the request to an endpoint of the route's backend and its
// response to the client; where that fails and may be repeated, to another one.
func (s *session) forward(r *Route) {
	b := r.backend
	s.rewrite(b.Settings().Host)
	client := s.conn.Client.Addr()
	var avoid *backend.Endpoint
	for fresh := false; ; {
		e, err := b.Acquire(client, avoid, time.Time{})
		if err != nil {
			s.unavailable(err)
			return
		}
		s.endpoint, s.held = e, e
		s.attempts++
		if b.Settings().MaxConnections == 0 || !s.goneInQueue() {
			s.attempt(e, fresh)
		}
		if s.upgraded {
			return // the endpoint is released when its tunnel ends
		}
		s.held = nil
		e.Release()
		if s.trouble == none {
			return
		}
		if !s.mayRetry(b) {
			s.giveUp()
			return
		}
		avoid = e
		fresh = fresh || s.trouble == unanswered // another idle connection may have ended as well
	}
}

// attempt tries one endpoint: by an idle connection if one is alive, else by a new one.
func (s *session) attempt(e *backend.Endpoint, fresh bool) {
	shared := e.Backend().Settings().SendProxy == 0 // a header names one client for good
	for shared && !fresh {
		link := e.Idle()
		if link == nil {
			break
		}
		if s.talk(link); s.trouble != stale {
			return
		}
	}
	link, err := s.dial(e)
	if err != nil {
		e.Failed(err)
		s.fail(unsent, dialStatus(err), "connect", err)
		return
	}
	link.HTTP.Init(link.RW, *s.proxy.limits.Load())
	s.talk(link)
}

func (s *session) dial(e *backend.Endpoint) (*backend.Session, error) {
	begun := time.Now()
	link, err := e.Dial(context.Background(), s.proxy.outgoing(s.conn, s.tls, s.sni, s.policy))
	s.connect = time.Since(begun)
	return link, err
}

// talk runs the exchange over one connection to the endpoint, which is kept
// afterwards if another exchange may follow on it.
func (s *session) talk(link *backend.Session) {
	s.link, s.trouble, s.phase = link, none, sending
	s.status, s.reason, s.err = 0, "", nil // of the attempt before
	settings := s.exchange.route.backend.Settings()
	link.Conn.WriteTimeout = settings.Timeouts.BodyIdle
	begun := s.started
	if s.attempts > 1 || !link.Reused || settings.MaxConnections > 0 { // it was tried, dialled or queued before
		begun = time.Now()
	}
	s.waitFor(begun, settings.Timeouts.ResponseHead)
	s.conn.Link(link.Conn)
	if s.inAwait {
		s.talkAwaiting(link)
	} else {
		s.talkUploading(link, settings.Timeouts.ResponseHead)
	}
	if s.upgraded {
		return
	}
	s.conn.Link(nil)
	s.link = nil
	if s.mayKeep(link) {
		link.HTTP.Release()
		s.endpoint.Keep(link)
		return
	}
	link.HTTP.Close()
	link.Close()
}

// talkAwaiting is talk for a request that is there as a whole.
func (s *session) talkAwaiting(link *backend.Session) {
	err := link.Conn.Await(s.relay)
	for err != nil && s.patient(err) {
		err = link.Conn.Await(s.relay)
	}
	if err != nil && s.trouble == none {
		s.lostEndpoint(err)
	}
}

// mayKeep says whether another client's request may go over the connection:
// this exchange is over on both sides, to the last byte. A request that was not
// sent as a whole would swallow the next one.
func (s *session) mayKeep(link *backend.Session) bool {
	return s.trouble == none && link.HTTP.Reusable() && s.upload.delivered() && !link.Conn.WasCut() &&
		s.endpoint.Backend().Settings().SendProxy == 0 // a header names one client for good
}

// relayReady is called within the endpoint connection's Await, when bytes may
// be there, or outside, where reads wait. It returns true when the attempt is over.
func (s *session) relayReady() bool {
	if s.phase == sending {
		if s.link.Reused && !s.link.HTTP.Quiet(conn.ErrWouldBlock) {
			s.trouble = stale
			return true
		}
		if err := s.send(); err != nil {
			s.lostEndpoint(err)
			return true
		}
		s.phase = awaitingHead
	}
	for s.phase == awaitingHead {
		if err := s.link.HTTP.ReadHead(&s.req, &s.res); err != nil {
			if err == conn.ErrWouldBlock {
				return false
			}
			if s.patient(err) {
				continue
			}
			if s.trouble == none {
				s.lostEndpoint(err)
			}
			return true
		}
		if s.gotHead() {
			return true
		}
	}
	return s.relayBody()
}

// send writes a request whose body is there in one go.
func (s *session) send() error {
	h := &s.link.HTTP
	h.WriteHead(&s.req)
	if body, _ := s.server.BufferedBody(); len(body) > 0 {
		if err := h.WriteBody(body); err != nil {
			return err
		}
	}
	h.WriteEnd(&s.req)
	return h.Flush()
}

// gotHead passes a response's head on. It returns true when nothing of this
// response follows: the client is gone, or the connection is a tunnel now.
func (s *session) gotHead() bool {
	if s.res.Informational() {
		if s.req.Minor == 0 || s.res.Status == 100 && !s.req.ExpectContinue {
			return false
		}
		s.server.WriteHead(&s.req, &s.res, false)
		return s.flush() != nil
	}
	s.endpoint.Succeeded()
	s.phase, s.moved = relayingBody, true
	s.answered = true
	s.status = s.res.Status
	s.waited = time.Since(s.started)
	s.promise(&s.res)
	s.server.WriteHead(&s.req, &s.res, s.last())
	if s.res.Status == 101 {
		s.upgraded = s.flush() == nil
		return true
	}
	return false
}

// relayBody passes on what is there of the body. Nothing is held back while
// it waits for more.
func (s *session) relayBody() bool {
	h := &s.link.HTTP
	for !h.BodyEnded() {
		if !h.Started() {
			if s.flush() != nil {
				return true
			}
			if s.res.Close {
				s.link.Conn.LookAgain() // the end may have come along with the last bytes
			}
		}
		if !s.inAwait {
			s.waitForBody()
		}
		p, err := h.ReadBody(&s.res)
		switch {
		case err == conn.ErrWouldBlock: // perhaps in the middle of a chunk's frame
			s.waitForBody()
			return s.flush() != nil
		case err == io.EOF:
		case err != nil && s.patient(err):
			continue
		case err != nil:
			if s.trouble == none {
				s.lostEndpoint(err)
			}
			return true
		default:
			s.moved = true
		}
		if err := s.server.WriteBody(p); err != nil {
			s.fail(clientGone, s.status, "client_gone", err)
			return true
		}
	}
	s.server.WriteEnd(&s.res)
	h.Release()
	s.flush()
	return true
}

// flush sends what was gathered for the client.
func (s *session) flush() error {
	err := s.server.Flush()
	if err != nil {
		s.fail(clientGone, s.status, "client_gone", err)
	}
	return err
}

func (s *session) fail(t trouble, status int, reason string, err error) {
	s.trouble, s.status, s.reason, s.err = t, status, reason, err
}

// lostEndpoint notes that the connection to the endpoint ended, or brought
// something else than a response, before a head was through.
func (s *session) lostEndpoint(err error) {
	var refusal *message.Refusal
	switch {
	case s.phase == relayingBody:
		s.fail(cutShort, s.status, "response_cut_short", err)
	case errors.Is(err, conn.ErrCut):
		s.fail(clientGone, http.StatusServiceUnavailable, "cut", err)
		return
	case errors.As(err, &refusal):
		s.fail(failed, http.StatusBadGateway, "bad_response_"+refusal.Reason, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.fail(failed, http.StatusGatewayTimeout, "response_timeout", err)
	case s.link.Reused && !s.link.HTTP.Answered():
		s.fail(unanswered, http.StatusBadGateway, "endpoint_closed", err)
		return // an idle connection may end at any time: that is no fault of the endpoint's
	default:
		s.fail(failed, http.StatusBadGateway, "endpoint_closed", err)
	}
	s.endpoint.Failed(err)
}

// mayRetry says whether the request may go to another endpoint: it was not
// sent, or may be repeated; and retries are within their bounds. That an idle
// connection had ended is no sign of overload, and happens once in an exchange,
// as the next attempt has a new connection: the share of retries is not for it.
func (s *session) mayRetry(b *backend.Backend) bool {
	reason, spends := backend.RetryConnect, true
	switch s.trouble {
	case unsent:
	case unanswered:
		reason, spends = backend.RetryClosed, false
		if !s.req.Idempotent || s.upload != nil {
			return false
		}
	default:
		return false
	}
	if s.attempts >= b.Settings().Retries.Attempts || spends && !b.AllowRetry() {
		return false
	}
	b.Retried(reason)
	return true
}

// unavailable answers where no endpoint could be had.
func (s *session) unavailable(err error) {
	s.err = err
	s.reply(&message.Refusal{Status: http.StatusServiceUnavailable, Reason: whyNone(err), Detail: err.Error()})
}

// whyNone is the reason for an error of Acquire.
func whyNone(err error) string {
	switch {
	case errors.Is(err, backend.ErrQueueFull):
		return "queue_full"
	case errors.Is(err, backend.ErrQueueTimeout):
		return "queue_timeout"
	}
	return "no_endpoint_ready"
}

// giveUp ends an exchange whose last attempt failed: by an answer where the
// client has none yet, else by breaking off, so that it cannot take what it
// got for the whole.
func (s *session) giveUp() {
	if s.trouble == clientGone || s.answered {
		s.ended = true
		s.broken = s.answered
		return
	}
	err := s.err
	s.reply(&message.Refusal{Status: s.status, Reason: s.reason, Detail: troubleText(s.status, err)})
	s.err = err
}

func troubleText(status int, err error) string {
	var refusal *message.Refusal
	switch {
	case status == http.StatusGatewayTimeout:
		return "the endpoint did not answer in time"
	case status == http.StatusRequestTimeout:
		return "the request's body did not arrive in time (timeouts.body_idle of the listener)"
	case status < http.StatusInternalServerError && errors.As(err, &refusal):
		return refusal.Detail // the request's own fault
	}
	return "the endpoint gave no answer"
}

func dialStatus(err error) int {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}
