package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// withStatus are the kinds whose status weir writes.
var withStatus = map[string]Kind{
	gateway.KindClass: GatewayClasses, gateway.KindGateway: Gateways, gateway.KindListenerSet: ListenerSets, gateway.KindHTTPRoute: HTTPRoutes,
	gateway.KindGRPCRoute: GRPCRoutes, gateway.KindTLSRoute: TLSRoutes, gateway.KindTCPRoute: TCPRoutes, gateway.KindPolicy: BackendTLSPolicies,
}

// GatewayObject returns an object of the Gateway API as it is known now, and the version of the
// API in which the cluster serves it; nil: it does not exist.
func (s *Source) GatewayObject(kind string, name config.ObjectName) (o metav1.Object, version string) {
	k := withStatus[kind]
	key := name.Name
	if name.Namespace != "" {
		key = name.String()
	}
	for _, store := range s.optional.stores(k) {
		if found, ok, _ := store.GetByKey(key); ok {
			return found.(metav1.Object), s.optional.version(k)
		}
	}
	return nil, ""
}

// EachGatewayObject calls f with each object of the Gateway API that has a status, in the served namespaces. In other
// namespaces another installation of the same controller may write (kubernetes.namespace_labels).
func (s *Source) EachGatewayObject(f func(kind string, o metav1.Object)) {
	serves := s.serves.Load()
	for name, k := range withStatus {
		for _, store := range s.optional.stores(k) {
			for _, o := range store.List() {
				if o := o.(metav1.Object); o.GetNamespace() == "" || serves != nil && (*serves)(o.GetNamespace()) {
					f(name, o)
				}
			}
		}
	}
}
