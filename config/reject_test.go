package config_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config/file"
)

var update = flag.Bool("update", false, "write what the loader says into testdata/rejected.txt; read the difference before committing it")

// environment returns the values of ${NAME} in the tests.
func environment(name string) (string, bool) {
	value, ok := map[string]string{
		"SECRET": "hunter2",
		"HOST":   "hunter2.example",
		"ROOT":   "/hunter2",
		"PORT":   "9009",
		"EMPTY":  "",
		"YES":    "true",
		"HOME":   "/home/weir",
	}[name]
	return value, ok
}

// TestRejected compares the loader with testdata/rejected.txt. Each case has a name, a
// configuration, and all its errors.
func TestRejected(t *testing.T) {
	const cases = "testdata/rejected.txt"
	data, err := os.ReadFile(cases)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, text := range strings.Split(string(data), "=== ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		in, want, ok := strings.Cut(rest, "--- errors\n")
		if !ok {
			t.Fatalf("%s: case %q has no line of --- errors", cases, name)
		}
		got := ""
		if _, err := file.Parse("weir.yaml", []byte(in), environment); err != nil {
			got = err.Error() + "\n"
		}
		out.WriteString("=== " + name + "\n" + in + "--- errors\n" + got)
		t.Run(name, func(t *testing.T) {
			if got == "" {
				t.Error("the configuration was accepted")
			}
			if strings.Contains(got, "hunter2") {
				t.Errorf("a value of the environment is in an error:\n%s", got)
			}
			if !*update && got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
	if *update {
		if err := os.WriteFile(cases, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
