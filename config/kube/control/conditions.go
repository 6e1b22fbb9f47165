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

// merged returns the conditions that an object must have: wanted, and the conditions of other
// controllers. own are the types of conditions that weir may remove. A condition whose status does not
// change keeps its time. A condition of a newer generation stays, because weir has not seen this
// generation.
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
		if c := all[at]; c.ObservedGeneration > w.ObservedGeneration {
			continue
		} else if w.LastTransitionTime = metav1.Now(); c.Status == w.Status {
			w.LastTransitionTime = c.LastTransitionTime
		}
		all[at] = w
	}
	return all
}

// first returns the first element for which is returns true, or the zero value.
func first[T any](all []T, is func(*T) bool) (found T) {
	for i := range all {
		if is(&all[i]) {
			return all[i]
		}
	}
	return found
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
	next.Listeners = slices.Clone(wanted.Listeners)
	for i := range next.Listeners {
		l := &next.Listeners[i]
		before := first(now.Listeners, func(o *gatewayv1.ListenerStatus) bool { return o.Name == l.Name })
		l.Conditions = merged(before.Conditions, l.Conditions)
	}
	if reflect.DeepEqual(&next, now) {
		return nil, false
	}
	return map[string]any{"conditions": next.Conditions, "listeners": next.Listeners, "addresses": next.Addresses, "attachedListenerSets": next.AttachedListenerSets}, true
}

func setFields(now, wanted *gatewayv1.ListenerSetStatus) (map[string]any, bool) {
	next := *wanted
	next.Conditions = merged(now.Conditions, wanted.Conditions)
	next.Listeners = slices.Clone(wanted.Listeners)
	for i := range next.Listeners {
		l := &next.Listeners[i]
		before := first(now.Listeners, func(o *gatewayv1.ListenerEntryStatus) bool { return o.Name == l.Name })
		l.Conditions = merged(before.Conditions, l.Conditions)
	}
	if reflect.DeepEqual(&next, now) {
		return nil, false
	}
	return map[string]any{"conditions": next.Conditions, "listeners": next.Listeners}, true
}

// maxParents and maxAncestors are the maximum numbers of entries in a status.
const (
	maxParents   = 32
	maxAncestors = 16
)

// ofRoutes are the conditions of routes that weir may remove.
var ofRoutes = []string{string(gatewayv1.RouteConditionPartiallyInvalid)}

// parentFields returns the parents in the status of a route: those of other controllers, and
// weir's in the order of the spec.
func (g *gatewayStatuses) parentFields(d *desired, uid types.UID, now []gatewayv1.RouteParentStatus) (map[string]any, bool) {
	var next, ours []gatewayv1.RouteParentStatus
	for _, p := range now {
		if string(p.ControllerName) == g.controller {
			ours = append(ours, p)
		} else {
			next = append(next, p)
		}
	}
	wanted := slices.Clone(d.parents)
	slices.SortStableFunc(wanted, func(a, b owned[gateway.ParentStatus]) int { return cmp.Compare(a.of.Index, b.of.Index) })
	for _, w := range wanted {
		if w.of.UID != uid || len(next) == maxParents {
			continue
		}
		p := w.of.RouteParentStatus
		before := first(ours, func(o *gatewayv1.RouteParentStatus) bool { return reflect.DeepEqual(o.ParentRef, p.ParentRef) })
		p.Conditions = merged(before.Conditions, p.Conditions, ofRoutes...)
		next = append(next, p)
	}
	if len(next) == len(now) && (len(next) == 0 || reflect.DeepEqual(next, now)) {
		return nil, false
	}
	if next == nil {
		next = []gatewayv1.RouteParentStatus{} // the field must not be null
	}
	return map[string]any{"parents": next}, true
}

// ancestorFields returns the ancestors in the status of a policy.
func (g *gatewayStatuses) ancestorFields(d *desired, o *gatewayv1.BackendTLSPolicy) (map[string]any, bool) {
	var next, ours []gatewayv1.PolicyAncestorStatus
	for _, p := range o.Status.Ancestors {
		if string(p.ControllerName) == g.controller {
			ours = append(ours, p)
		} else {
			next = append(next, p)
		}
	}
	wanted := slices.Clone(d.ancestors)
	slices.SortStableFunc(wanted, func(a, b owned[gateway.AncestorStatus]) int {
		return cmp.Or(cmp.Compare(*a.of.AncestorRef.Namespace, *b.of.AncestorRef.Namespace), cmp.Compare(a.of.AncestorRef.Name, b.of.AncestorRef.Name))
	})
	for _, w := range wanted {
		if w.of.UID != o.UID || len(next) == maxAncestors {
			continue
		}
		p := w.of.PolicyAncestorStatus
		before := first(ours, func(o *gatewayv1.PolicyAncestorStatus) bool { return reflect.DeepEqual(o.AncestorRef, p.AncestorRef) })
		p.Conditions = merged(before.Conditions, p.Conditions)
		next = append(next, p)
	}
	if len(next) == len(o.Status.Ancestors) && (len(next) == 0 || reflect.DeepEqual(next, o.Status.Ancestors)) {
		return nil, false
	}
	if next == nil {
		next = []gatewayv1.PolicyAncestorStatus{}
	}
	return map[string]any{"ancestors": next}, true
}
