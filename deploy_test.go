package weir_test

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	configfile "github.com/weirproxy/weir/config/file"
)

// manifestKinds are the kinds of objects in deploy/kustomize, and the types into which the test reads them.
// The test skips kustomizations and the kinds of other projects.
var manifestKinds = map[string]any{
	"v1/Namespace": corev1.Namespace{}, "v1/Service": corev1.Service{}, "v1/ServiceAccount": corev1.ServiceAccount{},
	"apps/v1/Deployment": appsv1.Deployment{}, "apps/v1/DaemonSet": appsv1.DaemonSet{},
	"networking.k8s.io/v1/IngressClass": networkingv1.IngressClass{}, "networking.k8s.io/v1/NetworkPolicy": networkingv1.NetworkPolicy{},
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy":        admissionv1.ValidatingAdmissionPolicy{},
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": admissionv1.ValidatingAdmissionPolicyBinding{},
	"policy/v1/PodDisruptionBudget":                                    policyv1.PodDisruptionBudget{},
	"rbac.authorization.k8s.io/v1/Role":                                rbacv1.Role{},
	"rbac.authorization.k8s.io/v1/ClusterRole":                         rbacv1.ClusterRole{}, "rbac.authorization.k8s.io/v1/RoleBinding": rbacv1.RoleBinding{},
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding": rbacv1.ClusterRoleBinding{},
}

// deployed calls each for every document in deploy/kustomize, with the name of its file.
func deployed(t *testing.T, each func(file string, document []byte)) {
	t.Helper()
	err := filepath.WalkDir("deploy/kustomize", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".yaml" {
			return err
		}
		for _, document := range strings.Split(read(t, file), "\n---\n") {
			each(file, []byte(document))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestManifestsAreWellFormed(t *testing.T) {
	seen := 0
	deployed(t, func(file string, document []byte) {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal(document, &head); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		kind, known := manifestKinds[head.APIVersion+"/"+head.Kind]
		switch {
		case known:
			seen++
			if err := yaml.UnmarshalStrict(document, reflect.New(reflect.TypeOf(kind)).Interface()); err != nil {
				t.Errorf("%s: %s: %v", file, head.Kind, err)
			}
		case head.Kind == "" || strings.HasPrefix(head.APIVersion, "kustomize.config.k8s.io/") || head.Kind == "ServiceMonitor", head.Kind == "PrometheusRule":
		default:
			t.Errorf("%s has a %s/%s, which this test does not know", file, head.APIVersion, head.Kind)
		}
	})
	if seen < 20 {
		t.Errorf("only %d objects were found", seen)
	}
}

// Every weir.yaml loads, and matches the Pods that use it.
func TestDeployedConfigurations(t *testing.T) {
	for file, pods := range map[string]string{
		"deployment": "deployment/deployment.yaml", "daemonset": "daemonset/daemonset.yaml", "components/aws-nlb": "components/aws-nlb/kustomization.yaml",
	} {
		configuration := "deploy/kustomize/" + file + "/weir.yaml"
		if file == "deployment" {
			configuration = "deploy/kustomize/base/weir.yaml"
		}
		text := read(t, "deploy/kustomize/"+pods)
		grace := number(t, text, `terminationGracePeriodSeconds(?:, value)?: (\d+)`)
		failures := number(t, text, `failureThreshold(?:, value: |: )(\d+)\D*(?:resources|$)`)
		checkEnding(t, configuration, []byte(read(t, configuration)), grace, failures)
	}
	files, _ := filepath.Glob("deploy/helm/values/*.yaml")
	for _, file := range append(files, "") {
		values := map[string]any{}
		if err := yaml.Unmarshal([]byte(read(t, "deploy/helm/weir/values.yaml")), &values); err != nil {
			t.Fatal(err)
		}
		if file != "" {
			var more map[string]any
			if err := yaml.UnmarshalStrict([]byte(read(t, file)), &more); err != nil {
				t.Fatal(err)
			}
			overlay(values, more)
		}
		kubernetes := values["config"].(map[string]any)["kubernetes"].(map[string]any)
		if kubernetes["operator_namespaces"] == nil { // the template sets the namespace of the release
			kubernetes["operator_namespaces"] = []string{"weir"}
		}
		if kubernetes["host_ownership"] != "namespace" {
			t.Errorf("%s: host_ownership is %v", cmp.Or(file, "values.yaml"), kubernetes["host_ownership"])
		}
		text, err := yaml.Marshal(values["config"])
		if err != nil {
			t.Fatal(err)
		}
		checkEnding(t, cmp.Or(file, "values.yaml"), text, values["terminationGracePeriodSeconds"].(float64), values["readinessFailures"].(float64))
	}
}

// overlay adds more to values, as helm does.
func overlay(values, more map[string]any) {
	for key, value := range more {
		below, ok1 := values[key].(map[string]any)
		above, ok2 := value.(map[string]any)
		if ok1 && ok2 {
			overlay(below, above)
		} else {
			values[key] = value
		}
	}
}

func number(t *testing.T, text, pattern string) float64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("nothing like %s in\n%s", pattern, text)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkEnding checks that a configuration loads, that the grace period of its Pods is long enough for a
// drain, and that the Pods count as ready while they accept connections.
func checkEnding(t *testing.T, name string, text []byte, grace, failures float64) {
	t.Helper()
	env := func(name string) (string, bool) {
		value, ok := map[string]string{"NODE_NAME": "node-a"}[name]
		return value, ok
	}
	c, err := configfile.Parse(name, text, env)
	if err != nil {
		t.Error(err)
		return
	}
	validates(t, name, string(text))
	if len(c.Warnings) > 0 && !strings.Contains(name, "everything") { // "everything" has its admin port behind a network policy
		t.Errorf("%s: %v", name, c.Warnings)
	}
	if takes := c.Drain.LameDuck.Seconds() + c.Drain.Timeout.Seconds(); grace != takes+10 {
		t.Errorf("%s: a drain takes %v s, and the Pods have %v", name, takes, grace)
	}
	if ready := failures * 5; ready <= c.Drain.LameDuck.Seconds() {
		t.Errorf("%s: weir takes connections for %v after SIGTERM, and counts as ready for %v s", name, c.Drain.LameDuck, ready)
	}
}

// The manifests work in a kustomization with a namespace of its own: it moves all Roles and bindings into that namespace, and
// gives bindings of the service account the namespace only if they name none. The configurations name no namespace.
func TestManifestsInAnotherNamespace(t *testing.T) {
	bindings := 0
	deployed(t, func(file string, document []byte) {
		var o struct {
			metav1.TypeMeta
			Metadata metav1.ObjectMeta
			Subjects []rbacv1.Subject
		}
		if err := yaml.Unmarshal(document, &o); err != nil {
			return
		}
		if (o.Kind == "Role" || o.Kind == "RoleBinding") && o.Metadata.Namespace != "" && o.Metadata.Namespace != "weir" {
			t.Errorf("%s has a %s in the namespace %s, out of which such a kustomization moves it", file, o.Kind, o.Metadata.Namespace)
		}
		for _, s := range o.Subjects {
			if bindings++; s.Namespace != "" {
				t.Errorf("%s: the %s has a subject of the namespace %s", file, o.Kind, s.Namespace)
			}
		}
		if filepath.Base(file) == "weir.yaml" && regexp.MustCompile(`\bweir/weir\b|\[weir\]`).Match(document) {
			t.Errorf("%s names the namespace weir; write ${POD_NAMESPACE:-weir}", file)
		}
	})
	if bindings < 8 {
		t.Errorf("only %d bindings were found", bindings)
	}
}

// rightsOf are the roles that have the rights for a feature in docs/kubernetes.md. If the value is empty, the
// manifests need no role, because they watch all namespaces.
var rightsOf = map[string]string{
	"serving Ingresses": "weir", "`node`": "weir-node", "`publish.nodes`": "weir-node", "events": "weir-tell", "`publish`": "weir-tell",
	"events and `publish`": "weir-leader", "`storage: secrets://…`": "weir-storage", "`tcp`": "weir-tcp-services", "`ingress_nginx`": "weir-ingress-nginx", "`custom-headers` and `auth-proxy-set-headers` of Ingresses": "weir-custom-headers", "`proxy-set-headers` and `add-headers` of that ConfigMap": "weir-custom-headers", "`namespace_labels`": "weir-namespaces", "`gateways`": "weir-gateways", "`gateways.services`, `gateways.addresses.service`": "weir-gateway-services",
	"`gateways.addresses.service.replicas` elsewhere": "", "`default_certificate` elsewhere": "", "`publish.service` elsewhere": "",
}

// documentedRights returns the rights in the table of docs/kubernetes.md: role -> "group/resource: verb".
func documentedRights(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	feature := ""
	for line := range strings.Lines(section(t, "docs/kubernetes.md", "## Rights")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || strings.Contains(line, "---") || strings.Contains(line, "API group") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		feature = cmp.Or(cells[1], feature)
		role, known := rightsOf[feature]
		if !known {
			t.Errorf("docs/kubernetes.md has rights for %q, and this test does not know whose they are", feature)
		}
		if role == "" {
			continue
		}
		words := func(cell string) []string { return regexp.MustCompile("[^`, ]+").FindAllString(cell, -1) }
		for _, resource := range words(cells[4]) {
			addRights(all, role, strings.Trim(cells[3], "`\""), resource, words(cells[5]))
		}
	}
	return all
}

func addRights(all map[string]map[string]bool, role, group, resource string, verbs []string) {
	if all[role] == nil {
		all[role] = map[string]bool{}
	}
	for _, verb := range verbs {
		all[role][strings.TrimPrefix(group+"/"+resource, "/")+": "+verb] = true
	}
}

// The manifests give exactly the rights that the documentation lists.
func TestRights(t *testing.T) {
	want, got := documentedRights(t), map[string]map[string]bool{}
	deployed(t, func(file string, document []byte) {
		var role rbacv1.ClusterRole
		if yaml.Unmarshal(document, &role) != nil || role.Kind != "ClusterRole" && role.Kind != "Role" {
			return
		}
		for _, r := range role.Rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					addRights(got, role.Name, group, resource, r.Verbs)
				}
			}
			if role.Name == "weir-tcp-services" && !slices.Equal(r.ResourceNames, []string{"tcp-services"}) {
				t.Errorf("%s gives rights to the ConfigMaps %q", file, r.ResourceNames)
			}
		}
	})
	if len(want) < 7 || !reflect.DeepEqual(got, want) {
		t.Errorf("deploy/kustomize gives the rights\n%v\nand docs/kubernetes.md says\n%v", got, want)
	}
}

var ruleInChart = regexp.MustCompile(`apiGroups: \[(.*)\]\s+resources: \[(.*)\]\s+(?:resourceNames: .*\s+)?verbs: \[(.*)\]`)

// The chart has the same rules as the manifests, some of them twice.
func TestRightsOfChart(t *testing.T) {
	list := func(s string) []string { return strings.Split(strings.ReplaceAll(s, `"`, ""), ", ") }
	want, got := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, rights := range documentedRights(t) {
		for right := range rights {
			resource, verb, _ := strings.Cut(right, ": ")
			addRights(want, "all", "", resource, []string{verb})
		}
	}
	text := read(t, "deploy/helm/weir/templates/rbac.yaml") + read(t, "deploy/helm/weir/templates/_helpers.tpl")
	if found := len(ruleInChart.FindAllString(text, -1)); found != strings.Count(text, "verbs:") {
		t.Errorf("this test reads %d rules", found)
	}
	for _, m := range ruleInChart.FindAllStringSubmatch(text, -1) {
		for _, group := range list(m[1]) {
			for _, resource := range list(m[2]) {
				addRights(got, "all", group, resource, list(m[3]))
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the chart gives the rights\n%v\nand docs/kubernetes.md says\n%v", got, want)
	}
}

func TestDashboard(t *testing.T) {
	known := metrics(t)
	text := read(t, "deploy/kustomize/components/dashboard/weir.json")
	if text != read(t, "deploy/helm/weir/dashboards/weir.json") {
		t.Error("the chart's dashboard is another than kustomize's")
	}
	if !json.Valid([]byte(text)) {
		t.Error("the dashboard is not JSON")
	}
	for _, name := range metricName.FindAllString(text, -1) {
		if _, ok := known[strings.TrimSuffix(name, "_bucket")]; !ok {
			t.Errorf("the dashboard asks for %s, which does not exist", name)
		}
	}
}

// Each metric has a panel of the dashboard or an alert. Each panel has a place of its own, and asks for labels
// that its metrics have.
func TestEachMetricIsShown(t *testing.T) {
	text := read(t, "deploy/helm/weir/dashboards/weir.json")
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y int }
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, name := range metricName.FindAllString(text+read(t, alertFile), -1) {
		shown[strings.TrimSuffix(name, "_bucket")] = true
	}
	for name := range metrics(t) {
		if !shown[name] {
			t.Errorf("neither the dashboard nor an alert has %s", name)
		}
	}
	taken := map[any]string{}
	for _, p := range dashboard.Panels {
		for _, place := range []any{p.ID, p.GridPos, p.Title} {
			if taken[place] != "" {
				t.Errorf("the panels %q and %q have the same %v", taken[place], p.Title, place)
			}
			taken[place] = p.Title
		}
		for _, target := range p.Targets {
			legend := regexp.MustCompile(`\{\{([a-z_]+)\}\}`).ReplaceAllString(target.LegendFormat, "$$labels.$1")
			checkLabels(t, "the panel "+p.Title, target.Expr, legend)
		}
	}
}

// The policy of the chart is the same as kustomize's.
func TestFixedHosts(t *testing.T) {
	plain := func(text string) string {
		text = regexp.MustCompile(`(?m)^\{\{.*\n|^  labels: .*\n|^#.*\n`).ReplaceAllString(text, "")
		return strings.ReplaceAll(text, "{{ $name }}", "weir-fixed-hosts")
	}
	a, b := plain(read(t, "deploy/kustomize/components/fixed-hosts/policy.yaml")), plain(read(t, "deploy/helm/weir/templates/fixed-hosts.yaml"))
	if a != b {
		t.Errorf("the chart has\n%s\nand kustomize\n%s", b, a)
	}
}

// The schema of the chart has exactly the values of values.yaml, so that helm refuses misspelt ones.
func TestChartSchema(t *testing.T) {
	var values any
	if err := yaml.Unmarshal([]byte(read(t, "deploy/helm/weir/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal([]byte(read(t, "deploy/helm/weir/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	var compare func(path string, value any, schema map[string]any)
	compare = func(path string, value any, schema map[string]any) {
		section, ok := value.(map[string]any)
		properties, closed := schema["properties"].(map[string]any)
		if !ok || !closed {
			return
		}
		if schema["additionalProperties"] != false {
			t.Errorf("the schema lets misspelt values of %s pass", cmp.Or(path, "the chart"))
		}
		for name, below := range section {
			if s, known := properties[name].(map[string]any); known {
				compare(path+"."+name, below, s)
			} else {
				t.Errorf("the schema has no %s.%s", path, name)
			}
		}
		for name := range properties {
			if _, known := section[name]; !known && path+name != "global" { // helm itself defines this value
				t.Errorf("the schema has %s.%s, and values.yaml has not", path, name)
			}
		}
	}
	compare("", values, schema)
}

// The templates of the chart use only values that exist.
func TestChartValues(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "deploy/helm/weir/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	templates, _ := filepath.Glob("deploy/helm/weir/templates/*")
	used := map[string]bool{}
	for _, file := range templates {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\.Values\.([A-Za-z_.]+)`).FindAllStringSubmatch(string(text), -1) {
			path := strings.Split(m[1], ".")
			used[path[0]] = true
			var at any = values
			for _, key := range path {
				section, _ := at.(map[string]any)
				value, ok := section[key]
				if at = value; !ok {
					t.Errorf("%s uses %s, which values.yaml has not", file, m[0])
					break
				}
			}
		}
	}
	for name := range values {
		if !used[name] {
			t.Errorf("no template uses the value %s", name)
		}
	}
}
