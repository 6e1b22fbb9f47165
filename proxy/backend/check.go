package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/proxy/message"
)

// Check is the active check of one endpoint: its settings, how to connect, and where to
// report the verdict. Package health declares the interface that Check implements.
type Check struct {
	Settings config.HealthCheck
	// WasReady means that the endpoint is already in use. A check that a reload changed
	// begins with this verdict.
	WasReady bool

	endpoint *Endpoint
}

// Address returns the address to which the check connects: the endpoint's address, with the
// check's own port if it has one.
func (c *Check) Address() string {
	addr, path := c.target()
	if path != "" {
		return "unix:" + path
	}
	return addr.String()
}

// Name returns the names of the endpoint and its backend, for messages.
func (c *Check) Name() string { return c.endpoint.describe() }

func (c *Check) target() (netip.AddrPort, string) {
	e := c.endpoint
	if c.Settings.Port != 0 && e.path() == "" {
		return netip.AddrPortFrom(e.addr.Addr(), uint16(c.Settings.Port)), ""
	}
	return e.addr, e.path()
}

// Dial connects for one check. It sends the PROXY header (LOCAL, because the connection is
// weir's own). For a check by HTTP or gRPC it also does the TLS handshake, if the endpoint
// uses TLS. ctx limits the time. The caller closes the connection. For a check by HTTP the
// connection is a health.Asker. For a check by gRPC it is a health.Asker if it speaks HTTP/2.
func (c *Check) Dial(ctx context.Context, forHTTP bool) (health.Connection, error) {
	e := c.endpoint
	d := e.dial.Load()
	addr, path := c.target()
	if err := e.permit(addr); err != nil {
		return nil, err
	}
	nc, err := dialSocket(ctx, addr, path)
	if err != nil {
		return nil, err
	}
	if err := writeHeader(ctx, nc, c.Settings.SendProxy, nil); err != nil {
		nc.Close()
		return nil, err
	}
	version, secure := d.http2, d.tls
	if c.Settings.GRPC != nil {
		version = always
		if secure != nil {
			secure = offering(secure, always)
		}
	}
	switch {
	case !forHTTP:
		return checkSocket{nc}, nil
	case secure == nil && version != always:
		return newCheckHTTP1(checkSocket{nc}, e.backend.Name(), d), nil
	case version == never:
		if nc, err = handshake(ctx, nc, secure); err != nil {
			return nil, err
		}
		return newCheckHTTP1(checkSocket{nc}, e.backend.Name(), d), nil
	}
	two, err := newCheckHTTP2(ctx, nc, secure, d.infos)
	if o, ok := two.(*old); ok && c.Settings.GRPC == nil {
		return newCheckHTTP1(o, e.backend.Name(), d), nil
	}
	return two, err
}

// checkSocket is the connection of a check that package net serves, perhaps below TLS.
type checkSocket struct{ net.Conn }

// Cut ends all waits by a deadline in the past.
func (s checkSocket) Cut() { s.SetDeadline(time.Unix(1, 0)) }

// ask sends a check's request and reads the head of the final response.
func ask(codec Codec, req *message.Request, res *message.Response, body []byte) error {
	codec.WriteHead(req)
	if err := codec.WriteBody(body); err != nil {
		return err
	}
	codec.WriteEnd(req)
	if err := codec.Flush(); err != nil {
		return err
	}
	for {
		if err := codec.ReadHead(req, res); err != nil || !res.Informational() {
			return err
		}
	}
}

// cause returns the reason why a check failed: the cause of ctx if ctx has ended, else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func handshake(ctx context.Context, nc net.Conn, secure *tls.Config) (net.Conn, error) {
	t := tls.Client(nc, secure)
	if err := t.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return t, nil
}

// SetReady takes the check's verdict. It has no effect if the check was replaced, or if the
// endpoint was removed.
func (c *Check) SetReady(ready bool, why string) {
	e := c.endpoint
	b := e.backend
	b.mu.Lock()
	defer b.unlock()
	if e.check != c {
		return
	}
	e.reason = why
	if e.judged && e.ready == ready {
		return
	}
	kind := EndpointNotReady
	if ready {
		kind = EndpointReady
	}
	if ready && e.judged && !e.ready {
		e.endFailing() // the check has found that the endpoint works again
	}
	if !ready {
		o := b.outages()
		o.endpoint, o.why = e.address, errors.New(why)
	}
	e.ready, e.judged = ready, true
	b.notify(Event{Kind: kind, Endpoint: e.address, Reason: why})
	b.rebuild()
}
