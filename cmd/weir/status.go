package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node/status"
)

func newReloadCommand() *cobra.Command {
	var admin adminOptions
	c := &cobra.Command{
		Use:   "reload [URL]",
		Short: "Make a running weir load its configuration again",
		Long: `Reload makes a running weir load its configuration file and its certificates again,
as SIGHUP does, and waits until they are in effect. If the file has errors, reload
prints them and ends with status 1, and the previous configuration stays in effect.

URL is the admin port; the default is ` + defaultAdmin + `. HOST:PORT and
unix:/path work as well.`,
		Example:    "  weir check && weir reload",
		SuggestFor: []string{"load", "hup", "refresh", "apply"},
		Args:       arguments(0, 1, "write one admin port: weir reload URL"),
		RunE: func(c *cobra.Command, args []string) error {
			answer, err := requestAdmin(c.Context(), http.MethodPost, addressOf(args), admin, reloadPath, nil)
			if err == nil {
				fmt.Fprintln(c.OutOrStdout(), strings.TrimSpace(string(answer)))
			}
			return err
		},
	}
	admin.flags(c)
	return c
}

// The exit statuses of weir status for a weir that answers.
const (
	statusUnhealthy = 3
	statusProblem   = 4
)

func newStatusCommand() *cobra.Command {
	var admin adminOptions
	c := &cobra.Command{
		Use:   "status [URL]",
		Short: "Show in a few lines how a running weir is",
		Long: `Status shows the version and the process of a running weir, its configuration, its
health, its listeners and connections, and its problems. weir top shows more.

The exit status is 0 if the health port answers 200 and nothing is wrong, 3 if the
health port answers 503, 4 if there is another problem, such as a configuration that
was not loaded, an endpoint that fails or a certificate that could not be
obtained, and 1 if weir does not answer.

URL is the admin port; the default is ` + defaultAdmin + `. HOST:PORT and
unix:/path work as well.`,
		Example:    "  weir status\n  weir status 10.0.0.1:8087",
		SuggestFor: []string{"info", "health", "state", "show", "ps"},
		Args:       arguments(0, 1, "write one admin port: weir status URL"),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := askOverview(c.Context(), addressOf(args), admin, url.Values{"rows": {fmt.Sprint(mostProblems)}})
			if err != nil {
				return err
			}
			printStatus(c.OutOrStdout(), o)
			switch {
			case !o.Health.Healthy:
				return silent(statusUnhealthy)
			case len(problemsOf(o)) > 0:
				return silent(statusProblem)
			}
			return nil
		},
	}
	admin.flags(c)
	return c
}

// silent is an exit status without an error message: the output has said all.
type silent int

func (s silent) Error() string   { return fmt.Sprintf("status %d", int(s)) }
func (s silent) ExitStatus() int { return int(s) }

// askOverview asks an admin port for the data of the status page.
func askOverview(ctx context.Context, address string, o adminOptions, query url.Values) (*status.Overview, error) {
	answer, err := askAdmin(ctx, address, o, "/status/overview", query)
	if err != nil {
		return nil, err
	}
	v := new(status.Overview)
	if err := json.Unmarshal(answer, v); err != nil || v.At.IsZero() {
		return nil, fmt.Errorf("%s is not the admin port of a weir: its response to GET /status/overview has another form; use the address in admin.address", withoutToken(address))
	}
	return v, nil
}

func printStatus(w io.Writer, o *status.Overview) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-14s%s\n", name, strings.Map(printable, fmt.Sprintf(format, args...)))
	}
	at := func(t time.Time) string { return t.Local().Format(time.DateTime + " MST") }
	line("weir", "%s, process %d, generation %d, since %s", o.Version, o.PID, o.Generation, at(o.At.Add(-time.Duration(o.Uptime*float64(time.Second)))))
	line("node", "%s", o.Node)
	line("configuration", "%s, loaded %s, hash %s", o.ConfigFile, at(o.ConfigLoaded), o.ConfigHash)
	if o.Health.Healthy {
		line("health", "healthy")
	} else {
		line("health", "503: %s", strings.Join(o.Health.Reasons, "; "))
	}
	for _, l := range o.Listeners {
		line("listener", "%s: %s on %s, connections %d", l.Name, l.Protocol, l.Address, l.Open)
	}
	states := ""
	for _, name := range slices.Sorted(maps.Keys(o.Connections.States)) {
		if n := o.Connections.States[name]; n > 0 {
			states += fmt.Sprintf(", %s %d", name, n)
		}
	}
	line("connections", "%d%s", o.Connections.Open, states)
	for _, p := range o.OldProcesses {
		until := ""
		if !p.Until.IsZero() {
			until = ", until " + at(p.Until)
		}
		line("old process", "%d of generation %d (%s, %s), connections %d%s", p.PID, p.Generation, cmp.Or(p.Version, "version unknown"), cmp.Or(p.Binary, "binary unknown"), p.Connections, until)
	}
	for _, text := range problemsOf(o) {
		line("problem", "%s", text)
	}
}
