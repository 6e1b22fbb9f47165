package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The kinds of the Gateway API are CustomResourceDefinitions. A cluster may have none of them,
// or older versions, and may get others at any time.

// gatewayVersions are the versions of the Gateway API that weir can read, the best first. The
// fields that weir reads are the same in all of them.
var gatewayVersions = []string{"v1", "v1beta1", "v1alpha3", "v1alpha2"}

// gatewayKinds is an object of each kind, and a list.
var gatewayKinds = map[string]runtime.Object{
	"GatewayClass": &gatewayv1.GatewayClass{}, "GatewayClassList": &gatewayv1.GatewayClassList{},
	"Gateway": &gatewayv1.Gateway{}, "GatewayList": &gatewayv1.GatewayList{},
	"ListenerSet": &gatewayv1.ListenerSet{}, "ListenerSetList": &gatewayv1.ListenerSetList{},
	"HTTPRoute": &gatewayv1.HTTPRoute{}, "HTTPRouteList": &gatewayv1.HTTPRouteList{},
	"GRPCRoute": &gatewayv1.GRPCRoute{}, "GRPCRouteList": &gatewayv1.GRPCRouteList{},
	"TLSRoute": &gatewayv1.TLSRoute{}, "TLSRouteList": &gatewayv1.TLSRouteList{},
	"TCPRoute": &gatewayv1.TCPRoute{}, "TCPRouteList": &gatewayv1.TCPRouteList{},
	"ReferenceGrant": &gatewayv1.ReferenceGrant{}, "ReferenceGrantList": &gatewayv1.ReferenceGrantList{},
	"BackendTLSPolicy": &gatewayv1.BackendTLSPolicy{}, "BackendTLSPolicyList": &gatewayv1.BackendTLSPolicyList{},
}

// addGatewayKinds registers the kinds in each version.
func addGatewayKinds(scheme *runtime.Scheme) {
	for _, version := range gatewayVersions {
		gv := schema.GroupVersion{Group: gatewayv1.GroupName, Version: version}
		for kind, o := range gatewayKinds {
			scheme.AddKnownTypeWithName(gv.WithKind(kind), o)
		}
		metav1.AddToGroupVersion(scheme, gv)
	}
}

// gatewayClients makes a client of each version.
func gatewayClients(settings rest.Config, shared *http.Client) (map[string]rest.Interface, error) {
	settings.AcceptContentTypes, settings.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON // all that CustomResourceDefinitions have
	all := make(map[string]rest.Interface, len(gatewayVersions))
	for _, version := range gatewayVersions {
		c, err := forGroup(settings, shared, schema.GroupVersion{Group: gatewayv1.GroupName, Version: version})
		if err != nil {
			return nil, err
		}
		all[version] = c
	}
	return all, nil
}

// Gateway returns the client for the Gateway API in a version.
func (c *Client) Gateway(version string) rest.Interface { return c.gateways[version] }

// GatewayKinds asks which kinds of the Gateway API the cluster serves. It returns the best
// version of each resource that weir can read, such as v1 of httproutes.
func (c *Client) GatewayKinds(ctx context.Context) (map[string]string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var group metav1.APIGroup
	if found, err := c.discover(ctx, "/apis/"+gatewayv1.GroupName, &group); err != nil || !found {
		return nil, err
	}
	best := map[string]string{}
	for _, version := range gatewayVersions {
		served := slices.ContainsFunc(group.Versions, func(v metav1.GroupVersionForDiscovery) bool { return v.Version == version })
		if !served {
			continue
		}
		var resources metav1.APIResourceList
		if _, err := c.discover(ctx, "/apis/"+gatewayv1.GroupName+"/"+version, &resources); err != nil {
			return nil, err
		}
		for _, r := range resources.APIResources {
			if _, better := best[r.Name]; !better && gatewayKinds[r.Kind] != nil && slices.Contains(r.Verbs, "watch") {
				best[r.Name] = version
			}
		}
	}
	return best, nil
}

// discover reads a description of the API. It returns false if there is none.
func (c *Client) discover(ctx context.Context, path string, to any) (found bool, err error) {
	data, err := c.Core.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, Failure("get", path, "", err)
	}
	if err := json.Unmarshal(data, to); err != nil {
		return false, fmt.Errorf("the API server described %s in a form that weir cannot read: %w", path, err)
	}
	return true, nil
}
