//go:build linux

package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
)

// besideAPIServer are packages with tests that need a real API server. The tests have the build tag cluster,
// and run only here.
var besideAPIServer = map[string]string{
	"config/kube": "^TestLive$",
	"tls/storage": "^TestRealSecretsConform$",
}

func compiled(pkg string) string { return filepath.Join(scratch, path.Base(pkg)+".test") }

// compilePackages compiles the tests of besideAPIServer outside of the namespace, where the caches of modules
// and builds are available.
func compilePackages() error {
	for pkg := range besideAPIServer {
		c := exec.Command("go", "test", "-c", "-vet=all", "-tags=cluster", "-o", compiled(pkg), "github.com/weirproxy/weir/"+pkg)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot compile the tests of %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

func TestPackagesBesideAPIServer(t *testing.T) {
	s := newStage(t)
	for pkg, run := range besideAPIServer {
		c := exec.Command(compiled(pkg), "-test.v", "-test.timeout=5m", "-test.run="+run)
		c.Dir = filepath.Join("../..", pkg)
		c.Env = append(os.Environ(), "WEIR_TEST_KUBECONFIG="+filepath.Join(s.dir, "admin.kubeconfig"))
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", pkg, err, out)
		}
		t.Logf("%s: %s", pkg, out)
	}
}
