package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
)

func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run weir with backends of its own and show what to try",
		Long: `Run weir on loopback ports in front of two HTTP backends and a TCP one that live
in the same process, with a self-signed certificate and a listener that demands
PROXY headers, and print commands to try. Nothing is read or written. Ctrl-C ends it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo(cmd.OutOrStdout()) },
	}
}

// demoPlaces are the addresses of a demo, each free when it was chosen.
type demoPlaces struct{ Web, Secure, Proxied, TCP, Health, Admin, Backend1, Backend2, Greeter string }

// demoConfig is what the demo runs: as good a first configuration as any.
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

var demoText = template.Must(template.New("").Parse(`weir runs in front of three small backends in this process. Try, in another terminal:

  # HTTP: ask twice, the two backends take turns
  curl http://{{.Web}}/

  # TLS, with a certificate that weir has just signed itself
  curl --insecure --resolve demo.localhost:{{.SecurePort}}:127.0.0.1 https://demo.localhost:{{.SecurePort}}/

  # a listener that wants a PROXY header first (without one it closes and says not a byte)
  curl --haproxy-protocol http://{{.Proxied}}/

  # raw TCP: a server that speaks first, and sends one line back
  echo hello | curl --silent telnet://{{.TCP}}

  # what a load balancer asks: should this node get traffic?
  curl --include http://{{.Health}}/

  # metrics, and the state of everything
  curl --silent http://{{.Admin}}/metrics
  curl --silent http://{{.Admin}}/status

Ctrl-C drains and ends.
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
	cfg, err := config.Parse("demo", text.Bytes(), os.LookupEnv)
	if err != nil {
		return fmt.Errorf("the demo's configuration is wrong: %w", err)
	}
	level := zap.NewAtomicLevel()
	setLevel(level, cfg.Log)
	signals := hearSignals()
	defer signal.Stop(signals)
	s := newServer(newLog(cfg.Log, level), level)
	if err := s.apply(cfg); err != nil {
		s.close()
		return fmt.Errorf("cannot start the demo: %w", err)
	}
	_, port, _ := net.SplitHostPort(places.Secure)
	demoText.Execute(out, struct {
		*demoPlaces
		SecurePort string
	}{places, port})
	return s.serve(signals)
}

// startDemoBackends starts the backends and picks an address for everything else.
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
		ln, err := net.Listen("tcp", "127.0.0.1:0")
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

// freeAddress is the loopback address of the wanted port, or of any where that is taken.
func freeAddress(port int) (string, error) {
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		if ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", fmt.Errorf("cannot find a free port for the demo: %w", err)
		}
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// helloBackend answers with what it was told of the client.
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

// greet is a server that speaks first, as SSH and mail servers do.
func greet(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintln(c, "220 demo greeter: one line comes back.")
			if line, err := bufio.NewReader(io.LimitReader(c, 1024)).ReadString('\n'); err == nil {
				io.WriteString(c, line)
			}
		}()
	}
}
