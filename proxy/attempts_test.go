package proxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// otherRequester is a requester that is not a client. It sends a request to a backend, and keeps the response.
type otherRequester struct {
	attempts
	req  message.Request
	res  message.Response
	got  string
	done bool
}

// newOtherRequester sends a request for a path to backend b.
func newOtherRequester(r *rig, b *backend.Backend, path string) *otherRequester {
	q := new(otherRequester)
	q.req.Method, q.req.Path, q.req.Minor, q.req.Idempotent = q.req.StoreString("GET"), q.req.StoreString(path), 1, true
	q.req.Target, q.req.Host = q.req.Path, q.req.StoreString("otherRequester")
	q.req.SetHost([]byte("otherRequester"))
	a := &q.attempts
	a.backend, a.proxy, a.req, a.res = b, r.proxy, &q.req, &q.res
	a.requester, a.to, a.body = q, q, q
	a.begun, a.whole, a.relay = time.Now(), true, a.relayReady
	return q
}

func (q *otherRequester) acquireFrom(b *backend.Backend, tried []*backend.Endpoint) (*backend.Endpoint, *backend.Link, error) {
	e, err := b.Acquire(netip.Addr{}, tried, time.Time{}, q)
	return e, nil, err
}

func (q *otherRequester) Wait(<-chan struct{}, time.Duration) (bool, error) {
	panic("the backend has no queue")
}

func (q *otherRequester) keep(link *backend.Link)                   { link.Endpoint().Keep(link) }
func (q *otherRequester) outgoing() *backend.Outgoing               { return new(backend.Outgoing) }
func (q *otherRequester) CutAlso(conn.Cuttable)                     {}
func (q *otherRequester) gone() bool                                { return false }
func (q *otherRequester) silent(time.Time)                          {}
func (q *otherRequester) pinged() time.Time                         { return time.Time{} }
func (q *otherRequester) cutFor() string                            { return "" }
func (q *otherRequester) panicked(*http2.PanicError)                {}
func (q *otherRequester) bodyPace() pace                            { return pace{} }
func (q *otherRequester) guardBody(int64) error                     { return nil }
func (q *otherRequester) bodyEnded()                                {}
func (q *otherRequester) bodyFailed(err error) *outcome             { return &outcome{failure: failed, err: err} }
func (q *otherRequester) BufferedBody() ([]byte, bool)              { return nil, true }
func (q *otherRequester) ReadBody(*message.Request) ([]byte, error) { panic("the request has no body") }
func (q *otherRequester) BodyEnded() bool                           { return true }
func (q *otherRequester) HeadStarted() bool                         { return false }
func (q *otherRequester) Owes() bool                                { return false }
func (q *otherRequester) SetReadDeadline(time.Time)                 {}
func (q *otherRequester) Interrupt()                                {}
func (q *otherRequester) Resume()                                   {}
func (q *otherRequester) inform() error                             { return nil }
func (q *otherRequester) accepts() bool                             { return true }
func (q *otherRequester) respond() error                            { return nil }
func (q *otherRequester) write(p []byte) error                      { q.got += string(p); return nil }
func (q *otherRequester) end()                                      { q.done = true }
func (q *otherRequester) flush() error                              { return nil }
func (q *otherRequester) writeFailed(err error) *outcome {
	return &outcome{failure: clientGone, err: err}
}

// While an exchange waits for its endpoint, weir can send another request to a backend. The second response
// goes to its own destination, and its retries are counted separately.
func TestAttemptsOfAnotherRequester(t *testing.T) {
	r, e := newPlain(t, func(cfg *config.Config) { cfg.Backends[0].Retries.Attempts = 2 })
	c := r.dial("web")
	c.write(get)
	first := e.accept()
	first.head()
	q := newOtherRequester(r, r.set.Backend("app"), "/allowed")
	outcomes := make(chan *outcome, 1)
	go func() { outcomes <- q.attempts.run(&q.attempts) }()
	second := e.accept()
	if head := second.head(); !strings.HasPrefix(head, "GET /allowed HTTP/1.1\r\n") {
		t.Errorf("the endpoint got %q", head)
	}
	second.write("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
	if o := next(t, outcomes, "an outcome"); o != nil || q.res.Status != 403 || q.got != "no" || !q.done || q.made != 1 {
		t.Errorf("the outcome is %+v, after %d attempts: %d %q, ended: %t", o, q.made, q.res.Status, q.got, q.done)
	}
	first.write(ok("for the client"))
	c.wantResponse(200, "for the client")
	r.record().want(t, "status", 200, "retries", 0)

	q = newOtherRequester(r, r.set.Backend("app"), "/again") // over the connection that was kept
	go func() { outcomes <- q.attempts.run(&q.attempts) }()
	first.head()
	first.Close()
	third := e.accept()
	third.head()
	third.write(ok("yes"))
	if o := next(t, outcomes, "an outcome"); o != nil || q.got != "yes" || q.made != 2 {
		t.Errorf("the outcome is %+v, after %d attempts: %d %q", o, q.made, q.res.Status, q.got)
	}
}
