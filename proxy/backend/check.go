package backend

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"

	"github.com/weirproxy/weir/config"
)

// Check is an endpoint as its active check sees it: what to try, how to connect
// and whom to tell. Package health declares what it needs of it.
type Check struct {
	Settings config.HealthCheck
	// WasReady says that the endpoint is in use already: a check that a reload
	// changed begins with this verdict.
	WasReady bool

	endpoint *Endpoint
}

// Address is where the check connects to, the endpoint's address or the same
// with the check's own port.
func (c *Check) Address() string {
	addr, path := c.target()
	if path != "" {
		return "unix:" + path
	}
	return addr.String()
}

// Name tells the endpoint and its backend, for messages.
func (c *Check) Name() string { return c.endpoint.describe() }

func (c *Check) target() (netip.AddrPort, string) {
	e := c.endpoint
	if c.Settings.Port != 0 && e.path == "" {
		return netip.AddrPortFrom(e.addr.Addr(), uint16(c.Settings.Port)), ""
	}
	return e.addr, e.path
}

// Dial connects for one check: the connection, the PROXY header (LOCAL, for it
// is weir's own connection) and, for a check by HTTP or gRPC where the endpoint
// speaks TLS, the handshake. It ends by ctx. The caller closes the connection,
// which is a health.HTTP2 where it speaks that.
func (c *Check) Dial(ctx context.Context, forHTTP bool) (net.Conn, error) {
	e := c.endpoint
	d := e.dial.Load()
	addr, path := c.target()
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
	case !forHTTP || secure == nil && version != always:
		return nc, nil
	case version == never:
		return handshake(ctx, nc, secure)
	}
	return newAsking(ctx, nc, secure)
}

func handshake(ctx context.Context, nc net.Conn, secure *tls.Config) (net.Conn, error) {
	t := tls.Client(nc, secure)
	if err := t.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return t, nil
}

// SetReady takes the check's verdict. Those of a check that was replaced or
// whose endpoint is gone have no effect.
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
	e.ready, e.judged = ready, true
	b.notify(Event{Kind: kind, Endpoint: e.address, Reason: why})
	b.rebuild()
}
