// Command compatibility writes docs/compatibility.md. It runs the e2e tests that use clients, servers and
// proxies of other projects, and lists these programs with their versions. Run it in the root of the module:
// go run ./e2e/compatibility
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const page = "docs/compatibility.md"

// begin and end mark the start and the end of the tables in the page. The text around the tables is written
// by hand.
const (
	begin = "<!-- The tables are generated: go run ./e2e/compatibility -->\n"
	end   = "<!-- The end of the generated tables. -->\n"
)

func main() {
	log.SetFlags(0)
	if err := update(); err != nil {
		log.Fatal(err)
	}
}

func update() error {
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("reading the page, in the root of the module: %w", err)
	}
	before, rest, hasBegin := strings.Cut(string(text), begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		return fmt.Errorf("%s has no comments that enclose the tables", page)
	}
	if err := runTests(); err != nil {
		return err
	}
	tables, err := render(versionOf)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(before+begin+tables+end+after), 0o644)
}

// runTests runs the tests of all rows, and returns an error unless all have passed.
func runTests() error {
	var names []string
	for _, r := range rows {
		names = append(names, r.tests...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	cmd := exec.Command("go", "test", "-count=1", "-json", "-run", "^("+strings.Join(names, "|")+")$", "./e2e")
	cmd.Env = append(os.Environ(), "CI=true") // if a peer is not installed, its tests fail
	cmd.Stderr = os.Stderr
	out, runErr := cmd.Output()
	passed := make(map[string]bool)
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return fmt.Errorf("reading the results of the tests: %w", err)
		}
		if event.Action == "output" && strings.Contains(event.Output, "_test.go:") {
			log.Print(strings.TrimRight(event.Output, "\n"))
		}
		passed[event.Test] = passed[event.Test] || event.Action == "pass"
	}
	failed := slices.DeleteFunc(names, func(name string) bool { return passed[name] })
	if len(failed) > 0 {
		return fmt.Errorf("these tests did not pass: %s", strings.Join(failed, ", "))
	}
	return runErr
}

// render returns the tables. version returns the version of a program.
func render(version func(program) (string, error)) (string, error) {
	var b strings.Builder
	for _, role := range roles {
		fmt.Fprintf(&b, "\n## %s\n\n| program | version | tested |\n|---|---|---|\n", role)
		of := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.role != role })
		slices.SortStableFunc(of, func(a, b row) int {
			return cmp.Compare(strings.ToLower(a.program.name), strings.ToLower(b.program.name))
		})
		for _, r := range of {
			v, err := version(r.program)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.program.name, v, r.what)
		}
	}
	b.WriteString("\n")
	return b.String(), nil
}

// versionOf asks a program for its version.
func versionOf(p program) (string, error) {
	command := p.version
	switch command[0] {
	case "module":
		command = []string{"go", "list", "-m", "-f", "{{.Version}}", command[1]}
	case "installed":
		path, err := exec.LookPath(command[1])
		if err != nil {
			return "", fmt.Errorf("asking %s for its version: %w", p.name, err)
		}
		command = []string{"go", "version", "-m", path}
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin", "LC_ALL=C")
	if path, err := exec.LookPath("/usr/sbin/" + command[0]); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	out, err := cmd.CombinedOutput() // some programs exit with another status than 0
	if command[0] == "go" && command[1] == "version" {
		_, out, _ = bytes.Cut(out, []byte("\n\tmod\t"))
	}
	v := versions.Find(out)
	if v == nil {
		return "", fmt.Errorf("asking %s for its version: %w", p.name, cmp.Or(err, errors.New("it printed none")))
	}
	return string(v), nil
}
