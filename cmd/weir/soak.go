package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/cmd/weir/soak"
)

// soakFlags are the flags that are not an option as they stand.
type soakFlags struct {
	header        string
	clients, from []string
	delays, cuts  []string
	send, json    string
	worker        bool
}

func newSoakCommand() *cobra.Command {
	o := soak.Defaults()
	var f soakFlags
	c := &cobra.Command{
		Use:   "soak HOST:PORT",
		Short: "Hold and churn many connections, and report what goes wrong",
		Long: `Soak opens connections to any address, holds them, makes an exchange on each now
and then, and reports every anomaly by its kind: plaintext on TLS, a wrong client
address, a reset, a timeout, a short body, a refused connection, an unexpected
status and others. The exit status is 1 if there was one.

Unless told otherwise it holds 1,000 connections of HTTP/1.1 for 30 seconds, opens
200 of them a second, and asks for / every 10 seconds on each. Ctrl-C ends it
early, with a report. docs/soak.md says more, and what each kind of anomaly means.

PLACE in --delay and --cut is where in what is sent: header (the PROXY header),
hello (the ClientHello), head or body (of the first request), with an offset in
bytes or percent if need be: header+8, hello+50%.`,
		Example: `  # hold 1,000 TLS connections for 30 s ("weir demo" listens on all of these ports but the last)
  weir soak --tls 127.0.0.1:8443

  # the same number with PROXY headers of made-up clients: does the application see their addresses?
  weir soak --proxy-header v1 --address-pattern 'X-Forwarded-For: (\S+)' 127.0.0.1:8081

  # headers that come late and in two pieces, on one connection of ten: they are to be closed without a word
  weir soak --proxy-header v2 --delay header+8=6s --share 10% --expect closed 127.0.0.1:8081

  # 30,000 quiet HTTP/2 connections, opened within 15 s and asked once, in as many processes as it takes
  weir soak --tls --protocol http2 -n 30000 --rate 2000 --every 0 --duration 1m 127.0.0.1:8443

  # connections that come and go, bodies that never end, clients that read slowly; a report for a program
  weir soak --churn 2s --open-bodies 5% --slow-readers 5% --json report.json 127.0.0.1:8080

  # an SSH server speaks first
  weir soak --protocol raw --reply '^SSH-2.0' -n 100 --rate 10 127.0.0.1:22`,
		Args: func(c *cobra.Command, args []string) error {
			if f.worker {
				return nil
			}
			return cobra.ExactArgs(1)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if f.worker {
				return soak.Work(os.Stdin, os.Stdout)
			}
			return runSoak(c, &o, f.json)
		},
	}
	c.PreRunE = func(_ *cobra.Command, args []string) error {
		if f.worker {
			return nil
		}
		o.Address = args[0]
		return f.apply(&o)
	}
	f.define(c, &o)
	return c
}

func (f *soakFlags) define(c *cobra.Command, o *soak.Options) {
	s := c.Flags()
	s.SortFlags = false
	s.IntVarP(&o.Connections, "connections", "n", o.Connections, "`NUMBER` of connections that are held")
	s.Float64VarP(&o.Rate, "rate", "r", o.Rate, "`NUMBER` of connections opened in a second, at most")
	s.DurationVarP(&o.Duration, "duration", "d", o.Duration, "of the whole run")
	s.DurationVar(&o.Churn, "churn", o.Churn, "how long a connection lives, about, before another takes its place; 0: until the end")
	s.DurationVar(&o.Every, "every", o.Every, "how often there is an exchange on each held connection; 0: only one, when it is new")
	s.DurationVar(&o.Timeout, "timeout", o.Timeout, "how long each wait for the other side may take")

	s.StringVar(&o.Protocol, "protocol", o.Protocol, "`PROTOCOL`: http1, http2 or raw")
	s.BoolVar(&o.TLS, "tls", o.TLS, "speak TLS; any certificate will do")
	s.StringVar(&f.header, "proxy-header", "", "begin with a PROXY header of this `VERSION`, v1 or v2")
	s.StringSliceVar(&f.clients, "clients", []string{"198.18.0.0/15"}, "`NETWORKS` of the made-up clients in the headers; IPv6 is possible")
	s.StringVar(&o.Host, "host", "", "`NAME` for Host and SNI (default: that of HOST:PORT)")
	s.StringVar(&o.Path, "path", o.Path, "`PATH` that is asked for")
	s.StringArrayVar(&o.Fields, "field", nil, "a further `'NAME: VALUE'` in requests; may be repeated")
	s.IntVar(&o.Body, "body", 0, "`BYTES` of a body; requests are then POST")
	s.StringVar(&f.send, "send", "", "`TEXT` that --protocol raw sends, with \\r, \\n and \\x00 as in Go")
	s.StringVar(&o.Reply, "reply", "", "`REGEXP` for what --protocol raw has to get")

	s.StringArrayVar(&f.delays, "delay", nil, "`PLACE=DURATION`: hold back what follows; may be repeated")
	s.StringArrayVar(&f.cuts, "cut", nil, "`PLACE[=close|reset|silent]`: end the connection there")
	s.Var(&o.Faulty, "share", "of connections have what --delay and --cut say")
	s.Var(&o.OpenBodies, "open-bodies", "of connections make a request whose body never ends")
	s.Var(&o.SlowReaders, "slow-readers", "of connections read 1 KiB a second (let --path be something long)")
	s.StringVar(&o.Expect, "expect", o.Expect, "`OUTCOME` that those must have: any, served, unserved, or closed (without a word)")

	s.StringSliceVar(&o.Status, "status", o.Status, "`STATUSES` that responses may have")
	s.StringVar(&o.AddressField, "address-field", "", "`NAME` of the response field that says which client address was seen")
	s.StringVar(&o.AddressPattern, "address-pattern", "", "`REGEXP` with a group for that address in the body")

	s.StringSliceVar(&f.from, "from", nil, "local `NETWORKS` to connect from (default: 127.0.0.0/24 if HOST is there)")
	s.IntVar(&o.Processes, "processes", 0, "`NUMBER` of processes, at least (default: what the limit of open files asks for)")
	s.StringVar(&f.json, "json", "", "write the report as JSON to `FILE`; - is standard output")
	s.BoolVar(&f.worker, "worker", false, "")
	s.MarkHidden("worker")
}

// apply reads what has a form of its own, and checks everything.
func (f *soakFlags) apply(o *soak.Options) (err error) {
	switch f.header {
	case "":
	case "v1":
		o.Header = 1
	case "v2":
		o.Header = 2
	default:
		return fmt.Errorf("--proxy-header is v1 or v2, and not %q", f.header)
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

func runSoak(c *cobra.Command, o *soak.Options, file string) error {
	to, done, err := soakOutput(c, file)
	if err != nil {
		return err
	}
	defer done()
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program, which may have to start itself again: %w", err)
	}
	// A second signal is not waited for: it ends the program as it always does.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	errOut := c.ErrOrStderr()
	progress := soak.NewProgress(errOut, columns(errOut), o)
	report, err := soak.Run(ctx, o, []string{own, "soak", "--worker"}, progress.Show)
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
	if report.AnomaliesInAll > 0 {
		return fmt.Errorf("anomalies were found: %d", report.AnomaliesInAll)
	}
	return nil
}

// soakOutput opens what the JSON goes to before the run rather than after it.
func soakOutput(c *cobra.Command, file string) (to io.Writer, done func() error, err error) {
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

// columns is how wide the terminal w is; 0 if it is none.
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
