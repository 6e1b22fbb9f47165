package kube

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
)

// Node is the node on which weir runs.
type Node struct {
	Name string // empty: the cluster has no such node
	Zone string
	// Leaving has the reasons why the node must get no new connections, for the verdict; empty:
	// the node stays.
	Leaving []string
}

// leavingTaints are the taints of nodes that will be removed or drained, or that do not work. The last four are those of
// aws-node-termination-handler (pkg/node/node.go), which cordons the node as well.
var leavingTaints = map[string]string{
	corev1.TaintNodeUnschedulable:                            "the node is cordoned",
	corev1.TaintNodeNotReady:                                 "the kubelet reports that the node is not ready",
	corev1.TaintNodeUnreachable:                              "the kubelet has not reported for a while",
	corev1.TaintNodeOutOfService:                             "the node is out of service",
	"node.cloudprovider.kubernetes.io/shutdown":              "the cloud provider shuts the node down",
	"ToBeDeletedByClusterAutoscaler":                         "the cluster autoscaler deletes the node",
	"karpenter.sh/disrupted":                                 "Karpenter deletes the node",
	"karpenter.sh/disruption":                                "Karpenter deletes the node", // before version 1.0
	"cloud.google.com/impending-node-termination":            "GKE terminates the node",
	"aws-node-termination-handler/spot-itn":                  "AWS interrupts the spot instance",
	"aws-node-termination-handler/scheduled-maintenance":     "AWS will maintain the instance",
	"aws-node-termination-handler/asg-lifecycle-termination": "AWS Auto Scaling terminates the instance",
	"aws-node-termination-handler/rebalance-recommendation":  "AWS may interrupt the spot instance soon",
}

// nodeTaints are the taints that a configuration adds to leavingTaints.
func nodeTaints(file *config.Config) []string {
	if file == nil || file.Health == nil {
		return nil
	}
	return file.Health.NodeTaints
}

// nodeOf reads a Node object. more are the taints of the configuration.
func nodeOf(n *corev1.Node, more []string) Node {
	node := Node{Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone]}
	add := func(why string) {
		if !slices.Contains(node.Leaving, why) { // a taint may come with two effects
			node.Leaving = append(node.Leaving, why)
		}
	}
	if n.DeletionTimestamp != nil {
		add("the node is being deleted")
	}
	if n.Spec.Unschedulable {
		add("the node is cordoned (spec.unschedulable)")
	}
	if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded {
		add("the node is excluded from load balancers (label " + corev1.LabelNodeExcludeBalancers + ")")
	}
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		why, leaving := leavingTaints[t.Key]
		switch t.Key {
		case corev1.TaintNodeUnschedulable:
			leaving = !n.Spec.Unschedulable
		case corev1.TaintNodeUnreachable:
			// Kubernetes adds NoSchedule whenever reports are missing, also if the API server was away, so perhaps to all
			// nodes. It adds NoExecute when it evicts Pods, and never to all nodes (handleDisruption in its node lifecycle
			// controller).
			leaving = t.Effect == corev1.TaintEffectNoExecute
		}
		if leaving {
			add(fmt.Sprintf("%s (taint %s)", why, t.Key))
		} else if lists(more, t) {
			add(fmt.Sprintf("health.node_taints lists a taint of the node (taint %s)", t.Key))
		}
	}
	return node
}

// lists reports whether one of the taints is t, with or without its value and its effect.
func lists(taints []string, t *corev1.Taint) bool {
	return slices.ContainsFunc([]string{t.Key, t.Key + "=" + t.Value}, func(s string) bool {
		return slices.Contains(taints, s) || slices.Contains(taints, s+":"+string(t.Effect))
	})
}

// withoutObject is a node whose object the cluster no longer has. A node that the cluster never had stays: weir
// may run outside of the cluster.
func (n Node) withoutObject() Node {
	if n.Name != "" {
		n.Leaving = []string{"the cluster has deleted the node"}
	}
	return n
}
