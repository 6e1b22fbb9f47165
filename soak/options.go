package soak

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The protocols of connections.
const (
	HTTP1     = "http1"
	HTTP2     = "http2"
	GRPC      = "grpc"
	WebSocket = "websocket"
	Raw       = "raw"
)

var protocols = []string{HTTP1, HTTP2, GRPC, WebSocket, Raw}

// The values of Options.Message: the messages that a WebSocket sends, and the answer that
// it expects.
const (
	MessagePing = "ping"
	MessageEcho = "echo"
)

// The expected outcomes of connections with faults.
const (
	ExpectAny      = "any"
	ExpectServed   = "served"
	ExpectUnserved = "unserved" // closed, or a response with a status that is not expected
	ExpectClosed   = "closed"   // closed without a response
)

// Options describe a run. Start with Defaults. Prepare reports errors in them. settings.go
// writes them to the report.
type Options struct {
	// Targets are the targets of the load: URLs, or HOST:PORT.
	Targets  []string
	Protocol string // of HOST:PORT, and of http and https URLs; empty: the default of the scheme, or HTTP1
	TLS      bool   // for HOST:PORT
	Host     string // the HTTP header Host; empty: the target's
	SNI      string // empty: the name in Host; NoSNI: none is sent
	Cert     string // a PEM file with the client certificate
	Key      string // a PEM file with its key; empty: Cert has it
	CA       string // a PEM file with the CAs that verify the certificate of a target; empty: no verification; SystemCA: the system's CAs
	// Header is the version of the PROXY header at the beginning of each connection; 0:
	// none.
	Header int
	// Clients are the networks of the made-up client addresses in PROXY headers.
	Clients []netip.Prefix
	// From are the local addresses to connect from. Empty: many loopback addresses if a
	// target is on loopback and the system has them, otherwise the system chooses.
	From []netip.Prefix

	Connections int           // open connections, to all targets together
	ConnectRate Rate          // connections opened per second
	Rate        Rate          // requests due per second, in an open loop; 0: a closed loop
	Duration    time.Duration // of the load
	Churn       time.Duration // the approximate life of a connection; 0: until the end
	Every       time.Duration // the time between two requests of an open connection in a closed loop; 0: it makes only one
	Timeout     time.Duration // for each wait for the other side
	Processes   int           // at least this many; more if one process has too few descriptors
	Interval    time.Duration // the interval of the time series; 0: a second, or longer in long runs

	Path       string
	Fields     []string // further HTTP headers of a request, as "Name: value"
	Body       int      // bytes of a request's body; 0: a GET without one; with WebSocket the size of a message
	Message    string   // MessagePing or MessageEcho
	GRPCStatus []int    // expected statuses of gRPC
	Send       []byte   // what raw sends
	Reply      string   // a regular expression for the bytes that raw receives; empty: it expects none

	Faults      []Fault
	Faulty      Share // of connections with Faults
	OpenBodies  Share // of connections whose first request has an endless body
	SlowReaders Share // of connections that read responses at the rate slowRate
	Expect      string

	Status []string // expected statuses: 200, 2xx
	// The report compares the client address that the other side saw. AddressField is the response header
	// with that address. AddressPattern is a regular expression whose one group finds the address in the
	// body.
	AddressField, AddressPattern string

	MaxP99    time.Duration // the threshold; 0: none
	MaxErrors Limit

	plans       []*plan
	reply       *regexp.Regexp
	clientIn    *regexp.Regexp // AddressPattern
	certificate *tls.Certificate
	roots       *x509.CertPool // nil: no verification
}

// Defaults returns the defaults of the command line: limited, and tolerable for the
// targets.
func Defaults() Options {
	return Options{
		Clients:     []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
		Connections: 1000, ConnectRate: 200, Duration: 30 * time.Second, Every: 10 * time.Second, Timeout: 10 * time.Second,
		Faulty: 1, Expect: ExpectAny, Status: []string{"2xx", "3xx"}, GRPCStatus: []int{0}, Message: MessagePing,
	}
}

// Prepare checks the options. It does not resolve names; Resolve does.
func (o *Options) Prepare() error {
	for _, check := range []func() error{o.checkTargets, o.checkLoad, o.checkSent, o.checkCertificates, o.checkExpected} {
		if err := check(); err != nil {
			return err
		}
	}
	for _, p := range o.plans {
		p.adopt(o)
		for _, check := range []func() error{p.checkSent, p.checkFaults, p.checkExpected} {
			if err := check(); err != nil {
				return o.of(p, err)
			}
		}
	}
	return nil
}

// of adds the name of the target to err, if there are several.
func (o *Options) of(p *plan, err error) error {
	if len(o.plans) == 1 {
		return err
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// checkTargets makes a plan for each target.
func (o *Options) checkTargets() error {
	if len(o.Targets) == 0 {
		return errors.New("name a target: a URL, or HOST:PORT")
	}
	o.plans = nil
	for _, t := range o.Targets {
		p, err := newPlan(o, t)
		if err != nil {
			return err
		}
		o.plans = append(o.plans, p)
	}
	return nil
}

// Larger values are probably typing errors.
const (
	maxConnections = 10_000_000
	maxRate        = 10_000_000
	maxProcesses   = 512
	maxBody        = 64 << 20
	maxIntervals   = 100_000
)

func (o *Options) checkLoad() error {
	switch {
	case o.Connections < 1 || o.Connections > maxConnections:
		return fmt.Errorf("--connections is %d: it must be from 1 to %d", o.Connections, maxConnections)
	case o.Connections < len(o.plans):
		return fmt.Errorf("--connections is %d: each of the %d targets needs one at least", o.Connections, len(o.plans))
	case !(o.Rate >= 0 && o.Rate <= maxRate):
		return fmt.Errorf("--rate must be more than 0 and at most %d requests a second", maxRate)
	case !(o.ConnectRate > 0 && o.ConnectRate <= maxRate):
		return fmt.Errorf("--connect-rate must be more than 0 and at most %d connections a second", maxRate)
	case o.Duration <= 0:
		return errors.New("--duration must be more than 0: every run ends")
	case o.Rate > 0 && o.planned() == 0:
		return errors.New("--rate and --duration together make no request: raise one of them")
	case o.Timeout <= 0:
		return errors.New("--timeout must be more than 0: every wait ends")
	case o.Churn < 0 || o.Every < 0 || o.Interval < 0 || o.MaxP99 < 0:
		return errors.New("--churn, --every, --interval and --max-p99 must not be negative")
	case o.length()/o.interval() > maxIntervals:
		return fmt.Errorf("--interval is too short: the time series would have more than %d intervals", maxIntervals)
	case o.Processes < 0 || o.Processes > maxProcesses:
		return fmt.Errorf("--processes is %d: it must be at most %d", o.Processes, maxProcesses)
	}
	return nil
}

// planned returns the number of requests of an open loop.
func (o *Options) planned() int64 { return int64(float64(o.Rate)*o.Duration.Seconds() + 1e-9) }

// ramp is how long an open loop waits until its connections are open, before the first
// request is due.
func (o *Options) ramp() time.Duration {
	if o.Rate == 0 {
		return 0
	}
	return time.Duration(float64(o.Connections) / float64(o.ConnectRate) * float64(time.Second))
}

// length is the time in which new requests begin.
func (o *Options) length() time.Duration { return o.ramp() + o.Duration }

// interval is the interval of the time series: by default a second, or longer, so that
// there are at most about 600.
func (o *Options) interval() time.Duration {
	if o.Interval > 0 {
		return o.Interval
	}
	return max(time.Second, (o.length() / 600).Round(time.Second))
}

// ownFields are the HTTP headers that the tool sets itself, with the flag to use instead. A
// second Host or length would be an error of the load, not of the target.
var ownFields = map[string]string{
	"host":              "use --host",
	"content-length":    "use --body",
	"transfer-encoding": "use --body",
}

func (o *Options) checkSent() (err error) {
	switch {
	case o.Protocol != "" && !slices.Contains(protocols, o.Protocol):
		return fmt.Errorf("--protocol is %q: it must be one of %s", o.Protocol, strings.Join(protocols, ", "))
	case o.Header < 0 || o.Header > 2:
		return errors.New("--proxy-header must be v1 or v2")
	case o.Header > 0 && len(o.Clients) == 0:
		return errors.New("--clients names no network")
	case o.Body < 0 || o.Body > maxBody:
		return fmt.Errorf("--body must be at most %d bytes", maxBody)
	case o.Path != "" && !strings.HasPrefix(o.Path, "/") || strings.ContainsAny(o.Path, " \r\n"):
		return fmt.Errorf("--path is %q: it must begin with a / and have no spaces", o.Path)
	case strings.ContainsAny(o.Host, " /\r\n"):
		return fmt.Errorf("--host is %q: it must be a name, alone or with a port", o.Host)
	}
	for _, f := range o.Fields {
		name, value, ok := strings.Cut(f, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t\r\n") || strings.ContainsAny(value, "\r\n") {
			return fmt.Errorf("--header is %q: it must be like 'Name: value'", f)
		}
		if instead, own := ownFields[strings.ToLower(name)]; own {
			return fmt.Errorf("--header sets %s, which the tool sends itself: %s", name, instead)
		}
	}
	o.reply, err = pattern("--reply", o.Reply)
	return err
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

var statusPattern = regexp.MustCompile(`^[1-5]([0-9][0-9]|xx)$`)

func (o *Options) checkExpected() (err error) {
	for _, s := range o.Status {
		if !statusPattern.MatchString(s) {
			return fmt.Errorf("--status has %q: it must be a list like 200,3xx", s)
		}
	}
	switch o.clientIn, err = pattern("--address-pattern", o.AddressPattern); {
	case err != nil:
		return err
	case o.clientIn != nil && o.clientIn.NumSubexp() != 1:
		return errors.New("--address-pattern needs one group around the address, as in 'client: (\\S+)'")
	case !slices.Contains([]string{MessagePing, MessageEcho}, o.Message):
		return fmt.Errorf("--message is %q: it must be ping or echo", o.Message)
	case !slices.Contains([]string{ExpectAny, ExpectServed, ExpectUnserved, ExpectClosed}, o.Expect):
		return fmt.Errorf("--expect is %q: it must be any, served, unserved or closed", o.Expect)
	case o.Expect != ExpectAny && !o.hasFaults():
		return fmt.Errorf("--expect %s is for connections with faults, and no connection has one: add --delay, --cut, --open-bodies or --slow-readers", o.Expect)
	}
	return nil
}

// hasFaults returns true if some connections have faults.
func (o *Options) hasFaults() bool {
	return len(o.Faults) > 0 && o.Faulty > 0 || o.OpenBodies > 0 || o.SlowReaders > 0
}

func (o *Options) expects(status int) bool {
	s := strconv.Itoa(status)
	return slices.ContainsFunc(o.Status, func(want string) bool { return want == s || len(s) == 3 && want == s[:1]+"xx" })
}
