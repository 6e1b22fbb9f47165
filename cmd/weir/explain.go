package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
)

func newExplainCommand() *cobra.Command {
	var o explainOptions
	c := &cobra.Command{
		Use:   "explain [FILE | --admin URL] URL",
		Short: "Show which route and filters a request gets",
		Long: `Explain shows what a configuration does with a request. It uses the table that
weir itself uses, and prints the listener, the TLS policy, the certificate, the
route, the backend and the filters in their order of effect. It opens no port,
sends nothing to backends, and needs no running weir.
` + aboutFiles + `

The scheme and the port of URL choose the listener. A path is taken byte for byte.
For connections without requests, URL is tcp://HOST:PORT or ssh://HOST:PORT.

If no route matches the request, it prints the nearest routes with the condition that
failed, and ends with status 1. With --client it also tells whether the route is
closed to that client.

With --objects it also reads Ingresses and objects of the Gateway API from manifests. It
treats classes that are not in the manifests as weir's. It prints the errors of the objects
on the way of the request as warnings; weir lint prints those of all objects.

With --admin it asks a running weir instead, whose routes may also come from the
objects of a cluster. HOST:PORT and unix:/path work as well.`,
		Example: `  weir explain https://shop.example/cart
  weir explain weir.yaml --method POST --header 'X-Canary: always' https://shop.example/cart
  weir explain weir.yaml --client 203.0.113.7 --json http://shop.example/admin
  weir explain weir.yaml --objects shop.yaml --header 'Host: shop.example' http://192.0.2.1/cart
  weir explain --admin 127.0.0.1:8087 https://shop.example/
  weir explain weir.yaml tcp://0.0.0.0:2222`,
		SuggestFor:            []string{"match", "route", "routes", "trace"},
		DisableFlagsInUseLine: true,
		PreRunE:               o.check,
		RunE:                  func(c *cobra.Command, args []string) error { return o.run(c, args[len(args)-1]) },
	}
	o.file.flags(c)
	c.Flags().StringArrayVar(&o.objects, "objects", nil, "a `FILE` of Kubernetes manifests; - is standard input; may be repeated")
	c.Flags().StringVar(&o.address, "admin", "", "ask the running weir with the admin port `URL`, such as "+defaultAdmin)
	c.Flags().StringVar(&o.asked.Method, "method", "", "the `METHOD` of the request; the default is GET")
	c.Flags().StringVar(&o.asked.Client, "client", "", "the `ADDRESS` of the client; without it no condition for clients is fulfilled")
	c.Flags().StringArrayVar(&o.asked.Headers, "header", nil, "a header of the request, as `'Name: value'`; may be repeated")
	c.Flags().BoolVar(&o.json, "json", false, "print the answer as JSON")
	o.admin.flags(c)
	return c
}

type explainOptions struct {
	file    files
	address string
	objects []string // files of manifests
	asked   node.Asked
	json    bool
	admin   adminOptions
}

func (o *explainOptions) check(c *cobra.Command, args []string) error {
	var before []string // the configuration
	switch n := len(args) - 1; {
	case n < 0:
		return errors.New("no URL; write weir explain FILE URL, such as https://shop.example/cart")
	case n > 1:
		return fmt.Errorf("explain takes a configuration and one URL, not %d arguments; begin each option with its name, such as --method POST", len(args))
	case n == 1 && strings.Contains(args[0], "://"):
		return errors.New("write the configuration before the URL: weir explain FILE URL")
	default:
		before = args[:n]
	}
	if o.address == "" {
		return o.file.choose(c, before)
	}
	if len(before) > 0 || o.file.flag != "" {
		return errors.New("a configuration file and --admin exclude each other: a running weir has its own configuration")
	}
	if len(o.objects) > 0 {
		return errors.New("--objects and --admin exclude each other: a running weir has the objects of its cluster")
	}
	return nil
}

// errNoRoute ends the command after its output.
var errNoRoute = errors.New("no route has this request")

func (o *explainOptions) run(c *cobra.Command, asked string) error {
	o.asked.URL = asked
	x, err := o.explain(c)
	if err != nil {
		return err
	}
	if o.json {
		e := json.NewEncoder(c.OutOrStdout())
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		err = e.Encode(x)
	} else {
		err = printExplanation(c.OutOrStdout(), x)
	}
	if err == nil && x.Route == "" {
		return errNoRoute
	}
	return err
}

func (o *explainOptions) explain(c *cobra.Command) (*node.Explained, error) {
	if o.address == "" {
		cfg, err := node.Load(o.file.paths[0])
		if err != nil {
			return nil, err
		}
		if len(o.objects) == 0 {
			return node.Explain(cfg, o.asked)
		}
		read, cfg, err := withObjects(c, cfg, o.objects)
		if err != nil {
			return nil, err
		}
		x, err := node.Explain(cfg, o.asked)
		read.warn(c.ErrOrStderr(), cfg, o.asked, x)
		if x != nil && x.Refused != nil {
			x.Refused.Detail = inFiles(x.Refused.Detail)
		}
		return x, err
	}
	answer, err := askAdmin(c.Context(), o.address, o.admin, "/explain",
		url.Values{"url": {o.asked.URL}, "method": {o.asked.Method}, "client": {o.asked.Client}, "header": o.asked.Headers})
	if err != nil {
		return nil, err
	}
	x := new(node.Explained)
	if err := json.Unmarshal(answer, x); err != nil || x.Listener == "" {
		return nil, fmt.Errorf("%s is not the admin port of a weir: its response to GET /explain has another form; use the address in admin.address", withoutToken(o.address))
	}
	return x, nil
}

func printExplanation(w io.Writer, x *node.Explained) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s%s\n", name, fmt.Sprintf(format, args...))
	}
	at := func(position string) string {
		if position == "" {
			return ""
		}
		return " (" + position + ")"
	}
	line("listener", "%s (%s, %s)", x.Listener, x.Protocol, x.Address)
	for _, one := range [][2]string{{"client", x.Client}, {"TLS policy", x.TLSPolicy}, {"certificate", x.Certificate}, {"host", x.Host}} {
		if one[1] != "" {
			line(one[0], "%s", one[1])
		}
	}
	if x.Route != "" {
		line("route", "%s%s", x.Route, at(x.Position))
		backend := x.Backend
		if backend == "" {
			backend = "none: weir answers"
		}
		line("backend", "%s", backend)
	} else {
		line("route", "none")
	}
	for _, one := range [][2]string{{"new path", x.NewPath}, {"new host", x.NewHost}, {"redirect to", x.Location}, {"guarded by", x.GuardedBy}} {
		if one[1] != "" {
			line(one[0], "%s", one[1])
		}
	}
	if x.Refused != nil {
		line("answer", "%d, reason %s: %s", x.Refused.Status, x.Refused.Reason, x.Refused.Detail)
	}
	if len(x.Filters) > 0 {
		b.WriteString("filters, in their order of effect:\n")
	}
	for i, f := range x.Filters {
		fmt.Fprintf(&b, "  %d. %s: %s\n", i+1, f.Name, f.Setting)
	}
	if len(x.Nearest) > 0 {
		b.WriteString("nearest routes, and the condition that failed:\n")
	}
	for _, m := range x.Nearest {
		fmt.Fprintf(&b, "  %s%s\n    %s: %s", m.Route, at(m.Position), m.Condition, m.Wants)
		if m.Has != "" {
			fmt.Fprintf(&b, "; the request has %s", m.Has)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
