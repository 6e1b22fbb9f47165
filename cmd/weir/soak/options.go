package soak

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What connections speak.
const (
	HTTP1 = "http1"
	HTTP2 = "http2"
	Raw   = "raw"
)

// What is to become of connections with faults.
const (
	ExpectAny      = "any"
	ExpectServed   = "served"
	ExpectUnserved = "unserved" // closed, or answered with a status that is not expected
	ExpectClosed   = "closed"   // without a word
)

// Options say what a run does. Defaults is where to begin; Prepare finds what
// is wrong with them.
type Options struct {
	Address  string // HOST:PORT
	Protocol string // HTTP1, HTTP2 or Raw
	TLS      bool
	Host     string // for SNI and Host; empty: that of Address
	// Header is the version of the PROXY header that each connection begins with; 0 is none.
	Header int
	// Clients are where the made-up clients of the headers come from.
	Clients []netip.Prefix
	// From are the local addresses to connect from. Empty: many of loopback's
	// where Address is on loopback and the system has them, else the system's choice.
	From []netip.Prefix

	Connections int           // how many are held
	Rate        float64       // connections opened in a second
	Duration    time.Duration // of the whole run
	Churn       time.Duration // how long a connection lives, about; 0: until the end
	Every       time.Duration // how often a held connection makes an exchange; 0: once
	Timeout     time.Duration // of each wait for the other side
	Processes   int           // at least; more are used where descriptors ask for it

	Path   string
	Fields []string // further fields of a request, as "Name: value"
	Body   int      // bytes of a request's body; 0 is a GET without one
	Send   []byte   // what raw sends
	Reply  string   // a regular expression for what raw gets; empty: nothing is waited for

	Faults      []Fault
	Faulty      Share // of connections with Faults
	OpenBodies  Share // of connections whose first request has a body that never ends
	SlowReaders Share // of connections that read responses at slowRate
	Expect      string

	Status []string // expected statuses: 200, 2xx
	// AddressField is the response field, AddressPattern the regular expression
	// with one group for the body, that say what client address the other side saw.
	AddressField, AddressPattern string

	resolved netip.AddrPort
	reply    *regexp.Regexp
	address  *regexp.Regexp
}

// Defaults are those of the command line: bounded, and bearable for what they meet.
func Defaults() Options {
	return Options{
		Protocol: HTTP1, Path: "/", Clients: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
		Connections: 1000, Rate: 200, Duration: 30 * time.Second, Every: 10 * time.Second, Timeout: 10 * time.Second,
		Faulty: 1, Expect: ExpectAny, Status: []string{"2xx", "3xx"},
	}
}

// Prepare checks the options and resolves the address.
func (o *Options) Prepare() error {
	host, err := o.resolve()
	if err != nil {
		return err
	}
	if o.Host == "" {
		o.Host = host
	}
	for _, check := range []func() error{o.checkLoad, o.checkSent, o.checkFaults, o.checkExpected, o.checkAddresses} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (o *Options) resolve() (host string, err error) {
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return "", fmt.Errorf("%q is not HOST:PORT", o.Address)
	}
	a, err := net.ResolveTCPAddr("tcp", o.Address)
	if err != nil || a.Port == 0 {
		return "", fmt.Errorf("cannot find %s, port %s: %w", host, port, orWrong(err))
	}
	if a.IP == nil {
		a.IP = net.IPv4(127, 0, 0, 1)
	}
	o.resolved = a.AddrPort()
	o.resolved = netip.AddrPortFrom(o.resolved.Addr().Unmap(), o.resolved.Port())
	if host == "" {
		host = o.resolved.Addr().String()
	}
	return host, nil
}

func orWrong(err error) error {
	if err == nil {
		return errors.New("nothing listens on port 0")
	}
	return err
}

// Beyond these a typing error is likelier than a wish.
const (
	maxConnections = 10_000_000
	maxProcesses   = 512
	maxBody        = 64 << 20
)

func (o *Options) checkLoad() error {
	switch {
	case o.Connections < 1 || o.Connections > maxConnections:
		return fmt.Errorf("--connections is %d: it is at least 1 and at most %d", o.Connections, maxConnections)
	case !(o.Rate > 0):
		return errors.New("--rate is how many connections are opened in a second, and more than 0")
	case o.Duration <= 0:
		return errors.New("--duration is more than 0: every run ends")
	case o.Timeout <= 0:
		return errors.New("--timeout is more than 0: every wait ends")
	case o.Churn < 0 || o.Every < 0:
		return errors.New("--churn and --every are not negative")
	case o.Processes < 0 || o.Processes > maxProcesses:
		return fmt.Errorf("--processes is %d: it is at most %d", o.Processes, maxProcesses)
	}
	return nil
}

func (o *Options) checkSent() (err error) {
	switch {
	case !slices.Contains([]string{HTTP1, HTTP2, Raw}, o.Protocol):
		return fmt.Errorf("--protocol is http1, http2 or raw, and not %q", o.Protocol)
	case o.Header < 0 || o.Header > 2:
		return errors.New("--proxy-header is v1 or v2")
	case o.Protocol != Raw && (len(o.Send) > 0 || o.Reply != ""):
		return errors.New("--send and --reply need --protocol raw")
	case o.Protocol == Raw && (o.Body > 0 || o.OpenBodies > 0 || len(o.Fields) > 0):
		return errors.New("--body, --open-bodies and --field are for requests, which --protocol raw makes none of")
	case o.Body < 0 || o.Body > maxBody:
		return fmt.Errorf("--body is at most %d bytes", maxBody)
	case !strings.HasPrefix(o.Path, "/") || strings.ContainsAny(o.Path, " \r\n"):
		return fmt.Errorf("--path is %q: it begins with a / and has no spaces", o.Path)
	}
	for _, f := range o.Fields {
		name, value, ok := strings.Cut(f, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t\r\n") || strings.ContainsAny(value, "\r\n") {
			return fmt.Errorf("--field is 'Name: value', and not %q", f)
		}
	}
	if o.reply, err = pattern("--reply", o.Reply); err != nil {
		return err
	}
	return nil
}

func pattern(flag, text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return re, nil
}

func (o *Options) checkFaults() error {
	for _, f := range o.Faults {
		switch {
		case f.Part == Header && o.Header == 0:
			return errors.New("a fault in the header needs --proxy-header")
		case f.Part == Hello && !o.TLS:
			return errors.New("a fault in the ClientHello (hello) needs --tls")
		case f.Part == Head && o.Protocol == Raw && len(o.Send) == 0:
			return errors.New("a fault in the head needs something to --send with --protocol raw")
		case f.Part == Body && o.Body == 0:
			return errors.New("a fault in the body needs a --body")
		}
	}
	faulty := o.Faulty
	if len(o.Faults) == 0 || o.Faulty == 1 { // 1 is: all the others
		faulty = 0
	}
	switch {
	case o.OpenBodies+o.SlowReaders+faulty > 1:
		return errors.New("--open-bodies, --slow-readers and --share are more than all connections together")
	case !slices.Contains([]string{ExpectAny, ExpectServed, ExpectUnserved, ExpectClosed}, o.Expect):
		return fmt.Errorf("--expect is any, served, unserved or closed, and not %q", o.Expect)
	}
	return nil
}

var statusPattern = regexp.MustCompile(`^[1-5]([0-9][0-9]|xx)$`)

func (o *Options) checkExpected() (err error) {
	for _, s := range o.Status {
		if !statusPattern.MatchString(s) {
			return fmt.Errorf("--status has %q: it is a list like 200,3xx", s)
		}
	}
	if o.address, err = pattern("--address-pattern", o.AddressPattern); err != nil {
		return err
	}
	if o.address != nil && o.address.NumSubexp() != 1 {
		return errors.New("--address-pattern needs one group around the address, as in 'client: (\\S+)'")
	}
	if o.AddressField != "" && o.Protocol == Raw {
		return errors.New("--address-field is for responses; with --protocol raw use --address-pattern")
	}
	if o.address != nil && o.Protocol == Raw && o.reply == nil {
		o.reply = o.address // it has to come, then
	}
	return nil
}

func (o *Options) expects(status int) bool {
	s := strconv.Itoa(status)
	return slices.ContainsFunc(o.Status, func(want string) bool { return want == s || len(s) == 3 && want == s[:1]+"xx" })
}

func (o *Options) checkAddresses() error {
	if o.Header > 0 && len(o.Clients) == 0 {
		return errors.New("--clients names no network")
	}
	to := o.resolved.Addr()
	if len(o.From) == 0 && to.Is4() && to.IsLoopback() && loopbackIsWide {
		o.From = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/24")}
	}
	for _, p := range o.From {
		if p.Addr().Is4() != to.Is4() {
			return fmt.Errorf("--from has %s, from where %s cannot be reached", p, to)
		}
	}
	return nil
}
