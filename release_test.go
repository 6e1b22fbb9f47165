package weir_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	configfile "github.com/weirproxy/weir/config/file"
)

// all returns the first group of each match.
func all(pattern, text string) (found []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// The Makefile, docs/release.md and the tool in release name the same parts.
func TestReleaseTargets(t *testing.T) {
	makefile, docs, tool := read(t, "Makefile"), read(t, "docs/release.md"), read(t, "release/main.go")
	targets := all(`(?m)^release-([a-z]+):`, makefile)
	if len(targets) != 4 {
		t.Errorf("the Makefile has the targets %q", targets)
	}
	if got := all("`make release-([a-z]+)`", docs); !slices.Equal(got, targets) {
		t.Errorf("docs/release.md names the targets %q, and the Makefile has %q", got, targets)
	}
	if got := all(`\{"([a-z]+)", \(\*builder\)\.`, tool); !slices.Equal(got, targets) {
		t.Errorf("release builds %q, and the Makefile has %q", got, targets)
	}
	if got := all(`(?m)^\t\$\(release_tool\) ([a-z]+)$`, makefile); !slices.Equal(got, slices.Sorted(slices.Values(append(targets, "all")))) {
		t.Errorf("the Makefile has release build %q", got)
	}
	// The Makefile takes Go's version from the Dockerfile.
	if got := all(`(?m)^FROM golang:([0-9.]+)-`, read(t, "Dockerfile")); len(got) != 1 {
		t.Errorf("the Dockerfile has the versions %q of Go", got)
	}
}

// The chart, the manifests and the image of a release have one version.
func TestOneVersion(t *testing.T) {
	var chart struct{ Version, AppVersion string }
	if err := yaml.Unmarshal([]byte(read(t, "deploy/helm/weir/Chart.yaml")), &chart); err != nil {
		t.Fatal(err)
	}
	if chart.Version != chart.AppVersion || chart.Version == "" {
		t.Errorf("the chart has the version %q and the appVersion %q", chart.Version, chart.AppVersion)
	}
	images := map[string]bool{}
	deployed(t, func(_ string, document []byte) {
		for _, image := range all(`image: (\S+)`, string(document)) {
			images[image] = true
		}
	})
	if want := "weirproxy/weir:" + chart.Version; len(images) != 1 || !images[want] {
		t.Errorf("the manifests have the images %q, want %s alone", slices.Sorted(maps.Keys(images)), want)
	}
}

// The configuration in the Debian package loads, and the unit allows the folders that it
// names.
func TestDebianConfiguration(t *testing.T) {
	const name = "deploy/debian/weir.yaml"
	c, err := configfile.Parse(name, []byte(read(t, name)), os.LookupEnv)
	if err != nil || len(c.Warnings) > 0 {
		t.Fatal(err, c.Warnings)
	}
	scripts, _ := filepath.Glob("deploy/debian/p*")
	for _, script := range scripts {
		if info, err := os.Stat(script); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be executed: %v", script, err)
		}
	}
	if len(scripts) != 3 {
		t.Errorf("there are the scripts %q", scripts)
	}
}
