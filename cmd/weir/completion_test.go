package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	for _, shell := range shellNames {
		out, errs, status := weir("completion", shell)
		if status != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("%s: status %d, %s, and a script of %d bytes", shell, status, errs, len(out))
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "zsh"}} {
		_, errs, status := weir(args...)
		if status != statusUsage || !strings.Contains(errs, "write one of bash, fish, powershell, zsh") {
			t.Errorf("%q: status %d: %s", args, status, errs)
		}
	}
}

// The script works in bash: it offers the commands, and the flags of a command.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("no bash here")
	}
	script, _, _ := weir("completion", "bash")
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "script"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	// The stand-in for weir answers as weir does: it only has to be asked.
	answers, _, _ := weir("__complete", "ch")
	stand := "#!/bin/sh\ncat <<'END'\n" + answers + "END\n"
	if err := os.WriteFile(filepath.Join(folder, "weir"), []byte(stand), 0o755); err != nil {
		t.Fatal(err)
	}
	const use = `
_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; }
compopt() { :; }
. ./script
COMP_WORDS=(weir ch) COMP_CWORD=1 COMP_LINE="weir ch" COMP_POINT=7 COMP_TYPE=9
__start_weir
printf '%s\n' "${COMPREPLY[@]}"
`
	run := exec.Command(bash, "-c", use)
	run.Dir, run.Env = folder, append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	if out, err := run.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "check" {
		t.Errorf("bash offers %q, %v; want check", out, err)
	}
}

// A shell shows the text of a flag without the marks of its placeholder, and offers the values of a flag that has few.
func TestCompletionOfFlags(t *testing.T) {
	for _, test := range []struct {
		line []string
		want string
	}{
		{[]string{"top", "--ca"}, "--ca\ta FILE with CA certificates that verify the certificate of admin.tls; the default is the system's\n"},
		{[]string{"tls", "report", "--ca"}, "--ca\ta FILE with CA certificates that verify the certificate of admin.tls; the default is the system's\n"},
		{[]string{"top", "--sort", ""}, "requests\nerrors\np99\nname\n:4\n"},
		{[]string{"lint", "--output", ""}, "text\njson\n:4\n"},
	} {
		out, errs, status := weir(append([]string{"__complete"}, test.line...)...)
		if status != 0 || !strings.HasPrefix(out, test.want) {
			t.Errorf("%q: status %d, %s, and:\n%s\nwant:\n%s", test.line, status, errs, out, test.want)
		}
	}
}
