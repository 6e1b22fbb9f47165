package proxy

import (
	"cmp"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/overlay"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
)

// mirror is a compiled entry of mirror of a route.
type mirror struct {
	backend *backend.Backend
	percent uint64
	of      uint64
	path    *filter.MirrorPath // nil: that of the request
	host    string             // empty: that of the backend, or the client's
	noBody  bool
	seen    atomic.Uint64 // requests
}

const (
	// mostMirrored limits the body of a request that weir copies, in bytes.
	mostMirrored = 64 << 10
	// mostMirrors limits the copies that run in the process at the same time. A backend may have
	// at most as many copies as are still free, so a slow backend leaves half of them to others.
	mostMirrors = 512
	// mirrorPatience limits the time that a copy takes.
	mirrorPatience = 30 * time.Second
)

// newMirrors compiles the mirrors of a route.
func newMirrors(mirrors []config.Mirror, backends *overlay.Map[*backend.Backend]) (all []*mirror) {
	for _, m := range mirrors {
		b, _ := backends.Get(m.Backend)
		all = append(all, &mirror{backend: b, percent: uint64(m.Percent), of: uint64(cmp.Or(m.Of, 100)),
			path: filter.NewMirrorPath(m.Path, m.KeepQuery), host: m.Host, noBody: m.NoBody})
	}
	return all
}

// takes reports whether the next request is copied. The copied requests are spread evenly.
func (m *mirror) takes() bool {
	n := m.seen.Add(1)
	return n*m.percent/m.of != (n-1)*m.percent/m.of
}

// copies are the copies of the request of an exchange, until its body has arrived. Then they do
// not depend on the exchange any more. As the source of the exchange's attempts, copies keep
// what the attempts read of the body.
type copies struct {
	source
	exchange *exchange
	all      []*inquiry
	body     []byte
	most     int // limit of body; 0: the copies were sent or given up
	charged  int // to the account of the client
}

// mirror begins the copies of a request, which is complete except for its body. Tunnels are not
// copied, and neither are requests that authenticate their connection.
func (x *exchange) mirror() {
	if x.req.Upgrade.Len() > 0 || x.attempts.private {
		return
	}
	c := &copies{source: x.wire, exchange: x, most: mostMirrored}
	heads := 0
	for _, m := range x.route.mirrors {
		if m.takes() {
			if q := x.copyFor(m); q != nil {
				c.all = append(c.all, q)
				heads += q.req.Size()
			}
		}
	}
	if len(c.all) == 0 {
		return
	}
	x.copies = c
	if !c.charge(heads) {
		c.giveUp("dropped")
		return
	}
	if x.attempts.whole {
		body, _ := x.attempts.body.BufferedBody()
		c.keep(body)
		c.send()
		return
	}
	if !slices.ContainsFunc(c.all, func(q *inquiry) bool { return q.req.Length != 0 }) {
		c.send()
		return
	}
	if x.req.Length > mostMirrored {
		c.giveUp("too_large")
		return
	}
	if !c.charge(mostMirrored) {
		c.giveUp("dropped")
		return
	}
	x.attempts.body = c
}

// copyFor returns the inquiry with a copy of the request's head; nil: the mirror has a path that
// would be invalid for this request.
func (x *exchange) copyFor(m *mirror) *inquiry {
	b := m.backend
	q := x.proxy.newInquiry(b)
	q.req = *x.req.Clone()
	q.req.ExpectContinue = false
	q.req.Drop(message.Expect)
	if host := cmp.Or(m.host, b.Settings().Host); host != "" {
		q.req.SetHost([]byte(host))
	}
	if m.noBody {
		q.req.Length = 0
		q.req.Drop(message.ContentLength)
	}
	if m.path != nil && q.req.Rewrite(m.path.Store(&q.req.Head, x)) != nil {
		x.route.metrics.get().mirrored(b.Name(), "failed").Inc()
		return nil
	}
	q.attempts.once, q.discard, q.patience = true, true, mirrorPatience
	q.address, q.out = x.client.Addr(), x.outgoing()
	return q
}

// charge charges the client's account for n bytes more. It returns false if the account refuses.
func (c *copies) charge(n int) bool {
	if !c.exchange.account.Charge(n) {
		return false
	}
	c.charged += n
	return true
}

// ReadBody reads the client's body, and keeps a copy of it.
func (c *copies) ReadBody(req *message.Request) ([]byte, error) {
	p, err := c.source.ReadBody(req)
	c.keep(p)
	return p, err
}

// Share is that of the client.
func (c *copies) Share() {
	if s, ok := c.source.(sharer); ok {
		s.Share()
	}
}

func (c *copies) keep(p []byte) {
	switch {
	case c.most == 0:
	case len(c.body)+len(p) > c.most:
		c.giveUp("too_large")
	default:
		c.body = append(c.body, p...)
	}
}

// giveUp counts the copies that weir does not send.
func (c *copies) giveUp(result string) {
	for _, q := range c.all {
		c.exchange.route.metrics.get().mirrored(q.attempts.backend.Name(), result).Inc()
	}
	c.end()
}

// end releases what the copies hold of the client's.
func (c *copies) end() {
	c.all, c.body, c.most = nil, nil, 0
	c.exchange.account.Release(c.charged)
	c.charged = 0
}

// send sends the copies in the background. It does nothing if they were sent or given up.
func (c *copies) send() {
	x := c.exchange
	for _, q := range c.all {
		if q.req.Length != 0 {
			q.content = c.body
		}
		q.account = new(memory.Account)
		if !x.proxy.startMirror(q, x.route.metrics, x.edge.name) {
			x.route.metrics.get().mirrored(q.attempts.backend.Name(), "dropped").Inc()
		}
	}
	c.end()
}

// beginMirror counts a copy for a backend. It returns false if too many run, in total or of the
// backend.
func (p *Proxy) beginMirror(b *backend.Backend) bool {
	others, own := p.mirrors.Add(1)-1, b.Copies().Add(1)
	if free := mostMirrors - others; own > free {
		p.endMirror(b)
		return false
	}
	return true
}

func (p *Proxy) endMirror(b *backend.Backend) {
	p.mirrors.Add(-1)
	b.Copies().Add(-1)
}

// startMirror runs a copy. It returns false if too many copies run, or if there is no memory.
func (p *Proxy) startMirror(q *inquiry, metrics *routeMetrics, listener string) bool {
	if !p.beginMirror(q.attempts.backend) {
		return false
	}
	q.account.Open(p.Memory, conn.NetworkOf(q.address, conn.Prefixes{IPv4: 32, IPv6: 64}).Prefix(), q)
	if q.texts = cap(q.content); !q.account.Charge(memory.Exchange) || !q.cover() {
		q.account.Close()
		p.endMirror(q.attempts.backend)
		return false
	}
	go p.runMirror(q, metrics, listener)
	return true
}

func (p *Proxy) runMirror(q *inquiry, metrics *routeMetrics, listener string) {
	defer func() {
		q.account.Close()
		p.endMirror(q.attempts.backend)
		if value := recover(); value != nil && p.Panicked != nil {
			p.Panicked(listener, value, debug.Stack())
		}
	}()
	o, series, name := q.run(), metrics.get(), q.attempts.backend.Name()
	if o != nil {
		series.mirrored(name, "failed").Inc()
		return
	}
	series.mirrored(name, "sent").Inc()
}
