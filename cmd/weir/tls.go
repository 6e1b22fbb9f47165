package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
)

func newTLSCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "tls",
		Short: "Find the clients that still need old TLS",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newTLSReportCommand())
	return c
}

func newTLSReportCommand() *cobra.Command {
	var o reportOptions
	c := &cobra.Command{
		Use:   "report [URL...]",
		Short: "List the clients that a stricter TLS policy would refuse",
		Long: `Report queries the admin port of a running weir (or of several, if nodes share the
traffic) for the TLS versions and suites that clients used in the last 30 days. For
each policy it lists the clients that would fail with a higher min_version, or
without an old suite, and the clients that already fail, with the reason.

URL is the admin port; the default is ` + defaultAdmin + `. HOST:PORT and
unix:/path work as well. If the configuration has admin.token, pass the token in a
file with --token-file, or in the environment variable ` + tokenVariable + `. With
admin.tls, the URL begins with https.`,
		Example: `  weir tls report
  weir tls report http://10.0.0.1:8087 http://10.0.0.2:8087
  weir tls report --policy partners --all
  weir tls report --json | jq '.policies[] | {name, changes}'`,
		DisableFlagsInUseLine: true,
		RunE:                  func(c *cobra.Command, urls []string) error { return runTLSReport(c, urls, o) },
	}
	c.Flags().BoolVar(&o.json, "json", false, "print the complete report as JSON")
	c.Flags().BoolVar(&o.all, "all", false, "list all clients, not only the first ones of each list")
	c.Flags().StringVar(&o.policy, "policy", "", "only the policy `NAME`")
	o.admin.flags(c)
	return c
}

type reportOptions struct {
	json, all bool
	policy    string
	admin     adminOptions
}

func runTLSReport(c *cobra.Command, urls []string, o reportOptions) error {
	if len(urls) == 0 {
		urls = []string{defaultAdmin}
	}
	var nodes []node.TLSClients
	for _, u := range urls {
		n, err := askTLSClients(c.Context(), u, o.admin)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	r := newTLSReport(nodes, time.Now())
	if o.policy != "" {
		if err := r.only(o.policy); err != nil {
			return err
		}
	}
	if o.json {
		e := json.NewEncoder(c.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.print(c.OutOrStdout(), o.all)
}

// askTLSClients asks one admin port for its TLS clients.
func askTLSClients(ctx context.Context, address string, o adminOptions) (n node.TLSClients, err error) {
	answer, err := askAdmin(ctx, address, o, "/tls/clients", nil)
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(answer, &n); err != nil || n.Since.IsZero() {
		return n, fmt.Errorf("%s is not the admin port of a weir: its response to GET /tls/clients has another form; use the address in admin.address", withoutToken(address))
	}
	return n, nil
}
