package kube

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/weirproxy/weir/config"
)

// Client reaches an API server, for the groups that weir has to do with. It is
// made of client-go's parts: the whole of it knows every kind there is, and is
// larger than all of weir.
type Client struct{ core, networking, discovery rest.Interface }

// Connect makes a Client; it does not wait for the API server. What client-go
// would log is switched off, for the whole process: it comes by Options.Trouble.
func Connect(k *config.Kubernetes) (*Client, error) {
	settings, err := Settings(k)
	if err != nil {
		return nil, err
	}
	klog.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("preparing the kinds of the API server: %w", err)
		}
	}
	settings.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	settings.AcceptContentTypes, settings.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
	settings.UserAgent = "weir"
	settings.QPS, settings.Burst = 50, 100
	c := &Client{}
	for gv, to := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &c.core, networkingv1.SchemeGroupVersion: &c.networking, discoveryv1.SchemeGroupVersion: &c.discovery,
	} {
		if *to, err = forGroup(*settings, gv); err != nil {
			return nil, fmt.Errorf("preparing the client of the API server at %s: %w; look at kubernetes.kubeconfig", settings.Host, err)
		}
	}
	return c, nil
}

// Settings say how the API server is reached, for clients of any kind: as the
// service account of a Pod, or by a file.
func Settings(k *config.Kubernetes) (*rest.Config, error) {
	if k.Kubeconfig != "" {
		settings, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("cannot use kubernetes.kubeconfig: %w", err)
		}
		return settings, nil
	}
	settings, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot reach an API server as Pods do: %w; run weir in a Pod with a service account, or set kubernetes.kubeconfig", err)
	}
	return settings, nil
}

func forGroup(settings rest.Config, gv schema.GroupVersion) (rest.Interface, error) {
	settings.GroupVersion, settings.APIPath = &gv, "/apis"
	if gv.Group == "" {
		settings.APIPath = "/api"
	}
	return rest.RESTClientFor(&settings)
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
