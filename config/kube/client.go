package kube

import (
	"context"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/informer"
)

// Client reads the objects of an API server.
type Client struct {
	core, networking, discovery rest.Interface
	api                         *api.Client
}

// Connect makes a Client; it does not wait for the API server. It turns client-go's
// log off for the whole process; its errors are passed to Options.Trouble.
func Connect(k *config.Kubernetes) (*Client, error) {
	c, err := api.Connect(k.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return &Client{core: c.Core, networking: c.Networking, discovery: c.Discovery, api: c}, nil
}

// Served returns which kinds of the Gateway API the cluster serves: the version of each resource.
func (c *Client) Served(ctx context.Context) (map[string]string, error) {
	return c.api.GatewayKinds(ctx)
}

// InPod reports whether weir runs in a Pod with a service account.
func InPod() bool {
	_, err := rest.InClusterConfig()
	return err == nil
}

// List returns how the objects of a kind are listed and watched.
func (c *Client) List(kind Kind, selection Selection) *cache.ListWatch {
	from, resource := c.core, string(kind)
	switch {
	case kind == IngressClasses, kind == Ingresses:
		from = c.networking
	case kind == EndpointSlices:
		from = c.discovery
	case kind == bundles, kind == namedMaps:
		resource = string(ConfigMaps)
	}
	if name, version, versioned := strings.Cut(resource, "@"); versioned {
		from, resource = c.api.Gateway(version), name
	}
	return informer.Requests(from, resource, selection.Namespace, selection.Fields)
}
