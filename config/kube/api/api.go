// Package api connects to the API server of a cluster: to watch objects
// (config/kube), to write to them (config/kube/control), and to store the state of
// replicas (tls/storage). It uses parts of client-go, for the kinds that weir needs:
// the whole of client-go registers every kind, and is larger than all of weir.
// client-go's leader election and event recorders need the whole, so this package
// has its own Leases.
package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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
	gateways                                  map[string]rest.Interface // by version
	// Namespace is the namespace of this process, or the one in the kubeconfig.
	Namespace string
	// Answered is called for each response that shows a working API server. It is set before the first request. nil: nobody.
	Answered func()
}

// roundTrip calls Answered after a response; next sends the request.
func (c *Client) roundTrip(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	resp, err := next.RoundTrip(r)
	if err == nil && resp.StatusCode < 400 && c.Answered != nil {
		c.Answered()
	}
	return resp, err
}

// roundTripper is a function that is a http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

const (
	// dialTimeout limits the wait for a connection to an address that does not answer.
	dialTimeout = 5 * time.Second
	// An API server that sends nothing for pingAfter must answer a ping within pingTimeout. Otherwise the connection, and
	// the watches on it, are lost.
	pingAfter, pingTimeout = "10", "5" // seconds
)

// setPings sets what client-go reads from the environment only. A value that an operator has set stays.
var setPings = sync.OnceFunc(func() {
	for name, value := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": pingAfter, "HTTP2_PING_TIMEOUT_SECONDS": pingTimeout} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
})

// inPod is the file with the namespace of a Pod.
const inPod = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// silence turns client-go's log off for the whole process; errors are returned instead.
var silence = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// Connect makes a Client from the file kubeconfig, or from the service account of the
// Pod if kubeconfig is empty. It does not wait for the API server.
func Connect(kubeconfig string) (*Client, error) {
	silence()
	setPings()
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
	settings.QPS, settings.Burst = 1000, 1000 // a safety limit only: package control has a pace of its own
	settings.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	c := &Client{Namespace: namespace}
	settings.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return c.roundTrip(next, r) })
	})
	shared, err := rest.HTTPClientFor(settings) // otherwise each group has connections of its own
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the API server at %s: %w; check the kubeconfig", settings.Host, err)
	}
	for gv, to := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &c.Core, networkingv1.SchemeGroupVersion: &c.Networking,
		discoveryv1.SchemeGroupVersion: &c.Discovery, coordinationv1.SchemeGroupVersion: &c.Coordination,
	} {
		if *to, err = forGroup(*settings, shared, gv); err != nil {
			return nil, fmt.Errorf("cannot make a client for the API server at %s: %w; check the kubeconfig", settings.Host, err)
		}
	}
	if c.gateways, err = gatewayClients(*settings, shared); err != nil {
		return nil, fmt.Errorf("cannot make a client for the API server at %s: %w; check the kubeconfig", settings.Host, err)
	}
	return c, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme,
		coordinationv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("cannot register the kinds of the API server: %w", err)
		}
	}
	addGatewayKinds(scheme)
	return scheme, nil
}

// clientSettings are the settings of a kubeconfig, or of the service account of a Pod.
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
		return nil, "", fmt.Errorf("cannot connect to an API server with the service account of a Pod: %w; run weir in a Pod with a service account, or set kubernetes.kubeconfig", err)
	}
	return settings, OwnNamespace(), nil
}

// OwnNamespace is the namespace of the Pod of this process; empty outside of a Pod.
func OwnNamespace() string {
	data, err := os.ReadFile(inPod)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func forGroup(settings rest.Config, shared *http.Client, gv schema.GroupVersion) (rest.Interface, error) {
	settings.GroupVersion, settings.APIPath = &gv, "/apis"
	if gv.Group == "" {
		settings.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(&settings, shared)
}

// Timeout limits each request except watches.
const Timeout = 10 * time.Second

// Failure makes an error for a failed request, with its verb, its resource (and maybe
// the name of the object) and its namespace. It distinguishes a missing right from an
// API server that does not answer.
func Failure(verb, what, namespace string, err error) error {
	where := ""
	if namespace != "" {
		where = " in namespace " + namespace
	}
	if IsDenied(err) {
		return fmt.Errorf("weir has no right to %s %s%s: give its service account the verb %q on %q (%w)", verb, what, where, verb, resource(what), err)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Errorf("weir cannot reach the API server to %s %s%s: %w", verb, what, where, err)
	}
	return fmt.Errorf("the API server failed to %s %s%s: %w", verb, what, where, err)
}

// resource returns the resource in "resource name", the form that Failure takes.
func resource(what string) string {
	name, _, _ := strings.Cut(what, " ")
	return name
}

// IsDenied reports whether a right is missing, so that it is useless to try again soon.
func IsDenied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// IsAway reports whether the API server failed, rather than refused the request: the same
// request may succeed later. A canceled request does not show whether the API server failed.
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

// bounded is ctx with the Timeout of one request.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, Timeout)
}
