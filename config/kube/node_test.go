package kube

import (
	"slices"
	"testing"
)

func TestLeaving(t *testing.T) {
	more := []string{"example.com/drain", "example.com/spot=ends", "example.com/window:NoExecute", "example.com/disk=full:NoSchedule", "node.kubernetes.io/unreachable"}
	f := func(more []string, node string, want ...string) {
		t.Helper()
		n := mustRead(t, "{apiVersion: v1, kind: Node, "+node+"}").Nodes[0]
		if got := nodeOf(n, more).Leaving; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", node, got, want)
		}
	}
	tainted := func(more []string, taints string, want ...string) {
		t.Helper()
		f(more, "metadata: {name: node}, spec: {taints: ["+taints+"]}", want...)
	}
	f(nil, "metadata: {name: node, deletionTimestamp: '2026-01-01T00:00:00Z'}", "the node is being deleted")
	f(nil, "metadata: {name: node}, spec: {unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable, effect: NoSchedule}]}", "the node is cordoned (spec.unschedulable)")
	f(nil, "metadata: {name: node, labels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}}", "the node is excluded from load balancers (label node.kubernetes.io/exclude-from-external-load-balancers)")
	for key, why := range leavingTaints {
		tainted(nil, "{key: "+key+", value: x, effect: NoExecute}", why+" (taint "+key+")")
	}
	// A node that has just joined or shuts down has NoSchedule at once.
	tainted(nil, "{key: node.kubernetes.io/not-ready, effect: NoSchedule}, {key: node.kubernetes.io/not-ready, effect: NoExecute}", "the kubelet reports that the node is not ready (taint node.kubernetes.io/not-ready)")
	tainted(nil, "{key: node.kubernetes.io/unreachable, effect: NoSchedule}")
	tainted(nil, "{key: node.kubernetes.io/network-unavailable, effect: NoSchedule}, {key: node.kubernetes.io/disk-pressure, effect: NoSchedule}, {key: DeletionCandidateOfClusterAutoscaler, effect: PreferNoSchedule}, {key: cloud.google.com/gke-spot, value: 'true', effect: NoSchedule}, {key: example.com/drain, effect: NoSchedule}")

	listed := func(key string) string { return "health.node_taints lists a taint of the node (taint " + key + ")" }
	tainted(more, "{key: example.com/drain, effect: PreferNoSchedule}", listed("example.com/drain"))
	tainted(more, "{key: example.com/drain, value: now, effect: NoSchedule}, {key: example.com/spot, value: ends, effect: NoSchedule}", listed("example.com/drain"), listed("example.com/spot"))
	tainted(more, "{key: example.com/window, value: x, effect: NoExecute}", listed("example.com/window"))
	tainted(more, "{key: example.com/disk, value: full, effect: NoSchedule}", listed("example.com/disk"))
	tainted(more, "{key: node.kubernetes.io/unreachable, effect: NoSchedule}", listed("node.kubernetes.io/unreachable"))
	tainted(more, "{key: example.com/spot, effect: NoSchedule}, {key: example.com/window, effect: NoSchedule}, {key: example.com/disk, value: full, effect: NoExecute}, {key: example.com/disk, value: fine, effect: NoSchedule}, {key: example.com/drain2, effect: NoSchedule}")
}
