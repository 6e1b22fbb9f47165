//go:build linux

package kube

import "testing"

// TestNodeLeaves: if the node is cordoned or about to be removed, the health port answers 503 at once and
// names the reason. weir still serves.
func TestNodeLeaves(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	w := s.newWeir("node-b", "").launch().ready()
	w.wantApp("http://web.example/", "a")
	w.wantVerdict(200, "")
	f := func(begin, end []string, words string) {
		t.Helper()
		t.Cleanup(func() { s.cluster.kubectl("", end...) })
		s.kubectl(begin...)
		w.wantVerdict(503, words)
		w.wantApp("http://web.example/", "a")
		s.kubectl(end...)
		w.wantVerdict(200, "")
	}
	taint := func(t string) ([]string, []string) {
		return []string{"taint", "node", "node-b", t}, []string{"taint", "node", "node-b", t + "-"}
	}
	f([]string{"cordon", "node-b"}, []string{"uncordon", "node-b"}, "cordoned")
	begin, end := taint("node.kubernetes.io/unschedulable:NoSchedule")
	f(begin, end, "node.kubernetes.io/unschedulable")
	begin, end = taint("ToBeDeletedByClusterAutoscaler:NoSchedule")
	f(begin, end, "ToBeDeletedByClusterAutoscaler")
	begin, end = taint("karpenter.sh/disrupted:NoSchedule")
	f(begin, end, "karpenter.sh/disrupted")
	// The state of another node has no effect.
	s.kubectl("cordon", "node-c")
	t.Cleanup(func() { s.cluster.kubectl("", "uncordon", "node-c") })
	w.wantVerdict(200, "")
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
