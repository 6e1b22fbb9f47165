package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Node is the node on which weir runs.
type Node struct {
	Name string // empty: the cluster has no such node
	Zone string
	// Leaving has the reasons why the node must get no new connections, for the verdict; empty:
	// the node stays.
	Leaving []string
}

// leavingTaints are the taints of nodes that will be removed or drained.
var leavingTaints = map[string]string{
	corev1.TaintNodeUnschedulable:    "the node is cordoned",
	"ToBeDeletedByClusterAutoscaler": "the cluster autoscaler deletes the node",
	"karpenter.sh/disrupted":         "Karpenter deletes the node",
}

// NodeOf reads a Node object. For nil, an unknown node, it returns an empty Node: a
// weir that loses the API server keeps the Node that it knew.
func NodeOf(n *corev1.Node) (node Node) {
	if n == nil {
		return node
	}
	node.Name = n.Name
	node.Zone = n.Labels[corev1.LabelTopologyZone]
	add := func(why string) { node.Leaving = append(node.Leaving, why) }
	if n.DeletionTimestamp != nil {
		add("the node is being deleted")
	}
	if n.Spec.Unschedulable {
		add("the node is cordoned (spec.unschedulable)")
	}
	for _, t := range n.Spec.Taints {
		why, leaving := leavingTaints[t.Key]
		if leaving && !(t.Key == corev1.TaintNodeUnschedulable && n.Spec.Unschedulable) {
			add(fmt.Sprintf("%s (taint %s)", why, t.Key))
		}
	}
	return node
}
