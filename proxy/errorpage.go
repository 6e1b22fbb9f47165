package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/overlay"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
)

// errorPage is a compiled entry of errors of a route.
type errorPage struct {
	status  []config.StatusRange
	backend *backend.Backend
	path    string
	onlyOwn bool // only weir's own responses have it
	// asks is set if weir requests the page as ingress-nginx does. Then the page replaces the whole
	// response. nil: the page replaces the body.
	asks *errorReport
}

const (
	// pagePatience limits the request for a page. The client waits for it.
	pagePatience = 5 * time.Second
	// mostPage limits the body of a page, in bytes. weir holds it in memory.
	mostPage = 256 << 10
	// mostLeft limits the rest of a replaced response that weir reads to keep the connection to
	// the endpoint, in bytes.
	mostLeft = 64 << 10
)

// newErrorPages compiles the error pages of a route.
func newErrorPages(pages []config.ErrorPage, backends *overlay.Map[*backend.Backend]) (all []errorPage) {
	for _, p := range pages {
		b, _ := backends.Get(p.Backend)
		page := errorPage{status: p.Status, backend: b, path: p.Path, onlyOwn: p.OnlyOwn}
		if p.AsNginx {
			page.asks = newErrorReport(&p.Report)
		}
		all = append(all, page)
	}
	return all
}

// pageFor returns the error page for a response of the route with this status; nil: there is
// none. Several default backends may show a status: weir asks the first one that has an endpoint.
// gRPC has no pages. A request that came back too often gets no page, because the request for the
// page would come back as well.
func (x *exchange) pageFor(status int) (page *errorPage) {
	if status < 400 || x.route == nil || len(x.route.pages) == 0 || isGRPC(&x.req) || x.visits() >= x.proxy.mostVisits() {
		return nil
	}
	for i := range x.route.pages {
		p := &x.route.pages[i]
		if p.onlyOwn && !x.Generated() {
			continue
		}
		if slices.ContainsFunc(p.status, func(r config.StatusRange) bool { return r.Min <= status && status <= r.Max }) {
			if p.asks == nil || p.backend.HasEndpoint() {
				return p
			}
			page = cmp.Or(page, p) // the metrics count that it fails
		}
	}
	return page
}

// replaced sends an error page in place of the response res, whose head is complete. It returns
// false if there is no page for res, or if weir did not get the page. Then the caller sends res.
func (x *exchange) replaced(res *message.Response) bool {
	p := x.pageFor(res.Status)
	if p == nil {
		return false
	}
	q := x.proxy.newInquiry(p.backend)
	defer q.release()
	err := x.askForPage(q, p, res.Status)
	if p.asks != nil && err == nil {
		keepChallenges(&q.res, res)
		res = &q.res // the page is the whole response
	}
	series := x.route.metrics.get()
	if err != nil || !x.beginPage(q, res) {
		series.page(p.backend.Name(), "failed").Inc()
		return false
	}
	series.page(p.backend.Name(), "sent").Inc()
	x.sendPage(q)
	return true
}

// keepChallenges gives a page that is a whole response the challenges of the response that it replaces: otherwise browsers
// never ask their users for a password. nginx does so for 401 alone.
func keepChallenges(page, replaced *message.Response) {
	if replaced.Status != 401 {
		return
	}
	for i := range replaced.Fields {
		if f := &replaced.Fields[i]; f.ID == message.WWWAuthenticate && !f.Dropped {
			page.AddSpans(page.Store(replaced.Name(i)), page.Store(replaced.Value(i)))
		}
	}
}

// askForPage requests a page for a status. Every status but 200 is an error: it is no page.
func (x *exchange) askForPage(q *inquiry, p *errorPage, status int) error {
	q.req.RawTargets = x.req.RawTargets
	if p.asks != nil {
		return x.askAsNginx(q, p, status)
	}
	target := strings.ReplaceAll(p.path, config.StatusVariable, strconv.Itoa(status))
	if err := q.get(string(x.req.Bytes(x.req.Host)), target); err != nil {
		return err
	}
	x.RequestID() // in place of an id that the client made up
	for i := range x.req.Fields {
		if f := &x.req.Fields[i]; pageRequest.Has(x.req.Name(i)) && (!f.Dropped || f.ID == message.CDNLoop) {
			q.req.AddSpans(q.req.Store(x.req.Name(i)), q.req.Store(x.req.Value(i)))
		}
	}
	if !x.visited { // otherwise this visit was copied
		addVisit(&q.req)
	}
	if err := x.runForPage(q); err != nil {
		return err
	}
	if q.res.Status != 200 {
		return errNoPage
	}
	return nil
}

// askAsNginx requests a page as ingress-nginx does: with the HTTP headers of the client. The page may
// have any status.
func (x *exchange) askAsNginx(q *inquiry, p *errorPage, status int) error {
	query, target := bytes.IndexByte(x.req.Bytes(x.req.Target), '?'), "/"
	if query >= 0 {
		target += string(x.req.Bytes(x.req.Target)[query:])
	}
	if err := q.get(string(x.req.Bytes(x.req.Host)), target); err != nil {
		return err
	}
	x.RequestID()
	for i := range x.req.Fields {
		f, name := &x.req.Fields[i], x.req.Name(i)
		if f.ID == message.XRequestID || f.ID.Class() == message.Passed && !ofBody.Has(name) {
			if !f.Dropped {
				q.req.AddSpans(q.req.Store(name), q.req.Store(x.req.Value(i)))
			}
		}
	}
	p.asks.write(&q.req.Head, status)
	q.req.AddSpans(q.req.StoreString("X-Original-URI"), q.req.Store(x.req.Bytes(x.req.Target)))
	if client := x.Client().Addr(); client.IsValid() {
		q.req.AddField("X-Forwarded-For", client.String())
	}
	addVisit(&q.req)
	return x.runForPage(q)
}

// ofBody has the HTTP headers of the body of the request, which a request for a page does not have.
var ofBody = message.NewNames([]string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Expect"})

// runForPage makes the request for a page.
func (x *exchange) runForPage(q *inquiry) error {
	q.most, q.patience, q.account, q.address = mostPage, pagePatience, x.account, x.client.Addr()
	q.out = x.outgoing()
	x.wire.CutAlso(q)
	defer x.relink()
	if o := q.run(); o != nil {
		return o.err
	}
	return nil
}

// pageRequest has the HTTP headers of the client that the request for a page has too. The
// others are about the client's request, or secrets.
var pageRequest = message.NewNames([]string{"Accept", "Accept-Language", "Accept-Encoding", "User-Agent", "X-Request-Id", "CDN-Loop"})

// relink restores the link between the client and the attempt that runs.
func (x *exchange) relink() {
	if link := x.attempts.link; link != nil {
		x.wire.CutAlso(link)
		return
	}
	x.wire.CutAlso(nil)
}

// beginPage makes the head of the page that is sent in place of res. If res is not the page itself, the response has
// the status and the HTTP headers of res. It has the body of the page, and the headers of the page that describe that
// body. beginPage returns false if there is no memory for it.
func (x *exchange) beginPage(q *inquiry, res *message.Response) bool {
	page := &q.res
	for i := range page.Fields {
		if res != page && !describesBody.Has(page.Name(i)) || page.Fields[i].ID.Class() == message.Framing {
			page.Fields[i].Dropped = true
		}
	}
	for i := range res.Fields {
		if res == page {
			break
		}
		if name := res.Name(i); !res.Fields[i].Dropped && !describesBody.Has(name) && !ofReplaced.Has(name) {
			page.AddSpans(page.Store(name), page.Store(res.Value(i)))
		}
	}
	page.Status, page.Reason = res.Status, page.Store(res.Bytes(res.Reason))
	page.Length, page.Trails = int64(len(q.body)), false
	if !message.BodyForbidden(page.Status) {
		page.Add(message.ContentLength, strconv.AppendInt(nil, page.Length, 10))
	}
	x.completeHead(page)
	return x.cover(0) && q.cover()
}

// sendPage sends the page.
func (x *exchange) sendPage(q *inquiry) {
	x.answered, x.status = true, q.res.Status
	x.wire.WriteHead(&x.req, &q.res)
	if !x.req.IsHead {
		x.wire.WriteBody(q.body)
		x.sent += int64(len(q.body))
	}
	if err := x.wire.Flush(); err != nil {
		x.ended, x.err = true, err
	}
}

// describesBody has the HTTP headers that belong to the body of a response. ofReplaced has those
// that are wrong for any other body.
var (
	describesBody = message.NewNames([]string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition"})
	ofReplaced    = message.NewNames([]string{"Content-Length", "Content-Range", "Content-Location", "Content-MD5", "Content-Digest", "Repr-Digest", "Digest",
		"Accept-Ranges", "ETag", "Last-Modified", "Trailer"})
)

// discarded takes a piece of a response that an error page has replaced. A short rest is read to
// its end, so that the connection to the endpoint can be used again.
func (x *exchange) discarded(p []byte) error {
	if x.left += len(p); x.left > mostLeft {
		return errReplaced
	}
	return nil
}

var (
	errNoPage   = errors.New("the response to the request for an error page is no page")
	errReplaced = errors.New("an error page replaced the response, whose rest is long")
)
