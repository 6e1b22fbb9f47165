package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node/status"
)

func newDrainCommand() *cobra.Command {
	o := drainOptions{every: time.Second}
	c := &cobra.Command{
		Use:   "drain [URL]",
		Short: "Take a running weir out of its load balancers",
		Long: `Drain makes the health port of a running weir answer 503, so that load balancers
send it no new connections. weir still serves all requests, and asks clients to
close their connections. It does not end: weir undrain takes the drain back.

With --wait the command ends when no connection has arrived for the time in
--quiet, each load balancer that asks the health port has seen two answers 503,
and no request or tunnel is active. After --timeout it ends with status 1.

URL is the admin port; the default is ` + defaultAdmin + `. HOST:PORT and
unix:/path work as well. Root and weir's own user need no token on the machine of
weir: the command uses the Unix socket beside the port.`,
		Example: `  weir drain --wait && systemctl restart weir
  weir drain --token-file tokens/edge1 https://edge1.example.org:8087`,
		Args: arguments(0, 1, "write one admin port: weir drain URL"),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, addressOf(args)) },
	}
	c.Flags().BoolVar(&o.wait, "wait", false, "wait until weir is quiet")
	c.Flags().DurationVar(&o.quiet, "quiet", 5*time.Second, "with --wait: how long no connection may have arrived, as a `DURATION`")
	c.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "with --wait: the longest wait, as a `DURATION`")
	o.admin.flags(c)
	return c
}

func newUndrainCommand() *cobra.Command {
	var admin adminOptions
	c := &cobra.Command{
		Use:   "undrain [URL]",
		Short: "Take back a drain of a running weir",
		Long: `Undrain makes the health port of a running weir answer healthy again. It does not
end a drain that SIGTERM began.

URL is the admin port; the default is ` + defaultAdmin + `.`,
		Example: "  weir undrain",
		Args:    arguments(0, 1, "write one admin port: weir undrain URL"),
		RunE: func(c *cobra.Command, args []string) error {
			st, err := postDrain(c.Context(), addressOf(args), admin, "/undrain")
			if err == nil {
				fmt.Fprintln(c.OutOrStdout(), "the drain is over;", st.health())
			}
			return err
		},
	}
	admin.flags(c)
	return c
}

func addressOf(args []string) string {
	if len(args) == 0 {
		return defaultAdmin
	}
	return args[0]
}

type drainOptions struct {
	wait           bool
	quiet, timeout time.Duration
	every          time.Duration // between two looks
	admin          adminOptions
}

// drained is the part of GET /status that a drain shows.
type drained struct {
	Node    string `json:"node"`
	Verdict struct {
		Healthy bool     `json:"healthy"`
		Reasons []string `json:"reasons"`
	} `json:"verdict"`
	Drain *struct {
		Seconds               float64  `json:"seconds"`
		NewConnections        int      `json:"new_connections"`
		LastNewConnection     float64  `json:"last_new_connection"`
		LastNewConnectionFrom string   `json:"last_new_connection_from"`
		LoadBalancersTold     bool     `json:"load_balancers_told"`
		LoadBalancersNotTold  []string `json:"load_balancers_not_told"`
	} `json:"drain"`
	NoHealthPort bool           `json:"no_health_port"`
	Connections  map[string]int `json:"connections"`
	// OldProcesses are those of upgrades. They have left their load balancers, and may still have tunnels.
	OldProcesses []status.OldProcess `json:"old_processes"`
}

func (d *drained) health() string {
	switch {
	case d.NoHealthPort:
		return "there is no health port (section health) that tells it to load balancers"
	case d.Verdict.Healthy:
		return "the health port answers 200"
	}
	return fmt.Sprintf("the health port answers 503: %q", d.Verdict.Reasons)
}

// waitsFor returns what a drain waits for; empty: nothing.
func (d *drained) waitsFor(quiet time.Duration) string {
	active := d.Connections["active"] + d.Connections["tunnel"]
	switch {
	case d.Drain == nil:
		return "somebody took the drain back"
	case !d.Drain.LoadBalancersTold:
		return "these load balancers have not yet seen two answers 503: " + strings.Join(d.Drain.LoadBalancersNotTold, ", ") + " (an address counts until two minutes after its last check)"
	case d.Drain.Seconds-d.Drain.LastNewConnection < quiet.Seconds():
		return d.arrived()
	case active > 0:
		return fmt.Sprintf("active requests and tunnels: %d", active)
	}
	var old []string
	for _, p := range d.OldProcesses {
		if p.Active > 0 {
			old = append(old, fmt.Sprintf("process %d (generation %d): %d", p.PID, p.Generation, p.Active))
		}
	}
	if len(old) == 0 {
		return ""
	}
	return "active requests and tunnels of old processes of upgrades: " + strings.Join(old, ", ")
}

// arrived says which connections arrived during the drain.
func (d *drained) arrived() string {
	if d.Drain.NewConnections == 0 {
		return "no connection has arrived since the drain began"
	}
	from := ""
	if d.Drain.LastNewConnectionFrom != "" {
		from = " from " + d.Drain.LastNewConnectionFrom
	}
	return fmt.Sprintf("connections since the drain began: %d, the last one after %.1f s%s", d.Drain.NewConnections, d.Drain.LastNewConnection, from)
}

var (
	errDrainTimeout     = errors.New("weir is not quiet yet")
	errDrainInterrupted = errors.New("interrupted, and weir is not quiet yet")
)

func (o *drainOptions) run(c *cobra.Command, address string) error {
	st, err := postDrain(c.Context(), address, o.admin, "/drain")
	if err != nil {
		return err
	}
	fmt.Fprintln(c.OutOrStdout(), "draining;", st.health())
	if !o.wait {
		return nil
	}
	interrupted, stop := signal.NotifyContext(c.Context(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(interrupted, o.timeout)
	defer cancel()
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	said := ""
	for {
		why := st.waitsFor(o.quiet)
		switch {
		case why == "":
			fmt.Fprintln(c.OutOrStdout(), "quiet:", st.arrived())
			return nil
		case st.Drain == nil:
			return errors.New(why)
		case why != said:
			fmt.Fprintln(c.OutOrStdout(), "waiting:", why)
			said = why
		}
		select {
		case <-ctx.Done():
			if interrupted.Err() != nil {
				return fmt.Errorf("%w: %s; it still drains, and weir undrain takes that back", errDrainInterrupted, why)
			}
			return fmt.Errorf("%w after %v: %s; it still drains, and weir undrain takes that back", errDrainTimeout, o.timeout, why)
		case <-tick.C:
		}
		if st, err = askStatus(c.Context(), address, o.admin); err != nil {
			return fmt.Errorf("weir has answered before, so it may have ended meanwhile: %w", err)
		}
	}
}

func postDrain(ctx context.Context, address string, o adminOptions, path string) (*drained, error) {
	answer, err := requestAdmin(ctx, http.MethodPost, address, o, path, nil)
	if err != nil {
		return nil, err
	}
	return readDrained(address, answer)
}

func askStatus(ctx context.Context, address string, o adminOptions) (*drained, error) {
	answer, err := askAdmin(ctx, address, o, "/status", nil)
	if err != nil {
		return nil, err
	}
	return readDrained(address, answer)
}

func readDrained(address string, answer []byte) (*drained, error) {
	st := new(drained)
	if err := json.Unmarshal(answer, st); err != nil || st.Node == "" {
		return nil, fmt.Errorf("%s is not the admin port of a weir: its status has another form; use the address in admin.address", withoutToken(address))
	}
	return st, nil
}
