package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fake "k8s.io/client-go/tools/cache/testing"

	"github.com/weirproxy/weir/config"
)

// offer is which kinds of the Gateway API a cluster serves.
type offer struct {
	mu       sync.Mutex
	versions map[string]string
	err      error
	asked    int
}

func (o *offer) served(context.Context) (map[string]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	return maps.Clone(o.versions), o.err
}

func (o *offer) set(err error, versions ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.versions, o.err = map[string]string{}, err
	for _, v := range versions {
		kind, version, _ := strings.Cut(v, "@")
		o.versions[kind] = version
	}
}

const everyGatewayKind = "gatewayclasses@v1 gateways@v1 listenersets@v1 httproutes@v1 grpcroutes@v1 tlsroutes@v1 tcproutes@v1 referencegrants@v1beta1 backendtlspolicies@v1"

// observeGateways is observe for a cluster that may serve the Gateway API.
func observeGateways(t *testing.T, o *offer, manifests string, test func(t *testing.T, w *watched)) {
	t.Helper()
	observeGatewaysWith(t, o, gatewayConfig, manifests, test)
}

// observeGatewaysWith is observeGateways with another file.
func observeGatewaysWith(t *testing.T, o *offer, file, manifests string, test func(t *testing.T, w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{server: newServer(t)}
		w.put(manifests)
		source, err := NewSource(Options{File: mustParse(t, file), List: w.List, Served: o.served,
			Changed: func(c Change) {
				w.mu.Lock()
				w.changes = append(w.changes, c)
				w.mu.Unlock()
			},
			Trouble: func(kind Kind, err error) {
				w.mu.Lock()
				w.troubles = append(w.troubles, fmt.Errorf("%s: %w", kind, err))
				w.mu.Unlock()
			},
			Answered: w.answered})
		if err != nil {
			t.Fatal(err)
		}
		w.Source = source
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); source.Run(ctx) }()
		defer func() {
			cancel()
			<-ended
			w.shutdown()
			for kind := range optionalExample {
				for _, version := range gatewayVersionsOfTests {
					w.of(versioned(kind, version)).Shutdown()
				}
			}
		}()
		test(t, w)
	})
}

var gatewayVersionsOfTests = []string{"v1", "v1beta1"}

// putGateways adds objects of the Gateway API, in one version.
func (w *watched) putGateways(version, manifests string) {
	m := mustRead(w.t, manifests)
	add := func(f *fake.FakeControllerSource, o runtime.Object) { f.Add(o) }
	forEach(m.Gateway.Classes, versioned(GatewayClasses, version), w.server, add)
	forEach(m.Gateway.Gateways, versioned(Gateways, version), w.server, add)
	forEach(m.Gateway.HTTP, versioned(HTTPRoutes, version), w.server, add)
}

const edgeGateway = gatewayBase + `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, uid: u1}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: app}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}
`

// Two installations may divide the namespaces of a controller by labels. None looks at the statuses in the namespaces of
// the other.
func TestStatusesOfOtherNamespaces(t *testing.T) {
	o := &offer{}
	o.set(nil, strings.Fields(everyGatewayKind)...)
	manifests := "{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {team: a}}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: theirs, labels: {team: b}}}"
	observeGatewaysWith(t, o, strings.Replace(gatewayConfig, "{class: weir", "{namespace_labels: [team=a], class: weir", 1), manifests, func(t *testing.T, w *watched) {
		w.putGateways("v1", edgeGateway+"---\n{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: app, namespace: theirs}, spec: {parentRefs: [{name: edge}]}}")
		time.Sleep(lookForKinds)
		if last := w.latest(t); len(last.Gateways.Listeners) != 1 {
			t.Fatalf("there are %d listeners", len(last.Gateways.Listeners))
		}
		var all []string
		w.EachGatewayObject(func(kind string, o metav1.Object) { all = append(all, kind+" "+o.GetNamespace()+"/"+o.GetName()) })
		if slices.Sort(all); !slices.Equal(all, []string{"Gateway default/edge", "GatewayClass /weir", "HTTPRoute default/app"}) {
			t.Errorf("weir looks at %q", all)
		}
	})
}

// A kind that the cluster does not serve is no error. weir picks it up when it appears, drops its
// objects when it goes, and reads it again in another version.
func TestKindsComeAndGo(t *testing.T) {
	o := &offer{}
	observeGateways(t, o, "", func(t *testing.T, w *watched) {
		first := w.one(t)
		if first.Routing.Gateways == nil || len(first.Routing.Gateways.Listeners) > 0 || !w.HasSynced() {
			t.Fatalf("without the kinds, the routing is %+v", first.Routing.Gateways)
		}
		w.putGateways("v1", edgeGateway)
		o.set(nil, strings.Fields(everyGatewayKind)...)
		time.Sleep(lookForKinds)
		last := w.latest(t)
		if len(last.Gateways.Listeners) != 1 || len(last.Routes) != 2 {
			t.Fatalf("with the kinds, the routing has %+v and %d routes", last.Gateways.Listeners, len(last.Routes))
		}
		if object, version := w.GatewayObject("Gateway", config.ObjectName{Namespace: "default", Name: "edge"}); object == nil || version != "v1" {
			t.Errorf("the Gateway is %v in version %q", object, version)
		}
		kinds := 0
		w.EachGatewayObject(func(string, metav1.Object) { kinds++ })
		if kinds != 3 {
			t.Errorf("%d objects have a status, not 3", kinds)
		}

		o.set(nil, slices.DeleteFunc(strings.Fields(everyGatewayKind), func(s string) bool { return strings.HasPrefix(s, "httproutes") })...)
		time.Sleep(lookForKinds)
		if last = w.latest(t); len(last.Gateways.Listeners) != 1 || len(last.Routes) != 1 {
			t.Errorf("without HTTPRoutes, there are %d routes", len(last.Routes))
		}

		w.putGateways("v1beta1", edgeGateway)
		o.set(nil, "gatewayclasses@v1beta1", "gateways@v1beta1", "httproutes@v1beta1")
		time.Sleep(lookForKinds)
		if last = w.latest(t); len(last.Routes) != 2 {
			t.Errorf("in another version, there are %d routes", len(last.Routes))
		}
		if _, version := w.GatewayObject("Gateway", config.ObjectName{Namespace: "default", Name: "edge"}); version != "v1beta1" {
			t.Errorf("the version is %q", version)
		}

		o.set(nil)
		time.Sleep(lookForKinds)
		if last = w.latest(t); len(last.Gateways.Listeners)+len(last.Routes) != 0 {
			t.Errorf("without the kinds, there are %d listeners and %d routes", len(last.Gateways.Listeners), len(last.Routes))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.troubles) > 0 {
			t.Errorf("kinds that come and go are no trouble: %v", w.troubles)
		}
	})
}

// While the API server does not say which kinds it serves, the objects are not known; later, all
// known objects stay in effect.
func TestKindsUnknown(t *testing.T) {
	o := &offer{}
	o.set(errors.New("down"))
	observeGateways(t, o, "", func(t *testing.T, w *watched) {
		w.putGateways("v1", edgeGateway)
		time.Sleep(10 * time.Second)
		if len(w.next()) > 0 || w.HasSynced() {
			t.Error("weir knows the objects although the API server does not answer")
		}
		o.set(nil, strings.Fields(everyGatewayKind)...)
		if first := w.latest(t); len(first.Gateways.Listeners) != 1 {
			t.Errorf("the first routing has %d listeners", len(first.Gateways.Listeners))
		}
		w.mu.Lock()
		troubles := len(w.troubles)
		w.mu.Unlock()
		if troubles < 5 {
			t.Errorf("%d troubles were reported", troubles)
		}
		o.set(errors.New("down again"))
		time.Sleep(3 * lookForKinds)
		if got := w.next(); len(got) > 0 {
			t.Errorf("the objects changed while the API server was down: %+v", got)
		}
	})
}

// latest waits until the Source reports nothing more, and returns the last routing.
func (w *watched) latest(t *testing.T) *Routing {
	t.Helper()
	all := w.next()
	all = append(all, w.next()...)
	if len(all) == 0 || all[len(all)-1].Routing == nil {
		t.Fatalf("no routing was reported: %+v", all)
	}
	return all[len(all)-1].Routing
}
