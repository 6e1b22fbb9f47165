package proxy

import (
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// attempts gets the response to one request from a backend: it tries endpoints, one after the
// other. It does not know for whom. The exchange with a client is a requester; a part of weir that
// asks a service about a request may be another one.
type attempts struct {
	retries
	requester requester
	to        destination
	body      source

	proxy   *Proxy
	req     *message.Request  // as the endpoints get it
	res     *message.Response // the response of the running attempt
	account *memory.Account   // charged for the response
	whole   bool              // the request's body has arrived: no read waits for the client
	relay   func() bool       // attempt.relayReady, bound once

	private    bool    // afterwards, no other client may use the connection to the endpoint
	http1Only  bool    // the endpoint requires HTTP/1.1 for the request
	lostShared bool    // a connection to an endpoint that other exchanges share was lost
	upload     *upload // sends a body that did not arrive with its head; nil: the body did

	attempt // the running one, or the last
}

// requester is the side that needs a response.
type requester interface {
	// acquireFrom is Backend.Acquire for this requester; see trier.
	acquireFrom(b *backend.Backend, tried []*backend.Endpoint) (*backend.Endpoint, *backend.Link, error)
	// keep takes a connection that another request may use.
	keep(link *backend.Link)
	// outgoing returns the information for the PROXY header to the endpoint.
	outgoing() *backend.Outgoing
	// CutAlso makes a cut of the requester end the waits of other, too; nil undoes it.
	CutAlso(other conn.Cuttable)
	// silent tells that nobody has sent anything since a moment, and nobody has to; zero: somebody
	// sends again.
	silent(since time.Time)
	// pinged returns when the requester last showed, apart from the request, that it is alive.
	pinged() time.Time
	// gone reports whether the requester has left and does not wait for the response.
	gone() bool
	// cutFor returns why weir cut the requester; "": it was not cut.
	cutFor() string
	// panicked reports a panic that ended the connection to the endpoint.
	panicked(p *http2.PanicError)

	// bodyPace returns the time limits for the request's body.
	bodyPace() pace
	// guardBody returns an error if the requester wants no more of the request's body, of which n
	// bytes have arrived.
	guardBody(n int64) error
	// bodyEnded is called when the request's body has arrived completely, before its
	// trailers are sent.
	bodyEnded()
	// bodyFailed returns the outcome of an attempt whose request could not be read.
	bodyFailed(err error) *outcome
}

// source is the body of a request. One goroutine may use it while another one passes the
// response on. The methods of the first group are those of http1.Server, which documents them.
type source interface {
	BufferedBody() ([]byte, bool)
	ReadBody(req *message.Request) ([]byte, error)
	BodyEnded() bool
	HeadStarted() bool
	Owes() bool

	// SetReadDeadline sets the deadline of ReadBody.
	SetReadDeadline(time.Time)
	// Interrupt makes a waiting ReadBody return conn.ErrInterrupted, until Resume.
	Interrupt()
	Resume()
}

// sharer is a source that must know before a second goroutine reads or writes.
type sharer interface{ Share() }

// destination takes the response. After an error of inform, respond, write or flush, the attempt ends
// with the outcome that writeFailed returns.
type destination interface {
	// inform takes the head of an informational response, except 101.
	inform() error
	// accepts reports whether the destination can take the response that has this head.
	accepts() bool
	// respond takes the head of the final response, or of a 101.
	respond() error
	write(p []byte) error
	// end takes the trailers, and the end of the response.
	end()
	// flush sends what was taken so far.
	flush() error
	writeFailed(err error) *outcome
}

// acquire chooses the endpoint for the next attempt.
func (a *attempts) acquire(tried []*backend.Endpoint) (*backend.Endpoint, *backend.Link, error) {
	return a.requester.acquireFrom(a.backend, tried)
}

// try tries one endpoint, over the client's private connection to it, or over an idle or
// shared connection that is alive, or else over a new one. The attempt starts again if the
// connection ended before anything was sent, or if the endpoint requires HTTP/1.1.
func (a *attempts) try(e *backend.Endpoint, own *backend.Link, fresh bool) *outcome {
	a.attempt = attempt{all: a, endpoint: e}
	a.limit()
	settings := a.backend.Settings()
	if settings.MaxConnections > 0 && a.goneInQueue() {
		if own != nil {
			own.Close()
		}
		return &outcome{failure: clientGone, reason: "client_gone", err: errClientGone}
	}
	pooled := !fresh && settings.SendProxy == 0 // a PROXY header names one client for the whole connection
	for link := own; ; link = nil {
		if link == nil && pooled {
			link = e.Idle(a.need())
		}
		if link == nil {
			var err error
			if link, err = a.dial(); err != nil {
				return a.lostDial(err)
			}
		}
		if a.private {
			link.MakePrivate()
		}
		o := a.talk(link)
		switch {
		case o == nil:
			return nil
		case o.failure == stale:
		case o.failure == needsHTTP1 && a.upload.repeatable():
			a.http1Only = true
		default:
			return o
		}
	}
}

// repeatable reports whether weir may send the request again.
func (a *attempts) repeatable(t failure) bool {
	if t == refused {
		return a.upload.repeatable()
	}
	return (a.req.Idempotent || a.limits != nil && a.limits.unsafe) && a.upload.repeatable()
}

// need returns the requirements of the request for a connection to an endpoint.
func (a *attempts) need() backend.Need {
	return backend.Need{Upgrade: a.req.Upgrade.Len() > 0, Private: a.private || a.http1Only, Limits: *a.proxy.limits.Load(), Memory: a.proxy.Memory}
}

// goneInQueue reports whether the client went away while its request waited in the queue for
// max_connections of the backend.
func (a *attempts) goneInQueue() bool {
	return time.Since(a.begun) >= clientCheck && a.requester.gone()
}

// abandon releases the resources of attempts whose goroutine panics.
func (a *attempts) abandon() {
	if a.upload != nil {
		a.upload.stop()
	}
	if a.link != nil {
		a.requester.CutAlso(nil)
		a.link.Close()
	}
	if a.held != nil {
		a.held.Release()
	}
}
