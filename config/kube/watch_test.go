package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/event"
)

const ingressAndService = `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web}, spec: {ingressClassName: weir, tls: [{hosts: [a.example], secretName: a}], rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {name: http}}}}]}}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{name: http, port: 80}, {name: more, port: 81}]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {names: a.example, other: thing}}
`

func TestSourceTellsEverythingOnce(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1", "10.0.0.2"), func(t *testing.T, w *watched) {
		c := w.one(t)
		if !w.HasSynced() {
			t.Error("it has not synced")
		}
		if c.Routing == nil || len(c.Routing.Routes) != 2 || len(c.Routing.Certificates) != 1 || len(c.Routing.Events) != 0 {
			t.Fatalf("routing is %+v", c.Routing)
		}
		if got := addressesOf(c.Endpoints["default/a:80"]); !reflect.DeepEqual(got, []string{"10.0.0.1:8080", "10.0.0.2:8080"}) {
			t.Errorf("endpoints are %v", c.Endpoints)
		}
		if told := w.next(); len(told) != 0 {
			t.Errorf("nothing changed, and it told %+v", told)
		}
	})
}

// When Pods are added or removed, the Source reports only the endpoints of their backend, and converts
// nothing.
func TestEndpointsChangeAlone(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.next()
		routing := w.routing
		f := func(change string, want ...string) {
			t.Helper()
			w.put(change)
			c := w.one(t)
			if c.Routing != nil || len(c.Endpoints) != 1 {
				t.Fatalf("%s became %+v", change, c)
			}
			if got := addressesOf(c.Endpoints["default/a:80"]); !reflect.DeepEqual(got, want) {
				t.Errorf("endpoints are %v, want %v", got, want)
			}
			if time.Since(c.Since) > 2*time.Second || time.Since(c.Since) < 0 {
				t.Errorf("it changed %v ago", time.Since(c.Since))
			}
		}
		f(slice("a-1", "a", "10.0.0.1", "10.0.0.3"), "10.0.0.1:8080", "10.0.0.3:8080")
		f(slice("a-2", "a", "10.0.0.4"), "10.0.0.1:8080", "10.0.0.3:8080", "10.0.0.4:8080")
		f(slice("a-1", "other", "10.0.0.1", "10.0.0.3"), "10.0.0.4:8080")
		f(slice("a-1", "a", "10.0.0.1")+"\n---\n"+slice("a-2", "a"), "10.0.0.1:8080")

		w.put(slice("b-1", "b", "10.0.0.9")) // no Ingress uses it
		w.put(slice("a-2", "a"))             // unchanged
		if told := w.next(); len(told) != 0 {
			t.Errorf("nothing of ours changed, and it told %+v", told)
		}
		w.remove(slice("a-1", "a"))
		if c := w.one(t); c.Routing != nil || len(c.Endpoints["default/a:80"]) != 0 {
			t.Errorf("without its slices it has %+v", c)
		}
		if w.routing != routing {
			t.Error("routes were made anew")
		}
	})
}

// Objects of one application may come in any order. The last result has all of them.
func TestObjectsComeInAnyOrder(t *testing.T) {
	parts := strings.Split(ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), "---\n")
	for i := range parts {
		first := append(append([]string{}, parts[i:]...), parts[:i]...)
		observe(t, plainConfig, "", func(t *testing.T, w *watched) {
			w.next()
			endpoints := map[string][]config.Endpoint{}
			var last *Routing
			for _, p := range first {
				w.put(p)
				for _, c := range w.next() {
					if c.Routing != nil {
						last = c.Routing
					}
					maps.Copy(endpoints, c.Endpoints)
				}
			}
			if last == nil || len(last.Routes) != 2 || len(last.Events) != 0 || len(last.Certificates) != 1 || len(last.Certificates[0].Pair.CertPEM) == 0 {
				t.Fatalf("it came to %+v", last)
			}
			if got := addressesOf(endpoints["default/a:80"]); !reflect.DeepEqual(got, []string{"10.0.0.1:8080"}) {
				t.Errorf("endpoints are %v", endpoints)
			}
			w.remove(parts[0])
			if c := w.one(t); len(c.Routing.Routes) != 0 || len(c.Endpoints) != 0 {
				t.Errorf("without the Ingress there is %+v", c)
			}
		})
	}
}

// A status, which weir itself writes, is no change; neither are managed fields.
func TestStatusIsNoChange(t *testing.T) {
	observe(t, plainConfig, ingressAndService, func(t *testing.T, w *watched) {
		w.next()
		m := mustRead(t, ingressAndService)
		o := m.Ingresses[0]
		o.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "203.0.113.7"}}
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "weir"}}
		w.of(Ingresses).Modify(o)
		s := m.Services[0]
		s.Annotations = map[string]string{"somebody/else": "s"}
		w.of(Services).Modify(s.DeepCopy())
		if told := w.next(); len(told) != 0 {
			t.Errorf("it told %+v", told)
		}
		s.Annotations[AnnotationPreferLocal] = "true"
		w.of(Services).Modify(s.DeepCopy())
		if c := w.one(t); !c.Routing.Backends[0].PreferLocal {
			t.Errorf("it told %+v", c)
		}
		s.Annotations["traefik.ingress.kubernetes.io/service.middlewares"] = "shop-auth@kubernetescrd"
		w.of(Services).Modify(s.DeepCopy())
		if c := w.one(t); len(c.Routing.Backends) != 1 || c.Routing.Backends[0].Name != o.Namespace+"/refused" {
			t.Errorf("it told %+v", c)
		}
		delete(s.Annotations, "traefik.ingress.kubernetes.io/service.middlewares")
		w.of(Services).Modify(s.DeepCopy())
		w.one(t)
		tls := o.Spec.TLS
		o.Spec.TLS = nil
		w.of(Ingresses).Modify(o.DeepCopy())
		w.one(t)
		o.Annotations = map[string]string{annotation.Traefik + "router.tls": "true"}
		w.of(Ingresses).Modify(o.DeepCopy())
		if c := w.one(t); c.Routing.Routes[0].Redirect == nil {
			t.Errorf("it told %+v", c)
		}
		o.Spec.TLS, o.Annotations = tls, map[string]string{annotation.Nginx + "fastcgi-index": "index.php"}
		w.of(Ingresses).Modify(o.DeepCopy())
		if c := w.one(t); len(c.Routing.Events) != 1 || c.Routing.Events[0].Reason != event.ReasonUndone {
			t.Errorf("it told %+v", c)
		}
		o.UID = "made again" // only the UID differs, as of a new object, so the Source reports the faults again
		w.of(Ingresses).Modify(o.DeepCopy())
		if c := w.one(t); len(c.Routing.Events) != 1 || c.Routing.Events[0].Object.UID != o.UID {
			t.Errorf("it told %+v", c)
		}
		o.Annotations = map[string]string{annotation.Nginx + "enable-modsecurity": "true"}
		w.of(Ingresses).Modify(o.DeepCopy())
		if c := w.one(t); len(c.Routing.Backends) != 1 || c.Routing.Backends[0].Name != o.Namespace+"/refused" {
			t.Errorf("it told %+v", c)
		}
		o.Annotations[annotation.Nginx+"canary"] = "true"
		w.of(Ingresses).Modify(o.DeepCopy())
		if c := w.one(t); len(c.Routing.Routes) > 0 {
			t.Errorf("it told %+v", c)
		}
	})
}

// A rollout of an application causes many changes, and few reports. The Source reports endpoints more often
// than routes, which need more work.
func TestChangesAreToldTogether(t *testing.T) {
	f := func(change func(i int) string, every time.Duration, least, most int, last func(Change) bool) {
		t.Helper()
		observe(t, plainConfig, ingressAndService, func(t *testing.T, w *watched) {
			w.next()
			for i := range int(2 * time.Second / every) {
				w.put(change(i))
				time.Sleep(every) // faster than the debounce time
			}
			told := w.next()
			if len(told) < least || len(told) > most {
				t.Errorf("two seconds of changes were told %d times, not %d to %d times", len(told), least, most)
			}
			if !last(told[len(told)-1]) {
				t.Errorf("in the end there is %+v", told[len(told)-1])
			}
			for _, c := range told {
				if c.Since.IsZero() || time.Since(c.Since) > time.Minute {
					t.Errorf("it changed at %v", c.Since)
				}
			}
		})
	}
	f(func(i int) string { return slice("a-1", "a", fmt.Sprintf("10.0.%d.1", i%250)) }, 4*time.Millisecond, 60, 90,
		func(c Change) bool {
			return c.Routing == nil && reflect.DeepEqual(addressesOf(c.Endpoints["default/a:80"]), []string{"10.0.249.1:8080"})
		})
	f(func(i int) string {
		return strings.ReplaceAll(ingressAndService, "a.example", fmt.Sprintf("a%d.example", i))
	}, 10*time.Millisecond, 10, 16,
		func(c Change) bool { return c.Routing != nil && c.Routing.Routes[0].Hosts[0] == "a199.example" })
}

// Endpoints do not wait for the debounce time of routes.
func TestEndpointsDoNotWait(t *testing.T) {
	observe(t, plainConfig, ingressAndService, func(t *testing.T, w *watched) {
		w.next()
		begun := time.Now()
		w.put(slice("a-1", "a", "10.0.0.1"))
		w.put(strings.ReplaceAll(ingressAndService, "a.example", "b.example"))
		told := w.next()
		if len(told) != 2 || told[0].Routing != nil || len(told[0].Endpoints) != 1 || told[1].Routing == nil {
			t.Fatalf("it told %+v", told)
		}
		if told[0].Since != begun || told[1].Since != begun {
			t.Errorf("it changed at %v and %v, not at %v", told[0].Since, told[1].Since, begun)
		}
	})
}

// It may take long until routes are in effect, for example because of a slow name server. Endpoints do not wait for
// that, and the routes get the newest ones.
func TestEndpointsDoNotWaitForRoutes(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.next()
		release, newest := make(chan struct{}), []string(nil)
		w.beforeRoutes(func() {
			<-release
			w.WithNewest(func(backends []*config.Backend) error {
				newest = addressesOf(backends[0].Endpoints)
				return nil
			})
		})
		w.put(strings.ReplaceAll(ingressAndService, "a.example", "b.example"))
		if told := w.next(); len(told) != 0 {
			t.Fatalf("routes that are not in effect told %+v", told)
		}
		w.put(slice("a-1", "a", "10.0.0.2"))
		time.Sleep(maxQuickDebounce)
		synctest.Wait()
		if c := w.one(t); c.Routing != nil || !reflect.DeepEqual(addressesOf(c.Endpoints["default/a:80"]), []string{"10.0.0.2:8080"}) {
			t.Errorf("beside the routes it told %+v", c)
		}
		close(release)
		if c := w.one(t); c.Routing == nil || !reflect.DeepEqual(newest, []string{"10.0.0.2:8080"}) {
			t.Errorf("the routes are %+v, with the endpoints %v", c.Routing, newest)
		}
	})
}

// Without the API server nothing changes. When it is back, the Source finds the changes.
func TestServerGoesAndComes(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.next()
		w.set(syscall.ECONNREFUSED) // client-go itself does not report this error
		time.Sleep(10 * time.Minute)
		if told := w.next(); len(told) != 0 {
			t.Fatalf("losing the server changed %+v", told)
		}
		if !w.HasSynced() {
			t.Error("it is not synced any more")
		}
		w.mu.Lock()
		if len(w.troubles) == 0 {
			t.Error("nobody was told of the trouble")
		}
		w.mu.Unlock()
		w.of(EndpointSlices).ModifyDropWatch(mustRead(t, slice("a-1", "a", "10.0.0.2")).Slices[0])
		w.of(Secrets).DeleteDropWatch(mustRead(t, ingressAndService).Secrets[0])
		w.set(nil)
		time.Sleep(6*time.Second + maxDebounce)
		endpoints, events := []string(nil), 0
		for _, c := range w.next() {
			if e, ok := c.Endpoints["default/a:80"]; ok {
				endpoints = addressesOf(e)
			}
			if c.Routing != nil {
				events = len(c.Routing.Events)
			}
		}
		if !reflect.DeepEqual(endpoints, []string{"10.0.0.2:8080"}) || events != 1 {
			t.Errorf("back again, there are the endpoints %v and %d events", endpoints, events)
		}
	})
}

// Before the Source has listed every kind, it reports nothing. Otherwise weir would serve a part of the
// cluster as if it were the whole cluster.
func TestNothingIsToldBeforeAllIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.put(ingressAndService)
		s.down = errors.New("forbidden")
		told := 0
		source, err := NewSource(Options{File: mustParse(t, plainConfig), List: s.List, Changed: func(Change) { told++ }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); source.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if told != 0 || source.HasSynced() {
			t.Errorf("it told %d times, synced %v", told, source.HasSynced())
		}
		s.set(nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if told != 1 || !source.HasSynced() {
			t.Errorf("then it told %d times, synced %v", told, source.HasSynced())
		}
		cancel()
		<-ended
		s.shutdown()
	})
}

func TestNode(t *testing.T) {
	node := func(more string) string {
		return "{apiVersion: v1, kind: Node, metadata: {name: node-a, labels: {topology.kubernetes.io/zone: z1}}, spec: {" + more + "}}"
	}
	observe(t, plainConfig, node(""), func(t *testing.T, w *watched) {
		if c := w.one(t); c.Node == nil || c.Node.Zone != "z1" || len(c.Node.Leaving) != 0 {
			t.Fatalf("it told %+v", c)
		}
		w.put(node("unschedulable: true"))
		if c := w.one(t); c.Node == nil || len(c.Node.Leaving) != 1 || c.Routing != nil || c.Endpoints != nil {
			t.Fatalf("cordoned, it told %+v", c)
		}
		m := mustRead(t, node("unschedulable: true"))
		m.Nodes[0].Status.Phase = corev1.NodeRunning
		m.Nodes[0].Annotations = map[string]string{"heartbeat": "now"}
		w.of(Nodes).Modify(m.Nodes[0])
		if told := w.next(); len(told) != 0 {
			t.Errorf("a heartbeat told %+v", told)
		}
		w.remove(node(""))
		if c := w.one(t); c.Node == nil || c.Node.Zone != "z1" || !slices.Equal(c.Node.Leaving, []string{"the cluster has deleted the node"}) {
			t.Errorf("without its object the node became %+v", c)
		}
		w.put(node(""))
		if c := w.one(t); c.Node == nil || len(c.Node.Leaving) != 0 {
			t.Errorf("back again, it told %+v", c)
		}
	})
}

// A node that the cluster never had stays: weir runs outside of the cluster, or node is wrong, and then the log says so.
func TestUnknownNode(t *testing.T) {
	observe(t, plainConfig, "", func(t *testing.T, w *watched) {
		if c := w.one(t); c.Node == nil || !reflect.DeepEqual(*c.Node, Node{}) {
			t.Errorf("it told %+v", c)
		}
	})
}

func TestScopes(t *testing.T) {
	f := func(section, node string, want map[Kind][]Selection) {
		t.Helper()
		got := selections(mustParse(t, node+"listeners: {web: {address: ':80', protocol: http}}\nkubernetes: "+section+"\n"))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s watches\n%v, want\n%v", section, got, want)
		}
	}
	every := []Selection{{}}
	f("{}", "", map[Kind][]Selection{IngressClasses: every, Ingresses: every, Services: every, EndpointSlices: every, Secrets: {{"", certificatesOnly}}})
	f("{namespaces: [b, a], default_certificate: a/x}", "node: n\n", map[Kind][]Selection{IngressClasses: every, Ingresses: {{"a", ""}, {"b", ""}},
		Services: {{"a", ""}, {"b", ""}}, EndpointSlices: {{"a", ""}, {"b", ""}}, Secrets: {{"a", certificatesOnly}, {"b", certificatesOnly}},
		Nodes: {{"", "metadata.name=n"}}})
	f("{namespaces: [a], default_certificate: c/x, tcp: {config_map: d/ports}}", "", map[Kind][]Selection{IngressClasses: every, Ingresses: {{"a", ""}},
		Services: {{"a", ""}}, EndpointSlices: {{"a", ""}}, Secrets: {{"a", certificatesOnly}, {"c", "metadata.name=x"}}, ConfigMaps: {{"d", "metadata.name=ports"}}})
	f("{namespace_labels: [a=b]}", "", map[Kind][]Selection{IngressClasses: every, Ingresses: every, Services: every, EndpointSlices: every,
		Secrets: {{"", certificatesOnly}}, Namespaces: every})
}

// The file changes, and the cluster stays the same.
func TestTry(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		other := mustParse(t, strings.Replace(plainConfig, "class: weir", "class: other", 1))
		still, err := NewSource(w.opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := still.Try(other, func(c Change) error {
			if len(c.Routing.Backends) != 1 || c.Routing.Backends[0].Endpoints != nil {
				t.Errorf("before all is known there is %+v", c.Routing)
			}
			return errors.New("no")
		}); err == nil {
			t.Error("the error is lost")
		}
		if c := w.one(t); len(c.Routing.Routes) != 2 {
			t.Errorf("after a file that was refused there is %+v", c.Routing)
		}
		if w.Fits(mustParse(t, strings.Replace(plainConfig, "class: weir", "class: weir, namespaces: [a]", 1))) {
			t.Error("it would go on with other namespaces")
		}
		if !w.Fits(other) {
			t.Error("it would not go on with another class")
		}
		try := func(file *config.Config, routes int, err error) {
			t.Helper()
			got := w.Try(file, func(c Change) error {
				if len(c.Routing.Routes) != routes || c.Backends == nil || c.Node == nil {
					t.Errorf("there is %+v", c)
				}
				return err
			})
			if got != err {
				t.Errorf("it returned %v", got)
			}
		}
		try(other, 0, errors.New("no"))
		w.put(slice("a-1", "a", "10.0.0.2"))
		if c := w.one(t); c.Routing != nil || len(c.Endpoints["default/a:80"]) != 1 {
			t.Errorf("after a file that was refused an endpoint told %+v", c)
		}
		try(other, 0, nil)
		if told := w.next(); len(told) != 0 {
			t.Errorf("it told %+v of what was tried", told)
		}
		try(mustParse(t, plainConfig), 2, nil)
		w.put(slice("a-1", "a", "10.0.0.3"))
		if c := w.one(t); len(c.Endpoints["default/a:80"]) != 1 {
			t.Errorf("then there is %+v", c)
		}
	})
}

// endpointsIn returns the endpoints of a backend in a change of routes.
func endpointsIn(c *Change, name string) []config.Endpoint {
	for i, b := range c.Routing.Backends {
		if b.Name == name {
			return c.Backends[i].Endpoints
		}
	}
	return nil
}

// A panic in a conversion is a bug of weir. It affects nothing else.
func TestFaultOfOurOwn(t *testing.T) {
	var panics atomic.Int32
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.setOptions(func(o *Options) { o.Panicked = func(any, []byte) { panics.Add(1) } })
		w.next()
		setFile := func(file *config.Config) {
			w.converting.Lock()
			w.converter.File = file
			w.converting.Unlock()
		}
		file := w.converter.File
		setFile(&config.Config{}) // a conversion needs the section kubernetes
		w.put(strings.ReplaceAll(ingressAndService, "name: a,", "name: a, annotations: {"+AnnotationPreferLocal+": 'true'},"))
		w.put(strings.ReplaceAll(ingressAndService, "a.example", "b.example"))
		if told := w.next(); len(told) != 0 || panics.Load() == 0 {
			t.Errorf("with %d panics it told %+v", panics.Load(), told)
		}
		w.put(slice("a-1", "a", "10.0.0.2"))
		if c := w.one(t); len(c.Endpoints) != 1 || c.Routing != nil {
			t.Errorf("endpoints told %+v", c)
		}
		setFile(file)
		w.put(strings.ReplaceAll(ingressAndService, "a.example", "c.example"))
		if c := w.one(t); len(c.Routing.Routes) != 2 || len(endpointsIn(&c, "default/a:80")) != 1 {
			t.Errorf("then it told %+v", c)
		}
	})
}

func TestSlim(t *testing.T) {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{}}},
		Data: map[string][]byte{"tls.crt": {1}, "tls.key": {2}, "password": {3}, "auth": {4}, "ada": []byte("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n")}}
	slim(s)
	if len(s.Data) != 4 || s.Data["password"] != nil || s.ManagedFields != nil {
		t.Errorf("it keeps %+v", s)
	}
	if o, err := slim(cache.DeletedFinalStateUnknown{Obj: &discoveryv1.EndpointSlice{}}); o == nil || err != nil {
		t.Errorf("a tombstone becomes %v, %v", o, err)
	}
}

func TestConnect(t *testing.T) {
	f := func(k config.Kubernetes, want string) {
		t.Helper()
		_, err := Connect(&k)
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", k, err, want)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	f(config.Kubernetes{}, "set kubernetes.kubeconfig")
	f(config.Kubernetes{Kubeconfig: "testdata/nothing"}, "cannot use kubernetes.kubeconfig")
	f(config.Kubernetes{Kubeconfig: "testdata/kubeconfig.yaml"}, "")
}

// Some conversions in a row wait only for more changes. In the long run, conversions use a
// fifth of the time.
func TestConversionsUseAFifth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Source{wake: make(chan struct{}, 1)}
		start := time.Now()
		due := func() time.Duration {
			at, _ := s.routesDue()
			return time.Until(at)
		}
		waits := func() time.Duration {
			s.dirty.routes = span{}
			s.dirty.routes.touch()
			return max(0, due()-debounce)
		}
		convert := func() {
			time.Sleep(due())
			begun := time.Now()
			time.Sleep(500 * time.Millisecond)
			s.spent(begun)
		}
		for i := range 5 {
			if d := waits(); d != 0 {
				t.Errorf("conversion %d waits for %v", i, d)
			}
			convert()
		}
		for waits(); time.Since(start) < 10*time.Minute; waits() {
			convert()
		}
		if busy := s.paidUntil.Sub(start) / share; busy > 123*time.Second || busy < 120*time.Second {
			t.Errorf("conversions took %v of ten minutes", busy)
		}
		if d := waits(); d == 0 || d > 2500*time.Millisecond {
			t.Errorf("one of many conversions waits for %v", d)
		}
		time.Sleep(time.Minute)
		if d := waits(); d != 0 {
			t.Errorf("after a minute, a conversion waits for %v", d)
		}
	})
}
