package gateway

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// Service returns the name of the Service to which a route refers.
func (v *View) Service(r *Route, ref *gatewayv1.BackendObjectReference) (config.ObjectName, *Problem) {
	name := config.ObjectName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(r.Name.Namespace))), Name: string(ref.Name)}
	if group, kind := value(ref.Group, ""), value(ref.Kind, "Service"); group != "" || kind != "Service" {
		return name, problem(gatewayv1.RouteReasonInvalidKind, "The backend %s is of the kind %s, but weir supports only Services.", name, kindName(string(group), string(kind)))
	}
	if !v.permits(r.Kind, r.Name.Namespace, "Service", name) {
		return name, problem(gatewayv1.RouteReasonRefNotPermitted, noGrant, name.Namespace, r.Kind, r.Name.Namespace, "Service", name.Name)
	}
	return name, nil
}
