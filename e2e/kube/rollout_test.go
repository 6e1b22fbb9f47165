//go:build linux

package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestRollout makes the controller of a Deployment replace all Pods several times, and scale them, while
// clients send requests in every way. No request may fail.
func TestRollout(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 4), s.secret("web", "web", "web.example"), ingress("web", "web.example", "/", "a", "web"))
	s.rolledOut("a")
	w := s.weir("")
	w.wantApp("https://web.example/", "a")
	l := w.underLoad("https://web.example/")
	for _, version := range []string{"two", "three"} {
		s.kubectl("set", "env", "--namespace="+s.name, "deployment/a", "VERSION="+version)
		s.rolledOut("a")
		l.more(100)
	}
	s.kubectl("scale", "--namespace="+s.name, "deployment/a", "--replicas=1")
	s.rolledOut("a")
	eventually(t, "one Pod is left", func() error {
		if n := len(s.objects("pods")); n != 1 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	s.kubectl("scale", "--namespace="+s.name, "deployment/a", "--replicas=3")
	s.rolledOut("a")
	l.more(100)
	versions := l.stop()
	if versions[""] == 0 || versions["two"] == 0 || versions["three"] == 0 {
		t.Errorf("the answers came from %v, want some of each version", versions)
	}
}

// TestRolloutWithoutGrace: Pods of applications without a preStop hook stop at the moment of their deletion.
// Requests that weir may repeat are still answered.
func TestRolloutWithoutGrace(t *testing.T) {
	s := newStage(t)
	s.apply(strings.Replace(deployment("a", 4), "labels: {app: a}}, spec", `labels: {app: a}, annotations: {standin.test/linger: 0s}}, spec`, 1),
		s.secret("web", "web", "web.example"), ingress("web", "web.example", "/", "a", "web"))
	s.rolledOut("a")
	w := s.weir("")
	w.wantApp("https://web.example/", "a")
	l := w.underLightLoad("https://web.example/")
	for _, version := range []string{"two", "three"} {
		s.kubectl("set", "env", "--namespace="+s.name, "deployment/a", "VERSION="+version)
		s.rolledOut("a")
		l.more(100)
	}
	if versions := l.stop(); versions["three"] == 0 {
		t.Errorf("the answers came from %v", versions)
	}
}

// TestPodsComeAndGo removes Pods one by one: some become unready, and some are deleted.
func TestPodsComeAndGo(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 3), ingress("web", "web.example", "/", "a", ""))
	s.rolledOut("a")
	w := s.weir("")
	w.wantApp("http://web.example/", "a")
	pods := s.objects("pods")
	l := w.underLoad("http://web.example/")
	for _, p := range pods[1:] {
		s.kubectl("annotate", "--namespace="+s.name, "pod/"+p.Metadata.Name, "standin.test/ready=false")
	}
	w.only("http://web.example/", pods[0].Metadata.Name)
	s.kubectl("annotate", "--namespace="+s.name, "pod/"+pods[1].Metadata.Name, "standin.test/ready-")
	w.want("http://web.example/", "the Pod that is ready again", func(a answer) bool { return a.Pod == pods[1].Metadata.Name })
	s.delete("pod", pods[0].Metadata.Name, pods[2].Metadata.Name)
	s.rolledOut("a")
	l.more(100)
	l.stop()

	// If only terminating endpoints are left, they serve until they end. Only then does weir answer 503.
	s.kubectl("patch", "--namespace="+s.name, "deployment/a", "--type=merge", "--patch", `{"spec":{"template":{"metadata":{"annotations":{"standin.test/linger":"20s"}}}}}`)
	s.rolledOut("a")
	s.kubectl("scale", "--namespace="+s.name, "deployment/a", "--replicas=0")
	eventually(t, "all endpoints end", func() error {
		for _, slice := range s.objects("apis/discovery.k8s.io/v1/endpointslices") {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready {
					return errors.New("some are ready")
				}
			}
		}
		return nil
	})
	for range 20 {
		if a, err := w.get("http://web.example/"); err != nil || a.Status != 200 {
			t.Errorf("with nothing but ending endpoints there is %s, %v", a, err)
		}
	}
}

// only waits until a Pod has answered twenty requests in a row.
func (w *weir) only(url, pod string) {
	w.Helper()
	eventually(w, "only "+pod+" answers for "+url, func() error {
		for range 20 {
			if a, err := w.get(url); err != nil || a.Pod != pod {
				return fmt.Errorf("there is %s, %v", a, err)
			}
		}
		return nil
	})
}

// TestPreferLocal: weir prefers endpoints of its node, then of its zone, then all others. It never answers
// 503 while an endpoint is ready.
func TestPreferLocal(t *testing.T) {
	s := newStage(t)
	zone := func(of string) []string {
		return []string{"label", "node", "node-b", "--overwrite", "topology.kubernetes.io/zone=" + of}
	}
	t.Cleanup(func() { s.cluster.kubectl("", zone("zone-b")...) })
	s.kubectl(zone("zone-a")...) // the zone of node-a
	daemons := strings.NewReplacer("kind: Deployment", "kind: DaemonSet", "replicas: 3, ", "", "strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 1}},", "").Replace(deployment("a", 3))
	s.apply(daemons, ingress("web", "web.example", "/", "a", ""))
	s.kubectl("rollout", "status", "--namespace="+s.name, "daemonset/a", "--timeout=60s")
	w := s.weir("")
	seen := map[string]bool{}
	eventually(t, "all nodes answer", func() error {
		a, err := w.get("http://web.example/")
		seen[a.Node] = true
		if len(seen) < 3 {
			return fmt.Errorf("%v, %w", seen, err)
		}
		return nil
	})
	s.kubectl("annotate", "--namespace="+s.name, "service/a", "weirproxy.github.io/prefer-local=true")
	local := map[string]string{}
	for _, p := range s.objects("pods") {
		local[p.Spec.NodeName] = p.Metadata.Name
	}
	w.only("http://web.example/", local["node-a"])
	ready := func(node, annotation string) {
		t.Helper()
		s.kubectl("annotate", "--namespace="+s.name, "pod/"+local[node], annotation)
	}
	l := w.underLoad("http://web.example/")
	ready("node-a", "standin.test/ready=false")
	w.only("http://web.example/", local["node-b"])
	ready("node-b", "standin.test/ready=false")
	w.only("http://web.example/", local["node-c"])
	l.more(50)
	ready("node-a", "standin.test/ready-")
	w.only("http://web.example/", local["node-a"])
	l.stop()
}
