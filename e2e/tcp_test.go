package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
)

func readFull(r io.Reader, b []byte) (int, error) { return io.ReadFull(r, b) }

const tunnelConfig = `
listeners:
  raw: {address: '@raw', protocol: tcp, proxy_protocol: edge}
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge:
    header_timeout: 5s
    rules:
      - {from: [127.0.0.1/32], header: require}
      - {from: [127.0.0.2/32], header: none}
      - {from: [127.0.0.3/32], header: discard}
      - {from: [127.0.0.4/32], header: deny}
      - {from: [127.0.0.5/32], header: optional}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {name: raw, listeners: [raw], backend: echo}
  - {listeners: [secure], hosts: [app.example.org], backend: app}
  - {name: vault, listeners: [secure], hosts: [vault.example.org], tls: passthrough, backend: vault}
backends:
  app: {endpoints: ['@app']}
  echo: {protocol: tcp, endpoints: ['@echo'], send_proxy: v2}
  vault: {protocol: tcp, endpoints: ['@vault']}
`

// announced starts a backend that reads a PROXY header with go-proxyproto, sends the addresses in it as its
// first line, and then echoes.
func announced(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	pl := &proxyproto.Listener{Listener: l, ReadHeaderTimeout: patience}
	go func() {
		for {
			c, err := pl.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h := c.(*proxyproto.Conn).ProxyHeader()
				if h == nil {
					fmt.Fprintln(c, "no header")
					return
				}
				tlvs, err := h.TLVs()
				line := fmt.Sprintf("v%d %v %v", h.Version, h.SourceAddr, err)
				for _, t := range tlvs {
					line += fmt.Sprintf(" %#x=%s", byte(t.Type), t.Value)
				}
				fmt.Fprintln(c, line)
				io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func startTunnels(t *testing.T) *weir {
	t.Helper()
	w := newWeir(t)
	w.address["app"], w.address["echo"], w.address["vault"] = newWebBackend(t, "app").address, announced(t), newEchoBackend(t).address
	return w.start(tunnelConfig)
}

func TestTunnelUnderEveryHeaderRule(t *testing.T) {
	t.Parallel()
	needLinux(t)
	w := startTunnels(t)
	v2 := theHeaders["v2"]
	f := func(from string, send []byte, want string) {
		t.Helper()
		c := dial(t, w.at("raw"), from)
		c.Write(append(bytes.Clone(send), "hello\n"...))
		c.(*net.TCPConn).CloseWrite()
		got, err := readToEnd(c)
		if want == "" && len(got) == 0 {
			return
		}
		first, rest, _ := strings.Cut(string(got), "\n")
		if err != nil || want == "" || !strings.HasPrefix(first, want) {
			t.Errorf("from %s: %q, %v; want %q", from, got, err, want)
		}
		if want != "" && rest != "hello\n" {
			t.Errorf("from %s: echoed %q", from, rest)
		}
	}
	f("127.0.0.1", v2, "v2 203.0.113.9:4711")
	f("127.0.0.1", theHeaders["v1"], "v2 203.0.113.9:4711")
	f("127.0.0.1", v2Local(), "v2 127.0.0.1:")
	f("127.0.0.1", nlbProbe(), "v2 127.0.0.1:")
	f("127.0.0.1", []byte("PROXY UNKNOWN\r\n"), "v2 127.0.0.1:")
	f("127.0.0.1", nil, "")
	f("127.0.0.2", nil, "v2 127.0.0.2:")
	f("127.0.0.3", v2, "v2 127.0.0.3:")
	f("127.0.0.3", nil, "")
	f("127.0.0.4", v2, "")
	f("127.0.0.5", v2, "v2 203.0.113.9:4711")
	f("127.0.0.5", nil, "v2 127.0.0.5:")
	f("127.0.0.6", v2, "") // no rule allows this address
	f("127.0.0.1", v2Header("[2001:db8::7]:99", "[2001:db8::1]:443"), "v2 [2001:db8::7]:99")
}

func TestTunnelPassesTLVsOn(t *testing.T) {
	t.Parallel()
	w := startTunnels(t)
	c := dialWith(t, w.at("raw"), theHeaders["v2"])
	c.(*net.TCPConn).CloseWrite()
	got, err := readToEnd(c)
	if err != nil || !strings.Contains(string(got), "0x2=app.example.org") || !strings.Contains(string(got), "0x5=id-1") {
		t.Errorf("authority and unique id are not in the outgoing header: %q, %v", got, err)
	}
	w.logged("the TLVs", func(e entry) bool {
		return e.text("route") == "raw" && e.text("tlv_authority") == "app.example.org" && e.text("client") == "203.0.113.9:4711"
	})
}

// If one end closes its sending half, it still gets all bytes of the other end.
func TestTunnelHalfClose(t *testing.T) {
	t.Parallel()
	payload := pattern(3 << 20)
	w := newWeir(t)
	w.address["app"], w.address["vault"] = freePort(t), freePort(t)
	w.address["echo"] = serve(t, func(c net.Conn) {
		got, _ := io.ReadAll(c) // the backend sends nothing before the client has sent everything
		c.Write(got)
	})
	config := strings.Replace(tunnelConfig, ", send_proxy: v2", "", 1)
	w.start(config)
	c := dialWith(t, w.at("raw"), theHeaders["v1"])
	if _, err := c.Write(payload); err != nil {
		t.Fatal(err)
	}
	c.(*net.TCPConn).CloseWrite()
	got, err := readToEnd(c)
	if err != nil || !bytes.Equal(got, payload) {
		t.Errorf("%d bytes of %d came back, %v", len(got), len(payload), err)
	}

	heard := make(chan string, 1)
	w.address["echo"] = serve(t, func(c net.Conn) {
		c.(*net.TCPConn).CloseWrite()
		got, _ := io.ReadAll(c)
		heard <- string(got)
	})
	w.reload(config)
	c = dialWith(t, w.at("raw"), theHeaders["v1"])
	if got, err := readToEnd(c); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
	c.Write([]byte("still heard"))
	c.(*net.TCPConn).CloseWrite()
	select {
	case got := <-heard:
		if got != "still heard" {
			t.Errorf("the other direction is closed too: the endpoint heard %q", got)
		}
	case <-time.After(patience):
		t.Error("the endpoint does not hear that the client has ended")
	}
}

func TestTunnelEndsWhenIdle(t *testing.T) {
	t.Parallel()
	w := startTunnels(t)
	w.reload(strings.Replace(tunnelConfig, "protocol: tcp, proxy", "protocol: tcp, timeouts: {tunnel_idle: 2s}, proxy", 1))
	c := dialWith(t, w.at("raw"), theHeaders["v1"])
	if _, err := readToEnd(c); err != nil {
		t.Errorf("an idle tunnel is not ended: %v", err)
	}
	w.wantMetric(0, "weir_tunnels_open")
}

// TLS that weir passes through reaches the endpoint byte for byte, in whatever pieces the ClientHello
// arrives.
func TestPassthroughBySNI(t *testing.T) {
	t.Parallel()
	w := startTunnels(t)
	hello := clientHello(t)
	// The same ClientHello for another host. Its name has the same length.
	hello = bytes.ReplaceAll(hello, []byte("app.example.org"), []byte("vlt.example.org"))
	w.reload(strings.ReplaceAll(tunnelConfig, "vault.example.org", "vlt.example.org"))
	var running sync.WaitGroup
	for _, n := range []int{1, 5, 6, 20, 100, len(hello) - 1, len(hello)} {
		running.Go(func() {
			c := dialWith(t, w.at("secure"), append(bytes.Clone(theHeaders["v2"]), hello[:n]...))
			time.Sleep(50 * time.Millisecond)
			c.Write(hello[n:])
			got := make([]byte, len(hello))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, hello) {
				t.Errorf("cut after %d: the endpoint got something else: %v", n, err)
			}
		})
	}
	running.Wait()
}

// A client sends an SNI that ends with a dot. Its TLS is passed through. Where weir terminates TLS, the log
// names the cause.
func TestPassthroughOfAnSNIWithADot(t *testing.T) {
	t.Parallel()
	openssl := need(t, "openssl")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	vault := writeCertificate(t, w.dir, "vault", false, "vault.example.org")
	runPeer(t, openssl, "s_server", "-accept", w.at("vault"), "-cert", vault.cert, "-key", vault.key, "-quiet", "-www").listening(w.at("vault"))
	w.start(`
listeners: {secure: {address: '@secure', protocol: tls}}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [secure], hosts: [app.example.org], backend: app}
  - {listeners: [secure], hosts: [vault.example.org], tls: passthrough, backend: vault}
backends:
  app: {endpoints: ['@app']}
  vault: {protocol: tcp, endpoints: ['@vault']}
`)
	shake := func(name string) (string, error) {
		cmd := exec.Command(openssl, "s_client", "-connect", w.at("secure"), "-servername", name)
		cmd.Stdin = strings.NewReader("")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := shake("vault.example.org."); err != nil || !strings.Contains(out, "subject=") {
		t.Errorf("passed through: %v\n%s", err, out)
	}
	if out, err := shake("app.example.org."); err == nil {
		t.Errorf("terminated: a handshake that Go's TLS cannot do succeeded\n%s", out)
	}
	w.logged("the cause", func(e entry) bool {
		return e.text("tls_result") == "bad_record" && strings.Contains(e.text("error"), "an SNI that ends with a dot")
	})
}
