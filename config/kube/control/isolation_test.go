package control

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api/fake"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// keyOf is the Key of an object of a fake cluster.
func keyOf(cluster *fake.API, kind, namespace, name string) gateway.Key {
	meta := cluster.Objects(resources[kind])[namespace+"/"+name]["metadata"].(fake.Object)
	return gateway.Key{Kind: kind, ObjectName: config.ObjectName{Namespace: namespace, Name: name}, UID: types.UID(meta["uid"].(string))}
}

// acceptedGateway is the status of a new Gateway of a fake cluster.
func acceptedGateway(cluster *fake.API, namespace, name string) *gateway.Status {
	cluster.Change(namespace, "gateways", name, &gatewayv1.Gateway{})
	return &gateway.Status{Gateways: []gateway.GatewayStatus{{Key: keyOf(cluster, gateway.KindGateway, namespace, name),
		GatewayStatus: gatewayv1.GatewayStatus{Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}}}}
}

func readGateway(t *testing.T, cluster *fake.API, name string) *gatewayv1.Gateway {
	return objectOf(t, gateway.KindGateway, cluster.Objects("gateways")[name]).(*gatewayv1.Gateway)
}

// If the API server fails for the objects of one namespace, such as with a webhook of a tenant that does not answer, the
// other namespaces get their statuses. If it fails everywhere, weir pauses.
func TestFailuresOfANamespaceStayThere(t *testing.T) {
	cluster := fake.New(t)
	var all []*gateway.Status
	for i := range 3 {
		all = append(all, acceptedGateway(cluster, "bad", fmt.Sprint("g", i)))
	}
	all = append(all, acceptedGateway(cluster, "good", "g"))
	var asked atomic.Int32
	cluster.Refuse(func(r fake.Request) int {
		if r.Resource == "gateways/status" && r.Namespace == "bad" {
			asked.Add(1)
			return http.StatusInternalServerError
		}
		return 0
	})
	gatewayReplica(t, cluster, "a").Want(Wanted{Controller: "weir.example/c", Gateways: all})
	until(t, "the other namespace has its status", func() bool { return len(readGateway(t, cluster, "good/g").Status.Conditions) == 1 })
	if n := asked.Load(); n > 1 {
		t.Errorf("weir has written %d times into a namespace in which the API server fails", n)
	}

	g := &gatewayStatuses{todo: map[objectKey]bool{}, wanted: map[objectKey]*desired{}, wrote: map[objectKey]string{}, resting: map[string]time.Time{}}
	all = nil
	for i := range 2 * mostAway {
		all = append(all, acceptedGateway(cluster, fmt.Sprint("n", i), "g"))
	}
	cluster.Refuse(func(r fake.Request) int { return http.StatusServiceUnavailable })
	g.take(Wanted{Gateways: all})
	before := cluster.Asked("patch", "gateways/status")
	if err := gatewayReplica(t, cluster, "b").workOff(t.Context(), g); err == nil {
		t.Error("the API server is away, and weir goes on")
	}
	if n := cluster.Asked("patch", "gateways/status") - before; n != mostAway {
		t.Errorf("weir has tried %d namespaces", n)
	}
	if got := g.again(); got != conflictPause {
		t.Errorf("the other namespaces have their turn after %v", got)
	}
	g.todo = map[objectKey]bool{{gateway.KindGateway, config.ObjectName{Namespace: "n0", Name: "g"}}: true}
	if got := g.again(); got != retryStatuses {
		t.Errorf("a namespace in which the API server fails has its turn after %v", got)
	}
}

// The same applies to the addresses of Ingresses.
func TestFailuresOfIngressesStayInTheirNamespace(t *testing.T) {
	cluster := fake.New(t)
	var all []*networkingv1.Ingress
	for _, name := range []string{"bad/a", "bad/b", "good/a", "n1/a", "n2/a", "n3/a", "n4/a"} {
		namespace, name, _ := strings.Cut(name, "/")
		cluster.Change(namespace, "ingresses", name, &networkingv1.Ingress{})
		uid := cluster.Objects("ingresses")[namespace+"/"+name]["metadata"].(fake.Object)["uid"].(string)
		all = append(all, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}})
	}
	r := newReplica(t, cluster, "a")
	write := func(ingresses []*networkingv1.Ingress, work *statusWork) error {
		r.opts.Ingresses = func() []*networkingv1.Ingress { return ingresses }
		w := Wanted{}
		for _, i := range ingresses {
			w.Ingresses = append(w.Ingresses, nameOf(i))
		}
		return r.writeStatuses(t.Context(), w, []string{"192.0.2.7"}, work)
	}
	cluster.Refuse(func(r fake.Request) int {
		if r.Namespace != "good" {
			return http.StatusInternalServerError
		}
		return 0
	})
	work := newStatusWork()
	for round := range 2 { // the second time, the namespace rests
		clear(work.wrote)
		before := cluster.Asked("patch", "ingresses/status")
		err := write(all[:3], work)
		want := 1 // into the good namespace
		if err != nil {
			want = 2
		}
		if n := cluster.Asked("patch", "ingresses/status") - before; n != want || (err != nil) != (round == 0) {
			t.Errorf("weir has written %d times, with the error %v", n, err)
		}
	}
	if got := statuses(t, cluster); !strings.Contains(got, "192.0.2.7") {
		t.Errorf("the other namespace has no addresses: %s", got)
	}
	before := cluster.Asked("patch", "ingresses/status")
	if err := write(all[3:], newStatusWork()); err == nil || cluster.Asked("patch", "ingresses/status")-before != mostAway {
		t.Errorf("the API server is away: %v, after %d attempts", err, cluster.Asked("patch", "ingresses/status")-before)
	}
}

// A namespace with many Ingresses does not delay the first addresses of another, also if its Ingress comes meanwhile.
func TestAddressesOfNamespacesHaveTheirTurns(t *testing.T) {
	cluster := fake.New(t)
	for i := range 1500 {
		cluster.Change("large", "ingresses", fmt.Sprint("i", i), &networkingv1.Ingress{})
	}
	cluster.Change("beside", "ingresses", "i", &networkingv1.Ingress{})
	var written []string
	r := newReplica(t, cluster, "a")
	want := func() (w Wanted) {
		for _, i := range ingressesOf(t, cluster) {
			w.Ingresses = append(w.Ingresses, nameOf(i))
		}
		return w
	}
	cluster.Refuse(func(req fake.Request) int {
		if req.Resource == "ingresses/status" {
			if written = append(written, req.Namespace); len(written)%3 == 0 {
				wake(r.statuses) // the wanted state changes
			}
		}
		return 0
	})
	work := newStatusWork()
	write := func(order ...string) {
		t.Helper()
		written = nil
		if err := r.writeStatuses(t.Context(), want(), []string{"192.0.2.7"}, work); err != nil || !slices.Equal(written, order) {
			t.Errorf("statuses are written in the namespaces %q: %v", written, err)
		}
		<-r.statuses
	}
	write("beside", "large", "large")
	cluster.Change("after", "ingresses", "i", &networkingv1.Ingress{})
	cluster.Change("new", "ingresses", "i", &networkingv1.Ingress{})
	write("new", "after", "large")
}

// Each namespace has its turn, the one behind the last write first. Gateways come before the routes of their namespace.
func TestNamespacesHaveTheirTurns(t *testing.T) {
	g := &gatewayStatuses{todo: map[objectKey]bool{}, last: "a"}
	for _, text := range []string{"HTTPRoute a/r1", "HTTPRoute a/r2", "Gateway a/z", "HTTPRoute a/r3", "TCPRoute b/r", "HTTPRoute c/r", "ListenerSet c/s", "GatewayClass /k"} {
		kind, name, _ := strings.Cut(text, " ")
		namespace, name, _ := strings.Cut(name, "/")
		g.todo[objectKey{kind, config.ObjectName{Namespace: namespace, Name: name}}] = true
	}
	show := func() (text string) {
		for _, k := range g.inTurn() {
			text += k.Namespace + "/" + k.Name + " "
		}
		return text
	}
	if got, want := show(), "b/r c/s /k a/z c/r a/r1 a/r2 a/r3 "; got != want {
		t.Errorf("the order is %s, not %s", got, want)
	}
	g.last = "b"
	if got, want := show(), "c/s /k a/z b/r c/r a/r1 a/r2 a/r3 "; got != want {
		t.Errorf("behind b the order is %s, not %s", got, want)
	}
}

// An older definition of a kind may drop a field of the status. weir writes such a status once in a while, and does not
// wait for a version that never comes.
func TestDroppedFieldsOfAStatus(t *testing.T) {
	cluster := fake.New(t)
	status := acceptedGateway(cluster, "shop", "g")
	status.Gateways[0].Listeners = []gatewayv1.ListenerStatus{{Name: "web", Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}, SupportedKinds: []gatewayv1.RouteGroupKind{}}}
	r := gatewayReplica(t, cluster, "a")
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{status}})
	until(t, "the status is written", func() bool { return len(readGateway(t, cluster, "shop/g").Status.Listeners) == 1 })
	r.leave() // it would take the addresses away again

	g := &gatewayStatuses{todo: map[objectKey]bool{}, wanted: map[objectKey]*desired{}, wrote: map[objectKey]string{}, resting: map[string]time.Time{}}
	dropped := *status
	dropped.Gateways = slices.Clone(status.Gateways)
	dropped.Gateways[0].Addresses = []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.1"}}
	opts := r.opts
	opts.Gateways = droppingObjects{opts.Gateways}
	c := New(opts)
	for range 2 { // the second write changes nothing
		g.take(Wanted{Gateways: []*gateway.Status{&dropped}})
		g.todo[objectKey{gateway.KindGateway, config.ObjectName{Namespace: "shop", Name: "g"}}] = true
		if err := c.workOff(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		clear(g.wrote)
	}
	if len(g.todo) > 0 {
		t.Error("weir waits for a version that never comes")
	}
}

// The API leaves an empty list of kinds out of the status of a ListenerSet. That is no change.
func TestListenersWithoutKinds(t *testing.T) {
	wanted := gatewayv1.ListenerSetStatus{Listeners: []gatewayv1.ListenerEntryStatus{{Name: "udp", SupportedKinds: []gatewayv1.RouteGroupKind{}}}}
	if fields, differs := setFields(&gatewayv1.ListenerSetStatus{Listeners: []gatewayv1.ListenerEntryStatus{{Name: "udp"}}}, &wanted); differs {
		t.Errorf("weir writes %v again", fields)
	}
	if wanted.Listeners[0].SupportedKinds == nil {
		t.Error("the wanted status has changed")
	}
}

// droppingObjects are objects without the addresses of Gateways, as with an older definition of the kind.
type droppingObjects struct{ GatewayObjects }

func (d droppingObjects) GatewayObject(kind string, name config.ObjectName) (metav1.Object, string) {
	o, version := d.GatewayObjects.GatewayObject(kind, name)
	if g, ok := o.(*gatewayv1.Gateway); ok {
		g.Status.Addresses = nil
	}
	return o, version
}

// A trouble in a namespace that is gone does not hide later ones.
func TestTroublesEnd(t *testing.T) {
	r := gatewayReplica(t, fake.New(t), "a")
	r.outcome("write", "gone", errors.New("first"))
	r.outcome("write", "other", errors.New("hidden"))
	r.outcome("write", "other", nil)
	if got := r.troubles(); !slices.Equal(got, []string{"write: first"}) {
		t.Fatalf("the troubles are %q", got)
	}
	age := func() {
		r.Control.mu.Lock()
		defer r.Control.mu.Unlock()
		r.troubled["write"]["gone"] = time.Now().Add(-troubleFor - time.Second)
	}
	age()
	r.outcome("write", "other", errors.New("second"))
	r.outcome("write", "gone", errors.New("hidden"))
	age()
	r.outcome("write", "other", nil)
	r.outcome("write", "other", nil)
	if got := r.troubles(); !slices.Equal(got, []string{"write: first", "write: second", "write: <nil>"}) {
		t.Errorf("the troubles are %q", got)
	}
}

// The controller of a load balancer changes a Service while weir does. That is no refusal. In a namespace that is being
// deleted, weir needs no Services.
func TestServicesThatOthersChange(t *testing.T) {
	for name, c := range map[string]struct {
		verb  string
		code  int
		times int32
	}{"a change of another controller": {"update", http.StatusConflict, mostConflicts - 1}, "a namespace that goes away": {"create", fake.Terminating, 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			cluster := fake.New(t)
			status := acceptedGateway(cluster, "shop", "edge")
			status.Service = balancedService(config.ServiceLoadBalancer, "", 20000).Service
			status.Service.Key = status.Gateways[0].Key
			r := gatewayReplica(t, cluster, "a")
			if c.verb == "update" {
				r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{status}})
				until(t, "there is a Service", func() bool { return len(cluster.Objects("endpointslices")) > 0 })
			}
			left := atomic.Int32{}
			left.Store(c.times)
			cluster.Refuse(func(r fake.Request) int {
				if r.Verb == c.verb && r.Resource == "services" && left.Add(-1) >= 0 {
					return c.code
				}
				return 0
			})
			next := *status.Service
			next.Ports = []gateway.PortPair{{Port: 80, Pod: 20007}}
			k := keptService{of: &next}
			if !r.keepServices(t.Context(), servicesOf([]*gateway.Status{{Service: &next}}), nil, newServiceWork()) || k.of == nil {
				t.Error("weir tries again later")
			}
			if got := r.refused(); len(got) > 0 {
				t.Errorf("the status of the Gateway would say %v", got)
			}
			if got := r.troubles(); len(got) > 0 {
				t.Errorf("the log would say %q", got)
			}
		})
	}
}

// Of two Gateways that want a Service of the same name, the first keeps it up to date, whatever the other does.
func TestServicesWithOneName(t *testing.T) {
	cluster := fake.New(t)
	r := gatewayReplica(t, cluster, "a")
	first, second := balancedService(config.ServiceLoadBalancer, "", 20000), balancedService(config.ServiceLoadBalancer, "", 20001)
	second.Service.Key.Name, second.Service.UID = "edge-a", "u2"
	owners := newServiceWork()
	if !r.keepServices(t.Context(), servicesOf([]*gateway.Status{first}), nil, owners) {
		t.Fatal("there is no Service")
	}
	r.keepServices(t.Context(), servicesOf([]*gateway.Status{first, second}), nil, owners)
	next := *first.Service
	next.Ports = []gateway.PortPair{{Port: 80, Pod: 20007}}
	r.keepServices(t.Context(), servicesOf([]*gateway.Status{{Service: &next}, second}), nil, owners)
	service := cluster.Objects("services")["shop/edge-weir"]
	if owner := service["metadata"].(fake.Object)["ownerReferences"].([]any)[0].(fake.Object)["uid"]; owner != "u1" {
		t.Errorf("the Service belongs to %v", owner)
	}
	if port := service["spec"].(fake.Object)["ports"].([]any)[0].(fake.Object)["targetPort"]; fmt.Sprint(port) != "20007" {
		t.Errorf("the Service leads to the port %v", port)
	}
	if got := r.troubles(); len(got) != 1 || !strings.Contains(got[0], "for the Gateway edge-a, because it exists already and does not belong to the Gateway") {
		t.Errorf("the log says %q", got)
	}
}

// Two controllers have entries in the status of one route. After each has written its entry, neither writes again.
func TestEntriesKeepTheirPlaces(t *testing.T) {
	entry := func(controller, parent string) gatewayv1.RouteParentStatus {
		return gatewayv1.RouteParentStatus{ControllerName: gatewayv1.GatewayController(controller), ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(parent)},
			Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}
	}
	var now []gatewayv1.RouteParentStatus
	write := func(controller string, parents ...string) bool {
		d := &desired{}
		for i, parent := range parents {
			d.parents = append(d.parents, owned[gateway.ParentStatus]{nil, &gateway.ParentStatus{Index: i, RouteParentStatus: entry(controller, parent)}})
		}
		fields, differs := (&gatewayStatuses{controller: controller}).parentFields(d, "", now)
		now = fields["parents"].([]gatewayv1.RouteParentStatus)
		return differs
	}
	show := func() (text string) {
		for _, p := range now {
			text += string(p.ControllerName) + "/" + string(p.ParentRef.Name) + " "
		}
		return text
	}
	for i, c := range []struct {
		controller string
		parents    []string
		differs    bool
		want       string
	}{
		{"inner", []string{"a", "b"}, true, "inner/a inner/b "}, {"outer", []string{"c", "d"}, true, "inner/a inner/b outer/c outer/d "},
		{"inner", []string{"a", "b"}, false, "inner/a inner/b outer/c outer/d "}, {"outer", []string{"c", "d"}, false, "inner/a inner/b outer/c outer/d "},
		{"inner", []string{"a", "x", "b"}, true, "inner/a inner/x outer/c outer/d inner/b "}, {"outer", []string{"d"}, true, "inner/a inner/x outer/d inner/b "},
		{"inner", nil, true, "outer/d "}, {"outer", []string{"d"}, false, "outer/d "},
	} {
		if differs := write(c.controller, c.parents...); differs != c.differs || show() != c.want {
			t.Errorf("step %d: the status has %s, and differs: %t", i, show(), differs)
		}
	}
}

// When a Gateway goes, its ListenerSets say so, once. What another controller writes then stays.
func TestListenerSetsWithoutTheirGateway(t *testing.T) {
	cluster := fake.New(t)
	read := func() *gatewayv1.ListenerSet {
		return objectOf(t, gateway.KindListenerSet, cluster.Objects("listenersets")["shop/set"]).(*gatewayv1.ListenerSet)
	}
	cluster.Change("shop", "listenersets", "set", &gatewayv1.ListenerSet{ObjectMeta: metav1.ObjectMeta{Generation: 1}})
	status := &gateway.Status{Sets: []gateway.SetStatus{{Key: keyOf(cluster, gateway.KindListenerSet, "shop", "set")}}}
	status.Sets[0].Conditions = []metav1.Condition{conditionOf("Accepted", "True", 1), conditionOf("Programmed", "True", 1)}
	status.Sets[0].Listeners = []gatewayv1.ListenerEntryStatus{{Name: "web", Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}}
	other := *status
	other.Sets = slices.Clone(status.Sets)
	class := &gateway.Status{}
	r := gatewayReplica(t, cluster, "a")
	says := func(what string) {
		t.Helper()
		until(t, what, func() bool {
			now := read().Status
			return len(now.Conditions) == 2 && string(now.Conditions[1].Status)+" "+now.Conditions[1].Reason == what && (len(now.Listeners) > 0) == strings.HasPrefix(what, "True")
		})
	}
	for _, s := range []*gateway.Status{status, &other} {
		r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{class, s}})
		says("True Because")
	}
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{class}})
	says("False ParentNotAccepted")

	g := &gatewayStatuses{todo: map[objectKey]bool{}, wanted: map[objectKey]*desired{}, wrote: map[objectKey]string{}, resting: map[string]time.Time{}}
	g.add(status)
	g.remove(status)
	r.Control.mu.Lock()
	r.wanted = nil
	r.Control.mu.Unlock()
	theirs := read()
	theirs.Status = gatewayv1.ListenerSetStatus{Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}
	for i, generation := range []int64{2, 1} { // another spec is not weir's, and the same one is told once
		theirs.Generation = generation
		cluster.Change("shop", "listenersets", "set", theirs)
		if err := r.workOff(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		if reason := read().Status.Conditions[0].Reason; reason != "Because" {
			t.Errorf("step %d: another controller's condition has the reason %s", i, reason)
		}
		g.todo[objectKey{gateway.KindListenerSet, config.ObjectName{Namespace: "shop", Name: "set"}}] = true
	}
}

// A new leader does not know the published addresses yet. A ListenerSet is programmed if its Gateway has an address.
func TestListenerSetsAwaitAddresses(t *testing.T) {
	cluster := fake.New(t)
	cluster.Change("infra", "gateways", "has", &gatewayv1.Gateway{Status: gatewayv1.GatewayStatus{Addresses: []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.1"}}}})
	cluster.Change("infra", "gateways", "lacks", &gatewayv1.Gateway{})
	set := &gateway.SetStatus{Key: gateway.Key{UID: "u"}, Published: true, ListenerSetStatus: gatewayv1.ListenerSetStatus{Conditions: []metav1.Condition{conditionOf("Programmed", "True", 1)}}}
	for _, c := range []struct {
		parent    string
		published publishedAddresses
		want      metav1.ConditionStatus
	}{
		{"has", publishedAddresses{}, "True"}, {"lacks", publishedAddresses{}, "False"}, {"gone", publishedAddresses{}, "False"},
		{"has", publishedAddresses{known: true}, "False"}, {"lacks", publishedAddresses{known: true, all: []string{"192.0.2.1"}}, "True"},
	} {
		g := &gatewayStatuses{objects: knownObjects{t, cluster}, published: c.published, wanted: map[objectKey]*desired{{}: {set: set}}}
		o := &gatewayv1.ListenerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", UID: "u"}, Spec: gatewayv1.ListenerSetSpec{
			ParentRef: gatewayv1.ParentGatewayReference{Namespace: new(gatewayv1.Namespace("infra")), Name: gatewayv1.ObjectName(c.parent)}}}
		if fields, differs := g.statusOf(objectKey{}, o); !differs || fields["conditions"].([]metav1.Condition)[0].Status != c.want {
			t.Errorf("of a Gateway that %s an address, with %v, the ListenerSet has %v", c.parent, c.published, fields)
		}
	}
}

// The Services of one namespace do not delay those of another: each has its turn, and a namespace in which the API server
// fails rests.
func TestServicesOfNamespacesHaveTheirTurns(t *testing.T) {
	cluster := fake.New(t)
	var asked []string
	bad := map[string]int{}
	cluster.Refuse(func(r fake.Request) int {
		if r.Verb == "get" && r.Resource == "services" {
			asked = append(asked, r.Namespace)
		}
		return bad[r.Namespace]
	})
	var all []*gateway.Status
	for i, namespace := range []string{"a", "a", "a", "b", "c", "d"} {
		s := *balancedService(config.ServiceLoadBalancer, "", 20000).Service
		s.Key = gateway.Key{Kind: gateway.KindGateway, ObjectName: config.ObjectName{Namespace: namespace, Name: fmt.Sprint("g", i)}, UID: types.UID(fmt.Sprint("u", i))}
		s.Name = fmt.Sprint("g", i, "-weir")
		all = append(all, &gateway.Status{Service: &s})
	}
	r := gatewayReplica(t, cluster, "a")
	keep := func(work *serviceWork, want string, good bool) {
		t.Helper()
		asked = nil
		if got := r.keepServices(t.Context(), servicesOf(all), nil, work); got != good || strings.Join(asked, " ") != want {
			t.Errorf("weir asks for the Services of %q, and all is good: %t", asked, got)
		}
	}
	work := newServiceWork()
	work.last = "a"
	keep(work, "b c d a a a", true)
	keep(work, "", true)
	work = newServiceWork()
	wake(r.services) // other Services are wanted
	keep(work, "a", true)
	<-r.services
	keep(work, "b c d a a", true)

	bad["a"] = http.StatusUnprocessableEntity // a refusal concerns one Service
	work = newServiceWork()
	keep(work, "a b c d a a", false)
	keep(work, "", false)
	next := *all[1].Service
	all[1] = &gateway.Status{Service: &next} // which has changed
	keep(work, "a", false)
	bad["a"] = 0
	for key, f := range work.failed {
		work.failed[key] = failedService{f.of, time.Now()}
	}
	keep(work, "a a a", true)

	bad["a"] = http.StatusInternalServerError
	work = newServiceWork()
	keep(work, "a b c d", false)
	keep(work, "", false)
	bad["b"], bad["c"] = http.StatusServiceUnavailable, http.StatusServiceUnavailable
	keep(newServiceWork(), "a b c", false) // the API server is away
}

// Somebody creates another Service of the name while weir deletes its own. The other one stays.
func TestDeletionMeetsAnotherService(t *testing.T) {
	cluster := fake.New(t)
	r := gatewayReplica(t, cluster, "a")
	work := newServiceWork()
	if !r.keepServices(t.Context(), servicesOf([]*gateway.Status{balancedService(config.ServiceLoadBalancer, "", 20000)}), nil, work) {
		t.Fatal("there is no Service")
	}
	cluster.Before(func(r fake.Request) bool {
		if r.Verb == "delete" && r.Resource == "services" {
			cluster.Change("shop", "services", "edge-weir", nil)
			cluster.Change("shop", "services", "edge-weir", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "theirs"}}})
		}
		return true
	})
	r.keepServices(t.Context(), nil, nil, work)
	if got := kept(cluster); !strings.Contains(got, "edge-weir team=theirs") {
		t.Errorf("the cluster has %s", got)
	}
}

// Labels of spec.infrastructure cannot make the EndpointSlices of a Gateway those of another Service or controller.
func TestLabelsOfSlices(t *testing.T) {
	s := edgeService("edge-weir", "192.0.2.1").Service
	s.Labels = map[string]string{discoveryv1.LabelServiceName: "victim", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	o := sliceFrom(config.ObjectName{Namespace: "shop", Name: "edge-weir"}, &keptService{of: s}, discoveryv1.AddressTypeIPv4)
	if o.Labels[discoveryv1.LabelServiceName] != "edge-weir" || o.Labels[discoveryv1.LabelManagedBy] != gateway.SliceManager {
		t.Errorf("the EndpointSlice has the labels %v", o.Labels)
	}
	o.Labels[discoveryv1.LabelServiceName] = "victim"
	if wanted := sliceFrom(config.ObjectName{Namespace: "shop", Name: "edge-weir"}, &keptService{of: s}, discoveryv1.AddressTypeIPv4); !correctSlice(o, wanted) || o.Labels[discoveryv1.LabelServiceName] != "edge-weir" {
		t.Errorf("weir leaves the labels %v", o.Labels)
	}
}

// weir restores a Service that somebody has changed. It removes an added selector. Labels and annotations that others have added stay.
func TestCorrectedServices(t *testing.T) {
	s := edgeService("edge-weir", "192.0.2.1").Service
	o := serviceFrom(config.ObjectName{Namespace: "shop", Name: "edge-weir"}, s)
	if correctService(o, s) {
		t.Error("a new Service has to be corrected")
	}
	o.Labels, o.Annotations = map[string]string{"theirs": "x", "team": "b"}, map[string]string{"theirs": "y"}
	o.Spec.Selector = map[string]string{"app": "victim"}
	if !correctService(o, s) || len(o.Spec.Selector) > 0 {
		t.Errorf("the Service has the selector %v", o.Spec.Selector)
	}
	if o.Labels["theirs"] != "x" || o.Labels["team"] != "a" || o.Annotations["theirs"] != "y" || o.Annotations["note"] != "b" {
		t.Errorf("the Service has the labels %v and the annotations %v", o.Labels, o.Annotations)
	}
	if correctService(o, s) {
		t.Error("a corrected Service has to be corrected again")
	}
}
