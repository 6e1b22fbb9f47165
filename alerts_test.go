package weir_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// alertGroups is the content of a Prometheus rule file, and the spec of a PrometheusRule.
type alertGroups struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

const (
	alertFile = "deploy/helm/weir/alerts/weir.yaml"
	alertRule = "deploy/kustomize/components/prometheus-rule/prometheus-rule.yaml"
)

// All alerts are in one file. kustomize has a copy of it, and docs/operations.md shows the alerts.
func TestAlerts(t *testing.T) {
	var all alertGroups
	if err := yaml.UnmarshalStrict([]byte(read(t, alertFile)), &all); err != nil {
		t.Fatal(err)
	}
	var rule struct{ Spec alertGroups }
	if err := yaml.Unmarshal([]byte(read(t, alertRule)), &rule); err != nil || !reflect.DeepEqual(rule.Spec, all) {
		t.Errorf("%s has other alerts than %s: %v", alertRule, alertFile, err)
	}
	if len(all.Groups) != 1 || all.Groups[0].Name != "weir" || len(all.Groups[0].Rules) < 10 { // the template of the chart uses the first group
		t.Fatalf("%s has the groups %v", alertFile, all.Groups)
	}
	docs := section(t, operations, "### Alerts")
	var names, want []string
	var block strings.Builder
	for _, a := range all.Groups[0].Rules {
		want = append(want, a.Alert)
		hold := a.For
		if hold == "" {
			hold = "0s"
		}
		fmt.Fprintf(&block, "# %s, %s\n%s\n", a.Alert, hold, a.Expr)
		checkLabels(t, a.Alert, a.Expr, fmt.Sprint(a.Annotations))
		if a.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s has the labels %v and the annotations %v", a.Alert, a.Labels, a.Annotations)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(Weir[A-Za-z]+)` \\|").FindAllStringSubmatch(docs, -1) {
		names = append(names, m[1])
	}
	if !slices.Equal(names, want) {
		t.Errorf("%s explains the alerts %q, and there are %q", operations, names, want)
	}
	if !strings.Contains(docs, "```promql\n"+block.String()+"```\n") {
		t.Errorf("%s has other expressions than\n%s", operations, block.String())
	}
}

// promtoolPath skips the test if promtool is not installed.
func promtoolPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("promtool is not installed, and CI leaves nothing out")
		}
		t.Skip("promtool is not installed")
	}
	return path
}

// promtool accepts the rules, and the dashboard's expressions as rules.
func TestAlertsByPromtool(t *testing.T) {
	promtool := promtoolPath(t)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/helm/weir/dashboards/weir.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	panels := "groups:\n- name: panels\n  rules:\n"
	for i, p := range dashboard.Panels {
		for j, target := range p.Targets {
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			panels += fmt.Sprintf("  - {record: 'panel:%d:%d', expr: %q}\n", i, j, expr)
		}
	}
	file := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(file, []byte(panels), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{alertFile, file} {
		if out, err := exec.Command(promtool, "check", "rules", f).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
	}
}

// An endpoint that is down for one replica raises no alert: the others have no series of it.
func TestEndpointDownForAllReplicas(t *testing.T) {
	path, err := filepath.Abs(alertFile)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{rule_files: [%q], evaluation_interval: 1m, tests: [{interval: 1m, input_series: [
  {series: 'weir_backend_endpoints_ready{backend="a", instance="1"}', values: '1x20'},
  {series: 'weir_backend_endpoints_ready{backend="a", instance="2"}', values: '2x20'},
  {series: 'weir_backend_endpoint_up{backend="a", endpoint="one", instance="1"}', values: '0x20'},
  {series: 'weir_backend_endpoint_up{backend="a", endpoint="asked", instance="1"}', values: '0x20'},
  {series: 'weir_backend_endpoint_up{backend="a", endpoint="asked", instance="2"}', values: '1x20'},
  {series: 'weir_backend_endpoint_up{backend="a", endpoint="both", instance="1"}', values: '0x20'},
  {series: 'weir_backend_endpoint_up{backend="a", endpoint="both", instance="2"}', values: '0x20'}],
 alert_rule_test: [{eval_time: 10m, alertname: WeirEndpointDown, exp_alerts: [
  {exp_labels: {severity: warning, backend: a, endpoint: both}, exp_annotations: {summary: Endpoint both of backend a is down.}}]}]}]}`, path)
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtoolPath(t), "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The documentation explains each reason that an alert selects. The alert selects every reason with the
// meaning that it covers.
func TestAlertReasons(t *testing.T) {
	exprs := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# (Weir[A-Za-z]+), .*\n(.*)$`).FindAllStringSubmatch(section(t, operations, "### Alerts"), -1) {
		exprs[m[1]] = m[2]
	}
	// rows returns the reasons in those rows of a section that match row.
	rows := func(heading, row string) (words []string) {
		t.Helper()
		for _, m := range regexp.MustCompile("(?m)^"+row).FindAllStringSubmatch(section(t, operations, heading), -1) {
			words = append(words, all("`([a-z0-9_]+)`", m[1])...)
		}
		if len(words) == 0 {
			t.Fatalf("%s has no row %s", heading, row)
		}
		return words
	}
	f := func(alert string, matched func(reason string) bool, documented []string) {
		t.Helper()
		m := regexp.MustCompile(`\b(?:reason|result)=~"([^"]+)"`).FindStringSubmatch(exprs[alert])
		if m == nil {
			t.Fatalf("%s has the expression %q", alert, exprs[alert])
		}
		selector := regexp.MustCompile("^(?:" + m[1] + ")$")
		for _, reason := range documented {
			if selector.MatchString(reason) != matched(reason) {
				t.Errorf("%s selects %s: %t", alert, reason, !matched(reason))
			}
		}
		for part := range strings.SplitSeq(m[1], "|") { // each part must match a documented reason
			if !slices.ContainsFunc(documented, regexp.MustCompile("^(?:"+part+")$").MatchString) {
				t.Errorf("%s selects %s, which %s does not explain", alert, part, operations)
			}
		}
	}
	except := func(others ...string) func(string) bool {
		return func(reason string) bool { return !slices.Contains(others, reason) }
	}
	only := func(reasons ...string) func(string) bool {
		return func(reason string) bool { return slices.Contains(reasons, reason) }
	}
	f("WeirGeneratesErrors", except("memory", "in_flight", "closed_by_annotation", "closed_path", "auth_busy"),
		rows("### Responses that weir generates", `\| 50[234] \| ([^|]*)\|`))
	f("WeirTunnelsFail", except(), rows("### How a tunnel ended", `\| ([^|]*)\| The tunnel was never established`))
	f("WeirConnectionsRejected", except("descriptors", "header_missing", "header_late", "header_truncated", "header_malformed", "header_checksum", "header_denied"),
		rows("### Connections that are refused", `\| (`+"`(?:header_|max_|pending|fair_share|descriptors)[^|]*"+`)\|`))
	f("WeirProxyHeadersRejected", only("missing", "late", "malformed", "checksum"), rows("### Results of reading a PROXY header", `\| ([^|]*)\|`))
}

// checkLabels fails if the expression uses a metric that does not exist, or a label that
// none of its metrics has or that the expression does not keep.
func checkLabels(t *testing.T, alert, expr, shown string) {
	t.Helper()
	known := metrics(t)
	labels := []string{"instance"}
	for _, name := range metricName.FindAllString(expr, -1) {
		name, bucket := strings.CutSuffix(name, "_bucket")
		if _, ok := known[name]; !ok {
			t.Errorf("%s asks for %s, which does not exist", alert, name)
		}
		if labels = append(labels, known[name]...); bucket {
			labels = append(labels, "le")
		}
	}
	kept := labels
	for _, m := range regexp.MustCompile(` by \(([a-z_, ]+)\)`).FindAllStringSubmatch(expr, -1) {
		kept = strings.Split(m[1], ", ")
	}
	for _, label := range append(all(`([a-z_]+)=~?"`, expr), kept...) {
		if !slices.Contains(labels, label) {
			t.Errorf("%s uses the label %s, and its metrics have %q", alert, label, labels)
		}
	}
	for _, label := range all(`\$labels\.([a-z_]+)`, shown) {
		if !slices.Contains(kept, label) {
			t.Errorf("%s shows the label %s, and it has %q", alert, label, kept)
		}
	}
}
