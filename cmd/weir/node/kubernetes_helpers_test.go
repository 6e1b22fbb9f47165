package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fake "k8s.io/client-go/tools/cache/testing"
	"k8s.io/klog/v2"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

var silence sync.Once

var allKinds = []kube.Kind{kube.IngressClasses, kube.Ingresses, kube.Services, kube.EndpointSlices, kube.Secrets, kube.ConfigMaps, kube.Namespaces, kube.Nodes}

// clustered is a server with a fake cluster. It records what the server asks package
// control to write.
type clustered struct {
	*running
	held map[kube.Kind]*fake.FakeControllerSource

	mu    sync.Mutex
	down  error // every request fails
	told  []*kube.Routing
	left  int
	lists int
}

// newClustered makes a server without a configuration, and a cluster with manifests.
func newClustered(t testing.TB, manifests string, names ...string) *clustered {
	t.Helper()
	silence.Do(func() { klog.SetLogger(logr.Discard()) }) // as Connect does
	c := &clustered{running: makeRunning(t, names...), held: map[kube.Kind]*fake.FakeControllerSource{}}
	c.connect = func(*config.Kubernetes) (reader, error) { return reader{list: c.list}, nil }
	c.begin = func(*config.Config) (control, error) { return c, nil }
	for _, kind := range allKinds {
		f := fake.NewFakeControllerSource()
		c.held[kind] = f
		t.Cleanup(f.Shutdown)
	}
	t.Cleanup(func() { // runs before the fakes end
		if !c.ended {
			c.end(0)
		}
	})
	c.put(manifests)
	return c
}

// InEffect and Leave implement control.
func (c *clustered) InEffect(_ *config.Config, r *kube.Routing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, r)
}

func (c *clustered) Release(context.Context) {}

func (c *clustered) Leave(context.Context, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left++
}

// lastTold returns the routes of which control was told last.
func (c *clustered) lastTold() *kube.Routing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[len(c.told)-1]
}

func (c *clustered) times() (told, left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.told), c.left
}

// list returns how the objects of the cluster are listed and watched.
func (c *clustered) list(kind kube.Kind, _ kube.Selection) *cache.ListWatch {
	f := c.held[kind]
	return &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if err := c.ask(); err != nil {
				return nil, err
			}
			return f.List(o)
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := c.ask(); err != nil {
				return nil, err
			}
			if o.SendInitialEvents != nil { // the fake streams no lists
				return nil, apierrors.NewBadRequest("sendInitialEvents is not supported")
			}
			w, err := f.Watch(o)
			if err != nil {
				return nil, err
			}
			return copiesOf(w), nil
		},
	}
}

// copying is a watch that sends copies: the fake sends the object that it stores, and weir may change an object that it receives.
type copying struct {
	of      watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	stop    func()
}

func copiesOf(w watch.Interface) *copying {
	c := &copying{of: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	c.stop = sync.OnceFunc(func() { close(c.stopped); w.Stop() })
	go c.run()
	return c
}

func (c *copying) run() {
	defer close(c.events)
	for e := range c.of.ResultChan() {
		e.Object = e.Object.DeepCopyObject()
		select {
		case c.events <- e:
		case <-c.stopped: // the receiver has ended
		}
	}
}

func (c *copying) Stop()                          { c.stop() }
func (c *copying) ResultChan() <-chan watch.Event { return c.events }

func (c *clustered) ask() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	return c.down
}

func (c *clustered) set(down error) {
	c.mu.Lock()
	c.down = down
	c.mu.Unlock()
	if down != nil {
		for _, f := range c.held {
			f.ResetWatch()
		}
	}
}

// put adds or replaces the objects in manifests.
func (c *clustered) put(manifests string) {
	c.t.Helper()
	c.each(manifests, func(f *fake.FakeControllerSource, o runtime.Object) {
		wanted := o.(metav1.Object)
		list, err := f.List(metav1.ListOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		if slices.ContainsFunc(list.(*corev1.List).Items, func(raw runtime.RawExtension) bool {
			held := raw.Object.(metav1.Object)
			return held.GetName() == wanted.GetName() && held.GetNamespace() == wanted.GetNamespace()
		}) {
			f.Modify(o)
		} else {
			f.Add(o)
		}
	})
}

func (c *clustered) remove(manifests string) {
	c.t.Helper()
	c.each(manifests, func(f *fake.FakeControllerSource, o runtime.Object) { f.Delete(o) })
}

func (c *clustered) each(manifests string, do func(*fake.FakeControllerSource, runtime.Object)) {
	c.t.Helper()
	var m kube.Manifests
	if err := m.Read(strings.NewReader(strings.NewReplacer(c.words...).Replace(manifests))); err != nil {
		c.t.Fatal(err)
	}
	forEach(c, kube.Ingresses, m.Ingresses, do)
	forEach(c, kube.Services, m.Services, do)
	forEach(c, kube.EndpointSlices, m.Slices, do)
	forEach(c, kube.ConfigMaps, m.ConfigMaps, do)
	forEach(c, kube.Nodes, m.Nodes, do)
}

func forEach[T runtime.Object](c *clustered, kind kube.Kind, all []T, do func(*fake.FakeControllerSource, runtime.Object)) {
	for _, o := range all {
		do(c.held[kind], o)
	}
}

// status returns the status of the response for a host and path.
func (c *clustered) status(host, path string) (int, error) {
	conn, err := net.Dial("tcp", c.address("web"))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	req, err := http.NewRequest("GET", "http://"+host+path, nil)
	if err != nil {
		return 0, err
	}
	client := http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// until waits until requests to a host get this status.
func (c *clustered) until(host, path string, status int) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%s%s is answered %d", host, path, status), func() error {
		got, err := c.status(host, path)
		if err == nil && got != status {
			err = fmt.Errorf("it is %d", got)
		}
		return err
	})
}

// now is like until, without waiting.
func (c *clustered) now(host, path string, status int) {
	c.t.Helper()
	if got, err := c.status(host, path); err != nil || got != status {
		c.t.Errorf("%s%s is answered %d, %v, not %d", host, path, got, err, status)
	}
}

func (c *clustered) untilReady(want bool) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("ready is %t", want), func() error {
		if v := c.node.Verdict(); v.Ready != want {
			return fmt.Errorf("the verdict is %+v", v)
		}
		return nil
	})
}

func (c *clustered) untilEnded(ended <-chan error) {
	c.t.Helper()
	select {
	case err := <-ended:
		if err != nil {
			c.t.Error(err)
		}
	case <-time.After(patience):
		c.t.Fatal("it does not end")
	}
}

// page requests a path of the admin port.
func (c *clustered) page(path string) string {
	c.t.Helper()
	w := httptest.NewRecorder()
	c.server.admin().ServeHTTP(w, httptest.NewRequest("GET", "http://localhost"+path, nil))
	if w.Code != 200 {
		c.t.Errorf("%s is answered %d: %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

const beside = `
listeners: {web: {address: '@web', protocol: http}}
kubernetes: {class: weir}
drain: {lame_duck: 0s, timeout: 2s}
node: node-a
`

// shop is an Ingress. The status for its host shows what weir serves: 503 while its Service
// has no endpoints, and a redirect, which needs none, if an annotation asks for it.
const shop = `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: shop}, spec: {ingressClassName: weir, rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: shop}, spec: {ports: [{port: 80}]}}
`

// pods is the EndpointSlice of the Service shop.
func pods(addresses ...string) string {
	var all []string
	for _, a := range addresses {
		all = append(all, "{addresses: ['"+a+"'], nodeName: node-a}")
	}
	return "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: shop-1, labels: {kubernetes.io/service-name: shop}}, addressType: IPv4, ports: [{port: 8080}], endpoints: [" +
		strings.Join(all, ", ") + "]}"
}

func (c *clustered) untilEndpoints(want ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("the endpoints are %v", want), func() error {
		var got []string
		if b := c.backends.Backend("default/shop:80"); b != nil {
			for _, e := range b.Settings().Endpoints {
				got = append(got, e.Address)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}
