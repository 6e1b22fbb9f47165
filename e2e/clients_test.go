package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"github.com/coder/websocket"
)

func TestOldNodeWithKeepAliveAgent(t *testing.T) {
	t.Parallel()
	node := need(t, "node")
	w, app := startWeb(t)
	_, port, _ := net.SplitHostPort(w.at("secure"))
	result := askByNode(t, node, port, "40", "app.example.org")
	if result.OK != 640 || len(result.Errors) > 0 {
		t.Errorf("%d of 640 requests went through; %v", result.OK, result.Errors)
	}
	if result.Sockets > 8 || result.Reused < 600 {
		t.Errorf("the agent's connections are not kept alive: %d new ones, %d times one was used again", result.Sockets, result.Reused)
	}
	if n := app.connections.Load(); n > 16 {
		t.Errorf("weir opened %d connections to the backend for 8 clients", n)
	}
}

// nodeResult is the result that testdata/keepalive.js prints.
type nodeResult struct {
	OK, Sockets, Reused int
	Errors              []string
}

func askByNode(t *testing.T, node string, args ...string) (result nodeResult) {
	t.Helper()
	cmd := exec.Command(node, append([]string{"testdata/keepalive.js"}, args...)...)
	var warnings bytes.Buffer
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil || json.Unmarshal(out, &result) != nil {
		t.Fatalf("%s: %v: %s%s", node, err, out, &warnings)
	}
	return result
}

// Old releases of Node.js are served, each with a TLS policy that it supports.
func TestOldNode(t *testing.T) {
	t.Parallel()
	f := func(version, host, method, wantTLS string) {
		t.Run(version+" "+wantTLS, func(t *testing.T) {
			node := need(t, "node-"+version)
			w := startPartners(t)
			_, port, _ := net.SplitHostPort(w.at("secure"))
			result := askByNode(t, node, port, "8", host, method)
			if result.OK != 128 || len(result.Errors) > 0 {
				t.Errorf("%d of 128 requests went through; %v", result.OK, result.Errors)
			}
			eventually(t, "all requests are logged with their TLS version", func() error {
				seen := map[string]int{}
				for _, e := range w.accessLog() {
					seen[e.text("tls_version")]++
				}
				if seen[wantTLS] != 128 {
					return fmt.Errorf("%v, want 128 of %s", seen, wantTLS)
				}
				return nil
			})
		})
	}
	f("0.8", "legacy.example.org", "TLSv1_method", "TLS 1.0")
	f("0.10", "legacy.example.org", "TLSv1_method", "TLS 1.0")
	f("0.10", "app.example.org", "", "TLS 1.2")
	f("0.12", "legacy.example.org", "TLSv1_1_method", "TLS 1.1")
	f("0.12", "app.example.org", "", "TLS 1.2")
	f("4", "app.example.org", "", "TLS 1.2")
	f("8", "app.example.org", "", "TLS 1.2")
	f("12", "app.example.org", "", "TLS 1.2")
}

func TestWebSocketEcho(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: anyCertificate("app.example.org")}}
	for _, url := range []string{"ws://" + w.at("web") + "/ws", "wss://" + w.at("secure") + "/ws"} {
		t.Run(url[:3], func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: client})
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseNow()
			c.SetReadLimit(1 << 20)
			for _, size := range []int{0, 1, 125, 126, 4000, 65536, 500000} {
				message := pattern(size)
				if err := c.Write(ctx, websocket.MessageBinary, message); err != nil {
					t.Fatal(err)
				}
				_, got, err := c.Read(ctx)
				if err != nil || !bytes.Equal(got, message) {
					t.Fatalf("%d bytes of %d came back, %v", len(got), size, err)
				}
			}
			w.wantMetric(1, "weir_tunnels_open")
			if err := c.Close(websocket.StatusNormalClosure, "bye"); err != nil {
				t.Errorf("close: %v", err)
			}
			w.wantMetric(0, "weir_tunnels_open")
		})
	}
}

// A client that resumes its TLS session gets the same responses, also after a reload.
func TestSessionsAreResumedAcrossReloads(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	config := anyCertificate("app.example.org")
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	f := func(max uint16, want bool) {
		t.Helper()
		config.MaxVersion = max
		c := tls.Client(dial(t, w.at("secure")), config)
		if _, err := askSeen(c, "app.example.org", "/"); err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().DidResume; got != want {
			t.Errorf("%s, resumed: %t", tls.VersionName(max), got)
		}
		c.Close()
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
		f(version, false)
		f(version, true)
		w.reload(webConfig)
		f(version, true)
		w.reload(webConfig + "limits: {pending: 4096}\n")
		f(version, true)
	}
}

// weir ends idle connections, connections with an unfinished head, and connections on which the client never
// sends anything.
func TestKeepAliveLimit(t *testing.T) {
	long(t)
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(`
listeners:
  web: {address: '@web', protocol: http, timeouts: {keep_alive: 1s, request_head: 5s}}
routes: [{listeners: [web], backend: app}]
backends:
  app: {endpoints: ['@app']}
`)
	idle := dial(t, w.at("web"))
	if _, err := askSeen(idle, "a", "/"); err != nil {
		t.Fatal(err)
	}
	if got, err := readToEnd(idle); err != nil || len(got) > 0 {
		t.Errorf("an idle connection ends with %q, %v", got, err)
	}
	slow := dial(t, w.at("web"))
	slow.SetDeadline(time.Now().Add(patience))
	slow.Write([]byte("GET / HTTP/1.1\r\nHost: "))
	if got, err := readToEnd(slow); err != nil {
		t.Errorf("a head that is never finished: %q, %v", got, err)
	}
	silent := dial(t, w.at("web"))
	if got, err := readToEnd(silent); err != nil || len(got) > 0 {
		t.Errorf("a client that never says anything: %q, %v", got, err)
	}
}
