package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/backend"
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

// The same with a socket that objects of the cluster need. The objects then bring no older endpoints.
func TestSlowSocketsOfObjectsDelayNoEndpoints(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web", "more")
	slow, asked, free := slowSockets(c)
	c.load(withPorts)
	c.untilEndpoints("192.0.2.1:8080")
	slow.Store(true)
	c.put(c.portsOf("more"))
	<-asked
	c.put(pods("192.0.2.2"))
	c.untilEndpoints("192.0.2.2:8080")
	raw := func() *backend.Backend { return c.backends.Backend("default/shop:80/tcp") }
	if raw() != nil {
		t.Error("the objects did not wait for the socket")
	}
	free()
	eventually(t, "the objects are in effect", func() error {
		if raw() == nil {
			return errors.New("there is no backend for the port")
		}
		return nil
	})
	if got := raw().Settings().Endpoints; len(got) != 1 || got[0].Address != "192.0.2.2:8080" {
		t.Errorf("the objects brought the endpoints %v", got)
	}
	c.untilEndpoints("192.0.2.2:8080")
}

// A reload waits until changed objects are in effect. Otherwise these would bring the older file back.
func TestReloadWaitsForObjects(t *testing.T) {
	c := newClustered(t, shop, "web", "more", "metrics")
	slow, asked, free := slowSockets(c)
	c.load(withPorts)
	c.until("shop.example", "/", 503)
	slow.Store(true)
	c.put(c.portsOf("more"))
	<-asked
	reloaded := make(chan error, 1)
	go func() { reloaded <- c.try(withPorts + "metrics: {address: '@metrics'}\n") }()
	buf := make([]byte, 1<<20)
	eventually(t, "the reload waits", func() error {
		if slices.ContainsFunc(strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n"), func(g string) bool {
			return strings.Contains(g, "sync.Mutex.Lock") && strings.Contains(g, "kube.(*Source).Try(")
		}) {
			return nil
		}
		return errors.New("it goes on")
	})
	free()
	if err := <-reloaded; err != nil {
		t.Fatal(err)
	}
	if c.backends.Backend("default/shop:80/tcp") == nil {
		t.Error("the objects are not in effect")
	}
	if c.refused("metrics") {
		t.Error("the older file is in effect again")
	}
}

// withPorts is beside with a ConfigMap of ports, and portsOf is this ConfigMap.
var withPorts = strings.Replace(beside, "class: weir", "class: weir, tcp: {config_map: default/tcp}", 1)

func (c *clustered) portsOf(names ...string) string {
	var all []string
	for _, name := range names {
		_, port, _ := net.SplitHostPort(c.address(name))
		all = append(all, `"`+port+`": default/shop:80`)
	}
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: tcp}, data: {" + strings.Join(all, ", ") + "}}"
}

// Endpoints, routes, the node and the file change at the same time, and so does the Source of the objects. Each change
// takes effect, and none brings an older state back.
func TestAllChangesAtOnce(t *testing.T) {
	node := func(cordoned bool) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: node-a}, spec: {unschedulable: %t}}", cordoned)
	}
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1")+"---\n"+node(false), "web", "one", "two")
	c.lookup = func(context.Context, string) ([]netip.Addr, error) {
		time.Sleep(rand.N(30 * time.Millisecond)) // as name servers that are slow, or are not
		return []netip.Addr{netip.MustParseAddr("192.0.2.9")}, nil
	}
	// All of these need no other objects, except the last: it has a Source of its own.
	texts := []string{beside + "metrics: {address: '@one'}\n", beside + "metrics: {address: '@two'}\n",
		strings.Replace(beside, "class: weir", "class: weir, namespaces: [default]", 1) + "metrics: {address: '@one'}\n"}
	c.load(texts[0])
	c.untilEndpoints("192.0.2.1:8080")
	stop, all := make(chan struct{}), sync.WaitGroup{}
	repeat := func(what func(i int)) {
		all.Go(func() {
			for i := 1; ; i++ {
				what(i)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	repeat(func(i int) {
		address := fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)
		c.put(pods(address))
		c.untilEndpoints(address + ":8080")
	})
	repeat(func(i int) {
		c.put(node(i%2 == 1))
		eventually(t, "the state of the node is known", func() error {
			if v := c.server.node.Verdict(); v.Healthy == (i%2 == 1) {
				return fmt.Errorf("the verdict is %+v", v)
			}
			return nil
		})
	})
	repeat(func(i int) {
		text := texts[i%len(texts)]
		if i%5 == 0 {
			text += fmt.Sprintf("routes: [{listeners: [web], hosts: [file.example], backend: f}]\nbackends: {f: {endpoints: ['f%d.internal:80']}}\n", i)
		}
		if err := c.try(text); err != nil {
			t.Errorf("reload %d: %v", i, err)
		}
		open, closed := "one", "two"
		if i%len(texts) == 1 {
			open, closed = closed, open
		}
		if c.refused(open) || !c.refused(closed) {
			t.Errorf("after reload %d another file is in effect", i)
		}
	})
	for i := range 25 {
		host := fmt.Sprintf("h%d.example", i)
		c.put(strings.ReplaceAll(shop, "shop.example", host) + "---\n" + external(fmt.Sprintf("slow%d", i%7)))
		eventually(t, "routes are in effect", func() error {
			if !slices.ContainsFunc(c.configInEffect().Routes, func(r *config.Route) bool { return slices.Contains(r.Hosts, host) }) {
				return errors.New(host + " has none")
			}
			return nil
		})
	}
	close(stop)
	all.Wait()
	c.put(pods("192.0.2.7"))
	c.untilEndpoints("192.0.2.7:8080")
	c.load(texts[0]) // no change is under way after it
	c.untilEndpoints("192.0.2.7:8080")
}

// external is an Ingress whose Service is a name outside of the cluster.
func external(name string) string {
	return strings.Replace(strings.ReplaceAll(shop, "shop", name), "spec: {ports", "spec: {type: ExternalName, externalName: "+name+".internal, ports", 1)
}

// The last endpoint of a backend goes in the same change as its routes. weir then sends it no more requests, also if the backend began without endpoints.
func TestBackendLosesItsEndpointsWithRoutes(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.load(beside)
	c.until("shop.example", "/", 503)
	c.put(pods("192.0.2.1"))
	c.untilEndpoints("192.0.2.1:8080")
	c.put(strings.Replace(shop, "{port: 80}", "{port: 80, name: other}", 1) + "---\n" + strings.ReplaceAll(shop, "shop", "blog")) // the slices have no such port
	c.until("blog.example", "/", 503)
	c.untilEndpoints()
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
	var slow func() // if set, a read calls it first
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
		c.duringReload(what, address, reload, asked, sync.OnceFunc(func() { close(answer) }))
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

// duringReload changes an endpoint of the cluster while a reload waits. asked is closed when
// the reload waits, and release ends the wait.
func (c *clustered) duringReload(what, address string, reload func() error, asked <-chan struct{}, release func()) {
	c.t.Helper()
	defer release()
	ended := make(chan error, 1)
	go func() { ended <- reload() }()
	select {
	case <-asked:
	case err := <-ended:
		c.t.Fatalf("%s: the reload did not wait: %v", what, err)
	}
	c.put(pods(address))
	c.untilEndpoints(address + ":8080")
	select {
	case err := <-ended:
		c.t.Errorf("%s: the reload did not wait: %v", what, err)
	default:
	}
	release()
	if err := <-ended; err != nil {
		c.t.Errorf("%s: %v", what, err)
	}
	c.untilEndpoints(address + ":8080") // the reload did not restore the older endpoints
}

// slowSockets returns a server. After slow is set, its sockets open only when free is called. asked is closed
// when the first socket should open.
func slowSockets(c *clustered) (slow *atomic.Bool, asked chan struct{}, free func()) {
	slow, asked = new(atomic.Bool), make(chan struct{})
	may := make(chan struct{})
	begun := sync.OnceFunc(func() { close(asked) })
	c.sockets.Listen = func(network, address string) (net.Listener, error) {
		if slow.Load() {
			begun()
			<-may
		}
		return net.Listen(network, address)
	}
	free = sync.OnceFunc(func() { close(may) })
	c.t.Cleanup(free) // before the server ends
	return slow, asked, free
}

// A reload whose sockets take long to open delays no endpoints of the cluster.
func TestSlowSocketsDelayNoEndpoints(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web", "metrics")
	slow, asked, free := slowSockets(c)
	c.load(beside)
	c.untilEndpoints("192.0.2.1:8080")
	slow.Store(true)
	c.duringReload("a socket", "192.0.2.2", func() error { return c.try(beside + "metrics: {address: '@metrics'}\n") }, asked, free)
	if c.refused("metrics") {
		t.Error("the new port is closed")
	}
}

// slowLogs delays the files of access logs. After slow is set, they open only when free is called. asked is
// closed when the first one should open.
func slowLogs(r *running) (slow *atomic.Bool, asked chan struct{}, free func()) {
	slow, asked = new(atomic.Bool), make(chan struct{})
	may := make(chan struct{})
	begun := sync.OnceFunc(func() { close(asked) })
	r.openLogFile = func(path string) (*os.File, error) {
		if slow.Load() {
			begun()
			<-may
		}
		return accesslog.OpenFile(path)
	}
	free = sync.OnceFunc(func() { close(may) })
	r.t.Cleanup(free) // before the server ends
	return slow, asked, free
}

// hasText returns a function that fails while a file does not have a text.
func hasText(path, text string) func() error {
	return func() error {
		if all, err := os.ReadFile(path); err != nil || !strings.Contains(string(all), text) {
			return fmt.Errorf("%s has %q, %v", path, all, err)
		}
		return nil
	}
}

// The same with an access log that takes long to open, as on a network file system.
func TestSlowAccessLogDelaysNoEndpoints(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web")
	slow, asked, free := slowLogs(c.running)
	c.load(beside)
	c.untilEndpoints("192.0.2.1:8080")
	slow.Store(true)
	path := filepath.Join(t.TempDir(), "log")
	c.duringReload("an access log", "192.0.2.2", func() error { return c.try(beside + "access_log: {path: " + path + "}\n") }, asked, free)
	c.now("none.example", "/", 404)
	eventually(t, "the log has the line", hasText(path, "none.example"))
}

// Requests are served and logged while the access log takes long to open again.
func TestReopeningDelaysNoLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	r := makeRunning(t, "web")
	slow, asked, free := slowLogs(r)
	r.load("listeners: {web: {address: '@web', protocol: http}}\naccess_log: {path: " + path + "}\ndrain: {timeout: 2s}\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	done := make(chan struct{})
	go func() { defer close(done); r.reopenLogs() }()
	<-asked
	r.dial("web").ask("/first")
	eventually(t, "the line is in the old file", hasText(path+".1", "/first"))
	free()
	<-done
	r.dial("web").ask("/second")
	eventually(t, "the line is in the new file", hasText(path, "/second"))
}

// weir starts with an access log that is a named pipe, although no program reads it yet.
func TestAccessLogIsAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRunning(t, "listeners: {web: {address: '@web', protocol: http}}\naccess_log: {path: "+path+"}\ndrain: {timeout: 2s}\n", "web")
	r.dial("web").ask("/first")
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	lines := bufio.NewReader(reader)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "/first") {
		t.Errorf("the pipe has %q, %v", line, err)
	}
	r.reopenLogs()
	r.dial("web").ask("/second")
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "/second") {
		t.Errorf("the pipe has %q, %v", line, err)
	}
}

// If other changes overtake a plan, weir makes the plan again, so that all changes take effect. That also
// applies if the objects are finally the same as before.
func TestOvertakenReload(t *testing.T) {
	f := func(name, host string, changes ...string) {
		t.Run(name, func(t *testing.T) {
			c := newClustered(t, shop, "web", "metrics")
			slow, asked, free := slowSockets(c)
			c.load(beside)
			c.until("shop.example", "/", 503)
			slow.Store(true)
			ended := make(chan error, 1)
			go func() { ended <- c.try(beside + "metrics: {address: '@metrics'}\n") }()
			<-asked
			for _, objects := range changes {
				c.put(objects)
				c.until(hostOf[objects], "/", 503)
			}
			free()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			c.now(host, "/", 503)
			if c.refused("metrics") {
				t.Error("the new port is closed")
			}
			c.load(beside)
			if !c.refused("metrics") {
				t.Error("a socket of the overtaken plan is open")
			}
		})
	}
	f("other objects", "moved.example", moved)
	f("the same objects", "shop.example", moved, shop)
}

var hostOf = map[string]string{shop: "shop.example", moved: "moved.example"}

// moved is shop with another host.
var moved = strings.ReplaceAll(shop, "shop.example", "moved.example")

// If a plan is under way, weir ends only after its sockets are closed, and the plan does not take effect.
func TestEndDuringReload(t *testing.T) {
	c := newClustered(t, shop, "web", "metrics")
	slow, asked, free := slowSockets(c)
	c.load(beside)
	slow.Store(true)
	reloaded, ended := make(chan error, 1), make(chan error, 1)
	go func() { reloaded <- c.try(beside + "metrics: {address: '@metrics'}\n") }()
	<-asked
	go func() { ended <- c.end(0) }()
	eventually(t, "the listener is closed", func() error {
		if open := c.sockets.Addresses(); len(open) > 0 {
			return fmt.Errorf("%v are open", open)
		}
		return nil
	})
	for range 50 { // weir has nothing else to wait for
		if c.logged("all ports are closed, and another process can bind them") > 0 {
			t.Error("a plan still opens sockets")
			break
		}
		time.Sleep(time.Millisecond)
	}
	free()
	if err := <-reloaded; err != errEnded {
		t.Errorf("the reload: %v", err)
	}
	c.untilEnded(ended)
	if !c.refused("metrics") {
		t.Error("a socket of the plan is open")
	}
}

// A thousand reloads, of which every third fails, lose no update of endpoints and no
// descriptor, while routes change as well.
func TestReloadsBesideEndpoints(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web", "one", "two", "three", "taken")
	taken, err := net.Listen("tcp", c.address("taken"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	with := func(port, log string) string {
		return beside + "metrics: {address: '@" + port + "'}\naccess_log: {path: " + dir + "/" + log + "}\n"
	}
	texts := []string{with("one", "a"), with("two", "b"), strings.Replace(with("three", "c"), "listeners: {", "listeners: {more: {address: '@taken', protocol: http}, ", 1)}
	c.load(texts[0])
	c.untilEndpoints("192.0.2.1:8080")
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the garbage collector would close lost descriptors
	before := openFiles(t)
	var loads sync.WaitGroup
	loads.Go(func() {
		for i := range 1000 {
			if err := c.try(texts[i%3]); (err != nil) != (i%3 == 2) {
				t.Errorf("reload %d: %v", i, err)
			}
		}
	})
	done := make(chan struct{})
	go func() { loads.Wait(); close(done) }()
	updates := 1
	for over := false; !over; updates++ {
		select {
		case <-done:
			over = true
		default:
		}
		address := fmt.Sprintf("192.0.%d.%d", 2+updates/250, 1+updates%250)
		c.put(pods(address))
		if updates%10 == 0 {
			c.put([]string{shop, moved}[updates/10%2])
		}
		c.untilEndpoints(address + ":8080")
	}
	t.Logf("%d updates", updates)
	c.load(texts[0])
	eventually(t, "all files of the reloads are closed", func() error {
		if now := openFiles(t); now > before+20 { // ports reserve some
			return fmt.Errorf("%d are open, %d before", now, before)
		}
		return nil
	})
}

// openFiles counts the descriptors of this process; 0 if the system does not tell.
func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(all)
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
