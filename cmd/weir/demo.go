package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/listener/sockets"
)

func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run weir with example backends, and print commands to try",
		Long: `Run weir and three example backends (two HTTP, one TCP) in one process on loopback
ports, with a self-signed certificate and a listener that requires a PROXY header, and
print commands to try. The demo reads and writes no files. Ctrl-C ends it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo(cmd.OutOrStdout()) },
	}
}

// demoPlaces are the addresses of a demo. Each was free when it was chosen.
type demoPlaces struct{ Web, Secure, Proxied, TCP, Health, Admin, Backend1, Backend2, Greeter string }

// demoConfig is the configuration of the demo. It is also a good first configuration.
var demoConfig = template.Must(template.New("").Parse(`
listeners:
  web: {address: "{{.Web}}", protocol: http}
  secure: {address: "{{.Secure}}", protocol: tls}
  proxied: {address: "{{.Proxied}}", protocol: http, proxy_protocol: balancers}
  tcp: {address: "{{.TCP}}", protocol: tcp}
proxy_protocol:
  balancers:
    rules:
      - {from: [127.0.0.0/8], header: require}
certificates:
  - self_signed: {hosts: [demo.localhost, localhost, 127.0.0.1]}
routes:
  - {listeners: [web, secure, proxied], backend: hello}
  - {listeners: [tcp], backend: greeter}
backends:
  hello:
    endpoints: ["{{.Backend1}}", "{{.Backend2}}"]
    balance: round_robin
    health_check: {http: {path: /healthz}, interval: 2s, timeout: 1s}
  greeter: {protocol: tcp, endpoints: ["{{.Greeter}}"]}
health: {address: "{{.Health}}", require_local: [hello]}
admin: {address: "{{.Admin}}"}
drain: {lame_duck: 0s, timeout: 5s}
log: {level: warn, format: console}
`))

var demoText = template.Must(template.New("").Parse(`weir and three example backends run in this process. Try these commands in another terminal:

  # HTTP (two backends take turns: run it twice)
  curl http://{{.Web}}/

  # TLS, with a self-signed certificate that weir has just made
  curl --insecure --resolve demo.localhost:{{.SecurePort}}:127.0.0.1 https://demo.localhost:{{.SecurePort}}/

  # a listener that requires a PROXY header (it closes other connections without a byte)
  curl --haproxy-protocol http://{{.Proxied}}/

  # raw TCP: this backend sends a greeting first, and then sends your line back
  echo hello | curl --silent telnet://{{.TCP}}

  # the health port, for load balancers: 200 if this node should get traffic, else 503
  curl --include http://{{.Health}}/

  # the admin port: the status page (open http://{{.Admin}}/ in a browser), and metrics
  {{.Weir}} top --once {{.Admin}}
  curl --silent http://{{.Admin}}/metrics

Ctrl-C ends it.
`))

func demo(out io.Writer) error {
	places, stop, err := startDemoBackends()
	if err != nil {
		return err
	}
	defer stop()
	var text bytes.Buffer
	if err := demoConfig.Execute(&text, places); err != nil {
		return err
	}
	cfg, err := file.Parse("demo", text.Bytes(), os.LookupEnv)
	if err != nil {
		return fmt.Errorf("the demo's configuration is wrong: %w", err)
	}
	ctx, stopSignals := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	defer stopSignals()
	n := node.New(cfg.Log, build())
	if err := n.Apply(cfg); err != nil {
		n.End()
		return fmt.Errorf("cannot start the demo: %w", err)
	}
	_, port, _ := net.SplitHostPort(places.Secure)
	demoText.Execute(out, struct {
		*demoPlaces
		SecurePort, Weir string
	}{places, port, typed(os.Args[0])})
	<-ctx.Done()
	return n.End()
}

// typed returns the command by which a user runs this program. A program that "go run" has built is removed
// at its end, so the command is "go run" again.
func typed(program string) string {
	if strings.Contains(filepath.ToSlash(program), "/go-build") {
		return "go run ./cmd/weir"
	}
	return program
}

// startDemoBackends starts the backends and chooses the other addresses.
func startDemoBackends() (*demoPlaces, func(), error) {
	p := new(demoPlaces)
	var open []net.Listener
	stop := func() {
		for _, ln := range open {
			ln.Close()
		}
	}
	for _, b := range []struct {
		address *string
		serve   func(net.Listener)
	}{
		{&p.Backend1, helloBackend("one")},
		{&p.Backend2, helloBackend("two")},
		{&p.Greeter, greet},
	} {
		ln, err := sockets.Loopback()
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("cannot start a backend of the demo: %w", err)
		}
		open = append(open, ln)
		*b.address = ln.Addr().String()
		go b.serve(ln)
	}
	for port, address := range map[int]*string{8080: &p.Web, 8443: &p.Secure, 8081: &p.Proxied,
		8022: &p.TCP, 8086: &p.Health, 8087: &p.Admin} {
		a, err := freeAddress(port)
		if err != nil {
			stop()
			return nil, nil, err
		}
		*address = a
	}
	return p, stop, nil
}

// freeAddress returns a loopback address with this port, or with another one if it is in use.
func freeAddress(port int) (string, error) {
	if address := fmt.Sprintf("127.0.0.1:%d", port); sockets.Available("tcp", address) {
		return address, nil
	}
	ln, err := sockets.Loopback()
	if err != nil {
		return "", fmt.Errorf("cannot find a free port for the demo: %w", err)
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// helloBackend answers each request with its HTTP headers about the client.
func helloBackend(name string) func(net.Listener) {
	return func(ln net.Listener) {
		http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "Hello from backend %s.\n", name)
			for _, field := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Request-Id"} {
				fmt.Fprintf(w, "%s: %s\n", field, r.Header.Get(field))
			}
		}))
	}
}

// greet is a server that sends first, as SSH and mail servers do. It sends one line back.
func greet(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintln(c, "220 demo backend: send a line, and it comes back")
			if line, err := bufio.NewReader(io.LimitReader(c, 1024)).ReadString('\n'); err == nil {
				io.WriteString(c, line)
			}
		}()
	}
}
