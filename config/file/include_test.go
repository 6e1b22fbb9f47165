package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// tree writes files into a folder, by their paths. It returns the folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

const (
	mainPart = "listeners: {web: {address: ':8080', protocol: http}}\nroutes: [{name: z, listeners: [web], hosts: [z.example], backend: app}]\nbackends: {app: {endpoints: ['127.0.0.1:1']}}\n"
	sitePart = "routes: [{name: %[1]s, listeners: [web], hosts: [%[1]s.example], backend: %[1]s}]\nbackends: {%[1]s: {endpoints: ['127.0.0.1:2']}}\n"
)

func site(name string) string { return fmt.Sprintf(sitePart, name) }

// The order of included files is the lexical order within each path, and relative files start
// at the main file.
func TestInclude(t *testing.T) {
	dir := tree(t, map[string]string{
		"weir.yaml":       "include: [conf.d, 'sites/*.yaml', one.conf]\n" + mainPart,
		"conf.d/b.yaml":   site("b"),
		"conf.d/a.yaml":   site("a") + "auth: {staff: {basic: {file: users}}}\n",
		"conf.d/.c.yaml":  "broken",
		"conf.d/d.yml":    "broken",
		"conf.d/e/f.yaml": "broken",
		"sites/x/g.yaml":  "broken",
		"sites/h.yaml":    "# nothing yet\n",
		"one.conf":        site("i") + "access_log: {path: stdout}\n",
		"users":           "ada:{SHA}qUqP5cyxm6YcTAhz05Hph5gvu9M=\n",
	})
	c, warnings, err := Check(filepath.Join(dir, "weir.yaml"), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	var routes, files []string
	for _, r := range c.Routes {
		routes = append(routes, r.Name)
	}
	for _, f := range c.Included.Files {
		name, _ := filepath.Rel(dir, f.Path)
		files = append(files, name)
	}
	if want := []string{"z", "a", "b", "i"}; !slices.Equal(routes, want) {
		t.Errorf("the routes are %v, want %v", routes, want)
	}
	if want := []string{"conf.d/a.yaml", "conf.d/b.yaml", "sites/h.yaml", "one.conf"}; !slices.Equal(files, want) {
		t.Errorf("the files are %v, want %v", files, want)
	}
	if len(c.Backends) != 4 || c.AccessLog == nil || len(warnings) != 1 || !strings.Contains(fmt.Sprint(warnings), "conf.d/a.yaml:3:8: auth.staff: no route names this") || !slices.Equal(c.Files(), []string{filepath.Join(dir, "users")}) {
		t.Errorf("%d backends, access log %v, files %v, warnings %v", len(c.Backends), c.AccessLog, c.Files(), warnings)
	}
	// One file with the same content is the same configuration.
	// The hash has the paths of files as they are written, so this is without one.
	must(t, os.WriteFile(filepath.Join(dir, "conf.d/a.yaml"), []byte(site("a")), 0o600))
	if c, err = Load(filepath.Join(dir, "weir.yaml"), os.LookupEnv); err != nil {
		t.Fatal(err)
	}
	whole, err := Parse(filepath.Join(dir, "whole.yaml"), Effective(c), os.LookupEnv)
	if err != nil || whole.Hash != c.Hash || strings.Contains(string(Effective(c)), "include") {
		t.Errorf("as one file it is %v, %v", whole, err)
	}
}

// Errors have the position in the file that has the error, and name other files.
func TestIncludeErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string // DIR stands for the folder
	}{
		{"a value", map[string]string{"weir.yaml": "include: a.yaml\n" + mainPart, "a.yaml": "\nlimits: {pending: none}\n"},
			[]string{"DIR/a.yaml:2:19: limits.pending: "}},
		{"syntax", map[string]string{"weir.yaml": "include: [a.yaml, b.yaml]\n" + mainPart, "a.yaml": "limits: [\n", "b.yaml": "nothing: 1\n"},
			[]string{"DIR/a.yaml:1:9: ", `DIR/b.yaml:1:1: unknown key "nothing"`}},
		{"a backend twice", map[string]string{"weir.yaml": "include: a.yaml\n" + mainPart, "a.yaml": "backends: {app: {endpoints: ['127.0.0.1:2']}}\n"},
			[]string{`DIR/a.yaml:1:12: backends: key "app" is given twice, first on line 4 of DIR/weir.yaml; keep one`}},
		{"a section twice", map[string]string{"weir.yaml": "include: [a.yaml, b.yaml]\n" + mainPart, "a.yaml": "node: a\n", "b.yaml": "node: a\n"},
			[]string{`DIR/b.yaml:1:1: key "node" is given twice, first on line 1 of DIR/a.yaml; keep one`}},
		{"a route twice", map[string]string{"weir.yaml": "include: a.yaml\n" + mainPart, "a.yaml": "routes: [{name: y, listeners: [web], hosts: [z.example], backend: app}]\n"},
			[]string{"DIR/a.yaml:1:10: routes[1]: the route on line 3 of DIR/weir.yaml already matches the same"}},
		{"another shape", map[string]string{"weir.yaml": "include: a.yaml\n" + mainPart, "a.yaml": "routes: {a: 1}\n"},
			[]string{`DIR/a.yaml:1:1: key "routes" is given twice, first on line 3 of DIR/weir.yaml`}},
		{"no mapping", map[string]string{"weir.yaml": "include: a.yaml\n" + mainPart, "a.yaml": "[1]\n"},
			[]string{"DIR/a.yaml:1:1: has to be a mapping of keys to values; write the same keys as in DIR/weir.yaml"}},
		{"within an included file", map[string]string{"weir.yaml": "include: a.yaml\n" + mainPart, "a.yaml": "include: b.yaml\n", "b.yaml": ""},
			[]string{"DIR/a.yaml:1:10: include: works only in the configuration file itself"}},
		{"no such file", map[string]string{"weir.yaml": "include: [a.yaml, '*/b.yaml', conf.d]\n" + mainPart},
			[]string{"DIR/weir.yaml:1:11: include: cannot include a.yaml: no such file or directory", "DIR/weir.yaml:1:31: include: cannot include conf.d: no such file or directory"}},
		{"the main file", map[string]string{"weir.yaml": "include: ['*.yaml', a.yaml]\n" + mainPart, "a.yaml": ""},
			[]string{"DIR/weir.yaml:1:11: include: *.yaml contains the configuration file itself", "DIR/weir.yaml:1:21: include: DIR/a.yaml is included twice"}},
		{"itself", map[string]string{"weir.yaml": "include: weir.yaml\n" + mainPart},
			[]string{"DIR/weir.yaml:1:10: include: weir.yaml contains the configuration file itself"}},
		{"twice", map[string]string{"weir.yaml": "include: ['*.yml', a.yml]\n" + mainPart, "a.yml": ""},
			[]string{"DIR/weir.yaml:1:20: include: DIR/a.yml is included twice; name it once"}},
		{"the wrong shape", map[string]string{"weir.yaml": "include: {a: b}\n" + mainPart},
			[]string{"DIR/weir.yaml:1:10: include: has to be a list of files, folders or patterns"}},
		{"an element of the wrong shape", map[string]string{"weir.yaml": "include: [1, '']\n" + mainPart},
			[]string{"DIR/weir.yaml:1:11: include: has to be the path", "DIR/weir.yaml:1:14: include: has to be the path"}},
		{"a bad pattern", map[string]string{"weir.yaml": "include: ['a[']\n" + mainPart},
			[]string{"DIR/weir.yaml:1:11: include: cannot include a[: it is not a valid pattern"}},
		{"a variable", map[string]string{"weir.yaml": "include: ['${HOME}/a']\n" + mainPart},
			[]string{"DIR/weir.yaml:1:11: include: a path cannot contain a variable"}},
	} {
		dir := tree(t, c.files)
		_, err := Load(filepath.Join(dir, "weir.yaml"), func(string) (string, bool) { return "secret", true })
		var all config.Errors
		if !errors.As(err, &all) || len(all) != len(c.want) {
			t.Errorf("%s: %v; want %d errors", c.name, err, len(c.want))
			continue
		}
		for i, want := range c.want {
			if got := strings.ReplaceAll(all[i].Error(), dir, "DIR"); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s\nwant %s", c.name, got, want)
			}
		}
	}
}

// A pipe in an included folder does not make a reload wait.
func TestIncludeRefusesPipes(t *testing.T) {
	dir := tree(t, map[string]string{"weir.yaml": "include: conf.d\n" + mainPart, "conf.d/a.yaml": site("a")})
	must(t, syscall.Mkfifo(filepath.Join(dir, "conf.d/b.yaml"), 0o600))
	if _, err := Load(filepath.Join(dir, "weir.yaml"), nil); err == nil || !strings.Contains(err.Error(), "b.yaml: it is not a regular file") {
		t.Error(err)
	}
}

// All files together have the limit of one.
func TestIncludeIsBounded(t *testing.T) {
	large := "# " + strings.Repeat("x", maxFile/2) + "\n"
	dir := tree(t, map[string]string{"weir.yaml": "include: conf.d\n" + mainPart, "conf.d/a.yaml": large, "conf.d/b.yaml": large})
	if _, err := Load(filepath.Join(dir, "weir.yaml"), nil); err == nil || !strings.Contains(err.Error(), "b.yaml the configuration is larger than 16 MiB") {
		t.Error(err)
	}
}

// A watch reports included files that change, appear or go, also those that did so between the
// load and the watch.
func TestWatchIncluded(t *testing.T) {
	dir := tree(t, map[string]string{"weir.yaml": "include: [conf.d, 'sites/*.yaml']\n" + mainPart, "conf.d/a.yaml": site("a"), "sites/b.yaml": site("b")})
	path := filepath.Join(dir, "weir.yaml")
	in := func(name string) string { return filepath.Join(dir, name) }
	load := func() *config.Config {
		c, err := Load(path, nil)
		must(t, err)
		return c
	}
	watch := func(c *config.Config, change func(), what string) {
		t.Helper()
		w, err := NewWatch(path, c, nil)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		news, ended := make(chan struct{}, 100), make(chan struct{})
		go func() {
			defer close(ended)
			w.Run(ctx, func() { news <- struct{}{} })
		}()
		change()
		select {
		case <-news:
		case <-time.After(20 * time.Second):
			t.Errorf("no news of %s", what)
		}
		cancel()
		<-ended
	}
	watch(load(), func() { put(t, in("conf.d/a.yaml"), site("c")) }, "a changed file")
	watch(load(), func() { put(t, in("conf.d/n.yaml"), site("n")) }, "a new file of a folder")
	watch(load(), func() { put(t, in("sites/m.yaml"), site("m")) }, "a new file of a pattern")
	watch(load(), func() { must(t, os.Remove(in("sites/m.yaml"))) }, "a file that is gone")
	c := load()
	put(t, in("sites/b.yaml"), site("o"))
	watch(c, func() {}, "a file that changed after the load")
	c = load()
	put(t, in("conf.d/p.yaml"), site("p"))
	watch(c, func() {}, "a file that appeared after the load")
}
