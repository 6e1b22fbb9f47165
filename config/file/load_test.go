package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadFailures(t *testing.T) {
	f := func(path, want string) {
		t.Helper()
		if _, err := Load(path, os.LookupEnv); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	f("../testdata/none.yaml", "../testdata/none.yaml: cannot read the configuration: no such file or directory")
	f("../testdata", "../testdata: cannot read the configuration: is a directory")
	large := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(large, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	f(large, large+": cannot read the configuration: it is larger than 16 MiB")
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(objects, []byte("# two objects\napiVersion: v1\nkind: Service\nspec: {}\n---\napiVersion: v1\nkind: Pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f(objects, objects+":2:1: this is a Kubernetes manifest, not a configuration of weir; use weir lint")
}

// The error of an empty file has a file to begin with.
func TestSmallestFileLoads(t *testing.T) {
	if c, err := Parse("weir.yaml", []byte(smallest), nil); err != nil || len(c.Warnings) > 0 {
		t.Errorf("%v, warnings %v", err, c)
	}
}

// BenchmarkParse reads 3,000 routes with a backend each.
func BenchmarkParse(b *testing.B) {
	var routes, backends strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&routes, "- {listeners: [web], hosts: [h%d.example.org], paths: [/a, /b], backend: b%d}\n", i, i)
		fmt.Fprintf(&backends, "  b%d: {endpoints: ['10.0.%d.%d:8080'], health_check: {http: {path: /healthz}}}\n", i, i/250, i%250)
	}
	text := "listeners: {web: {address: ':8443', protocol: tls}}\ncertificates: [{self_signed: {hosts: ['*.example.org']}}]\nroutes:\n" +
		routes.String() + "backends:\n" + backends.String()
	for b.Loop() {
		if _, err := Parse("weir.yaml", []byte(text), os.LookupEnv); err != nil {
			b.Fatal(err)
		}
	}
}
