package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weirproxy/weir/cmd/weir/node/status"
)

func newTopCommand() *cobra.Command {
	o := topOptions{every: 2 * time.Second, sort: "requests"}
	c := &cobra.Command{
		Use:   "top [URL...]",
		Short: "Show the traffic and the problems of running weirs in the terminal",
		Long: `Top shows the health, the traffic, the busiest routes and the problems of one or
several running weirs, and updates them. It is the status page of the admin port
for the terminal.

URL is the admin port; the default is ` + defaultAdmin + `. HOST:PORT and
unix:/path work as well. If the configuration has admin.token, pass the token in a
file with --token-file, or in the environment variable ` + tokenVariable + `.

Keys: q ends top; r, e, p and n sort the routes by requests, errors, p99 and name.
If the output is not a terminal, or with --once, top prints the state once.`,
		Example: `  weir top
  weir top 10.0.0.1:8087 10.0.0.2:8087
  weir top --once --sort errors --routes shop`,
		SuggestFor:            []string{"stats", "monitor", "dashboard"},
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, urls []string) error {
			if len(urls) == 0 {
				urls = []string{defaultAdmin}
			}
			return o.run(c, urls)
		},
	}
	c.Flags().DurationVar(&o.every, "every", o.every, "the `TIME` between two updates, at least 500ms; a weir with thousands of routes is asked less often")
	c.Flags().StringVar(&o.sort, "sort", o.sort, "sort routes by `COLUMN`: requests, errors, p99 or name")
	completeValues(c, "sort", topSorts...)
	c.Flags().StringVar(&o.search, "routes", "", "only routes with this `TEXT` in their name, host or backend")
	c.Flags().BoolVar(&o.once, "once", false, "print the state once")
	o.admin.flags(c)
	return c
}

type topOptions struct {
	every        time.Duration
	sort, search string
	once         bool
	admin        adminOptions
}

// topSorts are the orders of routes. The first letter of an order is its key on the keyboard.
var topSorts = []string{"requests", "errors", "p99", "name"}

// leastForRates is the time after which a weir reads its counts again.
const leastForRates = 1100 * time.Millisecond

// longestWait limits the wait for which an instance may ask.
const longestWait = 30 * time.Second

// topRows is how many routes top asks for.
const topRows = 100

func (o *topOptions) run(c *cobra.Command, urls []string) error {
	if o.every < 500*time.Millisecond {
		return fmt.Errorf("--every %v is too short: each update costs the weir some work; write at least 500ms", o.every)
	}
	if !slices.Contains(topSorts, o.sort) {
		return fmt.Errorf("--sort %s: there is no such column; write one of %s", o.sort, strings.Join(topSorts, ", "))
	}
	ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	out, isFile := c.OutOrStdout().(*os.File)
	if !isFile || !term.IsTerminal(int(out.Fd())) {
		return o.runOnce(ctx, c.OutOrStdout(), urls, 0)
	}
	if o.once {
		width, _, _ := term.GetSize(int(out.Fd()))
		return o.runOnce(ctx, out, urls, width)
	}
	return o.runScreen(ctx, out, urls)
}

// topAnswer is the last answer of an instance.
type topAnswer struct {
	address  string
	overview *status.Overview // of the last successful request; nil: no request has succeeded
	err      error            // of the last request; nil: it has succeeded, or there was no request yet
}

// name is the name of the node, or the address while it is not known.
func (a *topAnswer) name() string {
	if a.overview != nil {
		return a.overview.Node
	}
	return withoutToken(a.address)
}

func (o *topOptions) ask(ctx context.Context, address, sort string) (*status.Overview, error) {
	q := url.Values{"rows": {fmt.Sprint(mostProblems)}, "routes_rows": {fmt.Sprint(topRows)}, "routes_sort": {sort}}
	if o.search != "" {
		q.Set("routes", o.search)
	}
	return askOverview(ctx, address, o.admin, q)
}

// runOnce asks each instance twice, because rates need two observations. Without a terminal the width is 0.
func (o *topOptions) runOnce(ctx context.Context, out io.Writer, urls []string, width int) error {
	answers := make([]topAnswer, len(urls))
	askAll := func() {
		var all sync.WaitGroup
		for i, u := range urls {
			all.Go(func() {
				v, err := o.ask(ctx, u, o.sort)
				answers[i] = topAnswer{u, v, err}
			})
		}
		all.Wait()
	}
	askAll()
	if slices.ContainsFunc(answers, func(a topAnswer) bool { return a.err == nil }) {
		select {
		case <-time.After(max(o.every, leastForRates)):
		case <-ctx.Done():
			return ctx.Err()
		}
		askAll()
	}
	for _, line := range (&topScreen{answers: answers, sort: o.sort, width: width}).lines() {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	for _, a := range answers {
		if a.err != nil {
			return a.err
		}
	}
	return nil
}

// runScreen shows the instances until a key or a signal ends it.
func (o *topOptions) runScreen(ctx context.Context, out *os.File, urls []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := make(chan byte)
	if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
		before, err := term.MakeRaw(in)
		if err != nil {
			return fmt.Errorf("preparing the terminal: %w; use --once", err)
		}
		defer term.Restore(in, before)
		go readKeys(ctx, os.Stdin, keys)
	}
	// The alternate screen, without a cursor. Lines that are too wide end at the edge: some characters
	// take two columns.
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l\x1b[?7l")
	defer fmt.Fprint(out, "\x1b[?7h\x1b[?25h\x1b[?1049l")
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)

	s := topScreen{answers: make([]topAnswer, len(urls)), sort: o.sort, interactive: true}
	news, orders := make(chan topNews), make([]chan string, len(urls))
	for i, u := range urls {
		s.answers[i].address = u
		orders[i] = make(chan string, 1)
		go o.follow(ctx, i, u, o.sort, orders[i], news)
	}
	for {
		s.width, s.height, _ = term.GetSize(int(out.Fd()))
		if err := s.draw(out); err != nil {
			return err
		}
		select {
		case n := <-news:
			a := &s.answers[n.instance]
			if a.err = n.err; n.overview != nil {
				a.overview = n.overview
			}
		case k := <-keys:
			if k == 'q' || k == 3 || k == 4 { // Ctrl-C and Ctrl-D
				return nil
			}
			i := slices.IndexFunc(topSorts, func(by string) bool { return by[0] == k })
			if i < 0 {
				continue
			}
			s.sort = topSorts[i]
			for _, order := range orders {
				select {
				case <-order: // an earlier order that follow has not taken
				default:
				}
				order <- s.sort
			}
		case <-resized:
		case <-ctx.Done():
			return nil
		}
	}
}

// topNews is the answer of an instance.
type topNews struct {
	instance int
	overview *status.Overview
	err      error
}

// follow asks one instance again and again, and at once if the order of routes changes.
func (o *topOptions) follow(ctx context.Context, i int, address, sort string, order <-chan string, news chan<- topNews) {
	for {
		v, err := o.ask(ctx, address, sort)
		select {
		case news <- topNews{i, v, err}:
		case <-ctx.Done():
			return
		}
		select {
		case sort = <-order:
		case <-time.After(o.waitAfter(v)):
		case <-ctx.Done():
			return
		}
	}
}

// waitAfter returns the time from an answer to the next request. v is nil after an error.
func (o *topOptions) waitAfter(v *status.Overview) time.Duration {
	if v == nil {
		return o.every
	}
	return max(o.every, time.Duration(min(v.Refresh, longestWait.Seconds())*float64(time.Second)))
}

func readKeys(ctx context.Context, in io.Reader, keys chan<- byte) {
	var b [1]byte
	for {
		if n, err := in.Read(b[:]); err != nil || n == 0 {
			return
		}
		select {
		case keys <- b[0]:
		case <-ctx.Done():
			return
		}
	}
}
