package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A plan has the settings for one target. Its Options are those of the run, changed by the
// target's URL: Protocol, TLS, Host, SNI and Path.
type plan struct {
	Options
	name     string // the target, as the user wrote it
	hostPort string // the address to connect to
	resolved netip.AddrPort
}

// A scheme has the defaults that the scheme of a URL implies.
type scheme struct {
	protocols []string // the values that --protocol may have; the first is the default
	tls       bool
	port      string // the default; empty: the URL must name one
}

var (
	overHTTP = []string{HTTP1, HTTP2, WebSocket, GRPC}
	schemes  = map[string]scheme{
		"http":  {overHTTP, false, "80"},
		"https": {overHTTP, true, "443"},
		"ws":    {[]string{WebSocket}, false, "80"},
		"wss":   {[]string{WebSocket}, true, "443"},
		"grpc":  {[]string{GRPC}, false, ""},
		"grpcs": {[]string{GRPC}, true, ""},
		"tcp":   {[]string{Raw}, false, ""},
		"tls":   {[]string{Raw}, true, ""},
	}
)

const schemeList = "http, https, ws, wss, grpc, grpcs, tcp or tls"

// healthCheck is the gRPC method that is called if the URL has no path.
const healthCheck = "/grpc.health.v1.Health/Check"

func newPlan(o *Options, target string) (*plan, error) {
	p := &plan{Options: *o, name: target}
	if strings.Contains(target, "://") {
		if err := p.fromURL(target); err != nil {
			return nil, err
		}
	} else if err := p.fromHostPort(target); err != nil {
		return nil, err
	}
	if p.Path == "" {
		p.Path = map[bool]string{false: "/", true: healthCheck}[p.Protocol == GRPC]
	}
	return p, nil
}

func (p *plan) fromHostPort(target string) error {
	host, port, err := net.SplitHostPort(target)
	if n, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || n == 0 {
		return fmt.Errorf("%q is neither a URL like https://example.org/ nor HOST:PORT", target)
	}
	if p.Protocol == "" {
		p.Protocol = HTTP1
	}
	p.at(host, port, map[bool]string{false: "80", true: "443"}[p.TLS])
	return nil
}

func (p *plan) fromURL(target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return fmt.Errorf("%q is not a URL: %w", target, errors.Unwrap(err))
	}
	s, known := schemes[u.Scheme]
	switch {
	case !known:
		return fmt.Errorf("%q begins with %s: the scheme of a URL must be %s", target, u.Scheme, schemeList)
	case u.User != nil:
		return fmt.Errorf("the URL for %s has a user name: send it with --header 'Authorization: …' instead", u.Host)
	case u.Hostname() == "":
		return fmt.Errorf("%q names no host", target)
	case p.TLS && !s.tls:
		return fmt.Errorf("%q has a scheme without TLS, and --tls is set: leave out --tls, or change the scheme", target)
	case p.Protocol != "" && !slices.Contains(s.protocols, p.Protocol):
		return fmt.Errorf("%q cannot be combined with --protocol %s: leave out --protocol, or change the scheme", target, p.Protocol)
	case u.Port() == "" && s.port == "":
		return fmt.Errorf("%q names no port, and %s has no default", target, u.Scheme)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q has the port %s: it must be from 1 to 65535", target, port)
		}
	}
	p.TLS = s.tls
	if p.Protocol == "" {
		p.Protocol = s.protocols[0]
	}
	if path := u.RequestURI(); path != "/" {
		switch {
		case p.Protocol == Raw:
			return fmt.Errorf("%q has a path: a %s URL ends with its port", target, u.Scheme)
		case p.Path != "":
			return fmt.Errorf("%q has a path: leave out --path", target)
		}
		p.Path = path
	}
	port := u.Port()
	if port == "" {
		port = s.port
	}
	p.at(u.Hostname(), port, s.port)
	return nil
}

// NoSNI and SystemCA are values of the options SNI and CA.
const (
	NoSNI    = "none"
	SystemCA = "system"
)

// at sets the address and the names of the target: Host without the usual port, and SNI
// without any port.
func (p *plan) at(host, port, usual string) {
	p.hostPort = net.JoinHostPort(host, port)
	if p.Host == "" {
		p.Host = p.hostPort
		if host == "" {
			p.Host = "localhost:" + port
		}
		if port == usual {
			p.Host = strings.TrimSuffix(p.Host, ":"+port)
		}
	}
	if p.SNI == "" {
		p.SNI = nameIn(p.Host)
	}
}

// nameIn returns the name in a Host header, without the port.
func nameIn(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// adopt copies the results of Prepare from the options.
func (p *plan) adopt(o *Options) {
	p.reply, p.clientIn, p.certificate, p.roots = o.reply, o.clientIn, o.certificate, o.roots
}

func (p *plan) checkSent() error {
	raw := p.Protocol == Raw
	switch {
	case !raw && (len(p.Send) > 0 || p.Reply != ""):
		return errors.New("--send and --reply need --protocol raw")
	case raw && (p.Body > 0 || p.OpenBodies > 0 || len(p.Fields) > 0):
		return errors.New("--body, --open-bodies and --header are for requests: --protocol raw makes none")
	case raw && p.Rate > 0 && len(p.Send) == 0:
		return errors.New("--rate needs --send with --protocol raw")
	case p.Protocol == GRPC && (p.Body > 0 || p.OpenBodies > 0):
		return errors.New("--body and --open-bodies cannot be combined with gRPC, which sends an empty message")
	case p.Protocol == WebSocket && p.OpenBodies > 0:
		return errors.New("--open-bodies cannot be combined with WebSockets, which have no request body")
	case p.Protocol == WebSocket && p.Message == MessagePing && p.Body > maxControl:
		return fmt.Errorf("--body is at most %d bytes with WebSocket pings: use --message echo for more", maxControl)
	}
	return nil
}

func (p *plan) checkFaults() error {
	for _, f := range p.Faults {
		switch {
		case f.Part == Header && p.Header == 0:
			return errors.New("a fault in the PROXY header (header) needs --proxy-header")
		case f.Part == Hello && !p.TLS:
			return errors.New("a fault in the ClientHello (hello) needs TLS: an https URL, or --tls")
		case f.Part == Head && p.Protocol == Raw && len(p.Send) == 0:
			return errors.New("a fault in the head needs --send with --protocol raw")
		case f.Part == Body && p.Protocol == WebSocket:
			return errors.New("a fault in the body cannot be combined with WebSockets, which have no request body")
		case f.Part == Body && p.Protocol != GRPC && p.Body == 0:
			return errors.New("a fault in the body needs --body")
		}
	}
	faulty := p.Faulty
	if len(p.Faults) == 0 || p.Faulty == 1 { // with 1, all connections have faults
		faulty = 0
	}
	if p.OpenBodies+p.SlowReaders+faulty > 1 {
		return errors.New("the shares of --open-bodies, --slow-readers and --share are more than 100% together")
	}
	return nil
}

func (p *plan) checkExpected() error {
	switch {
	case p.AddressField != "" && p.Protocol == Raw:
		return errors.New("--address-header is for responses; with --protocol raw use --address-pattern")
	case p.clientIn != nil && (p.Protocol == WebSocket || p.Protocol == GRPC):
		return errors.New("--address-pattern is for bodies of HTTP responses and for raw replies: use --address-header")
	case p.clientIn != nil && p.Protocol == Raw && p.reply == nil:
		p.reply = p.clientIn // the body must match
	}
	return nil
}

// Resolve finds the addresses of the targets. Its error is an *ExitError with
// StatusNoAnswer if a name has none.
func (o *Options) Resolve(ctx context.Context) error {
	for _, p := range o.plans {
		if err := p.resolve(ctx); err != nil {
			return err
		}
		if err := p.checkAddresses(); err != nil {
			return &ExitError{StatusUsage, o.of(p, err)}
		}
	}
	return nil
}

func (p *plan) resolve(ctx context.Context) error {
	host, port, _ := net.SplitHostPort(p.hostPort)
	number, _ := strconv.ParseUint(port, 10, 16)
	a, err := netip.ParseAddr(host)
	if host == "" {
		a, err = netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	if err != nil {
		all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return &ExitError{StatusNoAnswer, fmt.Errorf("cannot find the address of %s: %w", host, err)}
		}
		a = all[0]
		if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Unmap().Is4() }); i >= 0 {
			a = all[i] // the address that most programs would use
		}
	}
	p.resolved = netip.AddrPortFrom(a.Unmap(), uint16(number))
	return nil
}

func (p *plan) checkAddresses() error {
	to := p.resolved.Addr()
	if len(p.From) == 0 && to.Is4() && to.IsLoopback() && loopbackIsWide {
		p.From = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/24")}
	}
	for _, from := range p.From {
		if from.Addr().Is4() != to.Is4() {
			return fmt.Errorf("--from has %s, which cannot reach %s: one is IPv4, the other IPv6", from, to)
		}
	}
	return nil
}

// portion returns the part of n for one of several.
func portion(n, one, of int) int {
	if one < n%of {
		return n/of + 1
	}
	return n / of
}
