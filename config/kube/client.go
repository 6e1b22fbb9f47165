package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
)

// Client reads the objects of an API server.
type Client struct {
	core, networking, discovery rest.Interface
}

// Connect makes a Client; it does not wait for the API server. It turns client-go's
// log off for the whole process; its errors are passed to Options.Trouble.
func Connect(k *config.Kubernetes) (*Client, error) {
	c, err := api.Connect(k.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return &Client{core: c.Core, networking: c.Networking, discovery: c.Discovery}, nil
}

// InPod reports whether weir runs in a Pod with a service account.
func InPod() bool {
	_, err := rest.InClusterConfig()
	return err == nil
}

// List returns how the objects of a kind are listed and watched.
func (c *Client) List(kind Kind, selection Selection) *cache.ListWatch {
	from := c.core
	switch kind {
	case IngressClasses, Ingresses:
		from = c.networking
	case EndpointSlices:
		from = c.discovery
	}
	return cache.NewFilteredListWatchFromClient(from, string(kind), selection.Namespace, func(o *metav1.ListOptions) { o.FieldSelector = selection.Fields })
}
