package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page contains the rows of this package. The test ignores the versions.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), begin)
	got, _, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatal("the page has no generated tables")
	}
	versionColumn := regexp.MustCompile(`(?m)^(\| [^|]+ \| )\d[\w.]*( \|)`)
	want, err := render(func(program) (string, error) { return "0", nil })
	if err != nil {
		t.Fatal(err)
	}
	if got := versionColumn.ReplaceAllString(got, "${1}0${2}"); got != want {
		t.Errorf("run go run ./e2e/compatibility; the page has\n%s\nand the rows are\n%s", got, want)
	}
}

// Each row names tests that exist.
func TestRowsHaveTests(t *testing.T) {
	files, err := filepath.Glob("../*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, r := range rows {
		if len(r.tests) == 0 {
			t.Errorf("%s, %s: no test", r.program.name, r.what)
		}
		for _, name := range r.tests {
			if !strings.Contains(all.String(), "\nfunc "+name+"(t *testing.T) {") {
				t.Errorf("%s, %s: there is no %s", r.program.name, r.what, name)
			}
		}
	}
}
