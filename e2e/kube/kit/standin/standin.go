// Package standin replaces the scheduler and the kubelet in a control plane without nodes. It registers three
// Nodes and binds pending Pods to them. It serves for every Pod in this process, each on its own address. It
// respects cordons, taints, node selectors, readiness and grace periods. Real controllers handle Deployments,
// DaemonSets, EndpointSlices and evictions.
//
// It runs no containers, so there are no probes and no hooks. It sends no heartbeats. Only Pods of the conformance
// suite of the Gateway API have logs.
package standin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// Annotations on Pods. They may change while a Pod runs.
const (
	annotationReady  = "standin.test/ready"  // "false": the Pod is not ready, and still serves
	annotationLinger = "standin.test/linger" // how long a deleted Pod serves, in place of linger
)

// linger is the time for which a deleted Pod still serves, unless its grace period is shorter.
const linger = 3 * time.Second

// nodes are all nodes; the first has the address 10.10.0.1 and is in zone-a.
var nodes = []string{"node-a", "node-b", "node-c"}

func nodeAddress(i int) string { return fmt.Sprintf("10.10.0.%d", i+1) }

type cluster struct {
	api   kubernetes.Interface
	nodes listers.NodeLister
	list  listers.PodLister
	kick  chan struct{} // wakes the scheduler

	mu    sync.Mutex
	pods  map[types.UID]*pod
	taken map[string]bool // addresses in use
	next  map[string]int  // the key is a node; the value, the last address that was given to a Pod
}

// Run acts as scheduler and kubelet until an error ends it.
func Run(args []string) error {
	flags := flag.NewFlagSet("standin", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	settings, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	settings.QPS, settings.Burst = 500, 1000
	api, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return err
	}
	c := &cluster{api: api, kick: make(chan struct{}, 1), pods: map[types.UID]*pod{}, taken: map[string]bool{}, next: map[string]int{}}
	ctx := context.Background()
	for i, name := range nodes {
		if err := errors.Join(c.register(ctx, name, i), c.serveLogs(name, nodeAddress(i))); err != nil {
			return err
		}
	}
	if err := c.watch(ctx); err != nil {
		return err
	}
	fmt.Println("standin: ready")
	c.schedule(ctx)
	return nil
}

// register creates the Node, and removes the taint that a new Node gets.
func (c *cluster) register(ctx context.Context, name string, i int) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux",
			corev1.LabelTopologyRegion: "region-1", corev1.LabelTopologyZone: "zone-" + name[len(name)-1:],
		}},
		Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.244.%d.0/24", i+1)},
	}
	_, err := c.api.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	fresh := err == nil
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if node, err = c.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
		return err
	}
	if fresh {
		node.Spec.Taints = nil
		if node, err = c.api.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	now := metav1.Now()
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: nodeAddress(i)}, {Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("203.0.113.%d", i+1)},
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "StandIn", LastHeartbeatTime: now, LastTransitionTime: now}}
	_, err = c.api.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

func (c *cluster) watch(ctx context.Context) error {
	all := informers.NewSharedInformerFactory(c.api, 0)
	c.nodes, c.list = all.Core().V1().Nodes().Lister(), all.Core().V1().Pods().Lister()
	wake := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { c.wake() }, UpdateFunc: func(any, any) { c.wake() }}
	pods := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { c.see(ctx, o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { c.see(ctx, o.(*corev1.Pod)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if p, ok := o.(*corev1.Pod); ok {
				c.end(p.UID)
				c.forget(p.UID)
			}
			c.wake()
		},
	}
	_, err := all.Core().V1().Nodes().Informer().AddEventHandler(wake)
	_, err2 := all.Core().V1().Pods().Informer().AddEventHandler(pods)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	return nil
}
