package gateway

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// Known has the Route of each object. A new state of an object keeps the Route if only fields differ that
// weir does not read. So the status that weir writes causes no second conversion.
type Known struct {
	routes map[metav1.Object]*Route
	latest map[routeKey]metav1.Object // the object of each Route
}

type routeKey struct {
	kind string
	name config.ObjectName
}

// NewKnown returns a Known without Routes.
func NewKnown() *Known {
	return &Known{map[metav1.Object]*Route{}, map[routeKey]metav1.Object{}}
}

// Len is the number of Routes, those of removed objects included.
func (k *Known) Len() int { return len(k.routes) }

// of returns the Route of an object.
func (k *Known) of(o metav1.Object) *Route {
	if r := k.routes[o]; r != nil {
		return r
	}
	made := routeOf(o)
	key := routeKey{made.Kind, made.Name}
	old := k.latest[key]
	r := k.routes[old]
	delete(k.routes, old)
	if r != nil && Same(old, o) {
		*r = *made // it no longer refers to the old object, which would stay in memory
	} else {
		r = made
	}
	k.routes[o], k.latest[key] = r, o
	return r
}

// Same reports whether two states of an object of the Gateway API are equal in the fields that weir reads. The
// generation changes with the spec. No status counts, except the addresses of a Gateway, which weir keeps
// in its status.
func Same(old, now metav1.Object) bool {
	if old == now {
		return true
	}
	if a, ok := old.(*gatewayv1.Gateway); ok {
		b, ok := now.(*gatewayv1.Gateway)
		if !ok || !slices.EqualFunc(a.Status.Addresses, b.Status.Addresses, func(a, b gatewayv1.GatewayStatusAddress) bool { return a.Value == b.Value }) {
			return false
		}
	}
	return old.GetGeneration() != 0 && old.GetGeneration() == now.GetGeneration() && old.GetUID() == now.GetUID() &&
		maps.Equal(old.GetAnnotations(), now.GetAnnotations()) && old.GetDeletionTimestamp().Equal(now.GetDeletionTimestamp())
}

// sameObjects calls Same for the pairs of two lists of objects.
func sameObjects[T metav1.Object](old, now []T) bool {
	return slices.EqualFunc(old, now, func(a, b T) bool { return Same(a, b) })
}

// SameSets is sameObjects for ListenerSets.
func SameSets(old, now []*gatewayv1.ListenerSet) bool { return sameObjects(old, now) }

// compareTexts compares the texts NAMESPACE/NAME of two names, and does not make these texts.
func compareTexts(a, b config.ObjectName) int {
	n := min(len(a.Namespace), len(b.Namespace))
	switch c := strings.Compare(a.Namespace[:n], b.Namespace[:n]); {
	case c != 0:
		return c
	case len(a.Namespace) < len(b.Namespace):
		return cmp.Compare('/', b.Namespace[n])
	case len(a.Namespace) > len(b.Namespace):
		return cmp.Compare(a.Namespace[n], '/')
	}
	return strings.Compare(a.Name, b.Name)
}
