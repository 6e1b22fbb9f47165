package proxy

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each case of ingress-nginx's e2e suite is in a test, or is left out for a reason. testdata/ingress-nginx-suite.txt
// describes its format.
func TestSuiteOfIngressNginx(t *testing.T) {
	list, err := os.ReadFile("testdata/ingress-nginx-suite.txt")
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`^(\S+\.go) (\d+)$`)
	entry := regexp.MustCompile(`^\t(.+?) (=>|--) (.+)$`)
	reasons, texts, names := map[string]bool{}, map[string]string{}, map[string]bool{}
	source, missing, all := "", 0, 0
	complete := func() {
		if missing != 0 {
			t.Errorf("%s: the number of its cases differs by %d from the number of entries", source, missing)
		}
	}
	text := func(file string) string {
		if _, known := texts[file]; !known {
			content, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(file)))
			if err != nil {
				t.Error(err)
			}
			texts[file] = string(content)
		}
		return texts[file]
	}
	for n, line := range strings.Split(string(list), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, why, ok := strings.Cut(strings.TrimPrefix(line, "reason "), ": "); strings.HasPrefix(line, "reason ") && ok && why != "" {
			reasons[name] = false
			continue
		}
		if found := heading.FindStringSubmatch(line); found != nil {
			complete()
			source = found[1]
			missing, _ = strconv.Atoi(found[2])
			continue
		}
		found := entry.FindStringSubmatch(line)
		if found == nil {
			t.Fatalf("line %d is no entry: %s", n+1, line)
		}
		missing--
		all++
		name := source + ": " + found[1]
		if names[name] {
			t.Errorf("line %d: %s is there twice", n+1, name)
		}
		names[name] = true
		if found[2] == "--" {
			if _, known := reasons[found[3]]; !known {
				t.Errorf("line %d: there is no reason %s", n+1, found[3])
			}
			reasons[found[3]] = true
			continue
		}
		if file, part, ok := strings.Cut(found[3], ": "); !ok || part == "" || !strings.Contains(text(file), part) {
			t.Errorf("line %d: %s is in no test: %s does not have %q", n+1, name, file, part)
		}
	}
	complete()
	for name, used := range reasons {
		if !used {
			t.Errorf("no case has the reason %s", name)
		}
	}
	if all != casesOfSuite {
		t.Errorf("%d cases, want %d", all, casesOfSuite)
	}
}

// casesOfSuite is the number of cases of the suite.
const casesOfSuite = 373
