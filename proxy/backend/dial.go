package backend

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/disk"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// Outgoing is the content of the PROXY header that weir sends to an endpoint. If Local, the address
// to which the client connected, is not valid, the header names weir's own end of the connection.
type Outgoing struct {
	Client, Local netip.AddrPort
	TLVs          header.TLVs
}

// dialSettings is the part of the configuration for connections to an endpoint. It never
// changes.
type dialSettings struct {
	connect   time.Duration
	ofRoute   bool // connect is that of a route
	bodyIdle  time.Duration
	maxIdle   int
	sendProxy int
	http2     version2
	lenient   http1.Lenient
	infos     int         // limit of 1xx responses
	tls       *tls.Config // offers the HTTP versions that the protocol allows; nil: no TLS
	tls1      *tls.Config // the same, but does not offer HTTP/2
	// identity is a hash of the settings and files of the TLS configuration. The next reload
	// compares it.
	identity [sha256.Size]byte
	named    bool // tls.server_name is set
	byHost   map[string]tlsPair
}

// tlsPair holds the two TLS configurations of one host: as dialSettings.tls and tls1.
type tlsPair struct{ any, old *tls.Config }

// version2 is whether weir speaks HTTP/2 to endpoints.
type version2 uint8

const (
	never version2 = iota
	offered
	always
)

func versionOf(cfg *config.Backend) version2 {
	switch cfg.Protocol {
	case config.ProtocolH2C, config.ProtocolGRPC:
		return always
	case config.ProtocolHTTPS:
		if cfg.HTTP2 {
			return offered
		}
	}
	return never
}

// LenientOf returns the faults that a backend or a listener accepts.
func LenientOf(faults []config.Leniency) (l http1.Lenient) {
	for _, fault := range faults {
		l |= leniencies[fault]
	}
	return l
}

var leniencies = map[config.Leniency]http1.Lenient{
	config.BareLF: http1.BareLF, config.ChunkedHTTP10: http1.ChunkedHTTP10,
	config.FoldedLines: http1.FoldedLines, config.LengthWithChunked: http1.LengthWithChunked, config.TwiceChunked: http1.TwiceChunked,
	config.EqualLengths: http1.EqualLengths, config.RawTargets: http1.RawTargets,
	config.IdentityEncoding: http1.IdentityEncoding, config.ControlCharacters: http1.ControlCharacters,
}

var alpn = [...][]string{never: {"http/1.1"}, offered: {"h2", "http/1.1"}, always: {"h2"}}

// protocolsOf returns the protocols that weir offers endpoints by ALPN.
func protocolsOf(cfg *config.Backend) []string {
	if cfg.Protocol == config.ProtocolTCP {
		return cfg.TLS.ALPN
	}
	return alpn[versionOf(cfg)]
}

// mayShare reports whether an exchange may use a shared connection.
func (d *dialSettings) mayShare(need Need) bool {
	return d.sendProxy == 0 && !need.Private && (d.http2 == always || d.http2 == offered && !need.Upgrade)
}

// config returns the TLS configuration for the connection of an exchange.
func (d *dialSettings) config(need Need) *tls.Config {
	if (need.Upgrade || need.Private) && d.http2 == offered { // few servers support extended CONNECT
		return d.tls1
	}
	return d.tls
}

// agreed reports whether a new connection speaks HTTP/2.
func (d *dialSettings) agreed(t *tls.Conn) bool {
	if t == nil {
		return d.http2 == always
	}
	return t.ConnectionState().NegotiatedProtocol == "h2"
}

// newDialSettings reads the files that cfg names. before is nil at first. If the TLS
// settings and files did not change, it keeps the TLS configuration of before with its TLS
// sessions. If nothing changed, it returns before.
func newDialSettings(cfg *config.Backend, before *dialSettings) (*dialSettings, error) {
	d := &dialSettings{connect: cfg.Timeouts.Connect, bodyIdle: cfg.Timeouts.BodyIdle, maxIdle: cfg.MaxIdle,
		sendProxy: cfg.SendProxy, http2: versionOf(cfg), lenient: LenientOf(cfg.Lenient), infos: cmp.Or(cfg.MaxInterim, message.MaxInfos)}
	if cfg.UsesTLS() {
		if err := d.loadTLS(cfg, before); err != nil {
			return nil, err
		}
	}
	if before != nil && d.does(before) && (d.tls == nil || d.named || before.knows(cfg.Endpoints)) {
		return before, nil
	}
	return d, nil
}

// within returns d with the timeout of a route; 0: d itself.
func (d *dialSettings) within(connect time.Duration) *dialSettings {
	if connect == 0 || connect == d.connect {
		return d
	}
	own := *d
	own.connect, own.ofRoute = connect, true
	return &own
}

// takes reports whether a connection that was made with the settings was may be used now
// that d is in effect. Both belong to one endpoint, so their TLS configuration is for one
// host.
func (d *dialSettings) takes(was *dialSettings) bool {
	return d.tls == was.tls && d.sendProxy == was.sendProxy && d.http2 == was.http2 && d.lenient == was.lenient && d.infos == was.infos
}

// does reports whether d and before make the same connections, apart from the hosts of
// endpoints.
func (d *dialSettings) does(before *dialSettings) bool {
	return d.connect == before.connect && d.bodyIdle == before.bodyIdle && d.maxIdle == before.maxIdle && d.sendProxy == before.sendProxy &&
		d.http2 == before.http2 && d.lenient == before.lenient && d.infos == before.infos && d.named == before.named && d.tls == before.tls
}

// withHosts returns d with the hosts of cfg's endpoints, for the same backend.
func (d *dialSettings) withHosts(cfg *config.Backend) (*dialSettings, error) {
	if d.tls == nil || d.named || d.knows(cfg.Endpoints) {
		return d, nil
	}
	other := *d
	return &other, other.nameHosts(cfg)
}

// knows reports whether d has a TLS configuration for each endpoint's host.
func (d *dialSettings) knows(endpoints []config.Endpoint) bool {
	return !slices.ContainsFunc(endpoints, func(e config.Endpoint) bool {
		host, _ := splitHost(e.Address)
		return d.byHost[host].any == nil
	})
}

// loadTLS makes the TLS configuration, or keeps the one of before if it is unchanged.
func (d *dialSettings) loadTLS(cfg *config.Backend, before *dialSettings) error {
	t := &cfg.TLS
	protocols := protocolsOf(cfg)
	files, err := d.readFiles(t, protocols)
	if err != nil {
		return err
	}
	d.named = t.ServerName != ""
	if before != nil && before.tls != nil && before.identity == d.identity && before.http2 == d.http2 {
		d.tls, d.tls1, d.byHost = before.tls, before.tls1, before.byHost
		return d.nameHosts(cfg)
	}
	d.tls = &tls.Config{
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
		MinVersion:         cmp.Or(t.MinVersion, tls.VersionTLS12),
		MaxVersion:         t.MaxVersion,
		CipherSuites:       slices.Clone(t.CipherSuites),
		NextProtos:         protocols,
		ClientSessionCache: tls.NewLRUClientSessionCache(128),
		// weir sends whole messages, so small records at first would only cost time.
		DynamicRecordSizingDisabled: true,
	}
	if ca := files["ca"]; ca != nil {
		d.tls.RootCAs = x509.NewCertPool()
		if !d.tls.RootCAs.AppendCertsFromPEM(ca) {
			return fmt.Errorf("the file of tls.ca, %s, contains no PEM certificate", t.CAFile)
		}
	}
	if files["cert"] != nil {
		pair, err := tls.X509KeyPair(files["cert"], files["key"])
		if err != nil {
			return fmt.Errorf("the client certificate of tls.cert, %s: %w", t.CertFile, err)
		}
		d.tls.Certificates = []tls.Certificate{pair}
	}
	if len(t.Names)+len(t.URIs) > 0 {
		d.tls.InsecureSkipVerify, d.tls.VerifyConnection = true, alternativeNames(d.tls.RootCAs, t.Names, t.URIs)
	}
	d.tls1 = d.forHTTP1(d.tls)
	return d.nameHosts(cfg)
}

// forHTTP1 returns a configuration that does not offer HTTP/2.
func (d *dialSettings) forHTTP1(c *tls.Config) *tls.Config {
	if d.http2 == never {
		return c
	}
	return offering(c, never)
}

// offering returns a copy of c that offers the HTTP versions of v.
func offering(c *tls.Config, v version2) *tls.Config {
	c = c.Clone()
	c.NextProtos = alpn[v]
	return c
}

// readFiles reads the files that t names. It hashes them and the settings into d.identity.
func (d *dialSettings) readFiles(t *config.BackendTLS, protocols []string) (map[string][]byte, error) {
	files := make(map[string][]byte, 3)
	identity := sha256.New()
	fmt.Fprintf(identity, "%q %t %q %d %d %d %t %q %q", t.ServerName, t.InsecureSkipVerify, protocols, t.MinVersion, t.MaxVersion, t.CipherSuites, t.SHA1, t.Names, t.URIs)
	for _, f := range []struct {
		key, path string
		content   []byte
	}{{"ca", t.CAFile, t.CAPEM}, {"cert", t.CertFile, t.CertPEM}, {"key", t.KeyFile, []byte(t.KeyPEM)}} {
		content, err := f.content, error(nil)
		if f.path != "" {
			content, err = disk.Read(f.path, config.MaxPEM)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the file of tls.%s: %w", f.key, err)
		}
		if len(content) == 0 && f.path == "" {
			continue
		}
		files[f.key] = content
		fmt.Fprintf(identity, " %s %x", f.key, sha256.Sum256(content))
	}
	identity.Sum(d.identity[:0])
	return files, nil
}

// nameHosts makes one TLS configuration for each configured host, because crypto/tls checks
// a certificate against the ServerName of the configuration.
func (d *dialSettings) nameHosts(cfg *config.Backend) error {
	if d.named {
		return nil
	}
	byHost := make(map[string]tlsPair, len(cfg.Endpoints))
	for _, e := range cfg.Endpoints {
		host, _ := splitHost(e.Address)
		if host == "" && !d.tls.InsecureSkipVerify {
			return fmt.Errorf("endpoint %s: TLS over a Unix socket needs tls.server_name to check the certificate against", e.Address)
		}
		c := d.byHost[host]
		if c.any == nil {
			c.any = d.tls.Clone()
			c.any.ServerName, _, _ = strings.Cut(host, "%") // the zone is not part of the name
			c.old = d.forHTTP1(c.any)
		}
		byHost[host] = c
	}
	d.byHost = byHost
	return nil
}

// forHost returns d for the endpoints of one configured host: d itself if they need no TLS
// configuration of their own.
func (d *dialSettings) forHost(host string) *dialSettings {
	if d.byHost == nil {
		return d
	}
	own := *d
	if c := own.byHost[host]; own.tls != nil && !own.named && c.any != nil {
		own.tls, own.tls1 = c.any, c.old
	}
	own.byHost = nil
	return &own
}

func (b *Backend) dialSettings() *dialSettings {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dial
}

// Dial connects to the endpoint within timeouts.connect. This time covers the connection,
// the PROXY header if the backend has send_proxy, and the TLS handshake if the backend uses
// TLS. If out is nil, the PROXY header has the command LOCAL. The caller owns the link,
// which is a connection of its own, for HTTP/1.1 or a tunnel. An error names the phase that
// failed.
func (e *Endpoint) Dial(ctx context.Context, out *Outgoing) (*Link, error) {
	return e.dialWatched(ctx, out, nil)
}

// Watch follows a connection while it is made.
type Watch interface {
	// Made is called when the TCP connection exists, before weir begins the TLS handshake.
	Made(*conn.Conn)
	// Lost is called after a failed handshake, before weir closes the connection that it
	// passed to Made.
	Lost(*conn.Conn)
}

// DialWatched is Dial for a tunnel, and reports to w unless w is nil.
func (e *Endpoint) DialWatched(ctx context.Context, out *Outgoing, w Watch) (*tunnel.ConnEnd, error) {
	s, err := e.dialWatched(ctx, out, w)
	if err != nil {
		return nil, err
	}
	return &tunnel.ConnEnd{Conn: s.own.Conn, TLS: s.own.tls}, nil
}

func (e *Endpoint) dialWatched(ctx context.Context, out *Outgoing, w Watch) (*Link, error) {
	d := e.dial.Load()
	ctx, cancel := context.WithTimeout(ctx, d.connect)
	defer cancel()
	return e.dialAs(ctx, d, out, d.tls1, w)
}

// dialAs is dialWatched with this TLS configuration (nil: no TLS). Only ctx limits the time.
func (e *Endpoint) dialAs(ctx context.Context, d *dialSettings, out *Outgoing, secure *tls.Config, w Watch) (*Link, error) {
	nc, err := withDescriptor(ctx, e.backend.opts.waiting, func() (net.Conn, error) {
		if err := e.permit(e.addr); err != nil {
			return nil, err
		}
		return e.connect(ctx)
	})
	if err != nil {
		return nil, e.dialError("connecting to", d, err)
	}
	if err := writeHeader(ctx, nc, d.sendProxy, out); err != nil {
		nc.Close()
		return nil, e.dialError("sending the PROXY header to", d, err)
	}
	s := newLink(e, conn.New(nc), d)
	if w != nil {
		w.Made(s.own.Conn)
	}
	if secure == nil {
		return s, nil
	}
	if err := s.own.handshake(ctx, secure); err != nil {
		if w != nil {
			w.Lost(s.own.Conn)
		}
		s.own.Conn.Close()
		return nil, e.dialError("the TLS handshake with", d, err)
	}
	return s, nil
}

func (e *Endpoint) describe() string {
	return fmt.Sprintf("endpoint %s of backend %q", e.address, e.backend.name)
}

func (e *Endpoint) dialError(doing string, d *dialSettings, err error) error {
	var badCert *tls.CertificateVerificationError
	switch {
	case conn.TimedOut(err):
		setting := "backends." + e.backend.name + ".timeouts.connect"
		if d.ofRoute {
			setting = "timeouts.connect of the route"
		}
		return conn.Explain(err, "%s %s took longer than %v (%s)", doing, e.describe(), d.connect, setting)
	case errors.As(err, &badCert):
		return fmt.Errorf("%s %s: %w (check tls.ca and tls.server_name of the backend)", doing, e.describe(), err)
	}
	for _, m := range mismatches {
		if strings.Contains(err.Error(), m.text) {
			return fmt.Errorf("%s %s: %w (%s)", doing, e.describe(), err, m.hint)
		}
	}
	return fmt.Errorf("%s %s: %w", doing, e.describe(), err)
}

// mismatches are the errors of crypto/tls for a handshake that fails because weir and the
// endpoint have no TLS parameters in common, each with the settings to check. A test causes
// each of these errors.
var mismatches = []struct{ text, hint string }{
	{"tls: server selected unsupported protocol version", wrongVersion},
	{"remote error: tls: protocol version not supported", wrongVersion},
	{"remote error: tls: handshake failure", wrongSuite},
	{"tls: certificate used with invalid signature algorithm", "the endpoint signs with SHA-1; see tls.sha1_signatures of the backend"},
}

const (
	wrongVersion = "the endpoint speaks none of the TLS versions from tls.min_version to tls.max_version of the backend"
	wrongSuite   = "the endpoint probably accepts none of the cipher suites or signatures that weir offers; see tls.cipher_suites and tls.sha1_signatures of the backend"
)

// dialer sends TCP keep-alive probes. They detect an endpoint that disappeared without
// closing its connections. That matters most for tunnels.
var dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
	Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3,
}}

// retryExhausted is the pause before a dial tries again if the process has no free
// descriptor.
const retryExhausted = 20 * time.Millisecond

// withDescriptor dials. While the process has no free descriptor, it dials again until ctx
// is done: the endpoint is not at fault, and other connections end meanwhile. waiting counts
// the dials that wait.
func withDescriptor(ctx context.Context, waiting *atomic.Int64, dial func() (net.Conn, error)) (net.Conn, error) {
	nc, err := dial()
	if !conn.Exhausted(err) {
		return nc, err
	}
	waiting.Add(1)
	defer waiting.Add(-1)
	for conn.Exhausted(err) {
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retryExhausted):
		}
		nc, err = dial()
	}
	return nc, err
}

func dialSocket(ctx context.Context, addr netip.AddrPort, path string) (net.Conn, error) {
	if path != "" {
		c, err := dialer.DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	// Do not use DialTCP: in Go 1.26 it binds the local address even if none is given. A
	// port bound like that serves only one connection, whatever the destination. Then the
	// machine has no ports left when about 28000 connections are in TIME_WAIT.
	return dialer.DialContext(ctx, "tcp", addr.String())
}

// writeHeader writes a PROXY header of this version; 0: none. The header fits into the empty
// send buffer, so the write does not wait in practice.
func writeHeader(ctx context.Context, nc net.Conn, version int, out *Outgoing) error {
	if version == 0 {
		return nil
	}
	h := header.Header{Local: out == nil}
	if out != nil {
		h.Source, h.Destination, h.TLVs = out.Client, out.Local, out.TLVs
		if own, ok := nc.LocalAddr().(*net.TCPAddr); ok && !h.Destination.IsValid() {
			h.Destination = own.AddrPort()
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		nc.SetWriteDeadline(deadline)
		defer nc.SetWriteDeadline(time.Time{})
	}
	_, err := nc.Write(header.Append(make([]byte, 0, 256), version, &h, header.Options{}))
	return err
}
