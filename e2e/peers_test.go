package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// This test checks the comparison of weir with its peers in docs/comparison.md. It sends the same bytes to weir,
// HAProxy and nginx. Each has a TLS port and a health port with required PROXY headers, a header timeout of
// eight seconds, and a plain port.

// peersTimeout is the timeout for PROXY headers of all three proxies. It is long, so that
// on a busy machine only the header that is late on purpose is late.
const peersTimeout = 8 * time.Second

const weirAsPeer = `
listeners:
  web: {address: '@web', protocol: http}
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge: {header_timeout: 8s, rules: [{from: [127.0.0.0/8], header: require}]}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes: [{listeners: [web, secure], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

const haproxyAsPeer = `
global
    maxconn 1000
defaults
    mode http
    timeout connect 5s
    timeout client 8s
    timeout http-request 8s
    timeout server 20s
    option forwardfor
frontend web
    bind %[1]s
    default_backend app
frontend secure
    bind %[2]s accept-proxy ssl crt %[5]s
    default_backend app
frontend health
    bind %[3]s accept-proxy
    monitor-uri /
backend app
    server app %[4]s
`

const nginxAsPeer = `
    client_header_timeout 8s;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_set_header Host $http_host;
    server {
        listen %[1]s;
        location / { proxy_pass http://%[4]s; }
    }
    server {
        listen %[2]s ssl proxy_protocol;
        ssl_certificate %[5]s;
        ssl_certificate_key %[6]s;
        location / { proxy_pass http://%[4]s; }
    }
    server {
        listen %[3]s proxy_protocol;
        location / { return 200; }
    }
`

// peer is a proxy and its addresses.
type peer struct{ web, secure, health string }

func startPeers(t *testing.T) []peer {
	_, peers := startPeersOf(t, newWebBackend(t, "app").address, weirAsPeer)
	return peers
}

// startPeersOf starts weir, HAProxy and nginx in front of a backend, weir with the given configuration.
func startPeersOf(t *testing.T, app, config string) (*weir, []peer) {
	w := newWeir(t)
	w.address["app"] = app
	w.start(config)
	peers := []peer{{w.at("web"), w.at("secure"), w.at("health")}}
	cert := writeCertificate(t, w.dir, "peers", false, "app.example.org")
	for _, one := range []struct{ name, config string }{{"haproxy", haproxyAsPeer}, {"nginx", nginxAsPeer}} {
		p := peer{freePort(t), freePort(t), freePort(t)}
		config := fmt.Sprintf(one.config+"%.0[6]s", p.web, p.secure, p.health, app, cert.both, cert.key)
		runProxy(t, one.name, w.dir, config).listening(p.health)
		peers = append(peers, p)
	}
	return w, peers
}

// comparisons are the rows of the table: the bytes that a client sends, and the result in a few words.
var comparisons = []struct {
	name string
	try  func(*testing.T, peer) string
}{
	{"a PROXY header that comes after the timeout, on a TLS port", func(t *testing.T, p peer) string {
		c := dialWith(t, p.secure, nil)
		time.Sleep(peersTimeout + peersTimeout/2)
		c.Write(append(slices.Clone(theHeaders["v2"]), clientHello(t)...))
		got, err := readToEnd(c)
		if len(got) == 0 && err == nil {
			return "closed without a byte"
		}
		return fmt.Sprintf("%d bytes, %v", len(got), err)
	}},
	{"a v2 PROXY header with a wrong CRC32C", func(t *testing.T, p peer) string {
		header := withChecksum(v2Header("203.0.113.9:4711", "192.0.2.1:443"), true)
		_, err := askInPieces(p.secure, header)
		if err != nil {
			return "closed"
		}
		return "served"
	}},
	{"plain HTTP on a TLS port, after a valid PROXY header", func(t *testing.T, p peer) string {
		c := dialWith(t, p.secure, append(slices.Clone(theHeaders["v2"]), "GET / HTTP/1.1\r\nHost: app.example.org\r\n\r\n"...))
		got, _ := readToEnd(c)
		if noPlaintext(got) != nil {
			return fmt.Sprintf("`%s` in plain text", strings.TrimSpace(firstLine(string(got))))
		}
		return "closed, no plain text"
	}},
	{"PROXY headers that one health port accepts from checks", func(t *testing.T, p peer) string {
		var kinds []string
		for _, probe := range []struct {
			name   string
			header []byte
		}{{"none", nil}, {"v1", theHeaders["v1"]}, {"v2", theHeaders["v2"]}, {"the LOCAL of an NLB", nlbProbe()}} {
			c := dialWith(t, p.health, probe.header)
			resp, _, err := ask(c, bufio.NewReader(c), "GET", "node", "/", "Connection: close")
			if err == nil && resp.StatusCode == 200 {
				kinds = append(kinds, probe.name)
			}
		}
		return strings.Join(kinds, ", ")
	}},
	{"`Content-Length` and `Transfer-Encoding` in one request", func(t *testing.T, p peer) string {
		return forwarded(t, p, "POST / HTTP/1.1\r\nHost: app.example.org\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
			func(s seen) string { return "forwarded, as chunked" })
	}},
	{"a client's `X_Forwarded_For` or `X.Forwarded.For`", func(t *testing.T, p peer) string {
		return forwarded(t, p, "GET / HTTP/1.1\r\nHost: app.example.org\r\nX_Forwarded_For: 1.2.3.4\r\nX.Forwarded.For: 1.2.3.4\r\nConnection: close\r\n\r\n",
			func(s seen) string {
				if s.Header["X_forwarded_for"] != nil || s.Header["X.forwarded.for"] != nil {
					return "forwarded"
				}
				return "dropped"
			})
	}},
	{"the path `/public/%2e%2e/admin`", func(t *testing.T, p peer) string {
		return forwarded(t, p, "GET /public/%2e%2e/admin HTTP/1.1\r\nHost: app.example.org\r\nConnection: close\r\n\r\n",
			func(s seen) string { return "forwarded as `" + s.URI + "`" })
	}},
}

// forwarded sends a request to the plain port. It returns the status of a refusal, or the result of f for the
// request that the backend received.
func forwarded(t *testing.T, p peer, request string, f func(seen) string) string {
	c := dialWith(t, p.web, []byte(request))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		return fmt.Sprint(resp.StatusCode)
	}
	var s seen
	body, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(body, &s); err != nil {
		return err.Error()
	}
	return f(s)
}

func TestBesidePeers(t *testing.T) {
	long(t)
	t.Parallel()
	needLinux(t)
	peers := startPeers(t)
	page, err := os.ReadFile("../docs/comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	needPeerVersions(t)
	for _, c := range comparisons {
		row := "| " + c.name
		for _, p := range peers {
			row += " | " + c.try(t, p)
		}
		row += " |\n"
		if !bytes.Contains(page, []byte("\n"+row)) {
			t.Errorf("docs/comparison.md does not have this row:\n%s", row)
		}
	}
}

// needPeerVersions skips a test that expects certain versions of HAProxy and nginx; in CI the test fails.
func needPeerVersions(t *testing.T) {
	t.Helper()
	for name, version := range map[string]string{"haproxy": "HAProxy version 2.6.", "nginx": "nginx/1.22."} {
		out, _ := exec.Command(need(t, name), "-v").CombinedOutput()
		if !strings.Contains(string(out), version) {
			if inCI() {
				t.Fatalf("docs/comparison.md speaks of another version than %s, which CI has", firstLine(string(out)))
			}
			t.Skipf("docs/comparison.md speaks of another version than %s", firstLine(string(out)))
		}
	}
}
