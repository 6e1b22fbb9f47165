package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const redisConfig = `
listeners:
  front: {address: '@front', protocol: tls}
  back: {address: '@back', protocol: tcp}
  both: {address: '@both', protocol: tls}
certificates: [{cert: '@@dir/weir.crt', key: '@@dir/weir.key'}]
tls_policies: {certified: {client_auth: {mode: require, ca: '@@dir/client.crt'}}}
routes:
  - {name: front, listeners: [front], tls_policy: certified, backend: plain}
  - {name: back, listeners: [back], backend: secure}
  - {name: both, listeners: [both], hosts: [cache.example.org], backend: secure}
backends:
  plain: {protocol: tcp, endpoints: ['@plain']}
  secure:
    protocol: tcp
    endpoints: ['@secure']
    tls: {server_name: redis.internal, ca: '@@dir/redis.crt', cert: '@@dir/client.crt', key: '@@dir/client.key'}
`

// Redis behind weir, with TLS from the client to weir, from weir to Redis, and both.
// Clients and weir show a certificate if the other side requires one.
func TestRedisOverTLS(t *testing.T) {
	t.Parallel()
	server, cli := need(t, "redis-server"), need(t, "redis-cli")
	w := newWeir(t)
	own := writeCertificate(t, w.dir, "weir", false, "cache.example.org")
	redis := writeCertificate(t, w.dir, "redis", true, "redis.internal")
	client := writeCertificate(t, w.dir, "client", false, "robot-7")
	w.address["plain"], w.address["secure"] = freePort(t), freePort(t)
	runPeer(t, server, "--bind", "127.0.0.1", "--port", port(w.at("plain")), "--tls-port", port(w.at("secure")), "--save", "", "--appendonly", "no", "--dir", t.TempDir(),
		"--tls-cert-file", redis.cert, "--tls-key-file", redis.key, "--tls-ca-cert-file", client.cert, "--tls-auth-clients", "yes").listening(w.at("plain"), w.at("secure"))
	w.start(redisConfig)

	run := func(listener, input string, args ...string) (string, error) {
		args = append([]string{"-h", "127.0.0.1", "-p", port(w.at(listener))}, args...)
		cmd := exec.Command(cli, args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	secure := []string{"--tls", "--cacert", own.cert, "--sni", "cache.example.org"}
	certified := []string{"--tls", "--cacert", own.cert, "--cert", client.cert, "--key", client.key} // without SNI, like most clients of databases
	value := strings.Repeat("0123456789abcdef", 1<<16)
	for listener, args := range map[string][]string{"front": certified, "back": nil, "both": secure} {
		key := "key-" + listener
		if out, err := run(listener, value, append(args, "-x", "SET", key)...); out != "OK\n" {
			t.Fatalf("%s: SET says %q, %v", listener, out, err)
		}
		if out, _ := run(listener, "", append(args, "GET", key)...); out != value+"\n" {
			t.Errorf("%s: GET says %d bytes", listener, len(out))
		}
		if out, _ := run(listener, "PING\nSTRLEN "+key+"\n", args...); out != "PONG\n1048576\n" {
			t.Errorf("%s: two commands say %q", listener, out)
		}
		e := w.logged("the tunnel", func(e entry) bool { return e.text("route") == listener })
		if reason := e.text("reason"); reason != "eof" && (listener != "both" || reason != "client_reset") { // redis-cli sends no close_notify
			t.Errorf("%s: the tunnel ended by %s", listener, reason)
		}
		if want := map[string]string{"front": "certified", "both": "default"}[listener]; e.text("tls_policy") != want || e.text("kind") != "tunnel" {
			t.Errorf("%v", e)
		}
	}
	if out, err := run("front", "", append(secure, "PING")...); err == nil {
		t.Errorf("without a certificate there is %q", out)
	}
	w.logged("the refusal", func(e entry) bool {
		return e.text("listener") == "front" && e.text("tls_result") == "client_certificate"
	})
	w.wantMetric(0, "weir_tunnels_open")
}

// OpenSSL works as client and as server of a tunnel.
func TestOpenSSLThroughATunnel(t *testing.T) {
	t.Parallel()
	openssl := need(t, "openssl")
	w := newWeir(t)
	inside := writeCertificate(t, w.dir, "inside", false, "inside.example.org")
	w.address["inside"] = freePort(t)
	runPeer(t, openssl, "s_server", "-accept", w.at("inside"), "-cert", inside.cert, "-key", inside.key, "-rev", "-alpn", "sieve").listening(w.at("inside"))
	w.start(`
listeners: {edge: {address: '@edge', protocol: tls}}
certificates: [{self_signed: {hosts: [mail.example.org]}}]
routes: [{listeners: [edge], hosts: [mail.example.org], alpn: [imap], backend: mail}]
backends: {mail: {protocol: tcp, endpoints: ['@inside'], tls: {ca: '@@dir/inside.crt', server_name: inside.example.org, alpn: [sieve]}}}
`)
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		cmd := exec.Command(openssl, "s_client", "-connect", w.at("edge"), "-servername", "mail.example.org", "-alpn", "x,imap", "-nocommands", version)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		io.WriteString(in, "hello, world\n")
		lines, agreed := bufio.NewScanner(out), false
		for lines.Scan() && lines.Text() != "dlrow ,olleh" {
			agreed = agreed || lines.Text() == "ALPN protocol: imap"
		}
		if lines.Text() != "dlrow ,olleh" || !agreed {
			t.Errorf("%s: the last line is %q, the protocol was agreed on: %t", version, lines.Text(), agreed)
		}
		in.Close() // makes s_client send close_notify
		io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		end.Stop()
	}
	w.wantMetric(0, "weir_tunnels_open")
}

const haproxyReceives = `
defaults
    mode tcp
    timeout client 30s
    timeout server 30s
    timeout connect 5s
frontend inside
    bind %s accept-proxy ssl crt %s
    default_backend echo
backend echo
    server echo %s send-proxy-v2-ssl-cn
`

const proxiedConfig = `
listeners: {edge: {address: '@edge', protocol: tls}, raw: {address: '@raw', protocol: tcp}}
certificates: [{self_signed: {hosts: [db.example.org]}}]
routes:
  - {name: edge, listeners: [edge], hosts: [db.example.org], backend: db}
  - {name: raw, listeners: [raw], backend: db}
backends: {db: {protocol: tcp, endpoints: ['@db'], send_proxy: v2, tls: {ca: '@@dir/haproxy.crt', server_name: db.internal}}}
`

// weir sends the PROXY header before the TLS handshake with the endpoint, as HAProxy expects.
func TestHAProxyReceivesTunnels(t *testing.T) {
	t.Parallel()
	needLinux(t)
	need(t, "haproxy")
	w := newWeir(t)
	cert := writeCertificate(t, w.dir, "haproxy", true, "db.internal")
	w.address["db"] = freePort(t)
	runProxy(t, "haproxy", w.dir, fmt.Sprintf(haproxyReceives, w.at("db"), cert.both, announced(t))).listening(w.at("db"))
	w.start(proxiedConfig)
	for i, listener := range []string{"edge", "raw"} {
		from := fmt.Sprintf("127.0.0.%d", 20+i)
		c := dial(t, w.at(listener), from)
		if listener == "edge" {
			c = tls.Client(c, anyCertificate("db.example.org"))
		}
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		line, err := r.ReadString('\n')
		if !strings.HasPrefix(line, "v2 "+from+":") {
			t.Errorf("%s: the backend heard %q, %v", listener, line, err)
		}
		if echo, err := r.ReadString('\n'); echo != "hello\n" {
			t.Errorf("%s: the echo is %q, %v", listener, echo, err)
		}
		c.Close()
	}
}

const openedConfig = `
listeners: {edge: {address: '@edge', protocol: tls}}
certificates: [{self_signed: {hosts: [db.example.org]}}]
routes:
  - {name: plain, listeners: [edge], hosts: [db.example.org], backend: plain}
  - {name: secure, listeners: [edge], hosts: [tls.example.org], backend: secure}
  - {name: app, listeners: [edge], hosts: [app.example.org], backend: app}
backends:
  app: {endpoints: ['@app']}
  plain: {protocol: tcp, endpoints: ['@plain']}
  secure: {protocol: tcp, endpoints: ['@secure'], tls: {ca: '@@dir/inside.crt', server_name: inside.example.org}}
`

// startOpened starts weir with openedConfig. handle serves the connections to both backends.
func startOpened(t *testing.T, handle func(net.Conn)) *weir {
	t.Helper()
	w := newWeir(t)
	inside := writeCertificate(t, w.dir, "inside", false, "inside.example.org")
	pair, err := tls.LoadX509KeyPair(inside.cert, inside.key)
	if err != nil {
		t.Fatal(err)
	}
	w.address["app"], w.address["plain"] = newWebBackend(t, "app").address, serve(t, handle)
	w.address["secure"] = serve(t, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
		handle(s)
		s.Close()
	})
	return w.start(openedConfig)
}

// duplex is a connection whose directions can be closed one by one.
type duplex interface {
	net.Conn
	CloseWrite() error
}

func openedTo(t *testing.T, w *weir, host string) *tls.Conn {
	t.Helper()
	c := tls.Client(dial(t, w.at("edge")), anyCertificate(host))
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c
}

var openedHosts = []string{"db.example.org", "tls.example.org"}

// A tunnel carries much data in both directions at once, and each direction ends by itself.
func TestOpenedTunnelsCarryMuch(t *testing.T) {
	t.Parallel()
	payload := pattern(8 << 20)
	w := startOpened(t, func(c net.Conn) {
		heard := make(chan string, 1)
		go func() {
			got, err := io.ReadAll(c)
			heard <- fmt.Sprint(sum256(got), err)
		}()
		c.Write(payload)
		fmt.Fprint(c, "|", <-heard) // the client has closed its sending half, the other direction is still open
		c.(duplex).CloseWrite()
	})
	for _, host := range openedHosts {
		c := openedTo(t, w, host)
		go func() {
			c.Write(payload)
			c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		body, said, _ := bytes.Cut(got[min(len(got), len(payload)):], []byte("|"))
		if err != nil || len(body) > 0 || sum256(got[:min(len(got), len(payload))]) != sum256(payload) || string(said) != fmt.Sprint(sum256(payload), nil) {
			t.Errorf("%s: %d bytes came, then %q and %v", host, len(got), said, err)
		}
		w.logged("the tunnel", func(e entry) bool {
			return e.text("sni") == host && e.text("reason") == "eof" && e.text("bytes_in") == fmt.Sprint(len(payload))
		})
	}
}

// If a client or endpoint vanishes, weir resets the other side. A client that sends
// something other than TLS gets no answer.
func TestOpenedTunnelsEndBadly(t *testing.T) {
	t.Parallel()
	ends := make(chan error, 10)
	w := startOpened(t, func(c net.Conn) {
		var b [4]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			ends <- err
			return
		}
		c.Write(b[:])
		if string(b[:]) == "stop" {
			var below net.Conn = c
			if s, ok := c.(*tls.Conn); ok {
				below = s.NetConn()
			}
			below.(*net.TCPConn).SetLinger(0)
			below.Close()
			return
		}
		_, err := io.ReadFull(c, b[:])
		ends <- err
	})
	for _, host := range openedHosts {
		c := openedTo(t, w, host)
		io.WriteString(c, "here")
		io.ReadFull(c, make([]byte, 4))
		c.NetConn().(*net.TCPConn).SetLinger(0)
		c.NetConn().Close()
		if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: when the client vanished the endpoint got %v", host, err)
		}
		w.logged("the reset", func(e entry) bool { return e.text("sni") == host && e.text("reason") == "client_reset" })

		c = openedTo(t, w, host)
		io.WriteString(c, "stop")
		if got, err := io.ReadAll(c); err == nil {
			t.Errorf("%s: when the endpoint vanished the client got %q and an orderly end", host, got)
		}
		w.logged("the reset", func(e entry) bool { return e.text("sni") == host && e.text("reason") == "endpoint_reset" })
	}
	for _, begin := range []string{"PING\r\n", "GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x08\x04\xd2\x16\x2f"} { // the last one is PostgreSQL's request for TLS
		c := dial(t, w.at("edge"))
		io.WriteString(c, begin)
		if got, _ := readToEnd(c); len(got) > 0 {
			t.Errorf("%q was answered with %q", begin, got)
		}
	}
	w.wantMetric(0, "weir_tunnels_open")
}

// A reload does not affect tunnels whose route stays, and a drain waits for them. Tunnels
// whose route was removed end.
func TestOpenedTunnelsOutliveReloads(t *testing.T) {
	t.Parallel()
	w := startOpened(t, func(c net.Conn) { io.Copy(c, c) })
	talk := func(c *tls.Conn, message string) error {
		got := make([]byte, len(message))
		if _, err := io.WriteString(c, message); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, got); err != nil || string(got) != message {
			return fmt.Errorf("%q, %w", got, err)
		}
		return nil
	}
	stays, goes := openedTo(t, w, openedHosts[0]), openedTo(t, w, openedHosts[1])
	for _, c := range []*tls.Conn{stays, goes} {
		if err := talk(c, "one"); err != nil {
			t.Fatal(err)
		}
	}
	without := strings.Replace(openedConfig, "  - {name: secure, listeners: [edge], hosts: [tls.example.org], backend: secure}\n", "", 1)
	w.reload(without + "drain: {lame_duck: 0s, timeout: 1s}\n")
	goes.SetReadDeadline(time.Now().Add(patience))
	if _, err := goes.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
		t.Errorf("the tunnel without a route ended by %v", err)
	}
	if err := talk(stays, "two"); err != nil {
		t.Errorf("the other tunnel after the reload: %v", err)
	}
	w.reload(openedConfig) // this configuration has a drain of 10s
	w.signal(syscall.SIGTERM)
	eventually(t, "weir takes no more", func() error {
		c, err := net.Dial("tcp", w.at("edge"))
		if err == nil {
			c.Close()
			return errors.New("it does")
		}
		return nil
	})
	if err := talk(stays, "three"); err != nil {
		t.Errorf("during the drain: %v", err)
	}
	stays.Close()
	if status := w.wait(); status != 0 {
		t.Errorf("weir ended with status %d", status)
	}
}
