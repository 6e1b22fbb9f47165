// Package api reaches a cluster's API server: for what is watched (config/kube),
// for what is written to it (config/kube/control), and for what replicas keep in
// it (tls/storage). It is made of client-go's parts, for the kinds that weir has
// to do with: the whole of client-go knows every kind there is, and is larger
// than all of weir. Leader election and event recorders of client-go need that
// whole, which is why Leases are taken here.
package api

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Client reaches an API server, group by group.
type Client struct {
	Core, Networking, Discovery, Coordination rest.Interface
	// Namespace is the one that this process is in, or that the kubeconfig names.
	Namespace string
}

// inPod is the file that says which namespace a Pod is in.
const inPod = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// silence switches off what client-go logs, for the whole process: what fails is returned.
var silence = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// Connect makes a Client as the file kubeconfig says, or as Pods do where it is
// empty. It does not wait for the API server.
func Connect(kubeconfig string) (*Client, error) {
	silence()
	settings, namespace, err := clientSettings(kubeconfig)
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	settings.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	settings.AcceptContentTypes, settings.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
	settings.UserAgent = "weir"
	settings.QPS, settings.Burst = 1000, 1000 // no more than a fuse: who writes has a pace
	c := &Client{Namespace: namespace}
	for gv, to := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &c.Core, networkingv1.SchemeGroupVersion: &c.Networking,
		discoveryv1.SchemeGroupVersion: &c.Discovery, coordinationv1.SchemeGroupVersion: &c.Coordination,
	} {
		if *to, err = forGroup(*settings, gv); err != nil {
			return nil, fmt.Errorf("preparing the client of the API server at %s: %w; look at the kubeconfig", settings.Host, err)
		}
	}
	return c, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme,
		coordinationv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("preparing the kinds of the API server: %w", err)
		}
	}
	return scheme, nil
}

// clientSettings are those of a file, or of the service account in a Pod.
func clientSettings(kubeconfig string) (settings *rest.Config, namespace string, err error) {
	if kubeconfig != "" {
		file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, nil)
		if settings, err = file.ClientConfig(); err == nil {
			namespace, _, err = file.Namespace()
		}
		if err != nil {
			return nil, "", fmt.Errorf("cannot use kubernetes.kubeconfig: %w", err)
		}
		return settings, namespace, nil
	}
	if settings, err = rest.InClusterConfig(); err != nil {
		return nil, "", fmt.Errorf("cannot reach an API server as Pods do: %w; run weir in a Pod with a service account, or set kubernetes.kubeconfig", err)
	}
	if data, err := os.ReadFile(inPod); err == nil {
		namespace = strings.TrimSpace(string(data))
	}
	return settings, namespace, nil
}

func forGroup(settings rest.Config, gv schema.GroupVersion) (rest.Interface, error) {
	settings.GroupVersion, settings.APIPath = &gv, "/apis"
	if gv.Group == "" {
		settings.APIPath = "/api"
	}
	return rest.RESTClientFor(&settings)
}

// Timeout bounds one request that is no watch.
const Timeout = 10 * time.Second

// Failure makes a sentence of what a request failed with: what was to be done
// (a verb), to what (a resource and maybe a name), and in which namespace. It
// tells rights that are missing from an API server that does not answer.
func Failure(verb, what, namespace string, err error) error {
	where := ""
	if namespace != "" {
		where = " in namespace " + namespace
	}
	if IsDenied(err) {
		return fmt.Errorf("weir has no right to %s %s%s: give its service account the verb %q on %q (%w)", verb, what, where, verb, resource(what), err)
	}
	return fmt.Errorf("the API server does not let weir %s %s%s: %w", verb, what, where, err)
}

// resource is what of Failure without a name.
func resource(what string) string {
	name, _, _ := strings.Cut(what, " ")
	return name
}

// IsDenied says whether a right is missing, so that asking again soon is of no use.
func IsDenied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// IsAway says whether the API server failed, and did not merely say no: the same
// request may succeed later. Who breaks off a request learns nothing of it.
func IsAway(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code >= 500 || code == 429 || code == 401
}

// bounded is ctx for one request.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, Timeout)
}
