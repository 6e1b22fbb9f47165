package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Story 4 of the design: SSH, Git and HTTPS share one address.

const sshConfig = `
listeners:
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge}
  ssh: {address: '@ssh', protocol: tcp, proxy_protocol: required}
proxy_protocol:
  edge:
    header_timeout: 5s
    rules: [{from: [127.0.0.0/8], header: optional}]
  required:
    header_timeout: 5s
    rules: [{from: [127.0.0.0/8], header: require}]
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [secure], hosts: [app.example.org], backend: app}
  - {name: git-over-443, listeners: [secure], first_bytes: ssh, backend: sshd}
  - {name: ssh, listeners: [ssh], backend: sshd}
backends:
  app: {endpoints: ['@app']}
  sshd: {protocol: tcp, endpoints: ['@sshd']}
`

// sshServer is Debian's sshd with its own port and keys.
type sshServer struct {
	address, dir, user string
}

func startSSH(t *testing.T) sshServer {
	t.Helper()
	needLinux(t)
	sshd, keygen := need(t, "sshd"), need(t, "ssh-keygen")
	need(t, "ssh")
	need(t, "scp")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := sshServer{address: freePort(t), dir: t.TempDir(), user: me.Username}
	for _, name := range []string{"host", "client"} {
		if out, err := exec.Command(keygen, "-q", "-t", "ed25519", "-N", "", "-f", s.file(name)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	if me.Uid == "0" { // sshd uses this folder as its root, and a fresh container lacks it
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host, port, _ := net.SplitHostPort(s.address)
	config := fmt.Sprintf(`ListenAddress %s
Port %s
HostKey %s
AuthorizedKeysFile %s
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
`, host, port, s.file("host"), s.file("client.pub"))
	if err := os.WriteFile(s.file("sshd_config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	runPeer(t, sshd, "-D", "-e", "-f", s.file("sshd_config")).listening(s.address)
	return s
}

func (s sshServer) file(name string) string { return filepath.Join(s.dir, name) }

// options returns the options by which a client connects to address without questions, and without
// remembering keys.
func (s sshServer) options(portFlag, address string) []string {
	_, port, _ := net.SplitHostPort(address)
	return []string{portFlag, port, "-i", s.file("client"), "-F", "none", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=20"}
}

func startSSHAndWeb(t *testing.T) (*weir, sshServer) {
	t.Helper()
	s := startSSH(t)
	w := newWeir(t)
	w.address["app"], w.address["sshd"] = newWebBackend(t, "app").address, s.address
	return w.start(sshConfig), s
}

func TestStory4SSHAndHTTPSOnOneAddress(t *testing.T) {
	long(t)
	t.Parallel()
	w, s := startSSHAndWeb(t)
	// A load balancer announces the client 203.0.113.77, which uses SSH on the HTTPS port.
	partner := shim(t, w.at("secure"), v2Header("203.0.113.77:2222", "192.0.2.1:443"))
	// SSH on its own listener, which requires a PROXY header. The server speaks first, so weir must connect
	// to it as soon as the header is complete.
	announced := shim(t, w.at("ssh"), v1Header("203.0.113.78:2222", "192.0.2.1:22"))
	payload := pattern(50_000_000)

	paths := []struct{ name, address, client, route string }{
		{"ssh-on-the-HTTPS-port", w.at("secure"), "127.0.0.1", "git-over-443"},
		{"ssh-on-the-HTTPS-port-behind-a-load-balancer", partner, "203.0.113.77", "git-over-443"},
		{"ssh-on-its-own-port", announced, "203.0.113.78", "ssh"},
	}
	t.Run("transfers", func(t *testing.T) {
		for _, p := range paths {
			t.Run(p.name, func(t *testing.T) {
				s.transfer(t, p.address, payload)
				e := w.logged("the tunnel of "+p.client, func(e entry) bool {
					received, _ := strconv.ParseInt(e.text("bytes_in"), 10, 64)
					return e.text("route") == p.route && strings.HasPrefix(e.text("client"), p.client) && received > 50_000_000
				})
				if e.text("backend") != "sshd" || e.text("endpoint") != s.address {
					t.Errorf("the line does not say where the tunnel went: %v", e)
				}
			})
		}
	})
	t.Run("HTTPS", func(t *testing.T) {
		got, err := askSeen(tls.Client(dial(t, w.at("secure")), anyCertificate("app.example.org")), "app.example.org", "/")
		if err != nil || got.Backend != "app" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	w.wantMetric(0, "weir_tunnels_open")
	if n := w.metric("weir_bytes_total", "route", "git-over-443"); n < 200_000_000 {
		t.Errorf("weir_bytes_total counts %.0f for four transfers of 50 MB", n)
	}
}

// transfer sends a file with payload in each direction: to the server by scp, and back through a stream of
// ssh.
func (s sshServer) transfer(t *testing.T, address string, payload []byte) {
	t.Helper()
	local, remote := filepath.Join(t.TempDir(), "sent"), filepath.Join(t.TempDir(), "received")
	if err := os.WriteFile(local, payload, 0o600); err != nil {
		t.Fatal(err)
	}
	host := s.user + "@127.0.0.1"
	if out, err := exec.Command("scp", append(s.options("-P", address), local, host+":"+remote)...).CombinedOutput(); err != nil {
		t.Fatalf("scp: %v: %s", err, out)
	}
	if got, err := os.ReadFile(remote); err != nil || sum256(got) != sum256(payload) {
		t.Fatalf("scp brought something else: %d bytes, %v", len(got), err)
	}
	var got, complaints bytes.Buffer
	cmd := exec.Command("ssh", append(s.options("-p", address), host, "cat", remote)...)
	cmd.Stdout, cmd.Stderr = &got, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("ssh: %v: %s", err, complaints.String())
	}
	if sum256(got.Bytes()) != sum256(payload) {
		t.Fatalf("ssh brought something else: %d bytes", got.Len())
	}
	// A stream to the server, which ends when the client closes its sending half.
	cmd = exec.Command("ssh", append(s.options("-p", address), host, "sha256sum")...)
	cmd.Stdin = bytes.NewReader(payload[:1<<20])
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), sum256(payload[:1<<20])) {
		t.Fatalf("ssh sha256sum: %q, %v", out, err)
	}
}

// A client that sends nothing receives the first bytes of the server at once.
func TestStory4ServerSpeaksFirst(t *testing.T) {
	t.Parallel()
	greeter := serve(t, func(c net.Conn) {
		c.Write([]byte("220 welcome\r\n"))
		c.SetDeadline(time.Now().Add(patience))
		readToEnd(c)
	})
	w := newWeir(t)
	w.address["sshd"], w.address["app"] = greeter, freePort(t)
	w.start(sshConfig)
	for version, header := range theHeaders {
		c := dialWith(t, w.at("ssh"), header)
		got := make([]byte, 13)
		if _, err := readFull(c, got); err != nil || string(got) != "220 welcome\r\n" {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
}

// Some SSH clients send nothing before they have the server's banner. On a port that SSH and HTTPS share
// they reach the server after silent_after, also behind a PROXY header.
func TestStory4ClientWaitsForBanner(t *testing.T) {
	t.Parallel()
	s := startSSH(t)
	w := newWeir(t)
	w.address["app"], w.address["sshd"] = newWebBackend(t, "app").address, s.address
	w.start(`
listeners:
  direct: {address: '@direct', protocol: tls, timeouts: {handshake: 15s}}
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge, timeouts: {handshake: 15s}}
  plain: {address: '@plain', protocol: http, timeouts: {handshake: 15s}}
proxy_protocol: {edge: {rules: [{from: [127.0.0.0/8], header: require}]}}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [direct, secure, plain], hosts: [app.example.org], backend: app}
  - {name: ssh, listeners: [direct, secure, plain], first_bytes: ssh, silent_after: 1s, backend: sshd}
backends:
  app: {endpoints: ['@app']}
  sshd: {protocol: tcp, endpoints: ['@sshd']}
`)
	for listener, header := range map[string][]byte{"direct": nil, "plain": nil, "secure": v2Header("203.0.113.77:2222", "192.0.2.1:443")} {
		c := dialWith(t, w.at(listener), header)
		r := bufio.NewReader(c)
		banner, err := r.ReadString('\n')
		if err != nil || !strings.HasPrefix(banner, "SSH-2.0-OpenSSH") {
			t.Fatalf("%s: the banner is %q, %v", listener, banner, err)
		}
		fmt.Fprintf(c, "SSH-2.0-waits\r\n")
		if packet, err := r.Peek(6); err != nil || packet[5] != 20 { // SSH_MSG_KEXINIT (RFC 4253, section 12)
			t.Errorf("%s: the server goes on with %q, %v", listener, packet, err)
		}
		c.Close()
	}
	w.logged("the client behind the load balancer", func(e entry) bool {
		return e.text("route") == "ssh" && e.text("client") == "203.0.113.77:2222"
	})
	if got, err := askSeen(tls.Client(dial(t, w.at("direct")), anyCertificate("app.example.org")), "app.example.org", "/"); err != nil || got.Backend != "app" {
		t.Errorf("HTTPS: %+v, %v", got, err)
	}
	if out, err := exec.Command("ssh", append(s.options("-p", w.at("direct")), s.user+"@127.0.0.1", "echo", "hello")...).CombinedOutput(); err != nil || string(out) != "hello\n" {
		t.Errorf("OpenSSH: %q, %v", out, err)
	}
}
