package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/api/fake"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/config/kube/informer"
)

// knownObjects are the objects of a fake cluster, as informers would have them.
type knownObjects struct {
	t       *testing.T
	cluster *fake.API
}

func (k knownObjects) GatewayObject(kind string, name config.ObjectName) (metav1.Object, string) {
	for key, o := range k.cluster.Objects(resources[kind]) {
		if key == name.Namespace+"/"+name.Name {
			return objectOf(k.t, kind, o), "v1"
		}
	}
	return nil, ""
}

func (k knownObjects) EachGatewayObject(f func(string, metav1.Object)) {
	for kind, resource := range resources {
		for _, o := range k.cluster.Objects(resource) {
			f(kind, objectOf(k.t, kind, o))
		}
	}
}

func objectOf(t *testing.T, kind string, o fake.Object) metav1.Object {
	all := map[string]metav1.Object{gateway.KindClass: &gatewayv1.GatewayClass{}, gateway.KindGateway: &gatewayv1.Gateway{}, gateway.KindListenerSet: &gatewayv1.ListenerSet{},
		gateway.KindHTTPRoute: &gatewayv1.HTTPRoute{}, gateway.KindGRPCRoute: &gatewayv1.GRPCRoute{}, gateway.KindTLSRoute: &gatewayv1.TLSRoute{},
		gateway.KindTCPRoute: &gatewayv1.TCPRoute{}, gateway.KindPolicy: &gatewayv1.BackendTLSPolicy{}}
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, all[kind])
	}
	if err != nil {
		t.Error(err)
	}
	return all[kind]
}

func gatewayReplica(t *testing.T, cluster *fake.API, holder string) *replica {
	t.Helper()
	client, err := api.Connect(cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{t: t}
	r.Control = New(Options{Client: client, Retry: informer.NewRetry(), Lease: lease, Holder: holder, Ingresses: func() []*networkingv1.Ingress { return nil },
		Gateways: knownObjects{t, cluster}, Metrics: NewMetrics(prometheus.NewRegistry()),
		Trouble: func(what string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.trouble = append(r.trouble, fmt.Sprintf("%s: %v", what, err))
		}})
	t.Cleanup(r.leave)
	return r
}

func conditionOf(kind string, status metav1.ConditionStatus, generation int64) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Because", Message: "It is so.", ObservedGeneration: generation}
}

// parents returns the parents in the status of a route: the controller, the section, and the
// generation of each condition.
func parents(t *testing.T, cluster *fake.API, name string) string {
	var all []string
	for _, p := range objectOf(t, gateway.KindHTTPRoute, cluster.Objects("httproutes")["shop/"+name]).(*gatewayv1.HTTPRoute).Status.Parents {
		section := ""
		if p.ParentRef.SectionName != nil {
			section = "#" + string(*p.ParentRef.SectionName)
		}
		var conditions []string
		for _, c := range p.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s@%d", c.Type, c.Status, c.ObservedGeneration))
		}
		all = append(all, fmt.Sprintf("%s %s%s %s", p.ControllerName, p.ParentRef.Name, section, strings.Join(conditions, " ")))
	}
	return strings.Join(all, "; ")
}

// Each Gateway has its entry in the status of a route. Entries and conditions of others stay.
func TestGatewayStatuses(t *testing.T) {
	cluster := fake.New(t)
	theirs := gatewayv1.RouteParentStatus{ParentRef: gatewayv1.ParentReference{Name: "theirs"}, ControllerName: "else.example/c", Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{theirs}}}}
	cluster.Change("shop", "httproutes", "app", route)
	old := theirs
	old.ControllerName, old.ParentRef.Name = "weir.example/c", "gone"
	cluster.Change("shop", "httproutes", "left", &gatewayv1.HTTPRoute{Status: gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{theirs, old}}}})
	cluster.Change("", "gatewayclasses", "weir", &gatewayv1.GatewayClass{Status: gatewayv1.GatewayClassStatus{Conditions: []metav1.Condition{conditionOf("Theirs", "True", 1)}}})
	uid := func(resource, key string) types.UID {
		return types.UID(cluster.Objects(resource)[key]["metadata"].(map[string]any)["uid"].(string))
	}
	appKey := gateway.Key{Kind: gateway.KindHTTPRoute, ObjectName: config.ObjectName{Namespace: "shop", Name: "app"}, UID: uid("httproutes", "shop/app")}
	parent := func(name string, index int, generation int64) *gateway.Status {
		return &gateway.Status{Parents: []gateway.ParentStatus{{Key: appKey, Index: index, RouteParentStatus: gatewayv1.RouteParentStatus{
			ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)}, ControllerName: "weir.example/c", Conditions: []metav1.Condition{conditionOf("Accepted", "True", generation)}}}}}
	}
	class := &gateway.Status{Classes: []gateway.ClassStatus{{Key: gateway.Key{Kind: gateway.KindClass, ObjectName: config.ObjectName{Name: "weir"}, UID: uid("gatewayclasses", "/weir")},
		GatewayClassStatus: gatewayv1.GatewayClassStatus{Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}, SupportedFeatures: []gatewayv1.SupportedFeature{{Name: "Gateway"}}}}}}

	r := gatewayReplica(t, cluster, "a")
	a, b := parent("a", 1, 2), parent("b", 0, 2)
	want := func(text string) {
		t.Helper()
		until(t, text, func() bool { return parents(t, cluster, "app") == text })
	}
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{class, a, b}})
	want("else.example/c theirs Accepted=True@1; weir.example/c b Accepted=True@2; weir.example/c a Accepted=True@2")
	until(t, "the entry of a Gateway that is gone is removed", func() bool { return parents(t, cluster, "left") == "else.example/c theirs Accepted=True@1" })
	until(t, "the class has its status", func() bool {
		c := objectOf(t, gateway.KindClass, cluster.Objects("gatewayclasses")["/weir"]).(*gatewayv1.GatewayClass)
		return len(c.Status.Conditions) == 2 && c.Status.Conditions[0].Type == "Theirs" && len(c.Status.SupportedFeatures) == 1
	})
	writes := cluster.Asked("patch", "httproutes/status")
	at := objectOf(t, gateway.KindHTTPRoute, cluster.Objects("httproutes")["shop/app"]).(*gatewayv1.HTTPRoute).Status.Parents[1].Conditions[0].LastTransitionTime

	a2 := parent("a", 1, 3)
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{class, a2}})
	want("else.example/c theirs Accepted=True@1; weir.example/c a Accepted=True@3")
	if now := objectOf(t, gateway.KindHTTPRoute, cluster.Objects("httproutes")["shop/app"]).(*gatewayv1.HTTPRoute).Status.Parents[1].Conditions[0].LastTransitionTime; now.Before(&at) {
		t.Errorf("the time of the transition went back from %v to %v", at, now)
	}
	if got := cluster.Asked("patch", "httproutes/status"); got != writes+1 {
		t.Errorf("one change made %d writes", got-writes)
	}
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{class, a2}})
	r.Want(Wanted{Controller: "weir.example/c"})
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{class}})
	want("else.example/c theirs Accepted=True@1")
}

// An entry that another controller adds while weir writes stays.
func TestNewEntriesOfOthersStay(t *testing.T) {
	cluster := fake.New(t)
	cluster.Change("shop", "httproutes", "app", &gatewayv1.HTTPRoute{})
	theirs := gatewayv1.RouteParentStatus{ParentRef: gatewayv1.ParentReference{Name: "theirs"}, ControllerName: "else.example/c", Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}
	var once sync.Once
	cluster.Before(func(r fake.Request) bool {
		if r.Verb == "patch" && r.Resource == "httproutes/status" {
			once.Do(func() {
				cluster.Change("shop", "httproutes", "app", &gatewayv1.HTTPRoute{Status: gatewayv1.HTTPRouteStatus{RouteStatus: gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{theirs}}}})
			})
		}
		return true
	})
	key := gateway.Key{Kind: gateway.KindHTTPRoute, ObjectName: config.ObjectName{Namespace: "shop", Name: "app"}, UID: types.UID(cluster.Objects("httproutes")["shop/app"]["metadata"].(map[string]any)["uid"].(string))}
	status := &gateway.Status{Parents: []gateway.ParentStatus{{Key: key, RouteParentStatus: gatewayv1.RouteParentStatus{ParentRef: gatewayv1.ParentReference{Name: "a"}, ControllerName: "weir.example/c",
		Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}}}}
	gatewayReplica(t, cluster, "a").Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{status}})
	until(t, "the route has both entries", func() bool {
		return parents(t, cluster, "app") == "else.example/c theirs Accepted=True@1; weir.example/c a Accepted=True@1"
	})
}

// An object that was created again with the same name does not get the status of the former object.
func TestStatusIsOfOneObject(t *testing.T) {
	formerly := gateway.Key{UID: "former"}
	ancestor := &gateway.AncestorStatus{Key: formerly, PolicyAncestorStatus: gatewayv1.PolicyAncestorStatus{AncestorRef: gatewayv1.ParentReference{Namespace: new(gatewayv1.Namespace("shop"))}}}
	d := &desired{class: &gateway.ClassStatus{Key: formerly}, gateway: &gateway.GatewayStatus{Key: formerly}, set: &gateway.SetStatus{Key: formerly},
		parents: []owned[gateway.ParentStatus]{{nil, &gateway.ParentStatus{Key: formerly}}}, ancestors: []owned[gateway.AncestorStatus]{{nil, ancestor}}}
	d.class.Conditions = []metav1.Condition{conditionOf("Accepted", "True", 1)}
	d.gateway.Conditions, d.set.Conditions = d.class.Conditions, d.class.Conditions
	for _, now := range []types.UID{"now", "former"} {
		meta := metav1.ObjectMeta{UID: now}
		for _, o := range []metav1.Object{&gatewayv1.GatewayClass{ObjectMeta: meta}, &gatewayv1.Gateway{ObjectMeta: meta}, &gatewayv1.ListenerSet{ObjectMeta: meta}, &gatewayv1.HTTPRoute{ObjectMeta: meta},
			&gatewayv1.GRPCRoute{ObjectMeta: meta}, &gatewayv1.TLSRoute{ObjectMeta: meta}, &gatewayv1.TCPRoute{ObjectMeta: meta}, &gatewayv1.BackendTLSPolicy{ObjectMeta: meta}} {
			g := &gatewayStatuses{controller: "weir.example/c", wanted: map[objectKey]*desired{{}: d}}
			if fields, differs := g.statusOf(objectKey{}, o); differs != (now == "former") {
				t.Errorf("the UID is %q, and weir writes into the %T: %t, %v", now, o, differs, fields)
			}
		}
	}
}

// A write that meets a newer object is repeated, and a missing right is reported once.
func TestGatewayStatusMeetsOthers(t *testing.T) {
	cluster := fake.New(t)
	cluster.Change("shop", "gateways", "edge", &gatewayv1.Gateway{})
	key := gateway.Key{Kind: gateway.KindGateway, ObjectName: config.ObjectName{Namespace: "shop", Name: "edge"}, UID: types.UID(cluster.Objects("gateways")["shop/edge"]["metadata"].(map[string]any)["uid"].(string))}
	kind := gatewayv1.IPAddressType
	status := &gateway.Status{Gateways: []gateway.GatewayStatus{{Key: key, GatewayStatus: gatewayv1.GatewayStatus{Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)},
		Addresses: []gatewayv1.GatewayStatusAddress{{Type: &kind, Value: "192.0.2.1"}},
		Listeners: []gatewayv1.ListenerStatus{{Name: "web", Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}}}}}}
	refusals := []int{409, 403}
	cluster.Refuse(func(r fake.Request) int {
		if r.Resource != "gateways/status" || len(refusals) == 0 {
			return 0
		}
		code := refusals[0]
		refusals = refusals[1:]
		return code
	})
	r := gatewayReplica(t, cluster, "a")
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{status}})
	until(t, "the missing right is reported", func() bool { return len(r.troubles()) == 1 })
	if got := r.troubles()[0]; !strings.Contains(got, "write statuses of Gateway") || !strings.Contains(got, `the verb "patch" on "gateways/status"`) {
		t.Error(got)
	}
	r.Control.mu.Lock()
	clear(r.denied)
	r.Control.mu.Unlock()
	other := *status
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{&other}})
	read := func() *gatewayv1.Gateway {
		return objectOf(t, gateway.KindGateway, cluster.Objects("gateways")["shop/edge"]).(*gatewayv1.Gateway)
	}
	until(t, "the status is written", func() bool { return len(read().Status.Addresses) == 1 })

	without := gateway.Status{Gateways: []gateway.GatewayStatus{{Key: key, GatewayStatus: gatewayv1.GatewayStatus{Conditions: []metav1.Condition{conditionOf("Accepted", "False", 1)}}}}}
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{&without}})
	until(t, "addresses and listeners that are gone are removed", func() bool {
		g := read()
		return len(g.Status.Addresses)+len(g.Status.Listeners) == 0 && g.Status.Conditions[0].Status == "False"
	})
}

// Gateways that share listeners have the addresses of Ingresses. Without an address they are not programmed, and
// while the addresses are not known, they keep those that they have.
func TestGatewaysHavePublishedAddresses(t *testing.T) {
	cluster := fake.New(t)
	kind := gatewayv1.IPAddressType
	cluster.Change("shop", "gateways", "edge", &gatewayv1.Gateway{Status: gatewayv1.GatewayStatus{Addresses: []gatewayv1.GatewayStatusAddress{{Type: &kind, Value: "192.0.2.9"}}}})
	cluster.Change("shop", "gateways", "asks", &gatewayv1.Gateway{})
	cluster.Change("shop", "listenersets", "more", &gatewayv1.ListenerSet{Spec: gatewayv1.ListenerSetSpec{ParentRef: gatewayv1.ParentGatewayReference{Name: "edge"}}})
	key := func(kind, name string) gateway.Key {
		return gateway.Key{Kind: kind, ObjectName: config.ObjectName{Namespace: "shop", Name: name}, UID: types.UID(cluster.Objects(resources[kind])["shop/"+name]["metadata"].(map[string]any)["uid"].(string))}
	}
	programmed := []metav1.Condition{conditionOf("Programmed", "True", 1)}
	status := &gateway.Status{
		Gateways: []gateway.GatewayStatus{
			{Key: key(gateway.KindGateway, "edge"), Published: true, GatewayStatus: gatewayv1.GatewayStatus{Conditions: programmed}},
			{Key: key(gateway.KindGateway, "asks"), Published: true, Requested: []string{"192.0.2.1"}, GatewayStatus: gatewayv1.GatewayStatus{Conditions: programmed}}},
		Sets: []gateway.SetStatus{{Key: key(gateway.KindListenerSet, "more"), Published: true, ListenerSetStatus: gatewayv1.ListenerSetStatus{Conditions: programmed}}}}
	want := func(edge, asks, set string) {
		t.Helper()
		show := func(addresses []gatewayv1.GatewayStatusAddress, conditions []metav1.Condition) (text string) {
			for _, a := range addresses {
				text += fmt.Sprintf("%s %s ", *a.Type, a.Value)
			}
			if len(conditions) == 1 {
				text += string(conditions[0].Status) + " " + conditions[0].Reason
			}
			return text
		}
		of := func(name string) string {
			g := objectOf(t, gateway.KindGateway, cluster.Objects("gateways")["shop/"+name]).(*gatewayv1.Gateway)
			return show(g.Status.Addresses, g.Status.Conditions)
		}
		got := ""
		until(t, fmt.Sprintf("the statuses are %q, %q and %q", edge, asks, set), func() bool {
			s := objectOf(t, gateway.KindListenerSet, cluster.Objects("listenersets")["shop/more"]).(*gatewayv1.ListenerSet)
			now := fmt.Sprintf("%q, %q and %q", of("edge"), of("asks"), show(nil, s.Status.Conditions))
			if now != got {
				got = now
				t.Log(got)
			}
			return now == fmt.Sprintf("%q, %q and %q", edge, asks, set)
		})
	}
	r := gatewayReplica(t, cluster, "a")
	all := []*gateway.Status{status}
	r.Want(Wanted{Controller: "weir.example/c", Gateways: all, Publish: config.Publish{Balancer: config.ObjectName{Namespace: "weir", Name: "weir"}}})
	want("IPAddress 192.0.2.9 True Because", "False AddressNotAssigned", "True Because")
	r.Want(Wanted{Controller: "weir.example/c", Gateways: all, Publish: config.Publish{Addresses: []string{"lb.example", "192.0.2.1"}}})
	want("IPAddress 192.0.2.1 Hostname lb.example True Because", "IPAddress 192.0.2.1 Hostname lb.example True Because", "True Because")
	r.Want(Wanted{Controller: "weir.example/c", Gateways: all, Publish: config.Publish{Addresses: []string{"192.0.2.2"}}})
	want("IPAddress 192.0.2.2 True Because", "IPAddress 192.0.2.2 False AddressNotUsable", "True Because")
	cluster.Change("weir", "services", "weir", &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}})
	r.Want(Wanted{Controller: "weir.example/c", Gateways: all, Publish: config.Publish{Balancer: config.ObjectName{Namespace: "weir", Name: "weir"}}})
	want("False AddressNotAssigned", "False AddressNotAssigned", "False Pending")
}

// A condition of others stays, one of a newer generation too, and one whose status does not change
// keeps its time. Unknown replaces no other status of the same generation.
func TestMergedConditions(t *testing.T) {
	long := metav1.NewTime(time.Now().Add(-time.Hour))
	at := func(c metav1.Condition) metav1.Condition { c.LastTransitionTime = long; return c }
	now := []metav1.Condition{at(conditionOf("Theirs", "True", 1)), at(conditionOf("A", "True", 1)), at(conditionOf("B", "True", 1)), at(conditionOf("C", "True", 9)), at(conditionOf("Own", "True", 1)), at(conditionOf("E", "True", 2)), at(conditionOf("F", "True", 1)), at(conditionOf("G", "Unknown", 2))}
	got := merged(now, []metav1.Condition{conditionOf("A", "True", 2), conditionOf("B", "False", 2), conditionOf("C", "False", 2), conditionOf("D", "True", 2),
		conditionOf("E", "Unknown", 2), conditionOf("F", "Unknown", 2), conditionOf("G", "Unknown", 2), conditionOf("H", "Unknown", 2)}, "Own")
	var told []string
	for _, c := range got {
		told = append(told, fmt.Sprintf("%s=%s@%d old:%t", c.Type, c.Status, c.ObservedGeneration, c.LastTransitionTime.Equal(&long)))
	}
	if want := []string{"Theirs=True@1 old:true", "A=True@2 old:true", "B=False@2 old:false", "C=True@9 old:true",
		"E=True@2 old:true", "F=Unknown@2 old:false", "G=Unknown@2 old:true", "D=True@2 old:false", "H=Unknown@2 old:false"}; !slices.Equal(told, want) {
		t.Errorf("got %v, want %v", told, want)
	}
}

// A status with the wanted conditions is not written again: the conditions of listeners, parents and
// ancestors keep their times too.
func TestEqualStatusesAreNotWritten(t *testing.T) {
	wanted := []metav1.Condition{conditionOf("Accepted", "True", 1)}
	written := slices.Clone(wanted)
	written[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
	f := func(what string, fields map[string]any, differs bool) {
		t.Helper()
		if differs {
			t.Errorf("weir writes the status of %s again: %v", what, fields)
		}
	}
	fields, differs := gatewayFields(&gatewayv1.GatewayStatus{Listeners: []gatewayv1.ListenerStatus{{Name: "a"}, {Name: "b", Conditions: written}}, Conditions: written},
		&gatewayv1.GatewayStatus{Listeners: []gatewayv1.ListenerStatus{{Name: "a"}, {Name: "b", Conditions: wanted}}, Conditions: wanted})
	f("a Gateway", fields, differs)
	fields, differs = setFields(&gatewayv1.ListenerSetStatus{Listeners: []gatewayv1.ListenerEntryStatus{{Name: "a"}, {Name: "b", Conditions: written}}, Conditions: written},
		&gatewayv1.ListenerSetStatus{Listeners: []gatewayv1.ListenerEntryStatus{{Name: "a"}, {Name: "b", Conditions: wanted}}, Conditions: wanted})
	f("a ListenerSet", fields, differs)

	g := &gatewayStatuses{controller: "weir.example/c"}
	ref := gatewayv1.ParentReference{Name: "a", Namespace: new(gatewayv1.Namespace("shop"))}
	parent := func(c []metav1.Condition) gatewayv1.RouteParentStatus {
		return gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: "weir.example/c", Conditions: c}
	}
	fields, differs = g.parentFields(&desired{parents: []owned[gateway.ParentStatus]{{of: &gateway.ParentStatus{Key: gateway.Key{UID: "u"}, RouteParentStatus: parent(wanted)}}}}, "u", []gatewayv1.RouteParentStatus{parent(written)})
	f("a route", fields, differs)

	ancestor := func(c []metav1.Condition) gatewayv1.PolicyAncestorStatus {
		return gatewayv1.PolicyAncestorStatus{AncestorRef: ref, ControllerName: "weir.example/c", Conditions: c}
	}
	policy := &gatewayv1.BackendTLSPolicy{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: gatewayv1.PolicyStatus{Ancestors: []gatewayv1.PolicyAncestorStatus{ancestor(written)}}}
	fields, differs = g.ancestorFields(&desired{ancestors: []owned[gateway.AncestorStatus]{{of: &gateway.AncestorStatus{Key: gateway.Key{UID: "u"}, PolicyAncestorStatus: ancestor(wanted)}}}}, policy)
	f("a policy", fields, differs)

	// An entry of another controller stays beside a new one of weir.
	policy.Status.Ancestors[0].ControllerName = "else.example/c"
	fields, differs = g.ancestorFields(&desired{ancestors: []owned[gateway.AncestorStatus]{{of: &gateway.AncestorStatus{Key: gateway.Key{UID: "u"}, PolicyAncestorStatus: ancestor(wanted)}}}}, policy)
	if all := fields["ancestors"].([]gatewayv1.PolicyAncestorStatus); !differs || len(all) != 2 || all[0].ControllerName != "else.example/c" || all[1].ControllerName != "weir.example/c" {
		t.Errorf("the ancestors are %+v", all)
	}
}

// The entries of other controllers stay, and leave less room for the entries of weir. weir writes no entry for an
// older object of the same name. An entry that stays keeps the times of its conditions.
func TestParentsHaveRoom(t *testing.T) {
	entry := func(controller, name string) gatewayv1.RouteParentStatus {
		return gatewayv1.RouteParentStatus{ControllerName: gatewayv1.GatewayController(controller), ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)}}
	}
	var now []gatewayv1.RouteParentStatus
	for i := range maxParents - 2 {
		now = append(now, entry("else.example/c", fmt.Sprint(i)))
	}
	old := entry("weir.example/c", "b")
	old.Conditions = []metav1.Condition{conditionOf("Accepted", "True", 1)}
	old.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
	now = append(slices.Clone(now), old)
	d := &desired{}
	for i, name := range []string{"c", "b", "a", "old"} {
		one := &gateway.ParentStatus{Key: gateway.Key{UID: "u"}, Index: 3 - i, RouteParentStatus: entry("weir.example/c", name)}
		one.Conditions = []metav1.Condition{conditionOf("Accepted", "True", 1)}
		if name == "old" {
			one.UID = "another"
		}
		d.parents = append(d.parents, owned[gateway.ParentStatus]{nil, one})
	}
	g := &gatewayStatuses{controller: "weir.example/c"}
	fields, differs := g.parentFields(d, "u", now)
	next := fields["parents"].([]gatewayv1.RouteParentStatus)
	if !differs || len(next) != maxParents || next[maxParents-2].ParentRef.Name != "a" || next[maxParents-1].ParentRef.Name != "b" {
		t.Fatalf("the parents are %+v", next)
	}
	if !next[maxParents-1].Conditions[0].LastTransitionTime.Equal(&old.Conditions[0].LastTransitionTime) {
		t.Error("a condition has lost its time")
	}
	if _, differs := g.parentFields(d, "u", next); differs {
		t.Error("the same parents are written again")
	}
	full := slices.Repeat([]gatewayv1.RouteParentStatus{entry("else.example/c", "x")}, maxParents+1)
	if _, differs := g.parentFields(d, "u", full); differs {
		t.Error("a full status is written again")
	}
	if fields, differs := g.parentFields(&desired{}, "u", []gatewayv1.RouteParentStatus{old}); !differs || fields["parents"].([]gatewayv1.RouteParentStatus) == nil {
		t.Error("the last entry is not removed, or the field is null")
	}
	if _, differs := g.parentFields(&desired{}, "u", nil); differs {
		t.Error("no entry is written")
	}
}

// Statuses of the Gateway API are written one after the other, at most one in gatewayPace. So a change of
// many objects does not flood the API server.
func TestGatewayStatusesArePaced(t *testing.T) {
	cluster := fake.New(t)
	const n = 50
	var mu sync.Mutex
	var times []time.Time
	cluster.Refuse(func(r fake.Request) int {
		if r.Resource == "httproutes/status" {
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
		}
		return 0
	})
	status := &gateway.Status{}
	for i := range n {
		name := fmt.Sprint("r", i)
		cluster.Change("shop", "httproutes", name, &gatewayv1.HTTPRoute{})
		status.Parents = append(status.Parents, gateway.ParentStatus{
			Key:               gateway.Key{Kind: gateway.KindHTTPRoute, ObjectName: config.ObjectName{Namespace: "shop", Name: name}, UID: types.UID(cluster.Objects("httproutes")["shop/"+name]["metadata"].(map[string]any)["uid"].(string))},
			RouteParentStatus: gatewayv1.RouteParentStatus{ParentRef: gatewayv1.ParentReference{Name: "a"}, ControllerName: "weir.example/c", Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1)}}})
	}
	r := gatewayReplica(t, cluster, "a")
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{status}})
	until(t, "all statuses are written", func() bool { mu.Lock(); defer mu.Unlock(); return len(times) >= n })
	mu.Lock()
	defer mu.Unlock()
	if took := times[n-1].Sub(times[0]); len(times) != n || took < (n-1)*gatewayPace {
		t.Errorf("%d statuses were written within %v", len(times), took)
	}
}
