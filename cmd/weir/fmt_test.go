package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFmt(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const wide, usual = "a:\n    b:   1 # why\n", "a:\n  b: 1 # why\n"
	one, two, bad := write("one.yaml", wide), write("two.yaml", usual), write("bad.yaml", "a: [\n")

	if out, errs, status := weir("fmt", one); status != 0 || out != usual || errs != "" {
		t.Errorf("it prints %q, %q, status %d", out, errs, status)
	}
	if out, errs, status := weir("fmt", "--check", one, two); status != statusError || out != one+"\n" || !strings.Contains(errs, "run weir fmt --write") {
		t.Errorf("--check prints %q, %q, status %d", out, errs, status)
	}
	if text, _ := os.ReadFile(one); string(text) != wide {
		t.Errorf("without --write the file becomes %q", text)
	}
	// Files that are not weir's stay as they are.
	notes := write("notes.txt", "buy  milk\nand bread\n")
	if _, errs, status := weir("fmt", "--write", notes); status != statusError || !strings.HasPrefix(errs, notes+":1:1: the file has no keys") {
		t.Errorf("--write of a text prints %q, status %d", errs, status)
	}
	// A file with errors does not keep the others from being written.
	if out, errs, status := weir("fmt", "--write", bad, one); status != statusError || out != "" || !strings.HasPrefix(errs, bad+":1:4: ") {
		t.Errorf("--write prints %q, %q, status %d", out, errs, status)
	}
	text, err := os.ReadFile(one)
	if info, _ := os.Stat(one); err != nil || string(text) != usual || info.Mode().Perm() != 0o640 {
		t.Errorf("--write makes %q, %v", text, info.Mode())
	}
	if out, _, status := weir("fmt", "--check", one, two); status != 0 || out != "" {
		t.Errorf("after it --check prints %q, status %d", out, status)
	}
	if _, _, status := weir("fmt", "--write", "--check", one); status != statusUsage {
		t.Errorf("--write with --check: status %d", status)
	}
	if _, errs, status := weir("fmt", filepath.Join(folder, "none.yaml")); status != statusError || !strings.Contains(errs, "cannot read the configuration") {
		t.Errorf("a missing file: %q, status %d", errs, status)
	}
}

// If the new text cannot be written, the file keeps the old one.
func TestFmtKeepsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	const old = "a: 1\n"
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	small := limit
	small.Cur = 4096
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	err := replaceFile(path, []byte(old), []byte("b: "+strings.Repeat("x", 8192)+"\n"))
	if again := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); again != nil {
		t.Fatal(again)
	}
	if text, _ := os.ReadFile(path); err == nil || string(text) != old {
		t.Errorf("%v; the file has %d bytes", err, len(text))
	}
}

// The files that users copy have the usual layout.
func TestFmtOfExamples(t *testing.T) {
	examples, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatal("there are no examples", err)
	}
	args := append([]string{"fmt", "--check", "../../deploy/debian/weir.yaml"}, examples...)
	if out, errs, status := weir(args...); status != 0 {
		t.Errorf("weir fmt --check names %q, %q", out, errs)
	}
}
