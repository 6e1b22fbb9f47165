package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// Each command has a manual page with its text and its flags.
func TestManual(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	if _, errs, status := weir("man", folder); status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	for _, c := range allCommands(newRootCommand()) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, want := range []string{" 1 1970-01-01 ", ".SH NAME\n", c.Short, "--help"} {
			if !strings.Contains(strings.ReplaceAll(string(page), `\-`, "-"), want) {
				t.Errorf("%s has no %q", name, want)
			}
		}
	}
	check, _ := os.ReadFile(filepath.Join(folder, "weir-check.1"))
	if !strings.Contains(string(check), `\-\-cluster`) {
		t.Errorf("the page of weir check has no flag:\n%s", check)
	}
	top, _ := os.ReadFile(filepath.Join(folder, "weir-top.1"))
	for _, want := range []string{"less often (default 2s)\n", "or name (default requests)\n", "print the state once\n"} {
		if !strings.Contains(string(top), want) {
			t.Errorf("the page of weir top has no %q:\n%s", want, top)
		}
	}
	keys, err := os.ReadFile(filepath.Join(folder, "..", "man5", "weir.yaml.5"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".TH WEIR.YAML 5 1970-01-01 ", ".B listeners.NAME.address\n", ".B routes[].timeouts.response_head\n", ".B backends.NAME.endpoints[].weight\n", "Default: least_requests."} {
		if !strings.Contains(strings.ReplaceAll(string(keys), `\-`, "-"), want) {
			t.Errorf("weir.yaml.5 has no %q", want)
		}
	}
	if _, errs, status := weir("man", "/proc/nothing/here"); status != statusError || !strings.Contains(errs, "cannot write the manual pages") {
		t.Errorf("status %d: %s", status, errs)
	}
}

// A text never becomes a request of roff.
func TestRoff(t *testing.T) {
	for in, want := range map[string]string{"": "", "a-b": `a\-b`, ".so /etc/passwd": `\&.so /etc/passwd`, "'x": `\&'x`, `C:\n`: `C:\en`} {
		if got := roff(in); got != want {
			t.Errorf("%q becomes %q; want %q", in, got, want)
		}
	}
}

func TestCommitTime(t *testing.T) {
	at := commitTime(&debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "2026-11-25T12:00:00Z"}}})
	if !at.Equal(time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)) {
		t.Error(at)
	}
	for _, info := range []*debug.BuildInfo{nil, {}, {Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "today"}}}} {
		if !commitTime(info).Equal(time.Unix(0, 0)) {
			t.Errorf("%v has a time", info)
		}
	}
}
