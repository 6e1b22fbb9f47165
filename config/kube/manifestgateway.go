package kube

import (
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config/kube/gateway"
)

// gatewayObject adds an object of the Gateway API, in any version. It returns false if the object
// is of another kind.
func (m *Manifests) gatewayObject(kind string, object []byte) (bool, error) {
	group, rest, _ := strings.Cut(kind, "/")
	_, name, _ := strings.Cut(rest, "/")
	if group != gatewayv1.GroupName {
		return false, nil
	}
	if m.Gateway == nil {
		m.Gateway = &gateway.Objects{}
	}
	o := m.Gateway
	switch name {
	case gateway.KindClass:
		return true, decode(object, &o.Classes)
	case gateway.KindGateway:
		return true, decode(object, &o.Gateways)
	case gateway.KindListenerSet:
		return true, decode(object, &o.Sets)
	case gateway.KindHTTPRoute:
		return true, decode(object, &o.HTTP)
	case gateway.KindGRPCRoute:
		return true, decode(object, &o.GRPC)
	case gateway.KindTLSRoute:
		return true, decode(object, &o.TLS)
	case gateway.KindTCPRoute:
		return true, decode(object, &o.TCP)
	case "ReferenceGrant":
		return true, decode(object, &o.Grants)
	case gateway.KindPolicy:
		return true, decode(object, &o.Policies)
	}
	return false, nil
}
