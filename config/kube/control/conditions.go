package control

import (
	"cmp"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config/kube/gateway"
)

// merged returns the conditions that an object must have: the wanted conditions, and the conditions of
// other controllers. own are the types of conditions that weir may remove. A condition whose status
// does not change keeps its time. A condition for a newer generation stays, because weir has not seen
// this generation. A wanted condition Unknown replaces no True or False of the same generation: a new leader
// learns the state within seconds.
func merged(now, wanted []metav1.Condition, own ...string) []metav1.Condition {
	all := slices.DeleteFunc(slices.Clone(now), func(c metav1.Condition) bool {
		return slices.Contains(own, c.Type) && !slices.ContainsFunc(wanted, func(w metav1.Condition) bool { return w.Type == c.Type })
	})
	for _, w := range wanted {
		at := slices.IndexFunc(all, func(c metav1.Condition) bool { return c.Type == w.Type })
		if at < 0 {
			w.LastTransitionTime = metav1.Now()
			all = append(all, w)
			continue
		}
		if c := all[at]; c.ObservedGeneration > w.ObservedGeneration || c.ObservedGeneration == w.ObservedGeneration && w.Status == metav1.ConditionUnknown && c.Status != w.Status {
			continue
		} else if w.LastTransitionTime = metav1.Now(); c.Status == w.Status {
			w.LastTransitionTime = c.LastTransitionTime
		}
		all[at] = w
	}
	return all
}

func classFields(now, wanted *gatewayv1.GatewayClassStatus) (map[string]any, bool) {
	conditions := merged(now.Conditions, wanted.Conditions)
	if reflect.DeepEqual(conditions, now.Conditions) && slices.Equal(now.SupportedFeatures, wanted.SupportedFeatures) {
		return nil, false
	}
	return map[string]any{"conditions": conditions, "supportedFeatures": wanted.SupportedFeatures}, true
}

func gatewayFields(now, wanted *gatewayv1.GatewayStatus) (map[string]any, bool) {
	next := *wanted
	next.Conditions = merged(now.Conditions, wanted.Conditions, string(gatewayv1.GatewayConditionInsecureFrontendValidationMode))
	next.Listeners = mergedEach(now.Listeners, wanted.Listeners, func(a, b *gatewayv1.ListenerStatus) bool { return a.Name == b.Name },
		func(l *gatewayv1.ListenerStatus) *[]metav1.Condition { return &l.Conditions })
	if reflect.DeepEqual(&next, now) {
		return nil, false
	}
	return map[string]any{"conditions": next.Conditions, "listeners": next.Listeners, "addresses": next.Addresses, "attachedListenerSets": next.AttachedListenerSets}, true
}

func setFields(now, wanted *gatewayv1.ListenerSetStatus) (map[string]any, bool) {
	next := *wanted
	next.Conditions = merged(now.Conditions, wanted.Conditions)
	next.Listeners = mergedEach(now.Listeners, wanted.Listeners, func(a, b *gatewayv1.ListenerEntryStatus) bool { return a.Name == b.Name },
		func(l *gatewayv1.ListenerEntryStatus) *[]metav1.Condition { return &l.Conditions })
	for i := range next.Listeners { // the API leaves an empty list out
		if l := &next.Listeners[i]; len(l.SupportedKinds) == 0 {
			l.SupportedKinds = nil
		}
	}
	if reflect.DeepEqual(&next, now) {
		return nil, false
	}
	return map[string]any{"conditions": next.Conditions, "listeners": next.Listeners}, true
}

// mergedEach returns the wanted parts of a status. The conditions of each part are merged with the present
// conditions of the same part.
func mergedEach[T any](now, wanted []T, same func(a, b *T) bool, conditions func(*T) *[]metav1.Condition, own ...string) []T {
	next := slices.Clone(wanted)
	for i := range next {
		var before []metav1.Condition
		if at := slices.IndexFunc(now, func(o T) bool { return same(&o, &next[i]) }); at >= 0 {
			before = *conditions(&now[at])
		}
		c := conditions(&next[i])
		*c = merged(before, *c, own...)
	}
	return next
}

// maxParents and maxAncestors are the maximum numbers of entries in a status.
const (
	maxParents   = 32
	maxAncestors = 16
)

// parentFields returns the parents in the status of a route: those of other controllers, and
// weir's in the order of the spec.
func (g *gatewayStatuses) parentFields(d *desired, uid types.UID, now []gatewayv1.RouteParentStatus) (map[string]any, bool) {
	all := slices.Clone(d.parents)
	slices.SortStableFunc(all, func(a, b owned[gateway.ParentStatus]) int { return cmp.Compare(a.of.Index, b.of.Index) })
	var wanted []gatewayv1.RouteParentStatus
	for _, w := range all {
		if w.of.UID == uid {
			wanted = append(wanted, w.of.RouteParentStatus)
		}
	}
	e := entries[gatewayv1.RouteParentStatus]{
		isOurs:     func(p *gatewayv1.RouteParentStatus) bool { return string(p.ControllerName) == g.controller },
		same:       func(a, b *gatewayv1.RouteParentStatus) bool { return reflect.DeepEqual(a.ParentRef, b.ParentRef) },
		conditions: func(p *gatewayv1.RouteParentStatus) *[]metav1.Condition { return &p.Conditions },
	}
	next, differs := e.join(now, wanted, maxParents, string(gatewayv1.RouteConditionPartiallyInvalid), gateway.ConditionHostContested)
	return map[string]any{"parents": next}, differs
}

// ancestorFields returns the ancestors in the status of a policy: those of other controllers, and
// weir's in the order of their names.
func (g *gatewayStatuses) ancestorFields(d *desired, o *gatewayv1.BackendTLSPolicy) (map[string]any, bool) {
	all := slices.Clone(d.ancestors)
	slices.SortStableFunc(all, func(a, b owned[gateway.AncestorStatus]) int {
		return cmp.Or(cmp.Compare(*a.of.AncestorRef.Namespace, *b.of.AncestorRef.Namespace), cmp.Compare(a.of.AncestorRef.Name, b.of.AncestorRef.Name))
	})
	var wanted []gatewayv1.PolicyAncestorStatus
	for _, w := range all {
		if w.of.UID == o.UID {
			wanted = append(wanted, w.of.PolicyAncestorStatus)
		}
	}
	e := entries[gatewayv1.PolicyAncestorStatus]{
		isOurs: func(p *gatewayv1.PolicyAncestorStatus) bool { return string(p.ControllerName) == g.controller },
		same: func(a, b *gatewayv1.PolicyAncestorStatus) bool {
			return reflect.DeepEqual(a.AncestorRef, b.AncestorRef)
		},
		conditions: func(p *gatewayv1.PolicyAncestorStatus) *[]metav1.Condition { return &p.Conditions },
	}
	next, differs := e.join(o.Status.Ancestors, wanted, maxAncestors)
	return map[string]any{"ancestors": next}, differs
}

// entries are the entries of several controllers in a status.
type entries[T any] struct {
	isOurs     func(*T) bool
	same       func(a, b *T) bool // reports whether both are about the same object
	conditions func(*T) *[]metav1.Condition
}

// join returns the entries that a status must have: the entries of other controllers, and the wanted
// entries, at most most in all. own are the types of conditions that weir may remove. differs is
// false if the status has these entries already. The entries of others keep their places: of two controllers that
// want theirs first or last, each would write again after the other, for ever.
func (e *entries[T]) join(now, wanted []T, most int, own ...string) (next []T, differs bool) {
	var ours []T
	for i := range now {
		if e.isOurs(&now[i]) {
			ours = append(ours, now[i])
		}
	}
	wanted = wanted[:min(len(wanted), max(0, most-len(now)+len(ours)))]
	left := mergedEach(ours, wanted, e.same, e.conditions, own...)
	next = []T{} // the field must not be null
	for i := range now {
		switch {
		case !e.isOurs(&now[i]):
			next = append(next, now[i])
		case len(left) > 0:
			next, left = append(next, left[0]), left[1:]
		}
	}
	next = append(next, left...)
	return next, len(next) != len(now) || len(next) > 0 && !reflect.DeepEqual(next, now)
}
