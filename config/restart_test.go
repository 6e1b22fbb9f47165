package config_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestChangedByRestart(t *testing.T) {
	f := func(more string, want ...string) {
		t.Helper()
		if got := config.ChangedByRestart(mustParse(t, small), mustParse(t, small+more)); !slices.Equal(got, want) {
			t.Errorf("with %q changed are %q, want %q", more, got, want)
		}
	}
	f("")
	f("node: a\nlog: {level: warn}\n")
	f("user: weir\n", "user")
	f("log: {format: json}\nlandlock: false\nseccomp: false\n", "landlock", "seccomp", "log.format")
}

// The documentation and the table of keys agree about restarts.
func TestDocumentedRestarts(t *testing.T) {
	const sentence = "Only a restart changes it."
	keys, documented := config.RestartKeys(), documentedKeys(t)
	for key, row := range documented {
		if strings.Contains(row.meaning, sentence) != slices.Contains(keys, key) {
			t.Errorf("%s: %q is in the row of %s: %v", documentation, sentence, key, !slices.Contains(keys, key))
		}
	}
	for key, one := range describedKeys(t) {
		if strings.Contains(one.Description, sentence) != slices.Contains(keys, key) {
			t.Errorf("the schema describes %s as %q", key, one.Description)
		}
	}
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)\*\*Only a restart\*\* changes (.*?)[.;]\s`).FindSubmatch(page)
	if list == nil {
		t.Fatal("operations.md has no list of what only a restart changes")
	}
	var named []string
	for _, m := range regexp.MustCompile("`([a-z._]+)`").FindAllSubmatch(list[1], -1) {
		named = append(named, string(m[1]))
	}
	slices.Sort(named)
	if slices.Sort(keys); !slices.Equal(named, keys) {
		t.Errorf("operations.md names %q, and the keys are %q", named, keys)
	}
}
