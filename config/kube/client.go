package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
)

// Client reads what an API server has.
type Client struct {
	core, networking, discovery rest.Interface
}

// Connect makes a Client; it does not wait for the API server. What client-go
// would log is switched off, for the whole process: it comes by Options.Trouble.
func Connect(k *config.Kubernetes) (*Client, error) {
	c, err := api.Connect(k.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return &Client{core: c.Core, networking: c.Networking, discovery: c.Discovery}, nil
}

// InPod says whether this is a Pod that can reach its API server.
func InPod() bool {
	_, err := rest.InClusterConfig()
	return err == nil
}

// List says how the objects of a kind are listed and watched.
func (c *Client) List(kind Kind, scope Scope) *cache.ListWatch {
	from := c.core
	switch kind {
	case IngressClasses, Ingresses:
		from = c.networking
	case EndpointSlices:
		from = c.discovery
	}
	return cache.NewFilteredListWatchFromClient(from, string(kind), scope.Namespace, func(o *metav1.ListOptions) { o.FieldSelector = scope.Fields })
}
