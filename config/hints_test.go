package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// Each hint is for a section that exists, does not hide a key, and leads to a key that exists.
func TestHints(t *testing.T) {
	known := knownKeys(t)
	for pattern, words := range config.Synonyms() {
		for word, key := range words {
			if !slices.Contains(known, key) {
				t.Errorf("%s.%s leads to %s, which does not exist", pattern, word, key)
			}
			if slices.Contains(known, strings.TrimPrefix(pattern+"."+word, ".")) {
				t.Errorf("%s.%s is a key", pattern, word)
			}
			if pattern != "" && !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(k, pattern+".") }) {
				t.Errorf("%s is no section", pattern)
			}
		}
	}
	page, err := os.ReadFile("../docs/not.md")
	if err != nil {
		t.Fatal(err)
	}
	for word, why := range config.Absent() {
		if slices.ContainsFunc(known, func(k string) bool { return k == word || strings.HasSuffix(k, "."+word) }) {
			t.Errorf("weir does %q: it is a key", word)
		}
		if !strings.Contains(string(page), "`"+word+"`") {
			t.Errorf("docs/not.md lacks %s: %s", word, why)
		}
	}
	for _, pattern := range config.PatternsWithExample() {
		if !slices.ContainsFunc(known, func(k string) bool { return k == pattern || strings.HasPrefix(k, pattern+".") }) {
			t.Errorf("there is an example for %s, which does not exist", pattern)
		}
	}
}
