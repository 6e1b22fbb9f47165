// Package command is the command line of the load tool, for "weir soak" and for weir-soak,
// which can be installed without weir.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/soak"
)

// flags are the values of flags that are more than one option each: the command evaluates
// them.
type flags struct {
	header        string
	clients, from []string
	delays, cuts  []string
	send, json    string
	worker        bool
}

const long = `Soak opens connections to a server and makes requests on them. It reports latencies,
and every anomaly by its kind: an error, a timeout, a reset, a short body, a wrong
client address, plaintext on a TLS port and others.

TARGET is a URL, or HOST:PORT. The scheme says what the target speaks:

  http, https    HTTP/1.1, or with --protocol http2, grpc or websocket
  ws, wss        WebSocket: pings, or with --message echo messages that come back
  grpc, grpcs    gRPC: a call with an empty message, by default of the health check
  tcp, tls       raw: --send is sent, and --reply waited for

HOST:PORT is like http://HOST:PORT, or with --tls like https://HOST:PORT. Several
targets share the connections and the rate evenly.

Load has one of two forms. Without --rate, soak holds 1,000 connections for 30
seconds and makes a request every 10 seconds on each. With --rate 500/s, 500 requests
a second are due, at times that are fixed in advance. The latency of a request counts
from when it was due, even if no connection was free then (an open loop, without
coordinated omission).

PLACE in --delay and --cut is a place in what a connection sends: header (the PROXY
header), hello (the ClientHello), head or body (of the first request). An offset in
bytes or percent may follow: header+8, hello+50%.

Ctrl-C ends the run early, with a report. The exit status is the first that applies:

  2    the command line is wrong
  1    the run failed, for example because a file cannot be written
  5    a target never answered
  3    anomalies were found; with --max-errors: plaintext on TLS, or wrong addresses
  4    a threshold was missed: --max-p99 or --max-errors
  130  the run was interrupted
  0    none of these

docs/soak.md explains all of this, every kind of anomaly, and the JSON report:
https://github.com/weirproxy/weir/blob/main/docs/soak.md`

const examples = `  # hold 1,000 TLS connections for 30 s ("weir demo" listens on 8080, 8081 and 8443)
  weir soak https://127.0.0.1:8443/

  # 500 requests a second for a minute; the exit status is 4 if they are slow or fail
  weir soak --rate 500/s -d 1m --max-p99 50ms --max-errors 0.1% http://127.0.0.1:8080/

  # PROXY headers of made-up clients: does the application see their addresses?
  weir soak --proxy-header v1 --address-pattern 'X-Forwarded-For: (\S+)' http://127.0.0.1:8081/

  # PROXY headers that come late and in two pieces, on one connection of ten: all must be closed
  weir soak --proxy-header v2 --delay header+8=6s --share 10% --expect closed http://127.0.0.1:8081/

  # 30,000 idle HTTP/2 connections, opened within 15 s, in as many processes as needed
  weir soak --protocol http2 -n 30000 --connect-rate 2000/s --every 0 -d 1m https://127.0.0.1:8443/

  # short connections, request bodies that never end, slow readers; a report for a program
  weir soak --churn 2s --open-bodies 5% --slow-readers 5% --json report.json http://127.0.0.1:8080/

  # two targets, with a client certificate and a name that DNS does not have yet
  weir soak --cert client.pem --ca ca.pem --host app.example.org https://192.0.2.1/ https://192.0.2.2/

  # gRPC health checks, WebSocket echoes, an SSH server
  weir soak --rate 100/s grpc://192.0.2.1:50051
  weir soak --message echo --body 1000 wss://chat.example.org/socket
  weir soak --reply '^SSH-2.0' -n 100 --connect-rate 10/s tcp://192.0.2.1:22`

// New returns the command. path is what users type, such as "weir soak". worker are the
// arguments that make the program one of several load processes.
func New(path string, worker ...string) *cobra.Command {
	o := soak.Defaults()
	var f flags
	c := &cobra.Command{
		Use:     path[strings.LastIndex(path, " ")+1:] + " TARGET...",
		Short:   "Load test a server, hold many connections, and report anomalies",
		Long:    long,
		Example: strings.ReplaceAll(examples, "weir soak", path),
		Args: func(c *cobra.Command, args []string) error {
			if f.worker {
				return nil
			}
			if len(args) == 0 {
				return errors.New("name a target: a URL like https://example.org/, or HOST:PORT")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if f.worker {
				return soak.Work(os.Stdin, os.Stdout)
			}
			return run(c, &o, worker, f.json)
		},
	}
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if f.worker {
			return nil
		}
		o.Targets = args
		return f.apply(c.Flags(), &o)
	}
	f.define(c, &o)
	return c
}

// formerNames are old names of flags, which still work.
var formerNames = map[string]string{"field": "header", "address-field": "address-header"}

func (f *flags) define(c *cobra.Command, o *soak.Options) {
	s := c.Flags()
	s.SortFlags = false
	s.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(formerNames[name], name))
	})
	s.VarP(&o.Rate, "rate", "r", "open loop: requests to send, like 500/s or 90/m, even if earlier ones are not answered yet (default: none)")
	s.DurationVarP(&o.Duration, "duration", "d", o.Duration, "how long to send requests")
	s.IntVarP(&o.Connections, "connections", "n", o.Connections, "`NUMBER` of connections to hold; the default is 100 with --rate")
	s.Var(&o.ConnectRate, "connect-rate", "connections to open, at most; the default is --rate if that is higher")
	s.DurationVar(&o.Churn, "churn", o.Churn, "average lifetime of a connection, which is then replaced; 0: until the end")
	s.DurationVar(&o.Every, "every", o.Every, "interval between requests on a connection, without --rate; 0: only one request")
	s.DurationVar(&o.Timeout, "timeout", o.Timeout, "limit for each wait for the target")

	s.DurationVar(&o.MaxP99, "max-p99", 0, "threshold: exit with status 4 if the p99 latency of requests is higher")
	s.Var(&o.MaxErrors, "max-errors", "threshold: exit with status 4 if there are more errors; a number, or a share like 0.1%")

	s.StringVar(&o.Protocol, "protocol", "", "`PROTOCOL`: http1, http2, grpc, websocket or raw (default: that of the URL, else http1)")
	s.BoolVar(&o.TLS, "tls", false, "speak TLS with HOST:PORT; an https URL needs no flag")
	s.StringVar(&o.Cert, "cert", "", "`FILE` with the client certificate, in PEM")
	s.StringVar(&o.Key, "key", "", "`FILE` with its key, in PEM (default: the file of --cert)")
	s.StringVar(&o.CA, "ca", "", "verify the target's certificate with the CAs in `FILE`; system: those of this machine (default: any certificate is accepted)")
	s.StringVar(&o.Host, "host", "", "`NAME` for the HTTP header Host (default: that of the target)")
	s.StringVar(&o.SNI, "sni", "", "`NAME` for SNI; none: no SNI (default: the name in --host)")
	s.StringVar(&f.header, "proxy-header", "", "begin with a PROXY header of this `VERSION`: v1 or v2")
	s.StringSliceVar(&f.clients, "clients", []string{"198.18.0.0/15"}, "`NETWORKS` of the made-up clients in PROXY headers, IPv4 or IPv6")

	s.StringVar(&o.Path, "path", "", "`PATH` to request, if the URL has none (default: /, with gRPC the health check)")
	s.StringArrayVarP(&o.Fields, "header", "H", nil, "HTTP header to send, as `'NAME: VALUE'`; may be repeated")
	s.IntVar(&o.Body, "body", 0, "`BYTES` of a request body, which makes it a POST; of a WebSocket message")
	s.StringVar(&o.Message, "message", o.Message, "`KIND` of WebSocket message: ping, or echo if the target sends messages back")
	s.StringVar(&f.send, "send", "", "`TEXT` to send, with protocol raw; \\r, \\n and \\x00 as in Go")
	s.StringVar(&o.Reply, "reply", "", "`REGEXP` that the reply must match, with protocol raw")

	s.StringSliceVar(&o.Status, "status", o.Status, "HTTP `STATUSES` that are expected")
	s.IntSliceVar(&o.GRPCStatus, "grpc-status", o.GRPCStatus, "gRPC `STATUSES` that are expected")
	s.StringVar(&o.AddressField, "address-header", "", "`NAME` of the response header with the client address, to check it")
	s.StringVar(&o.AddressPattern, "address-pattern", "", "`REGEXP` that finds the client address in the response body, in one group")

	s.StringArrayVar(&f.delays, "delay", nil, "fault: pause at a place before the next byte, as `PLACE=DURATION`; may be repeated")
	s.StringArrayVar(&f.cuts, "cut", nil, "fault: end the connection at a place, as `PLACE[=close|reset|silent]`; may be repeated")
	s.Var(&o.Faulty, "share", "share of connections that --delay and --cut apply to")
	s.Var(&o.OpenBodies, "open-bodies", "share of connections whose request body never ends")
	s.Var(&o.SlowReaders, "slow-readers", "share of connections that read 1 KiB a second (request something long)")
	s.StringVar(&o.Expect, "expect", o.Expect, "`OUTCOME` that connections with faults must have: any, served, unserved, or closed (without an answer)")

	s.StringSliceVar(&f.from, "from", nil, "local `NETWORKS` to connect from (default: 127.0.0.0/24 if the target is on loopback)")
	s.IntVar(&o.Processes, "processes", 0, "`NUMBER` of processes, at least (default: as many as the limit of open files requires)")
	s.DurationVar(&o.Interval, "interval", 0, "interval of the time series in the JSON report (default 1s, longer for runs over 10 minutes)")
	s.StringVar(&f.json, "json", "", "write the report as JSON to `FILE`; - is standard output")
	s.BoolVar(&f.worker, "worker", false, "")
	s.MarkHidden("worker")
}

// withRate is the default number of connections with --rate.
const withRate = 100

// apply parses the flags that need it, and checks everything.
func (f *flags) apply(given *pflag.FlagSet, o *soak.Options) (err error) {
	if o.Rate > 0 {
		if given.Changed("every") {
			return errors.New("--rate and --every cannot be combined: --rate decides when to send requests")
		}
		o.Every = 0
		if !given.Changed("connections") {
			o.Connections = withRate
		}
		if !given.Changed("connect-rate") {
			o.ConnectRate = max(o.ConnectRate, o.Rate)
		}
	}
	switch f.header {
	case "":
	case "v1":
		o.Header = 1
	case "v2":
		o.Header = 2
	default:
		return fmt.Errorf("--proxy-header is %q: it must be v1 or v2", f.header)
	}
	if o.Clients, err = soak.ParsePrefixes(f.clients); err != nil {
		return fmt.Errorf("--clients: %w", err)
	}
	if o.From, err = soak.ParsePrefixes(f.from); err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	if o.Send, err = soak.Unescape(f.send); err != nil {
		return fmt.Errorf("--send: %w", err)
	}
	for _, s := range f.delays {
		fault, err := soak.ParseDelay(s)
		if err != nil {
			return fmt.Errorf("--delay: %w", err)
		}
		o.Faults = append(o.Faults, fault)
	}
	for _, s := range f.cuts {
		fault, err := soak.ParseCut(s)
		if err != nil {
			return fmt.Errorf("--cut: %w", err)
		}
		o.Faults = append(o.Faults, fault)
	}
	return o.Prepare()
}

func run(c *cobra.Command, o *soak.Options, worker []string, file string) error {
	to, done, err := output(c, file)
	if err != nil {
		return err
	}
	defer done()
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find the file of this program, which it needs to start more processes: %w", err)
	}
	// A second signal ends the program at once, as by default.
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	errOut := c.ErrOrStderr()
	progress := soak.NewProgress(errOut, columns(errOut), o)
	report, err := soak.Run(ctx, o, append([]string{own}, worker...), progress.Show)
	progress.Clear()
	if err != nil {
		return err
	}
	text := c.OutOrStdout()
	if file == "-" {
		text = errOut
	}
	if err := report.Text(text); err != nil {
		return err
	}
	if to != nil {
		if err := errors.Join(report.JSON(to), done()); err != nil {
			return fmt.Errorf("cannot write the report to %s: %w", file, err)
		}
	}
	return report.Err()
}

// output opens the file for the JSON report before the run, so that an error does not waste
// the run.
func output(c *cobra.Command, file string) (to io.Writer, done func() error, err error) {
	switch file {
	case "":
		return nil, func() error { return nil }, nil
	case "-":
		return c.OutOrStdout(), func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot write the report: %w", err)
	}
	return f, f.Close, nil
}

// columns returns the width of the terminal w; 0 if w is not a terminal.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return cmp.Or(int(size.Col), 80)
}
