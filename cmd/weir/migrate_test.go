package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube/controller"
)

// TestMigrate compares the output with the files in testdata/migrate, and loads each as a configuration.
func TestMigrate(t *testing.T) {
	inputs, err := filepath.Glob("testdata/migrate/*.yaml")
	if err != nil || len(inputs) < 3 {
		t.Fatalf("found %d files, %v", len(inputs), err)
	}
	for _, input := range inputs {
		out, complaint, status := weir("migrate", input)
		if status != 0 || complaint != "" {
			t.Errorf("%s: status %d, %s", input, status, complaint)
		}
		if _, err := file.Parse("weir.yaml", []byte(out), func(string) (string, bool) { return "", false }); err != nil {
			t.Errorf("%s: the configuration does not load: %v", input, err)
		}
		checkReport(t, input, out)
		golden := strings.TrimSuffix(input, ".yaml") + ".txt"
		if *update {
			if err := os.WriteFile(golden, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != out {
			t.Errorf("%s: %v; migrate prints\n%s", golden, err, out)
		}
	}
}

// checkReport checks that each line of the report has a reason, and that no Ingress is both served and refused.
func checkReport(t *testing.T, input, out string) {
	t.Helper()
	title, served, refused := "", map[string]bool{}, map[string]bool{}
	ingress := regexp.MustCompile(`^#    - (Ingress \S+/\S+):`)
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		name := ingress.FindStringSubmatch(line)
		switch {
		case !strings.HasPrefix(line, "#    "):
			title = line
		case strings.HasSuffix(line, ":") || strings.HasSuffix(line, ": "):
			t.Errorf("%s: a line has no reason: %s", input, line)
		case name == nil:
		case strings.Contains(title, "weir serves them"):
			served[name[1]] = true
		case strings.Contains(title, "weir answers 503 for them") || strings.Contains(title, "weir cannot serve"):
			refused[name[1]] = true
		}
	}
	for name := range served {
		if refused[name] {
			t.Errorf("%s: %s is both served and refused", input, name)
		}
	}
}

// migrate keeps hosts shared only if an Ingress would lose one to another namespace: by its rule, or below a wildcard.
func TestMigrateSharesHosts(t *testing.T) {
	ingress := func(name, host, annotations string) string {
		namespace, name, _ := strings.Cut(name, "/")
		return "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: " + name + ", namespace: " + namespace + ", annotations: {" + annotations + "}}, spec: {ingressClassName: nginx, rules: [{host: '" + host +
			"', http: {paths: [{path: /" + name + ", pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}}\n---\n"
	}
	first := ingress("a/one", "one.example", "") + ingress("a/wild", "*.apps.example", "")
	for text, loser := range map[string]string{
		"":                                       "",
		ingress("a/two", "one.example", ""):      "",
		ingress("b/two", "one.example", ""):      "Ingress b/two: ",
		ingress("b/below", "x.apps.example", ""): "Ingress b/below: ",
		ingress("b/alias", "two.example", "nginx.ingress.kubernetes.io/server-alias: one.example"):  "", // it loses the name in any case
		ingress("b/www", "two.example", "nginx.ingress.kubernetes.io/from-to-www-redirect: 'true'"): "",
	} {
		file := filepath.Join(t.TempDir(), "in.yaml")
		if err := os.WriteFile(file, []byte(first+text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _, _ := weir("migrate", file)
		if shared := strings.Contains(out, "\n  host_ownership: shared #"); shared != (loser != "") || !strings.Contains(out, loser) {
			t.Errorf("beside %q, of %s it prints\n%s", first, text, out)
		}
	}
}

// Of input that is not Kubernetes', migrate prints nothing but a sentence.
func TestMigrateRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"[1, 2]":      "document 1 is not a Kubernetes object: it is a list; write a mapping",
		"just text":   "it is text; write a mapping",
		"7":           "it is a number; write a mapping",
		"a: b":        "it has no kind",
		"kind: 7":     "kind is a number; write text",
		"kind: Thing": "it has no apiVersion",
		"a: [":        "document 1 is not a Kubernetes object: yaml: ",
		"":            "the input has nothing to migrate",
		"{apiVersion: v1, kind: Pod, metadata: {name: a}}":                                                                                 "the input has nothing to migrate",
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: [a]}":                                                `Ingress "a": spec is a list; write a mapping`,
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: {rules: {host: a}}}":                                 "spec.rules is a mapping; write a list",
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: [a]}}":                                                         "name is a list; write text",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: nginx}, data: {use-gzip: true}}":                                               "data is true or false; write text",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: nginx}, data: {keep-alive: \"1\"}}\n---\nnot: an object":                       "document 2 is not a Kubernetes object: it has no kind",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: http}]}}\n---\n{apiVersion: v1, kind: List, items: 3}": "spec.ports.port is text; write a whole number",
	} {
		file := filepath.Join(t.TempDir(), "in.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, flags := range []string{"", "--gateway-api infra/edge "} {
			out, complaint, status := weir(strings.Fields("migrate " + flags + file)...)
			if status == 0 || out != "" || !strings.Contains(complaint, want) || strings.Contains(complaint, "Go ") || strings.Contains(complaint, "json:") {
				t.Errorf("%smigrating %q: status %d, printed %q, and complained %q, want %q", flags, text, status, out, complaint, want)
			}
		}
	}
}

// Whatever format an access log has, weir accepts the file that migrate prints, and the file has the template.
func FuzzMigratedLogFormat(f *testing.F) {
	for _, format := range []string{`{"time": "$time_iso8601", "status": $status, "of": {"ip": "$remote_addr"}}`, "$remote_addr\t$status", `"$request" \\ \x01 $status`,
		"$status \xff\u2028\ufeff\U0010ffff", "$$status", "${status}$", "$status #: {", "- $status", "$status\x7f\u0085"} {
		f.Add(format)
	}
	f.Fuzz(func(t *testing.T, format string) {
		in := controller.Installation{Data: map[string]string{"log-format-upstream": format}}
		text, _ := in.File()
		c, err := file.Parse("weir.yaml", []byte(text), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatalf("%q: the configuration does not load: %v\n%s", format, err, text)
		}
		if got := c.AccessLog.Format; got != config.LogIngressNginx && !got.IsTemplate() {
			t.Errorf("%q becomes %s", format, got)
		}
	})
}

func TestMigrateChooses(t *testing.T) {
	one, err := os.ReadFile("testdata/migrate/everything.yaml")
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile("testdata/migrate/balancer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	both := filepath.Join(t.TempDir(), "both.yaml")
	if err := os.WriteFile(both, []byte(string(one)+"\n---\n"+string(other)), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(args string, wantStatus int, wantOut, wantErr string) {
		t.Helper()
		out, complaint, status := weir(strings.Fields("migrate " + args)...)
		if status != wantStatus || !strings.Contains(out, wantOut) || !strings.Contains(complaint, wantErr) {
			t.Errorf("weir migrate %s: status %d, printed\n%s\n%s\nwant %d, %s, %s", args, status, out, complaint, wantStatus, wantOut, wantErr)
		}
	}
	f(both, statusError, "", "several controllers of ingress-nginx; name one with --controller: ingress-nginx/ingress-nginx-controller, edge/edge")
	f("--controller edge/edge "+both, 0, "in place of the DaemonSet edge/edge and the ConfigMap edge/settings", "")
	f("--controller a/b "+both, statusError, "", "no such Deployment or DaemonSet")
	f("", statusUsage, "", "no input")
}

// With --gateway-api migrate prints objects that weir lint accepts, and names the Ingresses that stay.
func TestMigrateToGatewayAPI(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "all.yaml")
	text := `
{apiVersion: v1, kind: Service, metadata: {name: app, namespace: shop}, spec: {ports: [{name: web, port: 80}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: headers, namespace: shop}, data: {X-Of-Map: a}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: shop, annotations: {nginx.ingress.kubernetes.io/custom-headers: shop/headers, nginx.ingress.kubernetes.io/configuration-snippet: "more_set_headers X-Of-Snippet:b;"}}, spec: {ingressClassName: nginx, tls: [{hosts: [a.example], secretName: c}], rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {name: web}}}}]}}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: staff, namespace: shop, annotations: {nginx.ingress.kubernetes.io/auth-type: basic}}, spec: {rules: [{host: b.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {number: 80}}}}]}}]}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, status := weir("migrate", "--gateway-api", "infra/edge", file)
	for _, want := range []string{"# These stay Ingresses:\n# - Ingress shop/staff: the Gateway API has nothing", "kind: Gateway\n", "kind: ListenerSet\n", "name: web-redirect\n", "- name: X-Of-Map\n", "- name: X-Of-Snippet\n"} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("status %d, and it prints\n%s\nwithout %q", status, out, want)
		}
	}
	made := filepath.Join(dir, "made.yaml")
	if err := os.WriteFile(made, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, _, status := weir("lint", made); status != 0 {
		t.Errorf("weir lint says of it\n%s", found)
	}
	for args, want := range map[string]string{
		"--gateway-api edge " + file:            "such as infra/edge",
		"--gateway-api " + file:                 `"` + file + `" is a file; write --gateway-api NAMESPACE/NAME FILE`,
		"--gateway-api " + file + " " + made:    `"` + file + `" is a file; write --gateway-api NAMESPACE/NAME FILE`,
		file + " --gateway-api":                 "flag needs an argument: --gateway-api; write --gateway-api NAMESPACE/NAME",
		file + " --gateway-api infra/edge -x=7": "unknown shorthand flag",
	} {
		if out, err, status := weir(append([]string{"migrate"}, strings.Fields(args)...)...); status != statusUsage || out != "" || !strings.Contains(err, want) {
			t.Errorf("weir migrate %s: status %d, %s", args, status, err)
		}
	}
}
