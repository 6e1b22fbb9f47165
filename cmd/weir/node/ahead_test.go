package node

import (
	"context"
	"net/netip"
	"os"
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

// Certificate files on a slow file system delay no endpoints of the cluster: neither new
// files, nor files that are read again.
func TestSlowFilesDelayNoEndpoints(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web", "tls")
	dir := t.TempDir()
	issue(t, dir, "a", "a.example.org", "a1", 90*24*time.Hour)
	issue(t, dir, "b", "b.example.org", "b1", 90*24*time.Hour)
	text := strings.Replace(beside, "listeners: {", "listeners: {tls: {address: '@tls', protocol: tls}, ", 1) +
		"routes: [{listeners: [tls], backend: app}]\nbackends: {app: {endpoints: ['127.0.0.1:1']}}\n"
	first := text + "certificates: [{cert: " + dir + "/a.crt, key: " + dir + "/a.key}]\n"
	both := text + "certificates: [{cert: " + dir + "/a.crt, key: " + dir + "/a.key}, {cert: " + dir + "/b.crt, key: " + dir + "/b.key}]\n"
	var slow func() // what a read waits for; nil: nothing
	c.certs.ReadFile = func(path string) ([]byte, error) {
		if slow != nil {
			slow()
		}
		return os.ReadFile(path)
	}
	c.load(first)
	f := func(what, address string, reload func() error) {
		t.Helper()
		asked, answer := make(chan struct{}), make(chan struct{})
		begun := sync.OnceFunc(func() { close(asked) })
		slow = func() { begun(); <-answer }
		ended := make(chan error, 1)
		go func() { ended <- reload() }()
		release := sync.OnceFunc(func() { close(answer) })
		defer release()
		select {
		case <-asked:
		case err := <-ended:
			t.Fatalf("%s: no file was read: %v", what, err)
		}
		c.put(pods(address))
		c.untilEndpoints(address + ":8080")
		select {
		case err := <-ended:
			t.Errorf("%s: the reload did not wait for the files: %v", what, err)
		default:
		}
		release()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		c.untilEndpoints(address + ":8080") // the reload did not restore the older endpoints
	}
	f("new files", "192.0.2.2", func() error { return c.try(both) })
	if got := c.servedAs("tls", "b.example.org"); got != "b1" {
		t.Errorf("served is %s", got)
	}
	issue(t, dir, "b", "b.example.org", "b2", 90*24*time.Hour)
	f("changed files", "192.0.2.3", func() error {
		c.loading.Lock()
		defer c.loading.Unlock()
		c.reloadCertificates()
		return nil
	})
	if got := c.servedAs("tls", "b.example.org"); got != "b2" {
		t.Errorf("served is %s", got)
	}
}

// A change of objects keeps the certificates of authorities, which the file alone names.
func TestObjectsKeepAuthorities(t *testing.T) {
	dir := t.TempDir() // it must exist longer than the server, which may still write
	c := newClustered(t, shop, "web", "tls")
	c.load(strings.Replace(beside, "listeners: {", "listeners: {tls: {address: '@tls', protocol: tls}, ", 1) +
		"routes: [{listeners: [tls], hosts: [a.example.org], backend: app}]\nbackends: {app: {endpoints: ['127.0.0.1:1']}}\n" +
		"certificates: [{acme: {hosts: [a.example.org], directory: 'https://127.0.0.1:1/dir'}}]\nstorage: " + dir + "\n")
	c.untilReady(true)
	c.put(strings.ReplaceAll(shop, "shop.example", "other.example"))
	c.until("other.example", "/", 503)
	c.servedAs("tls", "a.example.org")
	if c.logged("a handshake was refused: there is no certificate for the name yet") != 1 {
		t.Error("the name is not known any more")
	}
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
