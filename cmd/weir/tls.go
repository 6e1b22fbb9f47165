package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultAdmin is where the admin port is unless the configuration says something else.
const defaultAdmin = "http://127.0.0.1:8087"

func newTLSCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "tls",
		Short: "Find out who still needs old TLS",
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
		Short: "Say who would be turned away if a TLS policy were tightened",
		Long: `Report asks the admin port of a running weir, of all of them where several nodes
share the traffic, which clients needed what of TLS in the last 30 days. For each
policy it says what raising min_version, and leaving each old suite out of
cipher_suites, would break, and for whom; and who is turned away already, and why.

URL is that of the admin port, ` + defaultAdmin + ` if none is given;
HOST:PORT and unix:/path will do.`,
		Example: `  weir tls report
  weir tls report http://10.0.0.1:8087 http://10.0.0.2:8087
  weir tls report --policy partners --all
  weir tls report --json | jq '.policies[] | {name, changes}'`,
		DisableFlagsInUseLine: true,
		RunE:                  func(c *cobra.Command, urls []string) error { return runTLSReport(c, urls, o) },
	}
	c.Flags().BoolVar(&o.json, "json", false, "print it as JSON, complete")
	c.Flags().BoolVar(&o.all, "all", false, "list all clients, not only the first of each list")
	c.Flags().StringVar(&o.policy, "policy", "", "only the policy `NAME`")
	return c
}

type reportOptions struct {
	json, all bool
	policy    string
}

func runTLSReport(c *cobra.Command, urls []string, o reportOptions) error {
	if len(urls) == 0 {
		urls = []string{defaultAdmin}
	}
	var nodes []tlsClients
	for _, u := range urls {
		n, err := askTLSClients(c.Context(), u)
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

// The bounds of asking an admin port.
const (
	askTimeout = 15 * time.Second
	maxAnswer  = 64 << 20 // 8192 lines are 8 MiB
)

// askTLSClients asks one admin port.
func askTLSClients(ctx context.Context, address string) (n tlsClients, err error) {
	base, client, err := adminClient(address)
	if err != nil {
		return n, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/tls/clients", nil)
	if err != nil {
		return n, notAURL(address)
	}
	res, err := client.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return n, fmt.Errorf("cannot ask the admin port %s: %w; is weir running there, with this admin.address, and may you reach it from here? (by default it listens on loopback alone; with admin.address: off there is none)", address, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return n, fmt.Errorf("what answers at %s is not the admin port of a weir that knows GET /tls/clients: it says %s; give the address that admin.address has, not that of a listener", address, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&n); err != nil || n.Since.IsZero() {
		return n, fmt.Errorf("what answers at %s is not the admin port of a weir: its answer to GET /tls/clients is not the one expected; give the address that admin.address has", address)
	}
	return n, nil
}

// adminClient makes of what was typed the beginning of a URL and a client for it.
func adminClient(address string) (base string, client *http.Client, err error) {
	client = &http.Client{Transport: &http.Transport{}}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
		return "http://unix", client, nil
	}
	if !strings.Contains(address, "://") {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return "", nil, notAURL(address)
		}
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", nil, notAURL(address)
	}
	return strings.TrimRight(address, "/"), client, nil
}

func notAURL(address string) error {
	return fmt.Errorf("%q is not the URL of an admin port; give it as %s, HOST:PORT or unix:/path", address, defaultAdmin)
}
