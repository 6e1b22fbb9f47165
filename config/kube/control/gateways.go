package control

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// GatewayObjects are the objects of the Gateway API that this replica knows.
type GatewayObjects interface {
	// GatewayObject returns an object as it is known now, and the version of the API in which the
	// cluster serves it; nil: it does not exist.
	GatewayObject(kind string, name config.ObjectName) (o metav1.Object, version string)
	// EachGatewayObject calls f with each object that has a status.
	EachGatewayObject(f func(kind string, o metav1.Object))
}

const (
	// gatewayPace is the time between two statuses of the Gateway API.
	gatewayPace = 2 * time.Millisecond
	// conflictPause is the time after which weir compares an object again whose newest version it had
	// not seen.
	conflictPause = 100 * time.Millisecond
	// restNamespace is how long weir writes no statuses into a namespace after the API server has failed there. It is
	// longer than retryStatuses, so that the next attempt is for other namespaces.
	restNamespace = retryStatuses * 3 / 2
	// mostAway is the number of namespaces, one after the other, in which the API server fails before weir pauses
	// all writes: then it is away, and not only the webhook of a tenant.
	mostAway = 3
)

// objectKey names an object of a kind.
type objectKey struct {
	kind string
	config.ObjectName
}

// desired is the wanted status of one object. Several Gateways may each have a part of it.
type desired struct {
	class     *gateway.ClassStatus
	gateway   *gateway.GatewayStatus
	set       *gateway.SetStatus
	orphan    *gateway.SetStatus // the former set, whose Gateway is gone, until the status says so
	parents   []owned[gateway.ParentStatus]
	ancestors []owned[gateway.AncestorStatus]
}

// owned is a part of a Status.
type owned[T any] struct {
	by *gateway.Status
	of *T
}

// gatewayStatuses are the wanted statuses of the Gateway API, and the work that is left.
type gatewayStatuses struct {
	objects    GatewayObjects
	controller string
	known      map[*gateway.Status]bool
	wanted     map[objectKey]*desired
	todo       map[objectKey]bool
	wrote      map[objectKey]string // the version of the object that weir has changed
	resting    map[string]time.Time // the namespaces in which the API server has failed, and until when weir writes nothing there
	last       string               // the namespace of the last write
	// refused are the Gateways whose Services the API server refuses.
	refused map[gateway.Key]gateway.Problem
	// published are the addresses of Gateways that have those of Ingresses.
	published publishedAddresses
}

// writeGateways writes the statuses of the Gateway API until ctx ends.
func (c *Control) writeGateways(ctx context.Context) {
	if c.opts.Gateways == nil {
		return
	}
	g := gatewayStatuses{objects: c.opts.Gateways, known: map[*gateway.Status]bool{}, wanted: map[objectKey]*desired{}, todo: map[objectKey]bool{}, wrote: map[objectKey]string{}, resting: map[string]time.Time{}}
	var looked time.Time // at all objects
	for again := time.Duration(0); pause(ctx, again, c.gatewayWork); {
		again = lookAtStatuses
		w, known := c.want()
		if !known || w.Gateways == nil {
			continue
		}
		g.take(w)
		g.takeRefusals(c.refused())
		g.takePublished(c.publishedNow())
		if time.Since(looked) >= lookAtStatuses {
			looked = time.Now()
			c.opts.Gateways.EachGatewayObject(func(kind string, o metav1.Object) { g.todo[objectKey{kind, gateway.NameOf(o)}] = true })
		}
		if err := c.workOff(ctx, &g); err != nil {
			again = retryStatuses
		} else {
			again = g.again()
		}
	}
}

// take replaces the wanted statuses. It adds each object whose wanted status changes to todo.
func (g *gatewayStatuses) take(w Wanted) {
	g.controller = w.Controller
	now := make(map[*gateway.Status]bool, len(w.Gateways))
	for _, s := range w.Gateways {
		now[s] = true
	}
	for s := range g.known {
		if !now[s] {
			g.remove(s)
		}
	}
	for _, s := range w.Gateways {
		if !g.known[s] {
			g.add(s)
		}
	}
	g.known = now
}

// takeRefusals replaces the refused Services. It adds each Gateway whose status changes to todo.
func (g *gatewayStatuses) takeRefusals(now map[gateway.Key]gateway.Problem) {
	for _, all := range []map[gateway.Key]gateway.Problem{g.refused, now} {
		for k := range all {
			if g.refused[k] != now[k] {
				g.todo[objectKey{k.Kind, k.ObjectName}] = true
			}
		}
	}
	g.refused = now
}

// takePublished replaces the published addresses. It adds each object whose status has them to todo.
func (g *gatewayStatuses) takePublished(now publishedAddresses) {
	if now.known == g.published.known && slices.Equal(now.all, g.published.all) {
		return
	}
	g.published = now
	for key, d := range g.wanted {
		if d.gateway != nil && d.gateway.Published || d.set != nil && d.set.Published {
			g.todo[key] = true
		}
	}
}

// of returns the wanted status of an object, and adds the object to todo.
func (g *gatewayStatuses) of(k *gateway.Key) *desired {
	key := objectKey{k.Kind, k.ObjectName}
	g.todo[key] = true
	d := g.wanted[key]
	if d == nil {
		d = &desired{}
		g.wanted[key] = d
	}
	return d
}

func (g *gatewayStatuses) add(s *gateway.Status) {
	for i := range s.Classes {
		g.of(&s.Classes[i].Key).class = &s.Classes[i]
	}
	for i := range s.Gateways {
		g.of(&s.Gateways[i].Key).gateway = &s.Gateways[i]
	}
	for i := range s.Sets {
		d := g.of(&s.Sets[i].Key)
		d.set, d.orphan = &s.Sets[i], nil
	}
	for i := range s.Parents {
		d := g.of(&s.Parents[i].Key)
		d.parents = append(d.parents, owned[gateway.ParentStatus]{s, &s.Parents[i]})
	}
	for i := range s.Ancestors {
		d := g.of(&s.Ancestors[i].Key)
		d.ancestors = append(d.ancestors, owned[gateway.AncestorStatus]{s, &s.Ancestors[i]})
	}
}

func (g *gatewayStatuses) remove(s *gateway.Status) {
	for i := range s.Classes {
		if d := g.of(&s.Classes[i].Key); d.class == &s.Classes[i] {
			d.class = nil
		}
	}
	for i := range s.Gateways {
		if d := g.of(&s.Gateways[i].Key); d.gateway == &s.Gateways[i] {
			d.gateway = nil
		}
	}
	for i := range s.Sets {
		if d := g.of(&s.Sets[i].Key); d.set == &s.Sets[i] {
			d.set, d.orphan = nil, d.set
		}
	}
	for i := range s.Parents {
		d := g.of(&s.Parents[i].Key)
		d.parents = slices.DeleteFunc(d.parents, func(o owned[gateway.ParentStatus]) bool { return o.by == s })
	}
	for i := range s.Ancestors {
		d := g.of(&s.Ancestors[i].Key)
		d.ancestors = slices.DeleteFunc(d.ancestors, func(o owned[gateway.AncestorStatus]) bool { return o.by == s })
	}
}

// workOff writes the statuses that differ from the wanted ones. An object stays in todo if it must be
// compared again. workOff ends early when other statuses are wanted. It returns an error if the API server is away.
func (c *Control) workOff(ctx context.Context, g *gatewayStatuses) error {
	away := 0
	for _, k := range g.inTurn() {
		if g.rests(k.Namespace) {
			continue
		}
		o, version := c.opts.Gateways.GatewayObject(k.kind, k.ObjectName)
		if o == nil {
			delete(g.todo, k)
			delete(g.wanted, k)
			delete(g.wrote, k)
			continue
		}
		if g.wrote[k] == o.GetResourceVersion() {
			continue // the change of weir is not known yet
		}
		status, differs := g.statusOf(k, o)
		if !differs || !c.mayTry("statuses of "+k.kind, k.Namespace) {
			g.done(k)
			continue
		}
		changed, err := c.writeGatewayStatus(ctx, k, o, version, status)
		g.last = k.Namespace
		switch {
		case apierrors.IsConflict(err): // the newer object comes soon
		case api.IsAway(err):
			g.resting[k.Namespace] = time.Now().Add(restNamespace)
			if away++; away == mostAway {
				return err
			}
		case err == nil && changed:
			g.wrote[k] = o.GetResourceVersion()
			g.forgetOrphan(k)
		default: // The API server refused the status, or left the change out. The object has no new version, so weir waits for none.
			g.done(k)
		}
		if !api.IsAway(err) {
			away = 0
		}
		if !pause(ctx, gatewayPace, nil) || len(c.gatewayWork) > 0 {
			return nil
		}
	}
	return nil
}

// done says that there is nothing to write for an object.
func (g *gatewayStatuses) done(k objectKey) {
	delete(g.todo, k)
	g.forgetOrphan(k)
}

// forgetOrphan forgets the former status of a ListenerSet. weir tells of its end once: another controller may have
// the Gateway now, and writes as well.
func (g *gatewayStatuses) forgetOrphan(k objectKey) {
	if d := g.wanted[k]; d != nil {
		d.orphan = nil
	}
}

// rests reports whether weir writes nothing into a namespace for now.
func (g *gatewayStatuses) rests(namespace string) bool {
	return time.Now().Before(g.resting[namespace])
}

// again is the time after which weir compares objects again.
func (g *gatewayStatuses) again() time.Duration {
	for k := range g.todo {
		if !g.rests(k.Namespace) {
			return conflictPause
		}
	}
	if len(g.todo) > 0 {
		return retryStatuses
	}
	return lookAtStatuses
}

// inTurn returns the objects in todo, one of each namespace in turn: a namespace with many changes does not delay
// the others. It begins behind the namespace of the last write. Within a namespace, Gateways come before their
// routes: without its Gateway a route serves nothing.
func (g *gatewayStatuses) inTurn() []objectKey {
	maps.DeleteFunc(g.resting, func(namespace string, _ time.Time) bool { return !g.rests(namespace) })
	keys := make([]objectKey, 0, len(g.todo))
	for k := range g.todo {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b objectKey) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), cmp.Compare(rank(a.kind), rank(b.kind)), strings.Compare(a.Name, b.Name), strings.Compare(a.kind, b.kind))
	})
	inTurn(keys, func(k objectKey) string { return k.Namespace }, g.last)
	return keys
}

// inTurn changes the order of keys, of which those of one namespace follow each other: then it has the first of each
// namespace, beginning behind the namespace last, then the second of each, and so on.
func inTurn[K comparable](keys []K, namespace func(K) string, last string) {
	turns := make(map[K]int, len(keys))
	for i, k := range keys {
		if i > 0 && namespace(keys[i-1]) == namespace(k) {
			turns[k] = turns[keys[i-1]] + 1
		}
	}
	isNext := func(k K) int {
		if namespace(k) > last {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(keys, func(a, b K) int {
		return cmp.Or(cmp.Compare(turns[a], turns[b]), cmp.Compare(isNext(a), isNext(b)))
	})
}

// rank orders kinds.
func rank(kind string) byte {
	switch kind {
	case gateway.KindClass:
		return '0'
	case gateway.KindGateway:
		return '1'
	case gateway.KindListenerSet:
		return '2'
	}
	return '3'
}

// statusOf returns the fields of the status that an object must have. differs is false if it has
// them.
func (g *gatewayStatuses) statusOf(k objectKey, o metav1.Object) (status map[string]any, differs bool) {
	d := g.wanted[k]
	if d == nil {
		d = &desired{}
	}
	switch o := o.(type) {
	case *gatewayv1.GatewayClass:
		if d.class == nil || d.class.UID != o.UID {
			return nil, false
		}
		return classFields(&o.Status, &d.class.GatewayClassStatus)
	case *gatewayv1.Gateway:
		if d.gateway == nil || d.gateway.UID != o.UID {
			return nil, false
		}
		wanted := d.gateway
		if wanted.Published {
			wanted = wanted.WithPublished(g.published.or(o.Status.Addresses))
		}
		if p, ok := g.refused[wanted.Key]; ok {
			wanted = wanted.WithRefusal(&p)
		}
		return gatewayFields(&o.Status, &wanted.GatewayStatus)
	case *gatewayv1.ListenerSet:
		if former := d.orphan; former != nil && former.UID == o.UID && former.Generation() == o.Generation {
			return setFields(&o.Status, &former.Orphaned().ListenerSetStatus)
		}
		if d.set == nil || d.set.UID != o.UID {
			return nil, false
		}
		wanted := d.set
		if wanted.Published {
			wanted = wanted.WithPublished(g.published.or(g.addressesOfParent(o)))
		}
		return setFields(&o.Status, &wanted.ListenerSetStatus)
	case *gatewayv1.HTTPRoute:
		return g.parentFields(d, o.UID, o.Status.Parents)
	case *gatewayv1.GRPCRoute:
		return g.parentFields(d, o.UID, o.Status.Parents)
	case *gatewayv1.TLSRoute:
		return g.parentFields(d, o.UID, o.Status.Parents)
	case *gatewayv1.TCPRoute:
		return g.parentFields(d, o.UID, o.Status.Parents)
	case *gatewayv1.BackendTLSPolicy:
		return g.ancestorFields(d, o)
	}
	return nil, false
}

// addressesOfParent are the addresses in the status of the Gateway that a ListenerSet names.
func (g *gatewayStatuses) addressesOfParent(o *gatewayv1.ListenerSet) []gatewayv1.GatewayStatusAddress {
	name := config.ObjectName{Namespace: o.Namespace, Name: string(o.Spec.ParentRef.Name)}
	if n := o.Spec.ParentRef.Namespace; n != nil {
		name.Namespace = string(*n)
	}
	parent, _ := g.objects.GatewayObject(gateway.KindGateway, name)
	if parent, ok := parent.(*gatewayv1.Gateway); ok {
		return parent.Status.Addresses
	}
	return nil
}

// resources are the resources of the kinds.
var resources = map[string]string{
	gateway.KindClass: "gatewayclasses", gateway.KindGateway: "gateways", gateway.KindListenerSet: "listenersets",
	gateway.KindHTTPRoute: "httproutes", gateway.KindGRPCRoute: "grpcroutes", gateway.KindTLSRoute: "tlsroutes", gateway.KindTCPRoute: "tcproutes",
	gateway.KindPolicy: "backendtlspolicies",
}

// writeGatewayStatus replaces fields of the status of an object. The API server refuses the change if
// the object has another version by now. changed is false if the object is the same as before: the API server leaves
// out fields that its definition of the kind does not have.
func (c *Control) writeGatewayStatus(ctx context.Context, k objectKey, o metav1.Object, version string, status map[string]any) (changed bool, err error) {
	limited, cancel := whole(ctx)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()}, "status": status})
	if err != nil {
		return false, err
	}
	resource := resources[k.kind]
	answer, err := c.opts.Client.Gateway(version).Patch(types.MergePatchType).NamespaceIfScoped(k.Namespace, k.Namespace != "").Resource(resource).Name(k.Name).
		SubResource("status").Param("fieldManager", c.manager).Body(patch).Do(limited).Raw()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, err
	}
	c.opts.Metrics.statuses.WithLabelValues(result(err)).Inc()
	if err != nil {
		err = api.Failure("patch", resource+"/status "+k.Name, k.Namespace, err)
	}
	what := "statuses of " + k.kind
	c.outcome("write "+what, k.Namespace, err)
	c.deny(what, k.Namespace, err)
	return err == nil && versionOf(answer) != o.GetResourceVersion(), err
}

// versionOf is the version of an object in an answer of the API server.
func versionOf(answer []byte) string {
	var o metav1.PartialObjectMetadata
	if json.Unmarshal(answer, &o) != nil {
		return ""
	}
	return o.ResourceVersion
}
