//go:build linux

package kube

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// gatewayReport is the report of the conformance suite of the Gateway API. -update writes it.
const gatewayReport = "../../conformance/gateway-api-v1.6.3.yaml"

// gatewayProfiles are the profiles of the suite that weir implements.
const gatewayProfiles = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP"

// besideGateways is a configuration that serves Gateways.
const besideGateways = `kubernetes:
  kubeconfig: '@kubeconfig'
  class: '@stage'
  lease: weir/@stage
  gateways: {controller: weirproxy.github.io/@stage, services: true, addresses: {pool: [10.10.2.0/24]}}
`

// sharedPorts are listeners of a configuration with the ports that tests of the suite need.
const sharedPorts = `listeners:
  web: {address: '@ip:80', protocol: http}
  websecure: {address: '@ip:443', protocol: tls}
  second: {address: '@ip:8080', protocol: http}
  third: {address: '@ip:8090', protocol: http}
  fourth: {address: '@ip:8443', protocol: tls}
  fifth: {address: '@ip:8883', protocol: tls}
`

// applyGatewayAPI creates the kinds of the Gateway API, which go away with the test or by remove, and a class of
// weir's.
func (s *stage) applyGatewayAPI() (remove func()) {
	s.Helper()
	files, err := filepath.Glob(filepath.Join(kit, "gateway-crds", "*_*.yaml"))
	if err != nil || len(files) < 10 {
		leaveOut(s.T, "the kit has no definitions of the Gateway API; e2e/kube/kit/build FOLDER adds them")
	}
	args := []string{}
	for _, f := range files {
		if !strings.Contains(f, "_vap_") { // a policy for upgrades
			args = append(args, "--filename="+f)
		}
	}
	remove = func() { s.removeKinds(args) }
	s.Cleanup(remove)
	s.kubectl(append([]string{"apply", "--server-side"}, args...)...)
	s.kubectl(append([]string{"wait", "--for=condition=Established", "--timeout=" + patience.String()}, args...)...)
	s.apply(`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: '@stage'}, spec: {controllerName: weirproxy.github.io/@stage}}`)
	return remove
}

// removeKinds deletes the kinds in these files, and waits until they are gone. An API server that has just started
// fails to delete the objects of a kind. It tries again after minutes, or at once if the kind changes.
func (s *stage) removeKinds(files []string) {
	s.Helper()
	s.cluster.kubectl("", append([]string{"delete", "--ignore-not-found", "--wait=false"}, files...)...)
	tried := 0
	eventually(s.T, "the kinds are gone", func() error {
		left, err := s.cluster.kubectl("", append([]string{"get", "--ignore-not-found", "--output=name"}, files...)...)
		if err != nil || strings.TrimSpace(left) == "" {
			return err
		}
		tried++
		s.cluster.kubectl("", append(append([]string{"annotate", "--overwrite"}, strings.Fields(left)...), fmt.Sprint("tried=", tried))...)
		return fmt.Errorf("there are still\n%s", left)
	})
}

// conformanceReport is the part of a report that says what passed.
type conformanceReport struct {
	GatewayAPIVersion string `json:"gatewayAPIVersion"`
	GatewayAPIChannel string `json:"gatewayAPIChannel"`
	Profiles          []conformanceProfile
}

type conformanceProfile struct {
	Name           string
	Core, Extended conformanceResult
}

type conformanceResult struct {
	Result              string
	Statistics          struct{ Passed, Skipped, Failed int }
	SupportedFeatures   []string
	UnsupportedFeatures []string
	FailedTests         []string
	SkippedTests        []string
}

// TestGatewayAPI runs the conformance suite of the Gateway API. Each test of the features in the status of the
// GatewayClass passes, and the report in the repository has the same results. With shared listeners that have the ports
// of the tests, tests of features that are not in the status pass too, unless Gateways need addresses of their own.
func TestGatewayAPI(t *testing.T) {
	s := newStage(t)
	if _, err := os.Stat(filepath.Join(kit, "gateway-suite")); err != nil {
		leaveOut(t, "the kit has no conformance suite of the Gateway API; e2e/kube/kit/build FOLDER adds it")
	}
	s.applyGatewayAPI()
	w := s.weir(besideGateways)
	namespaces := []string{"gateway-conformance-infra", "gateway-conformance-app-backend", "gateway-conformance-web-backend"}
	s.kubectl(append([]string{"delete", "namespace", "--ignore-not-found"}, namespaces...)...) // with -count they may be ending
	t.Cleanup(func() {
		s.kubectl(append([]string{"delete", "namespace", "--wait=false", "--ignore-not-found"}, namespaces...)...)
	})
	made := filepath.Join(t.TempDir(), "report.yaml")
	s.runSuite(s.name, "", "-conformance-profiles="+gatewayProfiles, "-usable-address=10.10.2.250", "-unusable-address=192.0.2.1",
		"-organization=weirproxy", "-project=weir", "-url=https://github.com/weirproxy/weir", "-version=main", "-contact=https://github.com/weirproxy/weir/issues", "-report-output="+made)
	if !w.running() {
		t.Error("weir has ended")
	}
	got, text := readReport(t, made)
	checkReport(t, got)
	if *update && !t.Failed() {
		if err := os.WriteFile(gatewayReport, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := readReport(t, gatewayReport)
	if a, b := fmt.Sprintf("%+v", *got), fmt.Sprintf("%+v", *want); a != b {
		t.Errorf("the suite reports\n%s\nand %s has\n%s", a, gatewayReport, b)
	}
	w.kill()
	s.applySharedClass()
	s.weir(strings.Replace(sharing, "[web, websecure]}", "[web, websecure, second, third, fourth, fifth]}", 1) + sharedPorts)
	s.runSuite(s.name+"-shared", "/^(GatewayWithAttachedRoutes|GatewayWithAttachedRoutesWithPort8080|HTTPRouteListenerPortMatching|TLSRouteListenerTerminateSupportedKinds|TLSRouteMixedTerminationSameNamespace)$",
		"-supported-features=Gateway,GatewayPort8080,HTTPRoute,HTTPRouteParentRefPort,TLSRoute,TLSRouteModeTerminate,TLSRouteModeMixed")
}

// runSuite runs the conformance suite, or some of its tests, with a class when its status has features. The suite keeps
// the Gateways and backends that all tests use.
func (s *stage) runSuite(class, tests string, args ...string) {
	s.Helper()
	eventually(s, "the class has a status", func() error {
		if s.kubectl("get", "gatewayclass", class, "--output=jsonpath={.status.supportedFeatures[*].name}") == "" {
			return errors.New("it has none")
		}
		return nil
	})
	log := filepath.Join(s.TempDir(), "log")
	cmd := exec.Command(filepath.Join(kit, "gateway-suite"), append([]string{"-test.run=^TestConformance$" + tests, "-test.v", "-test.timeout=9m", "-gateway-class=" + class, "-cleanup-base-resources=false"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(s.dir, "admin.kubeconfig"))
	began := time.Now()
	p, err := start("gateway-suite", log, cmd)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { p.kill() })
	<-p.exited
	s.Logf("the suite took %v", time.Since(began).Round(time.Second))
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		text, _ := os.ReadFile(log)
		s.Errorf("the suite ended with %d:\n%s", code, failuresOf(string(text)))
	}
}

// readReport reads a report, and sorts its profiles, which the suite writes in any order.
func readReport(t *testing.T, file string) (r *conformanceReport, text []byte) {
	t.Helper()
	r = new(conformanceReport)
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, r)
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(r.Profiles, func(a, b conformanceProfile) int { return strings.Compare(a.Name, b.Name) })
	return r, text
}

// checkReport checks that no test failed and none was left out.
func checkReport(t *testing.T, r *conformanceReport) {
	t.Helper()
	if n := len(r.Profiles); n != len(strings.Split(gatewayProfiles, ",")) {
		t.Errorf("the report has %d profiles", n)
	}
	for _, p := range r.Profiles {
		for _, part := range []struct {
			name string
			of   conformanceResult
		}{{"core", p.Core}, {"extended", p.Extended}} {
			r := part.of
			if r.Result != "success" || r.Statistics.Passed == 0 || r.Statistics.Failed+r.Statistics.Skipped > 0 || len(r.FailedTests)+len(r.SkippedTests) > 0 {
				t.Errorf("%s, %s: %+v", p.Name, part.name, r)
			}
		}
	}
}

// failuresOf returns the last lines of each failed test in the output of the suite.
func failuresOf(text string) string {
	var failed []string
	of, written := "", map[string][]string{}
	for line := range strings.Lines(text) {
		switch words := strings.Fields(line); {
		case len(words) == 3 && words[0] == "===":
			of = words[2]
		case len(words) > 2 && words[0] == "---" && words[1] == "FAIL:":
			failed = append(failed, words[2])
		default:
			written[of] = append(written[of], line[:min(len(line), 500)])
		}
	}
	var all strings.Builder
	for _, name := range failed {
		lines := written[name]
		fmt.Fprintf(&all, "--- %s\n%s", name, strings.Join(lines[max(0, len(lines)-8):], ""))
	}
	return all.String()
}
