package config_test

import (
	"crypto/elliptic"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
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
		if _, err := file.Load(path, environment); err == nil {
			t.Errorf("Load bears a broken %s", bad)
		}
		c, err := file.Reload(path, environment, config.InUse{Pair: inUse})
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
	if _, err := file.Reload(path, environment, config.InUse{Pair: inUse}); err != nil {
		t.Error(err)
	}
}

// Without a health port and a cluster, no load balancer notices a drain, so waiting is
// useless.
func TestLameDuckDefault(t *testing.T) {
	const listeners = "listeners: {web: {address: ':80', protocol: http}}\n"
	f := func(text string, want time.Duration) {
		t.Helper()
		c := mustParse(t, listeners+text)
		if c.Drain.LameDuck != want {
			t.Errorf("%q: lame_duck is %v, not %v", text, c.Drain.LameDuck, want)
		}
		reloads(t, c)
	}
	f("", 0)
	f("drain: {timeout: 1s}\n", 0)
	f("drain: {lame_duck: 5s}\n", 5*time.Second)
	f("health: {address: ':8086'}\n", 30*time.Second)
	f("kubernetes: {}\n", 30*time.Second)
	f("health: {address: ':8086'}\ndrain: {lame_duck: 0s}\n", 0)
}

func TestAccessLogRedact(t *testing.T) {
	c := mustParse(t, "listeners: {web: {address: ':80', protocol: http}}\naccess_log: {redact: [token, Code]}\n")
	if got := c.AccessLog.Redact; len(got) != 2 || got[0] != "token" || got[1] != "code" {
		t.Errorf("the names are %q", got)
	}
	reloads(t, c)
	c = mustParse(t, "listeners: {web: {address: ':80', protocol: tcp}}\nroutes: [{listeners: [web], backend: a}]\nbackends: {a: {protocol: tcp, endpoints: ['a:1']}}\naccess_log: {redact: [token, '*', 'filter[*]']}\n")
	if len(c.Warnings) != 2 || !strings.HasPrefix(c.Warnings[0].Error(), "weir.yaml:4:30: access_log.redact[1]: the star is an ordinary character here") {
		t.Errorf("of stars the warnings are %v", c.Warnings)
	}
	names := make([]string, 65)
	for i := range names {
		names[i] = fmt.Sprint("n", i)
	}
	for _, list := range []string{strings.Join(names, ", "), "a=b", "'a&b'", "'%74'", "''", strings.Repeat("x", 129), "tökn", "a, A"} {
		if _, err := file.Parse("weir.yaml", []byte("listeners: {web: {address: ':80', protocol: http}}\naccess_log: {redact: ["+list+"]}\n"), environment); err == nil {
			t.Errorf("redact: [%s] is taken", list)
		}
	}
}
