//go:build linux

package kube

import (
	"fmt"
	"strings"
	"testing"
)

// TestNodeLeaves: if the node is cordoned, excluded from load balancers, not ready, about to be removed or gone, the health
// port answers 503 at once and names the reason. weir still serves.
func TestNodeLeaves(t *testing.T) {
	s := newStage(t)
	name := s.name + "-node"
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""), "{apiVersion: v1, kind: Node, metadata: {name: "+name+"}}")
	t.Cleanup(func() { s.cluster.kubectl("", "delete", "node", name, "--ignore-not-found") })
	w := s.newWeir(name, "health: {address: '@ip:8086', node_taints: [example.com/drain, 'example.com/window=now:NoExecute']}\n").launch().ready()
	w.wantVerdict(503, "node.kubernetes.io/not-ready") // the API server gives each new node this taint
	taint := func(taints ...string) {
		t.Helper()
		var all []string
		for _, one := range taints {
			key, effect, _ := strings.Cut(one, ":")
			key, value, _ := strings.Cut(key, "=")
			all = append(all, fmt.Sprintf(`{"key":%q,"value":%q,"effect":%q}`, key, value, effect))
		}
		s.kubectl("patch", "node", name, "--type=merge", "--patch", `{"spec":{"taints":[`+strings.Join(all, ",")+`]}}`)
	}
	taint()
	w.wantVerdict(200, "")
	for _, one := range []string{
		"node.kubernetes.io/unschedulable:NoSchedule", "node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/unreachable:NoExecute",
		"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", "node.cloudprovider.kubernetes.io/shutdown:NoSchedule",
		"ToBeDeletedByClusterAutoscaler=1700000000:NoSchedule", "karpenter.sh/disrupted:NoSchedule", "karpenter.sh/disruption=disrupting:NoSchedule",
		"cloud.google.com/impending-node-termination:NoSchedule", "aws-node-termination-handler/spot-itn=event:NoSchedule",
		"aws-node-termination-handler/scheduled-maintenance=event:NoSchedule", "aws-node-termination-handler/asg-lifecycle-termination=event:NoSchedule",
		"aws-node-termination-handler/rebalance-recommendation=event:NoSchedule", "example.com/drain:NoSchedule", "example.com/window=now:NoExecute",
	} {
		taint(one)
		key, _, _ := strings.Cut(one, ":")
		key, _, _ = strings.Cut(key, "=")
		w.wantVerdict(503, "(taint "+key+")")
	}
	w.wantApp("http://web.example/", "a")
	taint("node.kubernetes.io/unreachable:NoSchedule", "DeletionCandidateOfClusterAutoscaler=1700000000:PreferNoSchedule", "example.com/window=later:NoExecute")
	w.wantVerdict(200, "")
	s.kubectl("cordon", name)
	w.wantVerdict(503, "spec.unschedulable")
	s.kubectl("uncordon", name)
	s.kubectl("label", "node", name, "node.kubernetes.io/exclude-from-external-load-balancers=")
	w.wantVerdict(503, "label node.kubernetes.io/exclude-from-external-load-balancers")
	s.kubectl("label", "node", name, "node.kubernetes.io/exclude-from-external-load-balancers-")
	w.wantVerdict(200, "")
	// The state of another node has no effect.
	s.kubectl("cordon", "node-c")
	t.Cleanup(func() { s.cluster.kubectl("", "uncordon", "node-c") })
	w.wantVerdict(200, "")
	s.kubectl("delete", "node", name)
	w.wantVerdict(503, "the cluster has deleted the node")
	w.wantApp("http://web.example/", "a")
}

// TestRequireLocal: the health port of a node answers 503 if a Service in require_local has no ready endpoint
// on this node, even if other nodes have some. An endpoint that terminates does not count.
func TestRequireLocal(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	s.rolledOut("a")
	home := s.objects("pods")[0].Spec.NodeName
	away := map[string]string{"node-a": "node-b", "node-b": "node-c", "node-c": "node-a"}[home]
	near, far := s.newWeir(home, "").launch().ready(), s.newWeir(away, "kubernetes: {kubeconfig: '@kubeconfig', class: '@stage', lease: weir/@stage, require_local: ['@stage/a']}\n").launch().ready()
	near.wantVerdict(200, "")
	far.wantVerdict(503, s.name+"/a")
	s.kubectl("annotate", "--namespace="+s.name, "service/a", "weirproxy.github.io/require-local=true")
	near.wantVerdict(200, `"localEndpoints": 1`)
	far.wantApp("http://web.example/", "a")
	s.kubectl("annotate", "--namespace="+s.name, "pod/"+s.objects("pods")[0].Metadata.Name, "standin.test/ready=false")
	near.wantVerdict(503, s.name+"/a")
	s.kubectl("annotate", "--namespace="+s.name, "pod/"+s.objects("pods")[0].Metadata.Name, "standin.test/ready-")
	near.wantVerdict(200, "")
	s.kubectl("scale", "--namespace="+s.name, "deployment/a", "--replicas=0")
	near.wantVerdict(503, s.name+"/a")
}

// TestShutdown: as soon as weir is told to end, the health port answers 503. weir still accepts connections.
func TestShutdown(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	w := s.weir("drain: {lame_duck: 30s, timeout: 20s}\n")
	w.wantApp("http://web.example/", "a")
	l := w.underLoad("http://web.example/")
	w.cmd.Process.Signal(terminate)
	w.wantVerdict(503, "drain")
	l.more(20)
	l.stop()
	w.cmd.Process.Signal(terminate) // a second signal ends weir without the rest of that time
	if status := w.wait(); status != 0 {
		t.Errorf("weir ended with status %d", status)
	}
}
