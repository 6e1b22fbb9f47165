package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// inquiry is a request of weir itself to a backend, such as the request for keys. It is
// the requester, the source and the destination of its attempts, and has nothing of the
// exchange with a client. Its response is limited in size, and all attempts together in time.
// One goroutine runs it, once.
type inquiry struct {
	attempts attempts
	req      message.Request
	res      message.Response

	content []byte // the body of the request
	body    []byte // the body of the response
	most    int    // limit of body, in bytes
	discard bool   // body stays empty; its length does not matter
	// discardGood means that the body of a 2xx response is discarded.
	discardGood bool
	account     *memory.Account // charged for body, and what cover counts; nil: none
	texts       int             // the size of further texts that the inquiry is made of
	covered     int             // bytes that cover has charged

	patience time.Duration     // limits all attempts together
	until    time.Time         // the end of patience
	address  netip.Addr        // of the client for which weir asks; zero: none
	out      *backend.Outgoing // of that client; nil: the endpoint gets a PROXY header without a client

	mu   sync.Mutex
	link conn.Cuttable // the running dial, or the connection to the endpoint
	cut  inquiryCut    // why weir cut the inquiry
}

// inquiryCut is the reason why an inquiry ended early.
type inquiryCut uint8

const (
	notCut    inquiryCut = iota
	cutByTime            // patience ended
	cutByUser            // the client or the owner does not wait any longer
)

// newInquiry returns an inquiry to a backend. The caller sets the request and the limits.
func (p *Proxy) newInquiry(b *backend.Backend) *inquiry {
	q := new(inquiry)
	q.req.Minor = 1
	a := &q.attempts
	a.backend, a.proxy, a.req, a.res = b, p, &q.req, &q.res
	a.requester, a.to, a.body = q, q, q
	a.whole, a.relay = true, a.relayReady
	return q
}

// get makes the request GET of a target. The host of the backend's settings replaces host.
func (q *inquiry) get(host, target string) error { return q.begin("GET", host, target) }

// begin is get with any method.
func (q *inquiry) begin(method, host, target string) error {
	req := &q.req
	if err := req.SetMethod(req.StoreString(method)); err != nil {
		return err
	}
	if err := req.SetTarget(req.StoreString(target)); err != nil {
		return err
	}
	if own := q.attempts.backend.Settings().Host; own != "" {
		host = own
	}
	req.SetHost([]byte(host))
	req.Host = req.ValueSpan(req.Find(message.Host))
	return nil
}

// run makes the inquiry. It returns nil if there is a complete response, of any status.
// Afterwards the caller calls release.
func (q *inquiry) run() (o *outcome) {
	if !q.cover() {
		return q.writeFailed(message.ErrMemory)
	}
	returned := false
	defer func() {
		if !returned { // a panic
			q.attempts.abandon()
			q.release()
		}
	}()
	a := &q.attempts
	a.begun, a.account = time.Now(), q.account
	q.until = a.begun.Add(q.patience)
	timer := time.AfterFunc(q.patience, func() { q.endFor(cutByTime) })
	defer timer.Stop()
	o = a.run(a)
	if o != nil && q.cutFor() == reasonTooSlow {
		o.err = fmt.Errorf("backend %q sent no complete response within %v: %w", a.backend.Name(), q.patience, o.err)
		if a.endpoint != nil {
			a.countFailure(o.err)
		}
	}
	returned = true
	return o
}

// reasonTooSlow is the reason for an outcome of an inquiry whose patience ended.
const reasonTooSlow = "response_timeout"

// release gives back the memory of the inquiry. Further calls do nothing.
func (q *inquiry) release() {
	q.account.Release(cap(q.body) + q.covered)
	q.body, q.covered = nil, 0
}

// Cut ends the inquiry. The client that waits for the inquiry is linked to it.
func (q *inquiry) Cut() { q.endFor(cutByUser) }

// WasCut reports whether the inquiry was ended.
func (q *inquiry) WasCut() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cut != notCut
}

// endFor ends the inquiry for the first reason that comes.
func (q *inquiry) endFor(why inquiryCut) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cut == notCut {
		q.cut = why
	}
	if q.link != nil && !q.link.WasCut() {
		q.link.Cut()
	}
}

// As the requester of its attempts, an inquiry is alone.

func (q *inquiry) acquireFrom(b *backend.Backend, tried []*backend.Endpoint) (*backend.Endpoint, *backend.Link, error) {
	e, err := b.Acquire(q.address, tried, q.until, q)
	return e, nil, err
}

// CutAlso makes the end of the inquiry end the waits of other.
func (q *inquiry) CutAlso(other conn.Cuttable) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.link = other
	if other != nil && q.cut != notCut {
		other.Cut()
	}
}

func (q *inquiry) keep(link *backend.Link) {
	if link.Private() {
		link.Close()
		return
	}
	link.Endpoint().Keep(link)
}

func (q *inquiry) outgoing() *backend.Outgoing { return q.out }

func (q *inquiry) gone() bool        { return false }
func (q *inquiry) silent(time.Time)  {}
func (q *inquiry) pinged() time.Time { return time.Time{} }

// Wait waits for an event. It ends early if the inquiry ends.
func (q *inquiry) Wait(event <-chan struct{}, patience time.Duration) (happened bool, gone error) {
	defer q.CutAlso(nil)
	happened, gone = waitUnlessGone(q, event, patience)
	if q.cutFor() == reasonTooSlow { // the time limit of the inquiry has ended; its client still waits
		gone = nil
	}
	return happened, gone
}

func (q *inquiry) cutFor() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cut == cutByTime {
		return reasonTooSlow
	}
	return ""
}

func (q *inquiry) panicked(p *http2.PanicError) {
	if q.attempts.proxy.Panicked != nil {
		q.attempts.proxy.Panicked("", p.Value, p.Stack)
	}
}

func (q *inquiry) bodyPace() pace                { return pace{} }
func (q *inquiry) guardBody(int64) error         { return nil }
func (q *inquiry) bodyEnded()                    {}
func (q *inquiry) bodyFailed(err error) *outcome { return &outcome{failure: failed, err: err} }

// As the source of its attempts, an inquiry has a body that is complete.

func (q *inquiry) BufferedBody() ([]byte, bool) { return q.content, true }
func (q *inquiry) ReadBody(*message.Request) ([]byte, error) {
	panic("proxy: the body of an inquiry is read, but it is complete")
}
func (q *inquiry) BodyEnded() bool           { return true }
func (q *inquiry) HeadStarted() bool         { return false }
func (q *inquiry) Owes() bool                { return false }
func (q *inquiry) SetReadDeadline(time.Time) {}
func (q *inquiry) Interrupt()                {}
func (q *inquiry) Resume()                   {}

// As the destination of its attempts, an inquiry keeps the response, or discards it.

func (q *inquiry) inform() error { return nil }
func (q *inquiry) accepts() bool { return q.res.Status != http.StatusSwitchingProtocols }
func (q *inquiry) end()          {}
func (q *inquiry) flush() error  { return nil }

func (q *inquiry) respond() error {
	if !q.cover() {
		return message.ErrMemory
	}
	return nil
}

func (q *inquiry) write(p []byte) error {
	switch {
	case q.discard, q.discardGood && q.res.Status/100 == 2:
		return nil
	case len(q.body)+len(p) > q.most:
		return fmt.Errorf("the response of backend %q is larger than %d bytes", q.attempts.backend.Name(), q.most)
	}
	room, ok := grown(q.account, q.body, len(p), q.most)
	if !ok {
		return message.ErrMemory
	}
	q.body = append(room, p...)
	return nil
}

func (q *inquiry) writeFailed(err error) *outcome {
	reason := "response_cut_short" // by weir
	if err == message.ErrMemory {
		reason = message.ErrMemory.Reason
	}
	return &outcome{failure: failed, status: http.StatusBadGateway, reason: reason, err: err}
}

// Answer is the whole response of a backend to a request of weir.
type Answer struct {
	Status int
	Header message.Head
	Body   []byte
}

// Get requests a target, such as /keys.json, from a backend, and returns the response, of
// any status. It waits until ctx or patience ends. most limits the body of the response,
// in bytes. The request has no client; its host is that of the backend's settings.
func (p *Proxy) Get(ctx context.Context, b *backend.Backend, target string, most int, patience time.Duration) (*Answer, error) {
	q := p.newInquiry(b)
	q.most, q.patience = most, patience
	if err := q.get("localhost", target); err != nil {
		return nil, fmt.Errorf("requesting %s from backend %q: %w", message.Quote(target), b.Name(), err)
	}
	q.req.AddField("Accept", "*/*")
	defer context.AfterFunc(ctx, q.Cut)()
	if o := q.run(); o != nil {
		if ctx.Err() != nil {
			o.err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("requesting %s from backend %q: %w", message.Quote(target), b.Name(), o.err)
	}
	return &Answer{Status: q.res.Status, Header: q.res.Head, Body: slices.Clip(q.body)}, nil
}
