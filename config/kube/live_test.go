//go:build cluster

package kube

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/weirproxy/weir/config"
)

// live is a Source on a real API server, in a namespace of its own. The kubeconfig is in
// WEIR_TEST_KUBECONFIG. Tests that need an API server have a build tag, and e2e/kube runs
// them together with its own tests.
type live struct {
	t         *testing.T
	client    *Client
	namespace string
	changes   chan Change
	routing   *Routing
	endpoints map[string][]config.Endpoint
}

const liveDeadline = 20 * time.Second

func newLive(t *testing.T) *live {
	kubeconfig := os.Getenv("WEIR_TEST_KUBECONFIG")
	if kubeconfig == "" {
		t.Fatal("WEIR_TEST_KUBECONFIG names no cluster")
	}
	l := &live{t: t, namespace: fmt.Sprintf("weir-%d", time.Now().UnixNano()), changes: make(chan Change, 1000), endpoints: map[string][]config.Endpoint{}}
	file := mustParse(t, "listeners: {web: {address: ':80', protocol: http}, websecure: {address: ':443', protocol: tls}}\nkubernetes: {class: weir, namespaces: ["+l.namespace+"]}\n")
	var err error
	if l.client, err = Connect(&config.Kubernetes{Kubeconfig: kubeconfig}); err != nil {
		t.Fatal(err)
	}
	l.create(l.client.core, "namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}})
	t.Cleanup(func() {
		l.client.core.Delete().Resource("namespaces").Name(l.namespace).Do(context.Background())
	})
	source, err := NewSource(Options{File: file, List: l.client.List, Changed: func(c Change) { l.changes <- c },
		Trouble: func(k Kind, err error) { t.Logf("%s: %v", k, err) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); source.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return l
}

func (l *live) create(c rest.Interface, resource, namespace string, o runtime.Object) {
	l.t.Helper()
	if err := c.Post().Resource(resource).NamespaceIfScoped(namespace, namespace != "").Body(o).Do(context.Background()).Error(); err != nil {
		l.t.Fatal(err)
	}
}

// put creates the objects in manifests, in the test's namespace.
func (l *live) put(manifests string) {
	l.t.Helper()
	m := mustRead(l.t, manifests)
	for _, o := range m.Ingresses {
		o.Namespace = l.namespace
		l.create(l.client.networking, "ingresses", l.namespace, o)
	}
	for _, o := range m.Services {
		o.Namespace = l.namespace
		l.create(l.client.core, "services", l.namespace, o)
	}
	for _, o := range m.Secrets {
		o.Namespace, o.StringData, o.Type = l.namespace, nil, corev1.SecretTypeTLS
		l.create(l.client.core, "secrets", l.namespace, o)
	}
	for _, o := range m.Slices {
		o.Namespace = l.namespace
		l.create(l.client.discovery, "endpointslices", l.namespace, o)
	}
}

// until takes changes until the result is right, and returns how many of them had routes.
func (l *live) until(what string, right func() bool) (routings int) {
	l.t.Helper()
	deadline := time.After(liveDeadline)
	for {
		select {
		case c := <-l.changes:
			if c.Routing != nil {
				routings++
				l.routing = c.Routing
			}
			maps.Copy(l.endpoints, c.Endpoints)
			if l.routing != nil && right() {
				return routings
			}
		case <-deadline:
			l.t.Fatalf("after %v there is still not %s, but\n%+v\n%+v", liveDeadline, what, l.routing, l.endpoints)
		}
	}
}

// TestLive watches a real API server. The fakes cannot show whether kinds, field
// selectors, protobuf and watches are as in a real server.
func TestLive(t *testing.T) {
	l := newLive(t)
	backend := l.namespace + "/a:80"
	l.until("nothing", func() bool { return len(l.routing.Routes) == 0 })

	l.put(ingressAndService + "---\n" + slice("a-1", "a", "10.1.0.1", "10.1.0.2"))
	l.until("an application", func() bool {
		return len(l.routing.Routes) == 2 && len(l.routing.Events) == 0 && len(l.routing.Certificates) == 1 &&
			reflect.DeepEqual(addressesOf(l.endpoints[backend]), []string{"10.1.0.1:8080", "10.1.0.2:8080"})
	})

	l.put(slice("a-2", "a", "10.1.0.3"))
	if n := l.until("a third endpoint", func() bool { return len(l.endpoints[backend]) == 3 }); n != 0 {
		t.Errorf("an endpoint made routes anew %d times", n)
	}
	if err := l.client.discovery.Delete().Namespace(l.namespace).Resource("endpointslices").Name("a-1").Do(context.Background()).Error(); err != nil {
		t.Fatal(err)
	}
	l.until("one endpoint", func() bool { return reflect.DeepEqual(addressesOf(l.endpoints[backend]), []string{"10.1.0.3:8080"}) })
	if err := l.client.core.Delete().Namespace(l.namespace).Resource("secrets").Name("a").Do(context.Background()).Error(); err != nil {
		t.Fatal(err)
	}
	l.until("a Secret that is missing", func() bool { return len(l.routing.Events) == 1 })

	m, err := l.client.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Ingresses) == 0 || len(m.Services) == 0 {
		t.Errorf("the cluster has %d Ingresses and %d Services, %v", len(m.Ingresses), len(m.Services), err)
	}
	if err := l.client.networking.Delete().Namespace(l.namespace).Resource("ingresses").Name("web").Do(context.Background()).Error(); err != nil {
		t.Fatal(err)
	}
	l.until("nothing again", func() bool { return len(l.routing.Routes) == 0 })
}
