package main

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/probe"
)

func newProbeCommand() *cobra.Command {
	var (
		o      probe.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "probe HOST:PORT",
		Short: "Find out how an endpoint treats PROXY headers",
		Long: `Probe connects to a server, proxy or load balancer and reports whether it
requires PROXY headers, accepts them or does not read them; which kinds it reads
(v1, v2, LOCAL, TLVs, CRC32C); and how it reacts to headers that are late,
truncated, malformed, duplicated or spoofed, and to plaintext on a TLS port.

It opens at most five connections at a time and about thirty in total, sends a
TLS ClientHello or one small HTTP request on each, and ends within a minute. The
headers name the address of this host, except one with an address for
documentation (192.0.2.1). The endpoint's log will show errors.

Probe only endpoints that you operate or may test.

The reactions:
  serves   the handshake or the request succeeded
  closes   the endpoint closed the connection without a byte
  answers  bytes came back; on a TLS port bytes other than TLS records
  alerts   TLS records came back
  waits    nothing came back, or the endpoint still served the late header

The exit status is 1 if the endpoint cannot be reached or serves no connection.`,
		Example: `  weir probe 10.0.0.7:443
  weir probe --json --host app.example.org edge1.example.org:8443`,
		Args: arguments(1, 1, "write one endpoint: weir probe HOST:PORT"),
		RunE: func(c *cobra.Command, args []string) error {
			o.Address = args[0]
			if o.Wait < time.Second || o.Wait > 10*time.Minute {
				return errors.New("probe: --wait must be from 1s to 10m")
			}
			report, err := probe.Run(c.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				e.SetEscapeHTML(false)
				err = e.Encode(report)
			} else {
				report.Print(c.OutOrStdout())
			}
			if err == nil && report.Verdict == probe.Unknown {
				err = errors.New("the endpoint served no connection, so nothing is known about PROXY headers: check that it lets this host connect, and set --host to a host that it serves")
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().StringVar(&o.Host, "host", "", "the `HOST` for SNI and the Host header, a port is left out; default: the one in HOST:PORT")
	c.Flags().DurationVar(&o.Wait, "wait", probe.DefaultWait, "how long the late header waits, as a `DURATION`")
	return c
}
