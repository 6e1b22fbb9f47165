package node

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// A reload to a name that resolves slowly does not delay endpoints of the cluster.
func TestSlowNamesDelayNoEndpoints(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web")
	asked, answer := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(asked) })
	c.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
		begun()
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return []netip.Addr{netip.MustParseAddr("192.0.2.9")}, ctx.Err()
	}
	c.load(beside)
	c.untilEndpoints("192.0.2.1:8080")
	reloaded := make(chan error, 1)
	go func() {
		reloaded <- c.try(beside + "routes: [{listeners: [web], hosts: [slow.example], backend: slow}]\nbackends: {slow: {endpoints: ['slow.internal:80']}}\n")
	}()
	select {
	case <-asked:
	case err := <-reloaded:
		t.Fatalf("the reload ended without a look-up: %v", err)
	}
	c.put(pods("192.0.2.2"))
	c.untilEndpoints("192.0.2.2:8080")
	select {
	case err := <-reloaded:
		t.Errorf("the reload did not wait for the name: %v", err)
	default:
	}
	close(answer)
	if err := <-reloaded; err != nil {
		t.Fatal(err)
	}
	if b := c.backends.Backend("slow"); b == nil || b.Ready() != 1 {
		t.Error("the name has no address after the reload")
	}
	c.untilEndpoints("192.0.2.2:8080") // the reload did not restore the older endpoints
}

// GET /config shows a file together with the objects that were in effect with it.
func TestConfigIsShownDuringReloads(t *testing.T) {
	c := newClustered(t, shop, "web")
	more := beside + "proxy_protocol: {lb: {rules: [{from: [192.0.2.0/24], header: require}]}}\nroutes: [{listeners: [web], hosts: [b.example], backend: b}]\nbackends: {b: {endpoints: ['192.0.2.1:1']}}\n"
	c.load(more)
	c.untilReady(true)
	stop, readers := make(chan struct{}), sync.WaitGroup{}
	for range 2 {
		readers.Go(func() {
			for {
				if page := c.page("/config"); !strings.Contains(page, "default/shop:80") {
					t.Errorf("the page lacks the objects:\n%s", page)
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond / 4):
				}
			}
		})
	}
	for i := range 1000 {
		c.load([]string{beside, more}[i%2])
	}
	close(stop)
	readers.Wait()
}
