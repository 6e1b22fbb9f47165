package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Users install weir-soak alone. It must import neither the proxy, nor libraries that
// only the proxy needs.
func TestImportsNoProxy(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{$.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatalf("cannot list the packages that weir-soak imports: %v", err)
	}
	const weir = "github.com/weirproxy/weir"
	packages := []string{weir + "/cmd/weir-soak", weir + "/soak", weir + "/soak/command", weir + "/listener/header"}
	modules := []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/pires/go-proxyproto",
		"golang.org/x/net", "golang.org/x/sys", "golang.org/x/text"}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		module, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		seen[path] = true
		if module == weir && !slices.Contains(packages, path) || module != weir && !slices.Contains(modules, module) {
			t.Errorf("weir-soak imports %s of module %s", path, module)
		}
	}
	for _, path := range packages {
		if !seen[path] {
			t.Errorf("%s is not imported any more: take it from the list", path)
		}
	}
}
