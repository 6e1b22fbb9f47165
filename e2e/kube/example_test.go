//go:build linux

package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExample installs examples/kubernetes as docs/kubernetes.md describes, and serves it.
func TestExample(t *testing.T) {
	s := newStage(t)
	s.apply(s.secret("shop", "shop", "shop.example.org"))
	s.kubectl("apply", "--namespace="+s.name, "--validate=strict", "-f", "../../examples/kubernetes/shop.yaml")
	t.Cleanup(func() { s.delete("ingress", "shop") })
	s.rolledOut("shop")
	w := s.inPod("-c", "../../deploy/kustomize/base/weir.yaml")
	local := func(a answer) bool { // the Pod of this node may appear last in the EndpointSlice
		return a.Status == 200 && strings.HasPrefix(a.Pod, "shop-") && a.Node == "node-a"
	}
	if a := w.want("https://shop.example.org:8443/", "a Pod of shop on node-a", local); a.Certificate != "shop" {
		t.Errorf("there is %s", a)
	}
}

// TestLintCluster runs weir lint on the annotations of the objects in the cluster.
func TestLintCluster(t *testing.T) {
	s := newStage(t)
	annotated := strings.Replace(ingress("web", "web.example", "/", "a", ""), "{name: web}",
		"{name: web, annotations: {nginx.ingress.kubernetes.io/fastcgi-index: index.php, nginx.ingress.kubernetes.io/client-body-buffer-size: 50m, nginx.ingress.kubernetes.io/backend-protocol: GRPC}}", 1)
	s.apply(service("a"), annotated)
	lint := func(args ...string) (string, int) {
		c := exec.Command(weirFile, append([]string{"lint", "--cluster", "--kubeconfig", filepath.Join(s.dir, "admin.kubeconfig")}, args...)...)
		c.Env = os.Environ()
		var complaint bytes.Buffer
		c.Stderr = &complaint
		out, err := c.Output()
		var ended *exec.ExitError
		if err != nil && !errors.As(err, &ended) {
			t.Fatal(err)
		}
		if complaint.Len() > 0 {
			t.Logf("weir lint %v says %s", args, &complaint)
		}
		return string(out), c.ProcessState.ExitCode()
	}
	text, status := lint()
	for _, line := range []string{"Ingress " + s.name + "/web", "no     nginx.ingress.kubernetes.io/fastcgi-index", "near   nginx.ingress.kubernetes.io/client-body-buffer-size", "exact  nginx.ingress.kubernetes.io/backend-protocol"} {
		if !strings.Contains(text, line) {
			t.Errorf("weir lint --cluster has no %q but\n%s", line, text)
		}
	}
	if status != 1 {
		t.Errorf("with something that weir does not do the status is %d, want 1", status)
	}
	text, _ = lint("--output", "json")
	if !json.Valid([]byte(text)) {
		t.Errorf("this is no JSON:\n%s", text)
	}
	s.kubectl("annotate", "--namespace="+s.name, "ingress/web", "nginx.ingress.kubernetes.io/fastcgi-index-")
	if text, status := lint(); status != 0 {
		t.Errorf("with nothing but near and exact the status is %d, want 0:\n%s", status, text)
	}
	if text, status := lint("--strict"); status != 1 {
		t.Errorf("with --strict the status is %d, want 1:\n%s", status, text)
	}
}
