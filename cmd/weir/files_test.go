package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each command takes its file from the argument, from --config, or from one of the usual places.
func TestCommandsTakeFiles(t *testing.T) {
	text, err := os.ReadFile("../../examples/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Chdir(t.TempDir())
	usual := filepath.Join(t.TempDir(), "weir.yaml")
	before := defaultFiles
	defaultFiles = []string{"weir.yaml", usual}
	defer func() { defaultFiles = before }()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	commands := []string{"run", "check", "fmt", "explain"}
	f := func(what, files string, status int, want string) {
		t.Helper()
		for _, command := range commands {
			line := append([]string{command}, strings.Fields(files)...)
			if command == "explain" {
				line = append(line, "http://a:8080/")
			}
			if out, errs, is := weir(line...); is != status || !strings.Contains(out+errs, want) {
				t.Errorf("%s: weir %s ends with %d: %s%s", what, strings.Join(line, " "), is, out, errs)
			}
		}
	}
	f("no file", "", statusUsage, "no configuration file, and there is no weir.yaml and no "+usual+"; write weir ")
	f("two files", "-c a.yaml b.yaml", statusUsage, "two configuration files: b.yaml, and a.yaml with --config")
	f("an empty name", "--config=", statusUsage, "--config names no file")
	f("an empty name among others", "-c a.yaml --config=", statusUsage, "--config names no file")
	for _, line := range [][]string{{"run", ""}, {"check", ""}, {"check", "a.yaml", ""}, {"fmt", "", "a.yaml"}, {"explain", "", "http://a:8080/"}} {
		if out, errs, is := weir(line...); is != statusUsage || !strings.Contains(errs, "an empty argument names no file; write weir "+line[0]+" FILE") {
			t.Errorf("weir %q ends with %d: %s%s", line, is, out, errs)
		}
	}
	if out, errs, is := weir("explain", "--admin=", "http://a:8080/"); is != statusUsage || !strings.Contains(errs, "--admin names no admin port") {
		t.Errorf("weir explain --admin= ends with %d: %s%s", is, out, errs)
	}
	write(usual, "[")
	f("the second place", "", statusError, usual+":1:")
	write("weir.yaml", "[")
	f("the first place", "", statusError, "weir.yaml:1:")
	write("a.yaml", "[")
	f("the argument", "a.yaml", statusError, "a.yaml:1:")
	f("the flag", "-c a.yaml", statusError, "a.yaml:1:")
	write("b.yaml", "{")
	commands = []string{"check", "fmt"}
	f("the flag twice", "-c a.yaml -c b.yaml", statusError, "\nb.yaml:1:")
	commands = []string{"run", "explain"}
	f("the same flag twice", "-c a.yaml -c a.yaml", statusError, "a.yaml:1:")
	f("the flag twice", "-c a.yaml -c b.yaml", statusUsage, "two configuration files: a.yaml and b.yaml, both with --config")

	commands = []string{"check", "fmt", "explain"}
	write("a.yaml", string(text))
	f("no error", "a.yaml", 0, "")
	// check and fmt take several files, and go on after one with errors.
	out, errs, status := weir("check", "b.yaml", "none.yaml", "a.yaml")
	if status != statusError || !strings.HasPrefix(out, "a.yaml: ok: ") || !strings.HasPrefix(errs, "b.yaml:1:") || !strings.Contains(errs, "\nnone.yaml: cannot read") {
		t.Errorf("status %d, printed %q and %q", status, out, errs)
	}
}
