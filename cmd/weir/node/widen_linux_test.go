package node

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A reload replaces one address of the machine by all addresses. It refuses and resets no client, at
// listeners and at weir's own ports.
func TestReloadToAllAddresses(t *testing.T) {
	r := newRunning(t, wide, "web", "metrics")
	all := func(name string) string {
		_, port, _ := net.SplitHostPort(r.address(name))
		return ":" + port
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var served [2]atomic.Int64
	for i, name := range []string{"web", "metrics"} {
		clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := client.Get("http://" + r.address(name) + "/")
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				served[i].Add(1)
			}
		})
	}
	more := func() {
		for i := range served {
			for before := served[i].Load(); served[i].Load() < before+2 && !t.Failed(); {
			}
		}
	}
	more()
	r.load(strings.NewReplacer("@web", all("web"), "@metrics", all("metrics")).Replace(wide))
	more()
	close(stop)
	clients.Wait()
	for _, name := range []string{"web", "metrics"} {
		c, err := net.Dial("tcp", "127.0.0.2"+all(name))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

const wide = "listeners: {web: {address: '@web', protocol: http}}\nmetrics: {address: '@metrics'}\ndrain: {timeout: 2s}\n"
