package config

import (
	"bytes"
	"slices"
)

// Equal reports whether two routes have the same settings. It compares thousands of routes
// after each change in a cluster, for which reflection is too slow.
func (r *Route) Equal(o *Route) bool {
	return r.Name == o.Name && r.Position == o.Position && r.Namespace == o.Namespace &&
		r.Ingress == o.Ingress && r.IngressHost == o.IngressHost &&
		slices.Equal(r.Listeners, o.Listeners) && slices.Equal(r.Hosts, o.Hosts) && slices.Equal(r.Paths, o.Paths) &&
		r.Match.equal(o.Match) &&
		r.TLSPolicy == o.TLSPolicy && r.TLS == o.TLS && slices.Equal(r.ALPN, o.ALPN) && r.FirstBytes == o.FirstBytes && r.SilentAfter == o.SilentAfter &&
		r.Backend == o.Backend && slices.EqualFunc(r.Backends, o.Backends, WeightedBackend.equal) && equal(r.Canary, o.Canary) && equal(r.Fallback, o.Fallback) && slices.Equal(r.HashBy, o.HashBy) && equal(r.Sticky, o.Sticky) && equal(r.Redirect, o.Redirect) && equal(r.HSTS, o.HSTS) && r.Respond.equal(o.Respond) &&
		r.Request.equal(o.Request) && equal(r.Rewrite, o.Rewrite) && r.Response.equal(o.Response) &&
		r.Clients.equal(o.Clients) &&
		r.Auth == o.Auth && r.Satisfy == o.Satisfy &&
		r.CORS.equal(o.CORS) &&
		slices.EqualFunc(r.Errors, o.Errors, ErrorPage.equal) &&
		slices.Equal(r.Mirror, o.Mirror) &&
		r.Unlogged == o.Unlogged && r.Untraced == o.Untraced &&
		r.Compress == o.Compress &&
		r.RateLimit == o.RateLimit && equal(r.InFlight, o.InFlight) && r.Limits.equal(o.Limits) && equal(r.Script, o.Script) && equal(r.Reverse, o.Reverse) && equal(r.ClientCert, o.ClientCert) &&
		equal(r.Timeouts, o.Timeouts) && r.Retries.equal(o.Retries) &&
		r.MaxBody == o.MaxBody && r.MaxLifetime == o.MaxLifetime && r.TunnelIdle == o.TunnelIdle && equal(r.Closure, o.Closure) && equal(r.Order, o.Order)
}

func (m *Match) equal(o *Match) bool {
	if m == nil || o == nil {
		return m == o
	}
	return slices.Equal(m.Methods, o.Methods) && slices.Equal(m.Headers, o.Headers) && slices.Equal(m.Query, o.Query) &&
		slices.Equal(m.Cookies, o.Cookies) && slices.Equal(m.Clients, o.Clients)
}

func (e *HeaderEdits) equal(o *HeaderEdits) bool {
	if e == nil || o == nil {
		return e == o
	}
	return slices.Equal(e.Remove, o.Remove) && slices.Equal(e.Set, o.Set) && slices.Equal(e.Add, o.Add)
}

func (c *CORS) equal(o *CORS) bool {
	if c == nil || o == nil {
		return c == o
	}
	return slices.Equal(c.Origins, o.Origins) && slices.Equal(c.Methods, o.Methods) && slices.Equal(c.Headers, o.Headers) &&
		slices.Equal(c.Expose, o.Expose) && c.Credentials == o.Credentials && c.MaxAge == o.MaxAge && c.Echo == o.Echo && c.AsNginx == o.AsNginx
}

func (e ErrorPage) equal(o ErrorPage) bool {
	return slices.Equal(e.Status, o.Status) && e.Backend == o.Backend && e.Path == o.Path && e.AsNginx == o.AsNginx && e.Report == o.Report && e.OnlyOwn == o.OnlyOwn
}

func (t *RouteRetries) equal(o *RouteRetries) bool {
	if t == nil || o == nil {
		return t == o
	}
	return t.Attempts == o.Attempts && t.Within == o.Within && t.Backoff == o.Backoff && t.NonIdempotent == o.NonIdempotent && slices.Equal(t.When, o.When) && t.Unshared == o.Unshared
}

func (f *Respond) equal(o *Respond) bool {
	if f == nil || o == nil {
		return f == o
	}
	return f.Status == o.Status && f.Body == o.Body && f.Type == o.Type && slices.Equal(f.Headers, o.Headers)
}

// Equal reports whether two backends have the same settings and endpoints.
func (b *Backend) Equal(o *Backend) bool {
	return b.Name == o.Name && b.Position == o.Position && b.Namespace == o.Namespace && b.Closed == o.Closed && b.Missing == o.Missing && b.Protocol == o.Protocol &&
		slices.Equal(b.Endpoints, o.Endpoints) && b.ResolveInterval == o.ResolveInterval && b.Balance == o.Balance && b.Group == o.Group && b.HashSubset == o.HashSubset &&
		b.SendProxy == o.SendProxy && b.Host == o.Host && b.HealthCheck.equal(o.HealthCheck) && b.Ejection.Equal(&o.Ejection) &&
		b.MaxConnections == o.MaxConnections && b.Queue == o.Queue && b.MaxIdle == o.MaxIdle && b.PreferLocal == o.PreferLocal &&
		b.RampUp == o.RampUp && b.HTTP2 == o.HTTP2 && b.MaxInterim == o.MaxInterim && slices.Equal(b.Lenient, o.Lenient) && b.Secure == o.Secure &&
		b.TLS.equal(&o.TLS) && b.Timeouts == o.Timeouts && b.Retries == o.Retries && equal(b.Sticky, o.Sticky)
}

func (h *HealthCheck) equal(o *HealthCheck) bool {
	if h == nil || o == nil {
		return h == o
	}
	return equal(h.HTTP, o.HTTP) && equal(h.GRPC, o.GRPC) && h.TCP == o.TCP && h.Interval == o.Interval && h.Timeout == o.Timeout &&
		h.Rise == o.Rise && h.Fall == o.Fall && h.Port == o.Port && h.SendProxy == o.SendProxy
}

func (t *BackendTLS) equal(o *BackendTLS) bool {
	return bytes.Equal(t.CAPEM, o.CAPEM) && bytes.Equal(t.CertPEM, o.CertPEM) && t.KeyPEM == o.KeyPEM && slices.Equal(t.Names, o.Names) && slices.Equal(t.URIs, o.URIs) &&
		t.ServerName == o.ServerName && t.CAFile == o.CAFile && t.CertFile == o.CertFile && t.KeyFile == o.KeyFile &&
		slices.Equal(t.ALPN, o.ALPN) && t.InsecureSkipVerify == o.InsecureSkipVerify && t.MinVersion == o.MinVersion &&
		t.MaxVersion == o.MaxVersion && slices.Equal(t.CipherSuites, o.CipherSuites) && t.SHA1 == o.SHA1
}

// equal compares what two pointers point to; each may be nil.
func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
