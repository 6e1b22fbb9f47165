package node

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/e2e/freeport"
)

// TestReloadMovesSockets: a reload that moves an address to a listener with another name
// never closes the address meanwhile, even if two listeners swap their addresses.
func TestReloadMovesSockets(t *testing.T) {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
	defer endpoint.Close()
	a, b := unusedAddress(t), unusedAddress(t)
	s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
	defer s.close()
	apply := func(first, firstAddress, second, secondAddress string) {
		t.Helper()
		text := fmt.Sprintf(`
listeners: {%s: {address: "%s", protocol: http}, %s: {address: "%s", protocol: http}}
routes: [{listeners: [%s, %s], backend: app}]
backends: {app: {endpoints: ["%s"]}}
admin: {address: "off"}
`, first, firstAddress, second, secondAddress, first, second, endpoint.Listener.Addr())
		cfg, err := file.Parse("test", []byte(text), os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	apply("one", a, "two", b)
	defer func() { s.closeSockets() }()

	stop := make(chan struct{})
	var clients sync.WaitGroup
	var served [2]atomic.Int64
	for i, address := range []string{a, b} {
		clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := client.Get("http://" + address)
				if err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				served[i].Add(1)
			}
		})
	}
	// The table before the current one serves connections of a removed listener; older
	// tables do not. So each reload waits until the connections from before the last
	// reload are served.
	awaitServed := func() {
		for i := range served {
			before := served[i].Load()
			eventually(t, "two requests are answered", func() error {
				if n := served[i].Load() - before; n < 2 && !t.Failed() {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
		}
	}
	for range 5 {
		apply("two", a, "one", b) // swapped
		awaitServed()
		apply("three", a, "one", b) // renamed
		awaitServed()
		apply("one", a, "two", b)
		awaitServed()
	}
	close(stop)
	clients.Wait()
}

// An address may move between listeners and ports. Before, such a reload failed: the
// address was in use by weir itself.
func TestReloadMovesAddressesToPorts(t *testing.T) {
	r, a := newWeb(t, web, "one", "two", "three")
	load := func(listener, health, admin string) {
		t.Helper()
		r.load(strings.NewReplacer("@app", a.address, "@web", "@"+listener).Replace(web) +
			fmt.Sprintf("health: {address: '@%s'}\nadmin: {address: '@%s'}\n", health, admin))
		for _, one := range []struct{ address, path, answer string }{
			{listener, "/", "app"}, {health, "/readyz", `"ready": true`}, {admin, "/status", `"config_hash"`},
		} {
			c := r.dial(one.address)
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", one.path)
			if _, body := c.answer(); !strings.Contains(body, one.answer) {
				t.Errorf("%s of %s answers %.50q", one.path, one.address, body)
			}
			c.Close()
		}
	}
	for range 3 {
		load("one", "two", "three")
		load("two", "three", "one")
		load("two", "one", "three")
	}
}

// A Unix socket may move to a listener with another name. Before, such a reload failed,
// because weir itself answered on the socket.
func TestReloadMovesUnixSockets(t *testing.T) {
	r, a := newWeb(t, web)
	path := filepath.Join(t.TempDir(), "socket")
	for _, name := range []string{"web", "other", "web", "other"} {
		r.load(strings.NewReplacer("@app", a.address, "'@web'", "'unix:"+path+"'", "web:", name+":", "[web]", "["+name+"]").Replace(web))
		nc, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(patience))
		c := &client{nc, t, bufio.NewReader(nc)}
		if _, body := c.ask("/"); body != "app" {
			t.Errorf("%s: %q", name, body)
		}
		nc.Close()
	}
	r.load(strings.ReplaceAll(web, "@app", a.address))
	if _, err := os.Lstat(path); err == nil {
		t.Error("the file of the last listener is left")
	}
}

// A reload opens a listener or port again whose socket has failed. Before, it stayed
// closed until its address changed.
func TestReloadOpensFailedSockets(t *testing.T) {
	r, a := newWeb(t, web, "health")
	text := strings.ReplaceAll(web, "@app", a.address) + "health: {address: '@health'}\n"
	r.load(text)
	r.listeners["web"].Close()
	r.ports["health"].stop()
	<-r.ports["health"].done
	if !r.refused("web") || !r.refused("health") {
		t.Fatal("they are still open")
	}
	r.load(text)
	r.want("web", 200, "app")
	if r.refused("health") {
		t.Error("the health port is closed")
	}
}

// unusedAddress returns an address on which no process listens.
func unusedAddress(t testing.TB) string {
	t.Helper()
	address, err := freeport.Node.Take("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return address
}
