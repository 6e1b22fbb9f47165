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

// The documentation and the table of keys agree about restarts and upgrades.
func TestDocumentedRestarts(t *testing.T) {
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
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), "changes all of them but the first three.") || len(named) < 3 {
		t.Fatal("operations.md does not say which of them an upgrade changes")
	}
	const restart, upgrade = "Only a restart changes it.", "Only a restart or an upgrade changes it."
	keys, notByUpgrade := config.RestartKeys(), slices.Clone(named[:3])
	agrees := func(key, text string) bool {
		listed, fixed := slices.Contains(keys, key), slices.Contains(notByUpgrade, key)
		return strings.Contains(text, restart) == (listed && fixed) && strings.Contains(text, upgrade) == (listed && !fixed)
	}
	for key, row := range documentedKeys(t) {
		if !agrees(key, row.meaning) {
			t.Errorf("%s describes %s as %q", documentation, key, row.meaning)
		}
	}
	for key, one := range describedKeys(t) {
		if !agrees(key, one.Description) {
			t.Errorf("the schema describes %s as %q", key, one.Description)
		}
	}
	slices.Sort(named)
	if slices.Sort(keys); !slices.Equal(named, keys) {
		t.Errorf("operations.md names %q, and the keys are %q", named, keys)
	}
}
