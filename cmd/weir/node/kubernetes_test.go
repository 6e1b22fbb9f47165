package node

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
)

func TestObjectsAreServed(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.load(beside)
	c.until("shop.example", "/", 503)
	c.until("other.example", "/", 404)
	c.untilReady(true)
	c.put(strings.ReplaceAll(shop, "shop", "blog"))
	c.until("blog.example", "/", 503)
	c.now("shop.example", "/", 503)
	eventually(t, "it is told that there is no such node", func() error {
		if n := c.lines.FilterMessageSnippet("the cluster has no Node with this name").Len(); n != 1 {
			return fmt.Errorf("it was %d times", n)
		}
		return nil
	})
	c.put(strings.ReplaceAll(strings.Split(shop, "---")[0], "shop", "broken"))
	c.until("broken.example", "/", 503)
	c.put(strings.ReplaceAll(shop, "shop", "more"))
	c.until("more.example", "/", 503)
	if n := c.logged("an object of the cluster has an error"); n != 1 {
		t.Errorf("what is wrong was told %d times", n)
	}
	c.remove(shop)
	c.until("shop.example", "/", 404)
	c.now("blog.example", "/", 503)
	if told, _ := c.times(); told < 3 {
		t.Errorf("control was told of %d changes", told)
	}
	if err := c.end(patience); err != nil {
		t.Error(err)
	}
	if _, left := c.times(); left != 1 {
		t.Errorf("control was told %d times to leave", left)
	}
}

// If Pods come and go, only their backend changes.
func TestEndpointsChangeAlone(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web")
	c.load(beside)
	c.untilEndpoints("192.0.2.1:8080")
	c.untilReady(true)
	c.now("other.example", "/", 404)
	effective, told := c.configInEffect(), c.lastTold()
	c.put(pods("192.0.2.2", "192.0.2.3"))
	c.untilEndpoints("192.0.2.2:8080", "192.0.2.3:8080")
	if n := c.backends.LocalReady("default/shop:80"); n != 2 {
		t.Errorf("%d endpoints on this node are ready", n)
	}
	c.put(pods())
	c.untilEndpoints()
	c.now("shop.example", "/", 503)
	if c.configInEffect() != effective || c.lastTold() != told { // weir may report the same routes to control again
		t.Error("routes were made anew")
	}
	c.put(pods("192.0.2.4"))
	c.untilEndpoints("192.0.2.4:8080")
	c.put(strings.ReplaceAll(shop, "shop", "blog")) // the endpoints stay when the table changes
	c.until("blog.example", "/", 503)
	c.untilEndpoints("192.0.2.4:8080")
	if n, err := testutil.GatherAndCount(c.registry, "weir_kubernetes_change_duration_seconds", "weir_kubernetes_objects", "weir_kubernetes_faults"); err != nil || n < 10 {
		t.Errorf("there are %d series, %v", n, err)
	}
	for page, wants := range map[string][]string{
		"/config":     {"class: weir", "# The configuration generated from the cluster", "#   - name: default/shop/shop.example/", "address: 192.0.2.4:8080"},
		"/kubernetes": {`"synced": true`, `"ingresses": {`, `"in_use": 2`, `"faults": []`},
	} {
		text := c.page(page)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", page, want, text)
			}
		}
	}
	if _, err := file.Parse("effective", []byte(c.page("/config")), os.LookupEnv); err != nil {
		t.Errorf("the effective configuration does not load: %v", err)
	}
}

// A change of objects opens no file, so a broken or missing file does not delay it.
func TestObjectsChangeWithoutFiles(t *testing.T) {
	dir := t.TempDir()
	issue(t, dir, "web", "file.example", "first", 365*24*time.Hour)
	for _, name := range []string{"ca", "clients"} {
		text, err := os.ReadFile(filepath.Join(dir, "web.crt"))
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, name+".crt"), string(text))
	}
	c := newClustered(t, shop, "web", "tls")
	text := strings.Replace(beside, "listeners: {", "listeners: {tls: {address: '@tls', protocol: tls}, ", 1)
	c.load(strings.ReplaceAll(strings.Replace(text, "kubernetes:", `
certificates: [{cert: DIR/web.crt, key: DIR/web.key}]
tls_policies: {mutual: {client_auth: {mode: require, ca: DIR/clients.crt}}}
routes:
  - {listeners: [tls], hosts: [file.example], backend: app}
  - {listeners: [tls], hosts: [mutual.example], tls_policy: mutual, backend: app}
backends: {app: {protocol: https, tls: {ca: DIR/ca.crt}, endpoints: ['127.0.0.1:1']}}
access_log: {path: DIR/access.log}
kubernetes:`, 1), "DIR", dir))
	c.until("shop.example", "/", 503)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	c.put(strings.ReplaceAll(shop, "shop", "blog"))
	c.until("blog.example", "/", 503)
	if id := c.servedAs("tls", "file.example"); id != "first" {
		t.Errorf("the file's host is served as %q", id)
	}
}

// At a start without the API server, weir waits and is not ready. It answers with a
// status that clients do not remember.
func TestNotReadyBeforeAllIsKnown(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.set(errors.New("connection refused"))
	c.load(strings.Replace(beside, "kubernetes:", "routes: [{listeners: [web], hosts: [file.example], backend: app}]\nbackends: {app: {endpoints: ['127.0.0.1:1']}}\nkubernetes:", 1))
	c.until("shop.example", "/", 503)
	c.until("other.example", "/", 503)
	c.until("file.example", "/", 502)
	eventually(t, "the trouble is told", func() error {
		if n := c.logged("weir cannot read the cluster's objects, and is not ready until it can"); n != 1 {
			return fmt.Errorf("it was told %d times", n)
		}
		return nil
	})
	c.untilReady(false)
	if reasons := c.node.Verdict().Reasons; !slices.Contains(reasons, "the Kubernetes objects are not loaded yet") {
		t.Errorf("the reasons are %q", reasons)
	}
	if err := c.try(beside); err != nil { // a reload during the wait
		t.Fatal(err)
	}
	c.untilReady(false)
	c.now("file.example", "/", 503)
	if told, _ := c.times(); told != 0 {
		t.Errorf("control was told %d times of what stands in", told)
	}
	c.set(nil)
	c.untilReady(true)
	c.now("other.example", "/", 404)
	if n := c.logged("weir cannot read the cluster's objects, and is not ready until it can"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

// The loss of the API server changes nothing, even during reloads.
func TestServerIsLost(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web")
	c.load(beside)
	c.untilEndpoints("192.0.2.1:8080")
	c.set(errors.New("connection refused"))
	const lost = "weir cannot watch the cluster; the known objects stay in effect"
	eventually(t, "the trouble is told", func() error {
		if c.logged(lost) != 1 {
			return errors.New("it is not")
		}
		return nil
	})
	c.load(beside + "log: {level: warn}\n")
	c.untilEndpoints("192.0.2.1:8080")
	c.untilReady(true)
	c.now("other.example", "/", 404)
	if !strings.Contains(c.page("/kubernetes"), `"trouble": "`) {
		t.Error("the admin port tells of no trouble")
	}
	if c.logged(lost) != 1 {
		t.Errorf("the trouble was told %d times", c.logged(lost))
	}
}

// A trouble is logged once for each cause, until all troubles are over.
func TestTroubles(t *testing.T) {
	core, lines := observer.New(zap.DebugLevel)
	all := troubles{log: zap.New(core)}
	f := func(want int) {
		t.Helper()
		if n := lines.Len(); n != want {
			t.Errorf("%d lines, want %d: %v", n, want, lines.All())
		}
	}
	down := func(kind kube.Kind) error {
		return &url.Error{Op: "Get", URL: "https://api/" + string(kind), Err: syscall.ECONNREFUSED}
	}
	f(0)
	for range 3 {
		all.begin(kube.Ingresses, down(kube.Ingresses), true)
		all.begin(kube.Services, fmt.Errorf("failed to list: %w", down(kube.Services)), true)
	}
	f(1)
	all.begin(kube.Secrets, errors.New("secrets is forbidden"), true)
	f(2)
	if err := all.last(); err == nil || err.Error() != "secrets is forbidden" {
		t.Errorf("the last one is %v", err)
	}
	all.over()
	f(3)
	if all.last() != nil {
		t.Errorf("there still is %v", all.last())
	}
	all.begin(kube.Ingresses, down(kube.Ingresses), false)
	f(4)
}

// If weir may not read a ConfigMap of tcp or ingress_nginx, the log says where the right must be.
func TestMissingRightHasPlace(t *testing.T) {
	denied := fmt.Errorf("failed to list: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no")))
	for kind, want := range map[kube.Kind]bool{kube.ConfigMaps: true, kube.Services: false} {
		if got := strings.Contains(withPlace(kind, denied).Error(), "a kustomization with a namespace of its own moves Roles"); got != want {
			t.Errorf("of %s: %v", kind, withPlace(kind, denied))
		}
	}
	if away := errors.New("away"); withPlace(kube.ConfigMaps, away) != away {
		t.Error("another error is changed")
	}
}

// A reload puts file and objects into effect together, or neither.
func TestReloadBesideObjects(t *testing.T) {
	c := newClustered(t, shop, "web", "second")
	c.load(beside)
	c.untilReady(true)
	untilKnown := func(times int) {
		t.Helper()
		eventually(t, fmt.Sprintf("known objects are told of %d times", times), func() error {
			if n := c.logged("weir has read all objects of the cluster and serves them"); n != times {
				return fmt.Errorf("they were %d times", n)
			}
			return nil
		})
	}
	untilKnown(1)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := c.try(strings.Replace(beside, "class: weir", "class: other", 1) + "health: {address: '" + taken.Addr().String() + "'}\n"); err == nil {
		t.Fatal("what cannot be was applied")
	}
	c.now("shop.example", "/", 503)
	c.put(strings.ReplaceAll(shop, "shop", "blog"))
	c.until("blog.example", "/", 503)

	c.load(strings.Replace(beside, "class: weir", "class: other", 1))
	c.now("shop.example", "/", 404)
	c.put(strings.ReplaceAll(strings.ReplaceAll(shop, "shop", "more"), "weir", "other"))
	c.until("more.example", "/", 503)

	c.load(strings.Replace(beside, "class: weir", "class: weir, namespaces: [default]", 1)) // the load waits for other objects
	untilKnown(2)
	c.now("shop.example", "/", 503)
	c.now("more.example", "/", 404)
	if _, left := c.times(); left != 1 {
		t.Errorf("control was told %d times to leave", left)
	}
	c.untilReady(true)

	c.load("listeners: {web: {address: '@web', protocol: http}}\n") // without a cluster
	c.now("shop.example", "/", 404)
	c.put(strings.ReplaceAll(shop, "shop", "late"))
	c.load(beside) // with the cluster again
	c.now("late.example", "/", 503)
}

// A new cluster that does not answer does not change what weir serves.
func TestReloadToAnotherClusterInVain(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.load("listeners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], hosts: [file.example], redirect: {scheme: https}}]\n")
	c.set(errors.New("forbidden"))
	c.patience = 1
	if err := c.try(beside); err == nil || !strings.Contains(err.Error(), "could not read the objects") {
		t.Fatalf("it was applied: %v", err)
	}
	c.now("file.example", "/", 308)
	c.untilReady(true)
	c.set(nil)
	c.patience = clusterPatience
	c.load(beside)
	c.now("shop.example", "/", 503)
}

// A signal that ends weir does not wait for a reload that waits for a cluster.
func TestSIGTERMDuringReload(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.load("listeners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], redirect: {scheme: https}}]\ndrain: {lame_duck: 0s, timeout: 2s}\n")
	c.set(errors.New("forbidden"))
	c.patience = time.Hour
	c.path = filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(c.path, []byte(strings.NewReplacer(c.words...).Replace(beside+adminOff(beside))), 0o600); err != nil {
		t.Fatal(err)
	}
	signals, ended := make(chan os.Signal, 4), make(chan error, 1)
	c.ended = true
	go func() { ended <- c.serve(signals) }()
	signals <- syscall.SIGHUP
	eventually(t, "the cluster is waited for", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.lists == 0 {
			return errors.New("it is not asked")
		}
		return nil
	})
	signals <- syscall.SIGTERM
	close(signals)
	c.untilEnded(ended)
	if c.node.Verdict().Ready {
		t.Error("it did not drain")
	}
}

// While weir drains, it still accepts connections, so objects still take effect.
func TestDrainBesideObjects(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.load(strings.Replace(beside, "lame_duck: 0s", "lame_duck: 1h", 1))
	c.untilReady(true)
	now, ended := make(chan struct{}), make(chan error, 1)
	c.ended = true
	go func() { ended <- c.shutdown(now) }()
	c.untilReady(false)
	c.put(pods("192.0.2.1"))
	c.untilEndpoints("192.0.2.1:8080")
	c.put(strings.ReplaceAll(shop, "shop", "blog"))
	c.until("blog.example", "/", 503)
	eventually(t, "control leaves", func() error {
		if _, left := c.times(); left != 1 {
			return fmt.Errorf("it was told %d times", left)
		}
		return nil
	})
	c.load(strings.Replace(beside, "lame_duck: 0s", "lame_duck: 1h", 1)) // reloads also take effect during a drain
	close(now)
	c.untilEnded(ended)
}

// A change of objects does not count as a reload of the file.
func TestObjectsAreNoReload(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.load(beside)
	c.untilReady(true)
	c.metrics.reloaded(errors.New("no"))
	c.put(strings.ReplaceAll(shop, "shop", "blog"))
	c.until("blog.example", "/", 503)
	if v := testutil.ToFloat64(c.metrics.success); v != 0 {
		t.Errorf("the last reload counts as %v", v)
	}
}

func TestNodeLeaves(t *testing.T) {
	node := func(more string) string {
		return "{apiVersion: v1, kind: Node, metadata: {name: node-a, labels: {topology.kubernetes.io/zone: z1}}, spec: {" + more + "}}"
	}
	c := newClustered(t, shop+"---\n"+node(""), "web", "health")
	until := func(healthy bool, reasons ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the reasons are %q", reasons), func() error {
			if v := c.server.node.Verdict(); v.Healthy != healthy || !slices.Equal(v.Reasons, reasons) {
				return fmt.Errorf("the verdict is %+v", v)
			}
			return nil
		})
	}
	c.load(beside)
	until(true)
	c.put(node("unschedulable: true"))
	until(false, "the node is cordoned (spec.unschedulable)")
	c.now("shop.example", "/", 503) // weir still serves
	c.put(node("taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]"))
	until(false, "the cluster autoscaler deletes the node (taint ToBeDeletedByClusterAutoscaler)")
	c.put(node(""))
	until(true)

	c.load(strings.Replace(beside, "class: weir", "class: weir, require_local: [default/shop]", 1) + "health: {address: '@health'}\n")
	until(false, `backend "default/shop:80" has no ready endpoint on this node (require_local)`)
	c.put(pods("192.0.2.1"))
	until(true)
	// A reload decides again about the taints.
	tainted := node("taints: [{key: example.com/drain, value: now, effect: NoSchedule}]")
	c.put(tainted)
	c.load(beside + "health: {address: '@health', node_taints: [example.com/drain=now]}\n")
	until(false, "health.node_taints lists a taint of the node (taint example.com/drain)")
	c.load(beside + "health: {address: '@health'}\n")
	until(true)
	c.remove(tainted)
	until(false, "the cluster has deleted the node")
	c.load("listeners: {web: {address: '@web', protocol: http}}\n")
	until(true)
}

// A late report of a cluster that weir does not serve any more does not change the state of the node.
func TestFormerClusterTellsOfTheNode(t *testing.T) {
	c := newClustered(t, shop, "web")
	c.load(beside)
	c.untilReady(true)
	former := c.current()
	c.load(strings.Replace(beside, "class: weir", "class: weir, namespaces: [default]", 1))
	former.takeNode(&kube.Node{Name: "node-a", Leaving: []string{"a late report"}})
	if v := c.server.node.Verdict(); !v.Healthy {
		t.Errorf("the verdict is %+v", v)
	}
	c.current().takeNode(&kube.Node{Name: "node-a", Leaving: []string{"a report"}})
	if v := c.server.node.Verdict(); v.Healthy {
		t.Errorf("with the report of the present cluster, the verdict is %+v", v)
	}
}

// Ports of the ConfigMap come and go. A port that is in use affects no other port.
func TestPortsOfTheConfigMap(t *testing.T) {
	c := newClustered(t, shop, "web", "one", "two", "taken")
	c.retryAfter = 50 * time.Millisecond
	until := func(name string, open bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s is open: %t", name, open), func() error {
			if c.refused(name) == open {
				return errors.New("it is not so")
			}
			return nil
		})
	}
	c.put(c.portsOf("one"))
	c.load(withPorts)
	until("one", true)
	other, err := net.Listen("tcp", c.address("taken"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c.put(c.portsOf("two", "taken"))
	until("two", true)
	until("one", false)
	c.put(strings.ReplaceAll(shop, "shop", "blog"))
	c.until("blog.example", "/", 503)
	eventually(t, "the port is told of", func() error {
		if n := c.logged("weir cannot listen on a port of the cluster's ConfigMap, and will try again"); n != 1 {
			return fmt.Errorf("it is %d times", n)
		}
		return nil
	})
	c.mu.Lock()
	if events := c.told[len(c.told)-1].Events; len(events) != 1 || events[0].Reason != event.ReasonPortInUse || events[0].Object.Name != "tcp" {
		t.Errorf("events are %+v", events)
	}
	c.mu.Unlock()
	if text := c.page("/kubernetes"); !strings.Contains(text, `"reason": "PortUnavailable"`) {
		t.Errorf("the admin port says %s", text)
	}
	other.Close()
	eventually(t, "the port is listened on", func() error {
		if c.logged("weir listens on a port of the cluster's ConfigMap now") != 1 {
			return errors.New("it is not")
		}
		return nil
	})
	until("taken", true)
	c.put(c.portsOf())
	until("taken", false)
	until("two", false)
}

func TestWithoutFile(t *testing.T) {
	for name, env := range map[string]func(string) (string, bool){
		"node-a": func(name string) (string, bool) { return "node-a", name == "NODE_NAME" },
		"":       func(string) (string, bool) { return "", false },
	} {
		cfg, err := withoutFile("ingress", env)
		if err != nil {
			t.Fatal(err)
		}
		if len(cfg.Warnings) > 0 || cfg.Kubernetes != nil && cfg.Kubernetes.IsOperator("shop") || cfg.Kubernetes == nil || !cfg.Kubernetes.IsOperator("ingress") {
			t.Errorf("it warns of %v, and its operators are those of %v", cfg.Warnings, cfg.Kubernetes)
		}
		if len(cfg.Listeners) != 2 || cfg.Health == nil || cfg.Kubernetes == nil || cfg.Admin.Address == "" || name != "" && (cfg.Node != name || !cfg.NodeExplicit) {
			t.Errorf("it is %s", file.Effective(cfg))
		}
	}
}

// A tenant cannot reach weir's own ports by an EndpointSlice or a name with the host's
// address. A Pod that has the same port and another address is served.
func TestAttackOwnPortsAsEndpoints(t *testing.T) {
	host := ""
	for _, a := range interfaceAddresses(t) {
		host = a
	}
	if host == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("this machine has no address but loopback, and CI leaves nothing out")
		}
		t.Skip("this machine has no address but loopback")
	}
	ln, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	ln.Close() // the metrics port binds it, on every address
	slice := func(addresses ...string) string {
		return strings.Replace(pods(addresses...), "port: 8080", "port: "+port, 1)
	}
	c := newClustered(t, shop+"---\n"+slice(host, "198.51.100.9"), "web")
	c.load(beside + "metrics: {address: ':" + port + "'}\n")
	eventually(t, "the endpoint is refused", func() error {
		if all := c.backends.Refusals(); len(all) != 1 || !all[0].Own {
			return fmt.Errorf("refused are %v", all)
		}
		return nil
	})
	eventually(t, "an event says so", func() error {
		if text := c.page("/kubernetes"); !strings.Contains(text, host+":"+port+" is weir itself, which listens there") || !strings.Contains(text, "UnusableBackend") {
			return fmt.Errorf("there is %s", text)
		}
		return nil
	})
	for _, b := range c.backends.Status() {
		if b.Name == "default/shop:80" && (len(b.Endpoints) != 1 || b.Endpoints[0].Address != "198.51.100.9:"+port) {
			t.Errorf("the endpoints are %+v", b.Endpoints)
		}
	}
	c.put(slice("198.51.100.9"))
	eventually(t, "the event goes", func() error {
		if text := c.page("/kubernetes"); strings.Contains(text, "UnusableBackend") {
			return errors.New("it is there")
		}
		return nil
	})
}

// interfaceAddresses returns this machine's IPv4 addresses except loopback.
func interfaceAddresses(t *testing.T) (all []string) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			all = append(all, n.IP.String())
		}
	}
	return all
}
