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

	// The Deployment of ingress-nginx names its ConfigMap, and that and annotations name others.
	s.kubectl("annotate", "--namespace="+s.name, "ingress/web", "nginx.ingress.kubernetes.io/auth-url=http://auth.example/", "nginx.ingress.kubernetes.io/auth-proxy-set-headers="+s.name+"/sent")
	s.apply(strings.Replace(deployment("controller", 0), "image: echo", `image: registry.k8s.io/ingress-nginx/controller:v1.15.1, args: [/nginx-ingress-controller, --configmap=$(POD_NAMESPACE)/settings]`, 1),
		configMap("settings", map[string]string{"proxy-set-headers": "@stage/requests", "add-headers": "@stage/responses"}),
		configMap("requests", map[string]string{"X-A": "$host"}), configMap("responses", map[string]string{"X-A": "$nothing"}), configMap("sent", map[string]string{"Host": "other.example"}))
	says := func(want bool, lines ...string) {
		t.Helper()
		text, status := lint()
		if bad := strings.Contains(text, "  wrong  "); bad != want || (status == 0) != !want {
			t.Errorf("the status is %d:\n%s", status, text)
		}
		for _, line := range lines {
			if !strings.Contains(text, s.fill(line)) {
				t.Errorf("weir lint --cluster has no %q but\n%s", line, text)
			}
		}
	}
	says(true, "Deployment @stage/controller", "near   proxy-set-headers: \"@stage/requests\"", "wrong  All paths of this Ingress answer 503, because otherwise everybody would have access: the ConfigMap @stage/sent, which auth-proxy-set-headers names, has Host",
		"wrong  weir does not set an HTTP header of add-headers: the ConfigMap @stage/responses")
	s.apply(configMap("responses", map[string]string{"X-A": "a"}), configMap("sent", map[string]string{"X-A": "a"}))
	says(false)
	s.delete("configmap", "requests")
	says(true, "the ConfigMap @stage/requests, which proxy-set-headers of ingress-nginx's ConfigMap names, does not exist")
}
