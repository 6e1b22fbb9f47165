package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/e2e/freeport"
)

// TestReloadMovesSockets: a reload that moves an address to a listener with another name
// never closes the address meanwhile, even if two listeners swap their addresses.
func TestReloadMovesSockets(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sockets are handed over on Linux alone")
	}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
	defer endpoint.Close()
	a, b := unusedAddress(t), unusedAddress(t)
	s := newServer(zap.NewNop(), zap.NewAtomicLevel())
	defer s.close()
	apply := func(first, firstAddress, second, secondAddress string) {
		t.Helper()
		text := fmt.Sprintf(`
listeners: {%s: {address: "%s", protocol: http}, %s: {address: "%s", protocol: http}}
routes: [{listeners: [%s, %s], backend: app}]
backends: {app: {endpoints: ["%s"]}}
admin: {address: "off"}
`, first, firstAddress, second, secondAddress, first, second, endpoint.Listener.Addr())
		cfg, err := config.Parse("test", []byte(text), os.LookupEnv)
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
	settle := func() {
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
		settle()
		apply("three", a, "one", b) // renamed
		settle()
		apply("one", a, "two", b)
		settle()
	}
	close(stop)
	clients.Wait()
}

// unusedAddress returns an address on which no process listens.
func unusedAddress(t *testing.T) string {
	t.Helper()
	address, err := freeport.Weir.Take("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return address
}
