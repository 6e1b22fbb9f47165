package weir_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	configfile "github.com/weirproxy/weir/config/file"
)

// pods are the Pods of kustomize's Deployment and DaemonSet.
func pods(t *testing.T) map[string]corev1.PodSpec {
	t.Helper()
	found := map[string]corev1.PodSpec{}
	deployed(t, func(_ string, document []byte) {
		var d appsv1.Deployment // a DaemonSet has the same template
		if yaml.Unmarshal(document, &d) == nil && (d.Kind == "Deployment" || d.Kind == "DaemonSet") {
			found[d.Kind] = d.Spec.Template.Spec
		}
	})
	if len(found) != 2 {
		t.Fatalf("there are the Pods %v", found)
	}
	return found
}

// Pods have a startup probe, and Pods of a Deployment are spread over nodes and zones, as
// in the chart.
func TestPodsOfManifests(t *testing.T) {
	all := pods(t)
	for kind, pod := range all {
		probe := pod.Containers[0].StartupProbe
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/livez" || probe.PeriodSeconds*probe.FailureThreshold < 60 {
			t.Errorf("Pods of the %s have the startup probe %+v", kind, probe)
		}
	}
	chart := read(t, "deploy/helm/weir/templates/workload.yaml")
	for i, key := range []string{"kubernetes.io/hostname", "topology.kubernetes.io/zone"} {
		spread := all["Deployment"].TopologySpreadConstraints
		if len(spread) != 2 || spread[i].TopologyKey != key || spread[i].MaxSkew != 1 || spread[i].WhenUnsatisfiable != corev1.ScheduleAnyway ||
			spread[i].LabelSelector.MatchLabels["app.kubernetes.io/name"] != "weir" {
			t.Errorf("Pods of the Deployment have the constraints %+v, and %s is missing", spread, key)
		}
		if !strings.Contains(chart, "topologyKey: "+key+"\n") {
			t.Errorf("the chart does not spread Pods by %s", key)
		}
	}
}

// The metrics port is closed by default and open with the component service-monitor,
// without a change of weir.yaml.
func TestMetricsPortOfManifests(t *testing.T) {
	const folder = "deploy/kustomize/components/service-monitor/"
	var component struct {
		Patches []struct {
			Target struct{ Kind string }
			Patch  string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, folder+"kustomization.yaml")), &component); err != nil || len(component.Patches) != 1 || component.Patches[0].Target.Kind != "Deployment|DaemonSet" {
		t.Fatalf("the component has %+v, %v", component, err)
	}
	var operations []struct {
		Op, Path string
		Value    struct {
			Name, Value   string
			ContainerPort int
		}
	}
	if err := yaml.Unmarshal([]byte(component.Patches[0].Patch), &operations); err != nil || len(operations) != 2 || operations[1].Value.ContainerPort != 8088 {
		t.Fatalf("the component changes %+v, %v", operations, err)
	}
	set := operations[0].Value
	for _, file := range []string{"base", "daemonset", "components/aws-nlb"} {
		name := "deploy/kustomize/" + file + "/weir.yaml"
		f := func(want string, env map[string]string) {
			t.Helper()
			c, err := configfile.Parse(name, []byte(read(t, name)), func(name string) (string, bool) { value, ok := env[name]; return value, ok })
			if err != nil || c.Metrics.Address != want {
				t.Errorf("with %v the metrics port of %s is %+v, %v; want %s", env, name, c, err, want)
			}
		}
		f("127.0.0.1:8088", map[string]string{"NODE_NAME": "a"})
		f(":8088", map[string]string{"NODE_NAME": "a", set.Name: set.Value})
	}
	if !strings.Contains(read(t, folder+"service-monitor.yaml"), "- {name: metrics, port: 8088}\n") {
		t.Error("the Service of the ServiceMonitor has another port")
	}
}
