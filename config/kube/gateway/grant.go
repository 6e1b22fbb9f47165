package gateway

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// noGrant is the message about a reference that no ReferenceGrant allows: the namespace of the grant, the kind and the
// namespace of the object that refers, and the kind and the name of the other object.
const noGrant = "No ReferenceGrant in the namespace %s allows %ss of the namespace %s to use the %s %s; create one there."

// kindName names a kind in a message: Service, or apps/Deployment.
func kindName(group, kind string) string {
	if group == "" {
		return kind
	}
	return group + "/" + kind
}

// permits reports whether an object of the given kind and namespace may refer to the object to,
// whose kind is in the core group. It may if both have one namespace, or if a ReferenceGrant in
// the namespace of to allows it.
func (v *View) permits(kind, namespace, toKind string, to config.ObjectName) bool {
	if namespace == to.Namespace {
		return true
	}
	grants := v.grants[to.Namespace]
	v.grantsSeen[to.Namespace] = grants
	for _, g := range grants {
		if allowsFrom(g, kind, namespace) && allowsTo(g, toKind, to.Name) {
			return true
		}
	}
	return false
}

func allowsFrom(g *gatewayv1.ReferenceGrant, kind, namespace string) bool {
	for i := range g.Spec.From {
		if f := &g.Spec.From[i]; string(f.Group) == Group && string(f.Kind) == kind && string(f.Namespace) == namespace {
			return true
		}
	}
	return false
}

func allowsTo(g *gatewayv1.ReferenceGrant, kind, name string) bool {
	for i := range g.Spec.To {
		t := &g.Spec.To[i]
		if t.Group == "" && string(t.Kind) == kind && (t.Name == nil || *t.Name == "" || string(*t.Name) == name) {
			return true
		}
	}
	return false
}
