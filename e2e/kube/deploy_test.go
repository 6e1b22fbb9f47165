//go:build linux

package kube

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// monitors are the kinds of the Prometheus Operator. They have only the fields that weir's manifests use.
var monitors = monitorKind("ServiceMonitor", `{type: object, required: [endpoints, selector], properties: {
  selector: {type: object, properties: {matchLabels: {type: object, additionalProperties: {type: string}}}},
  endpoints: {type: array, items: {type: object, properties: {
    port: {type: string}, path: {type: string}, interval: {type: string}, honorLabels: {type: boolean}}}}}}`) +
	monitorKind("PrometheusRule", `{type: object, required: [groups], properties: {
  groups: {type: array, items: {type: object, required: [name, rules], properties: {
    name: {type: string},
    rules: {type: array, items: {type: object, required: [alert, expr], properties: {
      alert: {type: string}, expr: {type: string}, for: {type: string},
      labels: {type: object, additionalProperties: {type: string}},
      annotations: {type: object, additionalProperties: {type: string}}}}}}}}}}`)

// monitorKind returns a CustomResourceDefinition for a kind of the Prometheus Operator. spec is the schema of
// its spec.
func monitorKind(kind, spec string) string {
	singular := strings.ToLower(kind)
	return fmt.Sprintf(`---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]ss.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]ss, singular: %[2]s}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: %[3]s}}}}
`, kind, singular, spec)
}

// applyMonitors creates the kinds of the Prometheus Operator, and waits until the API server accepts objects
// of them.
func (s *stage) applyMonitors() {
	s.Helper()
	s.apply(monitors)
	s.kubectl("wait", "--for=condition=Established", "crd/servicemonitors.monitoring.coreos.com", "crd/prometheusrules.monitoring.coreos.com", "--timeout=30s")
}

// dryRun makes the API server validate manifests without storing them.
func (s *stage) dryRun(text string) {
	s.Helper()
	if strings.Contains(text, "hostPort") { // the namespace must allow host ports, as in deploy/kustomize/daemonset
		const enforce = "pod-security.kubernetes.io/enforce="
		s.kubectl("label", "namespace", "weir", "--overwrite", enforce+"privileged")
		defer s.kubectl("label", "namespace", "weir", "--overwrite", enforce+"restricted")
	}
	out, err := s.cluster.kubectl(text, "apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-")
	if err != nil {
		s.Fatal(err)
	}
	if strings.Count(out, "(server dry run)") < 8 {
		s.Errorf("the API server says\n%s", out)
	}
}

// TestManifests makes the API server validate the manifests in deploy, in each combination.
func TestManifests(t *testing.T) {
	s := newStage(t)
	s.applyMonitors()
	// A dry run creates no namespaces, so it accepts only objects in namespaces that exist already.
	components, err := filepath.Glob("../../deploy/kustomize/components/*")
	if err != nil || len(components) < 9 {
		t.Fatalf("there are the components %v, %v", components, err)
	}
	for _, folder := range []string{"deployment", "daemonset", "examples/everything"} {
		t.Run(folder, func(t *testing.T) { s.within(t).kustomized(folder) })
	}
	for _, c := range components {
		t.Run(filepath.Base(c), func(t *testing.T) {
			// kustomize accepts only relative paths, and reads files above its folder only through such
			// paths. So the test copies deploy, and adds a folder.
			folder := t.TempDir()
			whole, err := filepath.Abs("../../deploy")
			if err == nil {
				err = os.CopyFS(folder, os.DirFS(whole))
			}
			overlay := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../kustomize/deployment]\ncomponents: [../kustomize/components/" + filepath.Base(c) + "]\n"
			if err == nil {
				err = os.Mkdir(filepath.Join(folder, "overlay"), 0o700)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(folder, "overlay", "kustomization.yaml"), []byte(overlay), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			s.within(t).kustomized(filepath.Join(folder, "overlay"))
		})
	}
}

// within returns the stage for a subtest.
func (s *stage) within(t *testing.T) *stage {
	other := *s
	other.T = t
	return &other
}

func (s *stage) kustomized(folder string) {
	s.Helper()
	if !filepath.IsAbs(folder) {
		folder = filepath.Join("../../deploy/kustomize", folder)
	}
	s.dryRun(s.kubectl("kustomize", folder))
}

// TestChart makes the API server validate the output of the chart for each file of values.
func TestChart(t *testing.T) {
	s := newStage(t)
	s.needHelm()
	s.applyMonitors()
	variants, err := filepath.Glob("../../deploy/helm/values/*.yaml")
	if err != nil || len(variants) < 5 {
		t.Fatalf("there are the values %v, %v", variants, err)
	}
	for _, file := range append(variants, "") {
		t.Run("values="+strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			args := []string{"template", "edge", chart, "--namespace", "weir", "--set", "ingressClass.name=edge", "--validate"}
			if file != "" {
				args = append(args, "--values", file)
			}
			s := s.within(t)
			s.dryRun(s.helm(args...))
			s.checkConfiguration(s.helm(append(args, "--show-only", "templates/config.yaml")...))
		})
	}
	chartValues(s)
	s.helm("lint", chart, "--strict", "--kube-version", "1.36")
}

// chartValues tests the effect of single values, and which values the chart refuses.
func chartValues(s *stage) {
	s.Helper()
	for set, complaint := range map[string]string{
		"imagee.tag=1": "imagee", "config.drain.lame_duck=2m30s": "terminationGracePeriodSeconds is 160",
		"kind=DaemonSet,autoscaling.create=true":                       "autoscaling.create is for kind Deployment",
		"autoscaling.create=true,autoscaling.minReplicas=20":           "more than maxReplicas",
		"autoscaling.create=true,autoscaling.cpu=0":                    "needs something to go by",
		"autoscaling.create=true,resources.requests=null":              "set that too",
		"autoscaling.max=3":                                            "max",
		"service.type=ClusterIP,service.nodePorts.http=30080":          "needs service.type NodePort",
		"service.nodePorts.tcp.ssh=30022":                              "no port of service.tcp",
		"service.nodePorts.htp=30080":                                  "htp",
		"prometheusRule.create=true,prometheusRule.without={WeirDown}": "there is no such alert",
	} {
		out, err := exec.Command(helm, "template", "edge", chart, "--kube-version", "1.36", "--set", set).CombinedOutput()
		if err == nil || !strings.Contains(string(out), complaint) {
			s.Errorf("with %s helm says\n%s\nwant %q", set, out, complaint)
		}
	}
	for set, want := range map[string]string{
		"config.listeners.web.address=:9080": "containerPort: 9080", "config.kubernetes.publish=null": "publish: none",
		"service.nodePorts.https=30443": "targetPort: https, nodePort: 30443}", "autoscaling.create=true": "kind: HorizontalPodAutoscaler",
		"prometheusRule.create=true": "- alert: WeirBackendDown",
	} {
		out := s.helm("template", "edge", chart, "--kube-version", "1.36", "--set", set)
		if !strings.Contains(out, want) {
			s.Errorf("with %s there is no %q", set, want)
		}
		// With both set, the autoscaler and the chart would overwrite each other's number
		// of replicas.
		if scaled := strings.HasPrefix(set, "autoscaling"); scaled == strings.Contains(out, "\n  replicas: ") {
			s.Errorf("with %s there are replicas, or none:\n%s", set, out)
		}
	}
}

// checkConfiguration runs weir check on the configuration in a ConfigMap.
func (s *stage) checkConfiguration(manifest string) {
	s.Helper()
	var m struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(manifest), &m); err != nil {
		s.Fatal(err)
	}
	c := exec.Command(weirFile, "check", "-c", "-")
	c.Stdin = strings.NewReader(m.Data["weir.yaml"])
	c.Env = append(os.Environ(), "NODE_NAME=node-a")
	if out, err := c.CombinedOutput(); err != nil {
		s.Errorf("weir check: %v\n%s\n%s", err, out, m.Data["weir.yaml"])
	}
}

// TestChartInstalls installs the chart with helm, and uninstalls it. The stand-in of the kit runs its Pods.
func TestChartInstalls(t *testing.T) {
	s := newStage(t)
	s.needHelm()
	// In this cluster a Service of type LoadBalancer never gets an address, so helm would wait in vain.
	s.helm("install", "edge", chart, "--namespace", s.name, "--set", "service.type=NodePort,ingressClass.name="+s.name, "--wait", "--timeout", "60s")
	if pods := s.objects("pods"); len(pods) != 2 {
		t.Errorf("there are %d Pods, want 2", len(pods))
	}
	s.kubectl("get", "ingressclass", s.name)
	s.helm("upgrade", "edge", chart, "--namespace", s.name, "--values", "../../deploy/helm/values/daemonset.yaml", "--set", "ingressClass.name="+s.name, "--wait", "--timeout", "60s")
	if left := s.objects("services"); len(left) != 0 {
		t.Errorf("there are %d Services, want none", len(left))
	}
	s.helm("uninstall", "edge", "--namespace", s.name)
	if left := s.kubectl("get", "clusterrole,clusterrolebinding,ingressclass", "--selector=app.kubernetes.io/instance=edge", "--output=name"); left != "" {
		t.Errorf("helm uninstall leaves\n%s", left)
	}
}

// TestChartOfSomeNamespaces: weir has rights in one namespace only, and may write Secrets. It serves that
// namespace, and writes events, statuses and its stored data there.
func TestChartOfSomeNamespaces(t *testing.T) {
	s := newStage(t)
	s.needHelm()
	s.helm("install", "edge", chart, "--namespace", s.name, "--set", "service.type=ClusterIP,replicas=0,rbac.secretStorage=true,rbac.namespaces={"+s.name+"},ingressClass.name="+s.name)
	t.Cleanup(func() { s.helm("uninstall", "edge", "--namespace", s.name) })
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""), ingress("bad", "bad.example", "/", "nowhere", ""))
	w := s.weir("kubernetes: {kubeconfig: " + s.account("edge") + ", class: '@stage', namespaces: ['@stage'], lease: '@stage/weir', publish: {addresses: [203.0.113.9]}}\n" +
		"storage: secrets://" + s.name + "\n")
	w.wantApp("http://web.example/", "a")
	s.wantEvent("Ingress", "bad", "BackendNotFound")
	s.wantAddresses("web", "203.0.113.9")
	s.wantAddresses("bad", "203.0.113.9")
	eventually(t, "session ticket keys are in a Secret", func() error {
		if s.kubectl("get", "secrets", "--namespace="+s.name, "--field-selector=type=weirproxy.github.io/storage", "--output=name") == "" {
			return errors.New("there is none")
		}
		return nil
	})
}

// TestChartOfAnotherNamespace: the chart makes a configuration for another namespace than its own, with the
// fewest rights. weir gets ready, serves, and finds the Service whose addresses it publishes.
func TestChartOfAnotherNamespace(t *testing.T) {
	s := newStage(t)
	s.needHelm()
	shop := s.within(t)
	shop.name += "-shop"
	s.kubectl("create", "namespace", shop.name)
	t.Cleanup(func() { s.cluster.kubectl("", "delete", "namespace", shop.name, "--wait=false") })
	s.helm("install", "edge", chart, "--namespace", s.name, "--set", "service.type=ClusterIP,replicas=0,rbac.node=false,rbac.namespaces={"+shop.name+"},ingressClass.name="+s.name+",config.kubernetes.class="+s.name)
	t.Cleanup(func() { s.helm("uninstall", "edge", "--namespace", s.name) })
	text := s.fill(deployment("a", 1) + "\n---\n" + ingress("web", "web.example", "/", "a", ""))
	if _, err := s.cluster.kubectl(text, "apply", "--namespace="+shop.name, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	w := s.newWeir("", "")
	w.address = "10.10.0.1" // the configuration has the listeners of a Pod
	text = s.kubectl("get", "configmap", "edge", "--namespace="+s.name, `--output=jsonpath={.data.weir\.yaml}`)
	text = strings.Replace(text, "kubernetes:\n", "kubernetes:\n  kubeconfig: "+s.account("edge")+"\n  lease: "+s.name+"/weir\n", 1)
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.launch("NODE_NAME=node-a").ready()
	w.wantApp("http://web.example:8080/", "a")
	shop.wantAddresses("web", s.kubectl("get", "service", "edge", "--namespace="+s.name, "--output=jsonpath={.spec.clusterIP}"))
}

// account makes a kubeconfig for a service account of the namespace.
func (s *stage) account(name string) (file string) {
	s.Helper()
	token := strings.TrimSpace(s.kubectl("create", "token", name, "--namespace="+s.name))
	ca, err := os.ReadFile(filepath.Join(s.dir, "ca.crt"))
	file = filepath.Join(s.TempDir(), "kubeconfig")
	if err == nil {
		err = os.WriteFile(file, kubeconfig(&pair{cert: ca}, "{token: "+token+"}"), 0o600)
	}
	if err != nil {
		s.Fatal(err)
	}
	return file
}

const chart = "../../deploy/helm/weir"

func (s *stage) needHelm() {
	s.Helper()
	if helm != "" {
		return
	}
	leaveOut(s.T, "there is no helm in "+kitVariable+"; e2e/kube/kit/build makes one")
}

// helm runs helm as the administrator of the cluster, and returns its output.
func (s *stage) helm(args ...string) string {
	s.Helper()
	c := exec.Command(helm, append(args, "--kubeconfig", filepath.Join(s.dir, "admin.kubeconfig"))...)
	var complaint bytes.Buffer
	c.Stderr = &complaint
	out, err := c.Output()
	if err != nil {
		s.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, complaint.Bytes())
	}
	return string(out)
}
