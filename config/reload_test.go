package config

import (
	"crypto/elliptic"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReloadBearsFilesInUse(t *testing.T) {
	dir := folder{t, t.TempDir()}
	later := time.Now().Add(90 * day)
	dir.certificate("a", elliptic.P256(), later, "a.example")
	dir.certificate("b", elliptic.P256(), later, "b.example")
	dir.write("weir.yaml", []byte(`
listeners: {web: {address: ':443', protocol: tls}}
certificates: [{cert: a.crt, key: a.key}, {cert: b.crt, key: b.key}]
routes: [{listeners: [web], hosts: [a.example, b.example], backend: app}]
backends: {app: {endpoints: ['a:1']}}
`))
	path := filepath.Join(dir.path, "weir.yaml")
	inUse := func(cert, key string) ([]string, bool) {
		if cert == filepath.Join(dir.path, "a.crt") && key == filepath.Join(dir.path, "a.key") {
			return []string{"a.example"}, true
		}
		return nil, false
	}
	f := func(bad, wantError, wantWarning string) {
		t.Helper()
		before, err := os.ReadFile(filepath.Join(dir.path, bad))
		if err != nil {
			t.Fatal(err)
		}
		dir.write(bad, []byte("half a"))
		defer dir.write(bad, before)
		if _, err := Load(path, environment); err == nil {
			t.Errorf("Load bears a broken %s", bad)
		}
		c, err := Reload(path, environment, inUse)
		if (err != nil) != (wantError != "") || err != nil && !strings.Contains(err.Error(), wantError) {
			t.Errorf("with a broken %s: error %v, want %q", bad, err, wantError)
		}
		if err != nil {
			return
		}
		if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Error(), wantWarning) {
			t.Errorf("with a broken %s: warnings %v, want %q", bad, c.Warnings, wantWarning)
		}
	}
	f("a.key", "", "stays in use")
	f("a.crt", "", "stays in use")
	f("b.key", "b.key", "")
	if _, err := Reload(path, environment, inUse); err != nil {
		t.Error(err)
	}
}
